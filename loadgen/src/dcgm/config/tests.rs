//! Tests of a fleet's file: what is read, and what is refused with which words.

use super::*;

const FLEET: &str = "
style: {interval: 90, host: hostname, names: renamed, shared: copies}
nodes:
- name: n1
  gaps: [{from: 5m, for: 40s}]
  gpus:
  - model: h100-80gb
    count: 4
    pods: [{namespace: serving, name: llm-0, load: {busy: 0.4}}]
  - model: NVIDIA A100-SXM4-40GB
    mig: [{profile: 1g.5gb, id: 9, pods: [{load: {steps: [[0, 0.1], [10m, 0.8]]}}]}]
  - {model: t4, sharing: {by: time_slicing, replicas: 4}, pods: [{}, {ends: 1h}]}
";

fn fault(text: &str) -> String {
    Fleet::parse("fleet.yaml", text).unwrap_err().to_string()
}

#[test]
fn a_fleet_is_read_with_its_defaults() {
    let fleet = Fleet::parse("fleet.yaml", FLEET).unwrap();
    assert_eq!(fleet.style.interval, Span(90_000));
    assert_eq!((fleet.style.host, fleet.style.pods), (HostLabel::Lowercase, PodLabels::Plain));
    let node = &fleet.nodes[0];
    assert_eq!(node.gaps, [Gap { from: Span(300_000), lasts: Span(40_000) }]);
    assert_eq!((node.gpus[0].count, node.gpus[1].count), (4, 1));
    assert_eq!(node.gpus[0].pods[0].load, Some(Load::Busy(0.4)));
    let steps = Load::Steps(vec![(Span(0), 0.1), (Span(600_000), 0.8)]);
    assert_eq!(node.gpus[1].mig[0].pods[0].load, Some(steps));
    assert_eq!(node.gpus[2].pods[1].ends, Some(Span(3_600_000)));
}

#[test]
fn every_value_that_makes_no_fleet_is_named() {
    for (nodes, named) in [
        ("", "`nodes` is 0: expected 1 to 1000 nodes"),
        ("{name: n, gpus: []}", "`nodes[0].gpus` is 0: expected 1 to 64 GPUs"),
        ("{name: n, gpus: [{model: h1}]}", "`nodes[0].gpus[0].model` is h1: expected one of t4"),
        ("{name: n, gpus: [{model: t4}]}, {name: n, gpus: [{model: t4}]}", "`nodes[1].name` is n"),
        ("{name: 'a\"b', gpus: [{model: t4}]}", "expected a Kubernetes name"),
    ] {
        let found = fault(&format!("nodes: [{nodes}]"));
        assert!(found.contains(named), "{found}\nexpected {named}");
    }
    for (gpu, named) in [
        ("count: 65", "`nodes[0].gpus` is 65"),
        ("pods: [{}, {}]", "`nodes[0].gpus[0].pods` is 2: expected one pod, or `sharing`"),
        ("pods: [{name: a}]", "expected namespace and name, or neither"),
        ("pods: [{load: {busy: 1.5}}]", "`nodes[0].gpus[0].pods[0].load.busy` is 1.5: expected 0"),
        ("pods: [{load: {steps: [[5s, 0], [5s, 1]]}}]", "expected moments that ascend"),
        ("pods: [{load: {engine: {url: 'https://x', profile: 8b-a100}}}]", "url` is https://x"),
        (
            "pods: [{load: {engine: {url: 'http://x/metrics', profile: 9b}}}]",
            "profile `9b` is not known",
        ),
        ("mig: [{profile: 9g.5gb, id: 1}]", "mig[0].profile` is 9g.5gb"),
        ("mig: [{profile: 1g.5gb, id: 1}, {profile: 1g.5gb, id: 1}]", "mig[1].id` is 1"),
    ] {
        let found = fault(&format!("nodes: [{{name: n, gpus: [{{model: t4, {gpu}}}]}}]"));
        assert!(found.contains(named), "{found}\nexpected {named}");
    }
}

#[test]
fn a_slip_in_a_name_or_a_duration_is_an_error() {
    for text in [
        "nodes: [{name: n, gpu: []}]",
        "nodes: [{name: n, gpus: [{model: t4, pods: [{load: {bussy: 0.5}}]}]}]",
        "style: {interval: 5x}\nnodes: [{name: n, gpus: [{model: t4}]}]",
    ] {
        assert!(fault(text).contains("cannot be parsed"), "{text}");
    }
}
