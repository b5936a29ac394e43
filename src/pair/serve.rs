//! The leader's side: its answers as a stream to each follower, and the wakes that they hand over.
//!
//! Must not decide, and must not hold up a tick: it looks at what is published.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message as _;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tonic::{Request, Response, Status, Streaming};
use tracing::{debug, info, warn};

use super::followers::Connection;
use super::wire::pair_server::{Pair, PairServer};
use super::{ANNOUNCE_AGAIN, MAX_MESSAGE_BYTES, RECALLS, Shared, entry, identity, wire};
use crate::decision::{Answer, Moment};
use crate::inventory::WorkloadKey;
use crate::registry::{Caller, Rpc, TrackerKey};

/// Time between two looks at what is published: a rising edge has 500 ms to the follower's streams.
const LOOK: Duration = Duration::from_millis(100);
/// A sign of life comes this often where nothing else does.
const BEAT: Duration = Duration::from_secs(1);
/// A changed answer is sent at once; its inputs and reasons alone at most this often, which keeps
/// 10,000 workloads at some 4 MB/s.
const DETAILS_INTERVAL: Duration = Duration::from_secs(10);
/// What was learned is sent with each changed answer, and this often. It bounds the evidence that a
/// killed leader takes with it.
const STATE_INTERVAL: Duration = Duration::from_secs(60);
/// A batch is closed at this size: it is held whole on both sides.
const BATCH_BYTES: usize = 256 * 1024;
/// Batches that wait for a slow follower.
const BATCHES: usize = 4;
/// Connections whose peer is being asked for its key; replicas are two.
const MAX_HANDSHAKES: usize = 8;
/// Of these from one address: who only connects and says nothing keeps no replica out.
const MAX_HANDSHAKES_OF_ONE: usize = 2;
/// A handshake takes two round trips, the look-up of its key one to the API server.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that is silent for longer than both is cut.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves the other replicas until `end`.
pub(super) async fn serve(
    listener: TcpListener,
    config: ServerConfig,
    shared: Arc<Shared>,
    end: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let (accepted, incoming) = mpsc::channel(MAX_HANDSHAKES);
    let service = PairServer::new(Service { shared: Arc::clone(&shared) })
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let ended = end.clone();
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(16)
        .add_service(service)
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), ended.cancelled_owned());
    tokio::select! {
        served = serving => served,
        () = accept(&listener, TlsAcceptor::from(Arc::new(config)), &shared, &accepted) => Ok(()),
        () = async { end.cancelled().await; sleep(BEAT).await } => Ok(()),
    }
}

type Accepted = io::Result<TlsStream<TcpStream>>;

async fn accept(
    listener: &TcpListener,
    acceptor: TlsAcceptor,
    shared: &Arc<Shared>,
    accepted: &mpsc::Sender<Accepted>,
) {
    let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    let of_each = Arc::new(Mutex::new(HashMap::new()));
    loop {
        let Ok(turn) = Arc::clone(&handshakes).acquire_owned().await else { return };
        let Ok((stream, peer)) = listener.accept().await else {
            // Out of descriptors: accepting again at once would spin.
            sleep(LOOK).await;
            continue;
        };
        let Some(seat) = Seat::of(peer.ip(), &of_each) else {
            debug!(%peer, "too many handshakes from one address");
            continue;
        };
        let (acceptor, accepted) = (acceptor.clone(), accepted.clone());
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            let _held = (turn, seat);
            match timeout(HANDSHAKE_TIMEOUT, admit(stream, acceptor, &shared)).await {
                Ok(Ok(stream)) => drop(accepted.send(Ok(stream)).await),
                Ok(Err(why)) => warn!(%peer, why, "a connection to the pair's port is refused"),
                Err(_elapsed) => debug!(%peer, "a handshake with the pair's port timed out"),
            }
        });
    }
}

type OfEach = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// One of the handshakes of one address.
struct Seat {
    peer: IpAddr,
    of_each: OfEach,
}

