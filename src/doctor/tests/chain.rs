//! The start and the end of a replica.

use serde_json::{Value, json};

use super::sound::{put, sound, with_target};
use super::{cured, in_order, only, patched, played, says};
use crate::doctor::checks::seen_starts_ms;
use crate::doctor::{Facts, NodeAutoscaler};

const POD: &str = "/spec/template/spec";
const ENGINE: &str = "/spec/template/spec/containers/1";

fn args(args: Value) -> Facts {
    with_target(&format!("{ENGINE}/args"), args)
}

#[test]
fn f73_a_default_vllm_cuts_running_answers_and_is_told() {
    for given in [
        json!(["--model=/models/m1"]),
        json!(["--model=/models/m1", "--shutdown-timeout=0"]),
        json!(["--model=/models/m1", "--shutdown-timeout", "0"]),
        json!(["exec vllm serve /models/m1 --port 8000"]),
        json!(["exec vllm serve /models/m1 --shutdown-timeout 0 --port 8000"]),
    ] {
        let finding = patched("answers-cut", &args(given));
        says(&finding, &["preStop 15 s", "grace 200 s", "answers take up to 120 s"]);
    }
    // Set where it stands, and nowhere a second time.
    for (words, before, after) in [
        (
            "args",
            json!(["--shutdown-timeout", "0", "-q"]),
            json!(["--shutdown-timeout", "120", "-q"]),
        ),
        ("args", json!(["--shutdown-timeout=0", "-q"]), json!(["--shutdown-timeout=120", "-q"])),
        (
            "command",
            json!(["vllm", "serve", "m1", "--shutdown-timeout=0"]),
            json!(["vllm", "serve", "m1", "--shutdown-timeout=120"]),
        ),
        (
            "command",
            json!(["sh", "-c", "exec vllm serve m1"]),
            json!(["sh", "-c", "exec vllm serve m1 --shutdown-timeout=120"]),
        ),
    ] {
        let mut broken = with_target(&format!("{ENGINE}/args"), json!([]));
        put(broken.target.as_mut().unwrap(), &format!("{ENGINE}/{words}"), before);
        let finding = patched("answers-cut", &broken);
        let target = cured(&broken, &finding).target.unwrap();
        assert_eq!(target.pointer(&format!("{ENGINE}/{words}")), Some(&after));
    }
    // How long answers take is not known: what the examples have.
    let mut unknown = args(json!(["--model=/models/m1"]));
    unknown.longest_answer_ms = Err(super::Missing::because("unknown"));
    let finding = only("answers-cut", &unknown);
    assert!(finding.fix.text.contains("150 s"), "{}", finding.fix.text);
    let found = super::examine(&cured(&unknown, &finding));
    assert_eq!(found.findings, []);
    assert_eq!(found.not_looked_at[0].0, "answers-cut", "whether 150 s are enough is not known");
}

#[test]
fn f74_the_shortest_of_the_times_to_stop_is_named() {
    let mut broken = args(json!(["--model=/models/m1", "--shutdown-timeout=30"]));
    put(
        broken.target.as_mut().unwrap(),
        &format!("{POD}/terminationGracePeriodSeconds"),
        json!(660),
    );
    broken.longest_answer_ms = Ok(240_000);
    let finding = patched("answers-cut", &broken);
    says(&finding, &["the 30 s of --shutdown-timeout", "grace 660 s", "up to 240 s"]);
}

#[test]
fn a_longer_time_to_finish_gets_a_longer_grace_with_it() {
    let broken = Facts { longest_answer_ms: Ok(400_000), ..sound() };
    let finding = patched("answers-cut", &broken);
    let target = cured(&broken, &finding).target.unwrap();
    let grace = target.pointer(&format!("{POD}/terminationGracePeriodSeconds")).unwrap();
    // 15 to be forgotten, 400 to finish, 10 to linger.
    assert_eq!(grace, 425);
}

#[test]
fn f76_a_missing_pause_before_the_end_is_told() {
    let broken = with_target(&format!("{ENGINE}/lifecycle"), json!(null));
    let finding = patched("no-pre-stop", &broken);
    says(&finding, &["preStop none"]);
    let command = json!({"preStop": {"exec": {"command": ["sh", "-c", "sleep 15; echo bye"]}}});
    in_order(&with_target(&format!("{ENGINE}/lifecycle"), command));
}

