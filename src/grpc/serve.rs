//! Listens, serves on a runtime of its own, and drains in order.
//!
//! Must not share a thread with decisions, scrapes or API calls: an answer may not wait for them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::{StreamExt as _, unfold};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::server::NamedService;
use tonic::transport::server::{Connected, Router};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::observe::RpcMetrics;
use super::service::{Service, jittered};
use super::tls::{self, Tls};
use crate::health::Pulse;
use crate::listen::{Asking, Guarded, Place, Places};
use crate::proto;
use crate::proto::external_scaler_server::ExternalScalerServer;
use crate::registry::Registry;

/// Threads of the service's runtime: two, so that one that the system suspends delays no other
/// call.
const WORKERS: usize = 2;

/// Connections at once. A further one is served all the same, in the place of the one that has asked
/// for nothing for longest: KEDA asks every few seconds over one or two, the probes over one each.
/// With the other caps of the process this stays within the customary 1,024 descriptors.
const MAX_CONNECTIONS: usize = 256;

/// What every HTTP/2 client says first.
const PREFACE_BYTES: usize = 24;

/// Time for the preface, once a connection and its TLS stand.
pub(super) const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages above this are refused while they arrive. Metadata is refused above 16 KiB already, by
/// a status that says so; this bounds what is held before it can be looked at.
const MAX_MESSAGE_BYTES: usize = 2 * 1024 * 1024;

/// Time for a request to arrive whole. Answering takes microseconds; only a caller that stops in
/// the middle of its request can reach this.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Streams of one connection that may be cancelled before they are accepted: two a trigger of the
/// 10,000 that the process is built for, as when an operator stops. At its own 20, h2 cuts the
/// connection with everybody's calls on it. One takes less than 1 KiB until it is accepted.
const MAX_PENDING_RESETS: usize = 20_000;

/// Flow-control window of a connection. Of half of it h2 takes 256 bytes for each small request that
/// it has not handed on yet, and cuts the connection when that is used up: at 16,384 calls at once.
const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;

/// How often the service shows that it lives.
const BEAT: Duration = Duration::from_secs(1);

/// How the service runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// After how long a connection is told to go away, and a stream ends, each with a jitter of a
    /// tenth. Default ten minutes: a client behind a Service address finds new replicas only by
    /// connecting anew.
    pub max_age: Duration,
    /// Time between turning not ready and ending the streams, for endpoints to be removed.
    /// Default 5 s.
    pub drain_delay: Duration,
    /// Time for running calls to end after that. Default 5 s.
    pub grace: Duration,
    /// Time between pings of a client; one that leaves a ping unanswered for a third of it is cut
    /// off. Default 30 s.
    pub ping_interval: Duration,
    /// How long the process has to be not ready before its connections are told to go away, and how
    /// often from then on. Default 8 s: by then a Service of Kubernetes sends nobody here who connects
    /// anew (three probes, 2 s apart, and its endpoints).
    pub move_after: Duration,
    /// Certificate files; `None` serves plaintext.
    pub tls: Option<Tls>,
    /// Beaten each second while the service's threads turn; `None` shows it to nobody.
    pub pulse: Option<Pulse>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_age: Duration::from_secs(600),
            drain_delay: Duration::from_secs(5),
            grace: Duration::from_secs(5),
            ping_interval: Duration::from_secs(30),
            move_after: Duration::from_secs(8),
            tls: None,
            pulse: None,
        }
    }
}

/// Why the service could not be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The listener, a thread or the runtime could not be set up.
    #[error("the gRPC service could not be started")]
    Start(#[source] io::Error),
    /// The reflection service could not be made from the descriptors.
    #[error("the proto descriptors could not be read")]
    Descriptors(#[source] tonic_reflection::server::Error),
    /// The certificate files are no usable TLS configuration.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The transport failed.
    #[error("the gRPC transport failed")]
    Transport(#[source] tonic::transport::Error),
    /// The service's thread ended without a word.
    #[error("the gRPC service's thread ended unexpectedly")]
    Thread,
}

/// Says whether the process can answer, for the health service. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Readiness {
    ready: watch::Sender<bool>,
}

impl Readiness {
    /// Sets it. Not ready until the first call, and again once a shutdown has begun.
    pub fn set(&self, ready: bool) {
        self.ready.send_replace(ready);
    }
}

/// The running service.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    /// The handle on its readiness.
    pub readiness: Readiness,
    finished: oneshot::Receiver<Result<(), Error>>,
}

