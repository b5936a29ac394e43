//! What stands between the scaler's answer and the target's count.

use serde_json::{Value, json};

use super::sound::{hpa, installation, pod, put, scaler, sound, with, with_target, yaml};
use super::{Played, cured, in_order, only, patched, played, says};
use crate::cluster::survey::Keda;
use crate::doctor::{Facts, Lack, NodeAutoscaler, Nodes, Owner, Rights};

const METADATA: &str = "/spec/triggers/0/metadata";
const BEHAVIOR: &str = "/spec/advanced/horizontalPodAutoscalerConfig/behavior";

#[test]
fn a_key_that_is_misspelt_keeps_its_value_under_the_right_one() {
    let broken = with(&format!("{METADATA}/gostHold"), json!("20m"));
    let finding = patched("bad-metadata", &broken);
    says(&finding, &["gostHold", "nearest is ghostHold"]);
    let metadata = &cured(&broken, &finding).object["spec"]["triggers"][0]["metadata"];
    assert_eq!((&metadata["ghostHold"], metadata.get("gostHold")), (&json!("20m"), None));
}

#[test]
fn a_value_that_does_not_fit_gives_way_to_the_default() {
    patched("bad-metadata", &with(&format!("{METADATA}/ghostHold"), json!("soon")));
    // Another external scaler's keys are its own affair.
    let others = json!([{"type": "external", "metadata": {"scalerAddress": "x:1", "queue": "a"}}]);
    assert!(super::examine(&with("/spec/triggers", others)).findings.is_empty());
}

#[test]
fn an_address_without_a_service_is_told_with_the_scalers_own() {
    let mut broken = with(&format!("{METADATA}/scalerAddress"), json!("ghostscaler.default:9090"));
    broken.service = Ok(None);
    let finding = only("no-such-service", &broken);
    let mut found = cured(&broken, &finding);
    assert_eq!(
        found.object.pointer(&format!("{METADATA}/scalerAddress")).unwrap(),
        "ghostscaler.ghostscaler.svc.cluster.local:9090"
    );
    found.service = sound().service;
    in_order(&found);
}

#[test]
fn a_port_that_the_service_does_not_have_is_told() {
    let address = "ghostscaler.ghostscaler.svc.cluster.local:9091";
    let broken = with(&format!("{METADATA}/scalerAddress"), json!(address));
    let finding = patched("no-such-service", &broken);
    says(&finding, &["[9090, 8080]"]);
}

#[test]
fn without_any_scaler_installing_one_cures() {
    let broken = Facts { service: Ok(None), installations: Ok(Vec::new()), ..sound() };
    played("no-such-service", &broken, |fix, facts| {
        assert!(fix.command.as_ref().unwrap().contains("kubectl apply -k manifests/"));
        *facts = sound();
    });
}

#[test]
fn a_headless_service_is_told() {
    let mut broken = sound();
    broken.service.as_mut().unwrap().as_mut().unwrap()["spec"]["clusterIP"] = json!("None");
    patched("headless-service", &broken);
}

#[test]
fn a_headless_service_of_a_cluster_is_made_anew() {
    let mut broken = sound();
    let service = broken.service.as_mut().unwrap().as_mut().unwrap();
    service["metadata"]["uid"] = json!("1");
    service["spec"]["clusterIP"] = json!("None");
    let finding = only("headless-service", &broken);
    let command = finding.fix.command.unwrap();
    let (first, rest) = command.split_once('\n').unwrap();
    assert_eq!(first, "kubectl replace --force -f - <<'EOF'");
    let anew = yaml(rest.strip_suffix("\nEOF").unwrap());
    let mut expected = sound().service.unwrap().unwrap();
    expected["spec"].as_object_mut().unwrap().remove("clusterIP");
    assert_eq!(anew, expected);
}

/// The sound workload, asking the first of these installations.
fn among(installations: Vec<crate::doctor::Installation>) -> Facts {
    Facts { installations: Ok(installations), ..sound() }
}

