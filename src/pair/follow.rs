//! The follower's side: takes the leader's answers over as its own.
//!
//! Must not decide. What has arrived stays in force when the stream breaks; how old it may get is
//! the caller's affair.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use tracing::{info, warn};

use super::entry::{self, Received};
use super::wire::pair_client::PairClient;
use super::{MAX_MESSAGE_BYTES, RECALLS, Shared, identity, wire};
use crate::cluster::members::Member;
use crate::decision::Moment;
use crate::inventory::WorkloadKey;
use crate::registry::{Tracker, TrackerKey};

/// For TCP, TLS and the leader's look-up of the key.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(6);
/// The leader gives a sign of life each second; after this its stream is dead.
const SILENCE: Duration = Duration::from_secs(5);
/// Clocks that are kept differ by milliseconds.
const MAX_SKEW_MS: i64 = 5_000;
/// Answers of triggers that are not in the own inventory yet: the leader's may be ahead by a moment.
const MAX_PENDING: usize = 1_000;
/// Most triggers that are told at once: 16 KiB each at most, so 4 MiB.
const MAX_TRIGGERS: usize = 256;
/// How often the triggers that only calls have brought are told: well within the ten minutes for which
/// the leader keeps one that nobody asks for.
const TELL_INTERVAL: Duration = Duration::from_secs(60);
/// Messages to the leader that wait: one for each of its batches.
const BACKLOG: usize = 16;

/// Why the leader is no longer followed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// No connection.
    #[error("the leader at {address} cannot be reached")]
    Connect {
        address: String,
        #[source]
        source: tonic::transport::Error,
    },
    /// The key or the address cannot be used.
    #[error("the leader's record cannot be used")]
    Record(#[from] identity::Error),
    /// It leads, and reads what was learned before; until then it answers nobody.
    #[error("the leader recalls what was learned before")]
    Recalls,
    /// The stream was refused or has broken.
    #[error("the leader's stream has ended: {0}")]
    Stream(String),
    /// The own inventory is behind: the answers come again once it is followed anew.
    #[error("more than {MAX_PENDING} answers are of workloads that are not listed here yet")]
    Ahead,
    /// Nothing came.
    #[error("the leader has been silent for {} s", SILENCE.as_secs())]
    Silent,
}

/// Connects to the leader.
pub(super) async fn connect(
    own: &identity::Identity,
    leader: &Member,
) -> Result<PairClient<Channel>, Error> {
    let tls = TlsConnector::from(Arc::new(own.client(&leader.key)?));
    let name = identity::server_name().map_err(identity::Error::from)?;
    let address = leader.address.clone();
    let connector = tower::service_fn(move |_uri| {
        let (tls, name, address) = (tls.clone(), name.clone(), address.clone());
        async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok::<_, std::io::Error>(TokioIo::new(tls.connect(name, stream).await?))
        }
    });
    // The connector knows where to; the name is for nobody.
    let endpoint = Endpoint::from_static("http://ghostscaler").connect_timeout(CONNECT_TIMEOUT);
    let connected = endpoint.connect_with_connector(connector).await;
    let failed = |source| Error::Connect { address: leader.address.clone(), source };
    let client = PairClient::new(connected.map_err(failed)?);
    Ok(client
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES))
}

/// Takes the leader's answers over until its stream ends.
pub(super) async fn follow(
    shared: &Shared,
    mut client: PairClient<Channel>,
) -> Result<std::convert::Infallible, Error> {
    let (to, messages) = mpsc::channel(BACKLOG);
    let stream = timeout(SILENCE, client.follow(ReceiverStream::new(messages)));
    let mut stream = stream
        .await
        .map_err(|_elapsed| Error::Silent)?
        .map_err(|status| match status.message() {
            RECALLS => Error::Recalls,
            why => Error::Stream(why.to_owned()),
        })?
        .into_inner();
    let mut mirror = Mirror::new(shared);
    let mut told = HashMap::new();
    loop {
        let batch = next(&mut stream).await?;
        let taken = batch.number;
        mirror.take(batch)?;
        let triggers = brought(shared, &mut told);
        let message = wire::FromFollower { taken, triggers };
        to.send(message).await.map_err(|_closed| Error::Stream("closed".to_owned()))?;
    }
}

