//! What a real Prometheus has of engines and gateway, and one that refuses.

use std::fs;
use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use serde_json::{Value, json};

use super::{Case, followed, says};
use crate::doctor::world::World;
use crate::doctor::{findings, ids, kubectl};
use crate::support::eventually;
use crate::support::exporter::Exporter;
use crate::support::prometheus::Setup;

const RUNNING: &str = "vllm:num_requests_running";

/// An engine's line.
fn engine(metric: &str, namespace: &str, model: &str) -> String {
    format!("{metric}{{namespace=\"{namespace}\",model_name=\"{model}\",pod=\"llm-0\"}} 1\n")
}

/// A gateway's line.
fn queue(model: &str, namespace: &str) -> String {
    format!("queue_size{{model=\"{model}\",ns=\"{namespace}\"}} 0\n")
}

/// The page of a world in which all is well.
fn sound() -> String {
    engine(RUNNING, "team-a", "m1") + &queue("m1", "team-a")
}

fn show(world: &World, page: String) {
    world.page.as_ref().unwrap().show(page);
}

/// A Prometheus without a world of its own: it wants a token.
pub(super) fn refused() -> Case {
    followed(
        "prometheus-unreadable",
        |world| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            world.args.lock().unwrap().extend(["--prometheus".to_owned(), url]);
            let router = Router::new().fallback(async |headers: HeaderMap| {
                if headers.get("authorization").is_none_or(|it| it != "Bearer secret") {
                    return StatusCode::UNAUTHORIZED.into_response();
                }
                let data = json!({"resultType": "vector", "result": []});
                axum::Json(json!({"status": "success", "data": data})).into_response()
            });
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        },
        |world, finding, _| {
            says(finding, "--prometheus-token-file");
            let token = world.api.kubeconfig().with_file_name("token");
            fs::write(&token, "secret").unwrap();
            let token = token.to_str().unwrap().to_owned();
            world.args.lock().unwrap().extend(["--prometheus-token-file".to_owned(), token]);
        },
    )
}

/// Those of a world that may sleep, whose engines are read from Prometheus.
pub(super) fn from_prometheus() -> Vec<Case> {
    vec![
        followed(
            "no-engine-series",
            |world| show(world, queue("m1", "team-a")),
            |world, _, left| {
                assert!(left.is_empty());
                let monitor = world.api.get("PodMonitor", Some("team-a"), "llm").unwrap();
                let target = world.api.get("Deployment", Some("team-a"), "llm").unwrap();
                assert_eq!(monitor["spec"]["selector"], target["spec"]["selector"]);
                // By which it then scrapes the engines.
                show(world, sound());
            },
        ),
        followed(
            "engine-series-renamed",
            |world| {
                let renamed = engine("llm_num_requests_active", "team-a", "m1");
                show(world, renamed + &queue("m1", "team-a"));
            },
            |world, finding, _| {
                says(finding, "take source out of the trigger");
                world.object(|it| {
                    let metadata = &mut it["spec"]["triggers"][0]["metadata"];
                    metadata.as_object_mut().unwrap().remove("source");
                });
            },
        ),
        followed(
            "engine-series-deprecated",
            |world| show(world, sound() + &engine("vllm:gpu_cache_usage_perc", "team-a", "m1")),
            |world, finding, _| {
                says(finding, "update vLLM to 0.9.2");
                show(world, sound() + &engine("vllm:kv_cache_usage_perc", "team-a", "m1"));
            },
        ),
        followed(
            "engine-series-elsewhere",
            |world| show(world, format!("{RUNNING} 1\n{}", queue("m1", "team-a"))),
            |world, finding, _| {
                says(
                    finding,
                    "source_labels: [__meta_kubernetes_namespace], target_label: namespace",
                );
                show(world, sound());
            },
        ),
        followed(
            "other-model-name",
            |world| {
                world.object(|it| {
                    it["spec"]["minReplicaCount"] = json!(1);
                    let metadata = &mut it["spec"]["triggers"][0]["metadata"];
                    metadata.as_object_mut().unwrap().remove("wakeSource");
                });
                show(world, engine(RUNNING, "team-a", "m1-fp8"));
            },
            |world, _, _| {
                let object = world.api.get("ScaledObject", Some("team-a"), "llm").unwrap();
                assert_eq!(object["spec"]["triggers"][0]["metadata"]["modelName"], "m1-fp8");
            },
        ),
        // The engines sleep, and only the gateway says what the model is called.
        followed(
            "wake-query-unmatched",
            |world| {
                let other = engine(RUNNING, "team-a", "");
                show(world, other + &queue("m1-router-epp", "team-a"));
            },
            |world, _, _| {
                let object = world.api.get("ScaledObject", Some("team-a"), "llm").unwrap();
                assert_eq!(object["spec"]["triggers"][0]["metadata"]["modelName"], "m1-router-epp");
            },
        ),
        // The engines have the trigger's name: changing that would only move the fault.
        followed(
            "wake-query-unmatched",
            |world| show(world, engine(RUNNING, "team-a", "m1") + &queue("m1-epp", "team-a")),
            |world, finding, _| {
                assert_eq!(finding["fix"].get("patch"), None);
                says(finding, "with model=\"m1-epp\" in its query");
                world.api.change("ConfigMap", "ghostscaler", |it| {
                    let text = it["data"]["config.yaml"].as_str().unwrap();
                    it["data"]["config.yaml"] = json!(text.replace("{model}", "m1-epp"));
                });
            },
        ),
        followed(
            "unserved-model",
            |world| show(world, sound() + &queue("m2", "team-a")),
            |world, finding, _| {
                says(finding, "give the ScaledObject that serves it this modelName");
                let mut other = world.api.get("ScaledObject", Some("team-a"), "llm").unwrap();
                other["metadata"]["name"] = json!("other");
                other["spec"]["scaleTargetRef"]["name"] = json!("other");
                other["spec"]["triggers"][0]["metadata"]["modelName"] = json!("m2");
                world.api.put(other);
            },
        ),
    ]
}

#[tokio::test]
async fn f16_each_finding_about_series_falls_silent_once_its_own_fix_is_applied() {
    let page = Arc::new(Exporter::start(sound()).await);
    let Some(prometheus) = Setup::default().scrape(page.address).start() else { return };
    for case in from_prometheus() {
        let world = World { page: Some(Arc::clone(&page)), ..World::new().await };
        world.put_to_sleep();
        world.metadata("source", "prometheus");
        world.args.lock().unwrap().extend(["--prometheus".to_owned(), prometheus.url.clone()]);
        show(&world, sound());
        silent(&world, case.id).await;
        (case.broken)(&world);
        let finding = eventually(case.id, async || {
            let found = findings(&world.examined().await.1);
            (ids(&found) == [case.id]).then(|| found[0].clone())
        })
        .await;
        let left = kubectl::apply(&world.api, &finding);
        (case.rest)(&world, &finding, &left);
        silent(&world, case.id).await;
    }
}

/// Waits until nothing is found and the check was made.
async fn silent(world: &World, id: &str) {
    eventually(&format!("silence about {id}"), async || {
        let (_, report) = world.examined().await;
        let in_order =
            report["scaled_objects"][0]["in_order"].as_array()?.contains(&Value::from(id));
        (findings(&report).is_empty() && in_order).then_some(())
    })
    .await;
}
