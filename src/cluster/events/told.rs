//! What was told of one workload, and what is news against it.
//!
//! Pure: time is an argument, and nothing is written here.

use crate::decision::{Decision, Health, Moment, Notice, Rule};
use crate::inventory::Workload;
use crate::registry::Published;
use crate::web::words::{refused, summary};

/// Least time between two events about the count, but for the steps from and to zero.
const QUIET_MS: u64 = 15_000;
/// Two writes of a count that nobody answered, within this time, are a contest and not a person.
const CONTEST_MS: u64 = 600_000;
/// Replicas that one event names.
const MOST_NAMED: usize = 5;
/// Longest note that the API server takes (events.k8s.io/v1).
const MAX_NOTE: usize = 1_024;

/// One event to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Occurrence {
    /// One word for what happened.
    pub(super) reason: &'static str,
    /// What tells it from others of the same reason.
    pub(super) action: String,
    /// The sentence.
    pub(super) note: String,
    /// Somebody should look.
    pub(super) is_warning: bool,
}

/// What was told last.
#[derive(Debug, Default)]
pub(super) struct Told {
    version: u64,
    want: Option<u32>,
    want_at: Option<Moment>,
    is_degraded: bool,
    /// Replicas ordered and ready at the last look.
    seen: Option<(u32, u32)>,
    is_loss_told: bool,
    contested_at: Option<Moment>,
    rivals: Vec<String>,
}

impl Told {
    /// What is worth an event now; nothing twice.
    pub(super) fn news(
        &mut self,
        published: &Published,
        decision: &Decision,
        workload: Option<&Workload>,
        now: Moment,
    ) -> Vec<Occurrence> {
        let mut news = Vec::new();
        let (answered, seen) = (self.want, self.seen);
        self.seen = decision.inputs.spec.map(|spec| (spec, decision.inputs.ready)).or(seen);
        if let (Some(before), Some(after)) = (seen, self.seen) {
            news.extend(self.loss(decision, before, after));
            let writer = workload.and_then(|workload| workload.kubernetes.writer.as_deref());
            if before.0 != after.0 && Some(after.0) != answered {
                news.extend(writer.and_then(|writer| self.contest(writer, after.0, now)));
            }
        }
        news.extend(workload.and_then(|workload| self.conflict(&workload.kubernetes.rivals)));
        news.extend(self.count(published, decision, now));
        news.extend(self.health(decision));
        if self.version != published.version {
            self.version = published.version;
            let notices = decision.notices.iter();
            news.extend(notices.filter_map(|notice| warning(*notice, decision, workload)));
        }
        news
    }

    /// Ready replicas that are fewer although no fewer are ordered: a node, or pods on it.
    fn loss(
        &mut self,
        decision: &Decision,
        before: (u32, u32),
        (ordered, ready): (u32, u32),
    ) -> Option<Occurrence> {
        if ready >= ordered {
            self.is_loss_told = false;
        }
        let rolls_out = decision.votes.iter().any(|vote| vote.rule == Rule::Rollout);
        if self.is_loss_told || rolls_out || ready >= before.1 || ordered < before.0 {
            return None;
        }
        self.is_loss_told = true;
        Some(Occurrence {
            reason: "ExternalLoss",
            action: "Hold".to_owned(),
            note: format!(
                "{} of {} ready replicas are gone without a decision, as when a node is lost: \
                 {ordered} stay ordered",
                before.1 - ready,
                before.1
            ),
            is_warning: true,
        })
    }

    /// Somebody's file and the HPA undo each other.
    fn contest(&mut self, writer: &str, to: u32, now: Moment) -> Option<Occurrence> {
        let again = self.contested_at.is_some_and(|at| now.millis_since(at) < CONTEST_MS);
        self.contested_at = (!again).then_some(now);
        again.then(|| Occurrence {
            reason: "ReplicasContested",
            action: "Decide".to_owned(),
            note: format!(
                "{writer} has set the replicas to {to} again, against the HPA: take `replicas` out of \
                 its file, or tell it to ignore /spec/replicas"
            ),
            is_warning: true,
        })
    }

    fn conflict(&mut self, rivals: &[String]) -> Option<Occurrence> {
        if self.rivals == rivals {
            return None;
        }
        self.rivals = rivals.to_vec();
        (!rivals.is_empty()).then(|| Occurrence {
            reason: "Conflict",
            action: "Decide".to_owned(),
            note: shortened(format!(
                "the same target is scaled by {} too: delete all but one",
                rivals.join(" and ")
            )),
            is_warning: true,
        })
    }