#[test]
fn f107_two_installations_are_told() {
    let own = || installation("ghostscaler", &["serve"], &["team-a"]);
    let unasked = among(vec![own(), installation("aaa", &["serve"], &[])]);
    let finding = played("two-scalers", &unasked, |fix, facts| {
        let command = fix.command.as_deref().unwrap();
        assert!(command.starts_with("kubectl delete deployment ghostscaler -n aaa "), "{command}");
        facts.installations.as_mut().unwrap().pop();
    });
    says(&finding, &["aaa/ghostscaler and ghostscaler/ghostscaler follow the namespace team-a"]);
    // Who asks the other keeps it: it is told to stay out of here, and nothing is deleted.
    let asked = among(vec![own(), installation("aaa", &["serve"], &["team-b"])]);
    let finding = patched("two-scalers", &asked);
    assert_eq!(finding.fix.command, None);
    let after = cured(&asked, &finding).installations.unwrap().remove(1).deployment.unwrap();
    assert_eq!(
        after.pointer("/spec/template/spec/containers/1/args").unwrap(),
        &json!(["serve", "--namespace=team-b"])
    );
    let told = ["serve", "--namespace", "team-a,team-b", "-v"];
    let told = among(vec![own(), installation("aaa", &told, &["team-b"])]);
    let after = cured(&told, &patched("two-scalers", &told)).installations.unwrap().remove(1);
    assert_eq!(
        after.deployment.unwrap().pointer("/spec/template/spec/containers/1/args").unwrap(),
        &json!(["serve", "-v", "--namespace=team-b"])
    );
    // Two that follow different namespaces are none too many.
    in_order(&among(vec![own(), installation("aaa", &["serve", "--namespace=team-b"], &[])]));
    let unknown = crate::doctor::Installation {
        asked_from: Err(super::Missing::because("nobody looked")),
        ..installation("aaa", &["serve"], &[])
    };
    let finding = only("two-scalers", &among(vec![own(), unknown]));
    assert_eq!((finding.fix.command, finding.fix.patch), (None, None));
}

/// Two ScaledObjects of a namespace, each asking another scaler: both findings keep the same one.
#[test]
fn no_two_findings_take_away_each_others_scaler() {
    let both = || {
        let first = installation("aaa", &["serve"], &["team-a"]);
        vec![installation("ghostscaler", &["serve"], &["team-a"]), first]
    };
    let moves = only("two-scalers", &among(both()));
    let patch = moves.fix.patch.unwrap().command();
    assert!(patch.contains("value: ghostscaler.aaa.svc.cluster.local:9090"), "{patch}");
    let mut stays = among(both());
    let address = json!("ghostscaler.aaa:9090");
    put(&mut stays.object, &format!("{METADATA}/scalerAddress"), address);
    let stays = only("two-scalers", &stays);
    assert_eq!((stays.fix.command, stays.fix.patch), (None, None));
    assert!(stays.fix.text.contains("keep aaa/ghostscaler"), "{}", stays.fix.text);
}

#[test]
fn a_scaler_that_is_not_found_is_none_that_is_in_order() {
    let unknown = Facts { scaler: Err(super::Missing::because("no Deployment")), ..sound() };
    let unseen: Vec<_> = super::examine(&unknown).not_looked_at;
    let ids: Vec<&str> = unseen.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, ["tls-mismatch", "namespace-not-watched"]);
    // Nor one whose pods do something else.
    let other = Facts { scaler: Ok(scaler(&["doctor"])), ..sound() };
    assert_eq!(super::examine(&other).not_looked_at.len(), 2);
}

#[test]
fn a_namespace_that_the_scaler_does_not_watch_is_told() {
    let watching = |args: &[&str]| Facts { scaler: Ok(scaler(args)), ..sound() };
    let broken = watching(&["serve", "--namespace=team-b,team-c"]);
    let finding = patched("namespace-not-watched", &broken);
    says(&finding, &["watches team-b and team-c, and not team-a"]);
    assert_eq!(
        finding.fix.command.as_deref().unwrap(),
        "kubectl create rolebinding ghostscaler -n team-a --clusterrole=ghostscaler \
         --serviceaccount=ghostscaler:ghostscaler"
    );
    in_order(&watching(&["serve", "--namespace", "team-a"]));
}

#[test]
fn f106_pods_beyond_the_order_are_told_with_who_made_them() {
    let mut broken = sound();
    let pods = broken.pods.as_mut().unwrap();
    pods.push(pod(3));
    let finding = played("pods-differ", &broken, |fix, facts| {
        let command = fix.command.as_deref().unwrap();
        assert!(command.starts_with("kubectl get pods -n team-a -l 'app=llm'"), "{command}");
        facts.pods.as_mut().unwrap().pop();
    });
    says(&finding, &["Deployment/llm orders 3, and there are 4 pods of ReplicaSet/llm-7d9"]);
    let mut missing = sound();
    missing.pods.as_mut().unwrap().pop();
    says(&only("pods-differ", &missing), &["orders 3, and there are 2 pods"]);
}

