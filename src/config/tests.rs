//! The file as people write it, as they get it wrong, and as nobody should write it.

use super::*;
use crate::inventory::WorkloadKey;

fn faults(text: &str) -> String {
    parse(text).expect_err("the text is wrong").to_string()
}

#[test]
fn a_whole_file_is_read() {
    let config = parse(
        "
grpcAddress: 0.0.0.0:9090
httpAddress: localhost:8080
prometheus:
- {name: main, url: 'http://127.0.0.1:9091'}
dcgm: {prometheus: main}
workloads:
- namespace: team-a
  name: llm
  min: 0
  max: 4
  replicas: 1
  sloTtft: 2
  zeroAfter: never
  endpoints: ['127.0.0.1:8000', {url: 'http://127.0.0.1:8001/m', pod: llm-1}]
",
    )
    .unwrap();
    let workload = &config.inventory.workloads[&WorkloadKey::new("team-a", "llm")];
    assert_eq!((workload.min, workload.max, workload.replicas.spec), (0, 4, Some(1)));
    assert_eq!(workload.triggers[0]["sloTtft"], "2");
    let ids: Vec<&str> = workload.members.iter().map(|member| &*member.id).collect();
    assert_eq!(ids, ["http://127.0.0.1:8000/metrics", "llm-1"]);
    assert_eq!(config.http_address, Some(([127, 0, 0, 1], 8080).into()));
    assert!(config.inventory.synced);
}

#[test]
fn an_empty_file_is_an_empty_configuration() {
    assert!(parse("").unwrap().inventory.workloads.is_empty());
}

