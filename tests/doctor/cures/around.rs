//! Where KEDA calls, who may do what, and who else scales.

use serde_json::{Value, json};

use super::{Case, followed, pasted, says};
use crate::doctor::world::{SCALE, World, hpa, pod, scale};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = addresses();
    cases.extend(chain());
    cases.extend(owners());
    cases
}

fn addresses() -> Vec<Case> {
    vec![
        pasted("bad-metadata", |world| world.metadata("gostHold", "20m")),
        pasted("no-such-service", |world| {
            world.metadata("scalerAddress", "ghostscaler.default:9090");
        }),
        followed(
            "no-such-service",
            |world| world.api.remove("Service", Some("ghostscaler"), "ghostscaler"),
            |world, _, left| {
                assert_eq!(left[0], "kubectl apply -k manifests/");
                world.api.put(service("ghostscaler"));
            },
        ),
        pasted("headless-service", |world| {
            world
                .api
                .change("Service", "ghostscaler", |it| it["spec"]["clusterIP"] = json!("None"));
        }),
        // Nobody asks the second: it goes.
        pasted("two-scalers", install_second),
        // Another team asks it: it stays, and stays out of here.
        pasted("two-scalers", |world| {
            install_second(world);
            world.api.put(json!({"kind": "ScaledObject",
                "metadata": {"name": "theirs", "namespace": "team-b"},
                "spec": {"scaleTargetRef": {"name": "theirs"}, "triggers": [{
                    "type": "external-push",
                    "metadata": {"scalerAddress": "ghostscaler.test.svc.cluster.local:9090"}}]}}));
        }),
        pasted("tls-mismatch", |world| {
            world.scaler_args(&["--tls-cert=/tls/tls.crt", "--tls-key=/tls/tls.key"]);
        }),
        pasted("tls-mismatch", |world| {
            let tls = ["--tls-cert=/tls/tls.crt", "--tls-client-ca=/tls/ca.crt"];
            world.scaler_args(&tls);
        }),
        pasted("tls-mismatch", |world| world.metadata("enableTLS", "true")),
        pasted("namespace-not-watched", |world| world.scaler_args(&["--namespace=team-b"])),
        pasted("missing-permission", |world| world.api.deny("pods")),
        pasted("missing-permission", |world| {
            world.scaler_args(&["--namespace", "team-a,team-b"]);
            world.api.deny("scaledobjects");
        }),
        pasted("missing-own-permission", |world| world.api.deny("leases")),
        followed(
            "lease-held-by-stranger",
            |world| {
                let now = jiff::Timestamp::now();
                world.api.put(json!({"kind": "Lease",
                    "metadata": {"name": "ghostscaler", "namespace": "ghostscaler"},
                    "spec": {"holderIdentity": "somebody", "renewTime": now.to_string()}}));
            },
            |world, finding, left| {
                says(finding, "end what runs as somebody");
                assert!(left.is_empty() && finding["fix"].get("patch").is_none());
                world.api.remove("Lease", Some("ghostscaler"), "ghostscaler");
            },
        ),
    ]
}

fn service(home: &str) -> Value {
    json!({"kind": "Service", "metadata": {"name": "ghostscaler", "namespace": home,
            "labels": {"app.kubernetes.io/name": "ghostscaler"}},
        "spec": {"selector": {"app.kubernetes.io/name": "ghostscaler"}, "ports": [{"port": 9090}]}})
}

fn install_second(world: &World) {
    let found = world.api.get("Deployment", Some("ghostscaler"), "ghostscaler");
    let mut second = found.unwrap();
    second["metadata"]["namespace"] = json!("test");
    world.api.put(second);
    world.api.put(service("test"));
}

