//! The tick of each trigger: read, observe, decide, publish. One task a trigger, so that one
//! workload's fault or slowness is nobody else's.
//!
//! Must not answer RPCs or know their wire; what is decided leaves through the registry.

mod crowd;
mod engines;
mod states;
mod stepped;
mod upstreams;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::{Instant, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::clock::Clock;
use crate::decision::{Answer, COLD_START_UNSEEN_MS, Moment, Wake, WakeReading};
use crate::declog::{self, DecisionLog, Record, is_news};
use crate::health::Pulse;
use crate::inventory::{Workload, WorkloadKey};
use crate::lead::Lead;
use crate::metrics::Metrics;
use crate::observe::{Around, observe};
use crate::registry::{Published, Registry, Tracker, TrackerKey};
use crate::source::scrape::Scraper;
use crate::web::WakeRequests;

pub use states::States;
pub use stepped::Stepped;
pub use upstreams::{Error as UpstreamsError, Upstreams};

use crowd::Crowd;
use engines::Engines;
use states::Cell;

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
    /// Where changed decisions are recorded, if anywhere.
    pub log: Option<DecisionLog>,
    /// Counts and times of the ticks.
    pub metrics: Metrics,
    /// Whether this process decides.
    pub lead: Lead,
    /// The process's clock.
    pub clock: Clock,
}

/// How often the supervisor shows that it lives.
const BEAT: Duration = Duration::from_secs(1);
/// Time between the first ticks of two triggers that are found together: 10,000 take the 5 s between
/// two ticks, so that they are neither read in one instant nor for ever in one burst.
const START_INTERVAL: Duration = Duration::from_micros(500);
/// Ticks begin on a common grid: thousands a second that wake the process one by one cost more in
/// context switches than in decisions.
const GRID: Duration = Duration::from_millis(50);
/// The tick never spins, whatever a decision asks for.
const MIN_TICK_MS: u64 = 200;

/// Counts that the Kubernetes API has not kept fresh for this long count as not read: a watch that
/// is only resumed takes 15 s at most.
const STALE_COUNTS_MS: u64 = 30_000;

/// How long a tick that has ended by itself is left ended: what made it panic would mostly do so
/// again at once.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// How often triggers that nobody asks for are looked for.
const DROP_IDLE_INTERVAL: Duration = Duration::from_secs(60);

/// Runs the tick of every tracked trigger until cancelled.
pub async fn run(parts: Arc<Parts>, pulse: Pulse, cancel: CancellationToken) {
    let mut changes = parts.registry.changes();
    let mut tasks = JoinSet::new();
    let mut running: Vec<Running> = Vec::new();
    let mut stale = true;
    let mut restart_at = None;
    let mut idle = interval(DROP_IDLE_INTERVAL);
    let grid = Grid(Instant::now());
    let crowd = Arc::new(Crowd::default());
    let mut told = interval(crowd::WINDOW);
    loop {
        if std::mem::take(&mut stale) {
            changes.mark_unchanged();
            supervise(&parts, grid, &crowd, &mut tasks, &mut running);
        }
        tokio::select! {
            () = cancel.cancelled() => break,
            changed = changes.changed() => {
                if changed.is_err() { break }
                stale = true;
            }
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                if let Err(error) = ended && error.is_panic() {
                    // It gets a new task; the other workloads never notice.
                    let workload = whose(&running, error.id()).map(tracing::field::display);
                    error!(workload, "a tick panicked and is started again");
                }
                restart_at.get_or_insert_with(|| Instant::now() + RESTART_PAUSE);
            }
            () = sleep_until(restart_at.unwrap_or_else(Instant::now)), if restart_at.is_some() => {
                restart_at = None;
                stale = true;
            }
            () = parts.wakes.arrived() => nudge_woken(&parts, &mut running),
            _ = idle.tick() => {
                parts.registry.drop_idle();
                parts.states.forget_gone(parts.clock.now());
            }
            _ = told.tick() => crowd.turn(),
            () = sleep(BEAT) => {}
        }
        pulse.beat();
    }
    // A tick in the middle of a read gives up: its state is that of its last decision.
    tasks.shutdown().await;
    crowd.turn();
}

/// The instants at which ticks begin, counted from the first.
#[derive(Debug, Clone, Copy)]
struct Grid(Instant);

impl Grid {
    /// The instant of the grid that is nearest: a tick that is a little late makes the next one no
    /// later.
    fn nearest(self, instant: Instant) -> Instant {
        let since = instant.saturating_duration_since(self.0) + GRID / 2;
        let steps = since.as_nanos() / GRID.as_nanos();
        self.0 + GRID * u32::try_from(steps).unwrap_or(u32::MAX)
    }
}

