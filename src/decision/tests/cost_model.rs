//! The cost model: what it learns, what it refuses, and how it does on a real engine.

use std::path::PathBuf;

use serde::Deserialize;

use super::build::{Bench, Does};
use super::fleet::{Dice, TRUTH, learned};
use crate::decision::{CostModel, EngineSample, Interval, LevelSource, Moment};

/// What two samples alone teach.
fn row(before: &EngineSample, after: &EngineSample) -> Option<Interval> {
    Interval::part(before, after).filter(Interval::is_whole)
}

fn interval(seconds: f64, steps: f64, prompt: f64, generated: f64, kv: f64) -> Interval {
    Interval { seconds, steps, prompts: None, first_tokens_s: None, prompt, generated, kv }
}

/// Seconds that the model expects of an interval.
fn predicted(model: &CostModel, interval: &Interval) -> f64 {
    let [step_s, prompt_s, token_s, kv_s] = model.costs();
    interval.steps * (step_s + kv_s * interval.kv)
        + interval.prompt * prompt_s
        + interval.generated * token_s
}

fn sample(at_ms: i64, steps: f64, generated: f64, running: f64) -> EngineSample {
    EngineSample {
        at: Moment(at_ms),
        running: Some(running),
        kv_usage: Some(0.1),
        steps: Some(steps),
        prompt_tokens: Some(0.0),
        generated_tokens: Some(generated),
        ..EngineSample::default()
    }
}

#[test]
fn a_linear_engine_is_identified() {
    let model = learned(&TRUTH);
    assert!(model.is_usable());
    // 20 ms of prompts, 16 ms of tokens, 10 ms for the step itself: 46 ms.
    let seen = interval(46.0, 1_000.0, 200_000.0, 16_000.0, 0.08);
    assert!((predicted(&model, &seen) / 46.0 - 1.0).abs() < 0.02, "{}", predicted(&model, &seen));
    let [step_s, prompt_s, token_s, kv_s] = model.costs();
    assert!((step_s / 0.010 - 1.0).abs() < 0.05, "{step_s}");
    assert!((prompt_s / 0.000_1 - 1.0).abs() < 0.05, "{prompt_s}");
    // Here KV use is 0.005 per running request, so the two prices are told apart only together.
    assert!(((token_s + 0.005 * kv_s) / 0.001 - 1.0).abs() < 0.05, "{token_s} {kv_s}");
}

#[test]
fn a_new_model_is_not_usable() {
    assert!(!CostModel::default().is_usable());
    assert!(CostModel::default().costs().iter().all(|cost| *cost <= 0.0));
}

#[test]
fn constant_load_does_not_tell_work_from_the_cost_of_a_step() {
    let mut model = CostModel::default();
    for _ in 0..1_000 {
        model.observe(&interval(5.0, 250.0, 500.0, 2_500.0, 0.05), 1.0);
        model.refit();
    }
    assert!(!model.is_usable(), "error {}", model.error());
}

#[test]
fn varied_load_is_learned_from_as_long_as_it_lasts() {
    let mut model = learned(&TRUTH);
    let before = model.rows();
    for round in 0..100_u32 {
        let running = f64::from(1 + round % 40);
        let steps = 5.0 / (0.010 + 0.001 * running);
        model.observe(&interval(5.0, steps, 0.0, running * steps, 0.005 * running), 1.0);
        model.refit();
    }
    // A hundred, of which a twentieth has faded, and so has what was there.
    assert!(model.rows() > before + 80.0, "{before} {}", model.rows());
}

/// Two days of ten running, then as long a night at a fifth more for each step.
#[test]
fn an_engine_that_gets_slower_under_constant_load_is_learned_anew() {
    let mut model = learned(&TRUTH);
    let mut rows = |n: u32, step_s: f64| {
        for _ in 0..n {
            let steps = 5.0 / step_s;
            model.observe(&interval(5.0, steps, 2.0 * steps, 10.0 * steps, 0.05), 1.0);
            model.refit();
        }
        predicted(&model, &interval(0.0, 1.0, 2.0, 10.0, 0.05))
    };
    let before = rows(34_560, 0.020_2);
    assert!((before / 0.020_2 - 1.0).abs() < 0.02, "{before}");
    let after = rows(34_560, 0.024_2);
    assert!((after / 0.024_2 - 1.0).abs() < 0.12, "{after}");
}

