//! The text for several decisions, as whole pages in `tests/golden/explain-*.txt`.

use std::sync::Arc;

use super::*;
use crate::clock::Clock;
use crate::decision::{Health, LevelSource, Mode, Next, Rule, Spec, Unavailable, Why};
use crate::registry::Untracked;
use crate::web::fixtures::{publish, registry, tracker, wanting, workload};
use crate::web::{Asked, Snapshot, VoteText};

/// A snapshot of a workload with this decision, its ages set to what a page can be compared by.
fn snapshot(change: impl FnOnce(&mut Decision, &mut Spec)) -> Snapshot {
    let registry = registry([workload("prod", "llm-70b")]);
    let tracker = tracker(&registry, "prod", "llm-70b");
    let (mut decision, mut spec) = (wanting(3), Spec::default());
    decision.binding = Rule::Demand;
    decision.health = Health::Ok;
    decision.next =
        Next { up_at_waiting: Some(20.0), down_in_ms: Some(420_000), ..Next::default() };
    let inputs = &mut decision.inputs;
    (inputs.waiting, inputs.running) = (Some(0.0), Some(24.0));
    (inputs.work, inputs.rho, inputs.headroom) = (Some(1.83), Some(0.71), Some(0.2));
    (inputs.kv_usage, inputs.gpu_busy, inputs.ghost_score) = (Some(0.41), Some(0.93), Some(30.0));
    inputs.age_ms = Some(1_200);
    inputs.level_source = LevelSource::CostModel;
    (inputs.cold_start_ms, inputs.hold_ms) = (95_000, 600_000);
    change(&mut decision, &mut spec);
    publish(&tracker, Clock::start(), 1, decision);
    let mut published = (**tracker.published.load()).clone();
    published.spec = Some(Arc::new(spec));
    tracker.publish(published);
    let triggers = vec!["0000000000000000".to_owned()];
    let now = tracker.published.load().at.plus_millis(2_000);
    let mut snapshot =
        Snapshot::new(&tracker, triggers, &Untracked::default(), &registry.inventory(), now);
    snapshot.asked = vec![
        Asked { rpc: "GetMetrics".to_owned(), caller: "hpa".to_owned(), age_ms: 4_000 },
        Asked { rpc: "IsActive".to_owned(), caller: "poll".to_owned(), age_ms: 21_000 },
    ];
    snapshot.votes = votes(&[
        (Rule::Demand, Some(3), "1.83 of work + 0.20 headroom at 0.71 a replica need 2.86"),
        (Rule::Queue, None, "nothing to add"),
        (Rule::Ghost, Some(3), "score 30 for one replica fewer: 3m of 10m evidence"),
    ]);
    snapshot
}

fn votes(said: &[(Rule, Option<u32>, &str)]) -> Vec<VoteText> {
    let vote = |(rule, want, text): &(Rule, Option<u32>, &str)| VoteText {
        rule: *rule,
        want: *want,
        text: (*text).to_owned(),
    };
    said.iter().map(vote).collect()
}

