//! TLS: a scaler behind it passes, one without ALPN fails F13 alone, bad files end the run.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ghostscaler::conformance::{self, Error, Outcome};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::fault::{Fault, Kind};
use super::{args, entries, run, scaler};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// Puts TLS in front of `scaler`, which demands a client certificate of `client_ca` if given.
async fn behind_tls(
    scaler: SocketAddr,
    alpn: &[&[u8]],
    client_ca: Option<&str>,
) -> (SocketAddr, AbortOnDropHandle<()>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(file(name)).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let chain = vec![CertificateDer::from_pem_file(file("tls/server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(file("tls/server.key")).unwrap();
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let proxy = tokio::spawn(async move {
        loop {
            let (client, _peer) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that goes away in the middle is the client's business.
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let mut server = TcpStream::connect(scaler).await.unwrap();
                drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    (address, AbortOnDropHandle::new(proxy))
}

#[tokio::test]
async fn a_scaler_behind_tls_passes() {
    let running = scaler::start(Kind::Count, Fault::None).await;
    let (address, _proxy) = behind_tls(running.address, &[b"h2"], None).await;
    let mut args = args(address);
    args.tls_ca = Some(file("tls/ca.pem"));
    let (outcome, report) = run(&args).await;
    assert_eq!(entries(&report, "fail"), []);
    assert!(entries(&report, "pass").contains(&("F13", "TLS with h2 by ALPN")));
    assert_eq!(outcome, Outcome::Passed);
}

#[tokio::test]
async fn f13_tls_without_alpn() {
    let running = scaler::start(Kind::Count, Fault::None).await;
    let (address, _proxy) = behind_tls(running.address, &[], None).await;
    let mut args = args(address);
    args.tls_ca = Some(file("tls/ca.pem"));
    let (outcome, report) = run(&args).await;
    let failed: Vec<&str> = entries(&report, "fail").iter().map(|(id, _detail)| *id).collect();
    assert_eq!(failed, ["F13"]);
    assert_eq!(outcome, Outcome::Failed);
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_it_is_demanded() {
    let running = scaler::start(Kind::Count, Fault::None).await;
    let client_ca = Some("grpc/tls/first-ca.pem");
    let (address, _proxy) = behind_tls(running.address, &[b"h2"], client_ca).await;
    let mut args = args(address);
    args.tls_ca = Some(file("tls/ca.pem"));
    args.only = vec!["A6".to_owned()];
    let error = conformance::run(&args, &mut Vec::new(), &mut std::io::sink()).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error}");

    args.tls_cert = Some(file("grpc/tls/client.pem"));
    args.tls_key = Some(file("grpc/tls/client.key"));
    let (outcome, _report) = run(&args).await;
    assert_eq!(outcome, Outcome::Passed);
}

#[tokio::test]
async fn an_authority_that_is_not_the_servers_ends_the_run() {
    let running = scaler::start(Kind::Count, Fault::None).await;
    let (address, _proxy) = behind_tls(running.address, &[b"h2"], None).await;
    let mut args = args(address);
    args.tls_ca = Some(file("tls/other-ca.pem"));
    let error = conformance::run(&args, &mut Vec::new(), &mut std::io::sink()).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error}");

    args.tls_ca = Some(file("tls/no-such-file.pem"));
    let error = conformance::run(&args, &mut Vec::new(), &mut std::io::sink()).await.unwrap_err();
    assert!(error.to_string().contains("no-such-file.pem"), "{error}");
}
