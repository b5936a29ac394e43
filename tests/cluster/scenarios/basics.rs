//! Adoption, up and down, steps of one, no room.

use crate::objects::{Target, all_day};
use crate::plane::SMALL_POOL_GPUS;
use crate::scene::Scene;

/// What four replicas of the test's engine carry well, in requests a second.
const FOUR_REPLICAS: f64 = 4.5;

/// Six run and nothing asks for them; the scaler takes over, and only evidence lets go.
pub(crate) async fn adopt(scene: &mut Scene) {
    scene.deploy(&Target::new(6)).await;
    scene.start_scaler().await;
    let scaled = scene.scaled(1, 8).with("ghostHold", "60s");
    scene.scale_with(&scaled);
    scene.until("the scaler decides", 60, |now| now.health.as_deref() == Some("ok")).await;
    scene.stays("six replicas", 50, |now| now.spec == Some(6)).await;
    scene.until("the count goes down by evidence", 240, |now| now.spec < Some(6)).await;
}

pub(crate) async fn dips(scene: &mut Scene) {
    let scaled = scene.scaled(1, 8).with("ghostHold", "40s");
    scene.begin(&Target::new(1), &scaled).await;
    scene.load(FOUR_REPLICAS).await;
    scene.until("more than one is ordered", 60, |now| now.spec > Some(1)).await;
    let up =
        scene.until("the queue is served", 180, |now| now.spec == now.ready && now.in_flight < 20);
    let up = up.await.spec;
    scene.stays("the count is kept under load", 30, |now| now.spec >= up).await;
    for _ in 0..2 {
        scene.load(0.0).await;
        scene.stays("a dip moves nothing", 20, |now| now.spec >= up).await;
        scene.load(FOUR_REPLICAS).await;
        scene.stays("load again", 20, |now| now.spec >= up).await;
    }
    scene.load(0.0).await;
    scene.until("one is left", 420, |now| now.spec == Some(1)).await;
    scene.stays("one is kept", 30, |now| now.spec == Some(1)).await;
}

/// The schedule's floor wants exactly one more; the HPA has to take each such step, both ways.
pub(crate) async fn steps_of_one(scene: &mut Scene) {
    let floor = |replicas: u32| all_day(replicas);
    let scaled = scene.scaled(1, 30);
    scene.begin(&Target::new(10), &scaled.clone().with("warmSchedule", &floor(10))).await;
    scene.until_its_hpa_has("tolerance", 0.0).await;
    let first = [(10, 11), (11, 12), (12, 13), (13, 12), (12, 11)];
    let then = [(11, 20), (20, 21), (21, 20), (20, 19), (19, 10), (10, 9)];
    for (from, to) in first.into_iter().chain(then) {
        scene.scale_with(&scaled.clone().with("warmSchedule", &floor(to)));
        // Up at once, down after the hold.
        let within_s = if to > from { 45 } else { 120 };
        scene.until(&format!("{from} to {to}"), within_s, |now| now.spec == Some(to)).await;
        if from.abs_diff(to) == 1 {
            // Longer than the HPA's 15 s.
            scene.stays("it stays there", 16, |now| now.spec == Some(to)).await;
        }
    }
}

pub(crate) async fn dead_band(scene: &mut Scene) {
    let scaled = scene.scaled(1, 30).without_tolerance();
    scene.begin(&Target::new(10), &scaled.clone().with("warmSchedule", &all_day(10))).await;
    scene.until_its_hpa_has("tolerance", 0.1).await;
    scene.scale_with(&scaled.clone().with("warmSchedule", &all_day(11)));
    scene.until("eleven are wanted", 30, |now| now.want == Some(11)).await;
    scene.stays("the HPA ignores it", 45, |now| now.spec == Some(10)).await;
    let said = scene.snapshot().await["hpa"]["text"].as_str().unwrap_or_default().to_owned();
    assert!(said.contains("ignore"), "the snapshot says what the HPA does: {said:?}");
    scene.scale_with(&scaled.with("warmSchedule", &all_day(12)));
    scene.until("twelve are followed", 60, |now| now.spec == Some(12)).await;
}

/// The pool has three GPUs: what is Pending is not asked for again and again.
pub(crate) async fn pending(scene: &mut Scene) {
    // Far above what the queue of the first seconds asks for.
    const MAX: u32 = 100;
    let scaled = scene.scaled(1, MAX);
    scene.begin(&Target::new(1).pool("small"), &scaled).await;
    scene.load(1.5 * FOUR_REPLICAS).await;
    scene
        .until("all GPUs are taken", 120, |now| {
            now.ready == Some(SMALL_POOL_GPUS) && now.spec > now.ready
        })
        .await;
    let ordered =
        scene.until("and all that was wanted by then is ordered", 60, |now| now.spec == now.want);
    let ordered = ordered.await;
    assert!(ordered.spec < Some(MAX), "more could be ordered: {ordered}");
    scene.stays("nothing is ordered beyond it", 60, |now| now.want <= ordered.spec).await;
    scene.load(0.0).await;
    scene.until("they are given back", 300, |now| now.spec <= Some(SMALL_POOL_GPUS)).await;
}

pub(crate) async fn external(scene: &mut Scene) {
    let scaled = scene.scaled(1, 8).polled();
    scene.begin(&Target::new(1), &scaled).await;
    scene.load(FOUR_REPLICAS).await;
    scene.until("more than one is ordered", 60, |now| now.spec > Some(1)).await;
    scene.load(0.0).await;
    scene.until("one is left", 300, |now| now.spec == Some(1)).await;
}
