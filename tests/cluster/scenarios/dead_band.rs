//! An HPA with its usual tolerance, at counts where a step of one lies in its dead band.
//!
//! Must not tell the scaler the tolerance: it reads it from the HPA that KEDA has made.

use crate::load::Pinned;
use crate::objects::{Target, all_day};
use crate::scene::Scene;

/// As long as the engine's four places take for some minutes' worth of steps of 50 ms.
const TOKENS: u32 = 1_800;
/// Two more than an engine of the tests runs at once.
const REQUESTS: usize = 6;

/// A count, and the next one above it that the HPA takes: one past 110 % of it.
const COUNTS: [(u32, u32); 3] = [(10, 12), (12, 14), (20, 23)];

/// One fewer can wait and is ignored; one more that cannot is answered as the next that is not.
pub(crate) async fn past(scene: &mut Scene) {
    let scaled = scene.scaled(1, 30).without_tolerance();
    let floor = |replicas: u32| scaled.clone().with("warmSchedule", &all_day(replicas));
    scene.begin(&Target::new(10), &floor(10)).await;
    scene.until_its_hpa_has("tolerance", 0.1).await;
    for (from, past) in COUNTS {
        scene.scale_with(&floor(from));
        scene
            .until(&format!("{from} stand"), 150, |now| {
                now.spec == Some(from) && now.ready == now.spec
            })
            .await;
        scene.scale_with(&floor(from - 1));
        scene.until("one fewer is wanted", 120, |now| now.want == Some(from - 1)).await;
        scene.stays("the HPA ignores it", 35, |now| now.spec == Some(from)).await;
        let said = hpa_text(scene).await;
        assert!(said.contains("ignore"), "the snapshot says what the HPA does: {said:?}");
        scene.scale_with(&floor(from));
        scene.until("as many as before", 30, |now| now.want == Some(from)).await;
        let busy = scene.engines.addresses(from).await.into_values().next().unwrap();
        let pinned = Pinned::at(busy, REQUESTS, TOKENS);
        scene.timeline.say(&format!("{REQUESTS} long requests at one engine"));
        scene.until("more is wanted", 30, |now| now.want > Some(from)).await;
        scene.until("and what the HPA takes is there", 45, |now| now.spec >= Some(past)).await;
        drop(pinned);
    }
}

async fn hpa_text(scene: &Scene) -> String {
    scene.snapshot().await["hpa"]["text"].as_str().unwrap_or_default().to_owned()
}
