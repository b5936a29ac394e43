//! The flags of `simulate`, and what they come to.
//!
//! Must not simulate anything.

use std::path::PathBuf;

use loadgen::engine::Profile;
use loadgen::traces::{Curve, Format, Lengths, Options};

use super::cold::ColdStart;
use super::input::{self, Origin, Source};
use super::policy::Slo;
use super::process::Process;
use super::scenario::{Change, Scenario, stretched};
use super::supply::Nodes;
use super::{Error, Output};
use crate::duration;

/// Run policies on a trace and compare what they cost and how well they serve.
///
/// Every policy meets the same requests on simulated engines, with the delays of a real cluster.
/// Beside them stand the cheapest plan of somebody who knows the future, the smallest static fleet
/// and the fluid bound.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples.\n\n\
    Four days of counts of which the last counts, every policy, and a page to look at:\n  \
    ghostscaler simulate --trace days.csv --trace-format counts --lengths lengths.csv \\\n    \
    --warmup 3d --policy all --report day.html\n\n\
    A generated day after one of warm-up, ten seeds:\n  \
    ghostscaler simulate --generate flash --days 2 --warmup 1d --seeds 10\n\n\
    How settings transfer from one trace to another:\n  \
    ghostscaler simulate --trace a.csv --trace b.csv --trace-format csv \\\n    \
    --policy all --report matrix.html\n\n\
    Two workloads on sixteen GPUs:\n  \
    ghostscaler simulate --generate ramp --generate tails --scale 0.2 --gpu-budget 16")]
pub struct Args {
    /// The trace. Several are compared, or share --gpu-budget.
    #[arg(long, value_name = "FILE", required_unless_present = "generate")]
    pub trace: Vec<PathBuf>,
    /// The form of the trace; once for all traces or once for each.
    #[arg(long, value_name = "FORMAT", requires = "trace")]
    pub trace_format: Vec<Format>,
    /// A generated process instead of (or after) traces: step, ramp, flash, tails, reasoning,
    /// long-context, long-prompts, llm-d, or a file.
    #[arg(long, value_name = "NAME|FILE")]
    pub generate: Vec<String>,
    /// How often a generated process is run, one run after another; each of them is a day, but for
    /// llm-d's 40 minutes.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "generate",
        value_parser = clap::value_parser!(u16).range(1..=366))]
    pub days: u16,
    /// Lengths for traces of counts: any CSV with the columns input_tokens,output_tokens; once for
    /// all or once for each trace [default: prompts of 500 tokens, answers of 150].
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub lengths: Vec<PathBuf>,
    /// Length of a bin of a trace of counts.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = seconds,
        requires = "trace")]
    pub bin: f64,
    /// Multiply the rate: below 1 requests are left out, above 1 the trace is laid over itself;
    /// once for all or once for each trace and process [default: 1].
    #[arg(long, value_name = "FACTOR")]
    pub scale: Vec<f64>,
    /// How much of the beginning of the trace runs without counting.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = seconds)]
    pub warmup: f64,
    /// The share of each prompt that a prefix cache holds, in place of what the trace says: a share,
    /// or shares over time, such as 0-0.7@12h,0.7@12h.
    #[arg(long, value_name = "SHARES")]
    pub cached: Option<Curve>,
    /// The engine: a name (`loadgen profiles` lists them) or a file.
    #[arg(long, value_name = "NAME|FILE", default_value = "8b-a100")]
    pub profile: String,
    /// A rolling update to another model, GPU or engine version, so long after the trace's start;
    /// several may follow each other.
    #[arg(long, value_name = "TIME=PROFILE", value_parser = change)]
    pub change: Vec<(f64, String)>,
    /// By what share the engine becomes slower and faster in the course of a day.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub drift: f64,
    /// Multiply the time that the engine takes for each prompt and each generated token.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub token_cost: f64,
    /// Policies, by name, or `all`: ours at its defaults, and each baseline at its documented
    /// setting and at the best of its sweep.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "ghostscaler")]
    pub policy: Vec<String>,
    /// Run ours with each of its rules off, one at a time, too.
    #[arg(long)]
    pub ablations: bool,
    /// Fewest replicas; 0 allows zero, with a gateway that holds requests.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=250))]
    pub min: u32,
    /// Most replicas [default: 1.25 × what the busiest minute needs].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=250))]
    pub max: Option<u32>,
    /// Time-to-first-token target.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = seconds)]
    pub slo_ttft: f64,
    /// Time-per-output-token target.
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = seconds)]
    pub slo_tpot: f64,
    /// Mean time that a replica takes to load [default: what the profile says].
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    pub cold_start: Option<f64>,
    /// GPUs of nodes that always stand; for more a node is provisioned, which goes after ten minutes
    /// without a pod [default: as many as anybody asks for].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub standing_gpus: Option<u32>,
    /// How long a node takes to be there.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = seconds)]
    pub node_start: f64,
    /// Most GPUs at once. Several traces and processes share them: each is a workload of its own,
    /// and all run at the same time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub gpu_budget: Option<u32>,
    /// The share of requests within their targets that is asked for: what the clairvoyant, the
    /// static fleet and the best of a sweep have to attain.
    #[arg(long, value_name = "SHARE", default_value_t = 0.99)]
    pub bar: f64,
    /// Settles everything random.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Run so many seeds from --seed on, and report their means; references use the first.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub seeds: u64,
    /// Leave out the clairvoyant and the static fleet.
    #[arg(long)]
    pub no_references: bool,
    /// Write a page with plots to this file.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// How to print the results.
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: Output,
}

