//! Captured runs of a real engine, read back and put on the simulated one.
//!
//! Must not talk to the real one: `tests/data/capture.py` does.

use std::collections::VecDeque;
use std::num::ParseFloatError;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::calibration::StepRow;
use crate::engine::{
    Engine, Event, FrontendCost as Frontend, Profile, Rejected, Request, Time, Watch, secs_from_ps,
};
use crate::files;

/// All phases of a capture.
#[derive(Debug, Clone)]
pub struct Capture {
    /// In the order of their names.
    pub phases: Vec<Phase>,
}

/// One load on an idle server.
#[derive(Debug, Clone)]
pub struct Phase {
    /// `fit` or `judge`, shape, clients or rate, mean prompt, mean output; slashes between.
    pub name: String,
    requests: Vec<Row>,
    seconds: Vec<Second>,
}

/// How a phase's requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// So many clients, each with one request at a time.
    Closed {
        /// The clients.
        clients: usize,
    },
    /// As they were captured.
    Open,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    arrival_s: f64,
    prompt_tokens: u32,
    output_tokens: u32,
    ttft_s: f64,
}

#[derive(Debug, Clone, Copy)]
struct Second {
    at_s: f64,
    span_s: f64,
    steps: f64,
    prompt_tokens: f64,
    generated_tokens: f64,
    running: f64,
    waiting: f64,
    kv_usage: f64,
}

/// What a phase looked like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Mean of the gauge while requests came.
    pub running: f64,
    /// Mean of the gauge while requests came.
    pub waiting: f64,
    /// The median.
    pub ttft_p50_ms: f64,
}

/// Why there is no capture.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("failed to read capture `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A line is not what the header says.
    #[error("`{}` line {line}: expected a phase and {expected} numbers", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Numbers of a line.
        expected: usize,
        /// The first of them that is no number.
        source: Option<ParseFloatError>,
    },
}

impl Capture {
    /// Reads `vllm-cpu-requests.csv` and `vllm-cpu-seconds.csv` of a directory.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or has a line that is none of its table.
    pub fn read(directory: &Path) -> Result<Capture, Error> {
        let mut capture = Capture { phases: Vec::new() };
        for (name, numbers) in read_csv::<5>(&directory.join("vllm-cpu-requests.csv"))? {
            let [arrival_s, prompt, output, ttft_s, _] = numbers;
            let (prompt_tokens, output_tokens) = (whole(prompt), whole(output));
            let row = Row { arrival_s, prompt_tokens, output_tokens, ttft_s };
            capture.phase(name).requests.push(row);
        }
        for (name, numbers) in read_csv::<8>(&directory.join("vllm-cpu-seconds.csv"))? {
            let [at_s, span_s, steps, prompt_tokens, generated_tokens, running, waiting, kv_usage] =
                numbers;
            capture.phase(name).seconds.push(Second {
                at_s,
                span_s,
                steps,
                prompt_tokens,
                generated_tokens,
                running,
                waiting,
                kv_usage,
            });
        }
        Ok(capture)
    }

    /// Rows for a fit, from the phases meant for it. `kv_tokens` is what the KV cache holds.
    #[must_use]
    pub fn fit_rows(&self, kv_tokens: f64) -> Vec<StepRow> {
        let fit = self.phases.iter().filter(|phase| phase.is_to_fit());
        fit.flat_map(|phase| phase.fit_rows(kv_tokens)).collect()
    }

    /// The API server's costs with which the medians of TTFT of the `fit` phases come nearest, by
    /// their relative errors; of whole steps of 0.5 ms a request and 0.05 ms a token, up to 10 ms
    /// and 0.3 ms.
    ///
    /// # Errors
    ///
    /// When the profile cannot serve one of the requests.
    pub fn fit_frontend(&self, profile: &Profile) -> Result<Frontend, Rejected> {
        let (mut best, mut least) = (Frontend::default(), f64::INFINITY);
        for step in 0..=20_u32 {
            for token in 0..=6_u32 {
                let request_ms = vec![(0, 0.5 * f64::from(step))];
                let frontend = Frontend { request_ms, token_ms: 0.05 * f64::from(token) };
                let tried = Arc::new(Profile { frontend: frontend.clone(), ..profile.clone() });
                let mut error = 0.0;
                for phase in self.phases.iter().filter(|phase| phase.is_to_fit()) {
                    let (simulated, real) = (phase.simulated(&tried)?, phase.captured());
                    error += (simulated.ttft_p50_ms / real.ttft_p50_ms).ln().abs();
                }
                if error < least {
                    (best, least) = (frontend, error);
                }
            }
        }
        Ok(best)
    }

    fn phase(&mut self, name: String) -> &mut Phase {
        let index = match self.phases.binary_search_by(|phase| phase.name.cmp(&name)) {
            Ok(index) => index,
            Err(index) => {
                let phase = Phase { name, requests: Vec::new(), seconds: Vec::new() };
                self.phases.insert(index, phase);
                index
            }
        };
        &mut self.phases[index]
    }
}

