//! A small external scaler with one fault at most.
//!
//! Everything is as KEDA needs it but for the arms that name a fault.

#![expect(clippy::wildcard_enum_match_arm, reason = "each place has its few faults of many")]

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::pending;
use ghostscaler::proto::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use ghostscaler::proto::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec,
    MetricValue, ScaledObjectRef,
};
use tokio::net::TcpListener;
use tokio::sync::OwnedMutexGuard;
use tokio::time::sleep;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;

use super::fault::{Fault, Kind};

const METRIC: &str = "wanted-replicas";
const SERVICE: &str = "externalscaler.ExternalScaler";
/// Longer than the second that any answer may take, on a busy machine too.
const SLOW: Duration = Duration::from_secs(2);
/// A backend's answer that is waited for.
const WAIT: Duration = Duration::from_millis(300);
/// Stream faults that come later: within a rehearsal for them, and on its stream alone, which is the
/// first. A busy machine keeps those of the short checks open for as long.
const LATER: Duration = Duration::from_secs(4);
/// More streams at once than the short checks open, and fewer than the load checks.
const STREAMS_MAX: u32 = 64;
/// More calls at once than any check but the herd makes.
const HERD_MAX: usize = 32;
/// More connections than all checks but the last make.
const CONNECTIONS_MAX: usize = 70;

/// A running scaler; dropping it stops it.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    _server: AbortOnDropHandle<()>,
}

impl Running {
    /// All calls so far.
    pub(super) fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().expect("no panic under the lock").clone()
    }
}

/// What one call looked like on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) method: &'static str,
    /// The `grpc-timeout` header.
    pub(super) deadline: Option<String>,
    pub(super) user_agent: String,
}

/// Starts a scaler on a port of its own.
pub(super) async fn start(kind: Kind, fault: Fault) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    let (mut reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status(SERVICE, ServingStatus::Serving).await;
    match fault {
        Fault::NotServing => {
            reporter.set_service_status(SERVICE, ServingStatus::NotServing).await;
        }
        Fault::NoHealthForService => reporter.clear_service_status(SERVICE).await,
        Fault::NoHealthForServer => reporter.clear_service_status("").await,
        _ => {}
    }
    let shared: Arc<Shared> = Arc::default();
    let scaler = Scaler { kind, fault, shared: Arc::clone(&shared) };
    let streams_max = (fault == Fault::FewStreams).then_some(STREAMS_MAX);
    let server = tonic::transport::Server::builder()
        .max_concurrent_streams(streams_max)
        // At its own 20, h2 cuts a connection whose streams a busy machine has not accepted yet.
        .http2_max_pending_accept_reset_streams(Some(1_000))
        .add_service(ExternalScalerServer::new(scaler))
        .add_optional_service((fault != Fault::NoHealth).then_some(health))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(async move { server.await.expect("the server goes on") });
    Running { address, shared, _server: AbortOnDropHandle::new(server) }
}

struct Scaler {
    kind: Kind,
    fault: Fault,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    calls: Mutex<Vec<Call>>,
    n_spec_calls: AtomicUsize,
    n_metrics_calls: AtomicUsize,
    n_errors: AtomicUsize,
    n_in_flight: AtomicUsize,
    n_streams: AtomicUsize,
    n_spec_streams: AtomicUsize,
    /// Held by what blocks others.
    lock: Arc<tokio::sync::Mutex<()>>,
    sticky: Mutex<HashMap<String, String>>,
    connections: Mutex<HashMap<SocketAddr, Seen>>,
    newest_stream: tokio::sync::watch::Sender<usize>,
}

/// What one connection has done.
#[derive(Default)]
struct Seen {
    asked_metrics: bool,
    n_open: usize,
    n_cancelled: u32,
}

