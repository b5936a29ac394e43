//! Configurations as people write them.

use super::*;
use crate::config;

fn prometheus(yaml: &str) -> Result<PrometheusConfig, String> {
    let config = config::parse(&format!("prometheus: [{yaml}]")).map_err(|error| error.to_string());
    Ok(config?.prometheus.remove(0))
}

fn wake(yaml: &str) -> Result<WakeSourceConfig, String> {
    let main = "{name: main, url: 'http://p'}";
    let config = config::parse(&format!("prometheus: [{main}]\nwakeSources: [{yaml}]"));
    let (_, source) = config.map_err(|error| error.to_string())?.wake_sources.pop_first().unwrap();
    Ok(source)
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
        (
            "{name: m, url: 'ftp://p'}",
            "`prometheus[0].url` is \"ftp://p\": expected an http or https URL",
        ),
        ("{name: m, url: p}", "`prometheus[0].url` is \"p\": expected"),
        (
            "{name: m, url: 'http://p', timeout: 61s}",
            "`prometheus[0].timeout` is \"1m1s\": expected a duration from 100ms to 60s",
        ),
        ("{name: m, url: 'http://p', timeout: 0}", "`prometheus[0].timeout` is \"0s\""),
        (
            "{name: m, url: 'http://p', timeout: soon}",
            "`prometheus[0].timeout` is \"soon\": expected a duration from",
        ),
        ("{name: m, url: 'http://p', token: x}", "`prometheus[0].token`: expected a known key"),
        (
            "{name: m, url: 'http://p', matchers: {a-b: c}}",
            "`prometheus[0].matchers.a-b`: expected a Prometheus label's name",
        ),
        ("{url: 'http://p'}", "`prometheus[0].name`: expected a name, which is missing"),
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
        ("{name: g, kind: gauge, prometheus: main}", "expected either"),
        ("{name: g, kind: gauge, prometheus: main, query: q, url: 'http://h'}", "expected either"),
        ("{name: g, kind: gauge, url: 'http://h'}", "expected either"),
        (
            "{name: g, kind: rate, url: 'http://h', metric: m}",
            ".kind` is \"rate\": expected gauge or counter",
        ),
        ("{name: g, kind: gauge, url: h, metric: m}", "wakeSources[0].url` is \"h\""),
        (
            "{name: g, kind: gauge, url: 'http://h', metric: 'sum(m)'}",
            "wakeSources[0].metric` is \"sum(m)\"",
        ),
        ("{name: g, kind: gauge, url: 'http://h', metric: 1m}", "wakeSources[0].metric` is \"1m\""),
        (
            "{name: g, kind: gauge, prometheus: main, query: 'q{namespace}'}",
            "wakeSources[0].query` is \"q{namespace}\": expected placeholders inside quoted matcher values only",
        ),
        (
            "{name: g, kind: gauge, prometheus: main, query: q, matchers: {a: b}}",
            "wakeSources[0].matchers`: expected none beside `query`",
        ),
    ] {
        let error = wake(yaml).unwrap_err();
        assert!(error.contains(expected), "{yaml}: {error}");
    }
}
