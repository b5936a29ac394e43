//! Checklist F: health, reflection, shutdown, connection age, TLS.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ghostscaler::grpc::tls::Tls;
use ghostscaler::grpc::{self, Options};
use ghostscaler::registry::{Caller, Rpc};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ListServiceResponse, ServerReflectionRequest};

use super::support::{Client, Scaler, open_stream, options, pushed, soon, wanted, workload};
use crate::support::eventually;

/// Linux's, which fails to write to a pipe that is full.
const O_NONBLOCK: i32 = 0o4_000;

const SERVICES: [&str; 2] = ["", "externalscaler.ExternalScaler"];

async fn health(channel: &Channel, service: &str) -> i32 {
    let request = HealthCheckRequest { service: service.to_owned() };
    soon(HealthClient::new(channel.clone()).check(request)).await.unwrap().into_inner().status
}

#[tokio::test]
async fn f1_f3_health_says_not_serving_until_told_and_follows() {
    let scaler = Scaler::start(&[workload("a", 0, Some(1))]);
    let channel = scaler.channel().await;
    for service in SERVICES {
        assert_eq!(health(&channel, service).await, ServingStatus::NotServing as i32, "{service}");
    }
    let request = HealthCheckRequest { service: SERVICES[1].to_owned() };
    let mut watch =
        soon(HealthClient::new(channel.clone()).watch(request)).await.unwrap().into_inner();
    let first = soon(watch.message()).await.unwrap().unwrap();
    assert_eq!(first.status, ServingStatus::NotServing as i32);
    scaler.readiness.set(true);
    let second = soon(watch.message()).await.unwrap().unwrap();
    assert_eq!(second.status, ServingStatus::Serving as i32);
    for service in SERVICES {
        assert_eq!(health(&channel, service).await, ServingStatus::Serving as i32, "{service}");
    }
    scaler.readiness.set(false);
    let third = soon(watch.message()).await.unwrap().unwrap();
    assert_eq!(third.status, ServingStatus::NotServing as i32);
}

#[tokio::test]
async fn f4_reflection_lists_the_services() {
    let scaler = Scaler::start(&[]);
    let mut client = ServerReflectionClient::new(scaler.channel().await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let responses = client.server_reflection_info(tokio_stream::once(request));
    let mut responses = soon(responses).await.unwrap().into_inner();
    let response = soon(responses.next()).await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(ListServiceResponse { service })) =
        response.message_response
    else {
        panic!("expected a list of services");
    };
    let names: Vec<_> = service.into_iter().map(|service| service.name).collect();
    assert!(names.contains(&"externalscaler.ExternalScaler".to_owned()), "{names:?}");
    assert!(names.contains(&"grpc.health.v1.Health".to_owned()), "{names:?}");
}

#[tokio::test]
async fn f5_a_shutdown_turns_not_ready_then_answers_on_then_ends() {
    // Longer than a busy machine takes for the few calls that must be answered meanwhile.
    let delay = Options { drain_delay: Duration::from_secs(5), ..options() };
    let mut scaler = Scaler::start_with(&[workload("a", 0, Some(1))], delay);
    scaler.readiness.set(true);
    let channel = scaler.channel().await;
    let mut client = scaler.client().await;
    let mut stream = open_stream(&mut client, "a").await;
    assert_eq!(pushed(&mut stream).await, Some(true));
    soon(async { while health(&channel, "").await != ServingStatus::Serving as i32 {} }).await;

    scaler.stop();
    soon(async { while health(&channel, "").await != ServingStatus::NotServing as i32 {} }).await;
    // While the endpoints change, calls are answered, on old and on new connections.
    assert_eq!(wanted(&mut client, "a").await.unwrap(), 1);
    assert_eq!(wanted(&mut scaler.client().await, "a").await.unwrap(), 1);
    scaler.readiness.set(true);
    assert_eq!(health(&channel, "").await, ServingStatus::NotServing as i32);
    // Then the streams end, and then the listener.
    assert_eq!(pushed(&mut stream).await, None);
    drop((client, channel, stream));
    scaler.finished().await.unwrap();
    assert!(TcpStream::connect(scaler.address).await.is_err());
}