/// Three days, ten memories of the fit.
#[test]
fn constant_load_does_not_wash_out_what_varied_load_has_taught() {
    let mut model = learned(&TRUTH);
    let before = model.costs();
    let mut dice = Dice(11);
    for _ in 0..51_840 {
        // Ten running: 22 ms a step of 2 prompt tokens and 10 generated ones, read with 5 % of noise.
        let noise = 0.95 + 0.1 * dice.roll();
        let row = interval(5.0, 227.0, 454.0 * noise, 2_270.0 * noise, 0.05);
        model.observe(&row, 1.0);
        model.refit();
        assert!(model.is_usable());
    }
    let work_s = |[_, prompt_s, token_s, kv_s]: [f64; 4]| {
        200.0 * prompt_s + 100.0 * (token_s + 0.005 * kv_s)
    };
    let ratio = work_s(model.costs()) / work_s(before);
    assert!((ratio - 1.0).abs() < 0.1, "{ratio}");
}

#[test]
fn costs_are_never_negative() {
    let mut model = CostModel::default();
    let mut dice = Dice(7);
    for _ in 0..500 {
        let steps = 10.0 + 500.0 * dice.roll();
        let row = interval(5.0, steps, 1e4 * dice.roll(), 1e4 * dice.roll(), dice.roll());
        model.observe(&row, 1.0);
        model.refit();
        assert!(model.costs().iter().all(|cost| *cost >= 0.0 && cost.is_finite()));
    }
}

#[test]
fn intervals_with_idle_gaps_hardly_move_the_fit() {
    let mut model = learned(&TRUTH);
    let seen = interval(5.0, 250.0, 0.0, 2_500.0, 0.05);
    let before = predicted(&model, &seen);
    for _ in 0..100 {
        // Ten running, but the engine rested for three quarters of the time.
        model.observe(&interval(20.0, 250.0, 0.0, 2_500.0, 0.05), 1.0);
        model.refit();
    }
    let after = predicted(&model, &seen);
    assert!((after / before - 1.0).abs() < 0.15, "{before} {after}");
}

/// Rows of an engine that is so many times as fast, at loads that vary; of a mean step what it expects
/// over what that takes.
fn moved_to(model: &mut CostModel, rows: u32, speed: f64) -> f64 {
    let step_s = |running: f64| (0.010 + 0.001 * running) / speed;
    for round in 0..rows {
        let running = f64::from(1 + round % 40);
        let steps = 5.0 / step_s(running);
        model.observe(&interval(5.0, steps, 0.0, running * steps, 0.005 * running), 1.0);
        model.refit();
    }
    predicted(model, &interval(0.0, 1.0, 0.0, 20.0, 0.1)) / step_s(20.0)
}

#[test]
fn a_changed_engine_is_learned_anew_within_a_quarter_of_an_hour() {
    for speed in [0.5, 0.7, 1.4, 2.5] {
        let mut model = learned(&TRUTH);
        let ratio = moved_to(&mut model, 180, speed);
        assert!(model.is_usable() && (ratio - 1.0).abs() < 0.1, "{speed}: {ratio}");
    }
}

#[test]
fn a_rollout_in_which_both_engines_run_leaves_nothing_of_the_old_one() {
    let mut model = learned(&TRUTH);
    for _ in 0..20 {
        moved_to(&mut model, 3, 1.0);
        moved_to(&mut model, 3, 2.5);
    }
    let ratio = moved_to(&mut model, 720, 2.5);
    assert!(model.is_usable() && (ratio - 1.0).abs() < 0.1, "{ratio}");
}

#[test]
fn a_minute_of_slow_steps_is_no_other_engine() {
    let mut model = learned(&TRUTH);
    moved_to(&mut model, 12, 0.4);
    let ratio = moved_to(&mut model, 240, 1.0);
    assert!(model.is_usable() && (ratio - 1.0).abs() < 0.05, "{ratio}");
}

