//! Reads one wake source for the workloads that name it: four times a second for those that sleep,
//! and at the tick's own pace for the others.
//!
//! Must not decide whether a workload wakes: it remembers what was seen and asks for a tick when
//! demand has come.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use super::kept::kept_running;
use crate::clock::Clock;
use crate::decision::{Answer, Moment, WakeReading, Why};
use crate::metrics::Metrics;
use crate::registry::{Tracker, TrackerKey};
use crate::source::Error;
use crate::source::wake::{Subject, WakeMemory, WakeSource};

/// Time between two reads. A wake has to be pushed within 500 ms of its request: this, the read,
/// the decision and the push.
const INTERVAL: Duration = Duration::from_millis(250);
/// Time between two reads for who is awake, and learns of more demand at its next tick: the fastest.
const AWAKE_INTERVAL_MS: u64 = 1_000;
/// Longest time for which a question is left alone that is not answered in time: while the waking of
/// one workload is in doubt for so long, some thirty others may hang as well before they hold all of
/// a source's turns.
const MAX_REST_MS: u64 = 30_000;
/// A workload is read for this long after its last tick: four of the slowest.
const FOLLOWED_MS: u64 = 60_000;
/// A reading older than this says nothing: three of the slowest ticks.
const STALE_MS: u64 = 45_000;

/// The reader of one wake source. Its task ends with it.
#[derive(Debug)]
pub(super) struct Reader {
    shared: Arc<Shared>,
    /// None on a stepped clock.
    _task: Option<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    source: WakeSource,
    metrics: Metrics,
    clock: Clock,
    followers: Followers,
}

type Followers = Mutex<HashMap<TrackerKey, Follower>>;

/// One workload that names the source.
#[derive(Debug)]
struct Follower {
    tracker: Arc<Tracker>,
    memory: WakeMemory,
    reading: WakeReading,
    read_at: Moment,
    followed_at: Moment,
    nudge: Arc<Notify>,
    is_being_read: bool,
    rests_until: Moment,
    /// Reads in succession that have failed slowly.
    n_slow_failures: u32,
}

impl Follower {
    fn is_due(&self, now: Moment) -> bool {
        if self.is_being_read || now < self.rests_until {
            return false;
        }
        let sleeps =
            !matches!(self.tracker.published.load().answer, Answer::Value { active: true, .. });
        let is_new = self.reading == WakeReading::Unknown { why: Why::NotYetRead };
        sleeps || is_new || now.millis_since(self.read_at) >= AWAKE_INTERVAL_MS
    }
}

impl Reader {
    pub(super) fn start(source: WakeSource, metrics: Metrics, clock: Clock) -> Reader {
        let shared = Shared { source, metrics, clock, followers: Followers::default() };
        let shared = Arc::new(shared);
        let task = || {
            let shared = Arc::clone(&shared);
            kept_running("wake source", move || read_all(Arc::clone(&shared)))
        };
        Reader { _task: (!clock.is_stepped()).then(task), shared }
    }

    /// Reads it now: on a stepped clock nobody else does.
    pub(super) async fn read(&self) {
        read_due(&self.shared).await;
    }

    /// What the source last said of a workload. From now on `nudge` is told when demand comes.
    pub(super) fn reading(
        &self,
        tracker: &Arc<Tracker>,
        nudge: &Arc<Notify>,
        now: Moment,
    ) -> WakeReading {
        let mut followers = lock(&self.shared.followers);
        let follower = match followers.entry(tracker.key.clone()) {
            Entry::Vacant(vacant) => vacant.insert(Follower {
                tracker: Arc::clone(tracker),
                memory: WakeMemory::default(),
                reading: WakeReading::Unknown { why: Why::NotYetRead },
                read_at: now,
                followed_at: now,
                nudge: Arc::clone(nudge),
                is_being_read: false,
                rests_until: now,
                n_slow_failures: 0,
            }),
            Entry::Occupied(known) => {
                let known = known.into_mut();
                known.followed_at = now;
                // The trigger may have gone and come again, and so may its task.
                known.tracker = Arc::clone(tracker);
                known.nudge = Arc::clone(nudge);
                known
            }
        };
        if now.millis_since(follower.read_at) >= STALE_MS {
            return WakeReading::Unknown { why: Why::Timeout };
        }
        follower.reading
    }
}

