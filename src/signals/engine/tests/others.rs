//! The engines beside vLLM and SGLang, in pages as their own sources make them.

use super::*;

/// Reads a page that must be this family's.
fn sample_of(family: EngineFamily, page: &str) -> EngineSample {
    let read = read(page.as_bytes()).unwrap();
    assert_eq!(read.family, family);
    read.sample
}

#[test]
fn tgi_is_read_from_its_batch_and_its_queue() {
    let sample = sample_of(
        EngineFamily::Tgi,
        "\
# HELP tgi_queue_size Current queue size
# TYPE tgi_queue_size gauge
tgi_queue_size 7
tgi_batch_current_size 12
tgi_batch_current_max_tokens 30000
tgi_batch_total_tokens 40000
tgi_batch_inference_count{method=\"prefill\"} 20
tgi_batch_inference_count{method=\"decode\"} 500
tgi_request_count 60
tgi_request_success 40
tgi_request_failure{err=\"overloaded\"} 5
tgi_request_failure{err=\"validation\"} 3
tgi_request_failure{err=\"dropped\"} 2
tgi_request_failure{err=\"generation\"} 1
tgi_request_input_length_sum 9000
tgi_request_generated_tokens_sum 8000
tgi_request_mean_time_per_token_duration_sum 1.2
tgi_request_mean_time_per_token_duration_count 40
",
    );
    let expected = EngineSample {
        waiting: Some(7.0),
        running: Some(12.0),
        kv_usage: Some(0.75),
        kv_tokens: Some(40_000.0),
        prompt_tokens: Some(9_000.0),
        // Outputs are counted at the end of requests only.
        generated_tokens: None,
        finished: Some(43.0),
        finished_generated_tokens: Some(8_000.0),
        rejected: Some(5.0),
        steps: Some(520.0),
        itl_sum_s: Some(1.2),
        itl_count: Some(40.0),
        ..EngineSample::default()
    };
    assert_eq!(sample, expected);
}

#[test]
fn tgi_without_its_budget_tells_nothing_of_its_cache() {
    let page = "tgi_queue_size 0\ntgi_batch_current_size 0\ntgi_batch_current_max_tokens 30\n";
    let sample = sample_of(EngineFamily::Tgi, page);
    assert_eq!((sample.kv_usage, sample.kv_tokens), (None, None));
    assert_eq!((sample.waiting, sample.running), (Some(0.0), Some(0.0)));
    // More in use than there is: not known, rather than full.
    let page = format!("{page}tgi_batch_total_tokens 10\n");
    assert_eq!(sample_of(EngineFamily::Tgi, &page).kv_usage, None);
    let page = page.replace("_total_tokens 10", "_total_tokens 0");
    assert_eq!(sample_of(EngineFamily::Tgi, &page).kv_usage, None);
}

#[test]
fn trtllm_serve_repeats_its_gauges_for_each_process_and_they_count_once() {
    let gauge = |name: &str, value: &str| {
        format!(
            "trtllm_{name}{{engine_type=\"trtllm\",model_name=\"m\",pid=\"7\"}} {value}\n\
             trtllm_{name}{{engine_type=\"trtllm\",model_name=\"m\",pid=\"8\"}} 0.0\n"
        )
    };
    let page = [
        gauge("num_requests_running", "8.0"),
        gauge("num_requests_waiting", "3.0"),
        gauge("max_num_active_requests", "16.0"),
        gauge("kv_cache_utilization", "0.4"),
        gauge("kv_cache_max_blocks", "1000.0"),
        gauge("kv_cache_tokens_per_block", "32.0"),
    ]
    .concat()
        + "\
trtllm_prompt_tokens_total{engine_type=\"trtllm\",model_name=\"m\"} 900.0
trtllm_prompt_cached_tokens_total{engine_type=\"trtllm\",model_name=\"m\"} 300.0
trtllm_generation_tokens_total{engine_type=\"trtllm\",model_name=\"m\"} 700.0
trtllm_request_success_total{finished_reason=\"stop\",model_name=\"m\"} 4.0
trtllm_request_success_total{finished_reason=\"length\",model_name=\"m\"} 2.0
trtllm_num_requests_completed_total{model_name=\"m\"} 99.0
";
    let sample = sample_of(EngineFamily::Trtllm, &page);
    let expected = EngineSample {
        waiting: Some(3.0),
        running: Some(8.0),
        kv_usage: Some(0.4),
        kv_tokens: Some(32_000.0),
        max_running: Some(16.0),
        prompt_tokens: Some(600.0),
        all_prompt_tokens: Some(900.0),
        finished: Some(6.0),
        finished_generated_tokens: Some(700.0),
        ..EngineSample::default()
    };
    assert_eq!(sample, expected);
    // Dynamo's spelling.
    let dynamo = page.replace("trtllm_", "trtllm:");
    assert_eq!(sample_of(EngineFamily::Trtllm, &dynamo), expected);
}

#[test]
fn trtllm_serve_before_its_2026_names_has_no_load_and_is_no_known_engine() {
    let page = "request_success_total{finished_reason=\"stop\",model_name=\"undefined\"} 4.0\n\
                e2e_request_latency_seconds_count{model_name=\"undefined\"} 4.0\n\
                time_to_first_token_seconds_sum{model_name=\"undefined\"} 0.4\n\
                time_to_first_token_seconds_count{model_name=\"undefined\"} 4.0\n";
    assert_eq!(read(page.as_bytes()), Err(PageError::NoKnownSeries));
    // The JSON at its `/metrics`, with and without the line feed of a page.
    for json in ["[]", "[{\"numActiveRequests\":1}]\n"] {
        assert_eq!(read(json.as_bytes()).unwrap_err().why(), Why::BadBody, "{json}");
    }
}

/// The page in the backend's documentation, of 2023: without `waiting` and `fraction`.
const TRITON_23_11: &str = "\
nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"context\",version=\"1\"} 1
nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"scheduled\",version=\"1\"} 1
nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"max\",version=\"1\"} 512
nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"active\",version=\"1\"} 0
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\",model=\"tensorrt_llm\",version=\"1\"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"used\",model=\"tensorrt_llm\",version=\"1\"} 1
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"free\",model=\"tensorrt_llm\",version=\"1\"} 6239
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\",model=\"tensorrt_llm\",version=\"1\"} 6239
nv_trt_llm_general_metrics{general_type=\"iteration_counter\",model=\"tensorrt_llm\",version=\"1\"} 17
nv_trt_llm_general_metrics{general_type=\"timestamp\",model=\"tensorrt_llm\",version=\"1\"} 1700074049
nv_inference_pending_request_count{model=\"tensorrt_llm\",version=\"1\"} 0
";

#[test]
fn an_old_triton_does_not_tell_what_waits_and_its_pending_count_is_not_taken_for_it() {
    let sample = sample_of(EngineFamily::Triton, TRITON_23_11);
    let expected = EngineSample {
        waiting: None,
        running: Some(1.0),
        max_running: Some(512.0),
        kv_tokens: Some(399_296.0),
        steps: Some(17.0),
        ..EngineSample::default()
    };
    assert_eq!(sample, expected);
}

#[test]
fn a_triton_counts_a_request_once_whatever_models_it_passes_through() {
    let page = format!(
        "{TRITON_23_11}\
         nv_trt_llm_request_metrics{{model=\"tensorrt_llm\",request_type=\"waiting\"}} 6\n\
         nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type=\"fraction\"}} 0.5\n\
         nv_inference_request_success{{model=\"ensemble\",version=\"1\"}} 40\n\
         nv_inference_request_success{{model=\"preprocessing\",version=\"1\"}} 41\n\
         nv_inference_request_success{{model=\"tensorrt_llm\",version=\"1\"}} 40\n\
         nv_inference_first_response_histogram_ms_sum{{model=\"tensorrt_llm\"}} 2500\n\
         nv_inference_first_response_histogram_ms_count{{model=\"tensorrt_llm\"}} 40\n\
         nv_llm_input_token_len_sum{{response_metric_type=\"total_input_tokens\"}} 4000\n\
         nv_llm_output_token_len_sum{{response_metric_type=\"total_output_tokens\"}} 8000\n"
    );
    let sample = sample_of(EngineFamily::Triton, &page);
    assert_eq!((sample.waiting, sample.kv_usage), (Some(6.0), Some(0.5)));
    assert_eq!(sample.finished, Some(41.0));
    assert_eq!((sample.ttft_sum_s, sample.ttft_count), (Some(2.5), Some(40.0)));
    assert_eq!(sample.prompt_tokens, Some(4_000.0));
    assert_eq!(sample.finished_generated_tokens, Some(8_000.0));
    assert_eq!(sample.generated_tokens, None);
    // The backend's series once more, under the ensemble's name.
    let under = |line: &str| line.replace("model=\"tensorrt_llm\"", "model=\"ensemble\"");
    let again = page.lines().filter(|line| line.starts_with("nv_trt_llm")).map(under);
    let again: Vec<String> = again.collect();
    assert_eq!(again.len(), 12, "{again:?}");
    assert_eq!(sample_of(EngineFamily::Triton, &(page + &again.join("\n") + "\n")), sample);
}

#[test]
fn a_triton_without_the_backend_is_no_known_engine() {
    let page = "nv_inference_pending_request_count{model=\"resnet\",version=\"1\"} 3\n\
                nv_inference_request_success{model=\"resnet\",version=\"1\"} 900\n\
                nv_gpu_utilization{gpu_uuid=\"GPU-1\"} 0.9\n";
    assert_eq!(read(page.as_bytes()), Err(PageError::NoKnownSeries));
    // vLLM's backend in Triton shows vLLM's own names.
    assert_eq!(sample(&format!("{page}{LIVE}")).waiting, Some(7.0));
}

#[test]
fn llama_cpp_tells_its_slots_its_queue_and_its_tokens() {
    let page = "\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 1.23457e+06
llamacpp:tokens_predicted_total 4096
llamacpp:tokens_predicted_seconds_total 81.92
llamacpp:n_decode_total 1300
llamacpp:requests_processing 4
llamacpp:requests_deferred 9
llamacpp:n_busy_slots_per_decode 3.15
";
    let sample = sample_of(EngineFamily::LlamaCpp, page);
    let expected = EngineSample {
        waiting: Some(9.0),
        running: Some(4.0),
        prompt_tokens: Some(1_234_570.0),
        generated_tokens: Some(4_096.0),
        steps: Some(1_300.0),
        itl_sum_s: Some(81.92),
        itl_count: Some(4_096.0),
        ..EngineSample::default()
    };
    assert_eq!(sample, expected);
    let before_may_2025 = format!("{page}llamacpp:kv_cache_usage_ratio 0.25\n");
    assert_eq!(sample_of(EngineFamily::LlamaCpp, &before_may_2025), expected);
    let negotiated = page.replace("llamacpp:", "llamacpp_");
    assert_eq!(sample_of(EngineFamily::LlamaCpp, &negotiated), expected);
}

#[test]
fn lmdeploys_two_queues_are_one() {
    let sample = sample_of(
        EngineFamily::LmDeploy,
        "lmdeploy:num_requests_running{engine=\"0\",model_name=\"m\"} 5.0\n\
         lmdeploy:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n\
         lmdeploy:num_api_requests_waiting{engine=\"0\",model_name=\"m\"} 3.0\n\
         lmdeploy:gpu_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.6\n\
         lmdeploy:iteration_tokens_total_count{engine=\"0\",model_name=\"m\"} 800.0\n\
         lmdeploy:iter_token_latency_sum{engine=\"0\",model_name=\"m\"} 4.0\n\
         lmdeploy:time_per_output_token_seconds_sum{engine=\"0\",model_name=\"m\"} 9.0\n",
    );
    assert_eq!((sample.waiting, sample.running), (Some(5.0), Some(5.0)));
    assert_eq!((sample.kv_usage, sample.itl_sum_s), (Some(0.6), Some(4.0)));
    // What looks like a count of steps is one of requests' parts of them.
    assert_eq!(sample.steps, None);
}

#[test]
fn nim_is_known_by_its_load_and_gives_its_limit() {
    let page = "num_requests_running{model_name=\"m\"} 20.0\n\
                num_requests_waiting{model_name=\"m\"} 4.0\n\
                num_request_max{model_name=\"m\"} 256.0\n\
                gpu_cache_usage_perc{model_name=\"m\"} 0.3\n\
                generation_tokens_total{model_name=\"m\"} 5000.0\n\
                request_success_total{model_name=\"m\"} 9.0\n\
                request_failure_total{model_name=\"m\"} 1.0\n";
    let sample = sample_of(EngineFamily::Nim, page);
    assert_eq!((sample.waiting, sample.running), (Some(4.0), Some(20.0)));
    assert_eq!((sample.max_running, sample.kv_usage), (Some(256.0), Some(0.3)));
    assert_eq!(sample.finished, Some(10.0));
    let all = format!("{page}request_finish_total{{finished_reason=\"stop\"}} 12.0\n");
    assert_eq!(sample_of(EngineFamily::Nim, &all).finished, Some(12.0));
}

#[test]
fn a_nim_that_shows_vllms_names_is_vllm() {
    let page = format!("num_request_max{{model_name=\"m\"}} 1024.0\n{LIVE}");
    let sample = sample_of(EngineFamily::Vllm, &page);
    assert_eq!((sample.waiting, sample.running), (Some(7.0), Some(3.0)));
    // And a program that shares a name with NIM is none.
    let other = "request_success_total 5\nprompt_tokens_total 3\nprocess_start_time_seconds 1e9\n";
    assert_eq!(read(other.as_bytes()), Err(PageError::NoKnownSeries));
}

#[test]
fn an_impossible_load_is_refused_in_every_family() {
    for page in [
        "tgi_queue_size NaN\n",
        "trtllm_num_requests_waiting{pid=\"1\"} -1\n",
        "nv_trt_llm_request_metrics{request_type=\"waiting\"} 1e300\n",
        "llamacpp:requests_deferred 18446744073709551615\n",
        "lmdeploy:num_requests_waiting{engine=\"0\"} -Inf\n",
        "num_requests_waiting{model_name=\"m\"} inf\n",
    ] {
        assert_eq!(read(page.as_bytes()).unwrap_err().why(), Why::Impossible, "{page}");
    }
}

#[test]
fn one_family_is_read_of_a_page_with_several_and_the_trigger_may_choose() {
    let page =
        format!("{LIVE}num_requests_waiting 50\ntgi_queue_size 60\ntgi_batch_current_size 1\n");
    assert_eq!(sample(&page).waiting, Some(7.0));
    for (family, waiting) in [(EngineFamily::Nim, 50.0), (EngineFamily::Tgi, 60.0)] {
        let filter = Filter { model_name: None, family: Some(family) };
        let read = read_as(page.as_bytes(), &filter, Format::Text).unwrap();
        assert_eq!((read.family, read.sample.waiting), (family, Some(waiting)));
    }
}
