//! What is installed, against the program: each file loads, and says what the code needs.
//!
//! Must not judge what only an API server knows; the cluster's own tests apply every file to one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser as _;
use ghostscaler::args::{Args, Command as Subcommand};
use ghostscaler::generate::COOLDOWN_S;
use ghostscaler::{cluster, config, metrics, trigger};
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};

/// Files that are read by this program and by kustomize, not by an API server.
const NOT_APPLIED: [&str; 2] = ["manifests/local/example.yaml", "kustomization.yaml"];
#[test]
fn every_file_loads_and_every_object_has_a_name() {
    let mut kinds = BTreeSet::new();
    for (path, object) in objects() {
        for field in ["/apiVersion", "/kind", "/metadata/name"] {
            let value = object.pointer(field).and_then(Value::as_str).unwrap_or_default();
            assert!(!value.is_empty(), "{path}: no {field}");
        }
        kinds.insert(object["kind"].as_str().unwrap().to_owned());
    }
    for kind in ["Deployment", "ClusterRole", "NetworkPolicy", "PrometheusRule", "ScaledObject"] {
        assert!(kinds.contains(kind), "no {kind} among {kinds:?}");
    }
}

#[test]
fn overlays_are_the_base_with_a_component_and_name_files_that_exist() {
    let root = yaml("manifests/kustomization.yaml");
    assert_eq!(root["resources"], json!(["base"]));
    for path in files().into_iter().filter(|path| path.ends_with("kustomization.yaml")) {
        let kustomization = yaml(&path);
        let dir = Path::new(&path).parent().unwrap();
        let resources = kustomization["resources"].as_array().unwrap();
        if path.contains("/overlays/") {
            assert_eq!(kustomization["resources"], json!(["../../base"]), "{path}");
            let name = dir.file_name().unwrap().to_str().unwrap();
            assert_eq!(kustomization["components"], json!([format!("../../components/{name}")]));
        } else if path.contains("/components/") {
            assert_eq!(kustomization["kind"], "Component", "{path}: it goes with others");
        }
        let patches = kustomization["patches"].as_array().into_iter().flatten();
        let patches = patches.filter_map(|patch| patch["path"].as_str());
        for name in resources.iter().filter_map(Value::as_str).chain(patches) {
            let named = repository().join(dir).join(name);
            assert!(named.exists(), "{path}: {name} does not exist");
        }
        let here: BTreeSet<String> = fs::read_dir(repository().join(dir))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".yaml") && name != "kustomization.yaml")
            .collect();
        let text = read(&path);
        for name in here {
            assert!(text.contains(&name), "{path} leaves out {name}");
        }
    }
}

#[test]
fn f113_the_role_has_what_the_cluster_part_needs_and_no_more() {
    for (kind, permissions) in [("ClusterRole", cluster::RBAC), ("Role", cluster::OWN_RBAC)] {
        let rules: Vec<Value> = permissions
            .iter()
            .map(|permission| {
                json!({"apiGroups": [permission.api_group], "resources": [permission.resource],
                    "verbs": permission.verbs})
            })
            .collect();
        let role = object(kind, "manifests/base/rbac.yaml");
        let lines: Vec<String> = permissions.iter().map(rule_line).collect();
        assert_eq!(
            role["rules"],
            json!(rules),
            "manifests/base/rbac.yaml: the {kind}'s rules are not the code's. Paste this:\n{}",
            lines.join("\n")
        );
    }
}

/// It holds nobody's credentials, and calls nothing outside of the cluster but the API server.
#[test]
fn f113_no_secret_is_read_and_nothing_outside_is_called() {
    for (path, object) in objects().into_iter().filter(|(path, _)| !path.contains("examples")) {
        for rule in object["rules"].as_array().into_iter().flatten() {
            assert!(!rule["resources"].to_string().contains("secret"), "{path}: {rule}");
        }
    }
    let policy = object("NetworkPolicy", "manifests/base/networkpolicy.yaml");
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
    let pods_of_any_namespace = json!([{"namespaceSelector": {}}]);
    let mut anywhere = Vec::new();
    for rule in policy["spec"]["egress"].as_array().unwrap() {
        match rule.get("to") {
            Some(to) => assert_eq!(*to, pods_of_any_namespace, "not even the nodes"),
            None => anywhere.extend(rule["ports"].as_array().unwrap().iter().map(|it| &it["port"])),
        }
    }
    // Names, twice, and the API server: nothing that a node's metadata service listens at.
    assert_eq!(anywhere, [53, 53, 443, 6443]);
}