#[test]
fn many_replicas_are_one_clock() {
    let row = interval(5.0, 250.0, 500.0, 2_500.0, 0.05);
    let (mut one, mut ten) = (CostModel::default(), CostModel::default());
    one.observe(&row, 1.0);
    for _ in 0..10 {
        ten.observe(&row, 10.0);
    }
    assert!((one.rows() - ten.rows()).abs() < 0.01, "{} {}", one.rows(), ten.rows());
}

#[test]
fn an_interval_idle_at_an_edge_is_refused() {
    assert!(row(&sample(0, 0.0, 0.0, 0.0), &sample(5_000, 100.0, 500.0, 5.0)).is_none());
    assert!(row(&sample(0, 0.0, 0.0, 5.0), &sample(5_000, 100.0, 500.0, 0.0)).is_none());
    assert!(row(&sample(0, 0.0, 0.0, 5.0), &sample(5_000, 100.0, 500.0, 5.0)).is_some());
    // One request is work, at either edge.
    assert!(row(&sample(0, 0.0, 0.0, 1.0), &sample(5_000, 100.0, 100.0, 1.0)).is_some());
}

#[test]
fn an_interval_with_a_reset_is_refused() {
    assert!(row(&sample(0, 100.0, 0.0, 5.0), &sample(5_000, 90.0, 500.0, 5.0)).is_none());
    assert!(row(&sample(0, 0.0, 900.0, 5.0), &sample(5_000, 90.0, 500.0, 5.0)).is_none());
}

#[test]
fn an_interval_of_few_steps_or_of_more_than_a_minute_is_refused() {
    assert!(row(&sample(0, 0.0, 0.0, 5.0), &sample(5_000, 4.0, 20.0, 5.0)).is_none());
    assert!(row(&sample(0, 0.0, 0.0, 5.0), &sample(5_000, 5.0, 25.0, 5.0)).is_some());
    assert!(row(&sample(0, 0.0, 0.0, 5.0), &sample(60_000, 500.0, 2_500.0, 5.0)).is_some());
    assert!(row(&sample(0, 0.0, 0.0, 5.0), &sample(60_001, 500.0, 2_500.0, 5.0)).is_none());
}

#[test]
fn an_interval_whose_tokens_took_less_than_its_steps_had_gaps_and_is_refused() {
    let with_itl = |at_ms, steps, generated, itl_sum_s| EngineSample {
        itl_sum_s: Some(itl_sum_s),
        itl_count: Some(generated),
        ..sample(at_ms, steps, generated, 5.0)
    };
    let before = with_itl(0, 0.0, 0.0, 0.0);
    // 50 ms a step by the clock, 38 ms by the tokens: below 1.3 times, no gap; 30 ms: gaps.
    assert!(row(&before, &with_itl(5_000, 100.0, 500.0, 19.5)).is_some());
    assert!(row(&before, &with_itl(5_000, 100.0, 500.0, 15.0)).is_none());
}

/// One row of the recording of a real vLLM (costmodel.md 1).
#[derive(Debug, Clone, Deserialize)]
struct Row {
    ph: String,
    dt: f64,
    steps: f64,
    gen_tokens: f64,
    prompt: f64,
    run: f64,
    kv: f64,
    kv0: f64,
}

fn fixture(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "where a developer keeps the recordings")]
    let root = std::env::var("GHOSTSCALER_FIXTURES").map_or_else(
        |_unset| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures"),
        PathBuf::from,
    );
    let path = root.join(name);
    let text = std::fs::read_to_string(&path).ok();
    if text.is_none() {
        println!("skipped: no recording at {} (set GHOSTSCALER_FIXTURES)", path.display());
    }
    text
}

