//! Pages of real servers, with the numbers that a person reads in them.

use super::*;

/// The sample of a captured vLLM page, but for `None` where the page is absent.
fn captured(name: &str) -> Option<EnginePage> {
    let page = fixtures::page(&format!("vllm/{name}"))?;
    let read = read(&page).unwrap();
    assert_eq!(read.family, EngineFamily::Vllm);
    Some(read)
}

#[test]
fn vllm_0_32_with_a_queue_is_read_whole() {
    let read = kept("vllm-0.32.0-queued.txt");
    let expected = EngineSample {
        at: Moment(0),
        waiting: Some(18.0),
        waiting_deferred: Some(0.0),
        running: Some(4.0),
        kv_usage: Some(0.0009766817238432424),
        // 8,192 blocks of 128 tokens.
        kv_tokens: Some(1_048_576.0),
        prompt_tokens: Some(507.0),
        all_prompt_tokens: Some(507.0),
        generated_tokens: Some(2253.0),
        finished: Some(9.0),
        finished_generated_tokens: Some(1800.0),
        rejected: Some(0.0),
        preemptions: Some(0.0),
        steps: Some(714.0),
        ttft_sum_s: Some(8.282516717910767),
        ttft_count: Some(13.0),
        itl_sum_s: Some(7.275751809999292),
        itl_count: Some(2240.0),
        max_running: None,
        asleep: Some(false),
        // generation_tokens_created 1.7959645845327606e+09.
        started_at: Some(Moment(1_795_964_584_533)),
        waiting_spread: None,
    };
    assert_eq!(read.sample, expected);
}

#[test]
fn vllm_0_32_idle_is_a_true_zero() {
    let Some(EnginePage { sample, .. }) = captured("metrics-idle.txt") else {
        return;
    };
    assert_eq!((sample.waiting, sample.running), (Some(0.0), Some(0.0)));
    assert_eq!((sample.generated_tokens, sample.steps), (Some(0.0), Some(0.0)));
    assert_eq!(sample.kv_usage, Some(0.0));
}

#[test]
fn vllm_0_32_after_the_load_has_its_totals() {
    let Some(EnginePage { sample, .. }) = captured("metrics-after.txt") else {
        return;
    };
    assert_eq!((sample.waiting, sample.running), (Some(0.0), Some(0.0)));
    assert_eq!(sample.finished, Some(31.0));
    assert_eq!(sample.prompt_tokens, Some(1280.0));
    assert_eq!(sample.generated_tokens, Some(6200.0));
}

#[test]
fn f66_kv_pressure_is_a_ratio_with_its_preemptions() {
    let Some(EnginePage { sample, .. }) = captured("metrics-kvpressure.txt") else {
        return;
    };
    assert_eq!((sample.waiting, sample.running), (Some(17.0), Some(4.0)));
    assert_eq!(sample.kv_usage, Some(0.8787878787878788));
    // 34 blocks of 128 tokens.
    assert_eq!(sample.kv_tokens, Some(4352.0));
    assert_eq!(sample.preemptions, Some(5.0));
    assert_eq!((sample.ttft_count, sample.finished), (Some(8.0), Some(3.0)));
}

#[test]
fn admission_rejections_are_counted() {
    let Some(EnginePage { sample, .. }) = captured("metrics-after-admission.txt") else {
        return;
    };
    assert_eq!(sample.rejected, Some(18.0));
    assert_eq!(sample.finished, Some(14.0));
    assert_eq!(sample.finished_generated_tokens, Some(3616.0));
}

#[test]
fn f68_data_parallel_ranks_are_summed() {
    let Some(read) = captured("metrics-dp2-queued.txt") else {
        return;
    };
    let sample = read.sample;
    assert_eq!((sample.waiting, sample.running), (Some(32.0), Some(8.0)));
    assert_eq!(sample.waiting_spread, Some(0.0));
    assert_eq!(sample.kv_usage, Some(0.0019533634476864847));
    // Each rank has 8,192 blocks of 128 tokens, though each says num_gpu_blocks="16384".
    assert_eq!(sample.kv_tokens, Some(2_097_152.0));
    assert_eq!(sample.generated_tokens, Some(1349.0 + 1429.0));
    assert_eq!(sample.prompt_tokens, Some(338.0));
    assert_eq!(sample.steps, Some(338.0 + 358.0));
    assert_eq!(sample.itl_count, Some(1345.0 + 1425.0));
    // Several API servers export neither `_created` nor the process's start.
    assert_eq!(sample.started_at, None);
}

#[test]
fn data_parallel_ranks_before_their_first_request_are_idle_not_unknown() {
    let Some(EnginePage { sample, .. }) = captured("metrics-dp2-idle.txt") else {
        return;
    };
    assert_eq!((sample.waiting, sample.running), (Some(0.0), Some(0.0)));
    // The KV gauge has no sample and nothing proves its value.
    assert_eq!(sample.kv_usage, None);
    assert_eq!(sample.generated_tokens, Some(0.0));
}