#[test]
fn f106_pods_that_end_and_those_of_a_rollout_are_no_drift() {
    let with_one_more = |pointer: &str, value: Value| {
        let mut facts = sound();
        let mut more = pod(3);
        put(&mut more, pointer, value);
        facts.pods.as_mut().unwrap().push(more);
        facts
    };
    in_order(&with_one_more("/metadata/deletionTimestamp", json!("2026-03-02T12:00:00Z")));
    in_order(&with_one_more("/status/phase", json!("Failed")));
    in_order(&with_one_more("/metadata/labels/pod-template-hash", json!("5c4")));
}

#[test]
fn f110_a_scaler_that_demands_a_certificate_is_told_where_none_is_shown() {
    let serving = ["serve", "--tls-cert=/tls/tls.crt", "--tls-key=/tls/tls.key"];
    let plain = Facts { scaler: Ok(scaler(&serving)), ..sound() };
    says(&patched("tls-mismatch", &plain), &["the scaler speaks TLS"]);
    let demanding = [&serving[..], &["--tls-client-ca=/tls/ca.crt"]].concat();
    let mut demanding = Facts { scaler: Ok(scaler(&demanding)), ..sound() };
    put(&mut demanding.object, &format!("{METADATA}/enableTLS"), json!("true"));
    says(&patched("tls-mismatch", &demanding), &["demands a client certificate"]);
    let one_sided = with("/spec/triggers/0/authenticationRef", json!({"name": "ghostscaler"}));
    says(&patched("tls-mismatch", &one_sided), &["the trigger speaks TLS"]);
}

#[test]
fn f10_a_target_that_the_engine_cannot_exceed_is_told() {
    let one = json!(["--model=/models/m1", "--shutdown-timeout=150", "--max-num-seqs=1"]);
    let mut broken = with_target("/spec/template/spec/containers/1/args", one);
    put(&mut broken.object, &format!("{METADATA}/targetInFlight"), json!("1"));
    let finding = patched("target-beyond-engine", &broken);
    says(&finding, &["targetInFlight is 1", "runs 1 at once"]);
    put(&mut broken.object, &format!("{METADATA}/targetInFlight"), json!("0.5"));
    in_order(&broken);
}

/// The objects that a command applies.
fn applied(finding: &crate::doctor::Finding) -> Vec<Value> {
    let command = finding.fix.command.as_deref().unwrap();
    let text = command.strip_prefix("kubectl apply -f - <<'EOF'\n").unwrap();
    serde_saphyr::from_multiple(text.strip_suffix("\nEOF").unwrap()).unwrap()
}

#[test]
fn a_permission_that_the_account_lacks_is_told_with_its_role() {
    let lack = Lack { api_group: "", resource: "pods", verbs: vec!["watch"] };
    let mut broken = sound();
    broken.rights.as_mut().unwrap().lacks.push(lack);
    let finding = only("missing-permission", &broken);
    says(&finding, &["watch pods (core)"]);
    let [role, binding] = applied(&finding).try_into().unwrap();
    assert_eq!(role["kind"], "ClusterRole");
    // One name for two installations would take from the first what the second gets.
    assert_eq!(role["metadata"], json!({"name": "ghostscaler-ghostscaler-needs"}));
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]});
    let rules = role["rules"].as_array().unwrap();
    assert!(rules.contains(&rule) && rules.len() == crate::cluster::RBAC.len(), "{rules:?}");
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    assert_eq!(binding["subjects"][0]["namespace"], "ghostscaler");
    // A scaler of some namespaces has no use for what only a cluster gives.
    broken.rights.as_mut().unwrap().within = Some("team-a".to_owned());
    let [role, binding] = applied(&only("missing-permission", &broken)).try_into().unwrap();
    assert_eq!((&role["kind"], &role["metadata"]["namespace"]), (&json!("Role"), &json!("team-a")));
    assert_eq!(binding["kind"], "RoleBinding");
    assert!(!role["rules"].to_string().contains("nodes"), "{role}");
}

