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
         --output-tokens 20 --watch-health --arrival constant",
        url(1)
    );
    let report = report(&url(0), &flags);
    assert_eq!((at(&report, "/completed"), at(&report, "/errors")), (40.0, 0.0));
    // 12.5 + 1000 × 0.067 ms for the prompt, then some 12.7 ms a token; some steps are longer by
    // another request's prompt.
    let (ttft, tpot) = (at(&report, "/ttft/p50"), at(&report, "/tpot/p50"));
    assert!((0.079..0.2).contains(&ttft), "{ttft}");
    assert!((0.0125..0.03).contains(&tpot), "{tpot}");
    assert_eq!(at(&report, "/output_tokens"), 800.0);
    assert_eq!(at(&report, "/prompt_tokens_ratio"), 1.0);
    assert_eq!(report["replicas"][0][1], 2);
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
