//! The tick of each trigger: read, observe, decide, publish. One task a trigger, so that one
//! workload's fault or slowness is nobody else's.
//!
//! Must not answer RPCs or know their wire; what is decided leaves through the registry.

mod engines;
mod states;
mod upstreams;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::declog;
use crate::decision::{self, Decision, Health, Moment, Observation, Spec, State, Wake};
use crate::inventory::Workload;
use crate::metrics::TickMetrics;
use crate::observe::{Around, observe};
use crate::registry::{Published, Registry, Tracker, TrackerKey};
use crate::source::scrape::Scraper;
use crate::trigger::{Context, SourceKind};
use crate::web::WakeRequests;

pub use states::States;
pub use upstreams::Upstreams;

use engines::Engines;

/// What the ticks work with.
#[derive(Debug)]
pub struct Parts {
    /// Where triggers come from and decisions go.
    pub registry: Registry,
    /// Reads engines.
    pub scraper: Scraper,
    /// Everything else that is read; replaced when the configuration changes.
    pub upstreams: ArcSwap<Upstreams>,
    /// Wakes asked for through the API.
    pub wakes: WakeRequests,
    /// What was learned, by trigger.
    pub states: States,
    /// Where changed decisions are recorded.
    pub log: declog::Log,
    /// Counts and times of the ticks.
    pub metrics: TickMetrics,
    /// The process's clock.
    pub clock: Clock,
}

/// How often triggers that nobody asks for are looked for.
const IDLE_CHECK: Duration = Duration::from_secs(60);
/// First ticks are spread over this time, so that 10,000 workloads are not read in one instant.
const SPREAD_MS: u64 = 500;

/// Runs the tick of every tracked trigger until cancelled.
pub async fn run(parts: Arc<Parts>, cancel: CancellationToken) {
    let mut changes = parts.registry.changes();
    let mut tasks = JoinSet::new();
    let mut running: HashMap<TrackerKey, AbortHandle> = HashMap::new();
    loop {
        changes.mark_unchanged();
        let trackers = parts.registry.trackers();
        running.retain(|key, task| {
            let stays = trackers.binary_search_by(|tracker| tracker.key.cmp(key)).is_ok();
            if !stays {
                task.abort();
                parts.states.forget(key);
            }
            stays && !task.is_finished()
        });
        for tracker in trackers.iter() {
            if let Entry::Vacant(vacant) = running.entry(tracker.key.clone()) {
                let follow = follow(Arc::clone(&parts), Arc::clone(tracker), cancel.clone());
                vacant.insert(tasks.spawn(follow));
            }
        }
        tokio::select! {
            () = cancel.cancelled() => break,
            changed = changes.changed() => if changed.is_err() { break },
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                if let Err(error) = ended && error.is_panic() {
                    // Its trigger gets a new task above; the others never noticed.
                    warn!("a tick panicked and is started again");
                }
            }
            () = tokio::time::sleep(IDLE_CHECK) => parts.registry.drop_idle(),
        }
    }
    // A tick in the middle of a read gives up: its state is that of its last decision.
    tasks.shutdown().await;
}

async fn follow(parts: Arc<Parts>, tracker: Arc<Tracker>, cancel: CancellationToken) {
    let mut engines = Engines::default();
    let mut version = tracker.published.load().version;
    let state = parts.states.of(&tracker);
    let mut due = Instant::now() + Duration::from_millis(spread(&tracker.key));
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = sleep_until(due) => {}
            () = parts.wakes.requested(&tracker.key.workload) => {}
        }
        let started = Instant::now();
        let inventory = parts.registry.inventory();
        let Some(workload) = inventory.workloads.get(&tracker.key.workload) else { return };
        let upstreams = parts.upstreams.load_full();
        let spec = spec(&tracker, workload, &upstreams);
        engines.read(&parts, &upstreams, workload, &tracker.policy).await;
        let now = parts.clock.now();
        let around = around(&parts, &upstreams, &tracker, workload, &state, now);
        let reading = |member: &_| engines.reading(member, spec.tick_ms, now);
        let observation = observe(workload, reading, around, now);

        let deciding = Instant::now();
        let decision = state.decide(&parts.log, &tracker.key, &spec, &observation, now);
        parts.metrics.decided(deciding.elapsed());
        let next_tick_ms = decision.next_tick_ms;
        tell(&tracker, &tracker.published.load().decision, &decision);
        version += 1;
        tracker.publish(Published {
            version,
            at: now,
            answer: decision.answer,
            decision: Some(Arc::new(decision)),
            spec: Some(Arc::new(spec)),
        });
        parts.metrics.ticked(started.elapsed());
        due = started + Duration::from_millis(next_tick_ms.max(MIN_TICK_MS));
    }
}

/// The tick never spins, whatever a decision asks for.
const MIN_TICK_MS: u64 = 200;

fn spec(tracker: &Tracker, workload: &Workload, upstreams: &Upstreams) -> Spec {
    tracker.policy.spec(
        workload,
        Context { default_source: SourceKind::Pods, wake_sources: upstreams.wake_source_names() },
    )
}

fn spread(key: &TrackerKey) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() % SPREAD_MS
}