type Answer<T> = Result<Response<T>, Status>;
type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalScaler for Scaler {
    type StreamIsActiveStream = Streamed<IsActiveResponse>;
    type StreamMetricSpecStream = Streamed<GetMetricSpecResponse>;

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Answer<GetMetricSpecResponse> {
        self.admit("GetMetricSpec", &request)?;
        let by_hpa = by_hpa(&request);
        let metadata = request.into_inner().scaler_metadata;
        let n = self.shared.n_spec_calls.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            Fault::SpecAlwaysFails => return Err(Status::unavailable("no data yet")),
            Fault::SpecFailsForHpa if by_hpa => return Err(Status::unavailable("no data yet")),
            Fault::SpecHangs => pending().await,
            Fault::MetadataSticks => {
                *self.shared.sticky.lock().expect("no panic under the lock") = metadata.clone();
            }
            _ => {}
        }
        let metric_specs = match self.fault {
            Fault::SpecsEmpty => Vec::new(),
            Fault::SpecsEmptyWithoutMetadata if metadata.is_empty() => Vec::new(),
            Fault::StreamedTargetDiffers => vec![spec(METRIC, 2, 2.0)],
            _ => self.specs(n),
        };
        Ok(Response::new(GetMetricSpecResponse { metric_specs }))
    }

    async fn get_metrics(&self, request: Request<GetMetricsRequest>) -> Answer<GetMetricsResponse> {
        self.admit("GetMetrics", &request)?;
        if self.fault == Fault::MetricsFailForHpa && by_hpa(&request) {
            return Err(Status::unavailable("no data yet"));
        }
        self.see(request.remote_addr(), |seen| seen.asked_metrics = true);
        let GetMetricsRequest { scaled_object_ref, metric_name } = request.into_inner();
        let Some(scaled_object) = scaled_object_ref else {
            if self.fault == Fault::MissingReferencePanics {
                unwind();
            }
            return Err(Status::invalid_argument("scaledObjectRef is missing"));
        };
        self.validate(&scaled_object).await?;
        self.known_metric(&metric_name, &scaled_object).await?;
        let _in_flight = self.delay().await?;
        let n = self.shared.n_metrics_calls.fetch_add(1, Ordering::Relaxed);
        let metric_values = self.values(&metric_name, n).await?;
        Ok(Response::new(GetMetricsResponse { metric_values }))
    }

    async fn is_active(&self, request: Request<ScaledObjectRef>) -> Answer<IsActiveResponse> {
        self.admit("IsActive", &request)?;
        let by_hpa = by_hpa(&request);
        let mut in_order = true;
        self.see(request.remote_addr(), |seen| in_order = seen.asked_metrics);
        if self.fault != Fault::BadMetadataIsActive {
            self.validate(request.get_ref()).await?;
        }
        match self.fault {
            Fault::ActivityNeedsMetricsFirst if !in_order => {
                return Err(Status::failed_precondition("GetMetrics comes first"));
            }
            Fault::ActivityFailsForHpa if by_hpa => return Err(Status::unavailable("no data yet")),
            Fault::ActivityAlwaysFails => return Err(Status::unavailable("no data yet")),
            Fault::ActivityHangs => pending().await,
            _ => {}
        }
        Ok(Response::new(IsActiveResponse { result: self.active() }))
    }

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Answer<Self::StreamIsActiveStream> {
        self.admit("StreamIsActive", &request)?;
        if self.kind == Kind::Pull {
            return Err(Status::unimplemented("poll instead"));
        }
        let n = self.shared.n_streams.fetch_add(1, Ordering::Relaxed);
        let open = Open::new(&self.shared, request.remote_addr());
        match self.fault {
            Fault::SecondStreamRefused if open.n_before > 0 => {
                return Err(Status::already_exists("there is a stream already"));
            }
            Fault::StreamDiesOnSecondOpen if n > 0 => {
                return Err(Status::unavailable("the stream is gone"));
            }
            _ => {}
        }
        self.shared.newest_stream.send_replace(n);
        let locked = self.lock_if(Fault::UnreadStreamLocks).await;
        let script = Script { steps: self.push_script(n), locked, _open: open };
        if self.fault == Fault::NewStreamEndsOld {
            let mut newest = self.shared.newest_stream.subscribe();
            let superseded = async move { drop(newest.wait_for(|newest| *newest > n).await) };
            let stream = futures_util::StreamExt::take_until(script.play(), superseded);
            return Ok(Response::new(Box::pin(stream)));
        }
        Ok(Response::new(Box::pin(script.play())))
    }

    async fn stream_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Answer<Self::StreamMetricSpecStream> {
        self.admit("StreamMetricSpec", &request)?;
        let n = self.shared.n_spec_streams.fetch_add(1, Ordering::Relaxed);
        let offered = self.kind == Kind::Streamed
            || [Fault::SpecStreamSilent, Fault::SpecStreamEndsEmpty].contains(&self.fault);
        if self.fault == Fault::SpecStreamFails {
            return Err(Status::unavailable("no specs yet"));
        }
        if !offered {
            return Err(Status::unimplemented("the target never changes"));
        }
        let open = Open::new(&self.shared, request.remote_addr());
        let locked = self.lock_if(Fault::UnreadSpecStreamLocks).await;
        let script = Script { steps: self.spec_script(n), locked, _open: open };
        Ok(Response::new(Box::pin(script.play())))
    }
}

