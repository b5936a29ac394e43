//! Runs one case: ours with every seed, the peers' sweeps and the clairvoyant with the first.
//!
//! Must not judge.

use std::io::Write as _;
use std::path::Path;

use ghostscaler::simulate::Catalog;
use ghostscaler::simulate::cold::ColdStart;
use ghostscaler::simulate::input::{self, Source};
use ghostscaler::simulate::policy::Slo;
use ghostscaler::simulate::row::Row;
use ghostscaler::simulate::study::{Load, Plan, Study, run_study};
use ghostscaler::simulate::supply::Nodes;
use ghostscaler::simulate::work::{Prices, Work};
use loadgen::engine::{Profile, Time};

use crate::cases::Case;
use crate::record::{Line, Record};

/// Replicas that the busiest minute shall need where more requests would not fit into memory: the least.
const PEAK_NEED_LEAST: f64 = 10.0;
/// How far from it is near enough.
const PEAK_NEAR: f64 = 0.1;

/// Measures a case.
pub(crate) fn measure(
    case: &Case,
    traces: &Path,
    most_seeds: usize,
    peers: &[String],
) -> anyhow::Result<Record> {
    let (profile, scenario) = (case.engine()?, case.scenario()?);
    let scale = match scale(case, traces, &profile, case.trace.peak_need) {
        Err(error) if matches!(error.downcast_ref(), Some(input::Error::TooMany)) => {
            scale(case, traces, &profile, PEAK_NEED_LEAST)?
        }
        scale => scale?,
    };
    let source = case.source(traces, scale)?;
    let seeds: Vec<u64> = (1..=case.seeds.min(most_seeds) as u64).collect();
    let ours = Catalog::new().select(&["ghostscaler".to_owned()])?;
    let mut peers = Catalog::new().select(peers)?;
    peers.retain(|candidate| candidate.policy != "ghostscaler");
    let plan = Plan {
        profile: &profile,
        cold: ColdStart::of_mean(case.cold_s),
        nodes: Nodes::default(),
        scenario: &scenario,
        slo: Slo { ttft_s: 2.0, tpot_s: 0.2 },
        min: 1,
        max: None,
        bar: case.trace.bar,
        candidates: &ours,
        references: true,
    };
    let study = study(&plan, &seeds, &source)?;
    let mut record = record(case, scale, &study)?;
    if !peers.is_empty() {
        let plan = Plan { candidates: &peers, references: false, ..plan };
        let rows = self::study(&plan, &seeds[..1], &source)?.rows();
        record.peers = rows.results.iter().chain(&rows.sweep).map(line).collect();
    }
    Ok(record)
}

/// The factor at which the busiest minute needs as many replicas as wanted.
fn scale(case: &Case, traces: &Path, profile: &Profile, peak_need: f64) -> anyhow::Result<f64> {
    let prices = [(Time::ZERO, Prices::loaded(profile))];
    let mut scale = 1.0;
    for _ in 0..3 {
        let workload = case.source(traces, scale)?.read(most_tokens(profile), 1)?;
        let need = Work::of(&workload, &prices).peak_need();
        if (need / peak_need - 1.0).abs() < PEAK_NEAR {
            break;
        }
        // Three digits are enough, and can be repeated by hand.
        let wanted: f64 = scale * peak_need / need;
        let digits = 10_f64.powf(wanted.log10().floor() - 2.0);
        scale = (wanted / digits).round() * digits;
    }
    Ok(scale)
}

fn most_tokens(profile: &Profile) -> usize {
    profile.limits.max_model_tokens.min(profile.kv_tokens())
}

fn study(plan: &Plan<'_>, seeds: &[u64], source: &Source) -> Result<Study, input::Error> {
    let read = |seed| source.read(most_tokens(plan.profile), seed);
    let load = Load { name: source.name(), read: &read };
    let told = |what: &str, done: usize, of: usize| {
        if of > 0 && done.is_multiple_of(of.div_ceil(4)) {
            drop(writeln!(std::io::stderr(), "  {what} {done} of {of}"));
        }
    };
    run_study(plan, seeds, &load, &told)
}

fn record(case: &Case, scale: f64, study: &Study) -> anyhow::Result<Record> {
    let rows = study.rows();
    let scene = &study.scene;
    let of = |policy: &str| rows.references.iter().find(|row| row.policy == policy);
    let ours = rows.results.first().ok_or_else(|| anyhow::anyhow!("ours was not run"))?;
    Ok(Record {
        case: case.name(),
        trace: case.trace.name.to_owned(),
        plain: case.is_plain(),
        scale,
        requests: scene.requests,
        hours: scene.hours,
        gpus: scene.gpus,
        peak_need: scene.peak_need,
        bar: scene.bar,
        seeds: scene.seeds.len(),
        clairvoyant: of("clairvoyant").map(|row| row.gpu_hours),
        other_clairvoyant: None,
        fixed: of("static").map(|row| row.gpu_hours),
        ours: line(ours),
        worst: ours.attainment_worst,
        learned_after_s: ours.learned_within_10_percent_after_s,
        peers: Vec::new(),
    })
}

fn line(row: &Row) -> Line {
    Line {
        policy: row.policy.clone(),
        setting: row.setting.clone(),
        why: row.why.to_owned(),
        attainment: row.attainment,
        attainment_raw: row.attainment_raw,
        gpu_hours: row.gpu_hours,
        cold_starts: row.cold_starts,
        flaps: row.flaps,
    }
}
