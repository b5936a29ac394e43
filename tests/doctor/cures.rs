//! Each check over the wire: it fires on a broken world, and falls silent once what it printed is done.
//!
//! A case applies the finding's own patch and commands; what these leave to KEDA, to Kubernetes or to a
//! person, it does itself, as the words say.

mod around;
mod behavior;
mod replica;
mod series;
mod zero;

use std::collections::BTreeSet;

use ghostscaler::doctor::{CHECKS, Outcome};
use serde_json::Value;

use super::world::World;
use super::{findings, ids, kubectl};

/// One way to break the world, and back.
pub(super) struct Case {
    /// What is found.
    id: &'static str,
    /// Breaks it.
    broken: fn(&World),
    /// What the fix leaves to others, given the finding and the commands that no kubectl runs.
    rest: fn(&World, &Value, &[String]),
}

/// A case whose printed fix is all that it takes.
fn pasted(id: &'static str, broken: fn(&World)) -> Case {
    let rest = |_: &World, finding: &Value, left: &[String]| {
        assert_eq!(left, [""; 0], "{finding:#}");
        let fix = &finding["fix"];
        let is_exact = ["patch", "command"].iter().any(|key| fix.get(key).is_some());
        assert!(is_exact, "only words: {finding:#}");
    };
    Case { id, broken, rest }
}

/// A case whose fix leaves something to others.
fn followed(id: &'static str, broken: fn(&World), rest: fn(&World, &Value, &[String])) -> Case {
    Case { id, broken, rest }
}

/// That the finding's fix says this.
fn says(finding: &Value, words: &str) {
    let text = finding["fix"]["text"].as_str().unwrap();
    assert!(text.contains(words), "{words:?} is not in {text:?}");
}

#[tokio::test]
async fn findings_around_a_scaled_object_fall_silent_once_their_own_fix_is_applied() {
    prove(around::cases()).await;
}

#[tokio::test]
async fn findings_in_a_scaled_object_fall_silent_once_their_own_fix_is_applied() {
    prove(behavior::cases()).await;
}

#[tokio::test]
async fn findings_about_replicas_fall_silent_once_their_own_fix_is_applied() {
    prove(replica::cases()).await;
}

#[tokio::test]
async fn findings_about_zero_fall_silent_once_their_own_fix_is_applied() {
    prove(zero::cases()).await;
    prove(vec![series::refused()]).await;
}

async fn prove(cases: Vec<Case>) {
    for case in cases {
        let world = World::new().await;
        (case.broken)(&world);
        let (outcome, report) = world.examined().await;
        let found = findings(&report);
        assert_eq!((ids(&found), outcome), (vec![case.id], Outcome::Findings), "{report:#}");
        let left = kubectl::apply(&world.api, &found[0]);
        (case.rest)(&world, &found[0], &left);
        let (outcome, report) = world.examined().await;
        let found = findings(&report);
        assert_eq!(
            (ids(&found), outcome),
            (Vec::new(), Outcome::InOrder),
            "{}: {found:#?}",
            case.id
        );
        // What could not be looked at would be silent too.
        let in_order = report["scaled_objects"][0]["in_order"].as_array().unwrap();
        assert!(in_order.contains(&case.id.into()), "{}: {report:#}", case.id);
    }
}

#[test]
fn g5_each_check_has_a_case_that_breaks_and_cures_it() {
    let cases = [
        around::cases(),
        behavior::cases(),
        replica::cases(),
        zero::cases(),
        vec![series::refused()],
        series::from_prometheus(),
    ];
    let cases: BTreeSet<&str> = cases.iter().flatten().map(|case| case.id).collect();
    let checks: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(checks.len(), CHECKS.len(), "an id twice");
    assert_eq!(cases, checks);
}