#[test]
fn a_permission_that_the_replicas_lack_in_their_own_namespace_is_told_with_its_role() {
    let own_lacks =
        vec![Lack { api_group: "coordination.k8s.io", resource: "leases", verbs: vec!["update"] }];
    let account = "scalers/gpu".to_owned();
    let rights = Rights { account, within: None, lacks: Vec::new(), own_lacks };
    let finding = only("missing-own-permission", &Facts { rights: Ok(rights), ..sound() });
    says(&finding, &["update leases (coordination.k8s.io)", "own namespace"]);
    let [role, binding] = applied(&finding).try_into().unwrap();
    assert_eq!(role["metadata"], json!({"name": "scalers-gpu-own-needs", "namespace": "scalers"}));
    assert_eq!(role["rules"].as_array().unwrap().len(), crate::cluster::OWN_RBAC.len());
    assert_eq!(
        binding["subjects"],
        json!([{"kind": "ServiceAccount", "name": "gpu",
        "namespace": "scalers"}])
    );
}

#[test]
fn f42_another_owner_of_the_external_metrics_api_is_told() {
    let mut broken = sound();
    let registered = broken.external_metrics.as_mut().unwrap().as_mut().unwrap();
    registered["spec"]["service"] = json!({"namespace": "datadog", "name": "cluster-agent"});
    let finding = patched("foreign-metrics-api", &broken);
    says(&finding, &["datadog/cluster-agent"]);
    let nobody = Facts { external_metrics: Ok(None), ..sound() };
    played("foreign-metrics-api", &nobody, |_fix, facts| *facts = sound());
}

#[test]
fn f40_an_hpa_without_the_external_metric_is_told() {
    let delete: Played = |fix, facts| {
        assert_eq!(fix.command.as_ref().unwrap(), "kubectl delete hpa keda-hpa-llm -n team-a");
        // KEDA makes it anew.
        facts.hpa = Ok(Some(hpa()));
    };
    for (metrics, said) in [
        (json!([]), "CPU at 80 %"),
        (json!(null), "CPU at 80 %"),
        (json!([{"type": "Resource"}]), "only Resource"),
    ] {
        let mut broken = sound();
        put(broken.hpa.as_mut().unwrap().as_mut().unwrap(), "/spec/metrics", metrics);
        let finding = played("no-external-metric", &broken, delete);
        says(&finding, &["keda-hpa-llm", said]);
    }
    // Of a paused object KEDA takes the HPA away.
    let mut paused = with("/metadata/annotations", json!({"autoscaling.keda.sh/paused": "true"}));
    paused.hpa = Ok(None);
    in_order(&paused);
}

#[test]
fn f40_no_hpa_at_all_is_told_with_kedas_own_words() {
    let mut broken = Facts { hpa: Ok(None), ..sound() };
    broken.object["status"]["conditions"][0] =
        json!({"type": "Ready", "status": "False", "message": "no metric specs returned"});
    let finding = played("no-external-metric", &broken, |_fix, facts| facts.hpa = Ok(Some(hpa())));
    says(&finding, &["no metric specs returned"]);
}

