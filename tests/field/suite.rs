//! Gathers the cases, and sees to it that each id stands here once.

mod expect;
mod fleet;
mod replay;
mod trace;
mod wire;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::{Completion, Failed, Trial};

/// Why a case does not hold, or cannot be read.
pub(crate) type Fault = Box<dyn Error + Send + Sync>;

/// Cases that are tested beside the part that they are about: file and test.
pub(crate) const ELSEWHERE: &[(&str, &str)] = &[
    ("src/explain/text/tests.rs", "f02_a_step_that_the_hpa_swallows"),
    ("tests/grpc/contract.rs", "f43_reconnecting_changes_no_answer"),
    ("src/source/engines/tests.rs", "f44_one_query_serves_all_namespaces_and_names"),
    ("src/source/scrape/tests.rs", "f45_a_target_that_keeps_failing_holds_no_sockets"),
    ("src/web/words/tests.rs", "f46_a_warm_minimum_says_that_it_is_one"),
    (
        "src/cluster/pod/tests.rs",
        "f78_a_pod_that_starts_three_times_before_it_is_ready_is_a_crash_loop",
    ),
    ("src/cluster/group.rs", "f84_a_group_serves_only_when_it_is_whole"),
    ("src/cluster/world/tests.rs", "f85_what_a_quota_refuses_will_not_come_soon"),
    ("src/cluster/group.rs", "f92_a_leader_and_its_workers_are_one_replica_with_the_gpus_of_all"),
    ("src/cluster/world/tests.rs", "f101_a_canary_beside_the_target_adds_nothing_to_its_count"),
    ("src/cluster/events/told.rs", "f102_a_file_that_sets_the_count_back_again_and_again_is_named"),
    (
        "src/cluster/scaled_object.rs",
        "f103_a_condition_that_contradicts_the_annotation_is_disputed",
    ),
    (
        "src/cluster/world/tests.rs",
        "f104_whatever_else_scales_a_target_is_its_rival_and_kedas_own_hpa_is_not",
    ),
    ("src/generate/tests.rs", "f105_a_target_that_something_controls_is_told_with_its_owner"),
    ("src/doctor/tests/count.rs", "f03_two_dampers_in_a_row_are_told_with_their_sum"),
    ("src/doctor/tests/zero.rs", "f32_a_cool_down_that_has_no_effect_is_told"),
    ("src/doctor/tests/zero.rs", "f34_a_start_longer_than_the_slo_is_told_before_zero_is"),
    ("src/doctor/tests/count.rs", "f40_an_hpa_without_the_external_metric_is_told"),
    ("src/doctor/tests/count.rs", "f42_another_owner_of_the_external_metrics_api_is_told"),
    ("src/doctor/tests/zero.rs", "f49_a_fallback_below_the_usual_count_is_told"),
    ("loadgen/tests/run/elastic.rs", "f69_the_knee_is_the_highest_rate_that_is_answered"),
    ("src/doctor/tests/chain.rs", "f73_a_default_vllm_cuts_running_answers_and_is_told"),
    (
        "src/cluster/deletion/tests.rs",
        "f75_before_a_step_down_each_pod_costs_its_requests_so_that_the_idle_one_goes",
    ),
    ("src/doctor/tests/chain.rs", "f74_the_shortest_of_the_times_to_stop_is_named"),
    ("src/doctor/tests/chain.rs", "f76_a_missing_pause_before_the_end_is_told"),
    ("src/doctor/tests/chain.rs", "f90_a_deadline_shorter_than_the_start_is_told"),
    ("src/doctor/tests/count.rs", "f107_two_installations_are_told"),
    (
        "src/doctor/tests/count.rs",
        "f110_a_scaler_that_demands_a_certificate_is_told_where_none_is_shown",
    ),
    (
        "tests/grpc/operations.rs",
        "f111_new_certificates_are_used_without_dropping_connections_and_bad_ones_never",
    ),
    ("tests/prometheus.rs", "f112_hostile_names_find_exactly_their_own_series"),
    (
        "tests/manifests.rs",
        "f28_the_example_waits_for_readiness_and_leaves_the_time_to_connect_alone",
    ),
    ("tests/manifests.rs", "f113_the_role_has_what_the_cluster_part_needs_and_no_more"),
    (
        "src/source/scrape/tests.rs",
        "f114_no_error_text_repeats_what_the_server_sent_or_where_it_is",
    ),
    ("tests/prometheus.rs", "f115_a_namespace_without_series_never_gets_anothers"),
];

