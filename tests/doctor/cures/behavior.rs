//! What the triggers ask for, and what the HPA makes of the answer.

use serde_json::{Value, json};

use super::{Case, followed, pasted};
use crate::doctor::world::{World, version};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = triggers();
    cases.extend(steps());
    cases
}

fn triggers() -> Vec<Case> {
    vec![
        pasted("value-metric", |world| {
            world.object(|it| it["spec"]["triggers"][0]["metricType"] = json!("Value"));
        }),
        pasted("percent-as-average", |world| add(world, "avg(vllm:kv_cache_usage_perc)")),
        pasted("memory-as-load", |world| add(world, "avg(DCGM_FI_DEV_FB_USED)")),
        pasted("target-beyond-engine", |world| {
            world.metadata("targetInFlight", "8");
            world.pods(|it| {
                it["containers"][0]["args"].as_array_mut().unwrap().push(json!("--max-num-seqs=4"));
            });
        }),
    ]
}

/// One more trigger, of KEDA's own kind, before this scaler's.
fn add(world: &World, query: &str) {
    let trigger = json!({"type": "prometheus", "metadata": {"query": query, "threshold": "80"}});
    world.object(|it| it["spec"]["triggers"].as_array_mut().unwrap().insert(0, trigger));
    // As KEDA counts them.
    let name = json!("s1-ghostscaler");
    world.api.change("HorizontalPodAutoscaler", "keda-hpa-llm", |it| {
        let mut metrics = vec![it["spec"]["metrics"][0].clone(); 2];
        metrics[0]["external"]["metric"]["name"] = json!("s0-ghostscaler");
        metrics[1]["external"]["metric"]["name"] = name;
        it["spec"]["metrics"] = json!(metrics);
    });
}

fn behavior(world: &World, change: impl FnOnce(&mut Value)) {
    world.object(|it| {
        change(&mut it["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]);
    });
}

/// More replicas than the default tolerance lets change one by one.
fn widen(world: &World) {
    world.object(|it| it["spec"]["maxReplicaCount"] = json!(12));
    behavior(world, |it| it["scaleUp"]["policies"][0]["value"] = json!(12));
}

fn steps() -> Vec<Case> {
    vec![
        pasted("double-damping", |world| {
            behavior(world, |it| it["scaleDown"]["stabilizationWindowSeconds"] = json!(300));
        }),
        pasted("limited-steps", |world| {
            behavior(world, |it| it["scaleUp"]["policies"][0]["value"] = json!(2));
        }),
        pasted("limited-steps", |world| {
            behavior(world, |it| it["scaleDown"]["selectPolicy"] = json!("Disabled"));
        }),
        pasted("no-tolerance", |world| {
            widen(world);
            behavior(world, |it| it["scaleUp"]["tolerance"] = json!("0.1"));
        }),
        followed(
            "tolerance-unsupported",
            |world| {
                widen(world);
                world.api.answer("/version", version(32));
            },
            |world, _, left| {
                let flag = "kube-controller-manager --horizontal-pod-autoscaler-tolerance=0";
                assert_eq!(left, [flag]);
                // What the flag sets cannot be read; the other way is the update.
                world.api.answer("/version", version(36));
            },
        ),
    ]
}