/// Keeps what a tick would need at once, where another process decides: the wake sources are read on, so
/// that a request that comes while nobody leads is known to whoever leads next; and what is remarked of
/// a policy can be told. To be called more often than once a minute.
pub fn stand_by(parts: &Parts) {
    let upstreams = parts.upstreams.load_full();
    let inventory = parts.registry.inventory();
    let (nobody, now) = (Arc::default(), parts.clock.now());
    for tracker in parts.registry.trackers().iter() {
        let Some(workload) = inventory.workloads.get(&tracker.key.workload) else { continue };
        let remarks = tracker.policy.remarks(workload, upstreams.context());
        tracker.remarks.store((!remarks.is_empty()).then(|| Arc::new(remarks)));
        // Only asking keeps it read.
        let _: Option<WakeReading> = upstreams.wake(tracker, &nobody, now);
    }
}

/// The task of one trigger.
struct Running {
    key: TrackerKey,
    task: AbortHandle,
    nudge: Arc<Notify>,
    /// The wake request that it was last told of.
    woken_at: Option<Moment>,
}

/// The workload that a task follows.
fn whose(running: &[Running], task: Id) -> Option<&WorkloadKey> {
    let running = running.iter().find(|running| running.task.id() == task);
    running.map(|running| &running.key.workload)
}

/// Asks for a tick of each workload that somebody wants awake.
fn nudge_woken(parts: &Parts, running: &mut [Running]) {
    for running in running {
        let woken_at = parts.wakes.last(&running.key.workload);
        if woken_at != running.woken_at {
            running.woken_at = woken_at;
            running.nudge.notify_one();
        }
    }
}

/// Starts the tasks of new triggers and ends those of triggers that are gone; those that run are kept in
/// the order of their keys.
fn supervise(
    parts: &Arc<Parts>,
    grid: Grid,
    crowd: &Arc<Crowd>,
    tasks: &mut JoinSet<()>,
    running: &mut Vec<Running>,
) {
    let trackers = parts.registry.trackers();
    running.retain(|running| !running.task.is_finished());
    let known = running.len();
    let is_known = |running: &[Running], key| {
        running[..known].binary_search_by(|running| running.key.cmp(key)).is_ok()
    };
    let mut first_due = Instant::now();
    for tracker in trackers.iter() {
        if !is_known(running, &tracker.key) {
            let nudge = Arc::new(Notify::new());
            // Taken before that of the trigger that this one replaces is put away below.
            let state = parts.states.of(tracker, parts.clock.now());
            let follow = Follow {
                parts: Arc::clone(parts),
                tracker: Arc::clone(tracker),
                state,
                nudge: Arc::clone(&nudge),
                crowd: Arc::clone(crowd),
                gpu_seen_at: gpu_was_seen(tracker).then(|| parts.clock.now()),
            };
            let due = grid.nearest(first_due);
            let mut paced = Paced { follow, engines: Engines::default(), grid, due };
            // Borrowed: a future keeps twice what it is given, and there are thousands of them.
            let task = tasks.spawn(async move { paced.run().await });
            first_due += START_INTERVAL;
            running.push(Running { key: tracker.key.clone(), task, nudge, woken_at: None });
        }
    }
    running.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    running.retain(|running| {
        let key = &running.key;
        let stays = trackers.binary_search_by(|tracker| tracker.key.cmp(key)).is_ok();
        if !stays {
            running.task.abort();
            parts.states.put_away(key, parts.clock.now());
        }
        stays
    });
    running.shrink_to_fit();
}

/// Whether the last leader knew the utilisation of its GPUs, so that it is lost until it is read here
/// and not absent.
fn gpu_was_seen(tracker: &Tracker) -> bool {
    let observed = tracker.observed.load();
    observed.as_ref().is_some_and(|observed| observed.gpu.was_seen())
}

/// Follows one trigger.
#[derive(Debug)]
struct Follow {
    parts: Arc<Parts>,
    tracker: Arc<Tracker>,
    state: Arc<Cell>,
    nudge: Arc<Notify>,
    crowd: Arc<Crowd>,
    /// When the utilisation of its GPUs was last known.
    gpu_seen_at: Option<Moment>,
}

/// Follows one trigger by the process's own time.
#[derive(Debug)]
struct Paced {
    follow: Follow,
    engines: Engines,
    grid: Grid,
    /// When the engines are read next.
    due: Instant,
}

impl Paced {
    /// Ends when the workload is gone.
    async fn run(&mut self) {
        let Paced { follow, engines, grid, due } = self;
        loop {
            let reads = tokio::select! {
                () = sleep_until(*due) => true,
                () = follow.nudge.notified() => false,
            };
            if !reads && follow.is_active() {
                continue;
            }
            let started = Instant::now();
            let Some(next_tick_ms) = follow.tick(engines, reads).await else { return };
            let next = started + Duration::from_millis(next_tick_ms.max(MIN_TICK_MS));
            let next = grid.nearest(next);
            *due = if reads { next } else { next.min(*due) };
        }
    }
}

impl Follow {
    /// Who is awake learns of more demand at its next tick.
    fn is_active(&self) -> bool {
        matches!(self.tracker.published.load().answer, Answer::Value { active: true, .. })
    }

    /// One tick; gives the time to the next in milliseconds, or nothing when the workload is gone.
    async fn tick(&mut self, engines: &mut Engines, reads: bool) -> Option<u64> {
        if reads {
            self.read(engines).await?;
        }
        self.decide(engines)
    }