#[test]
fn f104_a_second_autoscaler_of_the_target_is_told() {
    let mut rival = hpa();
    rival["metadata"] = json!({"name": "llm-cpu", "namespace": "team-a"});
    let broken = Facts { other_hpas: Ok(vec![rival]), ..sound() };
    let finding = played("second-autoscaler", &broken, |fix, facts| {
        assert_eq!(
            fix.command.as_ref().unwrap(),
            "kubectl delete hpa llm-cpu -n team-a --ignore-not-found"
        );
        facts.other_hpas = Ok(Vec::new());
    });
    says(&finding, &["HorizontalPodAutoscaler/llm-cpu", "Deployment/llm"]);

    // KEDA's default kind is a Deployment.
    let mut second = sound().object;
    second["metadata"]["name"] = json!("llm-2");
    put(&mut second, "/spec/scaleTargetRef", json!({"name": "llm"}));
    let broken = Facts { other_objects: Ok(vec![second.clone()]), ..sound() };
    let finding = played("second-autoscaler", &broken, |_fix, facts| {
        facts.other_objects = Ok(Vec::new());
    });
    says(&finding, &["ScaledObject/llm-2"]);
    let command = "kubectl delete scaledobject llm-2 -n team-a --ignore-not-found";
    assert_eq!(finding.fix.command.as_deref(), Some(command));
    // Of the two both findings keep the same: one of this scaler's, then the older.
    let other_way =
        Facts { object: second.clone(), other_objects: Ok(vec![sound().object]), ..sound() };
    assert_eq!(only("second-autoscaler", &other_way).fix, finding.fix);
    second["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut younger = sound();
    younger.object["metadata"]["creationTimestamp"] = json!("2026-01-02T00:00:00Z");
    younger.other_objects = Ok(vec![second.clone()]);
    let command = only("second-autoscaler", &younger).fix.command.unwrap();
    assert!(command.contains("scaledobject llm -n"), "{command}");
    second["spec"]["triggers"] = json!([{"type": "cpu", "metadata": {"value": "80"}}]);
    younger.other_objects = Ok(vec![second]);
    let command = only("second-autoscaler", &younger).fix.command.unwrap();
    assert!(command.contains("scaledobject llm-2 -n"), "{command}");
}

#[test]
fn a_rival_is_told_even_where_other_kinds_could_not_be_looked_at() {
    let mut rival = hpa();
    rival["metadata"] = json!({"name": "llm-cpu", "namespace": "team-a"});
    let other_objects = Err(super::Missing::because("unknown"));
    let facts = Facts { other_hpas: Ok(vec![rival]), other_objects, ..sound() };
    assert_eq!(only("second-autoscaler", &facts).id, "second-autoscaler");
}

fn managed(manager: &str, subresource: Option<&str>) -> Value {
    let mut entry = json!({"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}});
    if let Some(subresource) = subresource {
        entry["subresource"] = json!(subresource);
    }
    entry
}

#[test]
fn f102_a_manager_that_owns_the_count_is_named_with_how_it_lets_go() {
    for (manager, remedy) in [
        (
            "argocd-controller",
            "- group: apps\n    kind: Deployment\n    jsonPointers:\n    - /spec/replicas",
        ),
        ("kubectl-client-side-apply", "kubectl apply edit-last-applied deployment llm -n team-a"),
        ("kustomize-controller", ""),
    ] {
        let broken = with_target("/metadata/managedFields", json!([managed(manager, None)]));
        let finding = played("replicas-owned-elsewhere", &broken, |_fix, facts| {
            // Without the field in what it applies, the manager owns it no longer.
            put(facts.target.as_mut().unwrap(), "/metadata/managedFields", json!([]));
        });
        says(&finding, &[manager]);
        assert!(finding.fix.command.unwrap_or_default().contains(remedy), "{manager}");
    }
    let scalers = [
        managed("kube-controller-manager", Some("scale")),
        managed("anything", Some("scale")),
        managed("keda", None),
    ];
    in_order(&with_target("/metadata/managedFields", json!(scalers)));
}

#[test]
fn f102_a_count_that_the_api_server_filled_in_is_nobodys() {
    let creator = json!([managed("kubectl-client-side-apply", None)]);
    let mut created = with_target("/metadata/managedFields", creator.clone());
    let target = created.target.as_mut().unwrap();
    let applied = |spec: Value| {
        let applied = json!({"spec": spec}).to_string();
        json!({"kubectl.kubernetes.io/last-applied-configuration": applied})
    };
    put(target, "/metadata/annotations", applied(json!({"template": {}})));
    in_order(&created);
    let target = created.target.as_mut().unwrap();
    put(target, "/metadata/annotations", applied(json!({"replicas": 3})));
    says(&only("replicas-owned-elsewhere", &created), &["kubectl-client-side-apply writes"]);
    // Also once the HPA has taken the field over: the next apply takes it back.
    let target = created.target.as_mut().unwrap();
    put(target, "/metadata/managedFields", json!([]));
    put(target, "/metadata/labels", json!({"argocd.argoproj.io/instance": "llm"}));
    says(&only("replicas-owned-elsewhere", &created), &["argocd-controller writes"]);
    put(created.target.as_mut().unwrap(), "/metadata/labels", json!(null));
    // Without the annotation 1 may be the default.
    let target = created.target.as_mut().unwrap();
    put(target, "/metadata/annotations", json!(null));
    put(target, "/spec/replicas", json!(1));
    put(target, "/metadata/managedFields", creator);
    in_order(&created);
}

#[test]
fn f102_a_manifest_with_a_count_is_told_before_it_is_applied() {
    let broken = with_target("/metadata/uid", json!(null));
    let finding = patched("replicas-owned-elsewhere", &broken);
    says(&finding, &["replicas: 3"]);
}

#[test]
fn f105_a_target_that_something_controls_is_told_with_its_owner() {
    let broken = owned("example.org/v1", "Engine", json!({}), true);
    let finding = played("target-is-controlled", &broken, |_fix, facts| {
        // The target is the owner then, which nobody controls.
        put(facts.target.as_mut().unwrap(), "/metadata/ownerReferences", json!(null));
    });
    says(&finding, &["Engine/llm"]);
    let expected = json!({"apiVersion": "example.org/v1", "kind": "Engine", "name": "llm"});
    assert_eq!(cured(&broken, &finding).object["spec"]["scaleTargetRef"], expected);
    let unscaled = owned("example.org/v1", "Engine", json!({}), false);
    let finding = only("target-is-controlled", &unscaled);
    assert!(finding.fix.text.contains("Engine has no scale subresource"), "{}", finding.fix.text);
    let unread = Facts { owner: Err(super::Missing::because("forbidden")), ..unscaled };
    assert_eq!(only("target-is-controlled", &unread).fix.patch, None, "it may have no scale");
}

#[test]
fn what_kserve_makes_is_scaled_once_kserve_lets_go_of_the_count() {
    let api = "serving.kserve.io/v1alpha2";
    let llm = owned(api, "LLMInferenceService", json!({"replicas": 2, "model": {}}), false);
    patched("target-is-controlled", &llm);
    let service = owned("serving.kserve.io/v1beta1", "InferenceService", json!({}), false);
    played("target-is-controlled", &service, |fix, facts| {
        let command = fix.command.as_deref().unwrap();
        let (key, value) = ("serving.kserve.io/autoscalerClass", "external");
        assert!(
            command.contains(&format!("annotate inferenceservice llm -n team-a {key}={value}"))
        );
        let owner = facts.owner.as_mut().unwrap().as_mut().unwrap();
        owner.object["metadata"]["annotations"][key] = json!(value);
    });
}

/// The sound target, controlled by an object of this kind.
fn owned(api_version: &str, kind: &str, spec: Value, scales: bool) -> Facts {
    let reference =
        json!([{"apiVersion": api_version, "kind": kind, "name": "llm", "controller": true}]);
    let object = json!({"apiVersion": api_version, "kind": kind, "spec": spec,
        "metadata": {"name": "llm", "namespace": "team-a"}});
    let owner = Ok(Some(Owner { object, scales }));
    Facts { owner, ..with_target("/metadata/ownerReferences", reference) }
}

#[test]
fn f105_a_scale_without_a_selector_is_told() {
    let broken = Facts { scale: Ok(Some(json!({"spec": {"replicas": 3}}))), ..sound() };
    played("no-selector", &broken, |fix, facts| {
        assert!(fix.text.contains("labelSelectorPath"));
        facts.scale = sound().scale;
    });
    let none = Facts { scale: Ok(None), ..sound() };
    played("no-selector", &none, |_fix, facts| facts.scale = sound().scale);
}

#[test]
fn f103_a_pause_that_nobody_wants_is_told() {
    let broken = with("/status/conditions/1", json!({"type": "Paused", "status": "True"}));
    played("pause-disputed", &broken, |fix, facts| {
        assert!(fix.command.as_ref().unwrap().ends_with("autoscaling.keda.sh/paused-"));
        facts.object = sound().object;
    });
}

#[test]
fn a_value_metric_is_told() {
    patched("value-metric", &with("/spec/triggers/0/metricType", json!("Value")));
}

#[test]
fn a_share_as_an_average_is_told() {
    let share = json!({"type": "prometheus", "metadata":
        {"query": "avg(vllm:kv_cache_usage_perc{namespace=\"team-a\"})", "threshold": "80"}});
    let finding = patched("percent-as-average", &with("/spec/triggers/-", share.clone()));
    says(&finding, &["trigger 1", "kv_cache_usage_perc"]);
    // Where this scaler has no trigger, the other keeps its own with the right type.
    let mut alone = with("/spec/triggers", json!([share]));
    put(&mut alone.object, "/spec/minReplicaCount", json!(1));
    put(&mut alone.object, "/spec/cooldownPeriod", json!(null));
    let finding = patched("percent-as-average", &alone);
    assert!(finding.fix.text.contains("metricType Value"));
}

#[test]
fn f64_memory_as_a_signal_is_told() {
    let memory = json!({"type": "prometheus", "metadata":
        {"query": "avg(DCGM_FI_DEV_FB_USED)", "threshold": "70000"}});
    let finding = patched("memory-as-load", &with("/spec/triggers/-", memory));
    says(&finding, &["DCGM_FI_DEV_FB_USED"]);
}

/// A trigger that one finding takes out moves the others up: what the next would change is then another.
#[test]
fn changes_to_several_triggers_never_meet_the_wrong_one() {
    let query = |query: &str| json!({"type": "prometheus", "metadata": {"query": query}});
    let mut facts = sound();
    let own = facts.object["spec"]["triggers"][0].clone();
    facts.object["spec"]["triggers"] =
        json!([query("avg(vllm:kv_cache_usage_perc)"), query("avg(DCGM_FI_DEV_FB_USED)"), own]);
    put(&mut facts.object, "/spec/triggers/2/type", json!("external"));
    // All that is printed is pasted, what fails is not, and then it is looked once more.
    for _ in 0..3 {
        let mut object = facts.object.clone();
        for finding in super::examine(&facts).findings {
            // The HPA follows the places of the triggers by itself.
            let Some(patch) = finding.fix.patch else { continue };
            let _refused = json_patch::patch(&mut object, &patch.operations);
        }
        facts.object = object;
    }
    in_order(&facts);
    assert_eq!(facts.object["spec"]["triggers"], json!([own]));
}

#[test]
fn f03_two_dampers_in_a_row_are_told_with_their_sum() {
    let window = format!("{BEHAVIOR}/scaleDown/stabilizationWindowSeconds");
    let mut broken = with(&window, json!(300));
    put(&mut broken.object, &format!("{METADATA}/ghostHold"), json!("300s"));
    let finding = patched("double-damping", &broken);
    says(&finding, &["the effective delay is 10m (600 s)"]);
    // What is left out is Kubernetes's 300 s.
    let finding = patched("double-damping", &with(&window, json!(null)));
    says(&finding, &["another 5m, Kubernetes's default", "15m (900 s)"]);
}

#[test]
fn steps_that_the_hpa_limits_are_told() {
    for (pointer, value, said) in [
        ("scaleUp/policies", json!(null), "scaleUp takes 4 within 15 s"),
        ("scaleUp/policies/0/value", json!(2), "scaleUp takes 2 within 15 s"),
        ("scaleUp/selectPolicy", json!("Disabled"), "scaleUp takes 0 within 15 s"),
        ("scaleUp/stabilizationWindowSeconds", json!(60), "scaleUp waits 60 s"),
        ("scaleDown/policies/0/value", json!(10), "scaleDown takes 2 within 15 s from 12"),
    ] {
        let broken = with(&format!("{BEHAVIOR}/{pointer}"), value);
        let finding = patched("limited-steps", &broken);
        says(&finding, &[said]);
    }
    let slow = json!([{"type": "Pods", "value": 6, "periodSeconds": 1800}]);
    let finding = patched("limited-steps", &with(&format!("{BEHAVIOR}/scaleUp/policies"), slow));
    says(&finding, &["scaleUp takes 6 within 1800 s"]);
    // Counted from what there was when the period began, the whole range is no limit.
    let whole = json!([{"type": "Pods", "value": 12, "periodSeconds": 1800}]);
    in_order(&with(&format!("{BEHAVIOR}/scaleUp/policies"), whole));
}

#[test]
fn f02_a_dead_band_that_swallows_steps_is_told() {
    for direction in ["scaleUp", "scaleDown"] {
        let tolerance = format!("{BEHAVIOR}/{direction}/tolerance");
        for value in [json!(null), json!("0.1"), json!("50m")] {
            let finding = patched("no-tolerance", &with(&tolerance, value));
            says(&finding, &[direction, "maxReplicaCount is 12"]);
        }
        in_order(&with(&tolerance, json!(0)));
    }
    // Below ten replicas no step of one lies within it.
    let mut small = with(&format!("{BEHAVIOR}/scaleUp/tolerance"), json!(null));
    put(&mut small.object, "/spec/maxReplicaCount", json!(10));
    in_order(&small);
}

#[test]
fn f02_a_version_without_a_tolerance_of_its_own_is_told() {
    let update: Played = |_fix, facts| {
        facts.kubernetes_minor = Ok(36);
        facts.keda = sound().keda;
        facts.hpa = Ok(Some(hpa()));
    };
    let old = Facts { kubernetes_minor: Ok(32), ..sound() };
    says(&played("tolerance-unsupported", &old, update), &["Kubernetes 1.32"]);
    let keda = Ok(Keda::Installed { takes_tolerance: false });
    let old = Facts { keda, ..sound() };
    says(&played("tolerance-unsupported", &old, update), &["KEDA is older than 2.18"]);
    // With the gate on nothing is lost.
    let mut gated = Facts { kubernetes_minor: Ok(34), ..sound() };
    in_order(&gated);
    gated.hpa.as_mut().unwrap().as_mut().unwrap()["spec"]["behavior"] = json!({"scaleUp": {}});
    says(&played("tolerance-unsupported", &gated, update), &["1.34 dropped the tolerance"]);
}

#[test]
fn f86_a_maximum_beyond_the_nodes_gpus_is_told() {
    let mut broken = sound();
    *broken.nodes.as_mut().unwrap() = Nodes { gpus: 9, autoscaler: None };
    let finding = patched("max-beyond-gpus", &broken);
    says(&finding, &["maxReplicaCount 12 needs 24 GPUs", "have 9"]);
    assert!(finding.fix.text.contains("what fits, 4,"));
    // What stands now is no bound where nodes are added.
    broken.nodes.as_mut().unwrap().autoscaler = Some(NodeAutoscaler::Karpenter);
    in_order(&broken);
}

/// A patch that lowers the maximum to what needs more than there is would cure nothing.
#[test]
fn f86_where_not_even_one_fits_no_maximum_is_offered() {
    let mut broken = sound();
    *broken.nodes.as_mut().unwrap() = Nodes { gpus: 1, autoscaler: None };
    let finding = played("max-beyond-gpus", &broken, |fix, facts| {
        assert!(fix.text.contains("nodes with 24 GPUs in all"), "{}", fix.text);
        facts.nodes.as_mut().unwrap().gpus = 24;
    });
    assert_eq!(finding.fix.patch, None);
    let mut broken = with("/spec/minReplicaCount", json!(4));
    put(&mut broken.object, "/spec/cooldownPeriod", json!(null));
    broken.quotas.as_mut().unwrap()[0]["status"] = json!({
        "hard": {"requests.nvidia.com/gpu": "7"}, "used": {"requests.nvidia.com/gpu": "6"}});
    let finding = played("max-beyond-quota", &broken, |fix, facts| {
        assert!(fix.text.contains("a quota that leaves 24"), "{}", fix.text);
        let hard = json!({"requests.nvidia.com/gpu": "24"});
        facts.quotas.as_mut().unwrap()[0]["status"]["hard"] = hard;
    });
    assert_eq!(finding.fix.patch, None);
}

#[test]
fn f85_a_maximum_beyond_the_quota_is_told() {
    // 30 in all; this workload's own 6 of the 14 used are there for it.
    let mut broken = sound();
    broken.quotas.as_mut().unwrap()[0]["status"] = json!({
        "hard": {"requests.nvidia.com/gpu": "30"}, "used": {"requests.nvidia.com/gpu": "14"}});
    let finding = patched("max-beyond-quota", &broken);
    says(&finding, &["needs 24 GPUs", "quota gpus leaves 22"]);
    assert!(finding.fix.text.contains("what fits, 11,"));
}

#[test]
fn gpus_of_a_replica_are_those_that_the_trigger_says() {
    let mut broken = with(&format!("{METADATA}/gpusPerReplica"), json!("8"));
    broken.quotas = Ok(Vec::new());
    broken.nodes.as_mut().unwrap().autoscaler = None;
    says(&patched("max-beyond-gpus", &broken), &["needs 96 GPUs"]);
    let template = yaml("{metadata: {}, spec: {containers: [{name: a, image: vllm}]}}");
    let mut none = with_target("/spec/template", template);
    none.nodes.as_mut().unwrap().gpus = 0;
    let found = super::examine(&none).findings;
    assert!(found.iter().all(|finding| !finding.id.starts_with("max-beyond")), "{found:#?}");
}
