//! What people and pipelines do to a workload while it is under load.

use serde_json::Value;

use crate::objects::Target;
use crate::scene::Scene;
use crate::timeline::Sample;

/// What three replicas of the test's engine carry well, in requests a second.
const THREE_REPLICAS: f64 = 3.5;

/// Under load, with everything that was ordered ready, and nothing let go meanwhile; the count.
async fn at_a_peak(scene: &mut Scene, target: &Target, max: u32) -> Option<u32> {
    let scaled = scene.scaled(1, max).with("ghostHold", "1h");
    scene.begin(target, &scaled).await;
    scene.load(THREE_REPLICAS).await;
    scene.until("more than one is ordered", 60, |now| now.spec > Some(1)).await;
    let settled =
        scene.until("the queue is served", 180, |now| now.spec == now.ready && now.in_flight < 16);
    settled.await.spec
}

/// KEDA makes no HPA for it and tries again later and later; once the scaler is there, it works.
pub(crate) async fn install_order(scene: &mut Scene) {
    scene.deploy(&Target::new(2)).await;
    let scaled = scene.scaled(1, 8);
    scene.scale_with(&scaled);
    scene.stays("nothing moves without a scaler", 20, |now| now.spec == Some(2)).await;
    scene.start_scaler().await;
    scene.load(2.0 * THREE_REPLICAS).await;
    scene.until("KEDA has found it", 300, |now| now.spec > Some(2)).await;
}

pub(crate) async fn two_triggers(scene: &mut Scene) {
    let scaled = scene.scaled(1, 10).with("targetInFlight", "100").second("targetInFlight", "1");
    scene.begin(&Target::new(1), &scaled).await;
    let snapshot = scene.snapshot().await;
    assert_eq!(snapshot["triggers"].as_array().map(Vec::len), Some(2), "{snapshot}");
    // Two in flight: one replica to the first trigger, two to the second.
    scene.load(0.9).await;
    scene.until("the larger wins", 120, |now| now.spec >= Some(2)).await;
}

/// The load ends and a step down is due: what an edit forgets makes it wait anew, and what a wrong value
/// does not freeze lets it come.
pub(crate) async fn edited(scene: &mut Scene) {
    let scaled = scene.scaled(1, 8).with("targetInFlight", "2").with("ghostHold", "90s");
    scene.begin(&Target::new(1), &scaled).await;
    scene.load(THREE_REPLICAS).await;
    let several = |now: &Sample| now.spec >= Some(4) && now.spec == now.ready;
    let peak = scene.until("several serve", 180, several).await.spec;
    scene.load(0.0).await;
    let before = told(scene, "a step down is due", "/decision/next/down_in_ms", |ms| ms <= 60_000);
    let before = before.await;
    let edit = scene.scaled(1, 9).with("targetInFlight", "2").with("ghostHold", "90s");
    let edit = edit.with("sloTtft", "3s");
    scene.scale_with(&edit);
    told(scene, "the edit is in force", "/policy/slo_ttft_ms", |ms| ms == 3_000).await;
    let after = told(scene, "and the step as due as before", "/decision/next/down_in_ms", |_| true);
    let after = after.await;
    assert!(after <= before, "an edit forgets no evidence: {before} ms before, {after} ms after");
    scene.scale_with(&edit.clone().with("sloTtft", "soon"));
    // The rest of the hold, and a sync of the HPA.
    scene.stays("a wrong value freezes the count", 90, |now| now.spec == peak).await;
    let events = scene.kubectl().run(&["get", "events", "-n", &scene.namespace, "-o", "yaml"]);
    assert!(events.contains("sloTtft"), "the event names the key:\n{events}");
    scene.scale_with(&edit);
    scene.until("corrected, it goes down", 240, |now| now.spec == Some(1)).await;
}

/// Waits until this number of the scaler's answer is so; gives it.
async fn told(scene: &mut Scene, what: &str, at: &str, is: impl Fn(u64) -> bool) -> u64 {
    for _ in 0..150 {
        let number = scene.snapshot().await.pointer(at).and_then(Value::as_u64);
        if let Some(number) = number.filter(|number| is(*number)) {
            scene.timeline.say(&format!("{what}: {number}"));
            return number;
        }
        scene.wait(1).await;
    }
    panic!("within 150 s: {what}; now {}", scene.snapshot().await);
}

