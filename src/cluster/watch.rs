//! The watches: one stream of small steps from ScaledObjects, Deployments, StatefulSets, pods, HPAs,
//! resource claims and nodes.
//!
//! Keeps no state of the objects and never ends for a failed read; reading on is the client
//! library's, at its own backoff.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, SelectAll, Stream, StreamExt as _};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Node as ApiNode, Pod as ApiPod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::core::{NamespaceResourceScope, Resource};
use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::warn;

use super::devices::{self, Node};
use super::hpa::Autoscaler;
use super::pod::Pod;
use super::scaled_object::ScaledObject;
use super::target::Target;
use super::watched::is_refusal;
use crate::inventory::Devices;

/// Objects of one page of a list. A pod is some 10 KiB of JSON, so a page stays near 2.5 MiB.
const PAGE_SIZE: u32 = 250;
/// Seconds after which the API server ends a watch, to be resumed where it stopped. A connection
/// that died unseen is noticed 5 s later (the client library's margin).
const WATCH_TIMEOUT_S: u32 = 60;
/// Longest pause between two tries. The client library's own limit of 30 s is made for many
/// clients; here a handful of watches hold what every answer stands on.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// The same where the API server answers and refuses: a role is bound once, and nobody is spared by asking
/// more often.
const MAX_PAUSE_WHEN_REFUSED: Duration = Duration::from_secs(10);
/// The same for what no answer stands on, which a role may not allow or a cluster not have: the
/// client library's own.
const MAX_PAUSE_OF_EXTRAS: Duration = Duration::from_secs(30);
/// A watch that was resumed after a failure, and has not failed again for this long, stands: a
/// refused connection fails at once, one without answer within `CONNECT_TIMEOUT`.
const PROVEN_AFTER: Duration = Duration::from_secs(10);

/// Namespace and name of any object.
pub(super) type ObjectKey = (Arc<str>, Arc<str>);

/// One step of one watch.
#[derive(Debug)]
pub(super) struct Update {
    /// The index of the watched namespace, 0 when all are watched as one.
    pub(super) scope: usize,
    /// What changed.
    pub(super) change: Change,
}

/// What one step changed.
#[derive(Debug)]
pub(super) enum Change {
    /// A ScaledObject.
    ScaledObject(Step<ScaledObject>),
    /// A Deployment.
    Deployment(Step<Target>),
    /// A StatefulSet.
    StatefulSet(Step<Target>),
    /// A pod.
    Pod(Step<Pod>),
    /// An HPA.
    Hpa(Step<Autoscaler>),
    /// A resource claim, by the devices in it.
    Claim(Step<Arc<Devices>>),
    /// A node; nodes are of no namespace, and come with scope 0.
    Node(Step<Node>),
}

/// A step of a watch, its object reduced.
#[derive(Debug)]
pub(super) enum Step<T> {
    /// All objects are about to be listed anew.
    Begin,
    /// An object as it is now.
    Put(ObjectKey, T),
    /// An object that is gone, or no longer matters.
    Remove(ObjectKey),
    /// An object that is there and cannot be read: what was known of it stays.
    Keep(ObjectKey),
    /// All objects have been listed; what was not among them is gone.
    Done,
    /// The watch is interrupted.
    Failed(watcher::Error),
    /// The watch goes on after an interruption, without a new list.
    Resumed,
}

/// What an object is here.
#[derive(Debug)]
enum Look<T> {
    Usable(T),
    /// It no longer matters.
    Ended,
    /// Its kind is right, and what it says is not.
    Unusable,
}

impl<T> From<Option<T>> for Look<T> {
    fn from(read: Option<T>) -> Look<T> {
        read.map_or(Look::Ended, Look::Usable)
    }
}

/// Watches everything in these namespaces; in all if there is none.
pub(super) fn updates(
    client: &kube::Client,
    namespaces: &[Arc<str>],
) -> SelectAll<BoxStream<'static, Update>> {
    let nodes = Api::<ApiNode>::all(client.clone());
    let nodes = steps(nodes, |node| Node::from_object(node).into(), MAX_PAUSE_OF_EXTRAS)
        .map(|step| Update { scope: 0, change: Change::Node(step) });
    let mut all = stream::select_all([nodes.boxed()]);
    if namespaces.is_empty() {
        all.extend(scope_updates(0, client, None));
    }
    for (scope, namespace) in namespaces.iter().enumerate() {
        all.extend(scope_updates(scope, client, Some(namespace)));
    }
    all
}

