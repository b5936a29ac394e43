//! Two scalers behind one address: whatever happens to one, KEDA has answers and no count falls.

use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use crate::objects::{Scaled, Target};
use crate::pair::{Asker, Pair};
use crate::scene::Scene;

/// What three replicas of the test's engine carry well, in requests a second.
const THREE_REPLICAS: f64 = 3.5;
/// What the queue asks for before anything is learned; a count that falls is seen below it.
const MAX: u32 = 14;

/// Two scalers, a target at its peak, and somebody who asks ten times a second.
async fn at_a_peak(scene: &mut Scene) -> Option<(Pair, Asker, Option<u32>)> {
    scene.deploy(&Target::new(1)).await;
    let pair = Pair::start(scene).await?;
    // With a minimum of zero, where an error or a hang may cost all replicas, and the times that
    // `generate` writes against that.
    let scaled = Scaled::new(&pair.address(), 0, MAX).with_defaults().with("ghostHold", "1h");
    let scaled = scaled.with("zeroAfter", "never");
    scene.scale_with(&scaled);
    let asker = pair.ask(scaled.metadata());
    scene.load(THREE_REPLICAS).await;
    scene.until("more than one is ordered", 90, |now| now.spec > Some(1)).await;
    let settled =
        scene.until("the queue is served", 180, |now| now.spec == now.ready && now.in_flight < 16);
    let peak = settled.await.spec;
    until_equal(scene, &pair).await;
    tell(scene, &asker, "until the peak");
    Some((pair, asker, peak))
}

/// Both would answer the same.
async fn until_equal(scene: &mut Scene, pair: &Pair) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let (one, two) = (pair.answer_of(0).await, pair.answer_of(1).await);
        let answer = |of: &Option<(Value, u64)>| of.as_ref().map(|(answer, _)| answer.clone());
        if one.is_some() && answer(&one) == answer(&two) {
            scene.timeline.say(&format!("both answer {}", answer(&one).unwrap()));
            return;
        }
        assert!(Instant::now() < end, "they contradict each other for 30 s: {one:?} {two:?}");
        sleep(Duration::from_millis(200)).await;
    }
}

/// Says what was answered since the last word; the longest time without an answer.
fn tell(scene: &mut Scene, asker: &Asker, what: &str) -> Duration {
    let (counts, gap) = asker.take();
    scene.timeline.say(&format!("{what}: answered {counts:?}, longest gap {gap:.1?}"));
    gap
}

/// No answer fell below the peak since the last word, and one came within a poll's time.
fn held(scene: &mut Scene, asker: &Asker, peak: Option<u32>, within: Duration, what: &str) {
    let (counts, gap) = asker.take();
    scene.timeline.say(&format!("{what}: answered {counts:?}, longest gap {gap:.1?}"));
    let peak = i64::from(peak.unwrap());
    assert!(counts.iter().all(|count| *count >= peak), "{what}: {counts:?} under {peak}");
    assert!(gap < within, "{what}: {gap:?} without an answer");
}

/// KEDA's own interval in these scenarios.
const POLL: Duration = Duration::from_secs(5);

pub(crate) async fn leader_killed(scene: &mut Scene) {
    let Some((mut pair, asker, peak)) = at_a_peak(scene).await else { return };
    let leader = pair.leader().await;
    let before = pair.answer_of(1 - leader).await;
    pair.kill(leader);
    scene.timeline.say("the leader is killed");
    let killed_at = Instant::now();
    assert_eq!(pair.leader().await, 1 - leader);
    let took = killed_at.elapsed();
    scene.timeline.say(&format!("the other leads after {took:.1?}"));
    scene.stays("no replica is lost", 30, |now| now.spec >= peak).await;
    let after = pair.answer_of(1 - leader).await;
    scene.timeline.say(&format!("answer before {before:?}, after {after:?}"));
    held(scene, &asker, peak, POLL, "around the kill");
    pair.start_again(leader).await;
    until_equal(scene, &pair).await;
    assert_eq!(pair.leader().await, 1 - leader, "who comes back follows");
    scene.stays("nor after its start", 20, |now| now.spec >= peak).await;
    held(scene, &asker, peak, POLL, "after its start");
}

