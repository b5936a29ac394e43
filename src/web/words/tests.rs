//! Sentences that people read, each with the numbers that must be in it.

use super::*;
use crate::decision::{EngineSample, Next, Phase, Reading, Reason, Vote};
use crate::web::fixtures::wanting;

/// A decision by this rule: `want` over `ready` ready ones with `waiting` requests waiting.
fn by(rule: Rule, want: u32, ready: u32, waiting: Option<f64>) -> Decision {
    let mut decision = wanting(want);
    decision.binding = rule;
    decision.health = Health::Ok;
    decision.next = Next::default();
    decision.inputs.spec = Some(ready);
    decision.inputs.ready = ready;
    decision.inputs.waiting = waiting;
    decision.inputs.gateway_queued = None;
    decision.inputs.work = None;
    decision
}

fn check(decision: &Decision, spec: &Spec, expected: &str) {
    assert_eq!(summary(&decision.answer, Some(decision), Some(spec), &[]), expected);
}

#[test]
fn f46_a_warm_minimum_says_that_it_is_one() {
    check(
        &by(Rule::Min, 1, 1, Some(0.0)),
        &Spec::default(),
        "1 replica = warm minimum; nothing waiting",
    );
}

#[test]
fn a_queue_is_named_with_its_size_and_the_replicas_it_stands_over() {
    check(
        &by(Rule::Queue, 5, 3, Some(12.0)),
        &Spec::default(),
        "5 replicas = room to clear the queue; 12 waiting over 3 replicas",
    );
    let mut gateway = by(Rule::Wake, 1, 0, None);
    gateway.inputs.gateway_queued = Some(50.0);
    check(
        &gateway,
        &Spec { min: 0, ..Spec::default() },
        "1 replica = woken; no replica to wait at, 50 held by the gateway",
    );
}

#[test]
fn an_order_that_only_stands_is_not_called_the_present_count() {
    check(
        &by(Rule::Ghost, 5, 3, Some(0.0)),
        &Spec::default(),
        "5 replicas = what was ordered within the last minute; nothing waiting",
    );
}

#[test]
fn every_rule_has_its_own_words() {
    let mut seen = std::collections::BTreeSet::new();
    for rule in Rule::ALL {
        let decision = by(rule, 3, 3, Some(0.0));
        let sentence = summary(&decision.answer, Some(&decision), Some(&Spec::default()), &[]);
        assert!(sentence.starts_with("3 replicas = "), "{sentence}");
        assert!(seen.insert(sentence.clone()), "said twice: {sentence}");
    }
}

#[test]
fn an_engine_that_refuses_is_told_before_it_counts_as_a_fault() {
    let mut decision = by(Rule::Adopt, 1, 0, None);
    decision.health = Health::Starting;
    let told = |why| {
        let reading = Reading::Missing { why };
        let engine = Engine { id: "x".into(), phase: Phase::Starting, ready_ms: None, reading };
        summary(&decision.answer, Some(&decision), Some(&Spec::default()), &[engine])
    };
    let refused = told(Why::Refused);
    let expected = "no replica to wait at; 0 of 1 engines answered yet (connection refused: the \
                    engine is still loading, or the port is wrong)";
    assert!(refused.ends_with(expected), "{refused}");
    let unread = told(Why::NotYetRead);
    assert!(unread.ends_with("all replicas are starting"), "{unread}");
}

#[test]
fn who_sleeps_is_told_beside_the_queue() {
    let decision = by(Rule::Queue, 7, 2, Some(40.0));
    let engine = |asleep| {
        let value = EngineSample { asleep: Some(asleep), ..EngineSample::default() };
        let reading = Reading::Fresh { value: value.into(), age_ms: 0 };
        Engine { id: "x".into(), phase: Phase::Ready, ready_ms: None, reading }
    };
    let engines = [engine(false), engine(true)];
    let told = summary(&decision.answer, Some(&decision), Some(&Spec::default()), &engines);
    let expected = "7 replicas = room to clear the queue; 40 waiting over 2 replicas, 1 asleep";
    assert_eq!(told, expected);
}

#[test]
fn where_more_waiting_brings_no_replica_it_is_told_what_would() {
    let mut decision = by(Rule::Queue, 3, 2, Some(40.0));
    let reason = Reason::Imbalance { waiting: 40.0, idle: 1 };
    decision.votes = [Vote { rule: Rule::Queue, want: Some(3), reason }].into();
    let expected = "up: not by more waiting, until those that idle beside the queue get some of it";
    assert_eq!(next(&decision, Some(&Spec::default())), [expected]);
    // At the maximum that is what stands in the way.
    let spec = Spec { max: 3, ..Spec::default() };
    assert_eq!(next(&decision, Some(&spec)), ["up: only with a larger maxReplicaCount"]);
}