#[test]
fn keda_f11_two_replicas_know_themselves_and_reach_each_other() {
    let deployment = base();
    assert_eq!(deployment["spec"]["replicas"], 2);
    let budget = object("PodDisruptionBudget", "manifests/base/pdb.yaml");
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let env: BTreeMap<&str, &str> = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|env| {
            Some((env["name"].as_str()?, env["valueFrom"]["fieldRef"]["fieldPath"].as_str()?))
        })
        .collect();
    let expected = BTreeMap::from([
        ("POD_NAME", "metadata.name"),
        ("POD_NAMESPACE", "metadata.namespace"),
        ("POD_UID", "metadata.uid"),
        ("POD_IP", "status.podIP"),
    ]);
    assert_eq!(env, expected);
    let args = ["ghostscaler", "serve"].map(str::to_owned);
    let Subcommand::Serve(serve) = Args::try_parse_from(args).unwrap().command else { panic!() };
    let ports = container["ports"].as_array().unwrap();
    let pair = ports.iter().find(|port| port["name"] == "pair").unwrap();
    assert_eq!(pair["containerPort"], serve.pair_address.port());
}

#[test]
fn the_component_that_writes_to_pods_may_do_that_and_no_more() {
    let role = object("ClusterRole", "manifests/components/idle-pods-first/rbac.yaml");
    let [needed] = cluster::deletion::RBAC else { panic!("one permission") };
    let rule = json!({"apiGroups": [needed.api_group], "resources": [needed.resource],
        "verbs": needed.verbs});
    assert_eq!(role["rules"], json!([rule]));
    let added = added_args("idle-pods-first");
    let words = ["ghostscaler", "serve"].map(str::to_owned).into_iter().chain(added);
    let args = Args::try_parse_from(words).unwrap();
    assert!(matches!(args.command, Subcommand::Serve(serve) if serve.idle_pods_first));
}

/// The interceptor of KEDA's HTTP add-on spaces its retries by the time that it gives a connection: a
/// longer one makes a cold start slower, not surer.
#[test]
fn f28_the_example_waits_for_readiness_and_leaves_the_time_to_connect_alone() {
    let path = "manifests/examples/scale-to-zero/keda-http-add-on.yaml";
    let route = object("InterceptorRoute", path);
    let timeouts = route["spec"]["timeouts"].as_object().unwrap();
    for deadline in ["readiness", "request", "responseHeader"] {
        assert_eq!(timeouts[deadline], "0s", "{deadline}: a cold start takes minutes");
    }
    assert_eq!(timeouts.len(), 3, "nothing else is a knob of the wait: {timeouts:?}");
    assert!(read(path).contains("KEDA_HTTP_CONNECT_TIMEOUT"), "the other knob is named");
}

fn rule_line(permission: &cluster::Permission) -> String {
    // A bare star would be an alias.
    let quoted = |text: &str| {
        if text.is_empty() || text.contains('*') { format!("\"{text}\"") } else { text.to_owned() }
    };
    format!(
        "  - {{apiGroups: [{}], resources: [{}], verbs: [{}]}}",
        quoted(permission.api_group),
        quoted(permission.resource),
        permission.verbs.join(", ")
    )
}

