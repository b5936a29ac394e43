//! Two scalers that serve with TLS and demand certificates, KEDA with a TriggerAuthentication, and the
//! replacement of all of them, the authority included.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ghostscaler::proto::external_scaler_client::ExternalScalerClient;
use serde_json::json;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

use super::stage::{COUNT, scaled};
use crate::objects::Target;
use crate::pair::Pair;
use crate::plane::{authority, certificate};
use crate::scene::Scene;

/// The files of a scaler, and of the Secret.
const FILES: [&str; 3] = ["tls.crt", "tls.key", "clients.crt"];
const NAME: &str = "scaler-tls";
/// A mounted file is read again every ten seconds.
const RELOADED_S: u64 = 12;

pub(crate) async fn replaced(scene: &mut Scene) {
    let Some(mut pair) = Pair::prepare(scene).await else { return };
    let dir = scene.dir.clone();
    for name in ["ca-one", "ca-two"] {
        authority(&dir, name);
    }
    for (name, authority) in [
        ("server-one", "ca-one"),
        ("server-two", "ca-one"),
        ("server-three", "ca-two"),
        ("client-one", "ca-one"),
        ("client-two", "ca-two"),
    ] {
        certificate(&dir, name, authority);
    }
    let both: String =
        ["ca-one.crt", "ca-two.crt"].map(|ca| fs::read_to_string(dir.join(ca)).unwrap()).concat();
    fs::write(dir.join("ca-both.crt"), both).unwrap();
    for setup in &mut pair.setups {
        give(&dir, &setup.dir, "server-one", "ca-one");
        let paths = FILES.map(|file| &*setup.dir.join(file).display().to_string().leak());
        for (flag, path) in ["--tls-cert", "--tls-key", "--tls-client-ca"].into_iter().zip(paths) {
            setup.flags.extend([flag, path]);
        }
    }
    trust(scene, &dir, "ca-one", "client-one");
    scene.apply(&json!({
        "apiVersion": "keda.sh/v1alpha1", "kind": "TriggerAuthentication",
        "metadata": {"name": NAME},
        "spec": {"secretTargetRef": [
            {"parameter": "caCert", "name": NAME, "key": "ca.crt"},
            {"parameter": "tlsClientCert", "name": NAME, "key": "tls.crt"},
            {"parameter": "tlsClientKey", "name": NAME, "key": "tls.key"}]},
    }));
    scene.deploy(&Target::new(COUNT)).await;
    pair.start_both().await;
    scene.scale_with(&scaled(&pair.address()).authenticated_by(NAME));
    scene.load(1.0).await;
    let keda = pair.watch_keda();
    keda.asked().await;
    keda.asked().await;
    scene.timeline.say("KEDA asks with its certificate");
    assert!(is_answered(&pair, &dir, "ca-one", Some("client-one")).await);
    assert!(!is_answered(&pair, &dir, "ca-one", None).await, "nobody is answered without one");

    let stays = |now: &crate::timeline::Sample| now.spec == Some(COUNT);
    let moves = async |scene: &mut Scene, pair: &mut Pair, what: &str| {
        let asked = keda.asked().await;
        pair.kill(asked);
        assert_eq!(keda.asked().await, 1 - asked, "KEDA connects to the other");
        scene.stays(what, 5, stays).await;
        pair.start_again(asked).await;
        let (n_calls, gap) = keda.take();
        scene.timeline.say(&format!("{what}: KEDA's {n_calls} calls, longest gap {gap:.1?}"));
        assert!(gap < Duration::from_secs(30), "{what}: {gap:?} without an answer");
    };
    for setup in &pair.setups {
        give(&dir, &setup.dir, "server-two", "ca-one");
    }
    scene.stays("nothing moves while new certificates are read", RELOADED_S, stays).await;
    moves(scene, &mut pair, "with the servers' new certificates").await;

    for setup in &pair.setups {
        give(&dir, &setup.dir, "server-two", "ca-both");
    }
    trust(scene, &dir, "ca-both", "client-two");
    scene.stays("nor while both authorities are trusted", RELOADED_S, stays).await;
    moves(scene, &mut pair, "with KEDA's new certificate").await;
    for setup in &pair.setups {
        give(&dir, &setup.dir, "server-three", "ca-two");
    }
    scene.stays("nor while the old authority goes", RELOADED_S, stays).await;
    moves(scene, &mut pair, "with the new authority alone").await;
    assert!(is_answered(&pair, &dir, "ca-two", Some("client-two")).await);
    let is_old_answered = is_answered(&pair, &dir, "ca-two", Some("client-one")).await;
    assert!(!is_old_answered, "nobody is answered with one of the old authority");
    assert!(!is_answered(&pair, &dir, "ca-two", None).await, "nor without one");
}

/// Whether somebody is answered who trusts the one and shows the other.
async fn is_answered(pair: &Pair, dir: &Path, servers: &str, client: Option<&str>) -> bool {
    let read = |file: String| fs::read(dir.join(file)).unwrap();
    let authority = Certificate::from_pem(read(format!("{servers}.crt")));
    let mut tls = ClientTlsConfig::new().ca_certificate(authority).domain_name("localhost");
    if let Some(client) = client {
        let [crt, key] = ["crt", "key"].map(|end| read(format!("{client}.{end}")));
        tls = tls.identity(Identity::from_pem(crt, key));
    }
    let endpoint = Channel::from_shared(format!("https://{}", pair.address())).unwrap();
    let endpoint = endpoint.tls_config(tls).unwrap().timeout(Duration::from_secs(5));
    // With TLS 1.3 a client learns of a refusal with its first call.
    let Ok(channel) = endpoint.connect().await else { return false };
    let object = pair.object(scaled(&pair.address()).metadata());
    ExternalScalerClient::new(channel).is_active(object).await.is_ok()
}

/// Puts a scaler's files in their place, each in one go.
fn give(from: &Path, to: &Path, server: &str, clients: &str) {
    let sources = [format!("{server}.crt"), format!("{server}.key"), format!("{clients}.crt")];
    for (source, file) in sources.iter().zip(FILES) {
        let new = to.join(format!("{file}.new"));
        fs::copy(from.join(source), &new).unwrap();
        fs::rename(new, to.join(file)).unwrap();
    }
}

/// The Secret from which KEDA has what it trusts and shows.
fn trust(scene: &Scene, dir: &Path, servers: &str, client: &str) {
    let read = |file: String| fs::read_to_string(dir.join(file)).unwrap();
    scene.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME},
        "stringData": {
            "ca.crt": read(format!("{servers}.crt")),
            "tls.crt": read(format!("{client}.crt")),
            "tls.key": read(format!("{client}.key")),
        },
    }));
}
