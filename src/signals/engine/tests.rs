//! What engines' series mean, one page of a few lines at a time.

use proptest::prelude::*;

use super::*;
use crate::signals::fixtures;

mod captured;
mod others;
mod series;

/// Reads a page in one piece at moment 0.
fn read(page: &[u8]) -> Result<EnginePage, PageError> {
    read_as(page, &Filter::default(), Format::Text)
}

fn read_as(page: &[u8], filter: &Filter, format: Format) -> Result<EnginePage, PageError> {
    let mut reader = EngineReader::new(filter).with_format(format);
    reader.push(page)?;
    reader.finish(Moment(0))
}

fn sample(page: &str) -> EngineSample {
    read(page.as_bytes()).unwrap().sample
}

/// A live engine of two gauges, to which a test adds what it is about.
const LIVE: &str = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3\n\
                    vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 7\n";

fn live_with(lines: &str) -> EngineSample {
    sample(&format!("{LIVE}{lines}"))
}

#[test]
fn f18_the_kv_gauge_is_read_by_its_old_and_its_new_name() {
    let old = read(format!("{LIVE}vllm:gpu_cache_usage_perc 0.9\n").as_bytes()).unwrap();
    let new = read(format!("{LIVE}vllm:kv_cache_usage_perc 0.9\n").as_bytes()).unwrap();
    let both = live_with("vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.9\n");
    assert_eq!((old.sample.kv_usage, new.sample.kv_usage), (Some(0.9), Some(0.9)));
    assert_eq!(both.kv_usage, Some(0.9));
    // Neither: unknown, not zero.
    assert_eq!(sample(LIVE).kv_usage, None);
}

#[test]
fn f22_names_are_read_with_a_colon_or_an_underscore_and_as_rays() {
    for prefix in ["vllm:", "vllm_", "ray_vllm:", "ray_vllm_"] {
        let page = LIVE.replace("vllm:", prefix);
        let read = read(page.as_bytes()).unwrap();
        assert_eq!(read.sample.waiting, Some(7.0), "{prefix}");
    }
    assert_eq!(sample("vllm_num_requests_waiting{} 7\n").waiting, Some(7.0));
    assert_eq!(read(b"ray_sglang:num_queue_reqs 7\n"), Err(PageError::NoKnownSeries));
    assert_eq!(read(b"xvllm:num_requests_waiting 7\n"), Err(PageError::NoKnownSeries));
}

#[test]
fn f68_a_queue_on_one_rank_is_summed_and_its_spread_is_told() {
    let sample = sample(
        "vllm:num_requests_waiting{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"1\"} 18\n",
    );
    assert_eq!(sample.waiting, Some(18.0));
    assert_eq!(sample.waiting_spread, Some(18.0));
    assert_eq!(sample.running, None);
}

#[test]
fn waiting_that_replicas_do_not_cure_is_told_apart() {
    let sample = live_with(
        "vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 2\n\
         vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"deferred\"} 5\n",
    );
    // Not the 7 of the gauge that includes both, and not their sum.
    assert_eq!((sample.waiting, sample.waiting_deferred), (Some(2.0), Some(5.0)));
}

#[test]
fn prompt_work_is_net_of_cache_hits_where_the_engine_says_so() {
    let total = "vllm:prompt_tokens_total 100\n";
    let computed = "vllm:request_prefill_kv_computed_tokens_sum 40\n";
    let by_source = "vllm:prompt_tokens_by_source_total{source=\"local_compute\"} 30\n\
                     vllm:prompt_tokens_by_source_total{source=\"local_cache_hit\"} 70\n";
    assert_eq!(live_with(total).prompt_tokens, Some(100.0));
    let of_requests = live_with(&format!("{total}{computed}"));
    assert_eq!(of_requests.prompt_tokens, Some(40.0));
    let all = live_with(&format!("{total}{computed}{by_source}"));
    assert_eq!(all.prompt_tokens, Some(30.0));
    assert_eq!(all.all_prompt_tokens, Some(100.0));
}