fn scope_updates(
    scope: usize,
    client: &kube::Client,
    namespace: Option<&str>,
) -> [BoxStream<'static, Update>; 6] {
    [
        steps(scaled_objects(client, namespace), read_scaled_object, MAX_PAUSE)
            .map(move |step| Update { scope, change: Change::ScaledObject(step) })
            .boxed(),
        steps(
            api::<Deployment>(client, namespace),
            |it| Target::from_deployment(it).into(),
            MAX_PAUSE,
        )
        .map(move |step| Update { scope, change: Change::Deployment(step) })
        .boxed(),
        steps(
            api::<StatefulSet>(client, namespace),
            |it| Target::from_stateful_set(it).into(),
            MAX_PAUSE,
        )
        .map(move |step| Update { scope, change: Change::StatefulSet(step) })
        .boxed(),
        steps(api::<ApiPod>(client, namespace), |pod| Pod::from_object(pod).into(), MAX_PAUSE)
            .map(move |step| Update { scope, change: Change::Pod(step) })
            .boxed(),
        steps(
            api::<HorizontalPodAutoscaler>(client, namespace),
            |hpa| Autoscaler::from_object(hpa).into(),
            MAX_PAUSE_OF_EXTRAS,
        )
        .map(move |step| Update { scope, change: Change::Hpa(step) })
        .boxed(),
        steps(
            api::<ResourceClaim>(client, namespace),
            |it| devices::of_claim(it).into(),
            MAX_PAUSE_OF_EXTRAS,
        )
        .map(move |step| Update { scope, change: Change::Claim(step) })
        .boxed(),
    ]
}