pub(crate) async fn leader_paused(scene: &mut Scene) {
    let Some((mut pair, asker, peak)) = at_a_peak(scene).await else { return };
    let leader = pair.leader().await;
    pair.scaler(leader).signal("STOP");
    scene.timeline.say("the leader hangs");
    scene.stays("no replica is lost", 25, |now| now.spec >= peak).await;
    assert!(pair.scaler(1 - leader).leads().await, "the other leads");
    pair.scaler(leader).signal("CONT");
    scene.timeline.say("it goes on");
    until_equal(scene, &pair).await;
    // Equal answers do not tell: the old ones were those too.
    let goes_on_at = Instant::now();
    while pair.scaler(leader).leads().await {
        assert!(goes_on_at.elapsed() < POLL, "it follows");
        sleep(Duration::from_millis(100)).await;
    }
    scene.stays("nor afterwards", 20, |now| now.spec >= peak).await;
    // Who was connected to the hung one is not helped by the balancer, as by no Service.
    held(scene, &asker, peak, Duration::from_secs(30), "around the pause");
    // A kubelet's probe would have ended it.
    let other = pair.leader().await;
    pair.scaler(other).signal("STOP");
    scene.timeline.say("the new leader hangs");
    scene.stays("no replica is lost", 24, |now| now.spec >= peak).await;
    pair.kill(other);
    scene.timeline.say("its liveness probe has failed three times: it is killed");
    pair.start_again(other).await;
    until_equal(scene, &pair).await;
    scene.stays("nor after its start", 20, |now| now.spec >= peak).await;
    held(scene, &asker, peak, Duration::from_secs(30), "around the probe's kill");
}

pub(crate) async fn rolling_update(scene: &mut Scene) {
    let Some((mut pair, asker, peak)) = at_a_peak(scene).await else { return };
    for index in [0, 1] {
        let leads = pair.scaler(index).leads().await;
        let stopped_at = Instant::now();
        pair.stop(index).await;
        let other = pair.leader().await;
        let took = stopped_at.elapsed();
        scene
            .timeline
            .say(&format!("one stopped (leader: {leads}); {other} leads after {took:.1?}"));
        pair.start_again(index).await;
        until_equal(scene, &pair).await;
        held(scene, &asker, peak, POLL, "around it");
    }
    scene.stays("no replica is lost", 30, |now| now.spec >= peak).await;
    held(scene, &asker, peak, POLL, "after it");
}

pub(crate) async fn lease_stolen(scene: &mut Scene) {
    let Some((pair, asker, peak)) = at_a_peak(scene).await else { return };
    let lease = pair.lease();
    let patch =
        json!({"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 10}}).to_string();
    let words = ["patch", "lease", &lease, "-n", "ghostscaler", "--type=merge", "--patch", &patch];
    scene.kubectl().run(&words);
    scene.timeline.say("the lease is stolen, and never renewed");
    scene.stays("no replica is lost", 20, |now| now.spec >= peak).await;
    pair.leader().await;
    until_equal(scene, &pair).await;
    held(scene, &asker, peak, POLL, "around the theft");
    scene.kubectl().run(&["delete", "lease", &lease, "-n", "ghostscaler"]);
    scene.timeline.say("the lease is deleted");
    scene.stays("no replica is lost", 15, |now| now.spec >= peak).await;
    pair.leader().await;
    until_equal(scene, &pair).await;
    held(scene, &asker, peak, POLL, "around the deletion");
}

/// Both go at once, as with a node that held both: what was learned comes back from the shards.
pub(crate) async fn shards(scene: &mut Scene) {
    let Some((mut pair, asker, peak)) = at_a_peak(scene).await else { return };
    let shard = format!("{}-state-0", pair.lease());
    pair.stop(0).await;
    pair.stop(1).await;
    scene.timeline.say("both are stopped");
    let words =
        ["get", "configmap", &shard, "-n", "ghostscaler", "-o", "jsonpath={.data.state\\.jsonl}"];
    let saved = scene.kubectl().run(&words);
    scene.timeline.say(&format!(
        "{} bytes in {} lines are saved",
        saved.len(),
        saved.lines().count()
    ));
    assert!(saved.contains(&scene.namespace), "the workload is in it");
    scene.stays("no replica is lost without a scaler", 15, |now| now.spec >= peak).await;
    for index in [0, 1] {
        pair.start_again(index).await;
    }
    until_equal(scene, &pair).await;
    scene.stays("nor after their start", 30, |now| now.spec >= peak).await;
    held(scene, &asker, peak, Duration::from_secs(60), "around it");
    for index in [0, 1] {
        pair.kill(index);
    }
    let patch = json!({"data": {"state.jsonl": saved.replacen("want", "tnaw", 1)}}).to_string();
    let words =
        ["patch", "configmap", &shard, "-n", "ghostscaler", "--type=merge", "--patch", &patch];
    scene.kubectl().run(&words);
    scene.timeline.say("both are killed, and the shard is damaged");
    for index in [0, 1] {
        pair.start_again(index).await;
    }
    until_equal(scene, &pair).await;
    scene.stays("no replica is lost", 30, |now| now.spec >= peak).await;
    held(scene, &asker, peak, Duration::from_secs(60), "around the damage");
    let events = scene.kubectl().run(&["get", "events", "-n", "ghostscaler", "-o", "yaml"]);
    assert!(events.contains("StateNotUsed"), "the damage is an event:\n{events}");
}