#[test]
fn requests_that_ended_in_any_way_are_finished() {
    let sample = live_with(
        "vllm:request_success_total{finished_reason=\"stop\"} 4\n\
         vllm:request_success_total{finished_reason=\"abort\"} 2\n\
         vllm:request_success_total{finished_reason=\"error\"} 1\n",
    );
    assert_eq!(sample.finished, Some(7.0));
}

#[test]
fn the_kv_size_comes_from_labels_that_are_numbers() {
    let info = |labels: &str| live_with(&format!("vllm:cache_config_info{{{labels}}} 1\n"));
    assert_eq!(info("block_size=\"16\",num_gpu_blocks=\"1000\"").kv_tokens, Some(16_000.0));
    assert_eq!(info("block_size=\"16\",num_gpu_blocks=\"None\"").kv_tokens, None);
    assert_eq!(info("block_size=\"16\"").kv_tokens, None);
    let sized = "block_size=\"16\",kv_cache_size_tokens=\"8000\",num_gpu_blocks=\"1000\"";
    assert_eq!(info(sized).kv_tokens, Some(8_000.0));
    // Two ranks of an older version: num_gpu_blocks is the sum over both, on each.
    let ranks = "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"1000\"} 1\n\
                 vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"1000\"} 1\n";
    assert_eq!(live_with(ranks).kv_tokens, Some(16_000.0));
    // The blocks were not known at first: the old label set is still there.
    let both = "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1\n\
                vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"500\"} 1\n";
    assert_eq!(live_with(both).kv_tokens, Some(8_000.0));
}

#[test]
fn an_engine_sleeps_when_none_of_its_ranks_is_awake() {
    let states = |awake: [u8; 2]| {
        live_with(&format!(
            "vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"awake\"}} {}\n\
             vllm:engine_sleep_state{{engine=\"1\",sleep_state=\"awake\"}} {}\n\
             vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"discard_all\"}} 1\n",
            awake[0], awake[1],
        ))
        .asleep
    };
    assert_eq!(states([0, 0]), Some(true));
    assert_eq!(states([0, 1]), Some(false));
    assert_eq!(sample(LIVE).asleep, None);
}

#[test]
fn the_start_is_the_engines_else_the_processes() {
    let process = "process_start_time_seconds 1.7e9\n";
    assert_eq!(live_with(process).started_at, Some(Moment(1_700_000_000_000)));
    let sample = live_with(&format!("{process}vllm:generation_tokens_created 1.7000005e9\n"));
    assert_eq!(sample.started_at, Some(Moment(1_700_000_500_000)));
    assert_eq!(live_with("process_start_time_seconds NaN\n").started_at, None);
    // A process's start alone is no engine.
    assert_eq!(read(process.as_bytes()), Err(PageError::NoKnownSeries));
}

#[test]
fn absent_gauges_are_zero_only_where_no_request_can_have_been() {
    let declared =
        "# TYPE vllm:num_requests_running gauge\n# TYPE vllm:num_requests_waiting gauge\n";
    let load = |page: &str| (sample(page).waiting, sample(page).running);
    // The Rust front end before its first request.
    assert_eq!(load(declared), (Some(0.0), Some(0.0)));
    assert_eq!(load("vllm:iteration_tokens_total_count 0\n"), (Some(0.0), Some(0.0)));
    for worked in [
        "vllm:iteration_tokens_total_count 1\n",
        "vllm:generation_tokens_total 1\n",
        "vllm:prompt_tokens_total 1\n",
        "vllm:request_success_total{finished_reason=\"abort\"} 1\n",
    ] {
        assert_eq!(load(&format!("{declared}{worked}")), (None, None), "{worked}");
    }
    // One gauge without the other is no page of an engine that has not worked yet.
    assert_eq!(load("vllm:generation_tokens_total 0\n"), (None, None));
    let waiting_only = "vllm:num_requests_waiting 0\nvllm:prompt_tokens_total 5\n";
    assert_eq!(load(waiting_only), (Some(0.0), None));
    // V1's cache configuration has a rank: its gauges are there from the start.
    let v1 = "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"10\"} 1\n";
    assert_eq!(load(v1), (None, None));
}

