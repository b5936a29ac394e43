//! What was told of one workload, and what is news against it.
//!
//! Pure: time is an argument, and nothing is written here.

use crate::decision::{Decision, Health, Moment, Notice};
use crate::registry::Published;
use crate::web::words::summary;

/// Least time between two events about the count, but for the steps from and to zero.
const QUIET_MS: u64 = 15_000;
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
}

impl Told {
    /// What is worth an event now; nothing twice.
    pub(super) fn news(
        &mut self,
        published: &Published,
        decision: &Decision,
        now: Moment,
    ) -> Vec<Occurrence> {
        let mut news = Vec::new();
        news.extend(self.count(published, decision, now));
        news.extend(self.health(decision));
        if self.version != published.version {
            self.version = published.version;
            news.extend(decision.notices.iter().filter_map(|notice| warning(*notice)));
        }
        news
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
        let sentence = summary(&published.answer, Some(decision), published.spec.as_deref());
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

/// A notice that somebody should act on; the others are told as changes of the count or of health.
fn warning(notice: Notice) -> Option<Occurrence> {
    let (reason, note) = match notice {
        Notice::NoWakeSource => (
            "NoWakeSource",
            "minReplicaCount is 0 and no wakeSource is configured, so zero is never reached",
        ),
        Notice::NotServing => (
            "NotServing",
            "requests wait while GPUs are idle and no limit of the engine explains it: more replicas \
             would not help",
        ),
        Notice::StuckQueue => {
            ("StuckQueue", "a queue does not move: an engine hangs, or its metrics stand still")
        }
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
    use crate::decision::Why;
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
            self.version += 1;
            let published = Published {
                version: self.version,
                at: self.now,
                answer: decision.answer,
                decision: None,
                spec: None,
            };
            let news = self.told.news(&published, &decision, self.now);
            assert_eq!(self.told.news(&published, &decision, self.now), Vec::new(), "told twice");
            news.into_iter().map(|it| (it.reason, format!("{}: {}", it.action, it.note))).collect()
        }

        fn after(&mut self, seconds: i64) -> &mut Teller {
            self.now = Moment(self.now.0 + seconds * 1_000);
            self
        }
    }

    fn quiet(want: u32) -> Decision {
        Decision { health: Health::Ok, notices: Vec::new(), ..wanting(want) }
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
        let notices = vec![Notice::ScaledUp, Notice::CapacityExhausted, Notice::StuckQueue];
        let news = teller.after(1).tell(Decision { notices, ..quiet(3) });
        assert_eq!(reasons(&news), ["ScaledUp", "CapacityExhausted", "StuckQueue"]);
    }

    #[test]
    fn a_note_fits_into_an_event_whatever_is_in_it() {
        assert!(shortened("ä".repeat(4_000)).len() <= MAX_NOTE);
        assert_eq!(shortened("short".to_owned()), "short");
    }
}
