//! Two scalers whose ways are cut, slowed down or crowded: packets vanish and nobody is told.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::stage::{COUNT, Stage, Within};
use crate::asker::herd;
use crate::objects::Target;
use crate::pair::Pair;
use crate::relay::Way;
use crate::scene::Scene;

const LONG: Within = Within { asker: Duration::from_secs(20), keda: Duration::from_secs(190) };
const OPEN: Way = Way::Open(Duration::ZERO);

/// The leader is cut off from the API server: the other leads, and it follows.
pub(crate) async fn from_api(scene: &mut Scene) {
    let Some(stage) = Stage::open(scene).await else { return };
    let leader = stage.pair.leader().await;
    stage.pair.ways[leader].api.set(Way::Cut);
    scene.timeline.say("the leader is cut off from the API server");
    let cut_at = Instant::now();
    while !stage.pair.scaler(1 - leader).leads().await {
        assert!(cut_at.elapsed() < Duration::from_secs(30), "the other leads");
        sleep(Duration::from_millis(100)).await;
    }
    scene.timeline.say(&format!("the other leads after {:.1?}", cut_at.elapsed()));
    stage.stays(scene, "nothing moves", 30).await;
    assert!(!stage.pair.scaler(leader).leads().await, "one leads");
    let (old, new) = (stage.pair.answer_of(leader).await, stage.pair.answer_of(1 - leader).await);
    scene.timeline.say(&format!("it answers {old:?}, the leader {new:?}"));
    stage.held(scene, "around the cut", Within::A_POLL);
    stage.pair.ways[leader].api.set(OPEN);
    scene.timeline.say("it sees the API server again");
    stage.stays(scene, "nothing moves", 12).await;
    assert_eq!(stage.pair.leader().await, 1 - leader, "it goes on to follow");
    stage.until_equal(scene).await;
    stage.held(scene, "afterwards", Within::A_POLL);
    // The follower is cut off for good, and the loop goes on.
    stage.pair.ways[leader].api.set(Way::Cut);
    stage.still_works(scene).await;
}

/// The scaler that KEDA is connected to is cut off from it. KEDA's polls have no deadline; the HPA's
/// queries have 60 s, and then KEDA connects anew.
pub(crate) async fn from_keda(scene: &mut Scene) {
    /// The HPA's 15 s and 60 s, twice where the first new connection leads into the cut again, and the
    /// time of that connection, 20 s.
    const BOUND: Within = Within { asker: Duration::from_secs(20), keda: Duration::from_secs(190) };
    let Some(stage) = Stage::open(scene).await else { return };
    let asked = stage.keda.asked().await;
    stage.pair.ways[asked].keda.set(Way::Cut);
    scene.timeline.say("KEDA's packets to its scaler vanish");
    let (cut_at, other) = (Instant::now(), 1 - asked);
    while stage.keda.asked_within(other, Duration::from_secs(1)).await.is_none() {
        assert!(cut_at.elapsed() < BOUND.keda, "KEDA asks the other");
        stage.stays(scene, "nothing moves", 1).await;
    }
    scene.timeline.say(&format!("KEDA asks the other after {:.1?}", cut_at.elapsed()));
    stage.stays(scene, "nothing moves", 10).await;
    stage.pair.ways[asked].keda.set(OPEN);
    scene.timeline.say("they arrive again");
    stage.stays(scene, "nothing moves", 15).await;
    stage.held(scene, "around the cut", BOUND);
    stage.still_works(scene).await;
}