#[test]
fn data_parallel_ranks_after_the_load_have_their_totals() {
    let Some(EnginePage { sample, .. }) = captured("metrics-dp2-after.txt") else {
        return;
    };
    assert_eq!((sample.waiting, sample.running), (Some(0.0), Some(0.0)));
    assert_eq!(sample.finished, Some(40.0));
    assert_eq!(sample.finished_generated_tokens, Some(24_000.0));
    assert_eq!(sample.steps, Some(9602.0));
}

#[test]
fn two_api_servers_of_one_engine_are_one_engine() {
    let Some(idle) = captured("metrics-asc2-idle.txt") else {
        return;
    };
    assert_eq!((idle.sample.waiting, idle.sample.running), (Some(0.0), Some(0.0)));
    let Some(queued) = captured("metrics-asc2-queued.txt") else {
        return;
    };
    assert_eq!((queued.sample.waiting, queued.sample.running), (Some(8.0), Some(4.0)));
    assert_eq!(queued.sample.kv_usage, Some(0.0014650225857648635));
    assert_eq!(queued.sample.kv_tokens, Some(1_048_576.0));
    let Some(after) = captured("metrics-asc2-after.txt") else {
        return;
    };
    assert_eq!((after.sample.finished, after.sample.steps), (Some(12.0), Some(1501.0)));
}

#[test]
fn vllm_0_9_1_v1_is_read_by_its_old_names() {
    let read = kept("vllm-0.9.1-v1-queued.txt");
    let sample = read.sample;
    assert_eq!((sample.waiting, sample.running), (Some(10.0), Some(4.0)));
    assert_eq!(sample.waiting_deferred, None);
    assert_eq!(sample.kv_usage, Some(0.0006103515625));
    assert_eq!(sample.kv_tokens, Some(1_048_576.0));
    assert_eq!(sample.prompt_tokens, Some(848.0));
    assert_eq!(sample.generated_tokens, Some(3437.0));
    assert_eq!(sample.finished, Some(16.0));
    assert_eq!((sample.itl_sum_s, sample.itl_count), (Some(8.496721786999842), Some(3417.0)));
    assert_eq!((sample.rejected, sample.asleep), (None, None));
    // generation_tokens_created 1.795965793749…e+09.
    assert_eq!(sample.started_at, Some(Moment(1_795_965_793_749)));
    let Some(idle) = captured("metrics-0.9.1-v1-idle.txt") else {
        return;
    };
    assert_eq!((idle.sample.waiting, idle.sample.running), (Some(0.0), Some(0.0)));
    let Some(after) = captured("metrics-0.9.1-v1-after.txt") else {
        return;
    };
    assert_eq!((after.sample.finished, after.sample.steps), (Some(30.0), Some(1601.0)));
}

#[test]
fn vllm_0_9_1_v0_is_read_without_an_engine_label() {
    let read = kept("vllm-0.9.1-v0-queued.txt");
    let sample = read.sample;
    assert_eq!((sample.waiting, sample.running), (Some(18.0), Some(4.0)));
    assert_eq!((sample.kv_usage, sample.kv_tokens), (Some(0.0), Some(1_048_576.0)));
    assert_eq!(sample.prompt_tokens, Some(505.0));
    assert_eq!(sample.generated_tokens, Some(2216.0));
    assert_eq!((sample.finished, sample.steps), (Some(8.0), Some(554.0)));
    assert_eq!(sample.waiting_spread, None);
    let Some(after) = captured("metrics-0.9.1-v0-after.txt") else {
        return;
    };
    assert_eq!((after.sample.finished, after.sample.waiting), (Some(30.0), Some(0.0)));
}

#[test]
fn vllm_0_9_1_v0_before_its_first_request_is_idle() {
    let Some(EnginePage { sample, .. }) = captured("metrics-0.9.1-v0-idle.txt") else {
        return;
    };
    assert_eq!((sample.waiting, sample.running), (Some(0.0), Some(0.0)));
    assert_eq!(sample.kv_tokens, Some(1_048_576.0));
    assert_eq!((sample.generated_tokens, sample.finished), (None, None));
}

#[test]
fn statistics_switched_off_are_no_known_series_and_never_zero() {
    let Some(page) = fixtures::page("vllm/metrics-disable-log-stats.txt") else {
        return;
    };
    let error = read(&page).unwrap_err();
    assert_eq!(error, PageError::NoKnownSeries);
    assert_eq!(error.why(), Why::NoKnownSeries);
}

