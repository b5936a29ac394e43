//! Worked values of prices, utilisation, trust and the dead band.

use super::late::Late;
use super::*;
use crate::decision::members::Rates;
use crate::decision::supply::SupplyState;
use crate::decision::{Moment, Replicas};

/// A replica seen at full load.
const FULL: [f64; 3] = [0.0, 1_000.0, 0.0];

/// An engine of 10 ms a step, 0.1 ms a prompt token, 1 ms a generated one; requests of 200 and 100
/// tokens: 0.02 + 0.1 = 0.12 s each.
fn figures() -> Figures {
    Figures {
        costs: Some([0.010, 0.000_1, 0.001, 0.0]),
        request: Some((200.0, 100.0)),
        settled: true,
        margin: 0.0,
        ..Figures::default()
    }
}

fn means() -> Means {
    Means { span_s: 60.0, prompt: 1_000.0, generated: 500.0, running: 10.0, ..Means::default() }
}

/// The level of `n` live replicas.
fn level(n: u32, spec: &Spec, means: &Means, figures: &Figures, learnable: bool) -> Level {
    let seen = Seen { live: n, learnable, waiting: Some(0.0), ..Seen::default() };
    let replicas = Replicas { spec: Some(n), ready: n, ..Replicas::default() };
    let supply = SupplyState::default().look(spec, &replicas, n, Moment(0));
    let minute = Some(means);
    ask(
        &Ask { spec, seen: &seen, supply: &supply, minute, recent: minute },
        figures,
        &Band::default(),
    )
}

#[track_caller]
fn close(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-4, "{value} is not {expected}");
}

#[test]
fn work_is_tokens_times_their_price() {
    // 1000 · 0.0001 + 500 · 0.001.
    close(level(1, &Spec::default(), &means(), &figures(), true).work.unwrap(), 0.6);
}

#[test]
fn work_that_comes_counts_where_it_is_more_than_what_is_served() {
    let means = Means { arrived: 8.0, ..means() };
    // Three sigma of 480 arrivals are 66 of them, 1.0954/s: (8 - 1.0954) · 0.12.
    close(level(1, &Spec::default(), &means, &figures(), true).work.unwrap(), 0.828_55);
}

#[test]
fn a_queue_that_is_worked_off_is_no_demand() {
    let means = Means { queued: -2.0, arrived: 1.0, ..means() };
    // 0.6 - 2 · 0.12; what came is 0.12.
    close(level(1, &Spec::default(), &means, &figures(), true).work.unwrap(), 0.36);
}

#[test]
fn what_a_queue_grows_by_has_come_too() {
    let means = Means { queued: 2.0, ..means() };
    // 0.6 + 2 · 0.12.
    close(level(1, &Spec::default(), &means, &figures(), true).work.unwrap(), 0.84);
}

#[test]
fn a_few_more_arrivals_than_were_served_are_chance() {
    let means = Means { arrived: 5.9, ..means() };
    // 5.9 · 0.12 = 0.708 is 18 % above what was served; three sigma of 354 arrivals are 16 %:
    // (5.9 - 0.9407) · 0.12 = 0.5951 is below it.
    close(level(1, &Spec::default(), &means, &figures(), true).work.unwrap(), 0.6);
}

#[test]
fn resident_tokens_have_their_price() {
    let figures = Figures { costs: Some([0.010, 0.0, 0.001, 0.05]), ..figures() };
    let means = Means { kv_used: 0.2, prompt: 0.0, ..means() };
    // KV use of one request 0.2/10 = 0.02: 500 · (0.001 + 0.05 · 0.02).
    close(level(1, &Spec::default(), &means, &figures, true).work.unwrap(), 1.0);
}

