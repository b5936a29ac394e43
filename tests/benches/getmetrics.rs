//! GetMetrics with 10,000 workloads over a real connection, beside a tonic handler that does
//! nothing with the same messages: calls per second and 99th percentile, and their ratios.
//!
//! Both servers run in this process, each on a runtime of its own, and take turns, so that what
//! else the machine does meets both alike. Bars: at least 80 % of the rate, at most 1.3 times the
//! 99th percentile.
#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use ghostscaler::clock::Clock;
use ghostscaler::decision::{Answer, Moment, Replicas};
use ghostscaler::grpc::observe::RpcMetrics;
use ghostscaler::grpc::{self, Options};
use ghostscaler::inventory::{Counted, Inventory, Kubernetes, Workload, WorkloadKey};
use ghostscaler::proto;
use ghostscaler::proto::external_scaler_client::ExternalScalerClient;
use ghostscaler::proto::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use ghostscaler::registry::{Limits, Published, Registry};
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

const N_WORKLOADS: usize = 10_000;
const IN_FLIGHT: [usize; 3] = [1, 64, 256];
const OPEN_RATE_PER_S: f64 = 10_000.0;
const N_ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(1_000);

type Client = ExternalScalerClient<Channel>;

/// What one round measured.
struct Measured {
    calls_per_s: f64,
    p99_us: f64,
}

fn main() {
    let shutdown = CancellationToken::new();
    let scaler = start_scaler(&shutdown);
    let empty = start_empty();
    runtime().block_on(async {
        let requests: Arc<Vec<_>> = Arc::new((0..N_WORKLOADS).map(request).collect());
        let clients = [connect(scaler).await, connect(empty).await];
        println!(
            "GetMetrics, {N_WORKLOADS} workloads: medians of {N_ROUNDS} rounds, and of their ratios"
        );
        println!("              calls/s     empty  ratio    p99 us     empty  ratio");
        for in_flight in IN_FLIGHT {
            let measure = async |client: &Client| closed_loop(client, &requests, in_flight).await;
            report(&format!("{in_flight}"), &alternate(&clients, measure).await);
        }
        let measure = async |client: &Client| open_loop(client, &requests).await;
        report("10,000/s", &alternate(&clients, measure).await);
    });
    shutdown.cancel();
}

/// Rounds of both servers in turn; the first pair warms up.
async fn alternate(
    [scaler, empty]: &[Client; 2],
    measure: impl AsyncFn(&Client) -> Measured,
) -> Vec<[Measured; 2]> {
    let mut rounds = Vec::new();
    for index in 0..=N_ROUNDS {
        // The order changes, so that neither always follows the other.
        let pair = if index % 2 == 0 {
            let first = measure(scaler).await;
            [first, measure(empty).await]
        } else {
            let first = measure(empty).await;
            [measure(scaler).await, first]
        };
        if index > 0 {
            rounds.push(pair);
        }
    }
    rounds
}

/// Each of `in_flight` tasks calls again as soon as it is answered.
async fn closed_loop(
    client: &Client,
    requests: &Arc<Vec<proto::GetMetricsRequest>>,
    in_flight: usize,
) -> Measured {
    let started = Instant::now();
    let deadline = started + ROUND;
    let caller = |task: usize| {
        let mut client = client.clone();
        let requests = Arc::clone(requests);
        async move {
            let mut latencies = Vec::new();
            let mut next = task * N_WORKLOADS / in_flight;
            loop {
                let begun = Instant::now();
                if begun >= deadline {
                    break latencies;
                }
                let request = requests[next % N_WORKLOADS].clone();
                client.get_metrics(request).await.expect("an answer");
                latencies.push(begun.elapsed());
                next += 1;
            }
        }
    };
    let tasks: Vec<_> = (0..in_flight).map(|task| tokio::spawn(caller(task))).collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.expect("a client task"));
    }
    measured(latencies, started.elapsed())
}

/// Calls begin on a schedule; latency counts from the intended start.
async fn open_loop(client: &Client, requests: &Arc<Vec<proto::GetMetricsRequest>>) -> Measured {
    let interval = Duration::from_secs_f64(1.0 / OPEN_RATE_PER_S);
    let started = Instant::now();
    let mut intended = started;
    let mut tasks = Vec::new();
    while intended < started + ROUND {
        if intended > Instant::now() {
            // Timers are a millisecond coarse; what falls into one is sent together.
            tokio::time::sleep_until(intended).await;
        }
        let mut client = client.clone();
        let request = requests[tasks.len() % N_WORKLOADS].clone();
        tasks.push(tokio::spawn(async move {
            client.get_metrics(request).await.expect("an answer");
            intended.elapsed()
        }));
        intended += interval;
    }
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.push(task.await.expect("a client task"));
    }
    measured(latencies, started.elapsed())
}

fn measured(mut latencies: Vec<Duration>, elapsed: Duration) -> Measured {
    latencies.sort_unstable();
    let p99 = latencies[latencies.len() * 99 / 100];
    let n_calls = u32::try_from(latencies.len()).expect("few calls");
    Measured {
        calls_per_s: f64::from(n_calls) / elapsed.as_secs_f64(),
        p99_us: p99.as_secs_f64() * 1e6,
    }
}

