//! Checklist B and C: metadata faults, and errors as quick as values.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use arc_swap::ArcSwap;
use ghostscaler::clock::Clock;
use ghostscaler::config;
use ghostscaler::decision::{Moment, Phase};
use ghostscaler::health::Health;
use ghostscaler::inventory::{Endpoint, Member, Workload};
use ghostscaler::lead::Lead;
use ghostscaler::metrics::{Metrics, Page};
use ghostscaler::registry::{Caller, Rpc};
use ghostscaler::source::scrape::{self, Scraper};
use ghostscaler::tick::{self, Parts, States, Upstreams};
use ghostscaler::trigger::MAX_TRIGGERS;
use ghostscaler::web::{self, Access, Api, WakeRequests};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::support::{
    Scaler, from_hpa, inventory, is_active, metrics_of, scaled_object, soon, wanted, workload,
};
use crate::support::eventually;

const BAD: [(&str, &str); 2] = [("sloTtft", "abc"), ("targetInflight", "4")];
const TEXT: &str = "bad metadata: sloTtft=\"abc\": expected duration 10ms..10m; targetInflight: \
                    expected a known key, nearest is targetInFlight";

#[tokio::test]
async fn b1_kedas_own_keys_are_never_refused() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let mut client = scaler.client().await;
    let own = [("scalerAddress", "x:1"), ("enableTLS", "true"), ("unsafeSslFromEnv", "false")];
    let response = soon(client.get_metrics(metrics_of("a", &own))).await.unwrap();
    assert_eq!(response.get_ref().metric_values[0].metric_value, 2);
}

#[tokio::test]
async fn b2_a_key_given_in_both_forms_is_refused_and_in_either_taken() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let mut client = scaler.client().await;
    for metadata in [[("sloTtft", "1s")], [("sloTtftFromEnv", "1s")]] {
        soon(client.get_metrics(metrics_of("a", &metadata))).await.unwrap();
    }
    let both = [("sloTtft", "1s"), ("sloTtftFromEnv", "1s")];
    let status = soon(client.get_metrics(metrics_of("a", &both))).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("sloTtft"), "{}", status.message());
}

#[tokio::test]
async fn b3_b4_all_faults_are_told_from_the_first_call_on_where_a_user_sees_them() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let mut client = scaler.client().await;
    for _ in 0..2 {
        let status = soon(client.get_metrics(metrics_of("a", &BAD))).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, TEXT));
        let status = soon(client.is_active(scaled_object("a", &BAD))).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, TEXT));
        soon(client.get_metric_spec(scaled_object("a", &BAD))).await.unwrap();
    }
    let status = soon(client.stream_is_active(scaled_object("a", &BAD))).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, TEXT));
}

#[tokio::test]
async fn b4_the_hpa_keeps_a_running_target_whose_minimum_is_zero() {
    for (min, spec, keeps) in
        [(0, Some(3), true), (0, Some(0), false), (0, None, false), (1, Some(3), false)]
    {
        let scaler = Scaler::start(&[workload("a", min, spec)]);
        let mut client = scaler.client().await;
        let metrics = soon(client.get_metrics(from_hpa(metrics_of("a", &BAD)))).await;
        let active = soon(client.is_active(from_hpa(scaled_object("a", &BAD)))).await;
        if keeps {
            assert_eq!(metrics.unwrap().get_ref().metric_values[0].metric_value, 3);
            assert!(active.unwrap().get_ref().result);
        } else {
            assert_eq!(metrics.unwrap_err().code(), Code::InvalidArgument, "{min} {spec:?}");
            assert_eq!(active.unwrap_err().code(), Code::InvalidArgument, "{min} {spec:?}");
        }
        // The polls tell the user in every case.
        let status = soon(client.get_metrics(metrics_of("a", &BAD))).await.unwrap_err();
        assert_eq!(status.message(), TEXT);
    }
}

