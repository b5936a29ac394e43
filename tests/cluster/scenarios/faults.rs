//! Parts that go away under load: no replica is lost, and afterwards the loop works again.

use std::sync::Arc;

use crate::objects::{Scaled, Target, all_day};
use crate::plane::Part;
use crate::scene::Scene;
use crate::timeline::Sample;

/// What three replicas of the test's engine carry well, in requests a second.
const THREE_REPLICAS: f64 = 3.5;
/// Until the engines' capacity is learned the queue may ask for more than that.
const MAX: u32 = 6;
/// Long enough that silence taken for idleness would let replicas go: a minute's mean, [`SHORT_HOLD`] and
/// a sync of the HPA.
const SILENCE_S: u64 = 110;
const SHORT_HOLD: &str = "15s";

/// Under load with everything ready, and nothing let go meanwhile; the count.
async fn at_a_peak(scene: &mut Scene) -> Option<u32> {
    at_a_peak_of(scene, &Target::new(1)).await
}

async fn at_a_peak_of(scene: &mut Scene, target: &Target) -> Option<u32> {
    // With a minimum of zero, where an error or a hang may cost all replicas, and the times that
    // `generate` writes against that.
    let scaled = standing(scene, MAX);
    scene.begin(target, &scaled).await;
    scene.load(THREE_REPLICAS).await;
    scene.until("more than one is ordered", 60, |now| now.spec > Some(1)).await;
    let settled =
        scene.until("the queue is served", 180, |now| now.spec == now.ready && now.in_flight < 16);
    settled.await.spec
}

fn standing(scene: &Scene, max: u32) -> Scaled {
    let scaled = scene.scaled(0, max).with_defaults();
    scaled.with("ghostHold", "1h").with("zeroAfter", "never")
}

/// With a hold so short that whatever looks like idleness lets go; what the load needs by itself then.
async fn settled(scene: &mut Scene, scaled: Scaled) -> Option<u32> {
    scene.scale_with(&scaled.with("ghostHold", SHORT_HOLD));
    scene.wait(90).await;
    let several = |now: &Sample| now.spec > Some(1) && now.spec == now.ready;
    scene.until("what the load needs is there", 60, several).await.spec
}

/// The loop still moves: to a floor above whatever was reached before.
async fn still_works(scene: &mut Scene) {
    let higher = standing(scene, MAX + 2);
    scene.scale_with(&higher.with("warmSchedule", &all_day(MAX + 2)));
    scene.until("a higher floor is followed", 180, |now| now.spec == Some(MAX + 2)).await;
}

pub(crate) async fn scaler_restart(scene: &mut Scene) {
    let peak = at_a_peak(scene).await;
    scene.kill_scaler();
    scene.stays("no replica is lost without a scaler", 25, |now| now.spec >= peak).await;
    scene.start_scaler().await;
    scene.stays("nor after its start", 45, |now| now.spec >= peak).await;
    scene.stop_scaler().await;
    scene.start_scaler().await;
    scene.stays("nor after a clean one", 30, |now| now.spec >= peak).await;
    still_works(scene).await;
}

pub(crate) async fn engines_hang(scene: &mut Scene) {
    at_a_peak(scene).await;
    let standing = settled(scene, standing(scene, MAX)).await;
    scene.engines.signal("STOP");
    scene.timeline.say("all engines hang");
    scene.stays("no replica is lost", SILENCE_S, |now| now.spec >= standing).await;
    scene.engines.signal("CONT");
    scene.timeline.say("they go on");
    scene.until("the inputs are whole again", 60, |now| now.health.as_deref() == Some("ok")).await;
}