#[test]
fn an_impossible_load_makes_the_page_unreadable() {
    for value in ["NaN", "+Inf", "-Inf", "-1", "1000001", "1e308", "9223372036854775807", "text"] {
        for name in ["num_requests_running", "num_requests_waiting"] {
            let line = format!("vllm:{name}{{engine=\"1\"}} {value}\n");
            let error = read(format!("{LIVE}{line}").as_bytes()).unwrap_err();
            assert!(matches!(error, PageError::Impossible { .. }), "{line}");
            assert_eq!(error.why(), Why::Impossible);
        }
    }
    assert_eq!(sample("vllm:num_requests_waiting 1e6\n").waiting, Some(1e6));
}

#[test]
fn an_impossible_number_is_unknown() {
    for line in [
        "vllm:kv_cache_usage_perc 1.5",
        "vllm:kv_cache_usage_perc -0.1",
        "vllm:kv_cache_usage_perc NaN",
    ] {
        let read = read(format!("{LIVE}{line}\n").as_bytes()).unwrap();
        assert_eq!(read.sample.kv_usage, None, "{line}");
        assert_eq!(read.sample.waiting, Some(7.0));
    }
    assert_eq!(live_with("vllm:kv_cache_usage_perc 1.01\n").kv_usage, Some(1.0));
    // One bad rank is not left out of a sum that would then be too small.
    let ranks = "vllm:generation_tokens_total{engine=\"0\"} 10\n\
                 vllm:generation_tokens_total{engine=\"1\"} NaN\n";
    assert_eq!(live_with(ranks).generated_tokens, None);
    assert_eq!(live_with("vllm:generation_tokens_total 1e16\n").generated_tokens, None);
}

#[test]
fn a_series_that_stands_twice_counts_once() {
    assert_eq!(sample(&LIVE.repeat(3)).waiting, Some(7.0));
    let reordered = "vllm:num_requests_waiting{model_name=\"m\",engine=\"0\"} 6\n";
    assert_eq!(live_with(reordered).waiting, Some(7.0));
}

#[test]
fn a_routers_copies_are_not_an_engine() {
    let by_label = "vllm:num_requests_running{server=\"http://10.0.0.1:8000\"} 4\n\
                    vllm:num_requests_waiting{server=\"http://10.0.0.1:8000\"} 9\n";
    assert_eq!(read(by_label.as_bytes()), Err(PageError::Router));
    let gateway = "sglang_num_queue_reqs{worker_addr=\"10.0.0.1:30000\"} 4\n";
    assert_eq!(read(gateway.as_bytes()), Err(PageError::Router));
    let by_name = format!("{LIVE}vllm:num_incoming_requests_total{{model=\"m\"}} 5\n");
    assert_eq!(read(by_name.as_bytes()), Err(PageError::Router));
    assert_eq!(PageError::Router.why(), Why::NoKnownSeries);
    // Beside the engine's own series the copies are left out.
    assert_eq!(live_with(by_label).waiting, Some(7.0));
}

#[test]
fn only_the_wanted_model_counts() {
    let of = |model: &str| Filter { model_name: Some(model.into()), family: None };
    let page = format!(
        "{LIVE}vllm:num_requests_waiting{{model_name=\"other\"}} 50\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"10\"}} 1\n"
    );
    let read_of = |model: &str| read_as(page.as_bytes(), &of(model), Format::Text);
    let m = read_of("m").unwrap().sample;
    // The cache's configuration names no model and counts always.
    assert_eq!((m.waiting, m.kv_tokens), (Some(7.0), Some(160.0)));
    assert_eq!(read_of("other").unwrap().sample.waiting, Some(50.0));
    let error = read_of("third").unwrap_err();
    assert_eq!(error, PageError::OtherModel { wanted: "third".into(), found: "m".into() });
    assert_eq!(error.to_string(), "`modelName` is \"third\": expected the engine's \"m\"");
    assert_eq!(error.why(), Why::NoKnownSeries);
    assert_eq!(sample(&page).waiting, Some(57.0));
}

