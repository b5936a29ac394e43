//! The work of an engine in another process, from the counters that it exposes.
//!
//! Must not take a page that cannot be read for an engine that rests: it then says nothing.
//!
//! A vLLM, simulated or real, counts its steps and tokens and shows how full its KV cache is. With
//! the step times of a profile these give the work between two looks: so many steps, each with the
//! mean of the tokens, at the mean of the cache. Steps without an output (the first chunks of a
//! long prompt) are not counted there, so a little of the base is missing.

use std::time::Duration;

use tokio::time::timeout;

use crate::engine::{Profile, Work};
use crate::run::target::{Page, Tls};
use crate::series::lines::sum_of;

/// A page that takes longer is not read.
const DEADLINE: Duration = Duration::from_secs(1);

/// The page at an address. A fleet's file names no certificates to trust, so it is one in plain
/// HTTP.
pub(super) fn page(url: &str) -> Result<Page, Error> {
    let page = Page::parse(url, &Tls::default()).ok();
    page.filter(|_| url.starts_with("http://")).ok_or(Error::Url)
}

/// Gets a page.
pub(super) async fn fetch(page: &Page) -> Result<String, Error> {
    match timeout(DEADLINE, page.get()).await.map_err(|_elapsed| Error::Late)? {
        Ok((200, body)) => String::from_utf8(body.into()).map_err(|_no_text| Error::NoText),
        Ok((status, _)) => Err(Error::Status(status)),
        Err(fault) => Err(Error::Failed(fault.example)),
    }
}

/// Why a page was not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The address is none.
    #[error("http://HOST:PORT/metrics")]
    Url,
    /// Nobody listens, the connection broke, or the answer is no HTTP or far too long.
    #[error("{0}")]
    Failed(String),
    /// It did not answer in time.
    #[error("no answer within a second")]
    Late,
    /// It answered that it cannot.
    #[error("answered with status {0}")]
    Status(u16),
    /// The page is no text.
    #[error("an answer that is no text")]
    NoText,
    /// The page has none of the counters.
    #[error("a page without vLLM's counters of steps and tokens")]
    NoCounters,
}

/// What a page says of the engine's work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counters {
    /// Engines behind the page: data parallel ones have series of their own.
    engines: f64,
    steps: f64,
    /// Net of those that the prefix cache held.
    prompt_tokens: f64,
    generated_tokens: f64,
    /// 0 to 1, the mean of the engines.
    kv_usage: f64,
}

impl Counters {
    fn read(page: &str) -> Option<Counters> {
        let (steps, engines) = sum_of(page, "vllm:iteration_tokens_total_count")?;
        let (prompt, _) = sum_of(page, "vllm:prompt_tokens_total")?;
        let (cached, _) = sum_of(page, "vllm:prompt_tokens_cached_total").unwrap_or_default();
        let (generated_tokens, _) = sum_of(page, "vllm:generation_tokens_total")?;
        let kv = ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"];
        let (kv, kv_engines) = kv.iter().find_map(|name| sum_of(page, name))?;
        let prompt_tokens = (prompt - cached).max(0.0);
        let kv_usage = kv / kv_engines;
        Some(Counters { engines, steps, prompt_tokens, generated_tokens, kv_usage })
    }
}

/// An engine whose pages are turned into work.
#[derive(Debug)]
pub(super) struct Reader {
    profile: Profile,
    before: Option<Counters>,
    work: Work,
}

impl Reader {
    pub(super) fn new(profile: Profile) -> Reader {
        Reader { profile, before: None, work: Work::default() }
    }

    /// The work that it has seen the engine do.
    pub(super) fn work(&self) -> &Work {
        &self.work
    }

    /// Adds what was done between the last page and this one. The first page only begins; counters
    /// that have fallen are those of a new engine, and so are those that were not there yet (vLLM
    /// 0.9.1 V0 has none before its first request).
    pub(super) fn read(&mut self, page: &str) -> Result<(), Error> {
        let Some(now) = Counters::read(page) else {
            self.before.get_or_insert_default();
            return Err(Error::NoCounters);
        };
        let Some(before) = self.before.replace(now) else {
            return Ok(());
        };
        let is_new = now.steps < before.steps || now.generated_tokens < before.generated_tokens;
        let before = if is_new { Counters::default() } else { before };
        let steps = now.steps - before.steps;
        if steps > 0.0 {
            let prompt = (now.prompt_tokens - before.prompt_tokens).max(0.0) / steps;
            let generated = (now.generated_tokens - before.generated_tokens).max(0.0) / steps;
            let usage = (before.kv_usage + now.kv_usage) / 2.0;
            self.add(steps / now.engines, prompt, generated, usage);
        }
        Ok(())
    }

