//! Both halves of the program against each other: what the simulated engine does by its model is
//! what the load generator measures.

use serde_json::json;

use super::{at, report};
use crate::server::client::Engine;

#[test]
fn the_engines_own_times_are_measured() {
    let engine = Engine::start(2, &["--profile", "8b-a100"]);
    let url = |index: usize| format!("http://{}", engine.addresses[index]);
    let flags = format!(
        "--url {} --rate 10 --duration 4s --endpoint completions --token-ids --input-tokens 1000 \
         --output-tokens 20 --watch-health --watch-engines --arrival constant",
        url(1)
    );
    let report = report(&url(0), &flags);
    assert_eq!((at(&report, "/completed"), at(&report, "/errors")), (40.0, 0.0));
    // 12.5 + 1000 × 0.067 ms for the prompt, then 12.5 ms a token at least: some steps are longer by
    // another request's prompt.
    let (ttft, tpot) = (at(&report, "/ttft/p50"), at(&report, "/tpot/p50"));
    assert!(ttft >= 0.079, "{ttft}");
    assert!(tpot >= 0.0125, "{tpot}");
    // What the engines have measured themselves, the way to the client comes on top.
    let mean = |metric: &str| {
        let sum = |part: &str| engine.sum_of(&format!("vllm:{metric}_{part}"));
        sum("sum") / sum("count")
    };
    assert!(at(&report, "/ttft/mean") >= mean("time_to_first_token_seconds"));
    assert!(at(&report, "/e2e/mean") >= mean("e2e_request_latency_seconds"));
    assert_eq!(at(&report, "/output_tokens"), 800.0);
    assert_eq!(at(&report, "/prompt_tokens_ratio"), 1.0);
    assert_eq!(report["replicas"][0][1], 2);
    // The engines are seen at work, both of them together.
    let looks = report["engines"].as_array().unwrap();
    assert!(looks.len() >= 3, "{looks:?}");
    let most = |key: &str| looks.iter().filter_map(|look| look[key].as_f64()).fold(0.0, f64::max);
    assert!((1.0..=40.0).contains(&most("running")), "{looks:?}");
    assert!(most("kv_usage") > 0.0, "{looks:?}");
    assert!(at(&report, "/elasticity/gpu_seconds_per_good_token") > 0.0);
}

#[test]
fn a_chat_is_answered_and_a_model_that_is_not_served_is_counted() {
    let engine = Engine::start(1, &["--profile", "8b-a100"]);
    let url = format!("http://{}", engine.addresses[0]);
    let load = "--rate 10 --duration 2s --input-tokens 200 --output-tokens 5 --arrival constant";
    let served = report(&url, load);
    assert_eq!(at(&served, "/completed"), 20.0, "{}", served["error_examples"]);
    assert_eq!(at(&served, "/output_tokens"), 100.0);
    // The engine's tokens are four bytes of text, ours a word: near, and not the same.
    let ratio = at(&served, "/prompt_tokens_ratio");
    assert!((0.8..1.3).contains(&ratio), "{ratio}");
    let unknown = report(&url, &format!("{load} --class all,model=another"));
    assert_eq!(unknown["errors_by_class"], json!({"wrong_model": 20}));
}