/// Second halves of cases whose first one stands above or is told as data.
pub(crate) const HALVES: [(&str, &str); 13] = [
    ("src/cluster/deletion/tests.rs", "f73_a_pod_whose_load_is_not_known_is_none_of_the_idle"),
    (
        "src/doctor/tests/series.rs",
        "f18_a_name_that_is_deprecated_is_told_where_the_new_one_is_missing",
    ),
    ("src/source/scrape/tests.rs", "f28_a_long_deadline_is_no_back_off"),
    (
        "src/source/scrape/tests.rs",
        "f45_a_hundred_targets_that_refuse_again_and_again_hold_few_sockets",
    ),
    ("src/doctor/tests/chain.rs", "f77_nodes_that_are_taken_away_under_busy_engines_are_told"),
    (
        "src/cluster/events/told.rs",
        "f77_replicas_that_go_without_a_decision_are_an_external_loss_told_once",
    ),
    ("src/decision/tests/supply.rs", "f78_replicas_that_start_again_and_again_stop_further_orders"),
    ("tests/manifests.rs", "f88_replicas_that_do_not_come_are_an_alert_after_a_quarter_of_an_hour"),
    ("src/cluster/events/told.rs", "f91_a_replica_that_finishes_nothing_is_told_with_its_node"),
    ("src/cluster/template.rs", "f92_a_group_of_pods_is_one_replica_and_its_gpus_are_summed"),
    (
        "src/cluster/world/tests/revisions.rs",
        "f92_requests_for_three_groups_of_two_pods_ask_for_three_and_not_for_six",
    ),
    (
        "src/cluster/world/tests/revisions.rs",
        "f101_a_canary_that_only_its_scale_is_read_of_holds_the_count_until_it_is_done",
    ),
    ("src/doctor/tests/count.rs", "f106_pods_beyond_the_order_are_told_with_who_made_them"),
];

/// Cases that cannot be decided yet, and what they wait for.
pub(crate) const WAITING: [(&str, &str); 3] = [
    ("f72_a_batch_counts_against_its_deadline", "a signal that tells classes of requests apart"),
    ("f98_a_cluster_that_is_silent_is_stale_and_not_empty", "a view over several clusters"),
    ("f100_services_on_one_base_are_told_to_merge", "fleet"),
];

/// Every id of the themes A to D, F to H, J and K, of I those that one workload settles, and of the others
/// those that a decision alone does. F87, F93, F94, F96 and F99 are about workloads that are one model:
/// they come with it.
fn ids() -> impl Iterator<Item = u32> {
    let of_one_workload = [88, 89, 90, 91, 92, 95, 97, 98];
    (1..=49).chain(61..=86).chain(of_one_workload).chain(100..=115)
}

/// All cases, in the order of their ids.
pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = told();
    trials.extend(wire::trials());
    trials.extend(WAITING.iter().map(|(name, what)| {
        Trial::ignorable_test(*name, move || {
            Ok(Completion::ignored_with(format!("waits for: {what}")))
        })
        .with_kind("waits")
    }));
    trials.sort_by(|a, b| a.name().cmp(b.name()));
    // What was found here and not in the field has no id.
    let names = trials.iter().map(|trial| trial.name().to_owned());
    let names: Vec<String> = names.filter(|name| !name.starts_with("found_")).collect();
    trials.push(Trial::test("each_case_of_the_themes_stands_in_one_place", move || {
        stand_once(&names).map_err(Failed::from)
    }));
    trials
}

/// The cases that are told as data.
fn told() -> Vec<Trial> {
    let folder = root().join("tests/traces");
    let entries = fs::read_dir(folder).expect("the traces are part of the tests");
    let paths = entries.map(|entry| entry.expect("a folder that can be read").path());
    let mut trials = Vec::new();
    for path in paths {
        let stem = path.file_stem().expect("a file has a name").to_string_lossy();
        trials.push(Trial::test(stem.replace('-', "_"), move || {
            Ok(replay::replay(&fs::read_to_string(&path)?)?)
        }));
    }
    trials
}

fn stand_once(names: &[String]) -> Result<(), String> {
    let mut found: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for name in names.iter().map(String::as_str).chain(ELSEWHERE.iter().map(|(_, test)| *test)) {
        let id = id_of(name).ok_or_else(|| format!("{name} has no id"))?;
        found.entry(id).or_default().push(name);
    }
    for id in ids() {
        match found.remove(&id).as_deref() {
            Some([_one]) => {}
            Some(several) => return Err(format!("F{id:02} stands in several places: {several:?}")),
            None => return Err(format!("F{id:02} is missing")),
        }
    }
    if !found.is_empty() {
        return Err(format!("not of the themes: {found:?}"));
    }
    for (file, test) in ELSEWHERE.iter().copied().chain(HALVES) {
        let text = fs::read_to_string(root().join(file)).map_err(|error| error.to_string())?;
        let Some((before, _)) = text.split_once(&format!("fn {test}(")) else {
            return Err(format!("{file} has no test {test}"));
        };
        let attributes = before.rsplit("\n\n").next().unwrap_or_default();
        let runs = ["#[test]", "#[tokio::test"].iter().any(|mark| attributes.contains(mark));
        if !runs || attributes.contains("#[ignore") {
            return Err(format!("{file}: {test} does not run"));
        }
    }
    Ok(())
}

/// The number in `f07_words`.
fn id_of(name: &str) -> Option<u32> {
    name.strip_prefix('f')?.split_once('_')?.0.parse().ok()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