#[test]
fn utilisation_is_what_the_latency_target_leaves() {
    let rho = |slo_tpot_ms, figures: &Figures| {
        // Seen at full load, so that the fit itself is trusted.
        let figures = Figures { healthiest: FULL, ..figures.clone() };
        let spec = Spec { slo_tpot_ms, ..Spec::default() };
        level(1, &spec, &means(), &figures, true).rho.unwrap()
    };
    // 1 - 10/200, 1 - 10/20; never above 0.95 nor below 0.3.
    close(rho(200, &figures()), 0.95);
    close(rho(20, &figures()), 0.5);
    close(rho(2_000, &figures()), 0.95);
    close(rho(5, &figures()), 0.3);
}

#[test]
fn utilisation_is_what_the_kv_cache_leaves() {
    let figures = Figures { healthiest: FULL, ..figures() };
    let means = Means { kv_used: 0.9, ..means() };
    // 0.09 a request: 10 residents. q·w = 10/(100 · 0.010) · 0.12 = 1.2; 1.2/2.2.
    close(level(1, &Spec::default(), &means, &figures, true).rho.unwrap(), 0.545_45);
}

#[test]
fn utilisation_is_what_the_engines_limit_leaves() {
    let figures = Figures { healthiest: FULL, running_limit: Some(64.0), ..figures() };
    // q·w = 64/(100 · 0.010) · 0.12 = 7.68; 7.68/8.68.
    close(level(1, &Spec::default(), &means(), &figures, true).rho.unwrap(), 0.884_79);
}

#[test]
fn capacity_is_trusted_as_far_as_it_was_seen() {
    let rho = |rate: f64, healthy| {
        // Generated tokens at 1 ms.
        let healthiest = [0.0, 1_000.0 * rate, 0.0];
        let figures = Figures { healthiest, healthy, ..figures() };
        level(1, &Spec::default(), &means(), &figures, true).rho.unwrap()
    };
    // 0.6 · 0.95 unseen; 1.3 · 0.6 seen; never above the fit.
    close(rho(0.0, false), 0.57);
    close(rho(0.4, false), 0.57);
    close(rho(0.6, false), 0.78);
    close(rho(0.9, false), 0.95);
    // The present minute counts once it was healthy: 1.3 · 0.6.
    close(rho(0.0, true), 0.78);
}

#[test]
fn capacity_is_trusted_where_the_fit_was_right() {
    let figures = Figures { reach: 0.6, ..figures() };
    // 1.3 · 0.6 of steps that were work.
    close(level(1, &Spec::default(), &means(), &figures, true).rho.unwrap(), 0.78);
}

#[test]
fn no_replica_is_planned_fuller_than_a_full_one_was_seen_to_be() {
    let seen_full = |full| Figures { full: Some(full), healthiest: FULL, reach: 1.0, ..figures() };
    let means = Means { prompt: 20_000.0, generated: 2_800.0, ..means() };
    let of = |figures: &Figures| level(6, &Spec::default(), &means, figures, true);
    // 4.8 of work: at a cap of 0.95 for 5.05 replicas, at 1.02 · 0.85 of each for 5.54.
    close(of(&Figures { reach: 1.0, ..figures() }).need.unwrap(), 4.8 / 0.95);
    let level = of(&seen_full(0.85));
    close(level.need.unwrap(), 4.8 / 0.867);
    close(level.rho.unwrap(), 0.867);
    // Far below the fit it is no full replica: 0.85 of the cap.
    close(of(&seen_full(0.3)).need.unwrap(), 4.8 / (0.85 * 0.95));
    // Above the plan it changes nothing.
    close(of(&seen_full(0.97)).need.unwrap(), 4.8 / 0.95);
}

#[test]
fn a_larger_pool_keeps_less_free_of_each_replica() {
    let figures = Figures { margin: 10.0, healthiest: FULL, ..figures() };
    let level = |n| level(n, &Spec::default(), &means(), &figures, true);
    // 200 · 0.0001 + 0.010 = 0.030 s of 1.970: 0.8 · 0.030/1.970 · 10 = 0.12183.
    close(level(1).margin, 0.121_83);
    // 0.95 · (1 - 0.12183/√n).
    close(level(1).rho.unwrap(), 0.834_26);
    close(level(9).rho.unwrap(), 0.911_42);
    // n · 0.95 · (1 - 0.12183/√n) = 0.6: √n = (0.12183 + √(0.12183² + 4 · 0.6/0.95))/2 = 0.85798.
    close(level(1).need.unwrap(), 0.736_14);
}