/// The same with a second ScaledObject on the connection, which keeps it: KEDA closes one only when nobody
/// holds a share of it. For longer than the cool-down of `generate`.
pub(crate) async fn from_keda_for_long(scene: &mut Scene) {
    const OTHER: &str = "other";
    /// 305 s on this loop, and something for a machine under load.
    const BOUND: Within = Within { keda: Duration::from_secs(360), ..LONG };
    let Some(stage) = Stage::open(scene).await else { return };
    let mut target = Target::new(2).object();
    target["metadata"]["name"] = json!(OTHER);
    for labels in ["/spec/selector/matchLabels", "/spec/template/metadata/labels"] {
        target.pointer_mut(labels).unwrap()["app"] = json!(OTHER);
    }
    scene.apply(&target);
    let mut object = super::stage::scaled(&stage.pair.address()).object();
    object["metadata"]["name"] = json!(OTHER);
    object["spec"]["scaleTargetRef"]["name"] = json!(OTHER);
    scene.apply(&object);
    scene.wait(40).await;
    let asked = stage.keda.asked().await;
    stage.pair.ways[asked].keda.set(Way::Cut);
    scene.timeline.say("KEDA's packets to its scaler vanish");
    let cut_at = Instant::now();
    let mut is_told = false;
    while cut_at.elapsed() < Duration::from_secs(480) {
        if !is_told
            && stage.keda.asked_within(1 - asked, Duration::from_millis(100)).await.is_some()
        {
            is_told = true;
            assert!(cut_at.elapsed() < BOUND.keda, "{:?}", cut_at.elapsed());
            scene.timeline.say(&format!("KEDA asks the other after {:.1?}", cut_at.elapsed()));
        }
        let words = ["get", "deployment", OTHER, "-n", &scene.namespace, "-o"];
        let counted = [&words[..], &["jsonpath={.spec.replicas}"]].concat();
        let other = scene.kubectl().run(&counted);
        let now = scene.look().await;
        let after = cut_at.elapsed();
        assert_eq!((&*other, now.spec), ("2", Some(COUNT)), "after {after:.0?}: {now}");
        scene.wait(2).await;
    }
    assert!(is_told, "KEDA asks the other");
    stage.pair.ways[asked].keda.set(OPEN);
    scene.timeline.say("they arrive again");
    stage.held(scene, "around the cut", BOUND);
}

/// The two cannot reach each other: the follower says so, and whoever asks it is sent to the leader.
pub(crate) async fn from_each_other(scene: &mut Scene) {
    let Some(stage) = Stage::open(scene).await else { return };
    let leader = stage.pair.leader().await;
    let follower = 1 - leader;
    let mut streaming = stage.pair.stream_at(follower).await;
    stage.pair.part(Way::Cut);
    scene.timeline.say("the two are cut off from each other");
    let cut_at = Instant::now();
    let ended = async { while streaming.message().await.is_ok_and(|told| told.is_some()) {} };
    tokio::select! {
        () = ended => {}
        () = stage.stays(scene, "nothing moves", 45) => panic!("the follower sends nobody away"),
    }
    let took = cut_at.elapsed();
    scene.timeline.say(&format!("the follower sends away whom it has after {took:.1?}"));
    stage.stays(scene, "nothing moves", 12).await;
    assert_eq!(stage.keda.asked().await, leader, "KEDA asks the leader");
    assert!(!stage.pair.scaler(follower).is_ready().await);
    stage.pair.part(OPEN);
    scene.timeline.say("they reach each other again");
    let open_at = Instant::now();
    while !stage.pair.scaler(follower).is_ready().await {
        assert!(open_at.elapsed() < Duration::from_secs(30), "it is ready again");
        sleep(Duration::from_millis(100)).await;
    }
    scene.timeline.say(&format!("it is ready again after {:.1?}", open_at.elapsed()));
    stage.until_equal(scene).await;
    stage.held(scene, "around the cut", Within::A_POLL);
}

/// The API server is slow, and then has too much to do.
pub(crate) async fn slow_api(scene: &mut Scene) {
    let Some(stage) = Stage::open(scene).await else { return };
    for ways in &stage.pair.ways {
        ways.api.set(Way::Open(Duration::from_millis(700)));
    }
    scene.timeline.say("each answer of the API server takes 1.4 s more");
    stage.stays(scene, "nothing moves", 25).await;
    stage.held(scene, "while it is slow", Within::A_POLL);
    for ways in &stage.pair.ways {
        ways.api.set(OPEN);
    }
    stage.pair.api.refuse(true);
    scene.timeline.say("three of four requests are answered 429");
    stage.stays(scene, "nothing moves", 25).await;
    stage.pair.api.refuse(false);
    scene.timeline.say(&format!("{} were refused", stage.pair.api.n_refused()));
    assert!(stage.pair.api.n_refused() > 0);
    stage.stays(scene, "nothing moves", 10).await;
    stage.pair.leader().await;
    stage.until_equal(scene).await;
    stage.held(scene, "while it refuses", Within::A_POLL);
}

