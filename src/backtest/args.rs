//! The flags of `backtest`.
//!
//! Must not read anything: what they come to is checked here, and used elsewhere.

use std::path::PathBuf;

use super::Error;
use super::span::{Span, When};
use crate::config::kubernetes_name;
use crate::decision::Moment;
use crate::duration;
use crate::simulate::policy::Slo;
use crate::source::config::PrometheusConfig;

/// Shortest span that is worth a replay: a cold start, a hold and what follows.
const SHORTEST_MS: u64 = 30 * 60_000;
/// Longest span: 31 days.
const LONGEST_MS: u64 = 31 * 86_400_000;
/// Finest and coarsest step. Beyond a minute nothing can be learned from two samples.
const STEPS_MS: std::ops::RangeInclusive<u64> = 5_000..=300_000;

/// Replay a workload's own history from Prometheus under each policy.
#[derive(Debug, clap::Args)]
#[command(override_usage = "ghostscaler backtest --prometheus URL -n NS -w NAME [OPTIONS]")]
#[command(after_help = "Examples.\n\n\
    The last week, in money:\n  \
    ghostscaler backtest --prometheus http://localhost:9090 -n team-a -w llm \\\n    \
    --gpu-price 2.50 --report week.html\n\n\
    Two days, for programs:\n  \
    ghostscaler backtest --prometheus https://prometheus.example \\\n    \
    --bearer-token-file token -n team-a -w llm \\\n    \
    --from 2026-11-02T00:00:00Z --to 2026-11-04T00:00:00Z --format json\n\n\
    It only asks: two queries at once, and each window once, for --cache keeps\n\
    the answers.")]
pub struct Args {
    /// The Prometheus, or whatever speaks its API: its base URL, without credentials.
    #[arg(long, value_name = "URL")]
    pub prometheus: String,
    /// The workload's namespace.
    #[arg(short, long, value_name = "NS", value_parser = kubernetes_name)]
    pub namespace: String,
    /// The workload: the name of the Deployment, StatefulSet or LeaderWorkerSet whose pods are the
    /// replicas; where series name no pod, the value of their job, service or model_name.
    #[arg(short, long, value_name = "NAME")]
    pub workload: String,
    /// Where the history begins: 2026-11-02T00:00:00Z, seconds since 1970, or now-7d.
    #[arg(long, value_name = "T", default_value = "now-7d", value_parser = When::parse)]
    pub from: When,
    /// Where it ends.
    #[arg(long, value_name = "T", default_value = "now", value_parser = When::parse)]
    pub to: When,
    /// Time between two samples that are asked for, 5s to 5m; best what Prometheus scrapes at
    /// [default: 15s up to two days, else 30s or 60s].
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_millis)]
    pub step: Option<u64>,
    /// A file with the bearer token to show.
    #[arg(long, value_name = "FILE")]
    pub bearer_token_file: Option<PathBuf>,
    /// The only authority (PEM) that the server's certificate may come from [default: the
    /// system's].
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Deadline of one query, 100ms to 60s.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse_millis)]
    pub timeout: u64,
    /// Keep fetched answers here [default: ghostscaler/backtest in $XDG_CACHE_HOME or ~/.cache].
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// The engine: a name (`loadgen profiles` lists them) or a file [default: learned from the
    /// history].
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// GPUs of one replica [default: what DCGM's series say, else the profile, else 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub gpus: Option<u32>,
    /// Money for one GPU for one hour, in any currency.
    #[arg(long, value_name = "PRICE")]
    pub gpu_price: Option<f64>,
    /// Mean time from a pod's order to its first request [default: what the history shows, else
    /// the profile, else 2m].
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_millis)]
    pub cold_start: Option<u64>,
    /// How much of the beginning only warms up [default: an hour, at most a quarter].
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_millis)]
    pub warmup: Option<u64>,
    /// Policies beside the history, a static fleet and the clairvoyant; `simulate` has the names.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "ghostscaler,hpa-queue,hpa-concurrency"
    )]
    pub policy: Vec<String>,
    /// Fewest replicas.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=250))]
    pub min: u32,
    /// Most replicas [default: 1.25 × what the busiest minute needs, at least the history's most].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=250))]
    pub max: Option<u32>,
    /// Time-to-first-token target.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse_millis)]
    pub slo_ttft: u64,
    /// Time-per-output-token target.
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = duration::parse_millis)]
    pub slo_tpot: u64,
    /// The share of requests within their targets that is asked for.
    #[arg(long, value_name = "SHARE", default_value_t = 0.99)]
    pub bar: f64,
    /// Settles everything random.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write a page with plots to this file.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// How to print the results.
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: Output,
    /// Where caches are, by the XDG base directory specification.
    #[arg(long, hide = true, env = "XDG_CACHE_HOME", hide_env_values = true)]
    pub xdg_cache_home: Option<PathBuf>,
    /// The user's home directory.
    #[arg(long, hide = true, env = "HOME", hide_env_values = true)]
    pub home: Option<PathBuf>,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// A table of 80 columns.
    Table,
    /// One JSON object.
    Json,
}

