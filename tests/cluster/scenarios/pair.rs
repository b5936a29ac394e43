//! Two scalers behind one address: whichever goes, hangs or comes back, KEDA has answers and no count
//! moves.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::stage::{POLL, Stage, Within};
use crate::scene::Scene;

/// Who was connected to one that hangs waits for it: its own time-outs, here a second and two tries.
const HUNG: Within = Within { asker: Duration::from_secs(15), keda: Duration::from_secs(100) };

pub(crate) async fn leader_killed(scene: &mut Scene) {
    let Some(mut stage) = Stage::open(scene).await else { return };
    let leader = stage.pair.leader().await;
    let before = stage.pair.answer_of(1 - leader).await;
    stage.pair.kill(leader);
    scene.timeline.say("the leader is killed");
    let killed_at = Instant::now();
    assert_eq!(stage.pair.leader().await, 1 - leader);
    let took = killed_at.elapsed();
    scene.timeline.say(&format!("the other leads after {took:.1?}"));
    stage.stays(scene, "nothing moves", 20).await;
    let after = stage.pair.answer_of(1 - leader).await;
    scene.timeline.say(&format!("answer before {before:?}, after {after:?}"));
    stage.pair.start_again(leader).await;
    stage.until_equal(scene).await;
    assert_eq!(stage.pair.leader().await, 1 - leader, "who comes back follows");
    stage.stays(scene, "nor after its start", 10).await;
    stage.held(scene, "around the kill", Within::A_POLL);
}

pub(crate) async fn leader_paused(scene: &mut Scene) {
    let Some(mut stage) = Stage::open(scene).await else { return };
    let leader = stage.pair.leader().await;
    stage.pair.scaler(leader).signal("STOP");
    scene.timeline.say("the leader hangs");
    stage.stays(scene, "nothing moves", 25).await;
    assert!(stage.pair.scaler(1 - leader).leads().await, "the other leads");
    stage.pair.scaler(leader).signal("CONT");
    scene.timeline.say("it goes on");
    stage.until_equal(scene).await;
    // Equal answers do not tell: the old ones were those too.
    let goes_on_at = Instant::now();
    while stage.pair.scaler(leader).leads().await {
        assert!(goes_on_at.elapsed() < POLL, "it follows");
        sleep(Duration::from_millis(100)).await;
    }
    stage.held(scene, "around the pause", HUNG);

    let other = stage.pair.leader().await;
    stage.pair.scaler(other).signal("STOP");
    scene.timeline.say("the new leader hangs");
    let hangs_at = Instant::now();
    let probe = stage.pair.probe_until_it_fails(other);
    let told = tokio::select! {
        failed = probe => failed,
        () = stage.stays(scene, "nothing moves", 100) => panic!("the liveness probe never fails"),
    };
    scene.timeline.say(&format!("the manifests' liveness probe fails after {told:.1?}"));
    stage.pair.end_as_kubelet(other).await;
    let took = hangs_at.elapsed();
    scene.timeline.say(&format!("killed after {took:.1?}"));
    // Time enough for the start of another, before KEDA's cooldown of 300 s could be over.
    assert!(took < Duration::from_secs(120), "{took:?}");
    stage.pair.start_again(other).await;
    stage.until_equal(scene).await;
    stage.stays(scene, "nor after its start", 10).await;
    stage.held(scene, "around the probe's kill", HUNG);
}

pub(crate) async fn rolling_update(scene: &mut Scene) {
    let Some(mut stage) = Stage::open(scene).await else { return };
    for index in [0, 1] {
        let leads = stage.pair.scaler(index).leads().await;
        let stopped_at = Instant::now();
        stage.pair.stop(index).await;
        let other = stage.pair.leader().await;
        let took = stopped_at.elapsed();
        scene
            .timeline
            .say(&format!("one stopped (leader: {leads}); {other} leads after {took:.1?}"));
        stage.pair.start_again(index).await;
        stage.until_equal(scene).await;
    }
    stage.stays(scene, "nothing moves", 20).await;
    stage.held(scene, "around it", Within::A_POLL_EACH);
}

