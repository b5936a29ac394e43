//! Files: what this repository shows and writes is in order, and a broken one is told.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ghostscaler::doctor::{Error, Outcome};
use serde_json::json;

use super::{findings, ids, run, unseen};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn yaml_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(yaml_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn every_example_and_what_generate_writes_is_in_order() {
    let mut all = yaml_files(&repository().join("manifests/examples"));
    all.push(repository().join("tests/golden/generate-deployment.yaml"));
    assert!(all.len() >= 10, "{all:?}");
    for path in all {
        let path = path.to_str().unwrap();
        let (outcome, report) = run(&["-f", path]).await.unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(findings(&report), Vec::<serde_json::Value>::new(), "{path}");
        assert_eq!(outcome, Outcome::InOrder);
    }
}

#[tokio::test]
async fn documents_beside_each_other_tell_more_than_one() {
    let example = |name: &str| repository().join("manifests/examples").join(name);
    let zero = example("scale-to-zero/kubeelasti.yaml");
    let zero = zero.to_str().unwrap();
    let (_, alone) = run(&["-f", zero]).await.unwrap();
    let target = |report: &serde_json::Value| {
        unseen(report).into_iter().filter(|(_, why)| why.contains("Deployment/llm")).count()
    };
    assert!(target(&alone) > 5, "{:?}", unseen(&alone));
    // The two ScaledObjects of one name stand for one.
    let dir = tempfile::tempdir().unwrap();
    let both = dir.path().join("both.yaml");
    let vllm = fs::read_to_string(example("vllm.yaml")).unwrap();
    let deployment = vllm.split("---\n").next().unwrap();
    fs::write(&both, format!("{deployment}---\n{}", fs::read_to_string(zero).unwrap())).unwrap();
    let (outcome, report) = run(&["-f", both.to_str().unwrap()]).await.unwrap();
    assert_eq!((outcome, target(&report)), (Outcome::InOrder, 0));
}

#[tokio::test]
async fn a_broken_file_is_told_and_its_patch_cures_it() {
    let text = fs::read_to_string(repository().join("manifests/examples/vllm.yaml")).unwrap();
    let broken = text
        .replace("cooldownPeriod: 600\n  initial", "cooldownPeriod: 0\n  initial")
        .replace("minReplicaCount: 1", "minReplicaCount: 0")
        .replace("            - --shutdown-timeout=150\n", "");
    assert_ne!(text, broken);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.yaml");
    fs::write(&path, &broken).unwrap();
    let file = ["-f", path.to_str().unwrap()];
    let (outcome, report) = run(&file).await.unwrap();
    let found = findings(&report);
    assert_eq!(ids(&found), ["no-wake-source", "short-cooldown", "answers-cut"]);
    assert_eq!(outcome, Outcome::Findings);

    let mut documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&broken).unwrap();
    for finding in &found {
        let patch = &finding["fix"]["patch"];
        let mut named = documents.iter_mut().filter(|it| it["kind"] == patch["kind"]);
        let document = named.next().unwrap();
        let operations: json_patch::Patch =
            serde_json::from_value(patch["operations"].clone()).unwrap();
        json_patch::patch(document, &operations).unwrap();
    }
    let cured = serde_saphyr::to_string_multiple(&documents).unwrap();
    fs::write(&path, cured).unwrap();
    let (outcome, report) = run(&file).await.unwrap();
    assert_eq!((findings(&report), outcome), (Vec::new(), Outcome::InOrder));
}

#[tokio::test]
async fn what_is_meant_to_be_so_is_accepted_by_its_id() {
    let text = fs::read_to_string(repository().join("manifests/examples/vllm.yaml")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.yaml");
    fs::write(&path, text.replace("minReplicaCount: 1", "minReplicaCount: 0")).unwrap();
    let path = path.to_str().unwrap();
    let (outcome, report) = run(&["-f", path, "--accept", "no-wake-source"]).await.unwrap();
    assert_eq!(outcome, Outcome::InOrder);
    assert_eq!(report["scaled_objects"][0]["accepted"][0]["id"], "no-wake-source");
}

#[tokio::test]
async fn what_cannot_be_looked_at_is_an_error_with_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    let file = path.to_str().unwrap();
    let error = run(&["-f", file]).await.unwrap_err();
    assert!(matches!(error, Error::File { .. }) && error.to_string().contains(file), "{error}");
    fs::write(&path, "a: [").unwrap();
    let error = run(&["-f", file]).await.unwrap_err();
    assert!(matches!(error, Error::Yaml { .. }) && error.to_string().contains(file), "{error}");
    fs::write(&path, json!({"kind": "Service", "metadata": {"name": "a"}}).to_string()).unwrap();
    let error = run(&["-f", file, "llm"]).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no ScaledObject llm in the files");
}

/// The exit codes, and the pipe from `generate`'s form of an object.
#[test]
fn a_pipeline_reads_the_exit_code() {
    let golden = repository().join("tests/golden/generate-deployment.yaml");
    let code = |input: &Path, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghostscaler"));
        command.arg("doctor").args(args).env_clear().stdout(Stdio::null()).stderr(Stdio::null());
        command.stdin(fs::File::open(input).unwrap()).status().unwrap().code()
    };
    assert_eq!(code(&golden, &["-f", "-"]), Some(0));
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken.yaml");
    let text = fs::read_to_string(&golden).unwrap();
    fs::write(&broken, text.replace("minReplicaCount: 1", "minReplicaCount: 0")).unwrap();
    assert_eq!(code(&broken, &["-f", "-"]), Some(1));
    assert_eq!(code(&golden, &["-f", "/does/not/exist"]), Some(2));
    assert_eq!(code(&golden, &["--accept", "nothing-like-it"]), Some(2));
}