impl Server {
    /// Waits until the service has ended, which is after `shutdown` unless it failed.
    ///
    /// # Errors
    ///
    /// When it could not serve.
    pub async fn finished(self) -> Result<(), Error> {
        self.finished.await.unwrap_or(Err(Error::Thread))
    }
}

/// Serves `registry` on a thread and runtime of its own until `shutdown` is cancelled; then turns
/// not ready, waits [`Options::drain_delay`], ends the streams with OK, stops accepting, and waits
/// at most [`Options::grace`] for the connections to close.
///
/// # Errors
///
/// When the listener, the certificate files or the thread cannot be used. A runtime that cannot be
/// made is told by [`Server::finished`].
pub fn spawn(
    listener: std::net::TcpListener,
    registry: Registry,
    metrics: RpcMetrics,
    options: Options,
    shutdown: CancellationToken,
) -> Result<Server, Error> {
    spawn_on(runtime, listener, registry, metrics, options, shutdown)
}

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name("grpc")
        .enable_all()
        .build()
}

/// `runtime` is called on the service's own thread: one that is dropped where tasks run, as on the
/// way out of a fault here, panics.
fn spawn_on(
    runtime: impl FnOnce() -> io::Result<Runtime> + Send + 'static,
    listener: std::net::TcpListener,
    registry: Registry,
    metrics: RpcMetrics,
    options: Options,
    shutdown: CancellationToken,
) -> Result<Server, Error> {
    let address = listener.local_addr().map_err(Error::Start)?;
    listener.set_nonblocking(true).map_err(Error::Start)?;
    let load = |files| tls::Acceptor::load(files, metrics.clone());
    let acceptor = options.tls.clone().map(load).transpose()?;
    let readiness = Readiness { ready: watch::Sender::new(false) };
    let (ended, finished) = oneshot::channel();
    let serving = Serving { registry, metrics, options, acceptor, shutdown };
    let ready = readiness.ready.subscribe();
    std::thread::Builder::new()
        .name("grpc-main".to_owned())
        .spawn(move || {
            let result = runtime().map_err(Error::Start).and_then(|runtime| {
                let result = runtime.block_on(serving.run(listener, ready));
                // What is left are connections that outlived the grace; nothing waits for them.
                runtime.shutdown_background();
                result
            });
            drop(ended.send(result));
        })
        .map_err(Error::Start)?;
    Ok(Server { address, readiness, finished })
}

/// What the service's thread runs with.
struct Serving {
    registry: Registry,
    metrics: RpcMetrics,
    options: Options,
    acceptor: Option<tls::Acceptor>,
    shutdown: CancellationToken,
}

impl Serving {
    async fn run(
        mut self,
        listener: std::net::TcpListener,
        ready: watch::Receiver<bool>,
    ) -> Result<(), Error> {
        let listener = TcpListener::from_std(listener).map_err(Error::Start)?;
        let places = Places::new(MAX_CONNECTIONS);
        let drained = CancellationToken::new();
        let acceptor = self.acceptor.take();
        let serve = async {
            match acceptor {
                Some(acceptor) => {
                    let incoming = acceptor.incoming(listener, places);
                    self.serve(incoming, ready, &drained).await
                }
                None => {
                    let incoming = unfold((listener, places), async |(listener, places)| {
                        let (stream, _peer, place) = places.accept(&listener).await;
                        let stream = stream.set_nodelay(true).map(|()| guarded(stream, place));
                        Some((stream, (listener, places)))
                    });
                    self.serve(incoming, ready, &drained).await
                }
            }
        };
        let end = async {
            self.shutdown.cancelled().await;
            sleep(self.options.drain_delay).await;
            drained.cancel();
            sleep(self.options.grace).await;
        };
        tokio::select! {
            served = serve => served,
            () = beat(self.options.pulse.clone()) => Ok(()),
            () = end => {
                tracing::warn!("connections still open at the end of the grace are dropped");
                Ok(())
            }
        }
    }