impl Args {
    /// What the numbers of the flags must be.
    pub(super) fn check(&self) -> Result<(), Error> {
        let cold_start = self.cold_start.unwrap_or(1.0);
        let ranges = [
            ("bar", self.bar, 0.5..=1.0, "0.5 to 1"),
            ("slo-ttft", self.slo_ttft, 0.001..=600.0, "1 ms to 10 min"),
            ("slo-tpot", self.slo_tpot, 0.001..=60.0, "1 ms to 1 min"),
            ("cold-start", cold_start, 0.0..=7_200.0, "at most two hours"),
            ("node-start", self.node_start, 0.0..=7_200.0, "at most two hours"),
            ("drift", self.drift, 0.0..=0.9, "0 to 0.9"),
            ("token-cost", self.token_cost, 0.01..=100.0, "0.01 to 100"),
        ];
        for (flag, value, range, expected) in ranges {
            if !range.contains(&value) {
                return Err(Error::Flag { flag, value, expected });
            }
        }
        if self.cached.as_ref().is_some_and(|cached| cached.peak_per_s() > 1.0) {
            let value = self.cached.as_ref().map_or(0.0, Curve::peak_per_s);
            return Err(Error::Flag { flag: "cached", value, expected: "shares of 0 to 1" });
        }
        match self.max {
            Some(max) if max < self.min => Err(Error::Bounds { min: self.min, max }),
            Some(_) | None => Ok(()),
        }
    }

    /// The requests of each trace, then of each process.
    pub(super) fn sources(&self) -> Result<Vec<Source>, Error> {
        let n = self.trace.len() + self.generate.len();
        let mut origins = Vec::new();
        for (index, path) in self.trace.iter().enumerate() {
            let of = (index, self.trace.len());
            let format = each("trace-format", &self.trace_format, of)?;
            let format = *format.ok_or_else(|| Error::NoFormat { path: path.clone() })?;
            let lengths = match each("lengths", &self.lengths, of)? {
                Some(path) => Lengths::load(path).map_err(input::Error::from)?,
                None => Options::default().lengths,
            };
            origins.push(Origin::File { path: path.clone(), format, bin_s: self.bin, lengths });
        }
        for name in &self.generate {
            let process = Process::load(name).map_err(input::Error::from)?;
            origins.push(Origin::Process { process, runs: self.days.into() });
        }
        let with_scale = |(index, origin)| {
            let scale = each("scale", &self.scale, (index, n))?.copied().unwrap_or(1.0);
            if !(1e-6..=1e4).contains(&scale) {
                let expected = "0.000001 to 10000";
                return Err(Error::Flag { flag: "scale", value: scale, expected });
            }
            Ok(Source { origin, scale, warmup_s: self.warmup, cached: self.cached.clone() })
        };
        origins.into_iter().enumerate().map(with_scale).collect()
    }

    /// The engine, and what becomes of it.
    pub(super) fn engine(&self) -> Result<(Profile, Scenario), Error> {
        let load = |name: &str| {
            let profile = Profile::load(name)?;
            if !loadgen::engine::Lean::can(&profile) {
                return Err(Error::Unsupported { profile: profile.name });
            }
            Ok(stretched(&profile, self.token_cost, 1.0))
        };
        let profile = load(&self.profile)?;
        let mut changes = Vec::new();
        for (at_s, name) in &self.change {
            let changed = load(name)?;
            if changed.gpus != profile.gpus {
                let (from, to) = (profile.name, changed.name);
                return Err(Error::Change { from, to });
            }
            changes.push(Change { at_s: *at_s, profile: changed });
        }
        changes.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        Ok((profile, Scenario { changes, drift: self.drift }))
    }

    pub(super) fn cold(&self, profile: &Profile) -> ColdStart {
        self.cold_start.map_or_else(|| ColdStart::of_profile(profile), ColdStart::of_mean)
    }

    pub(super) fn nodes(&self) -> Nodes {
        Nodes { standing: self.standing_gpus, start_s: self.node_start, budget: self.gpu_budget }
    }

    pub(super) fn slo(&self) -> Slo {
        Slo { ttft_s: self.slo_ttft, tpot_s: self.slo_tpot }
    }

    pub(super) fn seeds(&self) -> Vec<u64> {
        (self.seed..self.seed.saturating_add(self.seeds)).collect()
    }
}

/// The value of a flag for one of so many: given once for all or once for each.
fn each<'a, T>(
    flag: &'static str,
    values: &'a [T],
    (index, n): (usize, usize),
) -> Result<Option<&'a T>, Error> {
    match values.len() {
        0 => Ok(None),
        1 => Ok(values.first()),
        len if len == n => Ok(values.get(index)),
        len => Err(Error::Count { flag, len, n }),
    }
}

fn seconds(text: &str) -> Result<f64, duration::Error> {
    Ok(duration::parse_millis(text)? as f64 / 1e3)
}

fn change(text: &str) -> Result<(f64, String), String> {
    let expected = || "expected TIME=PROFILE, such as 12h=8b-h100".to_owned();
    let (at, profile) = text.split_once('=').ok_or_else(expected)?;
    if profile.is_empty() {
        return Err(expected());
    }
    let at_s = seconds(at).map_err(|error| error.to_string())?;
    Ok((at_s, profile.to_owned()))
}