impl Seat {
    /// A further one, if it may have one.
    fn of(peer: IpAddr, of_each: &OfEach) -> Option<Seat> {
        let mut counts = of_each.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(peer).or_insert(0);
        if *count >= MAX_HANDSHAKES_OF_ONE {
            return None;
        }
        *count += 1;
        Some(Seat { peer, of_each: Arc::clone(of_each) })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut counts = self.of_each.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

/// The connection of a peer that holds the key of a replica.
async fn admit(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    shared: &Shared,
) -> Result<TlsStream<TcpStream>, String> {
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let stream = acceptor.accept(stream).await.map_err(|error| error.to_string())?;
    let certificates = stream.get_ref().1.peer_certificates();
    let key = identity::peer_key(certificates).ok_or("it has shown no key")?;
    match shared.members.knows(&key).await {
        Ok(true) => Ok(stream),
        Ok(false) => Err("its key is no replica's".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

struct Service {
    shared: Arc<Shared>,
}

type Batches = Pin<Box<ReceiverStream<Result<wire::Batch, Status>>>>;

#[tonic::async_trait]
impl Pair for Service {
    type FollowStream = Batches;

    async fn follow(
        &self,
        request: Request<Streaming<wire::FromFollower>>,
    ) -> Result<Response<Batches>, Status> {
        if !self.shared.parts.lead.decides() {
            return Err(Status::failed_precondition("not the leader"));
        }
        if !self.shared.has_recalled.load(Ordering::Acquire) {
            return Err(Status::unavailable(RECALLS));
        }
        let tls = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
        let certificates = tls.and_then(|tls| tls.peer_certs());
        let key = identity::peer_key(certificates.as_deref().map(Vec::as_slice))
            .ok_or_else(|| Status::unauthenticated("it has shown no key"))?;
        let (to, batches) = mpsc::channel(BATCHES);
        let feed = Feed {
            shared: Arc::clone(&self.shared),
            connection: self.shared.followers.connect(),
            key,
            to,
            sent: HashMap::new(),
            wakes_told: 0,
            number: 0,
            covering: VecDeque::new(),
            covered: 0,
            is_whole: false,
            last_batch: Instant::now(),
        };
        tokio::spawn(feed.run(request.into_inner()));
        Ok(Response::new(Box::pin(ReceiverStream::new(batches))))
    }

    async fn wake(
        &self,
        request: Request<wire::Workload>,
    ) -> Result<Response<wire::WakeReply>, Status> {
        let wire::Workload { namespace, name } = request.into_inner();
        let wake = self.shared.wake_here(&WorkloadKey::new(&namespace, &name)).await;
        wake.map(|wake| Response::new(wire::WakeReply { wake }))
            .ok_or_else(|| Status::unavailable("not taken"))
    }
}

impl Shared {
    /// Takes a wake as the leader; `None` if this process is not, does not know the workload, or a
    /// follower has not surely heard of it.
    pub(super) async fn wake_here(&self, key: &WorkloadKey) -> Option<Vec<u8>> {
        /// A follower answers within milliseconds, or its connection is about to be cut.
        const WITHIN: Duration = Duration::from_secs(1);
        if !self.parts.lead.decides() {
            return None;
        }
        let parts = &self.parts;
        let wake = crate::web::take_wake(&parts.registry, &parts.wakes, parts.clock, key).ok()?;
        let is_safe = self.followers.have_all(false, WITHIN).await;
        // Asked again: the right to decide may have gone meanwhile.
        let is_taken = is_safe && parts.lead.decides();
        is_taken.then(|| serde_json::to_vec(&wake).ok()).flatten()
    }
}

/// What a follower has of one trigger.
struct Sent {
    version: u64,
    answer: Answer,
    details_at: Instant,
    state_at: Instant,
    state_version: u64,
}

/// The stream to one follower.
struct Feed {
    shared: Arc<Shared>,
    connection: Connection,
    /// The follower's.
    key: String,
    to: mpsc::Sender<Result<wire::Batch, Status>>,
    sent: HashMap<TrackerKey, Sent>,
    wakes_told: u64,
    number: u64,
    /// Demands, each with the batch by which it is met.
    covering: VecDeque<(u64, u64)>,
    /// The last of them.
    covered: u64,
    is_whole: bool,
    last_batch: Instant,
}

/// The follower is gone.
struct Gone;

impl Feed {
    async fn run(mut self, from: Streaming<wire::FromFollower>) {
        info!("a replica follows");
        // Apart, so that neither end ever waits for the other to read first.
        let (heard, mut taken) = watch::channel(0);
        let hearing = tokio::spawn(hear(Arc::clone(&self.shared), from, heard));
        let _hearing = AbortOnDropHandle::new(hearing);
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut demand = self.connection.demand.clone();
        let disowned = disowned(Arc::clone(&self.shared), self.key.clone());
        tokio::pin!(disowned);
        loop {
            tokio::select! {
                () = self.to.closed() => break,
                () = &mut disowned => {
                    let why = "its key is no replica's any more";
                    warn!(why, "a replica is not served on");
                    drop(self.to.try_send(Err(Status::permission_denied(why))));
                    break;
                }
                changed = taken.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    self.note_taken(*taken.borrow_and_update());
                    continue;
                }
                _ = demand.changed() => {}
                _ = looks.tick() => {}
            }
            if !self.shared.parts.lead.decides() {
                drop(self.to.try_send(Err(Status::unavailable("no longer the leader"))));
                break;
            }
            if self.look().await.is_err() {
                break;
            }
        }
        info!("a replica follows no more");
    }

    /// The follower has everything up to this batch.
    fn note_taken(&mut self, taken: u64) {
        while let Some((demand, number)) = self.covering.front().copied()
            && number <= taken
        {
            self.connection.has_met(demand);
            self.covering.pop_front();
        }
    }

    /// Sends what is new.
    async fn look(&mut self) -> Result<(), Gone> {
        let demand = *self.connection.demand.borrow();
        let parts = Arc::clone(&self.shared.parts);
        let trackers = parts.registry.trackers();
        let mut batch = self.batch();
        let mut bytes = 0;
        batch.wakes = self.wakes();
        if self.sent.len() > trackers.len() {
            self.sent.retain(|key, _| trackers.binary_search_by(|own| own.key.cmp(key)).is_ok());
        }
        for tracker in trackers.iter() {
            let published = tracker.published.load_full();
            let due = due(self.sent.get(&tracker.key), &published, demand.with_states);
            let Some(with_state) = due else { continue };
            let state = with_state.then(|| parts.states.get(&tracker.key)).flatten();
            let entry = entry::entry(tracker, &published, state.as_ref());
            let now = Instant::now();
            let before = self.sent.get(&tracker.key).filter(|_| !with_state);
            let (state_at, state_version) =
                before.map_or((now, published.version), |sent| (sent.state_at, sent.state_version));
            let sent = Sent {
                version: published.version,
                answer: published.answer,
                details_at: now,
                state_at,
                state_version,
            };
            self.sent.insert(tracker.key.clone(), sent);
            bytes += entry.encoded_len();
            batch.entries.push(entry);
            if bytes >= BATCH_BYTES {
                self.send(std::mem::take(&mut batch)).await?;
                (batch, bytes) = (self.batch(), 0);
            }
        }
        let is_demanded = self.covered < demand.number;
        let is_due = self.last_batch.elapsed() >= BEAT;
        let is_empty = batch.entries.is_empty() && batch.wakes.is_empty();
        if is_empty && self.is_whole && !is_demanded && !is_due {
            return Ok(());
        }
        batch.whole = true;
        self.is_whole = true;
        if is_demanded {
            self.covered = demand.number;
            self.covering.push_back((demand.number, self.number + 1));
        }
        self.send(batch).await
    }

    /// The wakes that the follower has not been told of.
    fn wakes(&mut self) -> Vec<wire::Woken> {
        let parts = &self.shared.parts;
        let (wakes, told) = parts.wakes.after(self.wakes_told);
        self.wakes_told = told;
        let now = parts.clock.now();
        let woken = |(key, at): (WorkloadKey, Moment)| wire::Woken {
            workload: Some(entry::workload(&key)),
            age_ms: now.millis_since(at),
        };
        wakes.into_iter().map(woken).collect()
    }

    fn batch(&self) -> wire::Batch {
        wire::Batch {
            now_ms: self.shared.parts.clock.now().0,
            unread: self.shared.is_unread.load(Ordering::Acquire),
            ..wire::Batch::default()
        }
    }

    async fn send(&mut self, mut batch: wire::Batch) -> Result<(), Gone> {
        self.number += 1;
        batch.number = self.number;
        self.last_batch = Instant::now();
        self.to.send(Ok(batch)).await.map_err(|_closed| Gone)
    }
}

/// Asks again and again whether a key is still a replica's, until it is not twice in a row: whose record
/// was deleted has it again before the second time.
pub(super) async fn disowned(shared: Arc<Shared>, key: String) {
    /// Somewhat longer than it takes a replica to say again how it is reached.
    const SURELY: Duration = ANNOUNCE_AGAIN.saturating_add(Duration::from_secs(5));
    let mut was_missing = false;
    loop {
        let pause = if was_missing { shared.ask_again.min(SURELY) } else { shared.ask_again };
        sleep(pause).await;
        // While nobody can say, it stays.
        let is_missing = matches!(shared.members.knows(&key).await, Ok(false));
        if is_missing && was_missing {
            return;
        }
        was_missing = is_missing;
    }
}

/// Reads what the follower says, until it says no more.
async fn hear(
    shared: Arc<Shared>,
    mut from: Streaming<wire::FromFollower>,
    taken: watch::Sender<u64>,
) {
    while let Ok(Some(heard)) = from.message().await {
        taken.send_replace(heard.taken);
        for wire::Trigger { workload, metadata } in heard.triggers {
            let Some(workload) = workload else { continue };
            let wire::Workload { namespace, name } = workload;
            let registry = &shared.parts.registry;
            // What is refused here was refused there.
            drop(registry.lookup(&namespace, &name, &metadata, Caller::Poll, Rpc::GetMetricSpec));
        }
    }
}

/// Whether an answer is to be sent now, and whether with its state.
fn due(
    sent: Option<&Sent>,
    published: &crate::registry::Published,
    all_states: bool,
) -> Option<bool> {
    // The follower knows the present count itself.
    if published.version == 0 {
        return None;
    }
    let Some(sent) = sent else { return Some(true) };
    let is_new = sent.version != published.version;
    let state_is_old = sent.state_version != published.version
        && (all_states || sent.state_at.elapsed() >= STATE_INTERVAL);
    if sent.answer != published.answer || state_is_old {
        return Some(true);
    }
    (is_new && sent.details_at.elapsed() >= DETAILS_INTERVAL).then_some(false)
}
