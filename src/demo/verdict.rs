//! The verdict: the lanes beside each other, as text or JSON, and why they differ.
//!
//! Must not judge by anything but the scores.

use std::io::{self, Write};

use loadgen::engine::Profile;
use serde::Serialize;

use super::cluster::{Score, TPOT_MS, TTFT_MS};
use super::rival::{Run, Signal, best};
use super::screen::clock;
use super::story::{Part, Story};
use super::timeline::{COLUMNS, Timeline, bars, load};
use super::{MAX, START};
use crate::text::wrapped;

/// What the table's least obvious columns count.
const LEGEND: &str =
    "dips kept: no replica let go in them; held: waited while no replica was ready";

/// One lane and what it came to.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Lane {
    pub(super) name: &'static str,
    /// The trigger's target; ours has none to choose.
    pub(super) target: Option<u32>,
    #[serde(flatten)]
    pub(super) score: Score,
    pub(super) timeline: Timeline,
}

/// The parameters of the run.
#[derive(Debug, Clone, Serialize)]
struct Scenario {
    seed: u64,
    profile: String,
    gpus_per_replica: usize,
    max_replicas: u32,
    seconds: u32,
    requests: usize,
    slo_ttft_ms: u64,
    slo_tpot_ms: u64,
    level: f64,
    dips: usize,
    parts: Vec<Part>,
    load_per_s: Vec<f64>,
}

/// One run of the sweep.
#[derive(Debug, Clone, Serialize)]
struct Swept {
    lane: &'static str,
    target: u32,
    attainment: f64,
    gpu_hours: f64,
}

/// Everything that is printed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Verdict {
    scenario: Scenario,
    lanes: Vec<Lane>,
    sweep: Vec<Swept>,
    /// No other lane attains as much for as few GPU-hours.
    unbeaten: bool,
    why: String,
}

impl Verdict {
    /// Sets the lanes beside each other; ours comes first.
    pub(super) fn new(story: &Story, profile: &Profile, ours: Lane, runs: &[Run]) -> Verdict {
        let scenario = Scenario {
            seed: story.seed,
            profile: profile.about.clone(),
            gpus_per_replica: profile.gpus,
            max_replicas: MAX,
            seconds: story.seconds,
            requests: story.arrivals.len(),
            slo_ttft_ms: TTFT_MS,
            slo_tpot_ms: TPOT_MS,
            level: story.level,
            dips: story.dips().len(),
            parts: story.parts.clone(),
            load_per_s: load(story),
        };
        let ours_score = ours.score;
        let mut lanes = vec![ours];
        for signal in Signal::ALL {
            if let Some(run) = best(runs, signal, ours_score.attainment) {
                lanes.push(Lane {
                    name: signal.name(),
                    target: Some(run.target),
                    score: run.score,
                    timeline: run.timeline.clone(),
                });
            }
        }
        let sweep = runs.iter().map(|run| Swept {
            lane: run.signal.name(),
            target: run.target,
            attainment: run.score.attainment,
            gpu_hours: run.score.gpu_hours,
        });
        let beats = |run: &Run| {
            run.score.attainment >= ours_score.attainment
                && run.score.gpu_hours <= ours_score.gpu_hours
        };
        let why = why(&lanes);
        Verdict { scenario, sweep: sweep.collect(), unbeaten: !runs.iter().any(beats), lanes, why }
    }