#[test]
fn only_the_wanted_family_counts() {
    let page = format!("{LIVE}sglang:num_queue_reqs 5\nsglang:num_running_reqs 2\n");
    let of = |family| Filter { model_name: None, family: Some(family) };
    let read_of = |family| read_as(page.as_bytes(), &of(family), Format::Text).unwrap();
    assert_eq!(read_of(EngineFamily::Vllm).sample.waiting, Some(7.0));
    assert_eq!(read_of(EngineFamily::Sglang).sample.waiting, Some(5.0));
    let vllm_alone = read_as(LIVE.as_bytes(), &of(EngineFamily::Sglang), Format::Text);
    assert_eq!(vllm_alone, Err(PageError::NoKnownSeries));
}

#[test]
fn sglang_is_read_from_rank_zero_and_the_total_of_priorities() {
    for prefix in ["sglang:", "sglang_"] {
        let page = "\
sglang:num_running_reqs{model_name=\"q\",tp_rank=\"0\",pp_rank=\"0\",priority=\"\"} 12
sglang:num_running_reqs{model_name=\"q\",tp_rank=\"1\",pp_rank=\"0\",priority=\"\"} 12
sglang:num_running_reqs{model_name=\"q\",tp_rank=\"0\",pp_rank=\"1\",priority=\"\"} 12
sglang:num_queue_reqs{model_name=\"q\",tp_rank=\"0\",priority=\"\"} 9
sglang:num_queue_reqs{model_name=\"q\",tp_rank=\"0\",priority=\"1\"} 4
sglang:num_queue_reqs{model_name=\"q\",tp_rank=\"0\",priority=\"2\"} 5
sglang:num_grammar_queue_reqs{model_name=\"q\",tp_rank=\"0\"} 3
sglang:token_usage{model_name=\"q\",tp_rank=\"0\"} 0.42
sglang:max_total_num_tokens{model_name=\"q\",tp_rank=\"0\"} 400000
sglang:realtime_tokens_total{model_name=\"q\",mode=\"prefill_compute\"} 1000
sglang:realtime_tokens_total{model_name=\"q\",mode=\"prefill_cache\"} 500
sglang:realtime_tokens_total{model_name=\"q\",mode=\"decode\"} 700
sglang:prompt_tokens_total{model_name=\"q\",is_streaming=\"true\"} 600
sglang:prompt_tokens_total{model_name=\"q\",is_streaming=\"false\"} 200
sglang:generation_tokens_total{model_name=\"q\"} 650
sglang:num_requests_total{model_name=\"q\"} 20
sglang:num_retracted_requests_total{model_name=\"q\"} 2
sglang:time_to_first_token_seconds_sum{model_name=\"q\"} 4.5
sglang:time_to_first_token_seconds_count{model_name=\"q\"} 22
sglang:inter_token_latency_seconds_sum{model_name=\"q\"} 14
sglang:inter_token_latency_seconds_count{model_name=\"q\"} 680
"
        .replace("sglang:", prefix);
        let read = read(page.as_bytes()).unwrap();
        assert_eq!(read.family, EngineFamily::Sglang);
        let expected = EngineSample {
            waiting: Some(9.0),
            waiting_deferred: Some(3.0),
            running: Some(12.0),
            kv_usage: Some(0.42),
            kv_tokens: Some(400_000.0),
            prompt_tokens: Some(1000.0),
            generated_tokens: Some(700.0),
            finished: Some(20.0),
            finished_generated_tokens: Some(650.0),
            preemptions: Some(2.0),
            ttft_sum_s: Some(4.5),
            ttft_count: Some(22.0),
            itl_sum_s: Some(14.0),
            itl_count: Some(680.0),
            ..EngineSample::default()
        };
        assert_eq!(read.sample, expected, "{prefix}");
    }
}

#[test]
fn sglang_before_0_5_9_counts_tokens_when_requests_end() {
    let sample = sample(
        "sglang:num_running_reqs 1\nsglang:num_queue_reqs 0\nsglang:prompt_tokens_total 800\n\
         sglang:generation_tokens_total 650\nsglang:time_per_output_token_seconds_count 600\n",
    );
    // Lengths of what has ended: while a long request runs they stand still.
    assert_eq!((sample.generated_tokens, sample.finished_generated_tokens), (None, Some(650.0)));
    assert_eq!((sample.prompt_tokens, sample.itl_count), (Some(800.0), Some(600.0)));
}

#[test]
fn sglang_ranks_and_the_halves_of_a_pair_are_summed() {
    let sample = sample(
        "sglang:num_queue_reqs{dp_rank=\"0\",engine_type=\"decode\"} 1\n\
         sglang:num_queue_reqs{dp_rank=\"1\",engine_type=\"decode\"} 2\n\
         sglang:num_decode_prealloc_queue_reqs{dp_rank=\"0\",engine_type=\"decode\"} 10\n\
         sglang:num_decode_transfer_queue_reqs{dp_rank=\"0\",engine_type=\"decode\"} 4\n",
    );
    assert_eq!((sample.waiting, sample.waiting_deferred), (Some(13.0), Some(4.0)));
    assert_eq!(sample.waiting_spread, Some(9.0));
}

#[test]
fn unreadable_pages_say_why() {
    let why = |page: &[u8]| read(page).unwrap_err().why();
    assert_eq!(why(b""), Why::NoKnownSeries);
    assert_eq!(why(b"up 1\n"), Why::NoKnownSeries);
    assert_eq!(why(b"<html></html>\n"), Why::BadBody);
    assert_eq!(why(&LIVE.as_bytes()[..LIVE.len() - 1]), Why::BadBody);
    assert_eq!(why(format!("{LIVE}vllm:num_requests_running{{a 1\n").as_bytes()), Why::BadBody);
    let open = read_as(LIVE.as_bytes(), &Filter::default(), Format::OpenMetrics);
    assert_eq!(open.unwrap_err().why(), Why::BadBody);
    let filter = Filter::default();
    let mut reader = EngineReader::new(&filter);
    let line = "x".repeat(exposition::MAX_LINE_BYTES + 1);
    assert_eq!(reader.push(line.as_bytes()).unwrap_err().why(), Why::TooLarge);
    assert_eq!(reader.finish(Moment(0)).unwrap_err().why(), Why::TooLarge);
}

#[test]
fn a_page_with_timestamps_is_as_old_as_they_say() {
    let page = "vllm:num_requests_running 3 5000\nvllm:num_requests_waiting 7 4000\n\
                vllm:generation_tokens_total 9 9000\n";
    assert_eq!(sample(page).at, Moment(4_000));
}

proptest! {
    // A captured page is read twice a case.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_captured_page_cut_anywhere_reads_the_same_or_fails(cut in any::<prop::sample::Index>()) {
        let Some(page) = fixtures::page("vllm/metrics-dp2-queued.txt") else { return Ok(()) };
        let (head, tail) = page.split_at(cut.index(page.len()));
        let filter = Filter::default();
        let mut reader = EngineReader::new(&filter);
        reader.push(head).unwrap();
        reader.push(tail).unwrap();
        prop_assert_eq!(reader.finish(Moment(0)), read(&page));
    }

    #[test]
    fn the_order_of_lines_does_not_matter(seed in any::<u64>()) {
        let Some(page) = fixtures::page("vllm/metrics-dp2-queued.txt") else { return Ok(()) };
        let mut lines: Vec<_> = page.split_inclusive(|&b| b == b'\n').collect();
        lines.sort_by_key(|line| std::hash::BuildHasher::hash_one(
            &std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default(),
            (seed, line),
        ));
        prop_assert_eq!(read(&lines.concat()), read(&page));
    }
}