    /// Reads the engines; nothing when the workload is gone. A wake has 500 ms, so it is decided
    /// while they are being read.
    async fn read(&mut self, engines: &mut Engines) -> Option<()> {
        let parts = Arc::clone(&self.parts);
        let tracker = Arc::clone(&self.tracker);
        let nudge = Arc::clone(&self.nudge);
        let upstreams = parts.upstreams.load_full();
        // Only this workload is kept while its engines are read, not the inventory around it.
        let key = &tracker.key.workload;
        let workload = Arc::clone(parts.registry.inventory().workloads.get(key)?);
        // Kept apart while it lasts: thousands of tasks wait for most of their time.
        let (policy, late) = (&tracker.policy, engines.under_way(parts.clock.now()));
        let mut reads = Box::pin(engines::read(&parts, &upstreams, &workload, policy, &late));
        let round = loop {
            tokio::select! {
                round = &mut reads => break round,
                () = nudge.notified() => if !self.is_active() {
                    self.decide(engines)?;
                },
            }
        };
        engines.record(round, &workload, parts.clock.now());
        Some(())
    }

    /// Decides by what is known now and publishes; gives the time to the next tick in milliseconds,
    /// or nothing when the workload is gone.
    fn decide(&mut self, engines: &Engines) -> Option<u64> {
        let parts = Arc::clone(&self.parts);
        if !parts.lead.decides() {
            // Another may have decided meanwhile; this task is about to be ended.
            return Some(MIN_TICK_MS);
        }
        let tracker = Arc::clone(&self.tracker);
        if tracker.is_retired() {
            // Gone, and perhaps back already: then its name is another's, who gets a task.
            return None;
        }
        let key = &tracker.key.workload;
        let upstreams = parts.upstreams.load_full();
        let inventory = parts.registry.inventory();
        let workload = &Arc::clone(inventory.workloads.get(key)?);
        let counts_are_stale = inventory
            .stale_since(&key.namespace)
            .is_some_and(|since| parts.clock.now().millis_since(since) >= STALE_COUNTS_MS);
        drop(inventory);

        let context = upstreams.context();
        self.crowd.note_remarks(&tracker, workload, context);
        let spec = tracker.policy.spec(workload, context);
        let now = parts.clock.now();
        let around = self.around(&upstreams, workload, engines, now);
        let reading = |member: &_| engines.reading(member, spec.tick_ms, now);
        let mut observation = observe(workload, reading, around, now);
        if counts_are_stale {
            // The last known count goes on in the state; what may be outdated lets nothing go.
            observation.replicas.spec = None;
        }
        let observation = Arc::new(observation);
        let previous = tracker.published.load_full();
        let known = previous.spec.as_ref().filter(|known| ***known == spec).map(Arc::clone);
        let spec = known.unwrap_or_else(|| parts.registry.share_spec(spec));

        let deciding = Instant::now();
        let decided = self.state.decide(parts.log.is_some(), &spec, &observation, now);
        parts.metrics.decided(deciding.elapsed());
        let decision = Arc::new(decided.decision);
        self.crowd.tell(&tracker, previous.decision.as_deref(), &decision);
        if observation.replicas.ready > 0 {
            parts.wakes.served(key);
        }
        if let (Some(log), Some(before)) = (&parts.log, decided.before)
            && is_news(previous.decision.as_deref(), &decision)
        {
            log.offer(Record {
                version: declog::VERSION,
                workload: tracker.key.workload.to_string(),
                trigger: tracker.key.trigger_id(),
                spec: Arc::clone(&spec),
                state: before,
                observation: Arc::clone(&observation),
                now,
                decision: Arc::clone(&decision),
            });
        }
        tracker.publish(Published {
            version: previous.version + 1,
            at: now,
            answer: decision.answer,
            decision: Some(Arc::clone(&decision)),
            spec: Some(spec),
        });
        tracker.observed.store(Some(observation));
        Some(decision.next_tick_ms)
    }

    fn around(
        &mut self,
        upstreams: &Upstreams,
        workload: &Workload,
        engines: &Engines,
        now: Moment,
    ) -> Around {
        let tracker = &self.tracker;
        let last = tracker.published.load();
        let lead_ms = last
            .decision
            .as_ref()
            .map_or(COLD_START_UNSEEN_MS, |decision| decision.inputs.cold_start_ms);
        let schedule = tracker.policy.warm_schedule.as_ref();
        Around {
            gpu: upstreams.gpu(
                workload,
                |member| engines.sleeps(member),
                &mut self.gpu_seen_at,
                now,
            ),
            wake: Wake {
                source: upstreams.wake(tracker, &self.nudge, now),
                requested_at: self.parts.wakes.last(&tracker.key.workload),
            },
            schedule_floor: schedule.map_or(0, |schedule| schedule.replicas_at(now, lead_ms)),
            by_hand: tracker.policy.by_hand.and_then(|by_hand| by_hand.replicas_at(now)),
        }
    }
}

#[cfg(test)]
mod tests;
