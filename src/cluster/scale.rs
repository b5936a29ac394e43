//! The scale subresource of targets that are neither Deployment nor StatefulSet.
//!
//! `/scale` cannot be watched and the kinds are not known beforehand, so it is read: when the
//! pods or the ScaledObject change, and every 15 s. A count that cannot be read again for half a
//! minute is no longer known. Never more than 20 reads a second in all, so
//! that beyond 300 such targets the interval grows instead of the load on the API server.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use tokio::time::Instant;
use tracing::warn;

use super::scaled_object::{TargetKind, TargetRef};
use super::target::Target;
use super::watched::describe;
use super::world::WantedScales;

/// Time between two reads of one target without a change.
const INTERVAL: Duration = Duration::from_secs(15);
/// Least time between two reads of one target.
const MIN_GAP: Duration = Duration::from_secs(1);
/// Least time between the starts of any two reads: 20 a second.
const PACE: Duration = Duration::from_millis(50);
/// How long reads may fail until the count that was read last is no longer known.
const LOST_AFTER: Duration = Duration::from_secs(30);
/// How long one read may take, its discovery included.
const DEADLINE: Duration = Duration::from_secs(10);
/// Reads at the same time.
const MAX_IN_FLIGHT: usize = 8;

/// What names one scale subresource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ScaleKey {
    /// The index of the watched namespace.
    pub(super) scope: usize,
    /// The namespace.
    pub(super) namespace: Arc<str>,
    /// The target.
    pub(super) target: TargetRef,
}

/// Reads the scale subresources that are wanted.
pub(super) struct Reader {
    client: kube::Client,
    /// The API server's names for the kinds, as found.
    resources: HashMap<GroupVersionKind, ApiResource>,
    wanted: BTreeMap<ScaleKey, Schedule>,
    /// When to look at which key. Invariant: holds each wanted key at its `due`; what is here and
    /// says otherwise is out of date and skipped in `start_next`.
    queue: BinaryHeap<Reverse<(Instant, ScaleKey)>>,
    in_flight: FuturesUnordered<BoxFuture<'static, Outcome>>,
    paced_until: Instant,
}

/// The state of one wanted subresource.
struct Schedule {
    due: Instant,
    last_start: Option<Instant>,
    is_in_flight: bool,
    failing: Option<Failing>,
}

struct Failing {
    since: Instant,
    /// As logged, so that the same is not logged at each try.
    message: String,
}

/// What a read of a scale says.
#[derive(Debug, PartialEq)]
pub(super) enum Read {
    /// The target.
    There(Target),
    /// There is no such target, or it has no scale.
    Absent,
    /// It has not been readable for half a minute.
    Lost,
}

struct Outcome {
    key: ScaleKey,
    result: Result<Found, Error>,
}

struct Found {
    kind: GroupVersionKind,
    resource: ApiResource,
    target: Option<Target>,
}

/// Why a scale subresource cannot be read.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Deadline,
    #[error(transparent)]
    Api(#[from] kube::Error),
}

impl Reader {
    /// Reads nothing until something is wanted.
    pub(super) fn new(client: kube::Client) -> Reader {
        Reader {
            client,
            resources: HashMap::new(),
            wanted: BTreeMap::new(),
            queue: BinaryHeap::new(),
            in_flight: FuturesUnordered::new(),
            paced_until: Instant::now(),
        }
    }

    /// Reads these of the namespace soon, since something changed there, and no others of it.
    pub(super) fn want(&mut self, wanted: WantedScales) {
        let WantedScales { scope, namespace, targets } = wanted;
        self.wanted.retain(|key, _| {
            key.scope != scope || key.namespace != namespace || targets.contains(&key.target)
        });
        let now = Instant::now();
        for target in targets {
            let key = ScaleKey { scope, namespace: Arc::clone(&namespace), target };
            let known = self.wanted.get(&key);
            let last_start = known.and_then(|schedule| schedule.last_start);
            let soon = last_start.map_or(now, |at| now.max(at + MIN_GAP));
            if known.is_none_or(|schedule| schedule.due > soon) {
                self.schedule(key, soon);
            }
        }
    }

    /// The next answer. Waits for ever while nothing is wanted. Safe to drop and call again.
    pub(super) async fn next(&mut self) -> (ScaleKey, Read) {
        loop {
            let start_at = self
                .queue
                .peek()
                .map(|Reverse((due, _))| (*due).max(self.paced_until))
                .filter(|_| self.in_flight.len() < MAX_IN_FLIGHT);
            tokio::select! {
                Some(outcome) = self.in_flight.next() => {
                    if let Some(answer) = self.finish(outcome) {
                        return answer;
                    }
                }
                () = sleep_until(start_at) => self.start_next(),
            }
        }
    }