pub(crate) async fn lease_stolen(scene: &mut Scene) {
    let Some(stage) = Stage::open(scene).await else { return };
    let lease = stage.pair.lease();
    let patch =
        json!({"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 86_400}}).to_string();
    let words = ["patch", "lease", &lease, "-n", "ghostscaler", "--type=merge", "--patch", &patch];
    scene.kubectl().run(&words);
    scene.timeline.say("the lease is stolen for a day, and never renewed");
    stage.stays(scene, "nothing moves", 15).await;
    stage.pair.leader().await;
    stage.until_equal(scene).await;
    scene.kubectl().run(&["delete", "lease", &lease, "-n", "ghostscaler"]);
    scene.timeline.say("the lease is deleted");
    stage.stays(scene, "nothing moves", 12).await;
    stage.pair.leader().await;
    stage.until_equal(scene).await;
    stage.held(scene, "around theft and deletion", Within::A_POLL);
}

/// Both go at once, as with a node that held both: what was learned comes back from the shards, and where
/// these are damaged or gone nothing is lost but what was learned.
pub(crate) async fn shards(scene: &mut Scene) {
    const BOTH_GONE: Within =
        Within { asker: Duration::from_secs(60), keda: Duration::from_secs(75) };
    let Some(mut stage) = Stage::open(scene).await else { return };
    let shard = format!("{}-state-0", stage.pair.lease());
    stage.pair.stop(0).await;
    stage.pair.stop(1).await;
    scene.timeline.say("both are stopped");
    let words =
        ["get", "configmap", &shard, "-n", "ghostscaler", "-o", "jsonpath={.data.state\\.jsonl}"];
    let saved = scene.kubectl().run(&words);
    let (n_bytes, n_lines) = (saved.len(), saved.lines().count());
    scene.timeline.say(&format!("{n_bytes} bytes in {n_lines} lines are saved"));
    assert!(saved.contains(&scene.namespace), "the workload is in it");
    stage.stays(scene, "nothing moves without a scaler", 5).await;
    stage.pair.start_both().await;
    stage.until_equal(scene).await;
    stage.stays(scene, "nor after their start", 15).await;
    stage.held(scene, "around it", BOTH_GONE);
    // Nothing but hand-overs writes within five minutes of a start: one each.
    let n_writes = stage.pair.api.n_writes(&shard);
    scene.timeline.say(&format!("{n_writes} writes of the shard on the wire"));
    assert!((1..=2).contains(&n_writes), "{n_writes} writes by two hand-overs");

    stage.pair.kill(0);
    stage.pair.kill(1);
    let patch = json!({"data": {"state.jsonl": saved.replacen("want", "tnaw", 1)}}).to_string();
    let words =
        ["patch", "configmap", &shard, "-n", "ghostscaler", "--type=merge", "--patch", &patch];
    scene.kubectl().run(&words);
    scene.timeline.say("both are killed, and the shard is damaged");
    stage.pair.start_both().await;
    stage.until_equal(scene).await;
    stage.stays(scene, "nothing moves", 15).await;
    let events = scene.kubectl().run(&["get", "events", "-n", "ghostscaler", "-o", "yaml"]);
    assert!(events.contains("StateNotUsed"), "the damage is an event:\n{events}");

    scene.kubectl().run(&["delete", "configmap", &shard, "-n", "ghostscaler"]);
    scene.timeline.say("the shard is deleted");
    let leader = stage.pair.leader().await;
    stage.pair.stop(leader).await;
    let saved = scene.kubectl().try_run(&["get", "configmap", &shard, "-n", "ghostscaler"]);
    assert!(saved.is_ok(), "the hand-over has made it again: {saved:?}");
    stage.pair.start_again(leader).await;
    stage.until_equal(scene).await;
    stage.stays(scene, "nothing moves", 10).await;
    stage.held(scene, "around damage and deletion", BOTH_GONE);
}