pub(crate) async fn prometheus_outage(scene: &mut Scene) {
    let Some(mut prometheus) = scene.prometheus() else { return };
    scene.setup.configure(&format!("prometheus: [{{name: main, url: {}}}]\n", prometheus.url));
    let scaled = scene.scaled(1, MAX).with("ghostHold", "1h").with("source", "prometheus");
    scene.begin(&Target::new(1), &scaled).await;
    scene.load(THREE_REPLICAS).await;
    scene.until("more than one is ordered", 120, |now| now.spec > Some(1)).await;
    let is_settled = |now: &Sample| now.spec == now.ready && now.in_flight < 16;
    scene.until("the queue is served", 240, is_settled).await;
    let standing = settled(scene, scaled).await;
    prometheus.kill();
    scene.timeline.say("Prometheus killed");
    scene.stays("no replica is lost", SILENCE_S, |now| now.spec >= standing).await;
    let missed = |now: &Sample| now.health.as_deref() == Some("degraded");
    scene.until("it is missed", 10, missed).await;
    prometheus.start_again();
    scene.timeline.say("Prometheus again");
    scene.until("the inputs are whole again", 120, |now| now.health.as_deref() == Some("ok")).await;
    // What a whole hold of new samples lets go is no loss; less than that is.
    scene.stays("nor before a hold of it is seen", 12, |now| now.spec >= standing).await;
}

/// As when its node is lost: the order stands, nothing is scaled for it, and it is said.
pub(crate) async fn pod_loss(scene: &mut Scene) {
    let peak = at_a_peak_of(scene, &Target::new(1).cold_start("15s")).await;
    let pods = scene.kubectl().run(&["get", "pods", "-n", &scene.namespace, "-o", "name"]);
    let lost = pods.lines().next().unwrap().to_owned();
    let words = ["delete", &lost, "-n", &scene.namespace, "--grace-period=0", "--force"];
    scene.kubectl().run(&words);
    scene.timeline.say("a pod is gone");
    scene.stays("the order stands", 40, |now| now.spec >= peak).await;
    scene.until("it is replaced", 60, |now| now.ready >= peak).await;
    let events = scene.kubectl().run(&["get", "events", "-n", &scene.namespace, "-o", "yaml"]);
    assert!(events.contains("ExternalLoss"), "the loss is an event:\n{events}");
}

pub(crate) async fn keda_restart(scene: &mut Scene) {
    let peak = at_a_peak(scene).await;
    let plane = Arc::clone(&scene.plane);
    let _fault = plane.only_fault().await;
    scene.plane.kill_part(Part::Keda);
    scene.timeline.say("KEDA's operator killed");
    scene.stays("no replica is lost", 30, |now| now.spec >= peak).await;
    scene.plane.start_part(Part::Keda);
    scene.stays("nor after its start", 45, |now| now.spec >= peak).await;
    still_works(scene).await;
}

pub(crate) async fn adapter_restart(scene: &mut Scene) {
    let peak = at_a_peak(scene).await;
    let plane = Arc::clone(&scene.plane);
    let _fault = plane.only_fault().await;
    scene.plane.kill_part(Part::Adapter);
    scene.timeline.say("KEDA's adapter killed");
    scene.stays("no replica is lost", 30, |now| now.spec >= peak).await;
    scene.plane.start_part(Part::Adapter);
    scene.plane.until_keda_serves().await;
    scene.stays("nor after its start", 30, |now| now.spec >= peak).await;
    still_works(scene).await;
}

pub(crate) async fn api_restart(scene: &mut Scene) {
    let peak = at_a_peak(scene).await;
    let plane = Arc::clone(&scene.plane);
    let _fault = plane.only_fault().await;
    scene.plane.kill_part(Part::ApiServer);
    scene.timeline.say("API server killed");
    scene.wait(20).await;
    scene.plane.start_part(Part::ApiServer);
    scene.plane.until_served("/readyz").await;
    scene.timeline.say("API server serves again");
    scene.stays("no replica is lost", 40, |now| now.spec >= peak).await;
    still_works(scene).await;
}

pub(crate) async fn etcd_pause(scene: &mut Scene) {
    let peak = at_a_peak(scene).await;
    let plane = Arc::clone(&scene.plane);
    let _fault = plane.only_fault().await;
    scene.plane.signal_part(Part::Etcd, "STOP");
    scene.timeline.say("etcd hangs");
    scene.wait(30).await;
    scene.plane.signal_part(Part::Etcd, "CONT");
    scene.timeline.say("etcd goes on");
    scene.stays("no replica is lost", 40, |now| now.spec >= peak).await;
    still_works(scene).await;
}
