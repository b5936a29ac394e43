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
fn an_unknown_top_level_key_is_a_fault() {
    assert!(matches!(parse("workload: []"), Err(Error::Yaml(_))));
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
        "`wakeSources other: prometheus` is \"maim\"",
        "`workload a/b: wakeSource` is \"gatway\": expected the name of an entry of \
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