#[test]
fn on_a_real_vllm_the_shape_left_out_is_predicted() {
    let Some(text) = fixture("vllm/costmodel-cpu.json") else {
        return;
    };
    let text = text.replace("\"gen\":", "\"gen_tokens\":");
    let rows: Vec<Row> = serde_json::from_str(&text).unwrap();
    let rows: Vec<Row> = rows.into_iter().filter(|row| row.run > 0.0 && row.steps > 5.0).collect();
    let mut shapes: Vec<&str> = rows.iter().map(|row| row.ph.as_str()).collect();
    shapes.dedup();
    assert_eq!(shapes.len(), 9);
    let as_interval = |row: &Row| {
        interval(row.dt, row.steps, row.prompt, row.gen_tokens, f64::midpoint(row.kv, row.kv0))
    };
    let mut errors = Vec::new();
    for left_out in &shapes {
        let mut model = CostModel::default();
        for row in rows.iter().filter(|row| row.ph != *left_out) {
            model.observe(&as_interval(row), 1.0);
            model.refit();
        }
        let tested = rows.iter().filter(|row| row.ph == *left_out);
        let predicted: f64 = tested.clone().map(|row| predicted(&model, &as_interval(row))).sum();
        let took: f64 = tested.map(|row| row.dt).sum();
        errors.push(predicted / took - 1.0);
        println!("{left_out:<12} left out: {:+.1} % of its time", 100.0 * (predicted / took - 1.0));
    }
    let mean = errors.iter().map(|error| error.abs()).sum::<f64>() / 9.0;
    let worst = errors.iter().fold(0.0_f64, |worst, error| worst.max(error.abs()));
    println!("mean {:.1} %, worst {:.1} %", 100.0 * mean, 100.0 * worst);
    assert!(mean < 0.10, "{mean}");
    assert!(worst < 0.20, "{worst}");
}

#[test]
fn an_engine_that_tells_nothing_of_its_kv_cache_is_measured_instead_of_learned() {
    let mut bench = Bench::new(1).deaf();
    bench.sample(0).kv_usage = None;
    bench.run(600, |_| Does::serving(4.0));
    assert_eq!(bench.last.unwrap().inputs.level_source, LevelSource::InFlight);
    // With one it would still be learned from.
    let mut bench = Bench::new(1).deaf();
    bench.run(600, |_| Does::serving(4.0));
    assert_eq!(bench.last.unwrap().inputs.level_source, LevelSource::Unlearned);
}

#[test]
fn a_row_is_ten_mean_prompts_long_or_a_minute() {
    let part = |prompts, prompt, generated| Interval {
        prompts: Some(prompts),
        ..interval(5.0, 50.0, prompt, generated, 0.1)
    };
    // Chat: seven prompts of 1,000 tokens and 5,000 of answers are twelve.
    assert!(part(7.0, 7_000.0, 5_000.0).is_whole());
    // Two and a half of 12,000 tokens: four samples are ten.
    let long = part(2.5, 30_000.0, 10.0);
    let three = long.then(long).then(long);
    assert!(!long.is_whole() && !three.is_whole());
    let four = three.then(long);
    assert!(four.is_whole());
    assert_eq!(
        four,
        Interval { prompts: Some(10.0), ..interval(20.0, 200.0, 120_000.0, 40.0, 0.1) }
    );
    // None ended: one may have begun, until it is a minute.
    let none = part(0.0, 0.0, 500.0);
    let minute = (1..12).fold(none, |row, _| row.then(none));
    assert!(!none.is_whole() && minute.is_whole());
    // An engine that does not count them.
    assert!(interval(5.0, 50.0, 30_000.0, 10.0, 0.1).is_whole());
}

#[test]
fn where_the_engine_rests_a_row_is_ten_times_as_long_as_its_first_tokens_took() {
    let told = |prompts, first_tokens_s| Interval {
        prompts: Some(prompts),
        first_tokens_s,
        ..interval(5.0, 50.0, 6_000.0, 50.0, 0.1)
    };
    assert!(told(1.0, Some(0.5)).is_enough() && !told(1.0, Some(0.51)).is_enough());
    assert!(told(2.0, Some(1.0)).is_enough() && !told(2.0, Some(1.02)).is_enough());
    assert!(!told(0.0, Some(0.0)).is_enough() && !told(1.0, None).is_enough());
    // A prompt of 6,000 tokens in each five seconds, three times; then rest.
    let rows = |first_token_s: f64| {
        let mut bench = Bench::new(1);
        let (idle, busy) = (Does::default(), Does { prompt: 1_200.0, ..Does::serving(1.0) });
        for does in [idle, idle, busy, busy, busy, idle] {
            let mut sample = bench.sample(0);
            let prompts = f64::from(u8::from(does.running > 0.0));
            *sample.ttft_count.get_or_insert(0.0) += prompts;
            *sample.ttft_sum_s.get_or_insert(0.0) += prompts * first_token_s;
            drop(sample);
            bench.run(5, |_| does);
        }
        bench.state.cost.rows()
    };
    assert!((rows(0.5) - 2.0).abs() < 0.01 && rows(1.1) < 0.01, "{} {}", rows(0.5), rows(1.1));
}

