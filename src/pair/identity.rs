//! The keys by which replicas know each other, as TLS 1.3 with raw public keys (RFC 7250).
//!
//! Must not trust: it proves that the peer holds a key. Whose key it is, `cluster::members` says.
//!
//! Each process makes a key pair at its start and keeps it in memory only, so there is no secret to
//! install, to leak or to rotate.

use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ClientConfig};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ServerConfig};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{DigitallySignedStruct, DistinguishedName, PeerIncompatible, SignatureScheme};

/// The name that a client has to ask for and nobody looks at.
const SERVER_NAME: &str = "ghostscaler";

/// The key pair could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system gives no randomness.
    #[error("no key pair could be made: the system gives no randomness")]
    Random,
    /// The TLS library refuses.
    #[error("the key pair cannot be used for TLS")]
    Tls(#[from] rustls::Error),
}

/// This process's key pair.
#[derive(Debug, Clone)]
pub struct Identity {
    provider: Arc<CryptoProvider>,
    key: Arc<CertifiedKey>,
}

impl Identity {
    /// Makes a key pair.
    ///
    /// # Errors
    ///
    /// When the system has no randomness.
    pub fn generate() -> Result<Identity, Error> {
        let pair =
            Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_blank| Error::Random)?;
        let der = PrivatePkcs8KeyDer::from(pair.as_ref());
        let signing = rustls::crypto::ring::sign::any_eddsa_type(&der)?;
        let public = signing.public_key().map(|key| key.as_ref().to_vec()).unwrap_or_default();
        let key = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], signing));
        // Named rather than taken from the process, so that no order of start-up matters.
        Ok(Identity { provider: Arc::new(rustls::crypto::ring::default_provider()), key })
    }

    /// The public key, in hexadecimal.
    #[must_use]
    pub fn public_key(&self) -> String {
        self.key.cert.first().map(hex).unwrap_or_default()
    }

    /// Serves peers that hold any key; whose it is has to be asked afterwards by [`peer_key`].
    pub(super) fn server(&self) -> Result<ServerConfig, Error> {
        let verifier = Arc::new(Verifier { provider: Arc::clone(&self.provider), expected: None });
        let resolver = Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&self.key)));
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    /// Talks to the server that holds this key only.
    pub(super) fn client(&self, expected: &str) -> Result<ClientConfig, Error> {
        let verifier = Arc::new(Verifier {
            provider: Arc::clone(&self.provider),
            expected: Some(expected.to_owned()),
        });
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                Arc::clone(&self.key),
            )));
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

/// The name to ask a server for.
pub(super) fn server_name() -> Result<ServerName<'static>, rustls::Error> {
    ServerName::try_from(SERVER_NAME)
        .map_err(|_invalid| rustls::Error::General("the server name is invalid".to_owned()))
}

/// The key that the peer of a finished handshake holds.
pub(super) fn peer_key(certificates: Option<&[CertificateDer<'_>]>) -> Option<String> {
    certificates.and_then(|all| all.first()).map(hex)
}

fn hex(key: &CertificateDer<'_>) -> String {
    key.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Asks that the peer holds the key that it shows, and that it is the expected one if one is.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    expected: Option<String>,
}

impl Verifier {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        match &self.expected {
            Some(expected) if hex(shown) != *expected => Err(rustls::Error::InvalidCertificate(
                rustls::CertificateError::ApplicationVerificationFailure,
            )),
            Some(_) | None => Ok(()),
        }
    }

    fn proves(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Raw keys are for TLS 1.3, and nothing older is offered.
fn too_old() -> rustls::Error {
    rustls::Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered)
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.proves(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.proves(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
