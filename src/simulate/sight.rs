//! What can be seen of the fleet from outside, and how old it is.
//!
//! Must not show anything that a scrape of the engines or the Kubernetes API would not.

use std::collections::VecDeque;

use loadgen::engine::{Time, ps_from_secs, secs_from_ps};

use super::fleet::{Fleet, Pod, State};
use super::policy::{EngineView, Latencies, PodView, Source, TPOT_BOUNDS_S, TTFT_BOUNDS_S};
use super::random::Random;
use crate::decision::{EngineSample, Moment, Phase};

/// The eyes of a policy.
#[derive(Debug)]
pub(super) struct Sight {
    source: Source,
    next_scrape: Time,
    /// Scraped, and not to be read before the moment.
    coming: VecDeque<(Time, Vec<EngineView>, Latencies)>,
    pods: Vec<PodView>,
    engines: Vec<EngineView>,
    latencies: Latencies,
    /// As they are, not as they have been read.
    live: Latencies,
}

impl Sight {
    pub(super) fn new(source: Source, start: Time, phases: &mut Random) -> Sight {
        let next_scrape = match source {
            Source::Direct => Time::MAX,
            Source::Prometheus { interval_s, .. } => {
                start.plus_ps(ps_from_secs(interval_s * phases.uniform()))
            }
        };
        Sight {
            source,
            next_scrape,
            coming: VecDeque::new(),
            pods: Vec::new(),
            engines: Vec::new(),
            latencies: Latencies::default(),
            live: Latencies::default(),
        }
    }

    /// When Prometheus scrapes next; [`Time::MAX`] without it.
    pub(super) fn next_scrape(&self) -> Time {
        self.next_scrape
    }

    /// Prometheus scrapes.
    pub(super) fn scrape(&mut self, fleet: &mut Fleet<'_>, now: Time) {
        let Source::Prometheus { interval_s, delay_s } = self.source else { return };
        let engines = Sight::sample_all(fleet, now);
        let seen_at = now.plus_ps(ps_from_secs(delay_s));
        self.coming.push_back((seen_at, engines, self.live.clone()));
        self.next_scrape = now.plus_ps(ps_from_secs(interval_s.max(0.1)));
    }

    /// Looks, before a tick.
    pub(super) fn look(&mut self, fleet: &mut Fleet<'_>, now: Time) {
        self.pods.clear();
        self.pods.extend(fleet.pods_mut().map(|pod| seen(pod)));
        self.pods.sort_unstable_by_key(|pod| pod.id);
        match self.source {
            Source::Direct => {
                self.engines = Sight::sample_all(fleet, now);
                self.latencies = self.live.clone();
            }
            Source::Prometheus { .. } => {
                while let Some((seen_at, ..)) = self.coming.front()
                    && *seen_at <= now
                {
                    if let Some((_, engines, latencies)) = self.coming.pop_front() {
                        (self.engines, self.latencies) = (engines, latencies);
                    }
                }
                // Series of a target that is gone end with it.
                let serves =
                    |id| self.pods.iter().any(|pod| pod.id == id && pod.phase == Phase::Ready);
                self.engines.retain(|engine| serves(engine.id));
            }
        }
    }

    pub(super) fn pods(&self) -> &[PodView] {
        &self.pods
    }

    pub(super) fn engines(&self) -> &[EngineView] {
        &self.engines
    }

    pub(super) fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// A request got its first token after so long.
    pub(super) fn first_token(&mut self, ttft_s: f64) {
        self.live.ttft[TTFT_BOUNDS_S.partition_point(|&bound| bound < ttft_s)] += 1;
    }

    /// A request ended, with so long between its tokens in the mean.
    pub(super) fn finished(&mut self, tpot_s: f64) {
        self.live.tpot[TPOT_BOUNDS_S.partition_point(|&bound| bound < tpot_s)] += 1;
    }

    fn sample_all(fleet: &mut Fleet<'_>, now: Time) -> Vec<EngineView> {
        let mut engines: Vec<EngineView> =
            fleet.pods_mut().filter_map(|pod| sample(pod, now)).collect();
        engines.sort_unstable_by_key(|engine| engine.id);
        engines
    }
}

fn sample(pod: &mut Pod, now: Time) -> Option<EngineView> {
    let State::Ready { since } = pod.state else { return None };
    let page = pod.engine.sample(now);
    let count = |count: u64| Some(count as f64);
    let sample = EngineSample {
        at: moment(now),
        waiting: Some(page.waiting as f64),
        waiting_deferred: Some(0.0),
        running: Some(page.running as f64),
        kv_usage: Some(page.kv_usage),
        kv_tokens: Some(pod.kv_tokens),
        prompt_tokens: count(page.computed_prompt_tokens),
        all_prompt_tokens: count(page.prompt_tokens),
        generated_tokens: count(page.generation_tokens),
        finished: count(page.finished),
        finished_generated_tokens: count(page.finished_generation_tokens),
        preemptions: count(page.preemptions),
        steps: count(page.steps),
        ttft_sum_s: Some(page.ttft_sum_s),
        ttft_count: count(page.ttft_count),
        itl_sum_s: Some(page.itl_sum_s),
        itl_count: count(page.itl_count),
        started_at: Some(moment(since)),
        ..EngineSample::default()
    };
    Some(EngineView {
        id: pod.id,
        ready_at_s: secs_from_ps(since.0),
        sample,
        busy_s: pod.engine.busy_s(now),
        queued_prompt_tokens: pod.engine.queued_prompt_tokens() as f64,
    })
}

fn seen(pod: &Pod) -> PodView {
    let (phase, ready_at_s) = match pod.state {
        State::Unplaced { .. } | State::Starting { .. } => (Phase::Starting, None),
        State::Ready { since } => (Phase::Ready, Some(secs_from_ps(since.0))),
        State::Draining { .. } | State::Gone => (Phase::Terminating, None),
    };
    PodView { id: pod.id, phase, created_at_s: secs_from_ps(pod.created.0), ready_at_s }
}

/// A moment of the run as the product has it.
fn moment(at: Time) -> Moment {
    Moment(i64::try_from(at.0 / loadgen::engine::PS_PER_MS).unwrap_or(i64::MAX))
}