fn chain() -> Vec<Case> {
    const METRICS: &str = "v1beta1.external.metrics.k8s.io";
    vec![
        pasted("foreign-metrics-api", |world| {
            world.api.change("APIService", METRICS, |it| {
                it["spec"]["service"]["name"] = json!("cluster-agent");
            });
        }),
        followed(
            "foreign-metrics-api",
            |world| world.api.remove("APIService", None, METRICS),
            |world, finding, _| {
                says(finding, "install KEDA's metrics adapter");
                let adapter = "keda-operator-metrics-apiserver";
                world.api.put(json!({"kind": "APIService", "metadata": {"name": METRICS},
                    "spec": {"service": {"namespace": "keda", "name": adapter}}}));
            },
        ),
        followed(
            "no-external-metric",
            |world| {
                let empty = |it: &mut Value| it["spec"]["metrics"] = json!([]);
                world.api.change("HorizontalPodAutoscaler", "keda-hpa-llm", empty);
            },
            |world, _, left| {
                let gone = world.api.get("HorizontalPodAutoscaler", Some("team-a"), "keda-hpa-llm");
                assert!(left.is_empty() && gone.is_none());
                // KEDA makes it anew.
                world.api.put(hpa());
            },
        ),
        followed(
            "no-external-metric",
            |world| world.api.remove("HorizontalPodAutoscaler", Some("team-a"), "keda-hpa-llm"),
            |world, finding, left| {
                says(finding, "KEDA then makes the HPA");
                assert!(left.is_empty());
                world.api.put(hpa());
            },
        ),
        followed(
            "pause-disputed",
            |world| {
                let paused = json!([{"type": "Paused", "status": "True"}]);
                world.object(|it| it["status"]["conditions"] = paused);
            },
            |world, _, left| {
                assert!(left.is_empty());
                // KEDA sees the end of a pause that begins.
                world.object(|it| it["status"]["conditions"][0]["status"] = json!("False"));
            },
        ),
    ]
}

fn owners() -> Vec<Case> {
    vec![
        pasted("second-autoscaler", |world| {
            world.api.put(json!({"kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "llm-cpu", "namespace": "team-a"},
                "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "llm"}}}));
        }),
        // With the HPA that KEDA has made of it, which would come again if it alone were deleted.
        followed(
            "second-autoscaler",
            |world| {
                let mut second = world.api.get("ScaledObject", Some("team-a"), "llm").unwrap();
                second["metadata"]["name"] = json!("llm-2");
                world.api.put(second);
                let mut second = hpa();
                second["metadata"] = json!({"name": "keda-hpa-llm-2", "namespace": "team-a",
                    "labels": {"scaledobject.keda.sh/name": "llm-2"}});
                world.api.put(second);
            },
            |world, _, left| {
                assert!(left.is_empty());
                assert!(world.api.get("ScaledObject", Some("team-a"), "llm-2").is_none());
                world.api.remove("HorizontalPodAutoscaler", Some("team-a"), "keda-hpa-llm-2");
            },
        ),
        followed(
            "replicas-owned-elsewhere",
            |world| {
                world.api.change("Deployment", "llm", |it| {
                    it["metadata"]["managedFields"] = json!([{"manager": "argocd-controller",
                        "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
                });
            },
            |world, _, left| {
                assert!(left.iter().any(|line| line.contains("RespectIgnoreDifferences=true")));
                // Its next sync applies the rest alone.
                world.api.change("Deployment", "llm", |it| {
                    it["metadata"]["managedFields"] = json!([]);
                });
            },
        ),
        pasted("target-is-controlled", |world| {
            let owner = json!({"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
                "name": "llm", "controller": true});
            world.api.put(json!({"kind": "InferenceService", "spec": {},
                "metadata": {"name": "llm", "namespace": "team-a"}}));
            world.api.change("Deployment", "llm", |it| {
                it["metadata"]["ownerReferences"] = json!([owner]);
            });
        }),
        followed(
            "no-selector",
            |world| world.api.answer(SCALE, scale(&json!({"replicas": 3}))),
            |world, finding, _| {
                says(finding, "labelSelectorPath: .status.selector");
                world.api.answer(SCALE, scale(&json!({"replicas": 3, "selector": "app=llm"})));
            },
        ),
        followed(
            "pods-differ",
            |world| world.api.put(pod("llm", 7)),
            |world, _, left| {
                assert!(left[0].starts_with("kubectl get pods -n team-a -l 'app=llm'"), "{left:?}");
                world.api.remove("Pod", Some("team-a"), "llm-7");
            },
        ),
    ]
}