pub(crate) async fn paused(scene: &mut Scene) {
    let peak = at_a_peak(scene, &Target::new(1), 8).await;
    let scaled = scene.scaled(1, 8).with("ghostHold", "10s");
    scene.scale_with(&scaled.clone().paused(true));
    scene.load(0.0).await;
    scene.until("fewer are wanted", 150, |now| now.want < peak).await;
    scene.stays("paused, nothing moves", 45, |now| now.spec == peak).await;
    scene.scale_with(&scaled);
    scene.until("resumed, it goes down", 240, |now| now.spec == Some(1)).await;
}

/// Nothing asks for the count that is found, but that it is there.
pub(crate) async fn deleted(scene: &mut Scene) {
    let peak = at_a_peak(scene, &Target::new(1), 8).await;
    let words = ["delete", "scaledobject", "llm", "-n", &scene.namespace];
    scene.kubectl().run(&words);
    scene.timeline.say("ScaledObject deleted");
    scene.stays("nothing moves", 25, |now| now.spec == peak).await;
    scene.load(0.0).await;
    let again = scene.scaled(1, 8).with("ghostHold", "60s");
    scene.scale_with(&again);
    scene.stays("adopted again as it is", 50, |now| now.spec == peak).await;
    scene.until("it goes down by evidence", 240, |now| now.spec == Some(1)).await;
}

/// The load ends as it begins: by its evidence all but one would go long before it is over.
pub(crate) async fn rollout(scene: &mut Scene) {
    let target = Target::new(1).cold_start("20s");
    let scaled = scene.scaled(1, 8).with("targetInFlight", "2").with("ghostHold", "20s");
    scene.begin(&target, &scaled).await;
    scene.load(THREE_REPLICAS).await;
    let several = |now: &Sample| now.spec >= Some(4) && now.spec == now.ready;
    let peak = scene.until("several serve", 180, several).await.spec;
    scene.roll_out(&target.clone().revision(2));
    scene.timeline.say("a new template rolls out");
    scene.load(0.0).await;
    // Two pods at a time beside five or more, one beside four, and twenty seconds for each.
    scene.stays("never fewer during the rollout", 55, |now| now.spec >= peak).await;
    scene.until("afterwards they go", 150, |now| now.spec == Some(1)).await;
}

/// With surge pods the HPA sees more replicas than were ordered; inside its tolerance it would keep
/// them.
pub(crate) async fn surge_drift(scene: &mut Scene) {
    let target = Target::new(10).surge("10%").cold_start("6s");
    let scaled = scene.scaled(10, 30).with("ghostHold", "10s");
    scene.begin(&target, &scaled).await;
    scene.roll_out(&target.clone().revision(2));
    scene.timeline.say("a new template rolls out");
    scene.stays("ten, whatever surges", 90, |now| now.spec == Some(10)).await;
}

/// The canary's pods have the target's labels, so that the scaler sees eleven where ten are ordered.
pub(crate) async fn canary(scene: &mut Scene) {
    let target = Target::new(10);
    let scaled = scene.scaled(1, 30).with("ghostHold", "1h");
    scene.begin(&target, &scaled).await;
    scene.apply(&target.canary());
    scene.timeline.say("a canary of one replica");
    scene.stays("ten, whatever stands beside them", 75, |now| now.spec == Some(10)).await;
}

pub(crate) async fn paused_scale_in(scene: &mut Scene) {
    let peak = at_a_peak(scene, &Target::new(1), 8).await;
    let scaled = scene.scaled(1, 8).with("ghostHold", "10s");
    scene.scale_with(&scaled.clone().paused_scale_in(true));
    scene.load(0.0).await;
    scene.until("fewer are wanted", 120, |now| now.want < peak).await;
    scene.stays("and none goes", 45, |now| now.spec == peak).await;
    let snapshot = scene.snapshot().await;
    let said = snapshot["hpa"]["text"].as_str().unwrap_or_default().to_owned();
    assert!(said.contains("steps down are disabled"), "{said}");
    assert!(snapshot["cluster"]["said"].to_string().contains("paused-scale-in"), "{snapshot}");
    scene.scale_with(&scaled);
    scene.until("resumed, it goes down", 240, |now| now.spec == Some(1)).await;
}
