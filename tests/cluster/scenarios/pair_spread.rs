//! Two scalers without what the manifests and `generate` give them: behind a headless Service, and with a
//! short cool-down.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::time::Instant;

use super::stage::{COUNT, Stage};
use crate::names::Names;
use crate::objects::{Target, all_day};
use crate::pair::Pair;
use crate::ports;
use crate::relay::Relay;
use crate::scene::Scene;

/// KEDA asks the pods of a headless Service in turn, call by call, while the count moves: what one says
/// later than the other may not bring a step back.
pub(crate) async fn headless(scene: &mut Scene) {
    /// The second pod's address.
    const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
    let Some(mut pair) = Pair::prepare(scene).await else { return };
    scene.deploy(&Target::new(COUNT)).await;
    pair.start_both().await;
    let [port] = ports::free();
    let hosts = [Ipv4Addr::LOCALHOST, SECOND];
    let mut pods = Vec::new();
    for (host, setup) in hosts.iter().zip(&pair.setups) {
        let at = SocketAddr::new(IpAddr::V4(*host), port);
        let to = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), setup.grpc);
        pods.push(Relay::start(at, to).await);
    }
    let names = Names::start(hosts.to_vec()).await;
    let address = format!("dns://{}/scaler.headless:{port}", names.address);
    let scaled = super::stage::scaled(&address);
    scene.scale_with(&scaled);
    scene.load(1.0).await;
    let keda = pair.watch_keda();
    for index in [0, 1] {
        let asked = keda.asked_within(index, Duration::from_secs(60)).await;
        assert!(asked.is_some(), "KEDA asks both: {index}");
    }
    scene.timeline.say("KEDA asks both in turn");
    scene.until("nothing moves", 60, |now| now.spec == Some(COUNT)).await;
    let twins = pair.compare(scaled.metadata());
    // A queue of its own order: each step is a decision, and none of them comes from an edit.
    scene.load(12.0).await;
    let (end, mut highest) = (Instant::now() + Duration::from_secs(120), COUNT);
    while Instant::now() < end {
        let now = scene.look().await;
        if let Some(spec) = now.spec {
            assert!(spec >= highest, "back from {highest} to {spec}");
            highest = spec;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(highest > COUNT, "the count has moved");
    let compared = twins.take();
    scene.timeline.say(&format!(
        "{COUNT} to {highest}; both asked at once {} times, at odds for {:.1?} at most, last {:?}",
        compared.n_both, compared.longest, compared.last
    ));
    assert!(compared.longest < Duration::from_secs(1), "{compared:?}");
}

/// What the cool-down of `generate` is for: a scaler that hangs answers nobody, KEDA's poll waits until the
/// HPA gives up, and then counts as inactive.
pub(crate) async fn short_cooldown(scene: &mut Scene) {
    /// 70 s in the lab with a cool-down of 30; something for a machine under load.
    const HANG_S: u64 = 150;
    let Some(stage) = Stage::open(scene).await else { return };
    let hang = async |scene: &mut Scene| {
        let asked = stage.keda.asked().await;
        stage.pair.scaler(asked).signal("STOP");
        scene.timeline.say("who is asked by KEDA hangs, and nothing ends it");
        asked
    };
    let asked = hang(scene).await;
    stage.stays(scene, "with the cool-down of generate nothing moves", HANG_S).await;
    stage.pair.scaler(asked).signal("CONT");
    stage.until_equal(scene).await;
    let short = super::stage::scaled(&stage.pair.address()).with_cooldown(30);
    scene.scale_with(&short);
    stage.stays(scene, "nor by a shorter one alone", 20).await;
    let asked = hang(scene).await;
    let hung_at = Instant::now();
    scene.until("with 30 s all replicas are gone", HANG_S, |now| now.spec == Some(0)).await;
    scene.timeline.say(&format!("after {:.0?}", hung_at.elapsed()));
    stage.pair.scaler(asked).signal("CONT");
    let floor = all_day(COUNT);
    scene.scale_with(&super::stage::scaled(&stage.pair.address()).with("warmSchedule", &floor));
    scene.until("they come back", 120, |now| now.spec == Some(COUNT)).await;
}
