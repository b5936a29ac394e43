//! Each check on facts that are broken, and on the same facts once its own fix is applied.

mod chain;
mod count;
mod installed;
mod series;
mod sound;
mod zero;

use serde_json::Value;

use super::*;
use sound::{sound, with};

/// What a fix does beyond its patch, played on the facts.
type Played = fn(&Fix, &mut Facts);

/// The one finding of these facts, which must be this one.
fn only(id: &str, facts: &Facts) -> Finding {
    let Examination { mut findings, not_looked_at, .. } = examine(facts);
    assert_eq!(not_looked_at, [], "{id}");
    let ids: Vec<&str> = findings.iter().map(|finding| finding.id).collect();
    assert_eq!(ids, [id], "{findings:#?}");
    findings.remove(0)
}

/// Nothing is wrong with these facts, and everything was looked at.
fn in_order(facts: &Facts) {
    let Examination { findings, not_looked_at, .. } = examine(facts);
    assert_eq!((findings, not_looked_at), (Vec::new(), Vec::new()));
}

/// Fires alone, and falls silent once its own patch is applied, without making another.
fn patched(id: &str, broken: &Facts) -> Finding {
    let finding = only(id, broken);
    assert!(finding.fix.patch.is_some(), "{id} has no patch: {finding:#?}");
    in_order(&cured(broken, &finding));
    finding
}

/// The same for a fix that is a command or words, which `played` carries out.
fn played(id: &str, broken: &Facts, played: Played) -> Finding {
    let finding = only(id, broken);
    let mut facts = cured(broken, &finding);
    played(&finding.fix, &mut facts);
    in_order(&facts);
    finding
}

/// The facts with the finding's patch applied to the object that it names.
fn cured(broken: &Facts, finding: &Finding) -> Facts {
    let mut facts = broken.clone();
    let Some(patch) = &finding.fix.patch else { return facts };
    let named = |object: &Value| {
        object["kind"] == *patch.kind
            && object["metadata"]["name"] == *patch.name
            && object["metadata"]["namespace"].as_str() == patch.namespace.as_deref()
    };
    let objects = [
        Some(&mut facts.object),
        facts.target.as_mut().ok(),
        facts.owner.as_mut().ok().and_then(Option::as_mut).map(|owner| &mut owner.object),
        facts.service.as_mut().ok().and_then(Option::as_mut),
        facts.scaler.as_mut().ok(),
        facts.external_metrics.as_mut().ok().and_then(Option::as_mut),
    ];
    let others = facts.installations.iter_mut().flatten();
    let others = others.filter_map(|one| one.deployment.as_mut().ok());
    let object = objects.into_iter().flatten().chain(others).find(|object| named(object));
    let object = object.unwrap_or_else(|| panic!("the patch names no object: {patch:#?}"));
    json_patch::patch(object, &patch.operations).unwrap();
    facts
}

/// A fact about whose text the finding speaks.
fn says(finding: &Finding, words: &[&str]) {
    for word in words {
        assert!(finding.what.contains(word), "{word:?} is not in {:?}", finding.what);
    }
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    in_order(&sound());
}

/// A check whose fact is missing is told, and takes nothing for granted.
#[test]
fn without_facts_a_check_is_told_as_not_made_and_nothing_is_found() {
    let why = || Missing::because("nobody looked");
    let blind = Facts {
        target: Err(why()),
        scale: Err(why()),
        owner: Err(why()),
        hpa: Err(why()),
        other_hpas: Err(why()),
        other_objects: Err(why()),
        pods: Err(why()),
        service: Err(why()),
        scaler: Err(why()),
        installations: Err(why()),
        stranger: Err(why()),
        configuration: Err(why()),
        kubernetes_minor: Err(why()),
        keda: Err(why()),
        external_metrics: Err(why()),
        keda_adapter: Err(why()),
        nodes: Err(why()),
        quotas: Err(why()),
        rights: Err(why()),
        prometheus: Err(why()),
        cold_start_ms: Err(why()),
        longest_answer_ms: Err(why()),
        ..sound()
    };
    let Examination { findings, not_looked_at, in_order } = examine(&blind);
    assert_eq!(findings, []);
    assert!(not_looked_at.iter().all(|(_, missing)| *missing == why()));
    assert_eq!(not_looked_at.len() + in_order.len(), CHECKS.len());
    // What the ScaledObject alone tells.
    assert_eq!(
        in_order,
        [
            "bad-metadata",
            "pause-disputed",
            "value-metric",
            "percent-as-average",
            "memory-as-load",
            "target-beyond-engine",
            "double-damping",
            "limited-steps",
            "no-tolerance",
            "no-wake-source",
            "polled-wake",
            "short-cooldown",
            "idle-cooldown",
            "idle-count-without-effect",
            "no-initial-cooldown",
            "fallback-of-zero",
            "fallback-never-fires",
            "fallback-below-usual",
        ]
    );
}

