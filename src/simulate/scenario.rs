//! What changes while a trace runs: the engine behind the workload, and how fast it is.
//!
//! Must not change what a policy is told of it: nobody tells a scaler in a cluster either.

use std::f64::consts::TAU;

use loadgen::engine::{PS_PER_S, Profile, Time, ps_from_secs, secs_from_ps};

/// Time between two adjustments of a drift.
const DRIFT_STEP_PS: u64 = 600 * PS_PER_S;
/// Seconds in which a drift goes up, down and back.
const DRIFT_PERIOD_S: f64 = 86_400.0;

/// Changes on the way; the default is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scenario {
    /// Rolling updates to another model, GPU or engine version, ascending.
    pub changes: Vec<Change>,
    /// By what share the time of a step rises and falls in the course of a day, 0 to below 1.
    pub drift: f64,
}

/// A rolling update.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Seconds since the trace's start.
    pub at_s: f64,
    /// What runs from then on.
    pub profile: Profile,
}

impl Scenario {
    /// Nothing changes.
    pub const NONE: &'static Scenario = &Scenario { changes: Vec::new(), drift: 0.0 };

    /// The engine that is rolled out at a moment.
    pub(super) fn profile<'a>(&'a self, first: &'a Profile, now: Time) -> &'a Profile {
        let now_s = secs_from_ps(now.0);
        let done = self.changes.iter().take_while(|change| change.at_s <= now_s);
        done.last().map_or(first, |change| &change.profile)
    }

    /// The next moment after `now` at which something changes; [`Time::MAX`] if nothing does.
    pub(super) fn next(&self, now: Time) -> Time {
        let time = |s: f64| Time(ps_from_secs(s));
        let change = self.changes.iter().map(|change| time(change.at_s)).find(|at| *at > now);
        let drift = (self.drift > 0.0).then(|| Time((now.0 / DRIFT_STEP_PS + 1) * DRIFT_STEP_PS));
        change.into_iter().chain(drift).min().unwrap_or(Time::MAX)
    }

    /// What is true of the engine from which moment on, until `end`.
    pub(super) fn over_time<T>(
        &self,
        first: &Profile,
        end: Time,
        what: impl Fn(&Profile) -> T,
    ) -> Vec<(Time, T)> {
        let mut now = Time::ZERO;
        let mut list = Vec::new();
        while now < end {
            let profile = self.drifted(self.profile(first, now), now);
            list.push((now, what(&profile)));
            now = self.next(now);
        }
        list
    }

    /// The profile with its steps as long as they are at a moment.
    pub(super) fn drifted(&self, profile: &Profile, now: Time) -> Profile {
        let factor = 1.0 + self.drift * (TAU * secs_from_ps(now.0) / DRIFT_PERIOD_S).sin();
        stretched(profile, factor, factor)
    }
}

/// A profile whose tokens take `tokens` times as long, and everything else `rest` times.
#[must_use]
pub fn stretched(profile: &Profile, tokens: f64, rest: f64) -> Profile {
    let mut profile = profile.clone();
    let step = &mut profile.step;
    step.base_ms *= rest;
    step.attention_ns *= tokens;
    let curves = [
        (&mut step.prefill_ms, tokens),
        (&mut step.decode_ms, tokens),
        (&mut step.resident_ms, rest),
    ];
    for (points, factor) in curves {
        points.iter_mut().for_each(|(_, ms)| *ms *= factor);
    }
    profile
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drift_goes_up_and_down_by_its_share_in_steps_of_ten_minutes() {
        let profile = Profile::load("8b-a100").unwrap();
        let scenario = Scenario { drift: 0.15, ..Scenario::default() };
        let base_ms = |hours: u64| {
            let now = Time::from_millis(hours * 3_600_000);
            scenario.drifted(&profile, now).step.base_ms / profile.step.base_ms
        };
        for (hours, factor) in [(0, 1.0), (6, 1.15), (12, 1.0), (18, 0.85)] {
            assert!((base_ms(hours) - factor).abs() < 1e-9, "{hours} h");
        }
        assert_eq!(scenario.next(Time::ZERO), Time::from_millis(600_000));
        assert_eq!(scenario.next(Time::from_millis(600_000)), Time::from_millis(1_200_000));
        assert_eq!(Scenario::default().next(Time::ZERO), Time::MAX);
    }

    #[test]
    fn an_update_holds_from_its_moment_on() {
        let (first, second) =
            (Profile::load("8b-a100").unwrap(), Profile::load("8b-h100").unwrap());
        let change = Change { at_s: 60.0, profile: second.clone() };
        let scenario = Scenario { changes: vec![change], drift: 0.0 };
        assert_eq!(scenario.next(Time::ZERO), Time::from_millis(60_000));
        assert_eq!(scenario.next(Time::from_millis(60_000)), Time::MAX);
        assert_eq!(scenario.profile(&first, Time::from_millis(59_999)), &first);
        assert_eq!(scenario.profile(&first, Time::from_millis(60_000)), &second);
    }

    #[test]
    fn tokens_and_the_rest_are_stretched_apart() {
        let profile = Profile::load("8b-a100").unwrap();
        let slower = stretched(&profile, 1.7, 1.0);
        assert!((slower.step.base_ms - 12.5).abs() < 1e-9);
        assert!((slower.step.prefill_ms[1].1 - 1.7 * 67.0).abs() < 1e-9);
        assert!((slower.step.resident_ms[1].1 - 82.0).abs() < 1e-9);
    }
}