impl Args {
    /// Checks what can be checked without asking anybody.
    ///
    /// # Errors
    ///
    /// [`Error::Flag`] with the first value that makes no sense.
    pub(super) fn check(&self) -> Result<(), Error> {
        let price = self.gpu_price.unwrap_or(1.0);
        let millis = |millis: u64| duration::format_millis(millis);
        let wrong = |flag, value: String, expected| Err(Error::Flag { flag, value, expected });
        if self.workload.is_empty() {
            return wrong("workload", String::new(), "the workload's name");
        }
        if !(0.0..=1e6).contains(&price) {
            return wrong("gpu-price", price.to_string(), "a price from 0 to 1000000");
        }
        if !(0.5..=1.0).contains(&self.bar) {
            return wrong("bar", self.bar.to_string(), "0.5 to 1");
        }
        if let Some(max) = self.max.filter(|max| *max < self.min) {
            return wrong("max", max.to_string(), "at least --min");
        }
        let limits = [
            ("step", self.step.unwrap_or(15_000), STEPS_MS, "5s to 5m"),
            ("cold-start", self.cold_start.unwrap_or(0), 0..=7_200_000, "at most two hours"),
            ("slo-ttft", self.slo_ttft, 1..=600_000, "1ms to 10m"),
            ("slo-tpot", self.slo_tpot, 1..=60_000, "1ms to 1m"),
        ];
        for (flag, value, range, expected) in limits {
            if !range.contains(&value) {
                return wrong(flag, millis(value), expected);
            }
        }
        Ok(())
    }

    /// The span, cut at the present.
    ///
    /// # Errors
    ///
    /// [`Error::Order`] when it does not end after its beginning, [`Error::Flag`] when it is too
    /// short or too long.
    pub(super) fn span(&self, now: Moment) -> Result<Span, Error> {
        let (from, to) = (self.from.at(now), self.to.at(now));
        if from >= to {
            return Err(Error::Order { from, to });
        }
        let to = to.min(now);
        let length_ms = to.millis_since(from);
        if let Some(warmup_ms) = self.warmup.filter(|warmup_ms| *warmup_ms > length_ms / 2) {
            return Err(Error::Flag {
                flag: "warmup",
                value: duration::format_millis(warmup_ms),
                expected: "at most half of the time from --from to --to",
            });
        }
        if !(SHORTEST_MS..=LONGEST_MS).contains(&length_ms) {
            return Err(Error::Flag {
                flag: "from",
                value: self.from.to_string(),
                expected: "30 minutes to 31 days before --to, and in the past",
            });
        }
        Ok(Span::new(from, to, self.step))
    }

    /// The server, as the configuration file of `serve` would have it.
    pub(super) fn server(&self) -> PrometheusConfig {
        PrometheusConfig {
            name: "backtest".to_owned(),
            url: self.prometheus.clone(),
            bearer_token_file: self.bearer_token_file.clone(),
            ca_file: self.ca_file.clone(),
            timeout_ms: self.timeout,
            matchers: std::collections::BTreeMap::new(),
        }
    }

    /// Where answers are kept.
    pub(super) fn cache_dir(&self) -> Option<PathBuf> {
        let own = |base: PathBuf| base.join("ghostscaler").join("backtest");
        let xdg = self.xdg_cache_home.clone().filter(|path| path.is_absolute());
        let home = || self.home.as_ref().map(|home| home.join(".cache"));
        self.cache.clone().or_else(|| xdg.or_else(home).map(own))
    }

    pub(super) fn slo(&self) -> Slo {
        Slo { ttft_s: self.slo_ttft as f64 / 1e3, tpot_s: self.slo_tpot as f64 / 1e3 }
    }
}
