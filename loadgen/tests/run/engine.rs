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

/// A profile that runs so many requests at once, and lets the others wait.
fn with_slots(n: u32) -> tempfile::NamedTempFile {
    let profile = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let text = loadgen::engine::Profile::preset_text("tiny-cpu").unwrap();
    let text = text.replace("max_num_seqs: 16", &format!("max_num_seqs: {n}"));
    std::fs::write(profile.path(), text).unwrap();
    profile
}

/// A scale-down of vLLM without a drain: two requests run and eighteen wait, and all of them end with
/// status 200 and `[DONE]`.
#[test]
fn what_an_engine_gives_up_at_a_sigterm_is_cut_short() {
    let profile = with_slots(2);
    let engine = Engine::start(1, &["--profile", profile.path().to_str().unwrap()]);
    let url = format!("http://{}", engine.addresses[0]);
    let flags =
        "--rate 40 --duration 500ms --arrival constant --input-tokens 9 --output-tokens 1500";
    let report = std::thread::scope(|scope| {
        let run = scope.spawn(|| report(&url, flags));
        engine.wait_for("vllm:num_requests_waiting{", 18.0);
        engine.signal("-TERM");
        run.join().unwrap()
    });
    assert_eq!(report["errors_by_class"], json!({"cut_short": 20}), "{}", report["error_examples"]);
    assert_eq!((at(&report, "/completed"), at(&report, "/good")), (0.0, 0.0));
    assert_eq!((at(&report, "/ttft/count"), at(&report, "/elasticity/cut")), (2.0, 20.0));
}

/// One request at a time, some 30 ms each. Twice of what is carried is answered within its SLO all
/// the same, for no step lasts until users have waited as long as they are promised.
#[test]
fn a_rate_at_which_a_queue_grows_is_not_carried() {
    let profile = with_slots(1);
    let engine = Engine::start(1, &["--profile", profile.path().to_str().unwrap()]);
    let url = format!("http://{}", engine.addresses[0]);
    let flags = "--find-knee --rate 64 --duration 5s --arrival constant --input-tokens 9 \
                 --output-tokens 10 --slo-ttft 1m --slo-tpot 1m --timeout 2m --grace 2m";
    let report = report(&url, flags);
    let first = &report["knee"]["steps"][0];
    assert_eq!((&first["attainment"], &first["holds"]), (&json!(1.0), &json!(false)), "{first:#}");
    assert_eq!(first["fails"], json!(["a queue that grows"]));
    let carried = at(&report, "/knee/steps/0/carried_rate");
    assert!((10.0..45.0).contains(&carried), "{first:#}");
    assert!(at(&report, "/knee/rate") < 1.5 * carried, "{}", report["knee"]);
    assert_eq!(at(&report, "/achieved_rate"), at(&report, "/offered_rate"), "all was answered");
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