#[tokio::test]
async fn f5_a_connection_that_does_not_close_is_not_waited_for_beyond_the_grace() {
    let grace = Options { grace: Duration::from_millis(200), ..options() };
    let mut scaler = Scaler::start_with(&[workload("a", 0, Some(1))], grace);
    // A client that speaks no HTTP/2 at all and never hangs up.
    let silent = soon(TcpStream::connect(scaler.address)).await.unwrap();
    let mut client = scaler.client().await;
    assert_eq!(wanted(&mut client, "a").await.unwrap(), 1);
    scaler.stop();
    scaler.finished().await.unwrap();
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_a_connection_is_renewed_at_its_age_without_a_failed_call() {
    let short = Options { max_age: Duration::from_millis(300), ..options() };
    let scaler = Scaler::start_with(&[workload("a", 0, Some(1))], short);
    let proxy = Proxy::start(scaler.address).await;
    let endpoint = Channel::from_shared(format!("http://{}", proxy.address)).unwrap();
    let mut client = Client::new(soon(endpoint.connect()).await.unwrap());
    let mut stream = open_stream(&mut client, "a").await;
    assert_eq!(pushed(&mut stream).await, Some(true));
    let mut n_answered = 0;
    soon(async {
        while proxy.n_connections() < 3 {
            match wanted(&mut client, "a").await {
                Ok(want) => {
                    assert_eq!(want, 1);
                    n_answered += 1;
                }
                // This client, unlike KEDA's, does not send again what the closing connection had
                // not taken yet.
                Err(status) => assert_eq!(status.code(), Code::Cancelled, "{status}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // No call that reached the server was lost.
    assert_eq!(scaler.metrics.count(Rpc::GetMetrics, Code::Ok, Caller::Poll), n_answered);
    // The stream had a life of its own and pins no connection.
    assert_eq!(pushed(&mut stream).await, None);
    eventually("the old connections' end", async || (proxy.n_open() <= 1).then_some(())).await;
}

#[tokio::test]
async fn f9_a_client_that_answers_no_ping_is_cut_off() {
    // A third of it is what a busy machine may take for an answer.
    let often = Options { ping_interval: Duration::from_secs(3), ..options() };
    let scaler = Scaler::start_with(&[workload("a", 0, Some(1))], often);
    let mut dead = soon(TcpStream::connect(scaler.address)).await.unwrap();
    // The preface and empty settings; then it says nothing more, and no goodbye.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    soon(dead.write_all(preface)).await.unwrap();
    let mut said = Vec::new();
    // A reset ends it as well.
    drop(soon(dead.read_to_end(&mut said)).await);
    assert_eq!(&said[3..4], [4], "the server's settings come first");
    // Who answers pings keeps the connection, as its stream shows.
    let mut client = scaler.client().await;
    let mut stream = open_stream(&mut client, "a").await;
    assert_eq!(pushed(&mut stream).await, Some(true));
    let ended = tokio::time::timeout(Duration::from_secs(6), pushed(&mut stream)).await;
    assert!(ended.is_err(), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_who_is_connected_is_sent_away_when_readiness_is_lost_and_never_before() {
    // Longer than a busy machine takes to see readiness lost and to set it again.
    let soon_told = Options { move_after: Duration::from_secs(2), ..options() };
    let scaler = Scaler::start_with(&[workload("a", 0, Some(1))], soon_told);
    let proxy = Proxy::start(scaler.address).await;
    let endpoint = Channel::from_shared(format!("http://{}", proxy.address)).unwrap();
    let channel = soon(endpoint.connect()).await.unwrap();
    let mut client = Client::new(channel.clone());
    let still_there = async |stream: &mut _| {
        let ended = tokio::time::timeout(Duration::from_millis(2_500), pushed(stream)).await;
        assert!(ended.is_err(), "its stream goes on");
        assert_eq!(proxy.n_connections(), 1);
    };
    let mut stream = open_stream(&mut client, "a").await;
    assert_eq!(pushed(&mut stream).await, Some(true));
    // A process that has not been ready yet has nobody who could ask elsewhere.
    still_there(&mut stream).await;
    scaler.readiness.set(true);
    still_there(&mut stream).await;
    let health_of = scaler.channel().await;
    scaler.readiness.set(false);
    let told = async { while health(&health_of, "").await != ServingStatus::NotServing as i32 {} };
    soon(told).await;
    scaler.readiness.set(true);
    still_there(&mut stream).await;

    scaler.readiness.set(false);
    assert_eq!(pushed(&mut stream).await, None, "it ends with OK");
    // Who comes back is answered, and told again: what sends it here may not know yet.
    for n_connections in [2, 3] {
        eventually("a new connection", async || {
            wanted(&mut client, "a").await.ok();
            (proxy.n_connections() >= n_connections).then_some(())
        })
        .await;
    }
    scaler.readiness.set(true);
    let mut stream = open_stream(&mut client, "a").await;
    assert_eq!(pushed(&mut stream).await, Some(true));
    let ended = tokio::time::timeout(Duration::from_millis(2_500), pushed(&mut stream)).await;
    assert!(ended.is_err(), "ready again it keeps whom it has");
    eventually("the old connections' end", async || (proxy.n_open() <= 1).then_some(())).await;
}

/// Passes connections on and counts them.
struct Proxy {
    address: std::net::SocketAddr,
    counts: std::sync::Arc<[std::sync::atomic::AtomicUsize; 2]>,
}

impl Proxy {
    async fn start(to: std::net::SocketAddr) -> Proxy {
        use std::sync::atomic::Ordering::SeqCst;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts: std::sync::Arc<[std::sync::atomic::AtomicUsize; 2]> = Default::default();
        let counted = std::sync::Arc::clone(&counts);
        tokio::spawn(async move {
            while let Ok((mut inbound, _)) = listener.accept().await {
                let counted = std::sync::Arc::clone(&counted);
                tokio::spawn(async move {
                    counted[0].fetch_add(1, SeqCst);
                    let mut outbound = TcpStream::connect(to).await.unwrap();
                    drop(tokio::io::copy_bidirectional(&mut inbound, &mut outbound).await);
                    counted[1].fetch_add(1, SeqCst);
                });
            }
        });
        Proxy { address, counts }
    }

    fn n_connections(&self) -> usize {
        self.counts[0].load(std::sync::atomic::Ordering::SeqCst)
    }

    fn n_open(&self) -> usize {
        self.n_connections() - self.counts[1].load(std::sync::atomic::Ordering::SeqCst)
    }
}

fn pem(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc/tls").join(name)
}

/// The first server's files in a folder where they can be replaced.
fn tls(folder: &Path, client_ca: bool) -> Tls {
    std::fs::copy(pem("first-server.pem"), folder.join("tls.crt")).unwrap();
    std::fs::copy(pem("first-server.key"), folder.join("tls.key")).unwrap();
    Tls {
        certificate: folder.join("tls.crt"),
        key: folder.join("tls.key"),
        client_ca: client_ca.then(|| pem("first-ca.pem")),
        reload_interval: Duration::from_millis(20),
    }
}

fn certificate(name: &str) -> Certificate {
    Certificate::from_pem(std::fs::read(pem(name)).unwrap())
}

async fn connect(
    scaler: &Scaler,
    config: ClientTlsConfig,
) -> Result<Client, tonic::transport::Error> {
    let endpoint = Channel::from_shared(format!("https://{}", scaler.address)).unwrap();
    let endpoint = endpoint.tls_config(config.domain_name("localhost")).unwrap();
    Ok(Client::new(soon(endpoint.connect()).await?))
}

#[tokio::test]
async fn f13_f14_tls_serves_those_who_trust_the_authority_and_nobody_in_plaintext() {
    let folder = tempfile::tempdir().unwrap();
    let secure = Options { tls: Some(tls(folder.path(), false)), ..options() };
    let scaler = Scaler::start_with(&[workload("a", 0, Some(3))], secure);
    let trusting = ClientTlsConfig::new().ca_certificate(certificate("first-ca.pem"));
    let mut client = connect(&scaler, trusting).await.unwrap();
    assert_eq!(wanted(&mut client, "a").await.unwrap(), 3);
    let stranger = ClientTlsConfig::new().ca_certificate(certificate("second-ca.pem"));
    assert!(connect(&scaler, stranger).await.is_err());
    let endpoint = Channel::from_shared(format!("http://{}", scaler.address)).unwrap();
    let mut plaintext = Client::new(endpoint.connect_lazy());
    assert!(wanted(&mut plaintext, "a").await.is_err());
}

#[tokio::test]
async fn f13_with_a_client_authority_only_its_clients_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let secure = Options { tls: Some(tls(folder.path(), true)), ..options() };
    let scaler = Scaler::start_with(&[workload("a", 0, Some(3))], secure);
    let trusting = || ClientTlsConfig::new().ca_certificate(certificate("first-ca.pem"));
    let identity = |pair: [&str; 2]| {
        Identity::from_pem(
            std::fs::read(pem(pair[0])).unwrap(),
            std::fs::read(pem(pair[1])).unwrap(),
        )
    };
    let known = trusting().identity(identity(["client.pem", "client.key"]));
    let mut client = connect(&scaler, known).await.unwrap();
    assert_eq!(wanted(&mut client, "a").await.unwrap(), 3);
    // With TLS 1.3 a client learns of the refusal with its first call.
    let unknown = trusting().identity(identity(["second-server.pem", "second-server.key"]));
    for config in [trusting(), unknown] {
        if let Ok(mut client) = connect(&scaler, config).await {
            assert!(wanted(&mut client, "a").await.is_err());
        }
    }
}

#[tokio::test]
async fn f111_new_certificates_are_used_without_dropping_connections_and_bad_ones_never() {
    let folder = tempfile::tempdir().unwrap();
    let secure = Options { tls: Some(tls(folder.path(), false)), ..options() };
    let scaler = Scaler::start_with(&[workload("a", 0, Some(3))], secure);
    let first = || ClientTlsConfig::new().ca_certificate(certificate("first-ca.pem"));
    let second = || ClientTlsConfig::new().ca_certificate(certificate("second-ca.pem"));
    let mut old = connect(&scaler, first()).await.unwrap();
    let mut stream = open_stream(&mut old, "a").await;
    assert_eq!(pushed(&mut stream).await, Some(true));

    let first_end = scaler.metrics.tls_expires();
    assert!(first_end.is_some(), "when it ends is a metric");

    // Halfway through a replacement, certificate and key do not fit together.
    let refused = || scaler.metrics.tls_reloads(false);
    replace("second-server.pem", &folder.path().join("tls.crt"));
    eventually("a refusal", async || (refused() == 1).then_some(())).await;
    assert_eq!(wanted(&mut connect(&scaler, first()).await.unwrap(), "a").await.unwrap(), 3);
    replace("second-server.key", &folder.path().join("tls.key"));
    let reloaded = async || (scaler.metrics.tls_reloads(true) == 1).then_some(());
    eventually("new files in use", reloaded).await;
    // The two files of this test end in 2126 and in 2046.
    let ends = [first_end, scaler.metrics.tls_expires()].map(Option::unwrap);
    assert!(ends[1] < ends[0], "{ends:?}");
    let mut new = connect(&scaler, second()).await.unwrap();
    assert_eq!(wanted(&mut new, "a").await.unwrap(), 3);
    assert_eq!(wanted(&mut old, "a").await.unwrap(), 3);
    let alive = tokio::time::timeout(Duration::from_millis(50), stream.message()).await;
    assert!(alive.is_err(), "the old connection's stream ended");

    std::fs::remove_file(folder.path().join("tls.key")).unwrap();
    eventually("another refusal", async || (refused() >= 2).then_some(())).await;
    assert_eq!(wanted(&mut connect(&scaler, second()).await.unwrap(), "a").await.unwrap(), 3);
}

#[tokio::test]
async fn f111_certificate_files_that_hang_hold_up_no_call_and_no_new_connection() {
    let folder = tempfile::tempdir().unwrap();
    let secure = Options { tls: Some(tls(folder.path(), false)), ..options() };
    let scaler = Scaler::start_with(&[workload("a", 0, Some(3))], secure);
    // A pipe that somebody holds open is waited for.
    let path = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let mut both = std::fs::OpenOptions::new();
    let mut pipe = both.read(true).write(true).custom_flags(O_NONBLOCK).open(&path).unwrap();
    while pipe.write(&[0; 4_096]).is_ok() {}
    std::fs::rename(&path, folder.path().join("tls.key")).unwrap();
    // There is room in it once the reader has taken something.
    eventually("a reader", async || pipe.write(&[0]).ok()).await;
    // It is being read now, and nothing will come of it.
    for _ in 0..3 {
        let trusting = ClientTlsConfig::new().ca_certificate(certificate("first-ca.pem"));
        let mut client = connect(&scaler, trusting).await.unwrap();
        assert_eq!(wanted(&mut client, "a").await.unwrap(), 3);
    }
    drop(pipe);
}

/// Puts a file in another's place in one go, as a mounted secret changes.
fn replace(from: &str, to: &Path) {
    let new = to.with_extension("new");
    std::fs::copy(pem(from), &new).unwrap();
    std::fs::rename(new, to).unwrap();
}

#[test]
fn f13_unusable_certificate_files_are_told_at_start_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let good = tls(folder.path(), false);
    let missing = Tls { key: folder.path().join("none.key"), ..good.clone() };
    let swapped = Tls { key: good.certificate.clone(), ..good.clone() };
    let foreign = Tls { key: pem("second-server.key"), ..good };
    for (files, expected) in [
        (missing, "the private key file"),
        (swapped, "holds no PEM private key"),
        (foreign, "certificate and key cannot be used together"),
    ] {
        let registry = ghostscaler::registry::Registry::new(
            ghostscaler::registry::Limits::default(),
            ghostscaler::clock::Clock::start(),
        );
        let error = grpc::spawn(
            std::net::TcpListener::bind("127.0.0.1:0").unwrap(),
            registry,
            grpc::observe::RpcMetrics::default(),
            Options { tls: Some(files), ..options() },
            tokio_util::sync::CancellationToken::new(),
        )
        .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