#[test]
fn the_openmetrics_page_says_the_same_as_the_text_page() {
    let Some(text) = fixtures::page("exposition/vllm_py_text.prom") else {
        return;
    };
    let Some(open) = fixtures::page("exposition/vllm_py_openmetrics.prom") else {
        return;
    };
    let text = read(&text).unwrap();
    let open = read_as(&open, &Filter::default(), Format::OpenMetrics).unwrap();
    assert_eq!(text.sample, open.sample);
    assert_eq!(text.sample.waiting, Some(2.0));
    assert_eq!(text.sample.running, Some(3.0));
    assert_eq!(text.sample.prompt_tokens, Some(123.0));
    assert_eq!(text.sample.steps, Some(1.0));
    assert_eq!(text.sample.finished, Some(0.0));
}

#[test]
fn copies_for_each_process_are_not_summed() {
    let Some(page) = fixtures::page("exposition/vllm_py_multiproc_pid_bug.prom") else {
        return;
    };
    let EnginePage { sample, copied, .. } = read(&page).unwrap();
    // Nobody scrapes it twice.
    assert!(!copied);
    assert_eq!(sample.kv_usage, Some(0.4));
    assert_eq!((sample.running, sample.prompt_tokens), (Some(4.0), Some(20.0)));
    // Tokens have been computed, so an absent gauge is unknown, not zero.
    assert_eq!(sample.waiting, None);
}

/// A page of the repository; `capture.py` beside it says of which server and under which load.
fn kept(name: &str) -> EnginePage {
    let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/loadgen/tests/data/pages/");
    read(&std::fs::read(format!("{pages}{name}")).unwrap()).unwrap()
}

#[test]
fn llama_cpp_is_read_from_its_slots_and_counters() {
    let EnginePage { family, sample, .. } = kept("llamacpp-queued.txt");
    assert_eq!(family, EngineFamily::LlamaCpp);
    let expected = EngineSample {
        waiting: Some(14.0),
        running: Some(4.0),
        prompt_tokens: Some(672.0),
        // Twelve requests that have ended; what the four running ones have made is not counted.
        generated_tokens: Some(2400.0),
        steps: Some(607.0),
        itl_sum_s: Some(8.81155),
        itl_count: Some(2400.0),
        ..EngineSample::default()
    };
    assert_eq!(sample, expected);
    let idle = kept("llamacpp-idle.txt").sample;
    assert_eq!((idle.waiting, idle.running, idle.steps), (Some(0.0), Some(0.0), Some(0.0)));
    let after = kept("llamacpp-after.txt").sample;
    assert_eq!((after.waiting, after.running), (Some(0.0), Some(0.0)));
    assert_eq!((after.generated_tokens, after.prompt_tokens), (Some(6000.0), Some(1260.0)));
}

#[test]
fn vllm_0_11_and_0_20_idle_are_true_zeros() {
    for (name, deferred, asleep) in
        [("vllm-0.11.0-idle.txt", None, None), ("vllm-0.20.2-idle.txt", Some(0.0), Some(false))]
    {
        let EnginePage { family, sample, .. } = kept(name);
        assert_eq!(family, EngineFamily::Vllm);
        assert_eq!((sample.waiting, sample.running), (Some(0.0), Some(0.0)), "{name}");
        assert_eq!((sample.waiting_deferred, sample.asleep), (deferred, asleep), "{name}");
        assert_eq!((sample.kv_usage, sample.kv_tokens), (Some(0.0), Some(1_048_576.0)), "{name}");
        assert_eq!((sample.steps, sample.generated_tokens), (Some(0.0), Some(0.0)), "{name}");
        assert_eq!((sample.finished, sample.itl_count), (Some(0.0), Some(0.0)), "{name}");
    }
}

#[test]
fn vllm_0_11_and_0_20_under_a_load_and_after_it() {
    for (version, generated, deferred, kv_usage) in [
        ("0.11.0", 825.0, None, 0.0004883408619216212),
        ("0.20.2", 1565.0, Some(0.0), 0.0009766817238432424),
    ] {
        let queued = kept(&format!("vllm-{version}-queued.txt")).sample;
        assert_eq!((queued.waiting, queued.running), (Some(22.0), Some(4.0)), "{version}");
        assert_eq!((queued.waiting_deferred, queued.kv_usage), (deferred, Some(kv_usage)));
        assert_eq!((queued.generated_tokens, queued.finished), (Some(generated), Some(4.0)));
        assert_eq!(queued.prompt_tokens, Some(336.0), "{version}");
        // By `_created` series of its own: 0.11.0 has them too.
        assert!(queued.started_at.is_some(), "{version}");
        let after = kept(&format!("vllm-{version}-after.txt")).sample;
        assert_eq!((after.waiting, after.running), (Some(0.0), Some(0.0)), "{version}");
        assert_eq!((after.generated_tokens, after.finished), (Some(6000.0), Some(30.0)));
    }
}
