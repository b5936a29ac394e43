//! A real Prometheus: series that are missing, renamed or labelled otherwise, and servers that refuse.

use std::fs;
use std::path::PathBuf;

use axum::Router;
use axum::http::StatusCode;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::{findings, ids, run};
use crate::support::eventually;
use crate::support::exporter::Exporter;
use crate::support::nobody::Nobody;
use crate::support::prometheus::{Prometheus, Setup, tls_file};

/// A ScaledObject that reads from Prometheus, with the scaler's configuration, in a file.
struct File {
    dir: TempDir,
}

impl File {
    fn new() -> File {
        let file = File { dir: tempfile::tempdir().unwrap() };
        fs::write(file.path(), TEXT).unwrap();
        file
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("app.yaml")
    }

    async fn asked(&self, more: &[&str]) -> Vec<Value> {
        let path = self.path();
        let (_, report) = run(&[&["-f", path.to_str().unwrap()], more].concat()).await.unwrap();
        findings(&report)
    }
}

const TEXT: &str = r#"
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: llm, namespace: team-a}
spec:
  scaleTargetRef: {name: llm}
  minReplicaCount: 0
  maxReplicaCount: 4
  cooldownPeriod: 600
  initialCooldownPeriod: 600
  advanced:
    horizontalPodAutoscalerConfig:
      behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  triggers:
    - type: external-push
      metadata:
        scalerAddress: ghostscaler.ghostscaler:9090
        source: prometheus
        wakeSource: gateway
        modelName: m1
---
apiVersion: v1
kind: ConfigMap
metadata: {name: ghostscaler, namespace: ghostscaler}
data:
  config.yaml: |
    prometheus: [{name: main, url: "http://prometheus:9090"}]
    wakeSources:
      - name: gateway
        kind: gauge
        prometheus: main
        query: sum(queue_size{name="{model}"}) or 0 * max(up)
"#;

/// An engine's lines.
fn engine(metric: &str, namespace: &str, model: &str) -> String {
    format!("{metric}{{namespace=\"{namespace}\",model_name=\"{model}\",pod=\"llm-0\"}} 1\n")
}

/// A gateway's line.
fn queue(name: &str) -> String {
    format!("queue_size{{name=\"{name}\"}} 0\n")
}

const RUNNING: &str = "vllm:num_requests_running";

#[tokio::test]
async fn how_long_answers_take_is_read_from_the_engines_own_histogram() {
    let page = |n: u32| {
        let bucket = |le: &str, n: u32| {
            format!(
                "vllm:e2e_request_latency_seconds_bucket{{namespace=\"team-a\",le=\"{le}\"}} {n}\n"
            )
        };
        let buckets = bucket("120", n / 2) + &bucket("240", n) + &bucket("+Inf", n);
        engine(RUNNING, "team-a", "m1") + &queue("m1") + &buckets
    };
    let exporter = Exporter::start(page(0)).await;
    let Some(prometheus) = Setup::default().scrape(exporter.address).start() else {
        return;
    };
    let file = File::new();
    let deployment = "---\napiVersion: apps/v1\nkind: Deployment\n\
        metadata: {name: llm, namespace: team-a}\nspec:\n  progressDeadlineSeconds: 1800\n  \
        template: {spec: {terminationGracePeriodSeconds: 200, containers: [{name: vllm, \
        image: 'vllm/vllm-openai:v0.32.0', args: ['--shutdown-timeout=150'], \
        lifecycle: {preStop: {sleep: {seconds: 15}}}}]}}\n";
    fs::write(file.path(), format!("{TEXT}{deployment}")).unwrap();
    let asked = async || file.asked(&["--prometheus", &prometheus.url]).await;
    eventually("its first answer", async || asked().await.is_empty().then_some(())).await;
    let mut n = 0;
    let finding = eventually("answers of four minutes", async || {
        n += 100;
        exporter.show(page(n));
        asked().await.into_iter().find(|finding| finding["id"] == "answers-cut")
    })
    .await;
    let what = finding["what"].as_str().unwrap();
    // Half of them above two minutes: the 99th of a hundred lies near four.
    assert!(what.contains("the 150 s of --shutdown-timeout"), "{what}");
    assert!(what.contains("answers take up to 23"), "{what}");
}

#[tokio::test]
async fn f16_a_server_that_refuses_is_told_in_words() {
    let file = File::new();
    let asked = async |url: &str, more: &[&str]| {
        let found = file.asked(&[&["--prometheus", url], more].concat()).await;
        assert_eq!(ids(&found), ["prometheus-unreadable"], "{found:#?}");
        let text = |pointer: &str| found[0].pointer(pointer).unwrap().as_str().unwrap().to_owned();
        format!("{} / {}", text("/what"), text("/fix/text"))
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(async || StatusCode::UNAUTHORIZED);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let url = format!("http://{address}");
    let said = asked(&url, &[]).await;
    assert!(said.contains("status 401") && said.contains("--prometheus-token-file"), "{said}");
    // Nobody speaks TLS there.
    let said = asked(&format!("https://{address}"), &[]).await;
    assert!(said.contains("TLS handshake failed") && said.contains("caFile"), "{said}");

    // It takes connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let said = asked(&format!("http://{}", silent.local_addr().unwrap()), &[]).await;
    assert!(said.contains("no whole answer within 5000 ms") && said.contains("too slow"), "{said}");
    let closed = Nobody::new();
    let said = asked(&format!("http://{}", closed.address()), &[]).await;
    assert!(said.contains("connection refused") && said.contains("nothing listens"), "{said}");

    let page = engine(RUNNING, "team-a", "m1") + &queue("m1");
    let exporter = Exporter::start(page).await;
    let Some(prometheus) = Setup::default().scrape(exporter.address).tls().start() else {
        return;
    };
    trusted(&file, &prometheus).await;
    let other = tls_file("other-ca.pem");
    let more = ["--prometheus-ca-file", other.to_str().unwrap()];
    let said = asked(&prometheus.url, &more).await;
    assert!(said.contains("TLS handshake failed") && said.contains("not trusted"), "{said}");
}

/// With the right authority there is nothing to tell.
async fn trusted(file: &File, prometheus: &Prometheus) {
    let ca = tls_file("ca.pem");
    let args = ["--prometheus", &prometheus.url, "--prometheus-ca-file", ca.to_str().unwrap()];
    eventually("an answer over TLS", async || file.asked(&args).await.is_empty().then_some(()))
        .await;
}