/// A request of 6,000 tokens and 101 back, between two samples at which the replica rests: of 20 ms a
/// step, 0.1 ms a prompt token and 40 ms at a full cache of 400,000 tokens.
fn alone(n: f64) -> [EngineSample; 2] {
    let before = EngineSample {
        kv_tokens: Some(400_000.0),
        finished: Some(0.0),
        ttft_sum_s: Some(0.0),
        ttft_count: Some(0.0),
        itl_sum_s: Some(0.0),
        itl_count: Some(0.0),
        ..sample(0, 0.0, 0.0, 0.0)
    };
    let after = EngineSample {
        at: Moment(5_000),
        finished: Some(n),
        prompt_tokens: Some(6_000.0),
        generated_tokens: Some(101.0),
        steps: Some(103.0),
        ttft_sum_s: Some(0.660_9),
        ttft_count: Some(n),
        itl_sum_s: Some(2.060_5),
        itl_count: Some(100.0),
        ..before
    };
    [before, after]
}

#[test]
fn a_request_that_has_a_replica_to_itself_is_a_row_of_its_prompt_and_one_of_its_answer() {
    let [before, after] = alone(1.0);
    let [prompt, answer] = Interval::alone(&before, &after).unwrap();
    assert_eq!((prompt.steps, prompt.prompt, prompt.generated), (3.0, 6_000.0, 1.0));
    assert_eq!((answer.steps, answer.prompt, answer.generated), (100.0, 0.0, 100.0));
    // Half of the prompt is there in the mean, then all of it and half of the answer.
    assert!((prompt.kv - 3_000.0 / 400_000.0).abs() < 1e-12, "{}", prompt.kv);
    assert!((answer.kv - 6_050.0 / 400_000.0).abs() < 1e-12, "{}", answer.kv);
    // 3 · 20 ms + 600 ms + 3 · 40 ms · 0.0075, and 100 · (20 ms + 40 ms · 0.015125).
    let costs = |row: &Interval| row.steps * (0.020 + 0.040 * row.kv) + row.prompt * 0.000_1;
    assert!((costs(&prompt) / prompt.seconds - 1.0).abs() < 1e-3);
    assert!((costs(&answer) / answer.seconds - 1.0).abs() < 1e-3);
}

#[test]
fn two_requests_or_one_that_is_not_over_had_no_replica_to_themselves() {
    let [before, after] = alone(2.0);
    assert_eq!(Interval::alone(&before, &after), None);
    let [before, after] = alone(1.0);
    assert_eq!(Interval::alone(&before, &EngineSample { running: Some(1.0), ..after }), None);
    let begun = EngineSample { waiting: Some(1.0), ..before };
    assert_eq!(Interval::alone(&begun, &after), None);
    assert_eq!(Interval::alone(&before, &EngineSample { ttft_sum_s: None, ..after }), None);
    assert_eq!(Interval::alone(&before, &EngineSample { kv_tokens: None, ..after }), None);
}

#[test]
fn a_night_of_latched_gauges_is_no_row() {
    let mut bench = Bench::new(1);
    bench.state.cost = learned(&TRUTH);
    bench.run(60, |_| Does::serving(5.0));
    let before = bench.state.cost.rows();
    bench.run(28_800, |_| Does { running: 5.0, ..Does::default() });
    bench.run(5, |_| Does::serving(5.0));
    assert!(bench.state.cost.rows() >= before - 0.1, "{} {before}", bench.state.cost.rows());
}
