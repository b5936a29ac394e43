//! What users do besides waiting: they leave when nothing comes, send again what was refused, think,
//! and go on with a conversation.
//!
//! Pure: what is drawn comes from the run's seed and the request's number.

use rand_distr::{Distribution as _, Exp1, StandardUniform};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng as _;

use super::failure::Failure;
use crate::traces::Size;

/// The waits of OpenAI's own client before it sends again (openai-python, `_constants.py` and
/// `_base_client.py`): half a second, doubled each time up to 8 s, less up to a quarter of it; or
/// what the server's `Retry-After` says, up to a minute.
const FIRST_WAIT_S: f64 = 0.5;
const MOST_WAIT_S: f64 = 8.0;
const JITTER: f64 = 0.25;
const MOST_RETRY_AFTER_S: f64 = 60.0;

/// How the users of a run behave.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Users {
    /// How long they wait for a first token, in seconds in the mean, spread exponentially; `None`:
    /// for ever.
    pub patience_s: Option<f64>,
    /// How often a refused request is sent again.
    pub retries: u32,
    /// How many requests may be sent again for each that was sent, 0 to 1, as clients with a budget
    /// have it; `None`: as many as `retries` says.
    pub retry_budget: Option<f64>,
    /// How long they think before they go on, in seconds in the mean, spread exponentially.
    pub think_s: f64,
    /// How many requests a conversation has; `None`: one.
    pub turns: Option<Size>,
    /// Settles what is drawn.
    pub seed: u64,
}

impl Users {
    /// When the user of a request leaves if there is no first token, in seconds from its intended
    /// start.
    #[must_use]
    pub fn leaves_after_s(&self, number: u64) -> Option<f64> {
        self.patience_s.map(|mean_s| {
            let drawn: f64 = Exp1.sample(&mut self.draw(number));
            mean_s * drawn
        })
    }

    /// How long a request waits before it is sent again, in seconds, once it was refused for the
    /// `refused`-th time, counted from 1; `None` if it is not.
    #[must_use]
    pub fn again_after_s(
        &self,
        number: u64,
        refused: u32,
        failure: Failure,
        retry_after_s: Option<f64>,
    ) -> Option<f64> {
        let is_refusal = match failure {
            Failure::Connect | Failure::Closed => true,
            Failure::Status(status) => matches!(status, 408 | 409 | 429 | 500..),
            Failure::Tls
            | Failure::Timeout
            | Failure::Abandoned
            | Failure::Stalled
            | Failure::CutShort
            | Failure::Malformed
            | Failure::WrongModel
            | Failure::ServerError
            | Failure::Empty
            | Failure::ClientLimit => false,
        };
        if !is_refusal || refused > self.retries {
            return None;
        }
        let told_s = retry_after_s.filter(|wait_s| (0.0..=MOST_RETRY_AFTER_S).contains(wait_s));
        Some(told_s.unwrap_or_else(|| {
            let drawn: f64 =
                StandardUniform.sample(&mut self.draw(number ^ (u64::from(refused) << 48)));
            let doublings = i32::try_from(refused - 1).unwrap_or(i32::MAX);
            (FIRST_WAIT_S * 2_f64.powi(doublings)).min(MOST_WAIT_S) * (1.0 - JITTER * drawn)
        }))
    }

    /// How long the user of a request thinks before its `turn`-th, in seconds.
    #[must_use]
    pub fn thinks_s(&self, number: u64, turn: u32) -> f64 {
        if self.think_s > 0.0 {
            let drawn: f64 = Exp1.sample(&mut self.draw(!number ^ (u64::from(turn) << 32)));
            self.think_s * drawn
        } else {
            0.0
        }
    }

    /// How many requests the conversation has that this one begins, at least 1.
    #[must_use]
    pub fn n_turns(&self, number: u64) -> u32 {
        self.turns.map_or(1, |turns| turns.draw(&mut self.draw(number ^ (1 << 63))))
    }

    /// Chance, settled by the seed and a number.
    pub(super) fn draw(&self, number: u64) -> Pcg64Mcg {
        Pcg64Mcg::seed_from_u64(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_leave_after_what_is_their_patience_in_the_mean() {
        let users = Users { patience_s: Some(10.0), seed: 7, ..Users::default() };
        let left: Vec<f64> =
            (0..20_000).map(|number| users.leaves_after_s(number).unwrap()).collect();
        let mean_s = left.iter().sum::<f64>() / left.len() as f64;
        assert!((mean_s - 10.0).abs() < 0.3, "{mean_s}");
        // Of an exponential spread, 1/e are more patient than the mean.
        let share = left.iter().filter(|s| **s > 10.0).count() as f64 / left.len() as f64;
        assert!((share - (-1.0_f64).exp()).abs() < 0.02, "{share}");
        assert_eq!(users.leaves_after_s(3), users.leaves_after_s(3));
        assert_eq!(Users::default().leaves_after_s(3), None);
    }

    #[test]
    fn what_was_refused_is_sent_again_as_openai_s_client_does() {
        let users = Users { retries: 6, seed: 1, ..Users::default() };
        let unavailable = Failure::Status(503);
        for (refused, most_s) in [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (5, 8.0), (6, 8.0)] {
            for number in 0..100 {
                let wait_s = users.again_after_s(number, refused, unavailable, None).unwrap();
                assert!((most_s * 0.75..=most_s).contains(&wait_s), "{refused}: {wait_s}");
            }
        }
        assert_eq!(users.again_after_s(0, 7, unavailable, None), None);
        assert_eq!(users.again_after_s(0, 1, unavailable, Some(20.0)), Some(20.0));
        let too_long_s = users.again_after_s(0, 1, unavailable, Some(3_600.0)).unwrap();
        assert!(too_long_s <= 0.5, "{too_long_s}");
    }

    #[test]
    fn only_a_refusal_is_sent_again() {
        let users = Users { retries: 1, ..Users::default() };
        let is_again = |failure| users.again_after_s(0, 1, failure, None).is_some();
        for failure in [
            Failure::Connect,
            Failure::Closed,
            Failure::Status(408),
            Failure::Status(429),
            Failure::Status(500),
            Failure::Status(503),
        ] {
            assert!(is_again(failure), "{failure:?}");
        }
        for failure in [
            Failure::Status(400),
            Failure::Status(404),
            Failure::CutShort,
            Failure::Timeout,
            Failure::WrongModel,
            Failure::ServerError,
            Failure::Tls,
        ] {
            assert!(!is_again(failure), "{failure:?}");
        }
        let none = Users::default();
        assert_eq!(none.again_after_s(0, 1, Failure::Connect, None), None);
    }
}
