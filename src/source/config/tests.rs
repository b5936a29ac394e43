//! Configurations as people write them.

use super::*;

fn prometheus(yaml: &str) -> Result<PrometheusConfig, String> {
    let config: PrometheusConfig =
        serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
    config.validate().map_err(|fault| fault.to_string())?;
    Ok(config)
}

fn wake(yaml: &str) -> Result<WakeSourceConfig, String> {
    let config: WakeSourceConfig =
        serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
    config.validate().map_err(|fault| fault.to_string())?;
    Ok(config)
}

#[test]
fn a_name_and_a_url_are_enough() {
    let config = prometheus("{name: main, url: 'http://p:9090'}").unwrap();
    assert_eq!(config.timeout_ms, 5_000);
    assert_eq!((config.bearer_token_file, config.ca_file), (None, None));
    assert!(config.matchers.is_empty());
}

#[test]
fn every_key_is_read() {
    let config = prometheus(
        "{name: main, url: 'https://p/prom', bearerTokenFile: /t, caFile: /c, timeout: 250ms,
          matchers: {cluster: a}}",
    );
    let config = config.unwrap();
    assert_eq!(config.timeout_ms, 250);
    assert_eq!(config.bearer_token_file, Some("/t".into()));
    assert_eq!(config.ca_file, Some("/c".into()));
    assert_eq!(config.matchers.values().collect::<Vec<_>>(), ["a"]);
    for (timeout, millis) in [("3", 3_000), ("0.5", 500), ("60s", 60_000), ("'2'", 2_000)] {
        let yaml = format!("{{name: m, url: 'http://p', timeout: {timeout}}}");
        assert_eq!(prometheus(&yaml).unwrap().timeout_ms, millis, "{timeout}");
    }
}

#[test]
fn wrong_values_name_the_key_the_value_and_what_was_expected() {
    for (yaml, expected) in [
        ("{name: m, url: 'ftp://p'}", "`url` is \"ftp://p\": expected an http or https URL"),
        ("{name: m, url: p}", "`url` is \"p\": expected"),
        (
            "{name: m, url: 'http://p', timeout: 61s}",
            "`timeout` is \"1m1s\": expected a duration from 100ms to 60s",
        ),
        ("{name: m, url: 'http://p', timeout: 0}", "`timeout` is \"0s\""),
        ("{name: m, url: 'http://p', timeout: soon}", "duration such as 90"),
        ("{name: m, url: 'http://p', token: x}", "token"),
        ("{name: m, url: 'http://p', matchers: {a-b: c}}", "label's name"),
        ("{url: 'http://p'}", "name"),
    ] {
        let error = prometheus(yaml).unwrap_err();
        assert!(error.contains(expected), "{yaml}: {error}");
    }
}

#[test]
fn f114_a_password_in_a_url_is_refused_and_not_shown() {
    for url in ["https://me:SECRET@p", "me:SECRET@p"] {
        let error = prometheus(&format!("{{name: m, url: '{url}'}}")).unwrap_err();
        assert!(error.contains("without credentials") && !error.contains("SECRET"), "{error}");
    }
}

#[test]
fn a_wake_source_is_a_query_or_a_page() {
    let query =
        wake(r#"{name: gw, kind: gauge, prometheus: main, query: 'sum(q{ns="{namespace}"})'}"#);
    assert_eq!(query.unwrap().prometheus_name(), Some("main"));
    let page = wake(
        "{name: gw, kind: counter, url: 'http://gw/metrics', metric: requests_total,
          matchers: {model: '{model}'}}",
    );
    assert_eq!(page.unwrap().prometheus_name(), None);
}

#[test]
fn a_wake_source_that_cannot_work_is_refused() {
    for (yaml, expected) in [
        ("{name: g, kind: gauge}", "expected either `prometheus` and `query`, or `url` and"),
        ("{name: g, kind: gauge, prometheus: m}", "expected either"),
        ("{name: g, kind: gauge, prometheus: m, query: q, url: 'http://h'}", "expected either"),
        ("{name: g, kind: gauge, url: 'http://h'}", "expected either"),
        ("{name: g, kind: rate, url: 'http://h', metric: m}", "rate"),
        ("{name: g, kind: gauge, url: h, metric: m}", "`url` is \"h\""),
        ("{name: g, kind: gauge, url: 'http://h', metric: 'sum(m)'}", "`metric` is \"sum(m)\""),
        ("{name: g, kind: gauge, url: 'http://h', metric: 1m}", "`metric` is \"1m\""),
        (
            "{name: g, kind: gauge, prometheus: m, query: 'q{namespace}'}",
            "`query` is \"q{namespace}\": expected placeholders inside quoted matcher values only",
        ),
        (
            "{name: g, kind: gauge, prometheus: m, query: q, matchers: {a: b}}",
            "`matchers` is \"\": expected none beside `query`",
        ),
    ] {
        let error = wake(yaml).unwrap_err();
        assert!(error.contains(expected), "{yaml}: {error}");
    }
}
