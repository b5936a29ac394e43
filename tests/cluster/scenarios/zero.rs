//! Zero and back: the idle time, the wake, requests that wait for it.

use serde_json::Value;

use crate::objects::Target;
use crate::scene::Scene;

/// The gateway's own counter as the wake source.
fn wake_source(scene: &Scene) -> String {
    format!(
        "wakeSources:\n- name: gateway\n  kind: gauge\n  url: http://{}/metrics\n  metric: gateway_held\n",
        scene.gateway.address
    )
}

/// At one replica, idle, and allowed to sleep after a minute.
async fn idle_at_one(scene: &mut Scene) {
    scene.setup.configure(&wake_source(scene));
    let scaled = scene.scaled(0, 4).with("wakeSource", "gateway").with("zeroAfter", "1m");
    scene.begin(&Target::new(1), &scaled).await;
}

pub(crate) async fn and_wake(scene: &mut Scene) {
    idle_at_one(scene).await;
    scene.stays("one is kept through the idle time", 45, |now| now.spec == Some(1)).await;
    scene.until("it sleeps", 180, |now| now.spec == Some(0)).await;
    scene.stays("nothing wakes it", 40, |now| now.spec == Some(0)).await;
    let report = scene.burst(1, 120).await;
    assert_eq!((&report["completed"], &report["errors"]), (&1.into(), &0.into()));
    let awake = scene.look().await;
    assert_eq!(awake.spec, Some(1), "one request is one replica: {awake}");
}

pub(crate) async fn fifty(scene: &mut Scene) {
    idle_at_one(scene).await;
    scene.until("it sleeps", 240, |now| now.spec == Some(0)).await;
    let report = scene.burst(50, 180).await;
    assert_eq!((&report["completed"], &report["errors"]), (&50.into(), &0.into()));
    assert_eq!(scene.gateway.lost(), 0, "the gateway held them all");
    let events = ["get", "events", "-n", &scene.namespace, "-o", "json"];
    let events: Value = serde_json::from_str(&scene.kubectl().run(&events)).unwrap();
    let events = events["items"].as_array().unwrap().iter();
    let woke: Vec<&Value> = events.filter(|event| event["reason"] == "Woke").collect();
    assert!(matches!(woke[..], [one] if one["series"].is_null()), "one wake: {woke:#?}");
}

pub(crate) async fn cancelled(scene: &mut Scene) {
    idle_at_one(scene).await;
    scene.until("zero is wanted", 180, |now| now.want == Some(0)).await;
    assert_eq!(scene.look().await.spec, Some(1), "KEDA still waits for its cool-down");
    scene.load(0.5).await;
    scene.until("one is wanted again", 30, |now| now.want >= Some(1)).await;
    scene.stays("it has never gone", 60, |now| now.spec >= Some(1)).await;
}