impl Scaler {
    fn see(&self, peer: Option<SocketAddr>, look: impl FnOnce(&mut Seen)) {
        let mut connections = self.shared.connections.lock().expect("no panic under the lock");
        look(connections.entry(peer.expect("TCP has a peer")).or_default());
    }

    /// Writes the call down; some faults refuse whole connections.
    fn admit<T>(&self, method: &'static str, request: &Request<T>) -> Result<(), Status> {
        let header = |name| Some(request.metadata().get(name)?.to_str().ok()?.to_owned());
        self.shared.calls.lock().expect("no panic under the lock").push(Call {
            method,
            deadline: header("grpc-timeout"),
            user_agent: header("user-agent").unwrap_or_default(),
        });
        let mut n_cancelled = 0;
        self.see(request.remote_addr(), |seen| n_cancelled = seen.n_cancelled);
        let n_connections = self.shared.connections.lock().expect("no panic under the lock").len();
        match self.fault {
            Fault::CancelledStreamsLeak if n_cancelled > STREAMS_MAX => {
                Err(Status::resource_exhausted("too many streams"))
            }
            Fault::ConnectionsLeak if n_connections > CONNECTIONS_MAX => {
                Err(Status::resource_exhausted("too many connections"))
            }
            _ => Ok(()),
        }
    }

    async fn validate(&self, scaled_object: &ScaledObjectRef) -> Result<(), Status> {
        let ScaledObjectRef { name, scaler_metadata, .. } = scaled_object;
        let metadata = match self.fault {
            Fault::MetadataSticks => {
                self.shared.sticky.lock().expect("no panic under the lock").clone()
            }
            Fault::NulPanics if name.contains('\0') => unwind(),
            Fault::ManyKeysPanic if scaler_metadata.len() > 1_000 => unwind(),
            Fault::HugeMetadataPanics
                if scaler_metadata.values().any(|value| value.len() > 1 << 19) =>
            {
                unwind()
            }
            _ => scaler_metadata.clone(),
        };
        let fault = self.metadata_fault(&metadata);
        if self.fault == Fault::BadMetadataLocks {
            let _guard = self.shared.lock.lock().await;
            if fault.is_err() {
                // Short of a wait that shows in the error itself; its many callers wait in turn.
                sleep(Duration::from_millis(25)).await;
            }
        }
        fault
    }