    fn schedule(&mut self, key: ScaleKey, due: Instant) {
        self.queue.push(Reverse((due, key.clone())));
        let schedule = self.wanted.entry(key).or_insert(Schedule {
            due,
            last_start: None,
            is_in_flight: false,
            failing: None,
        });
        schedule.due = due;
    }

    fn start_next(&mut self) {
        let Some(Reverse((due, key))) = self.queue.pop() else {
            return;
        };
        let Some(schedule) = self.wanted.get_mut(&key) else {
            return;
        };
        if schedule.due != due {
            return;
        }
        let now = Instant::now();
        if schedule.is_in_flight {
            self.schedule(key, now + MIN_GAP);
            return;
        }
        schedule.is_in_flight = true;
        schedule.last_start = Some(now);
        self.paced_until = now + PACE;
        let read = read(self.client.clone(), self.known_resource(&key.target), key.clone());
        self.in_flight.push(Box::pin(read));
        self.schedule(key, now + INTERVAL);
    }

    fn finish(&mut self, outcome: Outcome) -> Option<(ScaleKey, Read)> {
        let Outcome { key, result } = outcome;
        // Nobody wants it any more.
        let schedule = self.wanted.get_mut(&key)?;
        schedule.is_in_flight = false;
        let read = match result {
            Ok(Found { kind, resource, target }) => {
                self.resources.insert(kind, resource);
                target.map_or(Read::Absent, Read::There)
            }
            Err(error) => {
                let message = describe(&error);
                return schedule.fails(&key, message).then_some((key, Read::Lost));
            }
        };
        if read == Read::Absent {
            schedule.fails(&key, "it is not there, or has no scale".to_owned());
        } else {
            schedule.failing = None;
        }
        Some((key, read))
    }

    fn known_resource(&self, target: &TargetRef) -> Option<ApiResource> {
        self.resources.get(&kind(target)).cloned()
    }
}

impl Schedule {
    /// Takes one failure; whether they have lasted so long that nothing is known any more.
    fn fails(&mut self, key: &ScaleKey, message: String) -> bool {
        let since = self.failing.as_ref().map_or_else(Instant::now, |failing| failing.since);
        if self.failing.as_ref().is_none_or(|failing| failing.message != message) {
            let name = &key.target.name;
            warn!(namespace = %key.namespace, %name, error = message, "cannot read a target's scale");
        }
        self.failing = Some(Failing { since, message });
        since.elapsed() >= LOST_AFTER
    }
}

/// Waits until then; without a time, for ever.
pub(super) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn read(client: kube::Client, known: Option<ApiResource>, key: ScaleKey) -> Outcome {
    let result = tokio::time::timeout(DEADLINE, read_scale(client, known, &key))
        .await
        .unwrap_or(Err(Error::Deadline));
    Outcome { key, result }
}

async fn read_scale(
    client: kube::Client,
    known: Option<ApiResource>,
    key: &ScaleKey,
) -> Result<Found, Error> {
    let kind = kind(&key.target);
    // A version that is served no more answers as an object that is not there.
    if let Some(resource) = known
        && let Some(target) = scale_of(&client, &resource, key).await?
    {
        return Ok(Found { kind, resource, target: Some(target) });
    }
    let (resource, _) = kube::discovery::pinned_kind(&client, &kind).await?;
    let target = scale_of(&client, &resource, key).await?;
    Ok(Found { kind, resource, target })
}

async fn scale_of(
    client: &kube::Client,
    resource: &ApiResource,
    key: &ScaleKey,
) -> Result<Option<Target>, Error> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &key.namespace, resource);
    match api.get_scale(&key.target.name).await {
        Ok(scale) => Ok(Some(Target::from_scale(&scale))),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn kind(target: &TargetRef) -> GroupVersionKind {
    let (api_version, kind) = match &target.kind {
        TargetKind::Deployment => ("apps/v1", "Deployment"),
        TargetKind::StatefulSet => ("apps/v1", "StatefulSet"),
        TargetKind::Other { api_version, kind } => (&**api_version, &**kind),
    };
    // The core group has no name: its versions stand alone.
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    GroupVersionKind::gvk(group, version, kind)
}