async fn next(stream: &mut Streaming<wire::Batch>) -> Result<wire::Batch, Error> {
    match timeout(SILENCE, stream.message()).await {
        Ok(Ok(Some(batch))) => Ok(batch),
        Ok(Ok(None)) => Err(Error::Stream("closed".to_owned())),
        Ok(Err(status)) => Err(Error::Stream(status.message().to_owned())),
        Err(_elapsed) => Err(Error::Silent),
    }
}

/// The triggers that only calls have brought and that are to be told now, so that the leader decides for
/// them too: each at once, and then again and again.
fn brought(shared: &Shared, told: &mut HashMap<TrackerKey, Instant>) -> Vec<wire::Trigger> {
    let trackers = shared.parts.registry.trackers();
    told.retain(|_, at| at.elapsed() < TELL_INTERVAL);
    let trigger = |tracker: &Arc<Tracker>| {
        let metadata = tracker.brought_by.as_ref()?;
        let workload = Some(entry::workload(&tracker.key.workload));
        Some(wire::Trigger { workload, metadata: metadata.iter().cloned().collect() })
    };
    let unlisted = trackers.iter().filter(|tracker| !tracker.is_listed());
    let due: Vec<_> =
        unlisted.filter(|own| !told.contains_key(&own.key)).take(MAX_TRIGGERS).collect();
    told.extend(due.iter().map(|own| (own.key.clone(), Instant::now())));
    due.into_iter().filter_map(trigger).collect()
}

/// The leader's answers on their way to the own registry.
pub(super) struct Mirror<'a> {
    shared: &'a Shared,
    is_whole: bool,
    /// It is told that the clocks differ.
    is_skewed: bool,
    partial: u64,
}

impl Mirror<'_> {
    pub(super) fn new(shared: &Shared) -> Mirror<'_> {
        // All of them come again.
        shared.pending().clear();
        Mirror { shared, is_whole: false, is_skewed: false, partial: 0 }
    }

    pub(super) fn take(&mut self, batch: wire::Batch) -> Result<(), Error> {
        let parts = &self.shared.parts;
        let now = parts.clock.now();
        let later_ms = now.0.saturating_sub(batch.now_ms);
        if later_ms.abs() > MAX_SKEW_MS && !std::mem::replace(&mut self.is_skewed, true) {
            warn!(
                later_ms,
                "the clocks of the replicas differ: what was learned bears the leader's time"
            );
        }
        let pending = std::mem::take(&mut *self.shared.pending());
        for pending in pending.into_values() {
            self.put(pending)?;
        }
        for entry in batch.entries {
            let Some(received) = entry::received(entry, later_ms) else { continue };
            if received.is_partial {
                self.partial += 1;
                if self.partial == 1 {
                    info!(
                        workload = %received.key.workload,
                        "the leader is of another version: its answers are taken without reasons"
                    );
                }
            }
            self.put(received)?;
        }
        for woken in batch.wakes {
            let Some(workload) = woken.workload else { continue };
            let key = WorkloadKey::new(&workload.namespace, &workload.name);
            // Also of a workload that is not listed here yet, since it is acknowledged; the leader knows
            // it, which bounds what is remembered.
            parts.wakes.request(&key, now.minus_millis(woken.age_ms));
        }
        self.shared.is_unread.store(batch.unread, Ordering::Release);
        self.is_whole |= batch.whole;
        if self.is_whole {
            self.shared.mirrored(Moment(batch.now_ms));
        }
        Ok(())
    }

    fn put(&mut self, mut received: Received) -> Result<(), Error> {
        let parts = &self.shared.parts;
        let trackers = parts.registry.trackers();
        // Also of a trigger that is not tracked here: it may have to be led before it is.
        if let Some(state) = received.state.take() {
            parts.states.put(received.key.clone(), state.handed_over());
        }
        let found = trackers.binary_search_by(|tracker| tracker.key.cmp(&received.key));
        let Some(tracker) = found.ok().and_then(|index| trackers.get(index)) else {
            let mut pending = self.shared.pending();
            pending.insert(received.key.clone(), received);
            return if pending.len() > MAX_PENDING { Err(Error::Ahead) } else { Ok(()) };
        };
        // Before the answer, whose reader may look for it.
        if received.observation.is_some() {
            tracker.observed.store(received.observation);
        }
        tracker.publish(received.published);
        Ok(())
    }
}
