//! Whether a decision, and a row of them, is what a told case expects.
//!
//! Must not decide or replay anything.

use std::fmt::Write as _;

use ghostscaler::decision::{Answer, Decision, Health, Notice, Reason, Why};
use ghostscaler::duration::{format_millis, parse_millis};

use super::Fault;
use super::trace::{Expect, Healthy, Step};

/// Checks one decision; a fault shows it whole.
pub(crate) fn check(expect: &Expect, decision: &Decision, at_ms: u64) -> Result<(), Fault> {
    let mut faults = Vec::new();
    counts(expect, decision, &mut faults);
    grounds(expect, decision, &mut faults);
    if let Some(eta) = &expect.eta {
        check_eta(eta, decision.next.wake_eta_ms, &mut faults)?;
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("{}\n{}", faults.join("; "), shown(decision, at_ms)).into())
}

fn counts(expect: &Expect, decision: &Decision, faults: &mut Vec<String>) {
    let (want, active, unavailable) = match decision.answer {
        Answer::Value { want, active } => (Some(want), Some(active), false),
        Answer::Unavailable { .. } => (None, None, true),
    };
    if expect.want.is_some() && expect.want != want {
        faults.push(format!("expected to want {:?}", expect.want));
    }
    if expect.at_least.is_some_and(|least| want.is_none_or(|want| want < least)) {
        faults.push(format!("expected at least {:?}", expect.at_least));
    }
    if expect.at_most.is_some_and(|most| want.is_none_or(|want| want > most)) {
        faults.push(format!("expected at most {:?}", expect.at_most));
    }
    if expect.active.is_some() && expect.active != active {
        faults.push(format!("expected active {:?}", expect.active));
    }
    if expect.unavailable.is_some_and(|expected| expected != unavailable) {
        faults.push(format!("expected unavailable {:?}", expect.unavailable));
    }
}

fn grounds(expect: &Expect, decision: &Decision, faults: &mut Vec<String>) {
    let (health, why) = health(decision);
    if expect.health.is_some_and(|expected| expected != health) {
        faults.push(format!("expected health {:?}", expect.health));
    }
    if expect.why.is_some() && expect.why != why {
        faults.push(format!("expected why {:?}", expect.why));
    }
    if expect.rule.is_some_and(|expected| expected != decision.binding) {
        faults.push(format!("expected rule {:?}", expect.rule));
    }
    for (rule, code) in &expect.says {
        let said = decision.votes.iter().filter(|vote| vote.rule == *rule);
        if !said.map(|vote| code_of(&vote.reason)).any(|said| said == *code) {
            faults.push(format!("expected {rule:?} to say {code}"));
        }
    }
    if let Some(expected) = &expect.stuck
        && !decision.stuck.iter().map(|pod| &**pod).eq(expected.iter())
    {
        faults.push(format!("expected {expected:?} to be stuck, found {:?}", decision.stuck));
    }
    let counted = decision.inputs.waiting;
    let close = |expected: f64| counted.is_some_and(|waiting| (waiting - expected).abs() < 1e-9);
    if expect.waiting.is_some_and(|expected| !close(expected)) {
        faults.push(format!("expected {:?} waiting", expect.waiting));
    }
}

fn check_eta(eta: &[String], found_ms: Option<u64>, faults: &mut Vec<String>) -> Result<(), Fault> {
    let right = match (eta, found_ms) {
        ([], found_ms) => found_ms.is_none(),
        ([from, to], Some(found_ms)) => {
            (parse_millis(from)?..=parse_millis(to)?).contains(&found_ms)
        }
        (_, None) => false,
        (_, Some(_)) => return Err("eta: expected [] or [from, to]".into()),
    };
    if !right {
        faults.push(format!("expected a wake that is done in {eta:?}, found {found_ms:?} ms"));
    }
    Ok(())
}

fn health(decision: &Decision) -> (Healthy, Option<Why>) {
    match decision.health {
        Health::Ok => (Healthy::Ok, None),
        Health::Starting => (Healthy::Starting, None),
        Health::Degraded { why, .. } => (Healthy::Degraded, Some(why)),
        Health::NotYetObserved => (Healthy::NotYetObserved, None),
    }
}

/// The code by which logs and API know a reason.
fn code_of(reason: &Reason) -> String {
    let json = serde_json::to_value(reason).expect("a reason has a JSON form");
    json["code"].as_str().expect("a reason has a code").to_owned()
}

fn shown(decision: &Decision, at_ms: u64) -> String {
    let mut text = format!(
        "after {}: answer {:?}, want {} by {}, {:?}, notices {:?}",
        format_millis(at_ms),
        decision.answer,
        decision.want,
        decision.binding.label(),
        decision.health,
        decision.notices,
    );
    for vote in &decision.votes {
        let (rule, want) = (vote.rule.label(), vote.want);
        write!(text, "\n  {rule} {want:?} {}: {}", code_of(&vote.reason), vote.reason)
            .expect("a String takes all");
    }
    text
}

/// The decisions of one step, as far as they are still needed.
#[derive(Debug, Default)]
pub(crate) struct Span {
    wants: Vec<u32>,
    told: Vec<Notice>,
    decisions: Vec<Decision>,
}

impl Span {
    pub(crate) fn add(&mut self, decision: Decision) {
        self.wants.push(decision.want);
        self.told.extend(&decision.notices);
        self.decisions.push(decision);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.decisions.is_empty()
    }

    pub(crate) fn n_ticks(&self) -> usize {
        self.decisions.len()
    }

    pub(crate) fn into_last(mut self) -> Option<Decision> {
        self.decisions.pop()
    }

    /// Checks what a step expects of its ticks together; `before` is the decision before them.
    pub(crate) fn check(
        &self,
        step: &Step,
        before: Option<&Decision>,
        at_ms: u64,
    ) -> Result<(), Fault> {
        if let Some(last) = self.decisions.last() {
            check(&step.ends, last, at_ms)?;
        }
        if let Some(expect) = &step.meets
            && !self.decisions.iter().any(|decision| check(expect, decision, at_ms).is_ok())
        {
            return Err(format!("no tick meets {expect:?}; wanted {:?}", self.wants).into());
        }
        for notice in &step.tells {
            let n = self.told.iter().filter(|told| *told == notice).count();
            if n != 1 {
                return Err(format!("expected {notice:?} once, told {:?}", self.told).into());
            }
        }
        let mut wants = self.wants.clone();
        if let Some(before) = before {
            wants.insert(0, before.want);
        }
        wants.dedup();
        let n_changes = wants.len().saturating_sub(1);
        if step.changes_at_most.is_some_and(|most| n_changes > most) {
            return Err(format!("expected fewer changes, wanted {wants:?}").into());
        }
        Ok(())
    }
}