/// The ScaledObjects of a namespace, or of all.
pub(super) fn scaled_objects(client: &kube::Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("keda.sh", "v1alpha1", "ScaledObject");
    let resource = ApiResource::from_gvk_with_plural(&kind, "scaledobjects");
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn api<K>(client: &kube::Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// One broken object breaks nobody else's list, and an edit that breaks one does not delete it.
fn read_scaled_object(object: &DynamicObject) -> Look<ScaledObject> {
    match ScaledObject::from_object(object) {
        Ok(read) => Look::Usable(read),
        Err(error) => {
            warn!(
                namespace = object.metadata.namespace.as_deref(),
                name = object.metadata.name.as_deref(),
                error = &error as &dyn std::error::Error,
                "a ScaledObject cannot be used: it is left out, or goes on as it was",
            );
            Look::Unusable
        }
    }
}

fn steps<K, T>(
    api: Api<K>,
    read: fn(&K) -> Look<T>,
    max_pause: Duration,
) -> impl Stream<Item = Step<T>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    T: Send + 'static,
{
    let config = watcher::Config::default().page_size(PAGE_SIZE).timeout(WATCH_TIMEOUT_S);
    let follow = Follow {
        events: watcher::watcher(api, config).boxed(),
        backoff: DefaultBackoff::default(),
        max_pause,
        pause: None,
        proven_at: None,
    };
    stream::unfold(follow, move |mut follow| async move {
        let step = follow.next(read).await?;
        Some((step, follow))
    })
}

/// One watch, with what the client library does not tell: when it stands again after a failure.
struct Follow<K> {
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    backoff: DefaultBackoff,
    max_pause: Duration,
    /// How long to wait before the next try, after a failure.
    pause: Option<Duration>,
    /// When a watch that was resumed after a failure counts as standing.
    proven_at: Option<Instant>,
}

impl<K: Resource> Follow<K> {
    async fn next<T>(&mut self, read: fn(&K) -> Look<T>) -> Option<Step<T>> {
        if let Some(pause) = self.pause.take() {
            tokio::time::sleep(pause).await;
            self.proven_at = Some(Instant::now() + PROVEN_AFTER);
        }
        let event = match self.proven_at {
            None => self.events.next().await?,
            Some(proven_at) => match tokio::time::timeout_at(proven_at, self.events.next()).await {
                Ok(event) => event?,
                Err(_elapsed) => {
                    self.proven_at = None;
                    return Some(Step::Resumed);
                }
            },
        };
        Some(match event {
            Ok(Event::Init) => {
                // What is listed anew proves itself by its end.
                self.proven_at = None;
                Step::Begin
            }
            Ok(Event::InitApply(object) | Event::Apply(object)) => match read(&object) {
                Look::Usable(value) => Step::Put(key(&object), value),
                Look::Ended => Step::Remove(key(&object)),
                Look::Unusable => Step::Keep(key(&object)),
            },
            Ok(Event::Delete(object)) => Step::Remove(key(&object)),
            Ok(Event::InitDone) => Step::Done,
            Err(error) => {
                self.proven_at = None;
                if matches!(&error, watcher::Error::WatchError(status) if status.code == 410) {
                    // The server answers again and only wants a new list: nothing to spare it.
                    self.backoff.reset();
                }
                let most = if is_refusal(&error) {
                    self.max_pause.max(MAX_PAUSE_WHEN_REFUSED)
                } else {
                    self.max_pause
                };
                self.pause = self.backoff.next().map(|pause| pause.min(most));
                Step::Failed(error)
            }
        })
    }
}

fn key<K: Resource>(object: &K) -> ObjectKey {
    let part =
        |text: Option<&String>| text.map_or_else(|| Arc::from(""), |text| text.as_str().into());
    (part(object.meta().namespace.as_ref()), part(object.meta().name.as_ref()))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn follow(events: Vec<watcher::Result<Event<ApiPod>>>) -> Follow<ApiPod> {
        Follow {
            events: stream::iter(events).chain(stream::pending()).boxed(),
            backoff: DefaultBackoff::default(),
            max_pause: MAX_PAUSE,
            pause: None,
            proven_at: None,
        }
    }

    fn interrupted() -> watcher::Error {
        watcher::Error::NoResourceVersion
    }

    fn expired() -> watcher::Error {
        let status = Status { code: 410, ..Status::default() };
        watcher::Error::WatchError(Box::new(status))
    }

    async fn next(follow: &mut Follow<ApiPod>) -> (Step<Pod>, Duration) {
        let asked_at = Instant::now();
        let step = follow.next(|pod| Pod::from_object(pod).into()).await.unwrap();
        (step, asked_at.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_does_not_fail_again_counts_as_resumed_after_ten_seconds() {
        let mut follow = follow(vec![Err(interrupted())]);
        assert!(matches!(next(&mut follow).await.0, Step::Failed(_)));
        let (step, after) = next(&mut follow).await;
        assert!(matches!(step, Step::Resumed));
        let seconds = after.as_secs_f64();
        assert!((10.8..=11.6).contains(&seconds), "a first pause of 0.8 to 1.6 s: {seconds}");
        let silence = tokio::time::timeout(Duration::from_secs(3_600), next(&mut follow)).await;
        assert!(silence.is_err(), "said once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_list_is_not_resumed_before_its_end() {
        let mut follow = follow(vec![Err(interrupted()), Ok(Event::Init)]);
        assert!(matches!(next(&mut follow).await.0, Step::Failed(_)));
        assert!(matches!(next(&mut follow).await.0, Step::Begin));
        let silence = tokio::time::timeout(Duration::from_secs(3_600), next(&mut follow)).await;
        assert!(silence.is_err(), "a list without end is no recovery");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_five_seconds_and_an_expired_watch_starts_them_over() {
        let failures = (0..8).map(|_| Err(interrupted())).chain([Err(expired()), Ok(Event::Init)]);
        let mut follow = follow(failures.collect());
        let mut pauses = Vec::new();
        for _ in 0..10 {
            pauses.push(next(&mut follow).await.1.as_secs_f64());
        }
        let [first, second, .., eighth, ninth, after_expiry] = pauses[..] else { panic!() };
        assert!(first < 0.1 && (0.8..=1.6).contains(&second), "{pauses:?}");
        assert!((4.9..=5.1).contains(&eighth) && (4.9..=5.1).contains(&ninth), "{pauses:?}");
        assert!((0.8..=1.6).contains(&after_expiry), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_no_longer_matters_is_removed() {
        let mut pod = ApiPod::default();
        pod.metadata.name = Some("llm-0".to_owned());
        pod.metadata.namespace = Some("ns".to_owned());
        let mut ended = pod.clone();
        ended.status.get_or_insert_default().phase = Some("Failed".to_owned());
        let mut follow = follow(vec![Ok(Event::Apply(pod.clone())), Ok(Event::Apply(ended))]);
        let key: ObjectKey = ("ns".into(), "llm-0".into());
        assert!(matches!(next(&mut follow).await.0, Step::Put(put, _) if put == key));
        assert!(matches!(next(&mut follow).await.0, Step::Remove(removed) if removed == key));
    }
}