#[test]
fn every_fault_is_reported_at_once() {
    let text = faults(
        "
grpcAddress: nowhere
workloads:
- {namespace: A, name: llm, max: 0}
- {namespace: a, name: llm, sloTtftt: 2, endpoints: ['ftp://x/']}
",
    );
    for part in [
        "`grpcAddress` is \"nowhere\": expected HOST:PORT",
        "`workloads[0].namespace` is \"A\"",
        "`workloads[0].max` is \"0\"",
        "`workloads[1].sloTtftt`",
        "sloTtft",
        "`workloads[1].endpoints[0]` is \"ftp://x/\"",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn what_is_no_number_of_replicas_is_told_what_would_be_one() {
    let text = faults(
        "workloads: [{namespace: a, name: b, min: -1, max: 1.5, replicas: many},
                     {namespace: a, name: c, min: 3, max: 2}]",
    );
    for part in [
        "`workloads[0].min` is \"-1\": expected a number from 0 to 1000000",
        "`workloads[0].max` is \"1.5\": expected a number from 1 to 1000000",
        "`workloads[0].replicas` is \"many\": expected a number from 0 to 1000000",
        "`workloads[1].max` is \"2\": expected a number from 3 to 1000000",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_name_used_twice_is_a_fault() {
    let text = faults("workloads: [{namespace: a, name: b}, {namespace: a, name: b}]");
    assert!(text.contains("not used twice"), "{text}");
}

#[test]
fn whatever_a_file_holds_is_an_error_with_a_place_and_never_a_panic() {
    let workload = |entry: &str| format!("workloads: [{{namespace: a, name: b, {entry}}}]");
    // Nine times nine aliases deep, a few lines would be gigabytes.
    let mut laughs = String::from("workloads:\n- namespace: a\n  name: b\n  a0: &a0 lol\n");
    for n in 1..=9 {
        let aliases = vec![format!("*a{}", n - 1); 9].join(", ");
        laughs.push_str(&format!("  a{n}: &a{n} [{aliases}]\n"));
    }
    let deep = format!("workloads: {}", "[".repeat(100_000));
    for text in [
        workload("max: .nan"),
        workload("max: .inf"),
        workload("max: -1"),
        workload("max: 1e308"),
        workload("max: 99999999999999999999"),
        workload("max: ''"),
        workload("replicas: 1000001"),
        workload("targetInFlight: .nan"),
        workload("targetInFlight: -1"),
        workload("targetInFlight: 1e308"),
        workload("sloTtft: [2]"),
        workload("max: 1, max: 2"),
        workload("sloTtft: 1, sloTtft: 2"),
        workload("endpoints: ['file:///etc/passwd']"),
        workload("endpoints: [{url: 'http://a', pod: p}, {url: 'http://b', pod: p}]"),
        workload("\"{a=\\\"b\\\",}\": x"),
        "workloads: [{namespace: '', name: ''}]".to_owned(),
        "workloads: {".to_owned(),
        "just text".to_owned(),
        "\u{1f}\u{8b}\u{8}\u{0}".to_owned(),
        laughs,
        deep,
    ] {
        let shown: String = text.chars().take(80).collect();
        let Err(error) = parse(&text) else { panic!("accepted: {shown}") };
        assert!(!error.to_string().is_empty(), "{shown}");
    }
}

#[test]
fn every_key_that_is_wrong_is_told_with_every_value_that_is() {
    let text = faults(
        "
foo: 1
grpcAdress: x
prometheus:
- {name: p, urll: 'http://h', timeot: 5s, timeout: soon}
- {name: q, url: 'ftp://h', timeout: 61s, matchers: {a-b: c, d: [e]}}
- text
wakeSources:
- {name: g, kind: rate, url: h, metric: 1m}
dcgm: {prometeus: p}
workloads:
- {namespace: a, name: one, max: -1, sloTtft: soon, replica: 2, endpoints: [{url: 'http://h'}, [x], 'ftp://x']}
- {namespace: a, max: 2, max: 3, min: [1], sloTpot: 1, sloTpot: 2}
- {namespace: a, name: three, endpoints: 'h:1'}
",
    );
    let expected = [
        "`foo`: expected a known key, nearest is ",
        "`grpcAdress`: expected a known key, nearest is grpcAddress",
        "`prometheus[0].url`: expected an http or https URL without credentials, which is missing",
        "`prometheus[0].urll`: expected a known key, nearest is url",
        "`prometheus[0].timeot`: expected a known key, nearest is timeout",
        "`prometheus[0].timeout` is \"soon\": expected a duration from 100ms to 60s",
        "`prometheus[1].url` is \"ftp://h\": expected an http or https URL",
        "`prometheus[1].timeout` is \"1m1s\": expected a duration from 100ms to 60s",
        "`prometheus[1].matchers.a-b`: expected a Prometheus label's name",
        "`prometheus[1].matchers.d` is \"a list\": expected a label's value",
        "`prometheus[2]` is \"text\": expected keys and values",
        "`wakeSources[0].kind` is \"rate\": expected gauge or counter",
        "`wakeSources[0].url` is \"h\": expected an http or https URL",
        "`wakeSources[0].metric` is \"1m\": expected a metric's name",
        "`dcgm.prometeus`: expected a known key, nearest is prometheus",
        "`dcgm`: expected either `prometheus` or `endpoints`",
        "`workloads[0].max` is \"-1\": expected a number from 1 to",
        "`workloads[0].sloTtft` is \"soon\": expected duration",
        "`workloads[0].replica`: expected a known key, nearest is replicas",
        "`workloads[0].endpoints[0].pod`: expected a pod's name, which is missing",
        "`workloads[0].endpoints[1]` is \"a list\": expected HOST:PORT, a URL, or",
        "`workloads[0].endpoints[2]` is \"ftp://x\": expected HOST:PORT",
        "`workloads[1].name`: expected a Kubernetes name: lower-case letters, digits, - and ., \
         which is missing",
        "`workloads[1].max`: expected it once",
        "`workloads[1].min` is \"a list\": expected a number from 0 to",
        "`workloads[1].sloTpot`: expected it once",
        "`workloads[2].endpoints` is \"h:1\": expected a list",
    ];
    for part in expected {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert_eq!(text.lines().count(), expected.len(), "each once:\n{text}");
}

#[test]
fn a_name_that_looks_like_a_number_is_read_as_it_is_written() {
    let config = parse(
        "
prometheus:
- {name: &v 1.10, url: 'http://h', matchers: {version: 1.10, cluster: 007, on: yes, same: *v}}
workloads:
- {namespace: 0x1f, name: 1e3, targetInFlight: 12.50}
",
    )
    .unwrap();
    let matchers: Vec<_> = config.prometheus[0].matchers.values().map(String::as_str).collect();
    assert_eq!(matchers, ["007", "yes", "1.10", "1.10"]);
    assert_eq!(config.prometheus[0].name, "1.10");
    let workload = &config.inventory.workloads[&WorkloadKey::new("0x1f", "1e3")];
    assert_eq!(workload.triggers[0]["targetInFlight"], "12.50");
}

#[test]
fn a_text_that_is_no_yaml_is_told_in_words_for_whoever_wrote_it() {
    for text in ["workloads: [", "workloads: []\n---\nworkloads: []", "a: *b", "? [a]\n: b"] {
        let Err(Error::Yaml(error)) = parse(text) else { panic!("{text}") };
        let told = error.to_string();
        assert!(!told.contains("Options") && !told.contains("from_"), "{text:?}: {told}");
    }
}

#[test]
fn a_file_says_whether_it_means_no_workloads() {
    for (text, says) in [
        ("", Says::Nothing),
        ("# workloads: []\n", Says::Nothing),
        ("---\n", Says::Nothing),
        ("{}", Says::NoWorkloads),
        ("grpcAddress: ':1'", Says::NoWorkloads),
        ("workloads:\n", Says::NoWorkloads),
        ("workloads: []", Says::Workloads),
        ("workloads: [{namespace: a, name: b}]", Says::Workloads),
    ] {
        assert_eq!(parse(text).unwrap().says, says, "{text:?}");
    }
}

#[test]
fn references_must_exist() {
    let text = faults(
        "
dcgm: {prometheus: nobody}
workloads: [{namespace: a, name: b, wakeSource: gateway}]
",
    );
    assert!(text.contains("dcgm.prometheus") && text.contains("wakeSource"), "{text}");
    let text = faults(
        "
prometheus: [{name: main, url: 'http://127.0.0.1:1'}]
dcgm: {prometheus: mian}
wakeSources:
- {name: gateway, kind: gauge, url: 'http://127.0.0.1:2/metrics', metric: queue}
- {name: other, kind: gauge, prometheus: maim, query: up}
workloads: [{namespace: a, name: b, wakeSource: gatway}]
",
    );
    for part in [
        "`dcgm.prometheus` is \"mian\": expected the name of an entry of `prometheus`, nearest \
         is main",
        "`wakeSources[1].prometheus` is \"maim\"",
        "`workloads[0].wakeSource` is \"gatway\": expected the name of an entry of \
         `wakeSources`, nearest is gateway",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn workloads_of_a_namespace_hold_its_name_once() {
    let text =
        "workloads: [{namespace: a, name: b}, {namespace: a, name: c}, {namespace: d, name: b}]";
    let inventory = parse(text).unwrap().inventory;
    let [b, c, d] = [0, 1, 2].map(|index| inventory.workloads.keys().nth(index).unwrap());
    assert!(Arc::ptr_eq(&b.namespace, &c.namespace));
    assert!(!Arc::ptr_eq(&b.namespace, &d.namespace));
}