fn report(name: &str, rounds: &[[Measured; 2]]) {
    let median = |value: &dyn Fn(&[Measured; 2]) -> f64| {
        let mut values: Vec<_> = rounds.iter().map(value).collect();
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!(
        "{name:>11} {:>9.0} {:>9.0} {:>6.2} {:>9.0} {:>9.0} {:>6.2}",
        median(&|[scaler, _]| scaler.calls_per_s),
        median(&|[_, empty]| empty.calls_per_s),
        median(&|[scaler, empty]| scaler.calls_per_s / empty.calls_per_s),
        median(&|[scaler, _]| scaler.p99_us),
        median(&|[_, empty]| empty.p99_us),
        median(&|[scaler, empty]| scaler.p99_us / empty.p99_us),
    );
}

fn metadata(index: usize) -> BTreeMap<String, String> {
    let entries = [
        ("scalerAddress", "ghostscaler.ghostscaler.svc.cluster.local:9090".to_owned()),
        ("modelName", format!("meta-llama/Llama-3.1-70B-Instruct-{index}")),
        ("sloTtft", "1500ms".to_owned()),
        ("zeroAfter", "30m".to_owned()),
    ];
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn request(index: usize) -> proto::GetMetricsRequest {
    let scaled_object = proto::ScaledObjectRef {
        name: format!("model-{index}"),
        namespace: format!("team-{}", index % 100),
        scaler_metadata: metadata(index).into_iter().collect(),
    };
    proto::GetMetricsRequest {
        scaled_object_ref: Some(scaled_object),
        metric_name: grpc::METRIC_NAME.to_owned(),
    }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}

fn start_scaler(shutdown: &CancellationToken) -> SocketAddr {
    let workload = |index: usize| {
        let key = WorkloadKey::new(&format!("team-{}", index % 100), &format!("model-{index}"));
        let workload = Workload {
            key: key.clone(),
            min: 0,
            max: 8,
            fallback_replicas: None,
            triggers: vec![metadata(index)],
            replicas: Replicas { spec: Some(3), ..Replicas::default() },
            members: Vec::new(),
            counted: Counted::ByKubernetes,
            paused: false,
            kubernetes: Kubernetes::default(),
            gpus_per_replica: None,
        };
        (key, Arc::new(workload))
    };
    let workloads = (0..N_WORKLOADS).map(workload).collect();
    let registry = Registry::new(Limits::default(), Clock::start());
    registry.set_inventory(Arc::new(Inventory { synced: true, workloads, ..Inventory::default() }));
    assert_eq!(registry.trackers().len(), N_WORKLOADS);
    for tracker in registry.trackers().iter() {
        let answer = Answer::Value { want: 3, active: true };
        tracker.publish(Published {
            version: 1,
            at: Moment(0),
            answer,
            decision: None,
            spec: None,
        });
    }
    let metrics = RpcMetrics::default();
    let server = grpc::spawn(listener(), registry, metrics, Options::default(), shutdown.clone());
    server.expect("a running scaler").address
}

/// The same service with nothing behind it.
struct Empty;

#[tonic::async_trait]
impl ExternalScaler for Empty {
    type StreamIsActiveStream = tokio_stream::Empty<Result<proto::IsActiveResponse, Status>>;
    type StreamMetricSpecStream = tokio_stream::Empty<Result<proto::GetMetricSpecResponse, Status>>;

    async fn get_metrics(
        &self,
        _request: Request<proto::GetMetricsRequest>,
    ) -> Result<Response<proto::GetMetricsResponse>, Status> {
        let value = proto::MetricValue {
            metric_name: grpc::METRIC_NAME.to_owned(),
            metric_value: 3,
            metric_value_float: 3.0,
        };
        Ok(Response::new(proto::GetMetricsResponse { metric_values: vec![value] }))
    }

    async fn get_metric_spec(
        &self,
        _request: Request<proto::ScaledObjectRef>,
    ) -> Result<Response<proto::GetMetricSpecResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn is_active(
        &self,
        _request: Request<proto::ScaledObjectRef>,
    ) -> Result<Response<proto::IsActiveResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn stream_is_active(
        &self,
        _request: Request<proto::ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn stream_metric_spec(
        &self,
        _request: Request<proto::ScaledObjectRef>,
    ) -> Result<Response<Self::StreamMetricSpecStream>, Status> {
        Err(Status::unimplemented(""))
    }
}

fn start_empty() -> SocketAddr {
    let listener = listener();
    listener.set_nonblocking(true).expect("a non-blocking listener");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        runtime().block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            tonic::transport::Server::builder()
                .add_service(ExternalScalerServer::new(Empty))
                .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
                .await
                .expect("the empty server serves");
        });
    });
    address
}

async fn connect(address: SocketAddr) -> Client {
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
    ExternalScalerClient::new(endpoint.connect().await.expect("a connection"))
}