#[test]
fn a_minute_of_other_replicas_gives_no_reason_to_raise_on_distrust() {
    let figures = Figures { settled: false, ..figures() };
    let level = level(1, &Spec::default(), &means(), &figures, true);
    // 0.85 · 0.95 = 0.8075 to raise, 0.6 · 0.95 = 0.57 to let go.
    close(level.need.unwrap(), 0.6 / 0.8075);
    close(level.carry.unwrap(), 0.6 / 0.57);
}

#[test]
fn a_trial_is_trusted_for_raising_and_not_for_further_releases() {
    let figures = Figures { trial: true, ..figures() };
    let level = level(1, &Spec::default(), &means(), &figures, true);
    // 0.85 · 0.95 = 0.8075.
    close(level.need.unwrap(), 0.6 / 0.8075);
    close(level.carry.unwrap(), 0.6 / 0.57);
    close(level.carry_trial.unwrap(), 0.6 / 0.8075);
}

#[test]
fn headroom_is_added_to_work() {
    let figures = Figures { growth: 0.5, healthiest: FULL, ..figures() };
    let level = level(1, &Spec::default(), &means(), &figures, true);
    // 0.5 · √0.6 = 0.3873.
    close(level.headroom, 0.387_3);
    close(level.need.unwrap(), 0.987_3 / 0.95);
    assert_eq!(level.want, Some(2));
}

#[test]
fn no_work_needs_no_headroom() {
    let figures = Figures { growth: 0.5, ..figures() };
    let level = level(3, &Spec::default(), &Means::default(), &figures, true);
    close(level.need.unwrap(), 0.0);
    assert_eq!(level.want, Some(0));
}

#[test]
fn without_counters_the_throughput_at_saturation_is_the_price() {
    let saturation = Some(Saturation { generated: Some(1_000.0), finished: Some(10.0) });
    let figures = Figures { costs: None, saturation, ..figures() };
    let level = level(1, &Spec::default(), &means(), &figures, false);
    assert_eq!(level.source, LevelSource::Saturation);
    // 500/1000, at 0.85 of what a replica does at saturation.
    close(level.work.unwrap(), 0.5);
    close(level.need.unwrap(), 0.5 / 0.85);
    close(level.request_s.unwrap(), 0.1);
}

#[test]
fn without_token_counters_finished_requests_are_the_work() {
    let saturation = Some(Saturation { generated: None, finished: Some(10.0) });
    let figures = Figures { costs: None, saturation, ..figures() };
    let means = Means { finished: 6.0, ..means() };
    close(level(1, &Spec::default(), &means, &figures, false).work.unwrap(), 0.6);
}

#[test]
fn what_can_be_learned_is_not_measured_at_saturation() {
    let saturation = Some(Saturation { generated: Some(1_000.0), finished: Some(10.0) });
    let figures = Figures { costs: None, saturation, ..figures() };
    let level = level(1, &Spec::default(), &means(), &figures, true);
    assert_eq!((level.source, level.want), (LevelSource::Unlearned, None));
}

#[test]
fn presets_follow_the_profile() {
    for (profile, need) in [
        // 64 in flight by 32, 4 and 64.
        (Profile::Chat, 2.0),
        (Profile::LongContext, 16.0),
        (Profile::Batch, 1.0),
    ] {
        let spec = Spec { profile, ..Spec::default() };
        let means = Means { in_flight: 64.0, ..means() };
        let level = level(1, &spec, &means, &Figures::default(), false);
        assert_eq!(level.source, LevelSource::InFlight);
        close(level.need.unwrap(), need);
    }
}