impl Phase {
    /// How its requests come, by its name.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let mut parts = self.name.split('/').skip(1);
        match (parts.next(), parts.next().map(str::parse)) {
            (Some("closed"), Some(Ok(clients))) => Shape::Closed { clients },
            _ => Shape::Open,
        }
    }

    /// What was captured.
    #[must_use]
    pub fn captured(&self) -> Summary {
        let gauges: Vec<_> = self.seconds.iter().map(|s| (s.at_s, s.running, s.waiting)).collect();
        let ttfts_s = self.requests.iter().map(|row| row.ttft_s).collect();
        self.summary(&gauges, ttfts_s)
    }

    /// What the simulated engine makes of the same load, looked at at the same moments.
    ///
    /// # Errors
    ///
    /// When the profile cannot serve one of the requests.
    pub fn simulated(&self, profile: &Arc<Profile>) -> Result<Summary, Rejected> {
        let mut engine = Engine::new(Arc::clone(profile));
        let mut coming: VecDeque<(Time, Row)> =
            self.requests.iter().map(|&row| (Time::from_secs_f64(row.arrival_s), row)).collect();
        let mut looks: VecDeque<Time> =
            self.seconds.iter().map(|second| Time::from_secs_f64(second.at_s)).collect();
        let mut held = VecDeque::new();
        if let Shape::Closed { clients } = self.shape() {
            // Each client sends its next request when one has ended, whenever it was captured.
            held = coming.split_off(clients.min(coming.len()));
        }
        let (mut gauges, mut ttfts_s, mut id) = (Vec::new(), Vec::new(), 0);
        loop {
            let next_arrival = coming.front().map(|&(at, _)| at);
            let times = [engine.next_event(), next_arrival, looks.front().copied()];
            let Some(now) = times.into_iter().flatten().min() else {
                break;
            };
            engine.advance(now, Watch::FirstToken, &mut |event| {
                if let Event::Finished { served, .. } = event {
                    let first_token = served.first_token.unwrap_or(served.last_token);
                    ttfts_s.push(secs_from_ps(first_token.since(served.arrival)));
                    coming.extend(held.pop_front().map(|(_, row)| (now, row)));
                }
            });
            while let Some(&(at, row)) = coming.front() {
                if at > now {
                    break;
                }
                coming.pop_front();
                id += 1;
                engine.submit(Request::new(id, row.prompt_tokens, row.output_tokens), now)?;
            }
            while looks.front().is_some_and(|&look| look <= now) {
                looks.pop_front();
                let seen = engine.metrics().gauges;
                gauges.push((now.as_secs_f64(), seen.running as f64, seen.waiting as f64));
            }
        }
        Ok(self.summary(&gauges, ttfts_s))
    }

    /// Whether a profile is fitted to it; the others judge.
    fn is_to_fit(&self) -> bool {
        self.name.starts_with("fit/")
    }

    fn summary(&self, gauges: &[(f64, f64, f64)], mut ttfts_s: Vec<f64>) -> Summary {
        // The tail in which the last requests drain is not the load.
        let end_s = self.requests.last().map_or(0.0, |row| row.arrival_s);
        let during = gauges.iter().filter(|&&(at_s, ..)| at_s <= end_s);
        let (mut n, mut running, mut waiting) = (0.0, 0.0, 0.0);
        for &(_, running_then, waiting_then) in during {
            n += 1.0;
            running += running_then;
            waiting += waiting_then;
        }
        ttfts_s.sort_by(f64::total_cmp);
        let median_s = ttfts_s.get(ttfts_s.len() / 2).copied().unwrap_or(f64::NAN);
        Summary { running: running / n, waiting: waiting / n, ttft_p50_ms: 1e3 * median_s }
    }

    fn fit_rows(&self, kv_tokens: f64) -> impl Iterator<Item = StepRow> {
        // Between two looks at a busy engine, with some steps to take a mean of.
        let busy = self
            .seconds
            .windows(2)
            .filter(|pair| pair.iter().all(|second| second.running > 0.0) && pair[1].steps > 5.0);
        busy.map(move |pair| {
            let [before, now] = [pair[0], pair[1]];
            StepRow {
                step_ms: 1e3 * now.span_s / now.steps,
                prefill_tokens: now.prompt_tokens / now.steps,
                decoding: now.generated_tokens / now.steps,
                resident_tokens: (before.kv_usage + now.kv_usage) / 2.0 * kv_tokens,
            }
        })
    }
}

/// The lines below the header: a name and so many numbers.
fn read_csv<const N: usize>(path: &Path) -> Result<Vec<(String, [f64; N])>, Error> {
    let text = files::read_text(path, files::MAX_DOCUMENT_BYTES)
        .map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate().skip(1) {
        let fault =
            |source| Error::Line { path: path.to_owned(), line: index + 1, expected: N, source };
        let (name, numbers) = line.split_once(',').ok_or_else(|| fault(None))?;
        let numbers: Result<Vec<f64>, _> = numbers.split(',').map(str::parse).collect();
        let numbers = numbers.map_err(|source| fault(Some(source)))?;
        let numbers = numbers.try_into().map_err(|_wrong_length: Vec<f64>| fault(None))?;
        rows.push((name.to_owned(), numbers));
    }
    Ok(rows)
}

/// A token count that was written as a number.
fn whole(number: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and takes what is not a number for 0, which is refused later"
    )]
    let whole = number as u32;
    whole
}

#[cfg(test)]
mod tests;