#[test]
fn cures_that_are_pasted_one_after_the_other_do_not_undo_each_other() {
    let bare = json!({"name": "vllm", "image": "vllm/vllm-openai:v0.32.0",
        "resources": {"limits": {"nvidia.com/gpu": "2"}}});
    let mut broken = with_target(ENGINE, bare);
    put(broken.target.as_mut().unwrap(), &format!("{POD}/terminationGracePeriodSeconds"), json!(5));
    let findings = super::examine(&broken).findings;
    let ids: Vec<&str> = findings.iter().map(|finding| finding.id).collect();
    assert_eq!(ids, ["answers-cut", "no-pre-stop"]);
    in_order(&findings.iter().fold(broken, |facts, finding| cured(&facts, finding)));
}

#[test]
fn f76_a_sum_of_times_beyond_the_grace_is_told() {
    let grace = format!("{POD}/terminationGracePeriodSeconds");
    let finding = patched("grace-too-short", &with_target(&grace, json!(30)));
    says(&finding, &["take 165 s", "terminationGracePeriodSeconds is 30"]);
    let finding = patched("grace-too-short", &with_target(&grace, json!(null)));
    says(&finding, &["terminationGracePeriodSeconds is 30"]);
}

#[test]
fn an_engine_that_finishes_by_itself_needs_the_grace_alone() {
    let mut sglang = sound();
    let target = sglang.target.as_mut().unwrap();
    put(target, &format!("{ENGINE}/image"), json!("lmsysorg/sglang:v0.5.2"));
    put(target, &format!("{ENGINE}/args"), json!(["--model-path", "/models/m1"]));
    in_order(&sglang);
    sglang.longest_answer_ms = Ok(300_000);
    says(&patched("grace-too-short", &sglang), &["take 315 s"]);
}

#[test]
fn weights_inside_of_the_image_are_told() {
    for given in [
        json!(["--model=/weights/m1", "--shutdown-timeout=150"]),
        json!(["exec vllm serve /weights/m1 --shutdown-timeout 150"]),
        json!(["/weights/m1", "--shutdown-timeout=150"]),
    ] {
        let broken = args(given);
        let finding = played("weights-in-image", &broken, |fix, facts| {
            // A claim that is not there would keep every new pod waiting.
            assert!(fix.patch.is_none() && fix.text.contains("mount that at /weights/m1"));
            let mount = json!([{"name": "w", "mountPath": "/weights/"}]);
            put(facts.target.as_mut().unwrap(), &format!("{ENGINE}/volumeMounts"), mount);
        });
        says(&finding, &["/weights/m1"]);
    }
    // A name is loaded from where names are.
    in_order(&args(json!(["--model=Qwen/Qwen3-8B", "--shutdown-timeout=150"])));
}

#[test]
fn f90_a_deadline_shorter_than_the_start_is_told() {
    let mut broken = with_target("/spec/progressDeadlineSeconds", json!(null));
    let finding = patched("start-outlasts-deadline", &broken);
    says(&finding, &["the startup probe allows 1800 s", "progressDeadlineSeconds is 600"]);
    broken.cold_start_ms = Ok(840_000);
    put(&mut broken.object, "/spec/minReplicaCount", json!(1));
    let finding = only("start-outlasts-deadline", &broken);
    says(&finding, &["a start takes 840 s"]);
    let after = cured(&broken, &finding).target.unwrap();
    assert_eq!(after["spec"]["progressDeadlineSeconds"], 1_260, "with room");
}

#[test]
fn a_probe_that_gives_up_before_the_start_is_over_is_told() {
    let broken = with_target(&format!("{ENGINE}/startupProbe/failureThreshold"), json!(20));
    let finding = patched("start-outlasts-probe", &broken);
    says(&finding, &["a start takes 4m", "gives up after 100 s"]);
}

#[test]
fn f77_nodes_that_are_taken_away_under_busy_engines_are_told() {
    let annotations = "/spec/template/metadata/annotations";
    let mut broken = with_target(annotations, json!(null));
    says(&patched("nodes-taken-away", &broken), &["Karpenter"]);
    broken.nodes.as_mut().unwrap().autoscaler = Some(NodeAutoscaler::ClusterAutoscaler);
    says(&patched("nodes-taken-away", &broken), &["the cluster autoscaler"]);
    broken.nodes.as_mut().unwrap().autoscaler = None;
    in_order(&broken);
}

#[test]
fn a_start_is_seen_from_creation_to_readiness() {
    let pod = |created: &str, ready: &str, restarts: u32| {
        json!({"metadata": {"creationTimestamp": created}, "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": ready}],
            "containerStatuses": [{"restartCount": restarts}]}})
    };
    let pods = [
        pod("2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z", 0),
        pod("2026-01-01T00:00:00Z", "2026-01-01T00:04:00Z", 0),
        // Killed in between: not how long a start takes.
        pod("2026-01-01T00:00:00Z", "2026-01-01T09:00:00Z", 1),
        json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}),
    ];
    assert_eq!(seen_starts_ms(&pods), [240_000, 300_000]);
}
