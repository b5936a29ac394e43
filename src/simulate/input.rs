//! From a trace file or a process to the requests of a run.
//!
//! Must not simulate anything.

use std::collections::HashSet;
use std::path::PathBuf;

use loadgen::engine::{Prefix, Time};
use loadgen::traces::{Arrival, Curve, Format, Lengths, Options, read};

use super::number::ceil_count;
use super::process::{self, Process};
use super::workload::{Request, Workload};

/// Requests that are held in memory at most: 24 bytes each, so 2.4 GB.
const MOST_REQUESTS: usize = 100_000_000;
/// A trace of requests ends with the 10 s in which its last one came.
const BIN_S: f64 = 10.0;

/// Requests, and how many of them are wanted.
#[derive(Debug, Clone)]
pub struct Source {
    /// Where they come from.
    pub origin: Origin,
    /// Multiplies the rate.
    pub scale: f64,
    /// Seconds at the beginning that only warm up.
    pub warmup_s: f64,
    /// The share of each prompt that a prefix cache holds, over time and in place of what the
    /// trace says.
    pub cached: Option<Curve>,
}

/// Where requests come from.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A trace.
    File {
        /// The file.
        path: PathBuf,
        /// Its form.
        format: Format,
        /// For counts: how long a bin is, in seconds.
        bin_s: f64,
        /// For counts: how long the requests are.
        lengths: Lengths,
    },
    /// A process, run so many times.
    Process {
        /// The process.
        process: Process,
        /// How often.
        runs: usize,
    },
}

impl Source {
    /// What to call it: the file's name, or the process's.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.origin {
            Origin::File { path, .. } => {
                path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
            }
            Origin::Process { process, .. } => process.name.clone(),
        }
    }

    /// Reads or generates all of it, for engines that take requests of at most `most_tokens` with
    /// their answers.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is longer than what fits into memory, has a request that is too long
    /// (a process has none: its requests are cut), or no request after the warm-up.
    pub fn read(&self, most_tokens: usize, seed: u64) -> Result<Workload, Error> {
        let mut collected = Collected::new(self, most_tokens);
        let (end_s, empty_rows) = match &self.origin {
            Origin::File { path, format, bin_s, lengths } => {
                let (bin_s, lengths) = (*bin_s, lengths.clone());
                let options = Options { scale: self.scale, seed, bin_s, lengths };
                let mut trace = read(path, *format, &options)?;
                for arrival in trace.by_ref() {
                    collected.add(&arrival?)?;
                }
                // A fleet that nobody needs at the end costs what it costs there too.
                let of_last = ((collected.last_s + 0.1) / BIN_S).ceil() * BIN_S;
                (trace.span_s().unwrap_or(of_last), trace.empty().n())
            }
            Origin::Process { process, runs } => {
                for arrival in process.arrivals(*runs, self.scale, seed)? {
                    collected.add(&cut(arrival, most_tokens))?;
                }
                (process.span_s() * *runs as f64, 0)
            }
        };
        let Collected { requests, last_s, .. } = collected;
        if last_s < self.warmup_s || requests.is_empty() {
            return Err(Error::NothingLeft { warmup_s: self.warmup_s, end_s });
        }
        let counted_from = Time::from_secs_f64(self.warmup_s);
        Ok(Workload { requests, counted_from, end: Time::from_secs_f64(end_s), empty_rows })
    }
}

/// A generated request as long as the engine takes: the answer first, then the prompt.
fn cut(arrival: Arrival, most_tokens: usize) -> Arrival {
    let most = u32::try_from(most_tokens).unwrap_or(u32::MAX).max(2);
    let output_tokens = arrival.output_tokens.min(most / 2);
    let input_tokens = arrival.input_tokens.min(most - output_tokens);
    Arrival { input_tokens, output_tokens, ..arrival }
}

/// What has been read so far.
struct Collected<'a> {
    source: &'a Source,
    most_tokens: usize,
    requests: Vec<Request>,
    cache: Cache,
    last_s: f64,
}

impl Collected<'_> {
    fn new(source: &Source, most_tokens: usize) -> Collected<'_> {
        let cache = Cache::default();
        Collected { source, most_tokens, requests: Vec::new(), cache, last_s: 0.0 }
    }

    fn add(&mut self, arrival: &Arrival) -> Result<(), Error> {
        self.last_s = arrival.t_s;
        let tokens = arrival.input_tokens as usize + arrival.output_tokens as usize;
        if tokens > self.most_tokens {
            let most_tokens = self.most_tokens;
            return Err(Error::TooLong { t_s: arrival.t_s, tokens, most_tokens });
        }
        if self.requests.len() == MOST_REQUESTS {
            return Err(Error::TooMany);
        }
        let prompt_tokens = arrival.input_tokens;
        let cached_tokens = match &self.source.cached {
            Some(share) => {
                let tokens = (share.at(arrival.t_s) * f64::from(prompt_tokens)).floor();
                ceil_count(tokens).min(prompt_tokens)
            }
            None => self.cache.cached(arrival),
        };
        let (at, output_tokens) = (Time::from_secs_f64(arrival.t_s), arrival.output_tokens);
        self.requests.push(Request { at, prompt_tokens, cached_tokens, output_tokens });
        Ok(())
    }
}

