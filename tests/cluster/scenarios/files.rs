//! What this repository gives to an API server: manifests, and what `generate` prints.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::objects::Target;
use crate::scene::Scene;

/// Every installation and example, by a real API server's own rules; unknown fields are errors.
pub(crate) async fn manifests(scene: &mut Scene) {
    let kubectl = scene.kubectl();
    let strict = ["--dry-run=server", "--validate=strict"];
    for folder in [
        "manifests",
        "manifests/overlays/prometheus-operator",
        "manifests/overlays/tls",
        "manifests/overlays/idle-pods-first",
    ] {
        kubectl.run(&[&["apply", "-k", folder][..], &strict].concat());
        scene.timeline.say(folder);
    }
    let folder = all_components(scene);
    kubectl.run(&[&["apply", "-k", folder.to_str().unwrap()][..], &strict].concat());
    scene.timeline.say("all components together");
    for folder in ["manifests/examples", "manifests/examples/scale-to-zero"] {
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let file = path.to_str().unwrap();
                kubectl.run(&[&["apply", "-f", file][..], &strict].concat());
                scene.timeline.say(file.rsplit_once("manifests/").unwrap().1);
            }
        }
    }
}

/// A folder as a user has it who wants all of them, in no particular order.
fn all_components(scene: &Scene) -> PathBuf {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    // From a folder below `target`, which is wherever it was put: kustomize takes relative paths alone.
    let up = "../".repeat(scene.dir.components().count() - 1);
    let path = |of: &Path| format!("{up}{}", of.strip_prefix("/").unwrap().display());
    let components = fs::read_dir(manifests.join("components")).unwrap();
    let components: Vec<String> =
        components.map(|entry| format!("- {}\n", path(&entry.unwrap().path()))).collect();
    let text = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n\
         resources: [{}]\ncomponents:\n{}",
        path(&manifests.join("base")),
        components.concat()
    );
    fs::write(scene.dir.join("kustomization.yaml"), text).unwrap();
    scene.dir.clone()
}

/// For each kind of target, with and without doubts, and as a person pipes it.
pub(crate) async fn generate(scene: &mut Scene) {
    scene.deploy(&Target::new(2)).await;
    let kubeconfig = scene.plane.admin();
    let namespace = scene.namespace.clone();
    let group = fs::read_to_string("manifests/examples/leaderworkerset.yaml").unwrap();
    let group = group.split("---").next().unwrap().replace("team-a", &namespace);
    scene.kubectl().try_run_with(&["apply", "-f", "-"], &group).unwrap();
    scene.apply(&Target::new(1).as_stateful_set());
    for engine in ["vllm", "sglang"] {
        let example = fs::read_to_string(format!("manifests/examples/{engine}.yaml")).unwrap();
        let deployment = example.split("---").next().unwrap().replace("team-a", &namespace);
        let own = deployment.replace("name: llm,", &format!("name: {engine},"));
        let own = own.replace("app: llm", &format!("app: {engine}"));
        scene.kubectl().try_run_with(&["apply", "-f", "-"], &own).unwrap();
    }
    for (words, warned) in [
        (&["deployment/llm"][..], ""),
        (&["deployment/vllm"], ""),
        (&["deployment/sglang"], ""),
        (&["statefulset/llm"], ""),
        (&["sts/llm", "--metadata", "override=replicas=2; until=2126-01-01T00:00:00Z"], ""),
        (&["deploy/llm", "--max", "40", "--metadata", "sloTtft=1s"], ""),
        (&["deployments.apps/llm", "--min", "0"], "zero is never reached"),
        (&["deployment/llm", "--max", "90"], "needs 90 GPUs"),
        (&["leaderworkerset/llm", "--max", "4"], ""),
        (&["lws/llm", "--format", "json", "--max", "4"], ""),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ghostscaler"))
            .arg("generate")
            .args(words)
            .args(["-n", &namespace])
            .env("KUBECONFIG", &kubeconfig)
            .output()
            .unwrap();
        let [yaml, said] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        assert!(output.status.success(), "{words:?}: {said}");
        let is_warned = if warned.is_empty() { said.is_empty() } else { said.contains(warned) };
        assert!(is_warned, "{words:?}: {said}");
        let apply = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"];
        let applied = scene.kubectl().try_run_with(&apply, &yaml);
        applied.unwrap_or_else(|error| panic!("{words:?}: {error}\n{yaml}"));
        scene.timeline.say(&words.join(" "));
    }
}
