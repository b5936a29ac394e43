//! The object as a whole: that it reads back, lets decisions through, and says what is doubtful.

use clap::Parser as _;
use serde_json::{Value, json};

use super::plan::plan;
use super::*;
use crate::cluster::PodFacts;
use crate::cluster::survey::{Keda, Survey};

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn args(words: &[&str]) -> Args {
    Line::try_parse_from(["generate", "deployment/llm"].iter().chain(words)).unwrap().args
}

/// A vLLM of one GPU on a current cluster: nothing doubtful about it.
fn survey() -> Survey {
    Survey {
        namespace: "team-a".to_owned(),
        api_version: "apps/v1".to_owned(),
        kind: "Deployment".to_owned(),
        name: "llm".to_owned(),
        replicas: Some(3),
        controller: None,
        pods: Some(PodFacts {
            pods: 1,
            gpus: Some(1),
            engine: Some("vllm"),
            ..PodFacts::default()
        }),
        kubernetes_minor: Some(36),
        keda: Keda::Installed { takes_tolerance: true },
        rivals: Some(Vec::new()),
        cluster_gpus: Some(64),
    }
}

/// The YAML as it is printed, and the warnings.
fn printed(survey: &Survey, words: &[&str]) -> (String, Vec<String>) {
    let args = args(words);
    let plan = plan(survey, &args, checked_metadata(&args).unwrap());
    let (mut out, mut warnings) = (Vec::new(), Vec::new());
    print(&plan, args.format, &mut out, &mut warnings).unwrap();
    let warnings = String::from_utf8(warnings).unwrap();
    let warnings = warnings.lines().map(|line| line.strip_prefix("warning: ").unwrap().to_owned());
    (String::from_utf8(out).unwrap(), warnings.collect())
}

fn object(survey: &Survey, words: &[&str]) -> Value {
    serde_saphyr::from_str(&printed(survey, words).0).unwrap()
}

/// The only warning; it must stand in the object as a comment too.
fn doubt(survey: &Survey, words: &[&str]) -> String {
    let (yaml, warnings) = printed(survey, words);
    let [warning] = warnings.as_slice() else { panic!("one warning, not {warnings:#?}") };
    let comments: Vec<&str> =
        yaml.lines().filter_map(|line| line.trim_start().strip_prefix("# ")).collect();
    assert!(comments.join(" ").contains(&format!("CHECK: {warning}.")), "{yaml}");
    warning.clone()
}

#[test]
fn the_usual_case_is_without_doubts_and_reads_as_written() {
    let (yaml, warnings) = printed(&survey(), &["--max", "8"]);
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(yaml, include_str!("../../tests/golden/generate-deployment.yaml"));
    for line in yaml.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn every_step_of_the_scaler_gets_through() {
    let object = object(&survey(), &["--min", "2", "--max", "40"]);
    let spec = &object["spec"];
    assert_eq!((&spec["minReplicaCount"], &spec["maxReplicaCount"]), (&json!(2), &json!(40)));
    let behavior = &spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"];
    assert_eq!(
        *behavior,
        json!({
            "scaleUp": {"tolerance": "0", "stabilizationWindowSeconds": 0,
                "policies": [{"type": "Pods", "value": 40, "periodSeconds": 15}]},
            "scaleDown": {"tolerance": "0", "stabilizationWindowSeconds": 0,
                "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]},
        })
    );
    assert_eq!(
        (&spec["cooldownPeriod"], &spec["initialCooldownPeriod"]),
        (&json!(600), &json!(600))
    );
    assert_eq!(
        spec["triggers"],
        json!([{"type": "external-push", "name": "ghostscaler", "metricType": "AverageValue",
            "metadata": {"scalerAddress": DEFAULT_ADDRESS}}])
    );
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"});
    assert_eq!(spec["scaleTargetRef"], target);
}

#[test]
fn metadata_is_what_was_given_and_what_the_scaler_would_not_find() {
    let mut sglang = survey();
    sglang.pods =
        Some(PodFacts { pods: 2, gpus: Some(16), engine: Some("sglang"), ..PodFacts::default() });
    let metadata =
        |words: &[&str]| object(&sglang, words)["spec"]["triggers"][0]["metadata"].clone();
    assert_eq!(
        metadata(&["-m", "sloTtft=1s", "-m", "podSelector=a in (b, c)", "--max", "4"]),
        json!({"scalerAddress": DEFAULT_ADDRESS, "gpusPerReplica": "16", "metricsPort": "30000",
            "podSelector": "a in (b, c)", "sloTtft": "1s"})
    );
    let own =
        metadata(&["-m", "metricsPort=7", "-m", "gpusPerReplica=4", "--scaler-address", "s:1"]);
    assert_eq!(own, json!({"scalerAddress": "s:1", "gpusPerReplica": "4", "metricsPort": "7"}));
}

#[test]
fn json_is_the_same_object() {
    let words = ["--max", "8", "-m", "sloTtft=1s"];
    let json = printed(&survey(), &[&words[..], &["--format", "json"]].concat()).0;
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), object(&survey(), &words));
}

#[test]
fn the_maximum_that_is_not_given_is_twice_the_present_count() {
    for (present, min, max) in
        [(Some(3), "1", 6), (Some(0), "1", 4), (None, "1", 4), (Some(3), "9", 9)]
    {
        let survey = Survey { replicas: present, ..survey() };
        let object = object(&survey, &["--min", min]);
        assert_eq!(object["spec"]["maxReplicaCount"], json!(max), "{present:?} {min}");
    }
}