    /// Writes it for a person, within 80 columns.
    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let scenario = &self.scenario;
        writeln!(
            out,
            "{} requests in {} h {} min on {}, seed {}\n",
            scenario.requests,
            scenario.seconds / 3_600,
            scenario.seconds % 3_600 / 60,
            scenario.profile,
            scenario.seed,
        )?;
        self.print_pictures(out)?;
        self.print_table(out)?;
        self.print_sweep(out)?;
        let verdict = if self.unbeaten {
            "No other lane attains as much for as few GPU-hours."
        } else {
            "Another lane attains as much for no more GPU-hours: see the sweep."
        };
        write!(out, "\n{verdict}\n\n{}", wrapped("", "", &self.why))
    }

    /// Beside each row stands its highest value.
    fn print_pictures(&self, out: &mut impl Write) -> io::Result<()> {
        let load = &self.scenario.load_per_s;
        let peak = load.iter().copied().fold(0.0, f64::max);
        let end = START.plus_millis(u64::from(self.scenario.seconds) * 1_000);
        let axis = COLUMNS as usize - 5;
        writeln!(out, "{:11}{:axis$}{}  most", "", clock(START), clock(end))?;
        writeln!(out, "{:11}{} {peak:5.1}/s", "load", bars(load.iter().copied(), peak))?;
        let queues = self.lanes.iter().flat_map(|lane| &lane.timeline.queue);
        let longest = queues.copied().max().unwrap_or(0);
        for lane in &self.lanes {
            writeln!(out, "{}", lane.title())?;
            let mut row = |label, values: &[u32], largest| {
                let bars = bars(values.iter().map(|&n| f64::from(n)), f64::from(largest));
                let most = values.iter().max().copied().unwrap_or(0);
                writeln!(out, "{label:11}{bars} {most:5}")
            };
            row("  ready", &lane.timeline.ready, MAX)?;
            row("  queue", &lane.timeline.queue, longest)?;
        }
        writeln!(out)
    }

    fn print_table(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{:18}{:>9}{:>11}{:>8}{:>7}{:>11}{:>7}{:>6}",
            "Lane", "in SLO", "GPU-hours", "starts", "flaps", "dips kept", "lost", "held"
        )?;
        for lane in &self.lanes {
            let score = &lane.score;
            writeln!(
                out,
                "{:18}{:>7.2} %{:>11.2}{:>8}{:>7}{:>11}{:>7}{:>6}",
                lane.title(),
                score.attainment * 100.0,
                score.gpu_hours,
                score.cold_starts,
                score.flaps,
                format!("{}/{}", score.dips_held, self.scenario.dips),
                score.lost,
                score.held,
            )?;
        }
        writeln!(out, "{LEGEND}\n")
    }

    fn print_sweep(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "Every target of the other lanes on this story (requests a replica):")?;
        for signal in Signal::ALL {
            writeln!(out, "{}", signal.name())?;
            let own: Vec<&Swept> =
                self.sweep.iter().filter(|run| run.lane == signal.name()).collect();
            for row in own.chunks(3) {
                let cells = row.iter().map(|run| {
                    let percent = run.attainment * 100.0;
                    format!("  {:>3}: {percent:6.2} % {:5.2} h", run.target, run.gpu_hours)
                });
                writeln!(out, "{}", cells.collect::<String>())?;
            }
        }
        Ok(())
    }
}

impl Lane {
    fn title(&self) -> String {
        match self.target {
            Some(target) => format!("{} {target}", self.name),
            None => self.name.to_owned(),
        }
    }
}

/// Why the lanes differ, from their scores.
fn why(lanes: &[Lane]) -> String {
    let Some((ours, others)) = lanes.split_first() else { return String::new() };
    let mut text = format!(
        "ghostscaler was given no threshold: it learned from the engines' own counters what a \
         request costs, kept {:.2} % of the requests within {} s to the first token and {} ms a \
         token, and slept when nobody came; the {} requests that met it asleep were held and \
         answered.",
        ours.score.attainment * 100.0,
        TTFT_MS / 1_000,
        TPOT_MS,
        ours.score.held,
    );
    for lane in others {
        let cost = (lane.score.gpu_hours / ours.score.gpu_hours - 1.0) * 100.0;
        let (word, cost) = if cost < 0.0 { ("fewer", -cost) } else { ("more", cost) };
        let reason = match lane.name {
            "queue-depth" => {
                "a queue is there only when capacity is short already, and gone once it suffices, \
                 so it says nothing of how much is needed"
            }
            _ => {
                "requests in flight grow faster than the load they stand for, and the HPA keeps \
                 the highest reading of five minutes"
            }
        };
        text.push_str(&format!(
            " At its best target {} attained {:.2} % for {cost:.0} % {word} GPU-hours, with {} \
             cold starts and {} flaps: {reason}.",
            lane.title(),
            lane.score.attainment * 100.0,
            lane.score.cold_starts,
            lane.score.flaps,
        ));
    }
    text
}
