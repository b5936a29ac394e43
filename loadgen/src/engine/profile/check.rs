//! What makes a profile an engine: every value in its range.
//!
//! Must not repair anything: a value is right or named.

use std::fmt;

use crate::engine::profile::{Points, Profile};
use crate::engine::step_time::Curve;
use crate::engine::time::{PS_PER_MS, PS_PER_S};

// No step and no stage takes longer. The four terms of a step are four hours at most, 1.44e16 ps:
// a thousand such steps fit into the 64 bits of a moment.
const MOST_MS: f64 = 3_600_000.0;
const MOST_CURVE_PS: u64 = 3_600 * PS_PER_S;
const MOST_S: f64 = 86_400.0;
// Tokens of anything: a hundred times the longest context served today.
const MOST_TOKENS: usize = 1 << 24;
const MOST_BLOCKS: usize = 1 << 24;
const MOST_BLOCK_TOKENS: usize = 1_024;
const MOST_SEQS: usize = 1 << 16;
const MOST_GPUS: usize = 1_024;
const MOST_POINTS: usize = 1_000;
// Of a token in the API server: slower than any model.
const MOST_TOKEN_MS: f64 = 1_000.0;
// A microsecond: no engine steps faster.
const LEAST_MS: f64 = 1e-3;
const LEAST_S: f64 = 1e-3;

/// A value that makes no engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The field, by its path in the file.
    pub field: String,
    /// What it says.
    pub value: String,
    /// What it may say.
    pub expected: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is {}: expected {}", self.field, self.value, self.expected)
    }
}

/// All faults of a profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{fault}")?;
        }
        Ok(())
    }
}

impl Faults {
    /// Everything that is wrong with a profile.
    pub(super) fn of(profile: &Profile) -> Faults {
        let mut faults = Faults::default();
        faults.check_sizes(profile);
        faults.check_times(profile);
        let limits = &profile.limits;
        let step = &profile.step;
        for (field, points, most) in [
            ("step.prefill_ms", &step.prefill_ms, limits.max_num_batched_tokens),
            ("step.decode_ms", &step.decode_ms, limits.max_num_seqs),
            ("step.resident_ms", &step.resident_ms, profile.kv_tokens()),
            ("frontend.request_ms", &profile.frontend.request_ms, limits.max_model_tokens),
        ] {
            faults.check_curve(field, points, most);
        }
        faults
    }

    fn check_sizes(&mut self, profile: &Profile) {
        let (kv, limits) = (&profile.kv, &profile.limits);
        self.check("gpus", profile.gpus, 1, MOST_GPUS, "");
        self.check("kv.block_tokens", kv.block_tokens, 1, MOST_BLOCK_TOKENS, "");
        self.check("kv.blocks", kv.blocks, 2, MOST_BLOCKS, "");
        self.check("limits.max_num_seqs", limits.max_num_seqs, 1, MOST_SEQS, "");
        self.check(
            "limits.max_num_batched_tokens",
            limits.max_num_batched_tokens,
            limits.max_num_seqs,
            MOST_TOKENS,
            ", at least max_num_seqs",
        );
        self.check(
            "limits.max_model_tokens",
            limits.max_model_tokens,
            2,
            profile.kv_tokens().min(MOST_TOKENS),
            ", at most what the KV cache holds: (blocks - 1) x block_tokens",
        );
        let most_watermark = kv.blocks.saturating_sub(2);
        self.check("limits.watermark_blocks", limits.watermark_blocks, 0, most_watermark, "");
    }

    fn check_times(&mut self, profile: &Profile) {
        self.check("step.base_ms", profile.step.base_ms, LEAST_MS, MOST_MS, "");
        let limits = &profile.limits;
        let most_pairs = limits.max_num_batched_tokens as f64 * limits.max_model_tokens as f64;
        let most_ns = MOST_MS * 1e6 / most_pairs.max(1.0);
        let note = ", so that a full step at the longest context takes an hour at most";
        self.check("step.attention_ns", profile.step.attention_ns, 0.0, most_ns, note);
        self.check("frontend.token_ms", profile.frontend.token_ms, 0.0, MOST_TOKEN_MS, "");
        let start = &profile.start;
        for (stage, spread) in [
            ("schedule", start.schedule),
            ("pull", start.pull),
            ("load", start.load),
            ("warm", start.warm),
        ] {
            let median = format!("start.{stage}.median_s");
            self.check(&median, spread.median_s, LEAST_S, MOST_S, "");
            let p95 = format!("start.{stage}.p95_s");
            self.check(&p95, spread.p95_s, spread.median_s, MOST_S, ", at least the median");
        }
        for (field, seconds) in [
            ("wake.level_1_s", profile.wake.level_1_s),
            ("wake.level_2_s", profile.wake.level_2_s),
            ("shutdown.timeout_s", profile.shutdown.timeout_s),
            ("shutdown.linger_s", profile.shutdown.linger_s),
            ("shutdown.exit_s", profile.shutdown.exit_s),
        ] {
            self.check(field, seconds, 0.0, MOST_S, "");
        }
    }

    /// `most` is the largest count that the engine will ask the curve for.
    fn check_curve(&mut self, field: &str, points: &Points, most: usize) {
        let in_range =
            points.iter().all(|&(count, ms)| count <= MOST_TOKENS && (0.0..=MOST_MS).contains(&ms));
        let ascends = points.windows(2).all(|pair| {
            let [(from, from_ms), (to, to_ms)] = [pair[0], pair[1]];
            from < to && from_ms <= to_ms
        });
        let is_curve = (1..=MOST_POINTS).contains(&points.len()) && in_range && ascends;
        if !is_curve {
            self.push(
                field,
                format_args!("{points:?}"),
                format!(
                    "1 to {MOST_POINTS} points [count, ms]: counts ascend, up to {MOST_TOKENS}; \
                     ms do not descend, 0 to {MOST_MS}"
                ),
            );
            return;
        }
        let at_most_ps = Curve::through(points).at(most);
        if at_most_ps > MOST_CURVE_PS {
            let value = format_args!("{} ms at {most}", at_most_ps / PS_PER_MS);
            self.push(field, value, format!("at most {MOST_MS} ms there"));
        }
    }

    fn check<T: PartialOrd + fmt::Display>(
        &mut self,
        field: &str,
        value: T,
        least: T,
        most: T,
        note: &str,
    ) {
        // Also false for what is not a number.
        let in_range = least <= value && value <= most;
        if !in_range {
            self.push(field, value, format!("{least} to {most}{note}"));
        }
    }

    fn push(&mut self, field: &str, value: impl fmt::Display, expected: String) {
        self.0.push(Fault { field: field.to_owned(), value: value.to_string(), expected });
    }
}