    fn metadata_fault(&self, metadata: &HashMap<String, String>) -> Result<(), Status> {
        let of = |key: &str| -> Result<Option<&String>, Status> {
            let from_env = metadata.get(&format!("{key}FromEnv"));
            match (metadata.get(key), from_env) {
                (given, Some(_)) if self.fault == Fault::FromEnvNotRead => Ok(given),
                (Some(_), Some(_)) if self.fault != Fault::FromEnvBesideKey => Err(
                    Status::invalid_argument(format!("{key} and {key}FromEnv exclude each other")),
                ),
                (given, from_env) => Ok(given.or(from_env)),
            }
        };
        if self.fault == Fault::FromEnvNotRead
            && metadata.contains_key("queue")
            && metadata.contains_key("queueFromEnv")
        {
            return Err(Status::invalid_argument("queueFromEnv beside queue"));
        }
        if of("queue")?.is_none() {
            return Err(match self.fault {
                Fault::RefusalWithoutKey => Status::invalid_argument("bad metadata"),
                Fault::BadMetadataIsPrecondition => {
                    Status::failed_precondition("queue is missing, expected a queue's name")
                }
                _ => Status::invalid_argument("queue is missing, expected a queue's name"),
            });
        }
        if let Some(text) = of("threshold")? {
            let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
            if number.is_none() && !(self.fault == Fault::NanIsANumber && text == "NaN") {
                return Err(Status::invalid_argument("threshold: expected a number, such as 5"));
            }
        }
        if self.fault == Fault::KedaKeyRefused && metadata.contains_key("enableTLS") {
            return Err(Status::invalid_argument("enableTLS is unknown"));
        }
        let known: HashSet<&str> =
            ["queue", "threshold", "scalerAddress", "enableTLS", "unsafeSsl"].into();
        let mut unknown = metadata
            .keys()
            .filter(|key| !known.contains(key.strip_suffix("FromEnv").unwrap_or(key)));
        match unknown.next() {
            Some(key) if self.kind == Kind::Strict => {
                let start: String = key.chars().take(40).collect();
                Err(Status::invalid_argument(format!("{} is unknown", start.escape_default())))
            }
            Some(key) if self.fault == Fault::UnknownKeyIsInternal => {
                let own = key == "conformanceUnknownKey";
                if own { Err(Status::internal("unexpected key")) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    async fn known_metric(&self, name: &str, object: &ScaledObjectRef) -> Result<(), Status> {
        if name.is_empty() && self.fault != Fault::EmptyMetricAnswered {
            return Err(Status::invalid_argument("metricName is missing"));
        }
        let bare = match name.strip_prefix("s0-") {
            Some(bare) if self.fault != Fault::PrefixRefused => bare,
            _ => name,
        };
        let n_specs = self.shared.n_spec_calls.load(Ordering::Relaxed);
        let mut known: Vec<String> = Vec::new();
        for n in n_specs..n_specs + 2 {
            known.extend(self.specs(n).into_iter().map(|spec| spec.metric_name));
        }
        if self.fault == Fault::FirstMetricMissing {
            known.retain(|known| known != "first");
        }
        if name.is_empty() || known.iter().any(|known| known == bare) {
            return Ok(());
        }
        let n = self.shared.n_errors.fetch_add(1, Ordering::Relaxed);
        let password = object.scaler_metadata.get("passwordFromEnv");
        Err(match self.fault {
            Fault::UnknownMetricIsZero => return Ok(()),
            Fault::UnknownMetricIsUnavailable => Status::unavailable("no data yet"),
            Fault::TextCounts => Status::not_found(format!("no such metric, error {n}")),
            Fault::TextTooLong => Status::not_found("no such metric ".repeat(20)),
            Fault::TextNotAscii => Status::not_found("no such metric \u{2192} see the docs"),
            Fault::TextOfTwoLines => Status::not_found("no such metric\nsee the docs"),
            Fault::TextLeaksMetadata => Status::not_found(format!("no metric for {password:?}")),
            Fault::TextWithStackTrace => Status::not_found("panicked at src/main.rs:7"),
            Fault::ErrorsSlow => {
                sleep(WAIT).await;
                Status::not_found("no such metric")
            }
            _ => Status::not_found("no such metric"),
        })
    }

    /// Faults of time; the value says that the call is over.
    async fn delay(&self) -> Result<InFlight, Status> {
        let in_flight = InFlight(Arc::clone(&self.shared));
        let n_before = self.shared.n_in_flight.fetch_add(1, Ordering::Relaxed);
        let n_calls = self.shared.n_metrics_calls.load(Ordering::Relaxed);
        match self.fault {
            Fault::MetricsWait => sleep(Duration::from_millis(150)).await,
            Fault::MetricsSlowAtTimes if n_calls % 20 == 19 => sleep(SLOW).await,
            Fault::MetricsSlowOnce if n_calls == 1 => sleep(SLOW).await,
            Fault::MetricsHang => pending().await,
            Fault::HerdRefused => {
                if n_before >= HERD_MAX {
                    return Err(Status::resource_exhausted("too many calls"));
                }
                // So long that a busy machine has the others come meanwhile.
                sleep(Duration::from_millis(25)).await;
            }
            Fault::UnreadStreamLocks | Fault::UnreadSpecStreamLocks => {
                drop(self.shared.lock.lock().await);
            }
            _ => {}
        }
        Ok(in_flight)
    }

    async fn values(&self, asked: &str, n: usize) -> Result<Vec<MetricValue>, Status> {
        let right = match self.kind {
            Kind::Idle => value(asked, 0, 0.0),
            Kind::Load => value(asked, 24, 23.5),
            Kind::OtherName => value("another-name", 3, 3.0),
            Kind::Count | Kind::Streamed | Kind::Strict | Kind::Pull => value(asked, 3, 3.0),
        };
        Ok(match self.fault {
            Fault::MetricsAlwaysFail => return Err(Status::unavailable("no data yet")),
            Fault::NoValue => Vec::new(),
            Fault::TwoValues => vec![right.clone(), right],
            Fault::ValueFloatOnly => vec![value(asked, 0, 3.0)],
            Fault::ValueIntOnly => vec![value(asked, 3, 0.0)],
            Fault::ValueIntOff => vec![value(asked, 7, 3.0)],
            Fault::ValueNan => vec![value(asked, 3, f64::NAN)],
            Fault::ValueInfinite => vec![value(asked, 3, f64::INFINITY)],
            Fault::ValueNegative => vec![value(asked, -1, -1.0)],
            Fault::ValueHuge => vec![value(asked, 2_000_000_000, 2e9)],
            Fault::ValueNearlyWhole => vec![value(asked, 3, 3.004)],
            Fault::ActiveWithoutValue => vec![value(asked, 0, 0.0)],
            Fault::CallsMoveValue => {
                let n = u32::try_from(n).expect("few calls");
                vec![value(asked, i64::from(n), f64::from(n))]
            }
            _ => vec![right],
        })
    }

    fn active(&self) -> bool {
        self.kind != Kind::Idle && self.fault != Fault::InactiveWithValue
    }

    /// The specs of the `n`-th call.
    fn specs(&self, n: usize) -> Vec<MetricSpec> {
        let right = match self.kind {
            Kind::Load => spec(METRIC, 10, 10.0),
            _ => spec(METRIC, 1, 1.0),
        };
        match self.fault {
            Fault::NameWithSlash => vec![spec("wanted/replicas", 1, 1.0)],
            Fault::NameTooLong => vec![spec(&"wanted".repeat(9), 1, 1.0)],
            Fault::NameTwice => vec![right.clone(), right],
            Fault::NameMoves if n % 2 == 1 => vec![spec("other-replicas", 1, 1.0)],
            Fault::TargetZero => vec![spec(METRIC, 0, 0.0)],
            Fault::TargetFloatOnly => vec![spec(METRIC, 0, 1.0)],
            Fault::TargetIntOnly => vec![spec(METRIC, 1, 0.0)],
            Fault::TargetBelowThousandth => vec![spec(METRIC, 1, 0.0004)],
            Fault::TargetMoves if n % 2 == 1 => vec![spec(METRIC, 2, 2.0)],
            Fault::IntTargetOff => vec![spec(METRIC, 1, 10.0)],
            Fault::FirstMetricMissing => vec![spec("first", 1, 1.0), right],
            _ => vec![right],
        }
    }

    /// What StreamIsActive does on its `n`-th open.
    fn push_script(&self, n: usize) -> Vec<Step<IsActiveResponse>> {
        let tell = |result| Step::Tell(IsActiveResponse { result });
        let on_open = match self.fault {
            Fault::NoTrueOnOpen => false,
            Fault::TrueOnFirstOpenOnly => n == 0,
            Fault::TrueWhileInactive => true,
            _ => self.active(),
        };
        let mut steps = Vec::new();
        if on_open {
            steps.push(tell(true));
        }
        match self.fault {
            Fault::PushesFalse if n == 0 => steps.extend([Step::Wait(LATER), tell(false)]),
            Fault::PushesTwiceOnOpen => steps.push(tell(true)),
            Fault::PushesPeriodically => {
                for _time in 0..3 {
                    steps.extend([Step::Wait(Duration::from_millis(100)), tell(true)]);
                }
            }
            Fault::StreamEndsWithError if n == 0 => steps.extend([Step::Wait(LATER), Step::Fail]),
            _ => {}
        }
        steps
    }

    /// What StreamMetricSpec does on its `n`-th open.
    fn spec_script(&self, n: usize) -> Vec<Step<GetMetricSpecResponse>> {
        let tell = |metric_specs| Step::Tell(GetMetricSpecResponse { metric_specs });
        let right = tell(self.specs(0));
        let then = |step| vec![tell(self.specs(0)), Step::Wait(LATER), step];
        match self.fault {
            Fault::SpecStreamSilent => Vec::new(),
            Fault::SpecStreamEndsEmpty => vec![Step::End],
            Fault::StreamedSpecsLate => vec![Step::Wait(SLOW), right],
            // The rehearsal and the probe have theirs.
            Fault::StreamedSpecsOnce if n >= 2 => Vec::new(),
            Fault::StreamedListEmpty if n == 0 => then(tell(Vec::new())),
            Fault::StreamedNameMoves if n == 0 => then(tell(vec![spec("other-replicas", 1, 1.0)])),
            Fault::StreamedTargetZero if n == 0 => then(tell(vec![spec(METRIC, 0, 0.0)])),
            Fault::StreamedPeriodically if n == 0 => then(right),
            Fault::SpecStreamEndsWithError if n == 0 => then(Step::Fail),
            _ => vec![right],
        }
    }

    async fn lock_if(&self, fault: Fault) -> Option<OwnedMutexGuard<()>> {
        if self.fault == fault {
            Some(Arc::clone(&self.shared.lock).lock_owned().await)
        } else {
            None
        }
    }
}

/// One thing that a stream does; after the last it stays open.
enum Step<T> {
    Tell(T),
    Wait(Duration),
    Fail,
    End,
}

/// A stream about to be played.
struct Script<T> {
    steps: Vec<Step<T>>,
    /// Let go once somebody has taken the first message.
    locked: Option<OwnedMutexGuard<()>>,
    _open: Open,
}

impl<T: Send + 'static> Script<T> {
    fn play(mut self) -> impl Stream<Item = Result<T, Status>> + Send + 'static {
        self.steps.reverse();
        futures_util::stream::unfold(self, |mut script| async {
            loop {
                if script.steps.is_empty() && script.locked.is_some() {
                    // Not before the server has sent the message: it asks no more until then.
                    tokio::task::yield_now().await;
                    script.locked = None;
                }
                match script.steps.pop() {
                    Some(Step::Tell(message)) => return Some((Ok(message), script)),
                    Some(Step::Wait(duration)) => sleep(duration).await,
                    Some(Step::Fail) => {
                        return Some((Err(Status::unavailable("the source is gone")), script));
                    }
                    Some(Step::End) => return None,
                    None => pending().await,
                }
            }
        })
    }
}

/// Counts a stream on its connection while it is open.
struct Open {
    shared: Arc<Shared>,
    peer: SocketAddr,
    n_before: usize,
}

impl Open {
    fn new(shared: &Arc<Shared>, peer: Option<SocketAddr>) -> Open {
        let peer = peer.expect("TCP has a peer");
        let mut connections = shared.connections.lock().expect("no panic under the lock");
        let seen = connections.entry(peer).or_default();
        let n_before = seen.n_open;
        seen.n_open += 1;
        Open { shared: Arc::clone(shared), peer, n_before }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut connections = self.shared.connections.lock().expect("no panic under the lock");
        let seen = connections.entry(self.peer).or_default();
        seen.n_open -= 1;
        seen.n_cancelled += 1;
    }
}

/// Counts a call until it is over.
struct InFlight(Arc<Shared>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.n_in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// True if the call has the HPA's deadline.
fn by_hpa<T>(request: &Request<T>) -> bool {
    request.metadata().contains_key("grpc-timeout")
}

/// A panic without its message in the test's output.
fn unwind() -> ! {
    std::panic::resume_unwind(Box::new("a fault of the scaler under test"))
}

fn spec(metric_name: &str, target_size: i64, target_size_float: f64) -> MetricSpec {
    MetricSpec { metric_name: metric_name.to_owned(), target_size, target_size_float }
}

fn value(metric_name: &str, metric_value: i64, metric_value_float: f64) -> MetricValue {
    MetricValue { metric_name: metric_name.to_owned(), metric_value, metric_value_float }
}
