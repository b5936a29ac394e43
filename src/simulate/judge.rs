//! Whether a request was served within its targets.
//!
//! Must not look at anything but the request's own times.

use loadgen::engine::{Lean, LeanRequest, Profile, Time, secs_from_ps};

use super::policy::Slo;
use super::workload::Request;

/// Judges requests of one engine profile.
#[derive(Debug)]
pub(super) struct Judge {
    profile: Profile,
    slo: Slo,
}

/// How one request was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    /// To the first token within max(target, 2 × what it takes on an empty replica), and the mean
    /// time per token within its target.
    pub(super) good: bool,
    /// The same with the bare target to the first token.
    pub(super) good_raw: bool,
}

impl Judge {
    pub(super) fn new(profile: Profile, slo: Slo) -> Judge {
        Judge { profile, slo }
    }

    /// Judges by another engine from now on.
    pub(super) fn update(&mut self, profile: Profile) {
        self.profile = profile;
    }

    /// Judges a request that got its tokens then.
    pub(super) fn judge(&self, request: &Request, first_token: Time, last_token: Time) -> Verdict {
        let gaps = request.output_tokens.saturating_sub(1);
        let decode_s = secs_from_ps(last_token.since(first_token));
        let tpot_kept = gaps == 0 || decode_s / f64::from(gaps) <= self.slo.tpot_s;
        let ttft_s = secs_from_ps(first_token.since(request.at));
        let raw = ttft_s <= self.slo.ttft_s;
        // Only the late are worth the question how long an empty replica would have taken.
        let good = tpot_kept && (raw || ttft_s <= 2.0 * self.alone_s(request));
        Verdict { good, good_raw: tpot_kept && raw }
    }

    /// Seconds to the first token on an empty replica.
    fn alone_s(&self, request: &Request) -> f64 {
        let mut engine = Lean::new(&self.profile);
        let alone = LeanRequest {
            id: 0,
            prompt_tokens: request.prompt_tokens,
            cached_tokens: 0,
            output_tokens: 1,
        };
        engine.submit(alone, Time::ZERO);
        let mut end = Time::ZERO;
        while let Some(at) = engine.next_event() {
            engine.advance(at, &mut |_| {});
            end = at;
        }
        secs_from_ps(end.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_prompt_has_twice_its_own_time_and_a_short_one_the_target() {
        let profile = Profile::load("8b-a100").unwrap();
        let judge = Judge::new(profile, Slo { ttft_s: 2.0, tpot_s: 0.2 });
        let request = |prompt_tokens| Request {
            at: Time::from_millis(1_000),
            prompt_tokens,
            cached_tokens: 0,
            output_tokens: 11,
        };
        let verdict = |request: &Request, ttft_ms: u64, decode_ms: u64| {
            let first = Time::from_millis(1_000 + ttft_ms);
            judge.judge(request, first, first.plus_ps(decode_ms * loadgen::engine::PS_PER_MS))
        };
        let both = |good, good_raw| Verdict { good, good_raw };
        let short = request(1_000);
        assert_eq!(verdict(&short, 2_000, 2_000), both(true, true));
        assert_eq!(verdict(&short, 2_001, 100), both(false, false), "late");
        assert_eq!(verdict(&short, 100, 2_001), both(false, false), "slow");
        // 20,480 tokens are ten steps: 10 × 12.5 ms + 20,480 × 0.067 ms + resident = 1.50 … 1.52 s.
        let long = request(20_480);
        assert_eq!(verdict(&long, 2_900, 100), both(true, false));
        assert_eq!(verdict(&long, 3_100, 100), both(false, false));
    }
}