#[test]
fn what_was_let_go_is_taken_back_only_for_more_than_noise() {
    let mut band = Band::default();
    assert_eq!(band.count(3.01, 3), 4);
    band.released(3, 2.95);
    // 2.95 · 1.05 = 3.0975.
    assert_eq!(band.count(3.09, 3), 3);
    assert_eq!(band.count(3.11, 3), 4);
    // At another count it does not speak.
    assert_eq!(band.count(4.01, 4), 5);
}

#[test]
fn what_was_asked_for_is_let_go_only_for_more_than_noise() {
    let mut band = Band::default();
    assert_eq!(band.floor(3.0), 3);
    band.raised(4, Some(3.05));
    // 3.05 / 1.05 = 2.9048.
    assert_eq!(band.floor(2.90), 3);
    assert_eq!(band.floor(2.91), 4);
    assert_eq!(band.floor(3.2), 4);
    assert_eq!(band.floor(5.0), 5);
    // A raise by another rule has no need to compare with.
    band.raised(4, None);
    assert_eq!(band.floor(2.9), 3);
}

/// What a steady fleet of one has learned of lateness after so many ticks of `step_s`, each with that
/// share of slow tokens, answers of 30 tokens and a mean time to the first token.
fn late_after(ticks: u32, step_s: f64, slow: f64, ttft_s: f64, answer: f64) -> Late {
    let mut late = Late::default();
    note_late(&mut late, ticks, step_s, Some(slow), Some(ttft_s), answer);
    late
}

/// The same on what is known already; `None` where the engine has no such counter.
fn note_late(
    late: &mut Late,
    ticks: u32,
    step_s: f64,
    slow: Option<f64>,
    ttft_s: Option<f64>,
    answer: f64,
) {
    let spec = Spec::default();
    let rates = Rates { itl_count: slow.map(|_| 500.0).into(), ..Rates::default() };
    let slow = slow.unwrap_or(0.0);
    let seen = Seen { live: 1, learnable: true, slow: 500.0 * slow, rates, ..Seen::default() };
    let replicas = Replicas { spec: Some(1), ready: 1, ..Replicas::default() };
    let supply = SupplyState::default().look(&spec, &replicas, 1, Moment(0));
    let minute = Some(&Means { ttft_s, ..means() });
    let ask = Ask { spec: &spec, seen: &seen, supply: &supply, minute, recent: minute };
    let level = super::ask(&ask, &figures(), &Band::default());
    for _ in 0..ticks {
        late.note(&ask, &level, Some(answer), step_s);
    }
}

#[test]
fn lateness_on_steady_replicas_takes_capacity_slowly_and_no_more_than_the_bound() {
    // A thirtieth late for ten minutes: the mean of half an hour is above 0.3 % after 171 s and three
    // times that at the end: 429 s of 0.15 an hour, times 1.1 in the mean, are 0.02.
    let kept = late_after(120, 5.0, 0.033, 0.03, 30.0).kept();
    assert!((0.975..0.985).contains(&kept), "{kept}");
    close(late_after(2_000, 5.0, 0.5, 0.03, 30.0).kept(), 0.85);
    close(late_after(2_000, 5.0, 0.002, 0.03, 30.0).kept(), 1.0);
}