#[test]
fn the_program_takes_the_arguments_and_ends_within_its_grace() {
    let tls = object("Deployment", "manifests/components/tls/deployment.yaml");
    let names = |names: &[&str]| names.iter().flat_map(|name| added_args(name)).collect();
    let none: Vec<String> = Vec::new();
    for (path, deployment, added) in
        [("the base", base(), none), ("all components", tls, names(&["tls", "idle-pods-first"]))]
    {
        let args = strings(&base()["spec"]["template"]["spec"]["containers"][0]["args"]);
        let words = ["ghostscaler".to_owned()].into_iter().chain(args).chain(added);
        let parsed = Args::try_parse_from(words);
        let Subcommand::Serve(serve) = parsed.unwrap_or_else(|e| panic!("{path}: {e}")).command
        else {
            panic!("{path}: the arguments do not serve");
        };
        let grace_s = base()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].as_u64();
        // The last words take 5 s at most.
        let needed_ms = serve.drain_delay + serve.shutdown_grace + 5_000;
        assert!(grace_s.unwrap() * 1_000 > needed_ms, "{path}: cut off before its {needed_ms} ms");
        let base = base();
        let mounts: Vec<&str> = [&base, &deployment]
            .into_iter()
            .flat_map(|it| {
                it["spec"]["template"]["spec"]["containers"][0]["volumeMounts"].as_array()
            })
            .flatten()
            .filter_map(|mount| mount["mountPath"].as_str())
            .collect();
        let files = [&serve.config, &serve.state_dir, &serve.tls_cert, &serve.tls_client_ca];
        for file in files.into_iter().flatten() {
            let is_mounted = mounts.iter().any(|mount| file.starts_with(mount));
            assert!(is_mounted, "{path}: nothing is mounted at {}", file.display());
        }
    }
}

#[test]
fn the_pod_is_confined_and_a_hung_one_is_ended_well_before_the_cooldown() {
    let typed: Deployment = serde_json::from_value(base()).unwrap();
    let pod = typed.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.security_context.unwrap().run_as_non_root, Some(true));
    let [container] = pod.containers.as_slice() else { panic!("one container") };
    let security = container.security_context.as_ref().unwrap();
    assert_eq!(security.read_only_root_filesystem, Some(true));
    assert_eq!(security.allow_privilege_escalation, Some(false));
    assert_eq!(security.run_as_user, Some(65_532));
    assert_eq!(security.seccomp_profile.as_ref().unwrap().type_, "RuntimeDefault");
    let dropped = security.capabilities.as_ref().unwrap().drop.as_ref().unwrap();
    assert_eq!(dropped, &["ALL"]);
    assert!(container.resources.as_ref().unwrap().limits.as_ref().unwrap().contains_key("memory"));

    let probe = container.liveness_probe.as_ref().unwrap();
    assert_eq!(probe.http_get.as_ref().unwrap().path.as_deref(), Some("/livez"));
    let each = i64::from(probe.period_seconds.unwrap() + probe.timeout_seconds.unwrap());
    let ended_s = each * i64::from(probe.failure_threshold.unwrap());
    // `/livez` itself waits 45 s before it calls a loop hung; the new process needs some seconds.
    assert!(2 * (ended_s + 45 + 30) < COOLDOWN_S, "{ended_s} s of failing probes");
    let ready = container.readiness_probe.as_ref().unwrap().grpc.as_ref().unwrap();
    assert_eq!(
        (ready.port, ready.service.as_deref()),
        (9090, Some("externalscaler.ExternalScaler"))
    );
}