/// What a prefix cache of the whole fleet would hold, nothing ever evicted: traces that name the
/// segments of their prompts are read as ones that say how much was cached.
#[derive(Debug, Default)]
struct Cache {
    seen: HashSet<u64>,
}

impl Cache {
    fn cached(&mut self, arrival: &Arrival) -> u32 {
        match &arrival.prefix {
            Prefix::Unknown => 0,
            Prefix::Cached(tokens) => (*tokens).min(arrival.input_tokens),
            Prefix::Segments { tokens, hashes } => {
                let known = hashes.iter().take_while(|hash| self.seen.contains(hash)).count();
                self.seen.extend(hashes.iter());
                let known = u32::try_from(known).unwrap_or(u32::MAX);
                known.saturating_mul(*tokens).min(arrival.input_tokens)
            }
        }
    }
}

/// Why there is nothing to simulate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] loadgen::traces::Error),
    /// The process makes nothing.
    #[error(transparent)]
    Process(#[from] process::Error),
    /// A request that no engine of the profile takes.
    #[error(
        "the request at {t_s} s has {tokens} tokens with its answer, and the profile's engine takes \
         {most_tokens}: choose another --profile"
    )]
    TooLong {
        /// When it comes.
        t_s: f64,
        /// Prompt and answer.
        tokens: usize,
        /// The limit.
        most_tokens: usize,
    },
    /// More than fits into memory.
    #[error("more than {MOST_REQUESTS} requests: choose a smaller --scale or a shorter trace")]
    TooMany,
    /// The warm-up is all there is.
    #[error("no request comes after --warmup {warmup_s} s: the trace ends at {end_s} s")]
    NothingLeft {
        /// As asked for.
        warmup_s: f64,
        /// The end of the trace.
        end_s: f64,
    },
    /// The engine would be the same all the time.
    #[error("`--change` at {at_s} s: expected a time within the trace, which ends at {end_s} s")]
    ChangeTooLate {
        /// As asked for.
        at_s: f64,
        /// The end of the trace.
        end_s: f64,
    },
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn segments_that_came_before_are_cached_up_to_the_first_new_one() {
        let arrival = |hashes: &[u64]| Arrival {
            t_s: 0.0,
            input_tokens: 1_200,
            output_tokens: 1,
            prefix: Prefix::Segments { tokens: 512, hashes: Arc::from(hashes) },
        };
        let mut cache = Cache::default();
        assert_eq!(cache.cached(&arrival(&[1, 2, 3])), 0);
        assert_eq!(cache.cached(&arrival(&[1, 9, 3])), 512);
        assert_eq!(cache.cached(&arrival(&[1, 2, 3])), 1_200, "no more than the prompt");
    }

    #[test]
    fn a_process_is_cut_to_what_the_engine_takes_and_lasts_its_whole_span() {
        let text = "about: x\nrate: 1@10m\ninput: \"900:2\"\noutput: \"300:2\"\n";
        let process = Process::parse("long", text).unwrap();
        let source = Source {
            origin: Origin::Process { process, runs: 2 },
            scale: 1.0,
            warmup_s: 600.0,
            cached: Some("0@10m,0.5@10m".parse().unwrap()),
        };
        let workload = source.read(1_000, 1).unwrap();
        let longest = workload.requests.iter().map(|r| r.prompt_tokens + r.output_tokens).max();
        assert_eq!(longest, Some(1_000));
        assert_eq!(workload.end, Time::from_millis(1_200_000));
        assert!(workload.counted().iter().all(|r| r.cached_tokens == r.prompt_tokens / 2));
        assert!(workload.counted().len() > 500, "{}", workload.counted().len());
    }

    #[test]
    fn counts_last_to_their_last_bin_and_requests_to_their_last() {
        let end = |text: &str, format| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            let (path, lengths) = (file.path().to_owned(), Lengths::fixed(100, 10));
            let origin = Origin::File { path, format, bin_s: 60.0, lengths };
            let source = Source { origin, scale: 1.0, warmup_s: 0.0, cached: None };
            source.read(1_000, 1).unwrap().end
        };
        // An hour without a request at the end is an hour in which replicas may be let go.
        let idle = format!("count\n5\n{}", "0\n".repeat(60));
        assert_eq!(end(&idle, Format::Counts), Time::from_millis(61 * 60_000));
        let csv = "t_s,input_tokens,output_tokens\n1.0,100,10\n12.0,100,10\n";
        assert_eq!(end(csv, Format::Csv), Time::from_millis(20_000));
    }
}
