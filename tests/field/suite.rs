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
pub(crate) const ELSEWHERE: [(&str, &str); 5] = [
    ("src/explain/text/tests.rs", "f02_a_step_that_the_hpa_swallows"),
    ("tests/grpc/contract.rs", "f43_reconnecting_changes_no_answer"),
    ("src/source/engines/tests.rs", "f44_one_query_serves_all_namespaces_and_names"),
    ("src/source/scrape/tests.rs", "f45_a_target_that_keeps_failing_holds_no_sockets"),
    ("src/web/words/tests.rs", "f46_a_warm_minimum_says_that_it_is_one"),
];

/// Cases that cannot be decided yet, and what they wait for.
pub(crate) const WAITING: [(&str, &str); 9] = [
    ("f03_two_dampers_in_a_row_are_told_with_their_sum", "doctor, simulate"),
    ("f28_the_time_to_connect_is_not_the_time_to_retry", "the examples of request holders"),
    ("f32_a_cool_down_that_has_no_effect_is_told", "doctor"),
    ("f34_a_start_longer_than_the_slo_is_told_before_zero_is", "doctor, simulate"),
    ("f40_an_hpa_without_the_external_metric_is_told", "doctor"),
    ("f42_another_owner_of_the_external_metrics_api_is_told", "doctor"),
    ("f49_a_fallback_below_the_usual_count_is_told", "doctor, generate"),
    ("f69_a_sweep_finds_the_knee", "the load generator's sweep"),
    ("f72_a_batch_counts_against_its_deadline", "a signal that tells classes of requests apart"),
];

/// Every id of the five themes, 1 to 49 and 61 to 72, and those of the others that a decision alone
/// settles.
fn ids() -> impl Iterator<Item = u32> {
    (1..=49).chain(61..=72).chain([86, 89, 91])
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
    for name in names.iter().map(String::as_str).chain(ELSEWHERE.map(|(_, test)| test)) {
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
    for (file, test) in ELSEWHERE {
        let text = fs::read_to_string(root().join(file)).map_err(|error| error.to_string())?;
        if !text.contains(&format!("fn {test}(")) {
            return Err(format!("{file} has no test {test}"));
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
