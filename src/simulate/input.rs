//! From a trace file to the requests of a run.
//!
//! Must not simulate anything.

use std::collections::HashSet;
use std::path::Path;

use loadgen::engine::{Prefix, Profile, Time};
use loadgen::traces::{Arrival, Format, Options, read};

use super::workload::{Request, Workload};

/// Requests that are held in memory at most: 24 bytes each, so 2.4 GB.
const MOST_REQUESTS: usize = 100_000_000;
/// A trace ends with the 10 s in which its last request came.
const BIN_S: f64 = 10.0;

/// Where requests come from.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The trace.
    pub path: &'a Path,
    /// Its form.
    pub format: Format,
    /// Scale, seed, bins and lengths.
    pub options: &'a Options,
    /// Seconds at its beginning that only warm up.
    pub warmup_s: f64,
}

impl Source<'_> {
    /// Reads the whole trace, for engines of that profile.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is longer than what fits into memory, or has no request after the
    /// warm-up.
    pub fn read(&self, profile: &Profile) -> Result<Workload, Error> {
        let most_tokens = profile.limits.max_model_tokens.min(profile.kv_tokens());
        let mut requests = Vec::new();
        let mut cache = Cache::default();
        let mut last_s = 0.0;
        for arrival in read(self.path, self.format, self.options)? {
            let arrival = arrival?;
            last_s = arrival.t_s;
            let tokens = arrival.input_tokens as usize + arrival.output_tokens as usize;
            if tokens > most_tokens {
                return Err(Error::TooLong { t_s: arrival.t_s, tokens, most_tokens });
            }
            if requests.len() == MOST_REQUESTS {
                return Err(Error::TooMany);
            }
            requests.push(Request {
                at: Time::from_secs_f64(arrival.t_s),
                prompt_tokens: arrival.input_tokens,
                cached_tokens: cache.cached(&arrival),
                output_tokens: arrival.output_tokens,
            });
        }
        let end_s = ((last_s + 0.1) / BIN_S).ceil() * BIN_S;
        if last_s < self.warmup_s || requests.is_empty() {
            return Err(Error::NothingLeft { warmup_s: self.warmup_s, end_s });
        }
        let counted_from = Time::from_secs_f64(self.warmup_s);
        Ok(Workload { requests, counted_from, end: Time::from_secs_f64(end_s) })
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
}
