//! What is taken from Prometheus's answers, and what is asked for it.

use std::collections::BTreeMap;

use super::*;
use crate::decision::Why;
use crate::source::config::PrometheusConfig;
use crate::source::tests::{Act, Server, ok};

const NAMES: [&str; 2] = ["vllm:num_requests_waiting", "vllm_num_requests_waiting"];

fn matrix(series: &[(&str, &str)]) -> String {
    let series: Vec<String> = series
        .iter()
        .map(|(labels, values)| format!(r#"{{"metric":{{{labels}}},"values":[{values}]}}"#))
        .collect();
    let result = series.join(",");
    format!(r#"{{"status":"success","data":{{"resultType":"matrix","result":[{result}]}}}}"#)
}

async fn server(body: &str) -> (Server, PrometheusClient) {
    let server = Server::start(Act::Answer(ok("application/json", body))).await;
    let client = PrometheusClient::new(&PrometheusConfig {
        name: "main".to_owned(),
        url: format!("http://{}", server.address),
        bearer_token_file: None,
        ca_file: None,
        timeout_ms: 5_000,
        matchers: BTreeMap::new(),
    });
    (server, client.unwrap())
}

fn namespaces(names: &[&str]) -> Namespaces {
    Namespaces::batches(names.iter().copied()).unwrap().remove(0)
}

async fn read(series: &[(&str, &str)]) -> Result<Batch, Error> {
    let (_server, client) = server(&matrix(series)).await;
    engine_series(&client, &namespaces(&["a", "b"]), &NAMES, 60_000).await
}

fn values(batch: &Batch) -> Vec<(f64, i64)> {
    batch.series.iter().map(|series| (series.value, series.at.0)).collect()
}

#[tokio::test]
async fn f44_one_query_serves_all_namespaces_and_names() {
    let (server, client) = server(&matrix(&[])).await;
    engine_series(&client, &namespaces(&["a", "b"]), &NAMES, 60_000).await.unwrap();
    let requests = server.requests();
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    let query = "query=%7Bnamespace%3D%7E%22a%7Cb%22%2C__name__%3D%7E%22\
        vllm%3Anum_requests_waiting%7Cvllm_num_requests_waiting%22%7D%5B60000ms%5D&";
    assert!(request.contains(query), "{request}");
}

#[tokio::test]
async fn f20_the_newest_sample_that_is_a_number_counts_with_its_own_time() {
    let batch = read(&[
        (r#""__name__":"q","namespace":"a","pod":"x""#, r#"[100,"12"],[115,"11"],[130,"NaN"]"#),
        (r#""__name__":"q","namespace":"a","pod":"y""#, r#"[100,"NaN"]"#),
        (r#""__name__":"q","namespace":"b""#, ""),
    ]);
    let batch = batch.await.unwrap();
    assert_eq!(values(&batch), [(11.0, 115_000)]);
    let [series] = batch.series.as_slice() else { panic!("{batch:?}") };
    assert_eq!(&*series.name, "q");
    let labels: Vec<_> = series.labels.iter().collect();
    assert_eq!(labels, [("namespace", "a"), ("pod", "x")]);
}

#[tokio::test]
async fn f19_two_copies_of_prometheus_count_once_with_the_newer_sample() {
    for label in REPLICA_LABELS {
        let copy =
            |name: &str| format!(r#""__name__":"q","namespace":"a","pod":"x","{label}":"{name}""#);
        let (first, second) = (copy("a"), copy("b"));
        let batch = read(&[(&first, r#"[100,"10"]"#), (&second, r#"[104,"9"]"#)]).await.unwrap();
        assert_eq!(values(&batch), [(9.0, 104_000)], "{label}");
        let batch = read(&[(&first, r#"[104,"9"]"#), (&second, r#"[100,"10"]"#)]).await.unwrap();
        assert_eq!(values(&batch), [(9.0, 104_000)], "{label}");
        assert!(batch.copied, "{label}");
        let alone = read(&[(&first, r#"[100,"10"]"#)]).await.unwrap();
        assert!(!alone.copied, "{label}");
    }
}

#[tokio::test]
async fn a_series_given_twice_counts_once_and_labels_may_hold_anything() {
    let plain = r#""__name__":"q","namespace":"a","pod":"x""#;
    let soup = r#""__name__":"q","namespace":"a","pod":"x","":"\u0000","é{}=,\"":"\u202e\n\\""#;
    let series = [
        (plain, r#"[100,"1"],[115,"-1"]"#),
        (plain, r#"[100,"1"],[115,"-1"]"#),
        (soup, r#"[100,"1e308"],[115,"+Inf"]"#),
    ];
    // What a number means is for `signals` to judge; it arrives as it was written.
    let batch = read(&series).await.unwrap();
    let mut found = values(&batch);
    found.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    assert_eq!(found, [(-1.0, 115_000), (f64::INFINITY, 115_000)]);
}

#[tokio::test]
async fn rays_replicas_are_not_copies() {
    let batch = read(&[
        (r#""__name__":"ray_vllm_q","namespace":"a","replica":"1""#, r#"[100,"1"]"#),
        (r#""__name__":"ray_vllm_q","namespace":"a","replica":"2""#, r#"[100,"2"]"#),
    ]);
    let batch = batch.await.unwrap();
    assert_eq!(values(&batch), [(1.0, 100_000), (2.0, 100_000)]);
}

#[tokio::test]
async fn f112_series_of_another_namespace_or_none_make_the_answer_unusable() {
    for labels in [
        r#""__name__":"q","namespace":"c""#,
        r#""__name__":"q","exported_namespace":"a""#,
        r#""__name__":"q""#,
    ] {
        let series =
            [(r#""__name__":"q","namespace":"a""#, r#"[100,"1"]"#), (labels, r#"[100,"50"]"#)];
        let error = read(&series).await.unwrap_err();
        assert_eq!(error.why(), Why::AmbiguousTenant, "{labels}");
    }
}

#[tokio::test]
async fn a_warning_makes_the_batch_partial() {
    let body = matrix(&[]).replacen('{', r#"{"warnings":["a store is gone"],"#, 1);
    let (_server, client) = server(&body).await;
    let batch = engine_series(&client, &namespaces(&["a"]), &NAMES, 60_000).await.unwrap();
    assert!(batch.partial);
    assert!(!read(&[]).await.unwrap().partial);
}

#[tokio::test]
async fn dcgm_is_asked_by_either_namespace_label() {
    let (server, client) = server(&matrix(&[])).await;
    dcgm_series(&client, &namespaces(&["a"]), &["DCGM_FI_DEV_GPU_UTIL"], 60_000).await.unwrap();
    let requests = server.requests().join("\n");
    for selector in [
        "query=%7Bexported_namespace%3D%22a%22%2C__name__%3D%22DCGM_FI_DEV_GPU_UTIL%22%7D",
        "query=%7Bnamespace%3D%22a%22%2Cexported_namespace%3D%22%22%2C__name__",
    ] {
        assert!(requests.contains(selector), "{requests}");
    }
}

#[test]
fn f115_dcgm_rows_belong_by_the_exporters_word() {
    let namespaces = namespaces(&["a"]);
    let belongs =
        |labels: &str, label| belongs(&serde_json::from_str(labels).unwrap(), &namespaces, label);
    let (own, other) = (r#"{"namespace":"a"}"#, r#"{"namespace":"a","exported_namespace":"b"}"#);
    assert!(belongs(own, NamespaceLabel::NotExported));
    assert!(!belongs(other, NamespaceLabel::NotExported));
    assert!(!belongs(other, NamespaceLabel::Exported));
    assert!(belongs(r#"{"namespace":"m","exported_namespace":"a"}"#, NamespaceLabel::Exported));
}
