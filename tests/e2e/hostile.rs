//! Peers that take all that they can get: endpoints that never stop sending, connections that never
//! ask. Everybody else is served as before.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::engine::{Engine, load};
use super::program::{Config, PATIENCE, Scaler};

/// What an endpoint sends first, and then for ever as fast as it is taken.
const FLOODS: [(&str, &str); 6] = [
    ("", "HTTP/1.1 100 Continue\r\n\r\n"),
    ("HTTP/1.1 200 OK\r\n", "x: y\r\n"),
    ("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", "# \n"),
    (CHUNKED, "00000000"),
    (CHUNKED, "1;a=b\r\n#\r\n"),
    (CHUNKED, "0\r\nx: y\r\n"),
];

const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n";

/// An endpoint that floods whoever asks it, on threads that end with the test's process.
fn flood((first, then): (&'static str, &'static str)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let _asked = stream.read(&mut [0; 4096]);
                let block = then.repeat(64 * 1024 / then.len());
                let mut written = stream.write_all(first.as_bytes());
                while written.is_ok() {
                    written = stream.write_all(block.as_bytes());
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn endpoints_that_send_for_ever_stall_neither_other_workloads_nor_the_probe() {
    let engine = Engine::start().await;
    engine.carry(load(0, 4));
    let mut text = format!(
        "workloads:\n- {{namespace: a, name: well, replicas: 2, endpoints: ['{}']}}\n",
        engine.address
    );
    for (n, kind) in FLOODS.into_iter().enumerate() {
        let address = flood(kind);
        text += &format!(
            "- {{namespace: a, name: flood-{n}, replicas: 2, endpoints: ['{address}']}}\n"
        );
    }
    let config = Config::new(&text);
    let scaler = Scaler::start(&config.path(), &[]).await;
    scaler.healthy("a/well").await;
    let version = async || scaler.workload("a/well").await["version"].as_u64().unwrap();
    let (before, began) = (version().await, Instant::now());
    let mut slowest = Duration::ZERO;
    // Two ticks of the one that is well, whatever the others do meanwhile.
    while version().await < before + 2 {
        let asked = Instant::now();
        assert_eq!(timeout(PATIENCE, scaler.get("/livez")).await.unwrap().0, 200);
        slowest = slowest.max(asked.elapsed());
        assert!(began.elapsed() < 2 * PATIENCE, "it decides no more");
        sleep(Duration::from_millis(50)).await;
    }
    let took = began.elapsed();
    println!("{} floods: slowest probe {slowest:?}, two decisions in {took:?}", FLOODS.len());
    for n in 0..FLOODS.len() {
        let told = |flood: &Value| flood["health"] == "degraded";
        let held = scaler.workload_when(&format!("a/flood-{n}"), "given up", told).await;
        assert_eq!(held["want"], 2, "{held:#}");
    }
    scaler.stop().await;
}

/// Seconds of the processor that it takes, and within how many.
async fn busy(scaler: &Scaler) -> (f64, f64) {
    let (before, began) = (scaler.cpu_s(), Instant::now());
    sleep(Duration::from_secs(2)).await;
    (scaler.cpu_s() - before, began.elapsed().as_secs_f64())
}

/// Opens connections that say this and no more.
fn idlers(address: SocketAddr, count: usize, says: &[u8]) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(says).unwrap();
        stream
    };
    (0..count).map(open).collect()
}

#[tokio::test]
async fn idle_connections_without_number_shut_out_neither_keda_nor_the_probe() {
    let config = Config::new("workloads:\n- {namespace: a, name: llm, replicas: 2}\n");
    // The customary limit.
    let scaler = Scaler::start_within(1_024, &config.path(), &[]).await;
    let keda = scaler.keda().await;
    assert_eq!(keda.poll("a/llm").await, (2, true));
    // As the probe of Kubernetes, with a connection for each: a kept one makes room for the next.
    let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
    let probe = async || {
        let sent = client.get(format!("http://{}/livez", scaler.http)).send();
        timeout(PATIENCE, sent).await.unwrap().unwrap().status()
    };
    // The fastest of a few, before and beside the crowd: whatever else the machine does slows both.
    let fastest = async || {
        let mut fastest = Duration::MAX;
        for _ in 0..5 {
            let asked = Instant::now();
            assert_eq!(probe().await, 200);
            assert_eq!(keda.poll("a/llm").await, (2, true));
            assert_eq!(scaler.keda().await.poll("a/llm").await, (2, true));
            fastest = fastest.min(asked.elapsed());
            sleep(Duration::from_millis(200)).await;
        }
        fastest
    };
    let alone = fastest().await;
    // The preface and empty settings: an HTTP/2 client that asks nothing.
    let polite = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut idle = idlers(scaler.grpc, 600, b"");
    idle.extend(idlers(scaler.grpc, 600, polite));
    idle.extend(idlers(scaler.http, 1_000, b"GET /livez HTTP/1.1\r\nx-slow: "));
    let among = fastest().await;
    println!("a probe and two polls among {}: {among:?}, alone {alone:?}", idle.len());
    assert!(among < 50 * alone, "{among:?} among {}, {alone:?} alone", idle.len());
    let (busy, of) = busy(&scaler).await;
    assert!(busy < of / 2.0, "{busy} s of the processor within {of} s");
    drop(idle);
    scaler.stop().await;
}

#[tokio::test]
async fn without_descriptors_it_neither_spins_nor_ends_and_serves_again() {
    let config = Config::new("workloads:\n- {namespace: a, name: llm, replicas: 2}\n");
    let scaler = Scaler::start_within(48, &config.path(), &[]).await;
    let keda = scaler.keda().await;
    assert_eq!(keda.poll("a/llm").await, (2, true));
    let idle = [idlers(scaler.grpc, 100, b""), idlers(scaler.http, 100, b"")];
    let (busy, of) = busy(&scaler).await;
    println!("out of descriptors: {busy} s of the processor within {of} s");
    assert!(busy < of / 2.0, "{busy} s of the processor within {of} s");
    assert_eq!(keda.poll("a/llm").await, (2, true));
    drop(idle);
    assert_eq!(timeout(PATIENCE, scaler.get("/livez")).await.unwrap().0, 200);
    scaler.stop().await;
}