#[test]
fn each_doubt_is_a_warning_and_a_comment() {
    let base = survey();
    let pods = base.pods.clone().unwrap();
    let with_pods = |pods: PodFacts| Survey { pods: Some(pods), ..survey() };
    for (survey, words, expected) in [
        (base.clone(), &["--min", "0"][..], "zero is never reached"),
        (base.clone(), &["--max", "2"], "3 replicas run at present"),
        (base.clone(), &["--max", "65"], "needs 65 GPUs and the nodes have 64"),
        (Survey { keda: Keda::Missing, ..base.clone() }, &[], "KEDA is not installed"),
        (
            Survey { rivals: Some(vec!["HorizontalPodAutoscaler/llm".to_owned()]), ..base.clone() },
            &[],
            "HorizontalPodAutoscaler/llm scales the same target",
        ),
        (
            Survey { kubernetes_minor: Some(34), ..base.clone() },
            &["--max", "11"],
            "only with the feature gate",
        ),
        (
            Survey { kubernetes_minor: Some(32), ..base.clone() },
            &["--max", "11"],
            "takes no tolerance of an HPA's own",
        ),
        (
            Survey { keda: Keda::Installed { takes_tolerance: false }, ..base },
            &["--max", "11"],
            "KEDA older than 2.18",
        ),
        (with_pods(PodFacts { gpus: None, ..pods.clone() }), &[], "ask for no nvidia.com/gpu"),
        (
            with_pods(PodFacts { gpus: None, claims_devices: true, ..pods.clone() }),
            &[],
            "by resource claims",
        ),
        (
            with_pods(PodFacts { gpus: None, asks_for_slices: true, ..pods.clone() }),
            &[],
            "ask for slices of GPUs",
        ),
        (with_pods(PodFacts { engine: None, ..pods }), &[], "so 8000 is tried"),
    ] {
        let warning = doubt(&survey, words);
        assert!(warning.contains(expected), "{expected}: {warning}");
    }
}

#[test]
fn f105_a_target_that_something_controls_is_told_with_its_owner() {
    let owned = Survey { controller: Some("LLMInferenceService/llm".to_owned()), ..survey() };
    let said = doubt(&owned, &["--max", "8"]);
    assert!(said.contains("LLMInferenceService/llm controls this Deployment"), "{said}");
    assert!(said.contains("scale LLMInferenceService/llm instead"), "{said}");
}

#[test]
fn what_is_no_doubt_is_not_told() {
    let none = |survey: &Survey, words: &[&str]| {
        assert_eq!(printed(survey, words).1, Vec::<String>::new(), "{words:?}");
    };
    none(&survey(), &["--min", "0", "-m", "wakeSource=gateway"]);
    // Below 10 replicas the dead band swallows no step.
    none(&Survey { kubernetes_minor: Some(32), ..survey() }, &["--max", "10"]);
    // What is applied anew is no second one.
    none(&Survey { rivals: Some(vec!["ScaledObject/llm".to_owned()]), ..survey() }, &[]);
    // What could not be read is not guessed at.
    let unknown = Survey {
        replicas: None,
        kubernetes_minor: None,
        keda: Keda::Unknown,
        rivals: None,
        cluster_gpus: None,
        ..survey()
    };
    none(&unknown, &["--max", "10"]);
    let said = printed(&unknown, &["--max", "100"]).1;
    assert!(matches!(&said[..], [one] if one.contains("could not be read")), "{said:?}");
}

#[test]
fn a_tolerance_that_the_cluster_refuses_is_not_written() {
    for (minor, keda, written) in [
        (Some(36), Keda::Unknown, true),
        (Some(33), Keda::Unknown, true),
        (None, Keda::Unknown, true),
        (Some(32), Keda::Unknown, false),
        (Some(36), Keda::Installed { takes_tolerance: false }, false),
        (None, Keda::Installed { takes_tolerance: false }, false),
    ] {
        let survey = Survey { kubernetes_minor: minor, keda, ..survey() };
        let yaml = printed(&survey, &["--max", "8"]).0;
        assert_eq!(
            yaml.matches("tolerance: \"0\"").count(),
            usize::from(written) * 2,
            "{survey:?}"
        );
    }
}

#[tokio::test]
async fn wrong_arguments_are_told_before_the_cluster_is_asked() {
    for (words, expected) in [
        (&["--min", "5", "--max", "4"][..], "`--max 4` is below `--min 5`"),
        (&["-m", "sloTtft=soon"], "`--metadata` is not what the scaler takes"),
        (&["-m", "sloTttf=1s"], "`--metadata` is not what the scaler takes"),
        (&["-m", "sloTtft=1s", "-m", "sloTtft=2s"], "`--metadata sloTtft=…`"),
        (&["-m", "scalerAddress=x:1"], "`--metadata scalerAddress=…`"),
        (&["--kubeconfig", "/does/not/exist"], "the kubeconfig /does/not/exist cannot be used"),
    ] {
        let error = run(&args(words), &mut Vec::new(), &mut Vec::new()).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{words:?}: {error}");
    }
    for words in [
        ["--min", "-1"],
        ["--max", "0"],
        ["--scaler-address", "host"],
        ["--scaler-address", ":1"],
        ["--scaler-address", "h:0"],
        ["-n", "Team_A"],
        ["-m", "sloTtft"],
    ] {
        let line = ["generate", "deployment/llm"].iter().chain(&words);
        assert!(Line::try_parse_from(line).is_err(), "{words:?}");
    }
}
