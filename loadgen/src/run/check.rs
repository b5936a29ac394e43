//! What the flags of `run` must be, beyond what each says for itself.
//!
//! Must not send anything.

use std::collections::HashSet;

use anyhow::{bail, ensure};

use super::settle::MOST_RUN_S;
use super::{Args, ClassSpec, Requirement};
use crate::files;
use crate::traces::{Format, Size};

/// Longest time that a flag takes, in seconds: a day.
const DAY_S: f64 = 86_400.0;
/// Shortest time that means anything, in seconds.
const LEAST_S: f64 = 1e-3;

impl Args {
    /// # Errors
    ///
    /// The first value that makes no sense, with what was expected.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let times = [
            ("duration", self.duration, LEAST_S..=MOST_RUN_S, "1ms to 30d"),
            ("slo-ttft", Some(self.slo_ttft), LEAST_S..=DAY_S, "1ms to 1d"),
            ("slo-tpot", Some(self.slo_tpot), LEAST_S..=DAY_S, "1ms to 1d"),
            ("slo-e2e", self.slo_e2e, LEAST_S..=DAY_S, "1ms to 1d"),
            ("timeout", Some(self.timeout), LEAST_S..=DAY_S, "1ms to 1d"),
            ("stall", self.stall, LEAST_S..=DAY_S, "1ms to 1d"),
            ("think", Some(self.think), 0.0..=DAY_S, "at most 1d"),
            ("patience", self.patience, LEAST_S..=DAY_S, "1ms to 1d"),
            ("cooldown", Some(self.cooldown), 0.0..=DAY_S, "at most 1d"),
            ("grace", Some(self.grace), 0.0..=DAY_S, "at most 1d"),
        ];
        for (flag, seconds, range, expected) in times {
            if let Some(seconds) = seconds.filter(|seconds| !range.contains(seconds)) {
                bail!("--{flag} is {seconds}s: expected {expected}");
            }
        }
        ensure!(
            self.think <= 0.0 || self.users.is_some() || self.turns.is_some(),
            "--think is of no use: expected --users or --turns beside it"
        );
        let mut names = HashSet::new();
        for ClassSpec { name, model, ttft_s, tpot_s, e2e_s, .. } in &self.class {
            ensure!(names.insert(name), "--class {name} is given twice: expected each name once");
            ensure!(model.as_deref() != Some(""), "--class {name}: expected a name after model=");
            let promised = [ttft_s, tpot_s, e2e_s].into_iter().flatten();
            if let Some(time_s) = promised.into_iter().find(|s| !(LEAST_S..=DAY_S).contains(*s)) {
                bail!("--class {name}: an slo is {time_s}s: expected 1ms to 1d");
            }
        }
        self.check_lengths()?;
        let judges_share = (self.find_knee && self.require.iter().all(Requirement::is_valid))
            || self.require.iter().any(|required| required.attainment().is_some());
        let is_judged = self.slo_e2e.is_some()
            || (!self.class.is_empty() && self.class.iter().all(|class| class.e2e_s.is_some()));
        ensure!(
            !self.plain || !judges_share || is_judged,
            "a share within the SLO means nothing with --plain, which shows no first token: \
             expected --slo-e2e beside it"
        );
        self.check_times()?;
        self.check_files()?;
        let is_tls = |url: &String| url.starts_with("https:");
        ensure!(
            self.tls_ca.is_none() || self.url.iter().chain(&self.replicas_url).any(is_tls),
            "--tls-ca is of no use: expected an https URL beside it"
        );
        Ok(())
    }

    /// Whether every time that is bounded will be seen.
    fn check_times(&self) -> anyhow::Result<()> {
        let (one, is_told) =
            (Some(Size::fixed(1)), self.trace_format.is_some_and(Format::has_lengths));
        let all_one = match self.class.as_slice() {
            [] => self.output_tokens == one,
            classes => classes.iter().all(|class| class.output.or(self.output_tokens) == one),
        };
        let (n_pieces, what) = match (self.plain, all_one && !is_told) {
            (true, _) => (0, "--plain, whose answers show no first token and no time per token"),
            (false, true) => (1, "answers of one token, which show no time per token"),
            (false, false) => return Ok(()),
        };
        match self.require.iter().find(|required| required.least_pieces() > n_pieces) {
            Some(required) => {
                bail!("--require {required} cannot hold with {what}: expected a bound on e2e, say")
            }
            None => Ok(()),
        }
    }

    /// What is written is neither written twice nor what is read.
    fn check_files(&self) -> anyhow::Result<()> {
        let written = [("requests", &self.requests), ("output", &self.output)];
        let read = [
            ("trace", &self.trace),
            ("lengths", &self.lengths),
            ("prompts", &self.prompts),
            ("api-key-file", &self.api_key_file),
            ("tls-ca", &self.tls_ca),
        ];
        for (n, (flag, path)) in (1..).zip(written) {
            for (other, named) in written.into_iter().skip(n).chain(read) {
                if let (Some(path), Some(named)) = (path, named) {
                    ensure!(
                        !files::are_same(path, named),
                        "--{flag} and --{other} both name {}: expected a file for each",
                        path.display()
                    );
                }
            }
        }
        Ok(())
    }

    /// Whoever says how long requests are is not contradicted.
    fn check_lengths(&self) -> anyhow::Result<()> {
        if let Some(format) = self.trace_format {
            for (flag, is_given) in [
                ("input-tokens", self.input_tokens.is_some()),
                ("output-tokens", self.output_tokens.is_some()),
                ("lengths", self.lengths.is_some()),
            ] {
                ensure!(
                    !is_given || !format.has_lengths(),
                    "--{flag} is of no use: the rows of --trace-format {format} say how long requests are"
                );
            }
            ensure!(
                self.bin.is_none() || !format.has_lengths(),
                "--bin is of no use: expected --trace-format counts beside it"
            );
        }
        for class in &self.class {
            let (is_trace, is_own) = (self.trace.is_some(), self.prompts.is_some());
            ensure!(
                !(is_trace && (class.input.is_some() || class.output.is_some())),
                "--class {}: input= and output= are of no use beside --trace, which says how long \
                 requests are",
                class.name
            );
            ensure!(
                !(is_own && class.input.is_some()),
                "--class {}: input= is of no use beside --prompts",
                class.name
            );
        }
        Ok(())
    }
}