/// Each question has its own pace: one that hangs holds up no other.
async fn read_all(shared: Arc<Shared>) {
    // Whatever was being read before a panic is read no more.
    lock(&shared.followers).values_mut().for_each(|follower| follower.is_being_read = false);
    let mut rounds = interval(INTERVAL);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reads = FuturesUnordered::new();
    loop {
        tokio::select! {
            _ = rounds.tick() => reads.extend(due(&shared).into_iter().map(|due| read(&shared, due))),
            Some(()) = reads.next() => {}
        }
    }
}

/// Reads what is due, once.
async fn read_due(shared: &Shared) {
    join_all(due(shared).into_iter().map(|due| read(shared, due))).await;
}

/// Who is to be read now, by their questions.
fn due(shared: &Shared) -> Vec<Vec<Arc<Tracker>>> {
    let now = shared.clock.now();
    let mut followers = lock(&shared.followers);
    followers.retain(|_, follower| now.millis_since(follower.followed_at) < FOLLOWED_MS);
    let mut by_question = BTreeMap::<String, Vec<Arc<Tracker>>>::new();
    for follower in followers.values_mut().filter(|follower| follower.is_due(now)) {
        follower.is_being_read = true;
        let question = shared.source.question(&subject(&follower.tracker));
        by_question.entry(question).or_default().push(Arc::clone(&follower.tracker));
    }
    by_question.into_values().collect()
}

fn subject(tracker: &Tracker) -> Subject<'_> {
    let key = &tracker.key.workload;
    let model = tracker.policy.model_name.as_deref();
    Subject { namespace: &key.namespace, name: &key.name, model }
}

async fn read(Shared { source, metrics, clock, followers }: &Shared, due: Vec<Arc<Tracker>>) {
    let subjects: Vec<Subject<'_>> = due.iter().map(|tracker| subject(tracker)).collect();
    let started = Instant::now();
    let read = source.read(&subjects).await;
    let took = started.elapsed();
    let failed = read.iter().find_map(|read| read.as_ref().err()).map(|error| error.why());
    metrics.scraped(took, failed);
    let now = clock.now();
    let mut followers = lock(followers);
    for (tracker, demand) in due.iter().zip(&read) {
        let Some(follower) = followers.get_mut(&tracker.key) else { continue };
        follower.n_slow_failures = match demand {
            // Others have hung, not this question.
            Err(error) if matches!(**error, Error::NoTurn { .. }) => follower.n_slow_failures,
            // Nobody's turn is at stake where all ask the same.
            Err(_) if took >= INTERVAL && due.len() == 1 => {
                follower.n_slow_failures.saturating_add(1)
            }
            Err(_) | Ok(_) => 0,
        };
        follower.is_being_read = false;
        follower.rests_until = now.plus_millis(rest_ms(took, follower.n_slow_failures));
        let demand = demand.as_ref().map_err(|error| error.why());
        let reading = follower.memory.take(source.kind(), demand, now);
        if has_come(follower.reading, reading) {
            follower.nudge.notify_one();
        }
        follower.reading = reading;
        follower.read_at = now;
    }
}

/// How long a question is left alone after its answer, in milliseconds. One that takes longer than
/// the interval rests for as long as it took: waking shall never be more than half of a server's
/// work. One that fails so again and again rests twice as long each time.
fn rest_ms(took: Duration, n_slow_failures: u32) -> u64 {
    if took < INTERVAL {
        return 0;
    }
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    took_ms.saturating_mul(1 << n_slow_failures.saturating_sub(1).min(16)).min(MAX_REST_MS)
}

