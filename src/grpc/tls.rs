//! TLS for the service: certificate files that are read again when they change.
//!
//! Must not drop a connection because of new files, nor serve with files that do not fit together.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;

use super::expiry;
use super::observe::RpcMetrics;
use super::serve::guarded;
use crate::files::{self, MAX_PEM_BYTES};
use crate::listen::{Guarded, Places};

/// A usual [`Tls::reload_interval`]: a mounted secret itself takes up to a minute to change.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// A handshake takes one or two round trips.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections whose handshake has succeeded and that wait to be served.
const MAX_WAITING: usize = 64;

/// The files of one server identity, PEM.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The certificate chain, the server's own first.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The authorities of client certificates; where given, every client must show one.
    pub client_ca: Option<PathBuf>,
    /// How often the files are compared: a replaced certificate is in use within this time.
    pub reload_interval: Duration,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("the {what} file {} cannot be read: check the --tls flags", path.display())]
    Read {
        /// Which of the files.
        what: &'static str,
        /// Where it was looked for.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file holds no PEM of its kind.
    #[error("the {what} file {} holds no PEM {what}: check the --tls flags", path.display())]
    Pem {
        /// Which of the files.
        what: &'static str,
        /// Where it is.
        path: PathBuf,
    },
    /// The parts do not fit together.
    #[error("certificate and key cannot be used together: check --tls-cert and --tls-key")]
    Config(#[source] rustls::Error),
    /// The client authorities cannot be used.
    #[error("the client CA cannot be used: check --tls-client-ca")]
    ClientCa(#[source] rustls::server::VerifierBuilderError),
}

/// Accepts TLS connections with the newest good files.
#[derive(Debug)]
pub(super) struct Acceptor {
    files: Tls,
    loaded: Contents,
    config: Arc<ArcSwap<ServerConfig>>,
    metrics: RpcMetrics,
}

/// The bytes of the files, to tell whether they have changed. Not shown by `Debug`: one is a key.
#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contents").finish_non_exhaustive()
    }
}

impl Acceptor {
    /// Reads the files.
    pub(super) fn load(files: Tls, metrics: RpcMetrics) -> Result<Acceptor, Error> {
        let loaded = files.read()?;
        let config = Arc::new(ArcSwap::from_pointee(files.config(&loaded)?));
        metrics.tls_served(files.not_after(&loaded));
        Ok(Acceptor { files, loaded, config, metrics })
    }

    /// Connections whose handshake has succeeded, until the stream is dropped.
    pub(super) fn incoming(
        self,
        listener: TcpListener,
        places: Places,
    ) -> ReceiverStream<io::Result<Guarded<TlsStream<TcpStream>>>> {
        let (accepted, incoming) = mpsc::channel(MAX_WAITING);
        let config = Arc::clone(&self.config);
        let closed = accepted.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = closed.closed() => {}
                () = accept(&listener, &places, &config, &accepted) => {}
                () = self.reload() => {}
            }
        });
        ReceiverStream::new(incoming)
    }

    async fn reload(mut self) {
        let mut interval = tokio::time::interval(self.files.reload_interval);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What could not be used is not tried, or told, again until the files change once more.
        let mut refused = None;
        loop {
            interval.tick().await;
            // On a thread of its own: a disk that hangs must hold up no call.
            let files = self.files.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || files.read()).await else {
                continue;
            };
            match read {
                Ok(contents) if contents == self.loaded || Some(&contents) == refused.as_ref() => {}
                Ok(contents) => match self.files.config(&contents) {
                    Ok(config) => {
                        self.config.store(Arc::new(config));
                        self.metrics.tls_served(self.files.not_after(&contents));
                        self.loaded = contents;
                        refused = None;
                        self.metrics.tls_reloaded(true);
                        tracing::info!("new TLS files are in use");
                    }
                    Err(error) => {
                        self.metrics.tls_reloaded(false);
                        tracing::warn!(%error, "new TLS files refused, the old ones stay in use");
                        refused = Some(contents);
                    }
                },
                Err(error) => {
                    self.metrics.tls_reloaded(false);
                    tracing::warn!(%error, "TLS files not read, the old ones stay");
                }
            }
        }
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Places,
    config: &ArcSwap<ServerConfig>,
    accepted: &mpsc::Sender<io::Result<Guarded<TlsStream<TcpStream>>>>,
) {
    loop {
        let (stream, _peer, place) = places.accept(listener).await;
        let acceptor = TlsAcceptor::from(config.load_full());
        let accepted = accepted.clone();
        tokio::spawn(async move {
            let handshake = async {
                stream.set_nodelay(true)?;
                acceptor.accept(stream).await
            };
            let shaken = tokio::select! {
                shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake) => shaken,
                () = place.lost() => return,
            };
            match shaken {
                // A closed channel means that the service has stopped accepting.
                Ok(Ok(stream)) => drop(accepted.send(Ok(guarded(stream, place))).await),
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                Err(_elapsed) => tracing::debug!("TLS handshake timed out"),
            }
        });
    }
}

impl Tls {
    fn read(&self) -> Result<Contents, Error> {
        let read = |what, path: &PathBuf| {
            files::read(path, MAX_PEM_BYTES).map_err(|source| Error::Read {
                what,
                path: path.clone(),
                source,
            })
        };
        Ok(Contents {
            certificate: read("certificate", &self.certificate)?,
            key: read("private key", &self.key)?,
            client_ca: self.client_ca.as_ref().map(|ca| read("client CA", ca)).transpose()?,
        })
    }

    fn config(&self, contents: &Contents) -> Result<ServerConfig, Error> {
        let chain = certificates("certificate", &self.certificate, &contents.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|_not_a_key| Error::Pem { what: "private key", path: self.key.clone() })?;
        // Named rather than taken from the process, so that no order of start-up matters.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(Error::Config)?;
        let builder = match (&self.client_ca, &contents.client_ca) {
            (Some(path), Some(pem)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates("client CA", path, pem)? {
                    roots.add(certificate).map_err(Error::Config)?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(Error::ClientCa)?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(Error::Config)?;
        // KEDA's client insists on it.
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

impl Tls {
    /// Until when the server's own certificate is valid.
    fn not_after(&self, contents: &Contents) -> Option<i64> {
        let chain = certificates("certificate", &self.certificate, &contents.certificate).ok()?;
        expiry::not_after(chain.first()?)
    }
}

fn certificates(
    what: &'static str,
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) | Err(_) => Err(Error::Pem { what, path: path.to_owned() }),
    }
}
