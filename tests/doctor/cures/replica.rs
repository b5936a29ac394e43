//! A replica's room, its start and its end.

use serde_json::{Value, json};

use super::{Case, followed, pasted, says};
use crate::doctor::world::{World, gpus};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = room();
    cases.extend(starts());
    cases.extend(ends());
    cases
}

fn node(world: &World, change: impl FnOnce(&mut Value)) {
    world.api.change("Node", "n", change);
}

fn quota(world: &World, hard: u32) {
    world.api.change("ResourceQuota", "gpus", |it| {
        it["status"] = json!({"hard": gpus(hard), "used": gpus(3)});
    });
}

fn room() -> Vec<Case> {
    vec![
        pasted("max-beyond-gpus", |world| {
            node(world, |it| it["status"]["allocatable"] = gpus(4));
        }),
        followed(
            "max-beyond-gpus",
            |world| node(world, |it| it["status"]["allocatable"] = json!({})),
            |world, finding, _| {
                says(finding, "nodes with 8 GPUs in all");
                node(world, |it| it["status"]["allocatable"] = gpus(8));
            },
        ),
        pasted("max-beyond-quota", |world| quota(world, 4)),
        followed(
            "max-beyond-quota",
            |world| quota(world, 0),
            |world, finding, _| {
                says(finding, "a quota that leaves 8");
                quota(world, 8);
            },
        ),
        pasted("nodes-taken-away", |world| {
            node(world, |it| it["metadata"]["labels"] = json!({"karpenter.sh/nodepool": "gpu"}));
        }),
        pasted("nodes-taken-away", |world| {
            world.api.put(json!({"kind": "ConfigMap", "metadata":
                {"name": "cluster-autoscaler-status", "namespace": "kube-system"}}));
        }),
    ]
}

fn starts() -> Vec<Case> {
    vec![
        followed(
            "weights-in-image",
            |world| world.pods(|it| it["containers"][0]["args"][0] = json!("/weights/m1")),
            |world, finding, _| {
                says(finding, "mount that at /weights/m1");
                world.pods(|it| {
                    let claim = json!({"claimName": "weights"});
                    it["volumes"] = json!([{"name": "w", "persistentVolumeClaim": claim}]);
                    it["containers"][0]["volumeMounts"] =
                        json!([{"name": "w", "mountPath": "/weights/m1"}]);
                });
            },
        ),
        pasted("start-outlasts-deadline", |world| {
            world.api.change("Deployment", "llm", |it| {
                it["spec"]["progressDeadlineSeconds"] = json!(600);
            });
        }),
        // The middle one of the three starts took five minutes.
        pasted("start-outlasts-probe", |world| {
            world.pods(|it| it["containers"][0]["startupProbe"]["failureThreshold"] = json!(20));
        }),
    ]
}

fn ends() -> Vec<Case> {
    vec![
        pasted("answers-cut", |world| {
            world.pods(|it| it["containers"][0]["args"] = json!(["m1"]));
        }),
        pasted("answers-cut", |world| {
            let line = json!(["sh", "-c", "exec vllm serve m1 --shutdown-timeout 5 --port 8000"]);
            world.pods(|it| {
                it["containers"][0]["args"] = json!([]);
                it["containers"][0]["command"] = line;
            });
        }),
        pasted("no-pre-stop", |world| {
            world.pods(|it| it["containers"][0]["lifecycle"] = json!({}));
        }),
        pasted("grace-too-short", |world| {
            world.pods(|it| it["terminationGracePeriodSeconds"] = json!(30));
        }),
    ]
}