    /// Adds so many steps with so many tokens each. Between two whole numbers of tokens a step
    /// takes what lies between.
    fn add(&mut self, steps: f64, prompt: f64, generated: f64, kv_usage: f64) {
        let step_time = self.profile.step_time();
        let resident = whole(kv_usage * self.profile.kv_tokens() as f64);
        let resident = usize::try_from(resident).unwrap_or(usize::MAX);
        let count = |tokens: f64| usize::try_from(whole(tokens)).unwrap_or(usize::MAX);
        let least = step_time.of(count(prompt.floor()), count(generated.floor()), resident);
        let most = step_time.of(count(prompt.ceil()), count(generated.ceil()), resident);
        let between = |least: u64, most: u64, at: f64| {
            whole(steps * (least as f64 + (most.saturating_sub(least)) as f64 * at.fract()))
        };
        let work = &mut self.work;
        for (sum, more) in [
            (&mut work.base_ps, between(least.base_ps, most.base_ps, 0.0)),
            (&mut work.prefill_ps, between(least.prefill_ps, most.prefill_ps, prompt)),
            (&mut work.decode_ps, between(least.decode_ps, most.decode_ps, generated)),
            (&mut work.resident_ps, between(least.resident_ps, most.resident_ps, 0.0)),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

fn whole(number: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and takes what is not a number for 0"
    )]
    let whole = number.round() as u64;
    whole
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::{Replica, Request, Time, Watch};
    use crate::exposition::{Dialect, Http, Rank, Server, render};

    /// Two minutes of an engine, looked at each second.
    fn read_and_done(dialect: &Dialect) -> [Work; 2] {
        let profile = Profile::load("8b-a100").unwrap();
        let mut replica = Replica::warm(Arc::new(profile.clone()));
        let mut reader = Reader::new(profile);
        let http = Http::default();
        let mut look = |replica: &Replica| {
            let mut page = String::new();
            render(dialect, &Server::new("m", &[Rank::of(replica)], &http), &mut page);
            let read = reader.read(&page);
            assert!(read.is_ok() || replica.engine().last_step_end() == Time::ZERO);
        };
        look(&replica);
        for second in 0..120_u64 {
            for part in 0..4 {
                let now = Time::from_millis(1_000 * second + 250 * part);
                replica.advance(now, Watch::FirstToken, &mut |_| {});
                replica.submit(Request::new(4 * second + part, 900, 150), now).unwrap();
            }
            let now = Time::from_millis(1_000 * (second + 1));
            replica.advance(now, Watch::FirstToken, &mut |_| {});
            look(&replica);
        }
        [*reader.work(), *replica.engine().work()]
    }

    #[test]
    fn the_work_read_from_the_page_is_the_work_of_the_engine() {
        // Ray renames the series, and other engines do not count their steps.
        let vllms = Dialect::ALL
            .iter()
            .filter(|dialect| dialect.name.starts_with("vllm-") && dialect.name != "vllm-ray");
        for dialect in vllms {
            let [read, done] = read_and_done(dialect);
            for (term, read, done) in [
                ("base", read.base_ps, done.base_ps),
                ("prefill", read.prefill_ps, done.prefill_ps),
                ("decode", read.decode_ps, done.decode_ps),
                ("resident", read.resident_ps, done.resident_ps),
            ] {
                let error = read as f64 / done as f64 - 1.0;
                assert!(error.abs() < 0.05, "{}, {term}: {error:+.3}", dialect.name);
            }
        }
    }

    #[test]
    fn a_restarted_engine_has_done_what_its_counters_say_and_no_less_than_nothing() {
        let text = |steps: u32, generated: u32| {
            format!(
                "vllm:iteration_tokens_total_count {steps}\nvllm:prompt_tokens_total 0\n\
                 vllm:generation_tokens_total {generated}\nvllm:gpu_cache_usage_perc 0\n"
            )
        };
        let mut reader = Reader::new(Profile::load("8b-a100").unwrap());
        reader.read(&text(1_000, 5_000)).unwrap();
        assert_eq!(*reader.work(), Work::default(), "the first page only begins");
        reader.read(&text(10, 10)).unwrap();
        // Ten steps of 12.5 ms, with one token of 0.067 ms each.
        assert_eq!(
            (reader.work().base_ps, reader.work().decode_ps),
            (125_000_000_000, 670_000_000)
        );
        assert!(matches!(reader.read("up 1\n"), Err(Error::NoCounters)));
    }

    #[test]
    fn only_addresses_in_http_are_read() {
        assert!(page("http://[::1]:8000/metrics").is_ok());
        for none in ["", "localhost:8000", "https://localhost/metrics", "/metrics", "http://"] {
            assert!(page(none).is_err(), "{none}");
        }
    }
}