/// Half an hour to start, and half of the tokens too slow: rates of answers of thirty tokens.
#[test]
fn within_a_cold_start_of_a_release_lateness_takes_nothing() {
    let spec = Spec::default();
    let mut state = SupplyState::default();
    state.started(1_800_000);
    let rates = Rates {
        prompt: Some(1_000.0).into(),
        generated: Some(500.0).into(),
        admitted: Some(16.0).into(),
        finished: Some(16.0).into(),
        finished_generated: Some(480.0).into(),
        itl_count: Some(500.0).into(),
        ..Rates::default()
    };
    let mut learned = Learned::default();
    let mut cost = crate::decision::CostModel::default();
    let mut now = Moment(0);
    let mut lost_after = |live: u32, ticks: u32| {
        let seen =
            Seen { live, learnable: true, whole: true, slow: 250.0, rates, ..Seen::default() };
        let replicas = Replicas { spec: Some(live), ready: live, ..Replicas::default() };
        for _ in 0..ticks {
            let supply = state.look(&spec, &replicas, live, now);
            let minute = Some(&means());
            let ask = Ask { spec: &spec, seen: &seen, supply: &supply, minute, recent: minute };
            let level = super::ask(&ask, &figures(), &Band::default());
            now = Moment(now.0 + 5_000);
            learned.note(&ask, &level, 5_000, now);
        }
        learned.figures(&mut cost, 1_800_000, now).lost
    };
    close(lost_after(2, 12), 0.0);
    close(lost_after(1, 360), 0.0);
    assert!(lost_after(1, 60) > 0.01);
}

#[test]
fn the_pace_of_a_second_or_of_long_answers_is_no_lateness() {
    close(late_after(2_000, 1.0, 0.5, 0.03, 30.0).kept(), 1.0);
    close(late_after(2_000, 5.0, 0.5, 0.03, 300.0).kept(), 1.0);
}

#[test]
fn what_is_not_seen_gives_no_capacity_back() {
    let mut late = late_after(2_000, 5.0, 0.5, 0.03, 30.0);
    // Ticks of a second, then an engine without the counters, for ten hours each.
    note_late(&mut late, 36_000, 1.0, Some(0.0), Some(0.03), 30.0);
    note_late(&mut late, 7_200, 5.0, None, Some(0.03), 30.0);
    note_late(&mut late, 7_200, 5.0, None, None, 300.0);
    close(late.kept(), 0.85);
    note_late(&mut late, 7_200, 5.0, Some(0.0), Some(0.03), 30.0);
    assert!(late.kept() > 0.9, "{}", late.kept());
}

#[test]
fn waiting_that_makes_some_late_takes_capacity_and_less_does_not() {
    // Own time 0.02 + 0.01/(1 - 0.6) = 0.045 s of 2 s: 0.6·exp(-0.6·1.955/wait) is 0.4 % for a mean
    // wait of 0.235 s, and 0.04 % for 0.16 s.
    assert!(late_after(2_000, 5.0, 0.0, 0.28, 30.0).kept() < 0.99);
    close(late_after(2_000, 5.0, 0.0, 0.205, 30.0).kept(), 1.0);
}

/// An engine whose prompts of 10,000 tokens take a second each, on `n` replicas that do `work` together.
fn long_prompts(n: u32, work: f64, late: f64, ttft_s: f64) -> (Late, pool::Feedback) {
    let mut learned = (Late::default(), pool::Feedback::default());
    note_long(&mut learned, 5_000, (n, work), late, ttft_s);
    learned
}

/// So many ticks of it on what is known already.
fn note_long(
    (learned_late, feedback): &mut (Late, pool::Feedback),
    ticks: u32,
    (n, work): (u32, f64),
    late: f64,
    ttft_s: f64,
) {
    let spec = Spec::default();
    let figures = Figures {
        costs: Some([0.010, 0.000_1, 0.001, 0.0]),
        request: Some((10_000.0, 100.0)),
        settled: true,
        margin: 1.0,
        healthiest: FULL,
        ..Figures::default()
    };
    let per_second = work / 1.1;
    let rates = Rates {
        late: Some(late * per_second).into(),
        ttft_count: Some(per_second).into(),
        ..Rates::default()
    };
    let seen = Seen { live: n, learnable: true, rates, ..Seen::default() };
    let replicas = Replicas { spec: Some(n), ready: n, ..Replicas::default() };
    let supply = SupplyState::default().look(&spec, &replicas, n, Moment(0));
    let minute = Some(&Means {
        span_s: 60.0,
        prompt: 10_000.0 * per_second,
        generated: 100.0 * per_second,
        finished: per_second,
        ttft_s: Some(ttft_s),
        ..Means::default()
    });
    let ask = Ask { spec: &spec, seen: &seen, supply: &supply, minute, recent: minute };
    let level = super::ask(&ask, &figures, &Band::default());
    for _ in 0..ticks {
        learned_late.note(&ask, &level, Some(100.0), 5.0);
        feedback.note(&ask, &level, 5.0);
    }
}