#[tokio::test]
async fn c1_codes_are_those_of_the_table() {
    let scaler = Scaler::start(&[workload("a", 0, None)]);
    let mut client = scaler.client().await;
    let status = wanted(&mut client, "nowhere").await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    let first = wanted(&mut client, "a").await.unwrap_err();
    assert_eq!(first.code(), Code::Unavailable);
    let second = is_active(&mut client, "a").await.unwrap_err();
    assert_eq!(first.message(), second.message());
    let huge = "x".repeat(100_000);
    let status = soon(client.get_metrics(metrics_of("a", &[("modelName", &huge)]))).await;
    assert_eq!(status.unwrap_err().code(), Code::ResourceExhausted);
    let count = |rpc, code| scaler.metrics.count(rpc, code, Caller::Poll);
    assert_eq!(count(Rpc::GetMetrics, Code::NotFound), 1);
    assert_eq!(count(Rpc::GetMetrics, Code::Unavailable), 1);
    assert_eq!(count(Rpc::GetMetrics, Code::ResourceExhausted), 1);
    assert_eq!(count(Rpc::IsActive, Code::Unavailable), 1);
}

/// Everything of the process but its gRPC service: ticks, scrapes of an engine that accepts and says
/// nothing, and the API.
async fn start_work(scaler: &Scaler, metrics: &Metrics, clock: Clock, cancel: &CancellationToken) {
    let config = config::parse("{}").unwrap();
    let scraper = Scraper::new(scrape::Options::default()).unwrap();
    let upstreams = Upstreams::start(&config, &scraper, metrics, clock).unwrap();
    let parts = Arc::new(Parts {
        registry: scaler.registry.clone(),
        scraper,
        upstreams: ArcSwap::from_pointee(upstreams),
        wakes: WakeRequests::default(),
        states: States::default(),
        log: None,
        metrics: metrics.clone(),
        lead: Lead::default(),
        clock,
    });
    let health = Health::new(clock);
    let router = web::router(Api {
        registry: scaler.registry.clone(),
        clock,
        wakes: parts.wakes.clone(),
        writes: None,
        health: health.clone(),
        metrics: Page::new(metrics, scaler.registry.clone(), clock),
        access: Access::default(),
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    tokio::spawn(web::serve(listener, router, cancel.clone()));
    tokio::spawn(tick::run(parts, health.pulse("tick"), cancel.clone()));
    let tracker = scaler.tracker("a", &[]);
    eventually("a decision", async || (tracker.published.load().version > 0).then_some(())).await;
}

/// Blocks both threads of a runtime until what is returned is dropped.
fn block(stuck: &tokio::runtime::Runtime) -> Vec<mpsc::Sender<()>> {
    let (blocked, is_blocked) = mpsc::channel();
    let block = |_thread| {
        let (release, released) = mpsc::channel::<()>();
        let blocked = blocked.clone();
        stuck.spawn(async move {
            blocked.send(()).unwrap();
            released.recv().ok();
        });
        is_blocked.recv().unwrap();
        release
    };
    (0..2).map(block).collect()
}

#[test]
fn c5_d2_calls_are_answered_while_everything_else_in_the_process_is_stuck() {
    /// A median in calls of a method that looks nothing up: a call that waits for a millisecond is
    /// beyond it, and a busy machine slows both.
    const AS_FAST: f64 = 10.0;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut read = Workload::clone(&workload("a", 0, Some(2)));
    read.members.push(Member {
        id: "llm-0".into(),
        phase: Phase::Ready,
        created_at: None,
        ready_at: Some(Moment(0)),
        endpoint: Some(Endpoint::Url(format!("http://{}", silent.local_addr().unwrap()).into())),
        node: None,
    });
    let workloads = [Arc::new(read), workload("lost", 0, None)];
    let scaler = Scaler::start(&workloads);
    let (cancel, clock) = (CancellationToken::new(), Clock::start());
    let stuck =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    stuck.block_on(start_work(&scaler, &Metrics::default(), clock, &cancel));
    let releases = block(&stuck);
    let version = scaler.tracker("a", &[]).published.load().version;
    // And the inventory is rebuilt without a pause, by a thread that holds the writers' lock.
    let fleet = (0..5_000).map(|index| workload(&format!("w{index}"), 0, Some(1)));
    let workloads: Vec<_> = fleet.chain(workloads).collect();
    let (stop, stopped) = mpsc::channel::<()>();
    let registry = scaler.registry.clone();
    let writer = std::thread::spawn(move || {
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            registry.set_inventory(inventory(&workloads));
        }
    });

    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut took: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    client.block_on(async {
        let mut client = scaler.client().await;
        for index in 0..300 {
            let mut note =
                |what, since: Instant| took.entry(what).or_default().push(since.elapsed());
            let at = Instant::now();
            let empty = soon(client.stream_metric_spec(scaled_object("a", &[]))).await;
            note("nothing", at);
            assert_eq!(empty.unwrap_err().code(), Code::Unimplemented);
            let at = Instant::now();
            let value = wanted(&mut client, "a").await;
            note("a value", at);
            assert_eq!(value.unwrap(), 2);
            for (what, name, metadata, code) in [
                ("UNAVAILABLE", "lost", &[][..], Code::Unavailable),
                ("NOT_FOUND", "gone", &[][..], Code::NotFound),
                ("INVALID_ARGUMENT", "a", &BAD[..], Code::InvalidArgument),
            ] {
                let at = Instant::now();
                let error = soon(client.get_metrics(metrics_of(name, metadata))).await;
                note(what, at);
                assert_eq!(error.unwrap_err().code(), code);
            }
            // A trigger seen for the first time needs a write, and does not wait for it either.
            let model = format!("m{index}");
            let request = metrics_of("a", &[("modelName", &model)]);
            let at = Instant::now();
            let first = soon(client.get_metrics(request)).await;
            note("a new trigger", at);
            let is_full = index >= MAX_TRIGGERS - 1;
            assert_eq!(
                first.err().map(|error| error.code()),
                is_full.then_some(Code::ResourceExhausted)
            );
        }
    });
    assert_eq!(scaler.tracker("a", &[]).published.load().version, version, "it was not stuck");
    drop((stop, releases));
    writer.join().unwrap();
    cancel.cancel();
    stuck.shutdown_background();
    let median = |what: &str| {
        let mut took = took[what].clone();
        took.sort_unstable();
        took[took.len() / 2].as_secs_f64()
    };
    for what in took.keys() {
        let ratio = median(what) / median("nothing");
        println!("{what}: {ratio:.2} times a call that looks nothing up");
        assert!(ratio < AS_FAST, "{what} takes {ratio:.1} times as long as nothing: {took:?}");
    }
}

#[tokio::test]
async fn d7_one_bad_object_disturbs_no_other() {
    let scaler = Scaler::start(&[workload("bad", 0, Some(1)), workload("good", 0, Some(4))]);
    let client = scaler.client().await;
    let keys: Vec<_> = (0..60).map(|index| format!("unknownKey{index}")).collect();
    let metadata: Arc<Vec<_>> = Arc::new(keys.iter().map(|key| (key.as_str(), "x")).collect());
    let calls = (0..200).map(|index| {
        let mut client = client.clone();
        let metadata = Arc::clone(&metadata);
        async move {
            if index % 2 == 0 {
                let request = metrics_of("bad", &metadata);
                let status = soon(client.get_metrics(request)).await.unwrap_err();
                assert_eq!(status.code(), Code::InvalidArgument);
                assert!(status.message().len() <= 200, "{}", status.message());
            } else {
                assert_eq!(wanted(&mut client, "good").await.unwrap(), 4);
            }
        }
    });
    futures_util::future::join_all(calls).await;
}
