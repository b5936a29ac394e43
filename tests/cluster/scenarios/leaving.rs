//! Which pods go, and what goes without being asked to.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::load::Pinned;
use crate::objects::{Target, all_day};
use crate::scene::Scene;

/// A minute and a half of an engine's steps.
const TOKENS: u32 = 1_800;

/// The oldest of three is idle, the younger two answer; without a word the ReplicaSet would take one of
/// the young.
pub(crate) async fn idle_first(scene: &mut Scene) {
    scene.kubectl().run(&["apply", "-f", "manifests/components/idle-pods-first/rbac.yaml"]);
    scene.setup.flags.push("--idle-pods-first");
    // The evidence has to become whole while they answer: a step at once leaves no time for a word.
    let scaled = scene.scaled(1, 8).with("targetInFlight", "4").with("ghostHold", "100s");
    let floor = |replicas: u32| scaled.clone().with("warmSchedule", &all_day(replicas));
    scene.begin(&Target::new(1), &floor(1)).await;
    let oldest: BTreeSet<String> = scene.engines.addresses(1).await.into_keys().collect();
    // Their ages have to differ by more than the power of two by which the ReplicaSet rounds them.
    scene.wait(30).await;
    scene.scale_with(&floor(3));
    scene.until("three serve", 90, |now| now.ready == Some(3)).await;
    let engines = scene.engines.addresses(3).await;
    let young = engines.iter().filter(|(pod, _)| !oldest.contains(*pod));
    let pinned: Vec<Pinned> = young.map(|(_, address)| Pinned::at(*address, 1, TOKENS)).collect();
    assert_eq!(pinned.len(), 2, "the oldest still serves: {engines:?} and {oldest:?}");
    scene.timeline.say("the two younger ones answer");
    scene.wait(10).await;
    scene.scale_with(&floor(2));
    scene.until("one goes", 150, |now| now.spec == Some(2)).await;
    scene.until("two are left", 30, |now| now.ready == Some(2)).await;
    let left: BTreeSet<String> = scene.engines.addresses(2).await.into_keys().collect();
    assert!(left.is_disjoint(&oldest), "{left:?} of {engines:?}");
    scene.timeline.say("the idle one has gone");
}

/// A node gets its notice: what is on it is replaced while it serves, and one is given back afterwards.
pub(crate) async fn node_notice(scene: &mut Scene) {
    let scaled = scene.scaled(1, 8).with("warmSchedule", &all_day(4)).with("ghostHold", "30s");
    // Nodes that no other scenario stands on.
    let target = Target::new(4).cold_start("10s").pool("notice");
    scene.begin(&target, &scaled).await;
    scene.until("four serve", 60, |now| now.ready == Some(4)).await;
    let (node, pods) = a_node_of(scene);
    let told = u32::try_from(pods).unwrap();
    scene.taint(&node, true);
    let more = Some(4 + told);
    scene.until("as many more are ordered", 60, |now| now.spec == more).await;
    scene.until("and serve before any has gone", 60, |now| now.ready == more).await;
    let words = ["delete", "pods", "-n", &scene.namespace, "--field-selector"];
    let on_it = format!("spec.nodeName={node}");
    scene.kubectl().run(&[&words[..], &[on_it.as_str(), "--wait=false"]].concat());
    scene.timeline.say("the node is gone with what was on it");
    scene.stays("four serve all the time", 20, |now| now.ready >= Some(4)).await;
    scene.until("what was too many is given back", 120, |now| now.spec == Some(4)).await;
    scene.taint(&node, false);
}

/// A node of the target's pods, and how many of them are on it.
fn a_node_of(scene: &Scene) -> (String, usize) {
    let pods = scene.kubectl().run(&["get", "pods", "-n", &scene.namespace, "-o", "json"]);
    let pods: Value = serde_json::from_str(&pods).unwrap();
    let nodes: Vec<&Value> =
        pods["items"].as_array().unwrap().iter().map(|pod| &pod["spec"]["nodeName"]).collect();
    let node = nodes.first().unwrap();
    (node.as_str().unwrap().to_owned(), nodes.iter().filter(|other| other == &node).count())
}

impl Scene {
    /// Says that a node is about to go, as a cloud's own agent does, or takes it back.
    fn taint(&mut self, node: &str, goes: bool) {
        let taint = json!({"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"});
        let taints = if goes { json!([taint]) } else { json!(null) };
        let patch = json!({"spec": {"taints": taints}}).to_string();
        self.kubectl().run(&["patch", "node", node, "--type=merge", "--patch", &patch]);
        self.timeline.say(&format!("{node} {}", if goes { "is told to go" } else { "stays" }));
    }
}