    fn count(
        &mut self,
        published: &Published,
        decision: &Decision,
        now: Moment,
    ) -> Option<Occurrence> {
        let want = decision.wanted()?;
        // What is adopted is no step.
        let Some(told) = self.want else {
            self.want = Some(want);
            return None;
        };
        let is_quiet = self.want_at.is_some_and(|at| now.millis_since(at) < QUIET_MS);
        if want == told || (is_quiet && want > 0 && told > 0) {
            return None;
        }
        (self.want, self.want_at) = (Some(want), Some(now));
        let reason = match (told, want) {
            (0, _) => "Woke",
            (_, 0) => "Slept",
            (told, want) if want > told => "ScaledUp",
            _ => "ScaledDown",
        };
        let spec = published.spec.as_deref();
        let sentence = summary(&published.answer, Some(decision), spec, &[]);
        Some(Occurrence {
            reason,
            action: format!("Want{want}"),
            note: shortened(format!("{told} to {want}: {sentence}")),
            is_warning: false,
        })
    }

    fn health(&mut self, decision: &Decision) -> Option<Occurrence> {
        match (self.is_degraded, decision.health) {
            (false, Health::Degraded { why, answered, expected, .. }) => {
                self.is_degraded = true;
                let note = format!(
                    "{answered} of {expected} engines answered ({}): the count is held, and goes up \
                     only by what can still be seen",
                    why.label()
                );
                let action = format!("Hold:{}", why.label());
                Some(Occurrence { reason: "Degraded", action, note, is_warning: true })
            }
            (true, Health::Ok) => {
                self.is_degraded = false;
                let note = "the inputs are whole again".to_owned();
                let action = "Decide".to_owned();
                Some(Occurrence { reason: "Recovered", action, note, is_warning: false })
            }
            (true | false, _) => None,
        }
    }
}

/// Engines that have work and finish none, with the nodes that they are on.
fn dead(decision: &Decision, workload: Option<&Workload>) -> Occurrence {
    let members = workload.map_or(&[][..], |workload| &workload.members);
    let node = |id: &str| members.iter().find(|member| *member.id == *id)?.node.as_deref();
    let named = decision.stuck.iter().take(MOST_NAMED).map(|id| match node(id) {
        Some(node) => format!("{id} on node {node}"),
        None => id.to_string(),
    });
    let named: Vec<String> = named.collect();
    Occurrence {
        reason: "StuckQueue",
        action: "Decide".to_owned(),
        note: shortened(format!(
            "{} of {} have work and finish none of it, as where an engine hangs, its node has lost its \
             network, or its metrics stand still: they count as no capacity ({})",
            decision.stuck.len(),
            decision.inputs.ready,
            named.join(", ")
        )),
        is_warning: true,
    }
}

/// Replicas that the API server refuses: whose quota it is stands in its words.
fn by_quota(workload: &Workload) -> Option<Occurrence> {
    let refusal = refused(workload)?;
    Some(Occurrence {
        reason: "CappedByQuota",
        action: "Decide".to_owned(),
        note: shortened(format!("{refusal}; nothing is ordered beyond them meanwhile")),
        is_warning: true,
    })
}

/// A notice that somebody should act on; the others are told as changes of the count or of health.
fn warning(notice: Notice, decision: &Decision, workload: Option<&Workload>) -> Option<Occurrence> {
    if let (Notice::CapacityExhausted, Some(refused)) = (notice, workload.and_then(by_quota)) {
        return Some(refused);
    }
    let (reason, note) = match notice {
        Notice::StuckQueue => return Some(dead(decision, workload)),
        Notice::NoWakeSource => (
            "NoWakeSource",
            "minReplicaCount is 0 and no wakeSource is configured, so zero is never reached",
        ),
        Notice::NotServing => (
            "NotServing",
            "requests wait while GPUs are idle and no limit of the engine explains it: more replicas \
             would not help",
        ),
        Notice::Imbalance => (
            "Imbalance",
            "some engines have a queue while others are idle: the router does not spread requests",
        ),
        Notice::CapacityExhausted => (
            "CapacityExhausted",
            "replicas cannot be placed or start again and again: nothing is ordered beyond them \
             meanwhile",
        ),
        Notice::ScaledUp
        | Notice::ScaledDown
        | Notice::Degraded
        | Notice::Recovered
        | Notice::Woke
        | Notice::Slept => return None,
    };
    Some(Occurrence {
        reason,
        action: "Decide".to_owned(),
        note: note.to_owned(),
        is_warning: true,
    })
}

