//! From zero to active: a call of the API, and a gateway that counts or holds requests.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::engine::{Engine, Manner};
use super::keda::{pushed, trigger};
use super::program::{Config, Scaler};

/// Three workloads at zero: one that is called, one whose gateway counts, one whose gateway holds.
fn asleep(gateway: &Engine) -> Config {
    Config::new(&format!(
        "wakeSources:\n\
         - {{name: counter, kind: counter, url: 'http://{address}/metrics', \
         metric: gateway_requests_total, matchers: {{route: '{{namespace}}/{{name}}'}}}}\n\
         - {{name: gauge, kind: gauge, url: 'http://{address}/metrics', \
         metric: gateway_held, matchers: {{route: '{{namespace}}/{{name}}'}}}}\n\
         workloads:\n\
         - {{namespace: demo, name: called, min: 0, max: 3, replicas: 0}}\n\
         - {{namespace: demo, name: counted, min: 0, max: 3, replicas: 0, wakeSource: counter}}\n\
         - {{namespace: demo, name: held, min: 0, max: 3, replicas: 0, wakeSource: gauge, \
         targetInFlight: 10}}\n\
         - {{namespace: demo, name: other, min: 0, max: 3, replicas: 0, wakeSource: counter}}\n",
        address = gateway.address
    ))
}

fn gateway_page(counted: u32, held: u32) -> String {
    format!(
        "gateway_requests_total{{route=\"demo/counted\"}} {counted}\n\
         gateway_requests_total{{route=\"demo/other\"}} 9\n\
         gateway_held{{route=\"demo/held\"}} {held}\n"
    )
}

/// Waits until each has been decided with its wake source read.
async fn all_asleep(scaler: &Scaler) {
    let keda = scaler.keda().await;
    for name in ["demo/called", "demo/counted", "demo/held", "demo/other"] {
        let reads = name != "demo/called";
        scaler
            .workload_when(name, "asleep with its gateway read", |snapshot| {
                let queued = &snapshot["decision"]["inputs"]["gateway_queued"];
                snapshot["version"] != 0 && (!reads || *queued == 0.0)
            })
            .await;
        assert_eq!(keda.poll(name).await, (0, false), "{name}");
    }
}

#[tokio::test]
async fn fifty_calls_at_zero_are_one_wake_that_is_pushed() {
    let gateway = Engine::of_text(gateway_page(7, 0)).await;
    let config = asleep(&gateway);
    let scaler = Scaler::start(&config.path(), &[]).await;
    all_asleep(&scaler).await;
    let keda = scaler.keda().await;
    let mut stream = keda.stream(&trigger("demo/called")).await;

    let called_at = Instant::now();
    let calls = join_all((0..50).map(|_| scaler.post("/api/v1/wake/demo/called")));
    let (calls, active) =
        tokio::join!(calls, async { (pushed(&mut stream).await, called_at.elapsed()) });
    let (active, took) = active;
    println!("first of 50 calls to push: {took:?}");
    assert_eq!(active, Some(true));
    for (status, retry_after, wake) in &calls {
        assert_eq!(*status, 202, "{wake}");
        assert_eq!((&wake["namespace"], &wake["name"]), (&"demo".into(), &"called".into()));
        assert!(retry_after.is_some_and(|seconds| (1..=180).contains(&seconds)), "{wake}");
    }
    assert_eq!(scaler.logged("wake requested", 1).await.len(), 1);
    assert_eq!(keda.poll("demo/called").await, (1, true));
    let called = scaler.workload("demo/called").await;
    assert_eq!(called["binding"], "wake", "{called:#}");
    // One edge, one message: the calls that follow are answered before another one comes.
    assert_eq!(scaler.post("/api/v1/wake/demo/called").await.0, 202);
    let silence = tokio::time::timeout(Duration::from_millis(500), stream.message()).await;
    assert!(silence.is_err(), "{silence:?}");

    assert_eq!(scaler.post("/api/v1/wake/demo/nobody").await.0, 404);
    for name in ["demo/counted", "demo/held", "demo/other"] {
        assert_eq!(keda.poll(name).await, (0, false), "{name} was not called");
    }
    scaler.stop().await;
}

#[tokio::test]
async fn a_gateways_counter_or_queue_wakes_whom_it_names_and_nobody_else() {
    let gateway = Engine::of_text(gateway_page(7, 0)).await;
    let config = asleep(&gateway);
    let scaler = Scaler::start(&config.path(), &[]).await;
    all_asleep(&scaler).await;
    let keda = scaler.keda().await;
    let mut counted = keda.stream(&trigger("demo/counted")).await;
    let mut held = keda.stream(&trigger("demo/held")).await;

    gateway.set(Manner::Text(gateway_page(8, 0)));
    let counted_at = Instant::now();
    assert_eq!(pushed(&mut counted).await, Some(true));
    println!("one request counted to push: {:?}", counted_at.elapsed());
    assert_eq!(keda.poll("demo/counted").await, (1, true));
    assert_eq!(keda.poll("demo/held").await, (0, false));

    // 25 held, of which one replica shall carry 10.
    gateway.set(Manner::Text(gateway_page(8, 25)));
    let held_at = Instant::now();
    assert_eq!(pushed(&mut held).await, Some(true));
    println!("25 requests held to push: {:?}", held_at.elapsed());
    assert_eq!(keda.poll("demo/held").await, (3, true));
    assert_eq!(keda.poll("demo/other").await, (0, false));

    // A gateway that is gone is no lack of demand: what was woken stays awake.
    gateway.set(Manner::Hangs);
    let unknown =
        |snapshot: &serde_json::Value| snapshot["decision"]["inputs"]["gateway_queued"].is_null();
    scaler.workload_when("demo/held", "without its gateway", unknown).await;
    assert_eq!(keda.poll("demo/counted").await, (1, true));
    assert!(keda.poll("demo/held").await.1);
    assert_eq!(keda.poll("demo/other").await, (0, false));
    scaler.stop().await;
}