#[test]
fn long_prompts_that_are_seen_to_be_late_widen_the_margin_and_keep_the_capacity() {
    let late = long_prompts(4, 1.6, 0.02, 1.2).0;
    close(late.margin(), 6.0);
    close(late.kept(), 1.0);
    close(long_prompts(4, 1.6, 0.003, 1.2).0.margin(), 0.0);
}

#[test]
fn a_late_hour_of_a_day_in_which_nearly_all_are_on_time_widens_no_margin() {
    let of = |late, ticks| move |learned: &mut _| note_long(learned, ticks, (4, 1.6), late, 1.2);
    let margin = |learned: &(Late, pool::Feedback)| learned.0.margin();
    let mut learned = (Late::default(), pool::Feedback::default());
    // Twelve hours without one, then two with 1 % each: 0.02 of 13 h, which is 0.15 %.
    of(0.0, 8_640)(&mut learned);
    of(0.01, 1_440)(&mut learned);
    close(margin(&learned), 0.0);
    // With 10 % it is 1.4 % of the day.
    of(0.1, 1_440)(&mut learned);
    let most = margin(&learned);
    assert!(most > 1.0, "{most}");
    // And back by 0.4 an hour, once both the half hour and the day are on time.
    of(0.0, 28_800)(&mut learned);
    close(margin(&learned), 0.0);
}

#[test]
fn what_an_empty_replica_takes_for_a_long_prompt_is_no_backlog() {
    // Of 1.2 s 0.18 s are waited: of a slack of a second more than the plan's margin allows for.
    assert!(long_prompts(4, 1.6, 0.0, 1.2).1.correction() > 1.0);
    // 0.6 s are a backlog's.
    close(long_prompts(4, 1.6, 0.0, 1.6).1.correction(), 1.0);
}

#[test]
fn waits_correct_the_margin_by_what_a_full_pool_would_wait() {
    let spec = Spec::default();
    let seen = Seen { live: 1, learnable: true, ..Seen::default() };
    let replicas = Replicas { spec: Some(1), ready: 1, ..Replicas::default() };
    let supply = SupplyState::default().look(&spec, &replicas, 1, Moment(0));
    let minute = Some(&Means { ttft_s: Some(0.075), ..means() });
    let ask = Ask { spec: &spec, seen: &seen, supply: &supply, minute, recent: minute };
    let level = super::ask(&ask, &figures(), &Band::default());
    let mut feedback = pool::Feedback::default();
    (0..20_000).for_each(|_| feedback.note(&ask, &level, 5.0));
    // Own time 0.045 s of 2 s, so 0.030 s waited of half of 1.955 s: 0.0307. Used 0.6/0.95 = 0.632:
    // 0.368 · 0.0307 · 0.85/0.632 = 0.0152 is needed, of 0.8 · 0.03/1.97 = 0.0122 planned.
    assert!((feedback.correction() - 1.249).abs() < 0.002, "{}", feedback.correction());
}

#[test]
fn capacity_that_lateness_took_is_not_planned_with() {
    let figures = Figures { lost: 0.1, healthiest: FULL, ..figures() };
    // 0.95 less a tenth.
    close(level(1, &Spec::default(), &means(), &figures, true).rho.unwrap(), 0.855);
    // A target below the empty step of 10 ms: more replicas would not help either.
    let hopeless = Spec { slo_tpot_ms: 9, ..Spec::default() };
    close(level(1, &hopeless, &means(), &figures, true).rho.unwrap(), 0.3);
}