#[test]
fn work_is_told_in_replicas() {
    let mut decision = by(Rule::Demand, 3, 2, Some(0.0));
    decision.inputs.work = Some(2.345);
    check(
        &decision,
        &Spec::default(),
        "3 replicas = what 2.35 replicas' worth of work needs; nothing waiting",
    );
}

#[test]
fn unknown_waiting_is_not_told_as_none() {
    check(
        &by(Rule::Degraded, 3, 3, None),
        &Spec::default(),
        "3 replicas = the last wanted count, held while inputs are not whole; waiting not known",
    );
}

#[test]
fn a_release_and_a_hold_by_the_ghost_score_read_differently() {
    let spec = Spec::default();
    check(
        &by(Rule::Ghost, 2, 3, Some(0.0)),
        &spec,
        "2 replicas = what the evidence says is enough; nothing waiting",
    );
    check(
        &by(Rule::Ghost, 3, 3, Some(0.0)),
        &spec,
        "3 replicas = the present count, until the evidence for fewer is whole; nothing waiting",
    );
}

#[test]
fn degraded_inputs_are_told_with_their_count_and_cause() {
    let mut decision = by(Rule::Degraded, 3, 3, Some(1.0));
    decision.health = Health::Degraded {
        since: decision.at.minus_millis(100_000),
        why: Why::Timeout,
        answered: 1,
        expected: 3,
    };
    check(
        &decision,
        &Spec::default(),
        "3 replicas = the last wanted count, held while inputs are not whole; \
         1 waiting over 3 replicas; degraded for 1m40s: 1 of 3 engines answered \
         (no answer within the deadline)",
    );
}

#[test]
fn shadow_mode_tells_both_counts() {
    let mut decision = by(Rule::Queue, 5, 3, Some(12.0));
    decision.answer = Answer::Value { want: 3, active: true };
    check(
        &decision,
        &Spec { mode: Mode::Shadow, ..Spec::default() },
        "5 replicas = room to clear the queue; 12 waiting over 3 replicas; \
         shadow mode answers the present 3 replicas",
    );
}

#[test]
fn what_has_no_value_says_why() {
    let none = Answer::Unavailable { why: Unavailable::NothingKnown };
    assert_eq!(
        summary(&none, None, None, &[]),
        "no answer: not even the present count is known; a workload of the configuration needs \
         `replicas`, one of a cluster a target whose scale can be read"
    );
    let undecided = Answer::Value { want: 1, active: true };
    assert_eq!(
        summary(&undecided, None, None, &[]),
        "not observed yet: 1 replica = the present count"
    );
}

#[test]
fn what_would_change_the_answer_is_told_with_numbers() {
    let mut decision = by(Rule::Demand, 3, 3, Some(4.0));
    decision.next = Next {
        up_at_waiting: Some(20.5),
        down_in_ms: Some(420_000),
        zero_in_ms: Some(3_600_000),
        wake_eta_ms: Some(95_000),
    };
    let spec = Spec { min: 0, has_wake_source: true, ..Spec::default() };
    assert_eq!(
        next(&decision, Some(&spec)),
        [
            "up: one more replica at 20.5 waiting",
            "down: after 7m more of such evidence",
            "zero: after 1h more without work",
            "wake: the first replica is expected in 1m35s",
        ]
    );
}

#[test]
fn bounds_and_a_missing_wake_source_are_told_as_what_stands_in_the_way() {
    let mut decision = by(Rule::Max, 8, 8, Some(40.0));
    decision.next.up_at_waiting = Some(2.0);
    assert_eq!(next(&decision, Some(&Spec::default())), ["up: only with a larger maxReplicaCount"]);
    let idle = by(Rule::Zero, 1, 1, Some(0.0));
    let no_wake = Spec { min: 0, ..Spec::default() };
    assert_eq!(next(&idle, Some(&no_wake)), ["zero: never without a wakeSource"]);
    let never = Spec { min: 0, zero_after: ZeroAfter::Never, ..Spec::default() };
    assert_eq!(next(&idle, Some(&never)), ["zero: never, by zeroAfter"]);
}

#[test]
fn numbers_are_whole_where_they_are() {
    for (value, text) in [(0.0, "0"), (12.0, "12"), (1.25, "1.2"), (0.04, "0"), (1e9, "1000000000")]
    {
        assert_eq!(number(value), text);
    }
}
