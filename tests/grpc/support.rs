//! A scaler on a port of its own, an inventory to fill it with, and a client in KEDA's role.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut};
use ghostscaler::clock::Clock;
use ghostscaler::decision::{Answer, Moment, Replicas, Unavailable};
use ghostscaler::grpc::observe::RpcMetrics;
use ghostscaler::grpc::{self, Options, Readiness, Server};
use ghostscaler::inventory::{Counted, Inventory, Kubernetes, Workload, WorkloadKey};
use ghostscaler::proto::external_scaler_client::ExternalScalerClient;
use ghostscaler::proto::{GetMetricsRequest, IsActiveResponse, ScaledObjectRef};
use ghostscaler::registry::{Caller, Limits, Published, Registry, Rpc, Tracker};
use tokio_util::sync::CancellationToken;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

pub(super) type Client = ExternalScalerClient<Channel>;

/// Long enough for a machine under load, short enough to see a hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for something that must come.
pub(super) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it comes within the patience of a test")
}

/// A running scaler.
pub(super) struct Scaler {
    pub(super) registry: Registry,
    pub(super) metrics: RpcMetrics,
    pub(super) readiness: Readiness,
    pub(super) address: SocketAddr,
    shutdown: CancellationToken,
    server: Option<Server>,
}

impl Scaler {
    pub(super) fn start(workloads: &[Arc<Workload>]) -> Scaler {
        Scaler::start_with(workloads, options())
    }

    pub(super) fn start_with(workloads: &[Arc<Workload>], options: Options) -> Scaler {
        let scaler = Scaler::unsynced(options);
        scaler.registry.set_inventory(inventory(workloads));
        scaler
    }

    /// A scaler that has not seen an inventory yet.
    pub(super) fn unsynced(options: Options) -> Scaler {
        let registry = Registry::new(Limits::default(), Clock::start());
        let metrics = RpcMetrics::default();
        let shutdown = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server =
            grpc::spawn(listener, registry.clone(), metrics.clone(), options, shutdown.clone())
                .unwrap();
        Scaler {
            registry,
            metrics,
            readiness: server.readiness.clone(),
            address: server.address,
            shutdown,
            server: Some(server),
        }
    }

    pub(super) async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.address)).unwrap();
        soon(endpoint.connect()).await.unwrap()
    }

    pub(super) async fn client(&self) -> Client {
        ExternalScalerClient::new(self.channel().await)
    }

    /// The tracker that a call with this metadata finds.
    pub(super) fn tracker(&self, name: &str, metadata: &[(&str, &str)]) -> Arc<Tracker> {
        self.registry.lookup("ns", name, &map(metadata), Caller::Poll, Rpc::GetMetricSpec).unwrap()
    }

    /// Begins the shutdown.
    pub(super) fn stop(&self) {
        self.shutdown.cancel();
    }

    /// Waits for the end that [`Scaler::stop`] has begun.
    pub(super) async fn finished(&mut self) -> Result<(), grpc::Error> {
        soon(self.server.take().expect("waited for once").finished()).await
    }
}

impl Drop for Scaler {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Options without delays.
pub(super) fn options() -> Options {
    Options { drain_delay: Duration::ZERO, ..Options::default() }
}

pub(super) fn inventory(workloads: &[Arc<Workload>]) -> Arc<Inventory> {
    let workloads: BTreeMap<_, _> =
        workloads.iter().map(|workload| (workload.key.clone(), Arc::clone(workload))).collect();
    Arc::new(Inventory { synced: true, workloads, ..Inventory::default() })
}

/// A workload in namespace `ns` with one trigger without keys.
pub(super) fn workload(name: &str, min: u32, spec: Option<u32>) -> Arc<Workload> {
    Arc::new(Workload {
        key: WorkloadKey::new("ns", name),
        min,
        max: 8,
        fallback_replicas: None,
        triggers: vec![BTreeMap::new()],
        replicas: Replicas { spec, ..Replicas::default() },
        members: Vec::new(),
        paused: false,
        kubernetes: Kubernetes::default(),
        counted: Counted::ByKubernetes,
        gpus_per_replica: None,
    })
}

pub(super) fn map(metadata: &[(&str, &str)]) -> HashMap<String, String> {
    metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(super) fn scaled_object(name: &str, metadata: &[(&str, &str)]) -> ScaledObjectRef {
    ScaledObjectRef {
        name: name.to_owned(),
        namespace: "ns".to_owned(),
        scaler_metadata: map(metadata),
    }
}

pub(super) fn metrics_of(name: &str, metadata: &[(&str, &str)]) -> GetMetricsRequest {
    GetMetricsRequest {
        scaled_object_ref: Some(scaled_object(name, metadata)),
        metric_name: "wanted-replicas".to_owned(),
    }
}

/// A request in the HPA's role: with the deadline that its API server sets.
pub(super) fn from_hpa<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(Duration::from_secs(60));
    request
}

pub(super) async fn wanted(client: &mut Client, name: &str) -> Result<i64, Status> {
    let response = soon(client.get_metrics(metrics_of(name, &[]))).await?.into_inner();
    Ok(response.metric_values[0].metric_value)
}

pub(super) async fn is_active(client: &mut Client, name: &str) -> Result<bool, Status> {
    Ok(soon(client.is_active(scaled_object(name, &[]))).await?.into_inner().result)
}

pub(super) async fn open_stream(client: &mut Client, name: &str) -> Streaming<IsActiveResponse> {
    soon(client.stream_is_active(scaled_object(name, &[]))).await.unwrap().into_inner()
}

/// The next message of a stream that must come.
pub(super) async fn pushed(stream: &mut Streaming<IsActiveResponse>) -> Option<bool> {
    soon(stream.message()).await.unwrap().map(|message| message.result)
}

pub(super) fn publish(tracker: &Tracker, version: u64, want: u32) {
    let answer = Answer::Value { want, active: want > 0 };
    tracker.publish(Published { version, at: Moment(0), answer, decision: None, spec: None });
}

pub(super) fn publish_outage(tracker: &Tracker, version: u64) {
    let answer = Answer::Unavailable { why: Unavailable::SourceLost };
    tracker.publish(Published { version, at: Moment(0), answer, decision: None, spec: None });
}

/// Sends bytes as they are.
#[derive(Default)]
pub(super) struct RawCodec;

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = RawCodec;
    type Decoder = RawCodec;

    fn encoder(&mut self) -> RawCodec {
        RawCodec
    }

    fn decoder(&mut self) -> RawCodec {
        RawCodec
    }
}

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length).to_vec()))
    }
}