/// The clocks of the two stand two hours apart, jump both ways, and one takes over from the other.
pub(crate) async fn clocks(scene: &mut Scene) {
    let Some(library) = faketime() else {
        let skipped = "skipped: no libfaketime (tests/setup.sh installs it)";
        scene.timeline.say(skipped);
        println!("{skipped}");
        return;
    };
    let files = ["one", "two"].map(|name| scene.dir.join(format!("clock-{name}")));
    let set = |index: usize, by: &str| std::fs::write(&files[index], by).unwrap();
    set(0, "+3600");
    set(1, "-3600");
    let opened = Stage::open_with(scene, |pair| {
        for (setup, file) in pair.setups.iter_mut().zip(&files) {
            setup.environment = vec![
                ("LD_PRELOAD", library.clone()),
                ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
                ("FAKETIME_NO_CACHE", "1".to_owned()),
                // A clock that is set does not move the time since the start.
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ];
        }
    });
    let Some(mut stage) = opened.await else { return };
    scene.timeline.say("one clock is an hour ahead, the other an hour behind");
    stage.stays(scene, "nothing moves", 10).await;
    let told = hours_told(&stage.pair);
    assert!(told.contains(&2), "they differ by two hours: {told:?}");
    set(0, "-7200");
    set(1, "+7200");
    scene.timeline.say("the one jumps back by three hours, the other ahead");
    stage.stays(scene, "nothing moves", 20).await;
    stage.held(scene, "around the jumps", Within::A_POLL);
    for _ in 0..2 {
        let leader = stage.pair.leader().await;
        stage.pair.kill(leader);
        scene.timeline.say("the leader is killed");
        assert_eq!(stage.pair.leader().await, 1 - leader);
        stage.stays(scene, "nothing moves", 15).await;
        stage.pair.start_again(leader).await;
        stage.until_equal(scene).await;
    }
    stage.held(scene, "around the take-overs", Within::A_POLL);
    // A running process follows its clock slowly; each has been started anew since the jump.
    let told = hours_told(&stage.pair);
    assert!(told.contains(&4), "they differ by four hours: {told:?}");
}

/// By how many hours the clocks differ, whenever a follower has said so.
fn hours_told(pair: &Pair) -> BTreeSet<i64> {
    let hours = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        Some((line["later_ms"].as_i64()?.abs() + 1_800_000) / 3_600_000)
    };
    let logs = pair.setups.iter().map(|setup| setup.dir.join("scaler.log"));
    let logs = logs.map(|path| std::fs::read_to_string(path).unwrap());
    logs.flat_map(|log| log.lines().filter_map(hours).collect::<Vec<_>>()).collect()
}

fn faketime() -> Option<String> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let paths = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    paths.into_iter().find(|path| path.exists()).map(|path| path.display().to_string())
}

/// Everybody connects at once, as when an operator comes back, and once more when all connections end
/// in the moment in which the leader dies.
pub(crate) async fn herd_comes(scene: &mut Scene) {
    /// As many as one scaler alone keeps connections, with KEDA's and the probes' beside them.
    const N_CLIENTS: usize = 240;
    let Some(mut stage) = Stage::open(scene).await else { return };
    let url = format!("http://{}", stage.pair.address());
    let object = stage.pair.object(super::stage::scaled(&stage.pair.address()).metadata());
    let first = herd(&url, &object, N_CLIENTS).await;
    scene.timeline.say(&format!("{N_CLIENTS} clients at once: {first}"));
    let leader = stage.pair.leader().await;
    stage.pair.kill(leader);
    stage.pair.restart_balancer(&scene.dir.clone());
    scene.timeline.say("all connections end, and the leader is killed");
    let second = herd(&url, &object, N_CLIENTS).await;
    scene.timeline.say(&format!("{N_CLIENTS} clients at once: {second}"));
    stage.stays(scene, "nothing moves", 15).await;
    stage.pair.start_again(leader).await;
    stage.until_equal(scene).await;
    stage.stays(scene, "nothing moves", 10).await;
    for herd in [first, second] {
        assert_eq!(herd.n_wrong, 0, "{herd}");
        assert_eq!(herd.n_answered, N_CLIENTS, "{herd}");
    }
    // Somebody in the crowd gets a turn, too.
    let crowded = Within { asker: Duration::from_secs(20), keda: Duration::from_secs(25) };
    stage.held(scene, "around the herds", crowded);
}
