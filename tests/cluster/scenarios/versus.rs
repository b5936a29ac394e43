//! The same half hour of requests, scaled by the scaler and by what most people start with: KEDA's own
//! Prometheus trigger on the engines' queue.
//!
//! Must give the scaler no setting at all. The trigger runs with its documentation's threshold and with
//! the best that was found for these very requests.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;

use crate::objects::{Target, queue_trigger};
use crate::scene::Scene;

/// Requests a second: quiet, a step up, a dip, a higher peak, an evening. One replica carries 1.6.
const DAY: &str = "1@3m,4@5m,1@40s,4@3m,8@4m,2@6m,0.5@6m";
const LENGTH: &str = "27m40s";
/// As many as each may have.
const MAX: u32 = 12;
/// Requests waiting a replica: that of vLLM production-stack's example, and the best of seven for these
/// requests in `simulate` (0.1 to 5, as its policy `hpa-queue` is swept).
const THRESHOLDS: [&str; 2] = ["5", BEST];
const BEST: &str = "0.5";
/// Columns of the picture.
const COLUMNS: u32 = 60;

/// What came of one of them.
struct Lane {
    name: String,
    report: Value,
    began: Duration,
    replica_seconds: f64,
    turns: u32,
}

pub(crate) async fn side_by_side(scene: &mut Scene) {
    let target = Target::new(1).cold_start("60s");
    let mut plain = Vec::new();
    for threshold in THRESHOLDS {
        let name = format!("side-by-side-queue-{}", threshold.replace('.', "-"));
        let lane = Scene::open(&name, Arc::clone(&scene.plane)).await;
        plain.push((threshold, lane));
    }
    let scaled = scene.scaled(1, MAX).with_defaults();
    scene.begin(&target, &scaled).await;
    let mut running = Vec::new();
    for (threshold, lane) in &mut plain {
        let Some(prometheus) = lane.prometheus() else { return };
        lane.deploy(&target).await;
        lane.apply(&queue_trigger(&prometheus.url, &lane.namespace, threshold, (1, MAX)));
        running.push(prometheus);
    }
    let theirs =
        plain.iter_mut().map(|(threshold, lane)| play(lane, format!("KEDA, queue of {threshold}")));
    let (ours, theirs) = tokio::join!(play(scene, "ghostscaler".to_owned()), join_all(theirs));
    let lanes: Vec<(&Lane, &Scene)> = std::iter::once((&ours, &*scene))
        .chain(theirs.iter().zip(plain.iter().map(|(_, lane)| lane)))
        .collect();
    let table = table(&lanes);
    scene.timeline.say(&format!("side by side\n\n{table}"));
    std::fs::write(scene.dir.join("side-by-side.txt"), &table).unwrap();
    for (_, lane) in plain {
        lane.close().await;
    }
    let attained = |lane: &Lane| lane.report["attainment"].as_f64().unwrap();
    let (mine, others) = (attained(&ours), theirs.iter().map(attained).collect::<Vec<_>>());
    assert!(mine > 0.95 && others.iter().all(|other| mine >= *other), "{mine} against {others:?}");
}

async fn play(scene: &mut Scene, name: String) -> Lane {
    let began = scene.timeline.at();
    let (before_s, before) = (scene.timeline.replica_seconds, scene.timeline.turns);
    let report = scene.play_load(DAY, LENGTH).await;
    Lane {
        name,
        report,
        began,
        replica_seconds: scene.timeline.replica_seconds - before_s,
        turns: scene.timeline.turns - before,
    }
}

fn table(lanes: &[(&Lane, &Scene)]) -> String {
    let most = lanes.iter().map(|(_, scene)| scene.timeline.most_ready()).max().unwrap_or(1);
    let mut text = format!("requests a second: {DAY}\n\n");
    for (lane, scene) in lanes {
        let bars = scene.timeline.bars(lane.began, COLUMNS, most);
        writeln!(text, "{:<18} {bars} {:>2}", lane.name, scene.timeline.most_ready()).unwrap();
    }
    let head = ["in SLO", "first token p50", "p99", "replica-seconds", "turns"];
    writeln!(
        text,
        "\n{:<18} {:>8} {:>16} {:>8} {:>16} {:>6}",
        "", head[0], head[1], head[2], head[3], head[4]
    )
    .unwrap();
    for (lane, _) in lanes {
        let seconds = |key: &str| lane.report["ttft"][key].as_f64().unwrap_or(f64::NAN);
        writeln!(
            text,
            "{:<18} {:>6.1} % {:>14.2} s {:>6.1} s {:>16.0} {:>6}",
            lane.name,
            100.0 * lane.report["attainment"].as_f64().unwrap_or(f64::NAN),
            seconds("p50"),
            seconds("p99"),
            lane.replica_seconds,
            lane.turns
        )
        .unwrap();
    }
    text
}