    /// Serves in turns until `drained`: when the process is no longer ready a turn ends, and with it the
    /// connections that it has accepted, so that who is connected asks where there is an answer.
    async fn serve<T>(
        &self,
        incoming: impl Stream<Item = io::Result<Guarded<T>>> + Send + 'static,
        mut ready: watch::Receiver<bool>,
        drained: &CancellationToken,
    ) -> Result<(), Error>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (reporter, health) = tonic_health::server::health_reporter();
        report(&reporter, false).await;
        tokio::spawn(follow_readiness(reporter, ready.clone(), self.shutdown.clone()));
        let incoming = Arc::new(Mutex::new(Box::pin(incoming)));
        let turns = TaskTracker::new();
        let mut was_ready = false;
        loop {
            let (streams_end, turn_end) = (CancellationToken::new(), CancellationToken::new());
            let router = self.router(health.clone(), streams_end.clone())?;
            let accepted = unfold(Arc::clone(&incoming), async |incoming| {
                let next = incoming.lock().await.next().await?;
                Some((next, incoming))
            });
            let ended = turn_end.clone().cancelled_owned();
            let mut turn = turns.spawn(router.serve_with_incoming_shutdown(accepted, ended));
            let is_last = tokio::select! {
                served = &mut turn => {
                    return served.map_err(|_panicked| Error::Thread)?.map_err(Error::Transport);
                }
                () = drained.cancelled() => true,
                () = lost(&mut ready, &mut was_ready, self.options.move_after) => false,
            };
            streams_end.cancel();
            turn_end.cancel();
            if is_last {
                // With it goes the listener.
                drop(incoming);
                turns.close();
                turns.wait().await;
                return Ok(());
            }
            tracing::info!("not ready: connections are told to go away");
        }
    }

    fn router<H: Health>(
        &self,
        health: HealthServer<H>,
        streams_end: CancellationToken,
    ) -> Result<Router, Error> {
        let service = Service {
            registry: self.registry.clone(),
            metrics: self.metrics.clone(),
            streams_end,
            stream_age: self.options.max_age,
        };
        let scaler =
            ExternalScalerServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES);

        let descriptors = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // No limit of concurrent streams: KEDA holds one or two a trigger on one connection, and
        // its client waits without a deadline for a free one. No grace to the age of connections
        // either: with one, tonic drops the connection without telling the client.
        Ok(tonic::transport::Server::builder()
            .timeout(REQUEST_TIMEOUT)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
            .http2_keepalive_interval(Some(self.options.ping_interval))
            .http2_keepalive_timeout(Some(self.options.ping_interval / 3))
            .max_connection_age(jittered(self.options.max_age))
            .add_service(scaler)
            .add_service(health)
            .add_service(descriptors().build_v1().map_err(Error::Descriptors)?)
            .add_service(descriptors().build_v1alpha().map_err(Error::Descriptors)?))
    }
}

/// The connection as the service sees it: it has to begin with HTTP/2 in time.
pub(super) fn guarded<T>(stream: T, place: Place) -> Guarded<T> {
    Guarded::new(stream, place, PREFACE_BYTES, PREFACE_TIMEOUT)
}

impl<T> Connected for Guarded<T> {
    type ConnectInfo = Asking;

    fn connect_info(&self) -> Asking {
        self.asking()
    }
}