/// What a person is told of the engine of these facts.
fn told_of_engine(facts: Facts) -> String {
    let page = report::Report::of(&[facts], &[]).text(false);
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    let mut lines = page.lines().skip_while(|line| !line.starts_with("Engine: "));
    let first = lines.next().into_iter();
    let told = first.chain(lines.take_while(|line| line.starts_with("  ")));
    told.map(str::trim).collect::<Vec<_>>().join(" ")
}

/// The sound facts with another image in the target's pods.
fn with_image(image: &str) -> Facts {
    let mut facts = sound();
    let template = facts.target.as_mut().unwrap().pointer_mut("/spec/template/spec").unwrap();
    let containers = template["containers"].as_array_mut().unwrap();
    let engine = containers.iter_mut().find(|container| container["image"] != "envoy").unwrap();
    engine["image"] = image.into();
    facts
}

#[test]
fn an_engine_whose_names_are_uncaptured_is_named_as_that() {
    for (image, words) in [
        ("vllm/vllm-openai:v0.33.0", "in 0.33.0 are uncaptured: its source alone"),
        ("vllm/vllm-openai:v0.9.2", "in 0.9.2 are uncaptured"),
        ("vllm/vllm-openai:latest", "the version is unknown, and so whether the names"),
        ("rayproject/ray-llm:2.46.0", "as Ray spells the names of its series they are uncaptured"),
        ("lmsysorg/sglang:v0.5.23", "in 0.5.23 are uncaptured: its own code wrote them"),
        (
            "nvcr.io/nim/meta/llama-3.1-8b-instruct:1.14.0",
            "in 1.14.0 are uncaptured: its source alone",
        ),
        ("ghcr.io/huggingface/text-generation-inference:3.3.6", "Text Generation Inference"),
        ("nvcr.io/nvidia/tritonserver:24.10-trtllm-python-py3", "Triton with the TensorRT-LLM"),
        ("openmmlab/lmdeploy:v0.18.0", "LMDeploy"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.3.0", "trtllm-serve of 2026"),
        ("ghcr.io/ggml-org/llama.cpp:server", "llama.cpp, `llama-server`; the version is unknown"),
    ] {
        let told = told_of_engine(with_image(image));
        assert!(told.contains(words), "{image}: {told:?}");
    }
    for captured in ["vllm/vllm-openai:v0.32.0", "ghcr.io/ggml-org/llama.cpp:server-b11549"] {
        assert_eq!(told_of_engine(with_image(captured)), "", "{captured}");
    }
    // What the trigger says comes first, and then the image's version is not the engine's.
    for engine in ["sglang", "nim"] {
        let facts = with("/spec/triggers/0/metadata/engine", engine.into());
        assert!(told_of_engine(facts).contains("uncaptured"), "{engine}");
    }
    let json: Value = serde_json::from_str(&report::Report::of(&[sound()], &[]).json()).unwrap();
    let engine = &json["scaled_objects"][0]["engine"];
    assert_eq!((&engine["family"], &engine["version"]), (&"vllm".into(), &"0.32.0".into()));
    assert_eq!(engine["evidence"], "captured");
}

#[test]
fn the_page_of_a_person_has_80_columns_and_a_programs_has_all() {
    let mut facts = sound();
    facts.object["spec"]["cooldownPeriod"] = 20.into();
    facts.nodes = Err(Missing::because("you may not read nodes"));
    let report = report::Report::of(&[facts.clone()], &[]);
    let text = report.text(false);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(
        text,
        "team-a/llm: 1 finding

  short-cooldown
    what cooldownPeriod is 20 s with minReplicaCount 0: expected 600 or more
    why  it is all that stands between a hung or cut-off scaler and zero: on
         KEDA 2.21 answers that came 1.5 s late took 2 replicas to 0 after 27 s
         with a cool-down of 20, and a dead node can hang its polls for 305 s
    fix  set cooldownPeriod to 600: this scaler says itself when to sleep

kubectl patch scaledobject llm -n team-a --type json -p '
- op: add
  path: /spec/cooldownPeriod
  value: 600'

50 checks in order, 2 not looked at
  you may not read nodes (max-beyond-gpus, nodes-taken-away)
"
    );
    assert!(!report.is_in_order());
    let json: Value = serde_json::from_str(&report.json()).unwrap();
    let finding = &json["scaled_objects"][0]["findings"][0];
    assert_eq!(json["findings"], 1);
    assert_eq!(finding["id"], "short-cooldown");
    assert_eq!(finding["fix"]["patch"]["operations"][0]["path"], "/spec/cooldownPeriod");
    assert_eq!(json["scaled_objects"][0]["not_looked_at"][0]["why"], "you may not read nodes");

    let accepted = report::Report::of(&[facts], &["short-cooldown"]);
    assert!(accepted.is_in_order());
    assert!(accepted.text(false).contains("no findings\n\nAccepted: short-cooldown\n"));
}