#[test]
fn keda_f12_the_service_and_the_policy_name_the_pods_ports() {
    let container = base()["spec"]["template"]["spec"]["containers"][0].clone();
    let ports: BTreeMap<String, u64> = container["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| {
            (port["name"].as_str().unwrap().to_owned(), port["containerPort"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(
        ports,
        BTreeMap::from(
            [("grpc", 9090), ("http", 8080), ("pair", 9091)]
                .map(|(name, port)| (name.to_owned(), port))
        )
    );
    let service = object("Service", "manifests/base/service.yaml");
    for port in service["spec"]["ports"].as_array().unwrap() {
        let target = port["targetPort"].as_str().unwrap();
        assert_eq!(port["port"].as_u64(), ports.get(target).copied(), "{target}");
    }
    assert_ne!(service["spec"]["clusterIP"], "None", "KEDA would ask the pods in turn");
    let policy = object("NetworkPolicy", "manifests/base/networkpolicy.yaml");
    for rule in policy["spec"]["ingress"].as_array().unwrap() {
        assert!(!rule["from"].as_array().unwrap().is_empty(), "open to everyone: {rule}");
        let port = rule["ports"][0]["port"].as_str().unwrap();
        assert!(ports.contains_key(port), "{port}");
    }
    let labels = &base()["spec"]["selector"]["matchLabels"];
    let budget = object("PodDisruptionBudget", "manifests/base/pdb.yaml");
    let monitor = "manifests/components/prometheus-operator/servicemonitor.yaml";
    for selector in [
        &service["spec"]["selector"],
        &policy["spec"]["podSelector"]["matchLabels"],
        &budget["spec"]["selector"]["matchLabels"],
        &object("ServiceMonitor", monitor)["spec"]["selector"]["matchLabels"],
    ] {
        assert_eq!(selector, labels);
    }
}

#[test]
fn images_have_a_version() {
    for (path, object) in objects() {
        let mut pending = vec![&object];
        while let Some(value) = pending.pop() {
            match value {
                Value::Object(fields) => {
                    if let Some(image) = fields.get("image").and_then(Value::as_str) {
                        // The base's own gets its tag from the kustomization.
                        let tagged = image.rsplit_once(':').is_some_and(|(_, tag)| tag != "latest");
                        assert!(tagged || image == "ghostscaler", "{path}: {image}");
                    }
                    pending.extend(fields.values());
                }
                Value::Array(items) => pending.extend(items),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
    }
    let tag = &yaml("manifests/base/kustomization.yaml")["images"][0]["newTag"];
    assert_eq!(tag, env!("CARGO_PKG_VERSION"), "manifests/base/kustomization.yaml");
}

#[test]
fn every_scaled_object_lets_each_decision_through() {
    let mut n_objects = 0;
    for (path, object) in objects().into_iter().filter(|(_, it)| it["kind"] == "ScaledObject") {
        let metadata = check_scaled_object(&path, &object);
        let min = object["spec"]["minReplicaCount"].as_u64();
        assert_eq!(min == Some(0), metadata.contains_key("wakeSource"), "{path}");
        n_objects += 1;
    }
    assert!(n_objects >= 9, "only {n_objects} ScaledObjects are left");
}

/// What a ScaledObject must say so that the HPA does what the scaler answers; its metadata.
pub(crate) fn check_scaled_object(path: &str, object: &Value) -> BTreeMap<String, String> {
    let spec = &object["spec"];
    let max = spec["maxReplicaCount"].as_u64().unwrap();
    let behavior = &spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"];
    for direction in ["scaleUp", "scaleDown"] {
        assert_eq!(behavior[direction]["tolerance"], "0", "{path}: {direction}");
        assert_eq!(behavior[direction]["stabilizationWindowSeconds"], 0, "{path}: {direction}");
    }
    let up = json!([{"type": "Pods", "value": max, "periodSeconds": 15}]);
    assert_eq!(behavior["scaleUp"]["policies"], up, "{path}");
    let down = json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]);
    assert_eq!(behavior["scaleDown"]["policies"], down, "{path}");
    assert!(spec["cooldownPeriod"].as_i64().unwrap() >= COOLDOWN_S, "{path}");
    assert!(spec["initialCooldownPeriod"].as_i64().unwrap() >= COOLDOWN_S, "{path}");
    let [trigger] = spec["triggers"].as_array().unwrap().as_slice() else {
        panic!("{path}: expected one trigger");
    };
    assert_eq!(trigger["type"], "external-push", "{path}");
    assert_eq!(trigger["metricType"], "AverageValue", "{path}");
    let metadata: BTreeMap<String, String> =
        serde_json::from_value(trigger["metadata"].clone()).unwrap();
    let pairs = metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    trigger::parse(pairs).unwrap_or_else(|faults| panic!("{path}: {faults}"));
    metadata
}

#[test]
fn every_configuration_is_accepted_and_has_the_wake_source_that_is_named() {
    let mut configurations: BTreeMap<String, config::Config> = BTreeMap::new();
    for (path, object) in objects().into_iter().filter(|(_, it)| it["kind"] == "ConfigMap") {
        let text = object["data"]["config.yaml"].as_str().unwrap();
        let parsed = config::parse(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        configurations.insert(path, parsed);
    }
    for (path, object) in objects().into_iter().filter(|(_, it)| it["kind"] == "ScaledObject") {
        let Some(source) = object["spec"]["triggers"][0]["metadata"]["wakeSource"].as_str() else {
            continue;
        };
        let sources = &configurations[&path].wake_sources;
        assert!(sources.contains_key(source), "{path}: {source} is not in its configuration");
    }
}

#[test]
fn alerts_ask_for_metrics_that_exist_and_promtool_takes_them() {
    let path = "manifests/components/prometheus-operator/alerts.yaml";
    let rules = object("PrometheusRule", path)["spec"].clone();
    let known: BTreeSet<String> = metrics::described()
        .map(|family| family.name.to_owned())
        .chain(["ghostscaler_grpc_request_duration_seconds".to_owned()])
        .collect();
    for rule in rules["groups"][0]["rules"].as_array().unwrap() {
        let expression = rule["expr"].as_str().unwrap();
        let names = expression
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| word.starts_with("ghostscaler_"));
        for name in names {
            let family = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(known.contains(family), "{path}: there is no metric {name}");
        }
        for text in ["summary", "description"] {
            assert!(
                rule["annotations"][text].is_string(),
                "{path}: {} has no {text}",
                rule["alert"]
            );
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.json");
    fs::write(&file, rules.to_string()).unwrap();
    match Command::new("promtool").args(["check", "rules"]).arg(&file).output() {
        Err(_missing) => {
            println!("skipped: no `promtool` on the path (tests/setup.sh installs it)")
        }
        Ok(checked) => {
            let said = String::from_utf8_lossy(&checked.stderr).into_owned();
            assert!(checked.status.success(), "{path}: {said}");
        }
    }
}

/// Each replica of the scaler exports the same workload: an alert about it must neither fail to
/// join them nor fire twice.
#[test]
fn alerts_about_a_workload_take_both_replicas_together() {
    let input = [
        series("answered_replicas", "", "5x120"),
        series("ready_replicas", "", "3x120"),
        series("health", r#",state="degraded""#, "1x120"),
        series("binding_rule", r#",rule="max""#, "1x120"),
    ];
    let alerts = ["GhostscalerBelowWanted", "GhostscalerDegraded", "GhostscalerAtMaximum"];
    play(&input.concat(), &alerts.map(|alert| (alert, "1h", true)));
}

#[test]
fn f88_replicas_that_do_not_come_are_an_alert_after_a_quarter_of_an_hour() {
    // Ordered after five minutes; there after thirty.
    let input =
        [series("answered_replicas", "", "3x4 5x60"), series("ready_replicas", "", "3x29 5x60")];
    let alert = "GhostscalerBelowWanted";
    play(&input.concat(), &[(alert, "19m", false), (alert, "20m", true), (alert, "31m", false)]);
}

/// A metric of team/llm, as each of two replicas of the scaler exports it.
fn series(metric: &str, labels: &str, values: &str) -> [Value; 2] {
    ["a", "b"].map(|pod| {
        let name = format!(
            r#"ghostscaler_workload_{metric}{{namespace="team",name="llm",pod="{pod}"{labels}}}"#
        );
        json!({"series": name, "values": values})
    })
}

/// Has promtool say which of these alerts stand when, by a sample a minute.
fn play(input: &[Value], expected: &[(&str, &str, bool)]) {
    let path = "manifests/components/prometheus-operator/alerts.yaml";
    let rules = object("PrometheusRule", path)["spec"].clone();
    let alerts = expected.iter().map(|(alert, at, stands)| {
        let labels = json!({"namespace": "team", "name": "llm", "severity": "warning"});
        let told = json!({"exp_labels": labels, "exp_annotations": annotations(&rules, alert)});
        let told = if *stands { vec![told] } else { Vec::new() };
        json!({"eval_time": at, "alertname": alert, "exp_alerts": told})
    });
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.json"), rules.to_string()).unwrap();
    let test = json!({"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": [
        {"interval": "1m", "input_series": input, "alert_rule_test": alerts.collect::<Vec<_>>()}]});
    let file = dir.path().join("test.json");
    fs::write(&file, test.to_string()).unwrap();
    match Command::new("promtool").args(["test", "rules"]).arg(&file).output() {
        Err(_missing) => {
            println!("skipped: no `promtool` on the path (tests/setup.sh installs it)")
        }
        Ok(played) => {
            let said = [played.stdout, played.stderr].concat();
            assert!(played.status.success(), "{}", String::from_utf8_lossy(&said));
        }
    }
}

/// What an alert says of team/llm.
fn annotations(rules: &Value, alert: &str) -> Value {
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    let rule = rules.iter().find(|rule| rule["alert"] == alert).unwrap();
    let told = rule["annotations"].to_string();
    let told = told.replace("{{ $labels.namespace }}", "team").replace("{{ $labels.name }}", "llm");
    serde_json::from_str(&told).unwrap()
}

#[test]
fn the_image_is_pinned_has_no_root_and_copies_what_cargo_names() {
    let dockerfile = read("Dockerfile");
    let lines = |word: &str| -> Vec<&str> {
        dockerfile.lines().filter_map(|line| line.strip_prefix(word)).collect()
    };
    for image in lines("FROM ") {
        let digest = image.split_once("@sha256:").map(|(_, rest)| rest.split(' ').next().unwrap());
        assert_eq!(digest.map(str::len), Some(64), "no digest: {image}");
    }
    assert_eq!(lines("USER "), ["65532:65532"]);
    let copied: Vec<&str> = lines("COPY ").into_iter().flat_map(|line| line.split(' ')).collect();
    for line in read("Cargo.toml").lines() {
        let named = line.strip_prefix("path = \"").or_else(|| line.strip_prefix("build = \""));
        if let Some(path) = named.and_then(|rest| rest.split('"').next()) {
            let top = path.split('/').next().unwrap();
            assert!(
                copied.contains(&top),
                "Dockerfile does not copy {top}, which Cargo.toml names"
            );
        }
    }
}

/// What a component adds to the scaler's arguments.
fn added_args(component: &str) -> Vec<String> {
    let kustomization = yaml(&format!("manifests/components/{component}/kustomization.yaml"));
    let patches = kustomization["patches"].as_array().unwrap().iter();
    let of_deployment = patches.filter(|patch| patch["target"]["kind"] == "Deployment");
    of_deployment
        .flat_map(|patch| {
            serde_saphyr::from_str::<Vec<Value>>(patch["patch"].as_str().unwrap()).unwrap()
        })
        .map(|operation| {
            assert_eq!(operation["op"], "add", "{component}: it goes with others in any order");
            assert!(operation["path"].as_str().unwrap().ends_with("/args/-"), "{component}");
            operation["value"].as_str().unwrap().to_owned()
        })
        .collect()
}

fn base() -> Value {
    object("Deployment", "manifests/base/deployment.yaml")
}

/// The only object of this kind in a file.
fn object(kind: &str, path: &str) -> Value {
    let mut found = documents(path).into_iter().filter(|object| object["kind"] == kind);
    let object = found.next().unwrap_or_else(|| panic!("{path} has no {kind}"));
    assert!(found.next().is_none(), "{path} has several of {kind}");
    object
}

/// Everything that an API server would be given, with its file.
fn objects() -> Vec<(String, Value)> {
    let applied =
        files().into_iter().filter(|path| !NOT_APPLIED.iter().any(|it| path.ends_with(it)));
    applied
        .flat_map(|path| documents(&path).into_iter().map(move |it| (path.clone(), it)))
        .collect()
}

fn documents(path: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every manifest, by its path below the repository's root.
fn files() -> Vec<String> {
    let mut pending = vec![PathBuf::from("manifests")];
    let mut found = Vec::new();
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(repository().join(&dir)).unwrap() {
            let path = dir.join(entry.unwrap().file_name());
            if repository().join(&path).is_dir() {
                pending.push(path);
            } else {
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    found.retain(|path| path.ends_with(".yaml"));
    found.sort();
    found
}

fn strings(list: &Value) -> Vec<String> {
    serde_json::from_value(list.clone()).unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