fn shortened(note: String) -> String {
    if note.len() <= MAX_NOTE {
        return note;
    }
    note.chars().take(MAX_NOTE / 4).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Phase, Why};
    use crate::inventory::Member;
    use crate::web::fixtures::wanting;

    /// Tells decisions one after the other, as they are published.
    struct Teller {
        told: Told,
        version: u64,
        now: Moment,
    }

    impl Teller {
        /// One that has taken over a workload at this count.
        fn at(want: u32) -> Teller {
            let mut teller = Teller { told: Told::default(), version: 0, now: Moment(1_000_000) };
            assert_eq!(teller.tell(quiet(want)), Vec::new(), "adopting is no step");
            teller
        }

        fn tell(&mut self, decision: Decision) -> Vec<(&'static str, String)> {
            self.tell_of(decision, None)
        }

        fn tell_of(
            &mut self,
            decision: Decision,
            workload: Option<&Workload>,
        ) -> Vec<(&'static str, String)> {
            self.version += 1;
            let published = Published {
                version: self.version,
                at: self.now,
                answer: decision.answer,
                decision: None,
                spec: None,
            };
            let news = self.told.news(&published, &decision, workload, self.now);
            let again = self.told.news(&published, &decision, workload, self.now);
            assert_eq!(again, Vec::new(), "told twice");
            news.into_iter().map(|it| (it.reason, format!("{}: {}", it.action, it.note))).collect()
        }

        fn after(&mut self, seconds: i64) -> &mut Teller {
            self.now = Moment(self.now.0 + seconds * 1_000);
            self
        }
    }

    fn quiet(want: u32) -> Decision {
        Decision { health: Health::Ok, notices: Box::default(), ..wanting(want) }
    }

    fn reasons(news: &[(&'static str, String)]) -> Vec<&'static str> {
        news.iter().map(|(reason, _)| *reason).collect()
    }

    #[test]
    fn a_ramp_is_one_event_with_its_whole_step() {
        let mut teller = Teller::at(2);
        let first = teller.after(1).tell(quiet(3));
        assert_eq!(reasons(&first), ["ScaledUp"]);
        assert!(first[0].1.starts_with("Want3: 2 to 3: 3 replicas = "), "{first:?}");
        assert_eq!(teller.after(5).tell(quiet(5)), Vec::new());
        assert_eq!(teller.after(5).tell(quiet(6)), Vec::new());
        let second = teller.after(5).tell(quiet(7));
        assert!(second[0].1.starts_with("Want7: 3 to 7: "), "{second:?}");
        assert_eq!(reasons(&teller.after(60).tell(quiet(4))), ["ScaledDown"]);
        assert_eq!(teller.after(60).tell(quiet(4)), Vec::new());
    }

    #[test]
    fn a_step_there_and_back_within_the_quiet_time_is_none() {
        let mut teller = Teller::at(2);
        assert_eq!(reasons(&teller.after(1).tell(quiet(3))), ["ScaledUp"]);
        assert_eq!(teller.after(1).tell(quiet(4)), Vec::new());
        assert_eq!(teller.after(1).tell(quiet(3)), Vec::new());
        assert_eq!(teller.after(60).tell(quiet(3)), Vec::new());
    }

    #[test]
    fn zero_is_told_at_once_both_ways() {
        let mut teller = Teller::at(1);
        assert_eq!(reasons(&teller.after(1).tell(quiet(0))), ["Slept"]);
        assert_eq!(reasons(&teller.after(1).tell(quiet(1))), ["Woke"]);
    }

    #[test]
    fn a_lost_source_is_told_when_it_begins_and_when_it_ends() {
        let mut teller = Teller::at(2);
        let degraded = |answered| Decision {
            health: Health::Degraded { since: Moment(0), why: Why::Refused, answered, expected: 2 },
            ..quiet(2)
        };
        let news = teller.after(1).tell(degraded(1));
        assert_eq!(reasons(&news), ["Degraded"]);
        assert!(news[0].1.contains("1 of 2 engines answered"), "{news:?}");
        assert_eq!(teller.after(60).tell(degraded(0)), Vec::new());
        assert_eq!(reasons(&teller.after(60).tell(quiet(2))), ["Recovered"]);
    }

    #[test]
    fn what_somebody_should_look_at_is_a_warning_and_a_change_is_not_told_twice() {
        let mut teller = Teller::at(2);
        let notices = [Notice::ScaledUp, Notice::CapacityExhausted, Notice::StuckQueue].into();
        let news = teller.after(1).tell(Decision { notices, ..quiet(3) });
        assert_eq!(reasons(&news), ["ScaledUp", "CapacityExhausted", "StuckQueue"]);
    }

    #[test]
    fn f91_a_replica_that_finishes_nothing_is_told_with_its_node() {
        let mut workload = crate::web::fixtures::workload("team-a", "llm");
        workload.members = vec![Member {
            id: "llm-3".into(),
            phase: Phase::Ready,
            created_at: None,
            ready_at: None,
            endpoint: None,
            node: Some("gpu-7".into()),
        }];
        let mut teller = Teller::at(4);
        let stuck = ["llm-3".into(), "elsewhere".into()].into();
        let notices = [Notice::StuckQueue].into();
        let news =
            teller.after(1).tell_of(Decision { notices, stuck, ..quiet(4) }, Some(&workload));
        assert_eq!(reasons(&news), ["StuckQueue"]);
        assert!(news[0].1.contains("(llm-3 on node gpu-7, elsewhere)"), "{news:?}");
    }

    #[test]
    fn f85_what_a_quota_caps_is_told_with_the_quota_and_how_much_is_unmet() {
        let mut workload = crate::web::fixtures::workload("team-a", "llm");
        workload.replicas.spec = Some(10);
        workload.replicas.unschedulable = 6;
        workload.kubernetes.refusal = Some("exceeded quota: team-a".into());
        let mut teller = Teller::at(4);
        let capped = Decision { notices: [Notice::CapacityExhausted].into(), ..quiet(4) };
        let news = teller.after(1).tell_of(capped, Some(&workload));
        assert_eq!(reasons(&news), ["CappedByQuota"]);
        let said = "6 of the 10 ordered are refused by the API server: exceeded quota: team-a";
        assert!(news[0].1.contains(said), "{news:?}");
    }

    /// As many ordered and ready as said, and `want` wanted.
    fn standing(ordered: u32, ready: u32, want: u32) -> Decision {
        let mut decision = quiet(want);
        (decision.inputs.spec, decision.inputs.ready) = (Some(ordered), ready);
        decision
    }

    #[test]
    fn f77_replicas_that_go_without_a_decision_are_an_external_loss_told_once() {
        let mut teller = Teller::at(4);
        assert_eq!(teller.after(5).tell(standing(4, 4, 4)), Vec::new());
        let news = teller.after(5).tell(standing(4, 3, 4));
        assert_eq!(reasons(&news), ["ExternalLoss"]);
        assert!(news[0].1.contains("1 of 4 ready replicas are gone"), "{news:?}");
        assert_eq!(teller.after(5).tell(standing(4, 2, 4)), Vec::new(), "the same loss");
        assert_eq!(teller.after(300).tell(standing(4, 4, 4)), Vec::new());
        assert_eq!(reasons(&teller.after(5).tell(standing(4, 3, 4))), ["ExternalLoss"]);
        let mut teller = Teller::at(4);
        teller.after(60).tell(standing(4, 4, 4));
        let news = teller.after(60).tell(standing(2, 2, 2));
        assert_eq!(reasons(&news), ["ScaledDown"], "ordered, so no loss");
    }

    #[test]
    fn f102_a_file_that_sets_the_count_back_again_and_again_is_named() {
        let mut workload = crate::web::fixtures::workload("a", "b");
        workload.kubernetes.writer = Some("argocd-controller".into());
        let mut teller = Teller::at(6);
        let mut told = Vec::new();
        for spec in [6, 2, 6, 2, 6, 2] {
            teller.after(100);
            told.extend(teller.tell_of(standing(spec, spec, 6), Some(&workload)));
        }
        assert_eq!(reasons(&told), ["ReplicasContested"]);
        assert!(told[0].1.contains("argocd-controller has set the replicas to 2"), "{told:?}");
        let mut teller = Teller::at(6);
        workload.kubernetes.writer = None;
        for spec in [6, 2, 6, 2, 6] {
            teller.after(100);
            let told = teller.tell_of(standing(spec, spec, 6), Some(&workload));
            assert_eq!(
                told,
                Vec::new(),
                "by way of the scale subresource: an autoscaler, a person"
            );
        }
    }

    #[test]
    fn a_second_autoscaler_is_told_when_it_comes() {
        let mut workload = crate::web::fixtures::workload("a", "b");
        let mut teller = Teller::at(2);
        assert_eq!(teller.after(5).tell_of(quiet(2), Some(&workload)), Vec::new());
        workload.kubernetes.rivals = ["HorizontalPodAutoscaler/by-hand".to_owned()].into();
        let news = teller.after(5).tell_of(quiet(2), Some(&workload));
        assert_eq!(reasons(&news), ["Conflict"]);
        assert_eq!(teller.after(5).tell_of(quiet(2), Some(&workload)), Vec::new());
        workload.kubernetes.rivals = Box::default();
        assert_eq!(teller.after(5).tell_of(quiet(2), Some(&workload)), Vec::new());
    }

    #[test]
    fn a_note_fits_into_an_event_whatever_is_in_it() {
        assert!(shortened("ä".repeat(4_000)).len() <= MAX_NOTE);
        assert_eq!(shortened("short".to_owned()), "short");
    }
}