fn check(name: &str, snapshot: &Snapshot) {
    let mut out = Vec::new();
    print(snapshot, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        assert_eq!(line, line.trim_end(), "space at the end");
    }
    let path = format!("{}/tests/golden/explain-{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, golden, "{path} differs; the text is now:\n{text}");
}

#[test]
fn a_level_held_by_work() {
    check("demand", &snapshot(|_, _| {}));
}

#[test]
fn a_queue_that_adds_replicas() {
    let mut page = snapshot(|decision, _| {
        decision.want = 5;
        decision.answer = Answer::Value { want: 5, active: true };
        decision.binding = Rule::Queue;
        decision.inputs.waiting = Some(12.0);
        decision.next.down_in_ms = None;
    });
    page.votes = votes(&[
        (Rule::Demand, Some(3), "1.83 of work + 0.20 headroom at 0.71 a replica need 2.86"),
        (
            Rule::Queue,
            Some(5),
            "12 waiting are 61 replica-seconds of work when an order placed now could serve, to be \
             cleared within 95 s",
        ),
    ]);
    check("queue", &page);
}

#[test]
fn a_warm_minimum_at_rest() {
    let mut page = snapshot(|decision, _| {
        decision.want = 1;
        decision.answer = Answer::Value { want: 1, active: true };
        decision.binding = Rule::Min;
        let inputs = &mut decision.inputs;
        (inputs.spec, inputs.ready) = (Some(1), 1);
        (inputs.running, inputs.work, inputs.ghost_score) = (Some(0.0), Some(0.0), None);
    });
    page.members.truncate(1);
    check("warm", &page);
}

#[test]
fn a_lost_source_that_holds() {
    check(
        "degraded",
        &snapshot(|decision, spec| {
            decision.binding = Rule::Degraded;
            decision.health = Health::Degraded {
                since: decision.at.minus_millis(100_000),
                why: Why::NoKnownSeries,
                answered: 0,
                expected: 3,
            };
            let inputs = &mut decision.inputs;
            (inputs.waiting, inputs.running, inputs.age_ms) = (None, None, None);
            (inputs.work, inputs.kv_usage, inputs.gpu_busy) = (None, None, None);
            decision.next = Next::default();
            spec.fallback_replicas = Some(2);
        }),
    );
}

#[test]
fn f02_a_step_that_the_hpa_swallows() {
    check(
        "dead-band",
        &snapshot(|decision, spec| {
            decision.want = 11;
            decision.answer = Answer::Value { want: 11, active: true };
            (decision.inputs.spec, decision.inputs.ready) = (Some(10), 10);
            spec.max = 20;
        }),
    );
}

#[test]
fn a_shadow_that_would_let_go() {
    check(
        "shadow",
        &snapshot(|decision, spec| {
            decision.want = 2;
            decision.binding = Rule::Ghost;
            decision.inputs.ghost_score = Some(100.0);
            decision.next = Next::default();
            spec.mode = Mode::Shadow;
        }),
    );
}

#[test]
fn an_answer_that_is_an_error_on_purpose() {
    let mut page = snapshot(|decision, _| {
        decision.answer = Answer::Unavailable { why: Unavailable::SourceLost };
        decision.binding = Rule::Degraded;
        decision.next = Next::default();
    });
    page.triggers.push("00000000000000ff".to_owned());
    let faults = "engine=\"vlm\": expected one of auto, vllm, sglang, tgi, trtllm, triton, llamacpp, \
                  lmdeploy, nim; sloTtft=\"soon\": expected duration 10ms..10m";
    page.refused.push(faults.to_owned());
    page.asked.clear();
    check("unavailable", &page);
}

#[test]
fn a_workload_that_nobody_has_decided_on() {
    let registry = registry([workload("prod", "llm-70b")]);
    let tracker = tracker(&registry, "prod", "llm-70b");
    let triggers = vec!["0000000000000000".to_owned()];
    let now = tracker.published.load().at.plus_millis(1_000);
    let none = Untracked::default();
    check("undecided", &Snapshot::new(&tracker, triggers, &none, &registry.inventory(), now));
}

#[test]
fn who_sleeps_is_told_in_the_place_of_a_phase() {
    let mut page = snapshot(|_, _| {});
    let shown = |page: &Snapshot| {
        let mut out = Vec::new();
        members(&mut out, &page.members).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert!(!shown(&page).contains("asleep"));
    page.members[0].asleep = Some(true);
    assert_eq!(shown(&page).matches(" asleep ").count(), 1);
}

#[test]
fn long_names_keep_their_end() {
    assert_eq!(shortened("llm-0", 29), "llm-0");
    let name = "deepseek-r1-distill-llama-70b-7d9c5f-x2x9z";
    assert_eq!(shortened(name, 29), "..till-llama-70b-7d9c5f-x2x9z");
    assert_eq!(shortened("ööööö", 4), "..öö");
}