/// Beats while both the thread that accepts, which runs this, and a worker that answers come round.
async fn beat(pulse: Option<Pulse>) {
    let Some(pulse) = pulse else { return std::future::pending().await };
    let mut beats = tokio::time::interval(BEAT);
    loop {
        beats.tick().await;
        let pulse = pulse.clone();
        // Only a panic could make it fail, and then nothing has beaten.
        drop(tokio::spawn(async move { pulse.beat() }).await);
    }
}

/// Ends when the process has been ready before and not for `within`.
async fn lost(ready: &mut watch::Receiver<bool>, was_ready: &mut bool, within: Duration) {
    loop {
        if *ready.borrow_and_update() {
            *was_ready = true;
        } else if *was_ready {
            match timeout(within, ready.wait_for(|ready| *ready)).await {
                Err(_elapsed) => return,
                Ok(Ok(_)) => continue,
                Ok(Err(_ended)) => break,
            }
        }
        if ready.changed().await.is_err() {
            break;
        }
    }
    // Nobody says any more; the end is near.
    std::future::pending().await
}

/// Carries the readiness to the health service; a shutdown turns it off for good.
async fn follow_readiness(
    reporter: tonic_health::server::HealthReporter,
    mut ready: watch::Receiver<bool>,
    shutdown: CancellationToken,
) {
    loop {
        let now = *ready.borrow_and_update();
        report(&reporter, now).await;
        let changed = shutdown.run_until_cancelled(ready.changed()).await;
        if !matches!(changed, Some(Ok(()))) {
            break;
        }
    }
    // Dropping the last handle means the same as a shutdown: nobody can vouch for readiness.
    report(&reporter, false).await;
}

async fn report(reporter: &tonic_health::server::HealthReporter, ready: bool) {
    let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    for name in ["", <ExternalScalerServer<Service> as NamedService>::NAME] {
        reporter.set_service_status(name, status).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::clock::Clock;
    use crate::health;
    use crate::registry::Limits;

    async fn until(reached: impl Fn() -> bool) {
        let wait = async {
            while !reached() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(60), wait).await.expect("within a minute");
    }

    #[tokio::test]
    async fn a_runtime_whose_workers_hang_is_known_as_hung_until_they_turn_again() {
        let clock = Clock::start();
        let health = health::Health::with_limit(clock, 3_000);
        let options = Options { pulse: Some(health.pulse("grpc")), ..Options::default() };
        let runtime = runtime().unwrap();
        let workers = runtime.handle().clone();
        let shutdown = CancellationToken::new();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let registry = Registry::new(Limits::default(), clock);
        let metrics = RpcMetrics::default();
        let runtime = || Ok(runtime);
        let server =
            spawn_on(runtime, listener, registry, metrics, options, shutdown.clone()).unwrap();
        let started_at = clock.now();
        until(|| clock.now().millis_since(started_at) > 3_500).await;
        // It beats while nothing is asked: on a machine that has just stood still, in a moment.
        until(|| health.hung().is_empty()).await;

        let mut releases = Vec::new();
        for _ in 0..WORKERS {
            let (release, released) = mpsc::channel::<()>();
            releases.push(release);
            workers.spawn(async move { released.recv().ok() });
        }
        until(|| health.hung().iter().any(|(name, _)| *name == "grpc")).await;
        drop(releases);
        until(|| health.hung().is_empty()).await;
        shutdown.cancel();
        server.finished().await.unwrap();
    }

    #[tokio::test]
    async fn files_that_are_no_certificate_are_an_error_to_the_task_that_starts_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tls.crt");
        std::fs::write(&file, "no PEM").unwrap();
        let reload_interval = tls::RELOAD_INTERVAL;
        let files = Tls { certificate: file.clone(), key: file, client_ca: None, reload_interval };
        let options = Options { tls: Some(files), ..Options::default() };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let registry = Registry::new(Limits::default(), Clock::start());
        let refused =
            spawn(listener, registry, RpcMetrics::default(), options, CancellationToken::new());
        assert!(matches!(refused, Err(Error::Tls(tls::Error::Pem { what: "certificate", .. }))));
    }
}
