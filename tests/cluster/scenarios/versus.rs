//! The same half hour of requests, scaled by the scaler and by what most people start with: KEDA's own
//! Prometheus trigger on the engines' queue.
//!
//! Must give neither a setting that its documentation does not give.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use crate::objects::{Target, queue_trigger};
use crate::scene::Scene;

/// Requests a second: quiet, a step up, a dip, a higher peak, an evening. One replica carries 1.6.
const DAY: &str = "1@3m,4@5m,1@40s,4@3m,8@4m,2@6m,0.5@6m";
const LENGTH: &str = "27m40s";
/// As many as both may have.
const MAX: u32 = 12;
/// Columns of the picture.
const COLUMNS: u32 = 60;

/// What came of one of the two.
struct Lane {
    name: &'static str,
    report: Value,
    began: Duration,
    replica_seconds: f64,
    turns: u32,
}

pub(crate) async fn side_by_side(scene: &mut Scene) {
    let mut plain = Scene::open("side-by-side-keda", std::sync::Arc::clone(&scene.plane)).await;
    let Some(prometheus) = plain.prometheus() else { return };
    let target = Target::new(1).cold_start("60s");
    let scaled = scene.scaled(1, MAX).with_defaults();
    scene.begin(&target, &scaled).await;
    plain.deploy(&target).await;
    plain.apply(&queue_trigger(&prometheus.url, &plain.namespace, 1, MAX));
    let (ours, theirs) =
        tokio::join!(play(scene, "ghostscaler"), play(&mut plain, "KEDA, queue of 5"));
    let table = table(&[(&ours, scene), (&theirs, &plain)]);
    scene.timeline.say(&format!("side by side\n\n{table}"));
    std::fs::write(scene.dir.join("side-by-side.txt"), &table).unwrap();
    let [mine, other] = [&ours, &theirs].map(|lane| lane.report["attainment"].as_f64().unwrap());
    plain.close().await;
    assert!(mine > 0.95 && mine >= other, "attainment {mine} against {other}");
}

async fn play(scene: &mut Scene, name: &'static str) -> Lane {
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
        writeln!(text, "{:<17} {bars} {:>2}", lane.name, scene.timeline.most_ready()).unwrap();
    }
    let head = ["in SLO", "first token p50", "p99", "replica-seconds", "turns"];
    writeln!(
        text,
        "\n{:<17} {:>8} {:>16} {:>8} {:>16} {:>6}",
        "", head[0], head[1], head[2], head[3], head[4]
    )
    .unwrap();
    for (lane, _) in lanes {
        let seconds = |key: &str| lane.report["ttft"][key].as_f64().unwrap_or(f64::NAN);
        writeln!(
            text,
            "{:<17} {:>6.1} % {:>14.2} s {:>6.1} s {:>16.0} {:>6}",
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