/// Whether demand has come between two readings.
fn has_come(before: WakeReading, after: WakeReading) -> bool {
    let WakeReading::Fresh { queued, last_arrival_at } = after else { return false };
    match before {
        WakeReading::Fresh { queued: was, last_arrival_at: arrived } => {
            queued > was || last_arrival_at > arrived
        }
        WakeReading::Unknown { .. } => queued > 0.0 || last_arrival_at.is_some(),
    }
}

fn lock(followers: &Followers) -> MutexGuard<'_, HashMap<TrackerKey, Follower>> {
    followers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Replicas;
    use crate::inventory::{Counted, Inventory, Kubernetes, Workload, WorkloadKey};
    use crate::registry::{Caller, Limits, Registry, Rpc};

    fn tracker(name: &str, spec: u32, clock: Clock) -> Arc<Tracker> {
        let key = WorkloadKey::new("a", name);
        let workload = Workload {
            key: key.clone(),
            min: 0,
            max: 8,
            fallback_replicas: None,
            triggers: vec![BTreeMap::new()],
            replicas: Replicas { spec: Some(spec), ..Replicas::default() },
            members: Vec::new(),
            counted: Counted::ByKubernetes,
            gpus_per_replica: None,
            paused: false,
            kubernetes: Kubernetes::default(),
        };
        let registry = Registry::new(Limits::default(), clock);
        let workloads = [(key, Arc::new(workload))].into();
        registry.set_inventory(Arc::new(Inventory {
            synced: true,
            workloads,
            ..Inventory::default()
        }));
        registry.lookup("a", name, &HashMap::new(), Caller::Poll, Rpc::IsActive).unwrap()
    }

    #[tokio::test]
    async fn who_sleeps_is_read_each_time_and_who_is_awake_once_a_second() {
        let clock = Clock::start();
        let at = clock.now();
        for (spec, after_250_ms) in [(0, true), (1, false)] {
            let mut follower = Follower {
                tracker: tracker("b", spec, clock),
                memory: WakeMemory::default(),
                reading: WakeReading::Unknown { why: Why::NotYetRead },
                read_at: at,
                followed_at: at,
                nudge: Arc::default(),
                is_being_read: false,
                rests_until: at,
                n_slow_failures: 0,
            };
            assert!(follower.is_due(at), "{spec}: not read at all yet");
            follower.reading = WakeReading::Unknown { why: Why::Timeout };
            assert_eq!(follower.is_due(at.plus_millis(250)), after_250_ms, "{spec}");
            assert!(follower.is_due(at.plus_millis(1_000)), "{spec}");
        }
    }

    #[test]
    fn a_slow_question_rests_for_as_long_as_it_took_and_longer_the_more_often_it_fails() {
        for (took_ms, n_slow_failures, rests_ms) in [
            (1, 0, 0),
            (249, 0, 0),
            (250, 0, 250),
            (2_000, 0, 2_000),
            (2_000, 1, 2_000),
            (2_000, 2, 4_000),
            (2_000, 4, 16_000),
            (2_000, 5, MAX_REST_MS),
            (5_000, u32::MAX, MAX_REST_MS),
        ] {
            let took = Duration::from_millis(took_ms);
            assert_eq!(rest_ms(took, n_slow_failures), rests_ms, "{took_ms} {n_slow_failures}");
        }
    }

    /// A Prometheus that never answers a query that names `hangs`, and tells zero to the others.
    async fn prometheus() -> String {
        let answer = async |form: String| {
            if form.contains("hangs") {
                std::future::pending::<()>().await;
            }
            let kind = [(axum::http::header::CONTENT_TYPE, "application/json")];
            let result = r#"{"resultType":"vector","result":[{"metric":{},"value":[1,"0"]}]}"#;
            (kind, format!(r#"{{"status":"success","data":{result}}}"#))
        };
        let router = axum::Router::new().fallback(answer);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    #[tokio::test]
    async fn a_question_that_hangs_delays_no_other_of_its_source() {
        let text = format!(
            "prometheus: [{{name: main, url: '{}', timeout: 60s}}]\n\
             wakeSources:\n\
             - {{name: gate, kind: gauge, prometheus: main, query: 'sum(q{{n=\"{{name}}\"}})'}}\n",
            prometheus().await
        );
        let config = crate::config::parse(&text).unwrap();
        let client = crate::source::prometheus::PrometheusClient::new(&config.prometheus[0]);
        let scraper = crate::source::scrape::Scraper::new(Default::default()).unwrap();
        let source =
            WakeSource::new(&config.wake_sources["gate"], Some(&client.unwrap()), &scraper);
        let clock = Clock::start();
        let reader = Reader::start(source.unwrap(), Metrics::default(), clock);
        let (hangs, answers) = (tracker("hangs", 0, clock), tracker("answers", 0, clock));
        let read_at = |tracker: &Arc<Tracker>| {
            reader.reading(tracker, &Arc::default(), clock.now());
            lock(&reader.shared.followers)[&tracker.key].read_at
        };
        let first = read_at(&answers);
        // Ten reads of the one, all while the other waits for its first.
        let began_at = read_at(&hangs);
        for n in 1..=10 {
            let before = read_at(&answers);
            let again = async {
                while read_at(&answers) == before {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let in_time = tokio::time::timeout(Duration::from_secs(30), again).await;
            in_time.unwrap_or_else(|_late| panic!("read {n} since {first:?} has not come"));
        }
        assert_eq!(read_at(&hangs), began_at, "it was answered");
    }

    #[tokio::test]
    async fn who_was_being_read_when_the_reader_panicked_is_read_again() {
        let text = format!(
            "prometheus: [{{name: main, url: '{}'}}]\n\
             wakeSources: [{{name: gate, kind: gauge, prometheus: main, query: q}}]\n",
            prometheus().await
        );
        let config = crate::config::parse(&text).unwrap();
        let client = crate::source::prometheus::PrometheusClient::new(&config.prometheus[0]);
        let scraper = crate::source::scrape::Scraper::new(Default::default()).unwrap();
        let source =
            WakeSource::new(&config.wake_sources["gate"], Some(&client.unwrap()), &scraper);
        let (clock, _hand) = Clock::stepped(Moment(1_000));
        let reader = Reader::start(source.unwrap(), Metrics::default(), clock);
        let sleeps = tracker("sleeps", 0, clock);
        let reading = || reader.reading(&sleeps, &Arc::default(), clock.now());
        reading();
        lock(&reader.shared.followers).get_mut(&sleeps.key).unwrap().is_being_read = true;
        assert_eq!(due(&reader.shared).len(), 0);
        let read = async {
            while !matches!(reading(), WakeReading::Fresh { .. }) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = read_all(Arc::clone(&reader.shared)) => {}
            in_time = tokio::time::timeout(Duration::from_secs(30), read) => in_time.unwrap(),
        }
    }

    #[test]
    fn a_tick_is_asked_for_when_demand_comes_and_not_while_it_stands() {
        let unknown = WakeReading::Unknown { why: Why::Timeout };
        let fresh = |queued, at| WakeReading::Fresh { queued, last_arrival_at: at };
        let (t1, t2) = (Some(Moment(1)), Some(Moment(2)));
        for (before, after, come) in [
            (unknown, fresh(0.0, None), false),
            (unknown, fresh(1.0, None), true),
            (unknown, fresh(0.0, t1), true),
            (fresh(0.0, None), fresh(3.0, None), true),
            (fresh(3.0, None), fresh(3.0, None), false),
            (fresh(3.0, None), fresh(1.0, None), false),
            (fresh(0.0, t1), fresh(0.0, t2), true),
            (fresh(0.0, t1), unknown, false),
        ] {
            assert_eq!(has_come(before, after), come, "{before:?} {after:?}");
        }
    }
}
