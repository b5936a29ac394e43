//! Hygiene and layering of the source tree, checked as text: what the architecture page promises.

use std::fs;
use std::path::{Path, PathBuf};

/// One source file with its path below the crate root.
struct Source {
    path: String,
    text: String,
}

/// Where sources are.
const DIRS: [&str; 4] = ["src", "tests", "loadgen/src", "loadgen/tests"];

fn sources(dir: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pending: Vec<PathBuf> = vec![root.join(dir)];
    let mut found = Vec::new();
    while let Some(path) = pending.pop() {
        for entry in fs::read_dir(&path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.push(Source { path: below, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "no sources below {dir}");
    found
}

/// The code of a file without its comments, and without its tests, which may use anything.
fn code(source: &Source) -> String {
    // Only tests that stand in the file itself are its end: `mod tests;` is followed by code.
    let before_tests = source.text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    before_tests
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("fixtures.rs")
}

/// Names that may be used only below the given paths. A path stands for the file `path.rs` and
/// for everything in the folder `path/`.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("tonic", &["src/grpc", "src/pair", "src/conformance", "src/demo", "src/lib"]),
    ("kube::", &["src/cluster"]),
    ("k8s_openapi", &["src/cluster"]),
    ("reqwest", &["src/source", "src/explain", "src/config"]),
    (
        "hyper",
        &[
            "src/pair/follow",
            "src/source/client",
            "src/source/scrape",
            "src/source/prometheus",
            "src/web/serve",
        ],
    ),
    ("axum", &["src/web", "src/demo/pages"]),
    ("prometheus_client", &["src/metrics", "src/grpc/observe", "src/web"]),
    (
        "clap",
        &[
            "src/main",
            "src/args",
            "src/backtest",
            "src/conformance",
            "src/demo",
            "src/doctor",
            "src/explain",
            "src/generate",
            "src/replay",
            "src/simulate",
            "src/telemetry",
        ],
    ),
    ("anyhow", &["src/main", "src/app"]),
    ("std::env", &["src/args"]),
    ("SystemTime", &[]),
    ("Timestamp::now", &["src/clock"]),
];

/// Pure parts: what they may not name.
const PURE: &[&str] = &["src/decision", "src/hpa", "src/signals", "src/trigger", "src/schedule"];
const IMPURE: &[&str] = &[
    "tokio",
    "tracing",
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::io",
    "Instant",
    "reqwest",
    "crate::clock",
    "crate::source",
    "crate::registry",
    "crate::cluster",
    "rand::",
    "std::thread",
];
/// The core stands on itself and on how durations are written, which is text only.
const CORE_MAY: &[&str] = &["crate::decision", "crate::duration"];
/// The core stands on nothing else of the crate, and on nothing whose order could reach its output.
const CORE_NEVER: &[&str] = &["crate::", "HashMap", "HashSet"];

fn below(path: &str, part: &str) -> bool {
    path.strip_prefix(part).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

#[test]
fn crates_are_used_only_where_the_architecture_allows() {
    let mut faults = Vec::new();
    for source in sources("src").iter().filter(|source| !is_test(&source.path)) {
        let code = code(source);
        for (name, places) in ONLY_IN {
            if code.contains(name) && !places.iter().any(|place| below(&source.path, place)) {
                faults.push(format!("{} names {name}", source.path));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn pure_parts_do_no_io_and_read_no_clock() {
    let mut faults = Vec::new();
    for source in sources("src").iter().filter(|source| !is_test(&source.path)) {
        if !PURE.iter().any(|part| below(&source.path, part)) {
            continue;
        }
        let code = code(source);
        let core = below(&source.path, "src/decision");
        let code = CORE_MAY.iter().filter(|_| core).fold(code, |code, name| code.replace(name, ""));
        let banned = IMPURE.iter().chain(if core { CORE_NEVER } else { &[] });
        for name in banned {
            if code.contains(name) {
                faults.push(format!("{} names {name}", source.path));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn nothing_depends_on_the_wiring() {
    for source in sources("src") {
        if !below(&source.path, "src/main") {
            assert!(!code(&source).contains("crate::app"), "{} names crate::app", source.path);
        }
    }
}

#[test]
fn every_module_says_what_it_is() {
    for dir in DIRS {
        for source in sources(dir) {
            assert!(source.text.starts_with("//!"), "{} has no module docs", source.path);
        }
    }
}

#[test]
fn no_unfinished_code_and_no_module_files_named_mod() {
    for dir in DIRS {
        for source in sources(dir).iter().filter(|source| source.path != "tests/tidy.rs") {
            for mark in ["TODO", "FIXME", "XXX", "todo!(", "unimplemented!("] {
                assert!(!source.text.contains(mark), "{} has {mark}", source.path);
            }
            assert!(!source.path.ends_with("/mod.rs"), "{}", source.path);
        }
    }
}

#[test]
fn files_stay_short_enough_to_proofread() {
    // Style: 500 lines are the aim; what is beyond 700 has more than one reason to change.
    for dir in DIRS {
        for source in sources(dir) {
            let n_lines = source.text.lines().count();
            assert!(n_lines <= 700, "{} has {n_lines} lines", source.path);
        }
    }
}

/// The checklist of a conforming external scaler (KEDA's contract): its letters, and how many points
/// each has. The field's cases have numbers after an F as well, so that elsewhere than in `tests/grpc`
/// a point of F is named `keda_f10_…`. H is about StreamMetricSpec, which this scaler does not offer.
const CHECKLIST: [(char, u32); 7] =
    [('a', 17), ('b', 8), ('c', 5), ('d', 9), ('e', 8), ('f', 15), ('g', 6)];

#[test]
fn each_point_of_the_checklist_is_in_the_name_of_a_test() {
    let mut names = Vec::new();
    for dir in ["src", "tests"] {
        for source in sources(dir) {
            let is_other =
                ["tests/conformance/", "tests/field/"].iter().any(|at| source.path.starts_with(at));
            let is_grpc = source.path.starts_with("tests/grpc/");
            let mut is_test = false;
            for line in source.text.lines().map(str::trim_start).filter(|_| !is_other) {
                if line.starts_with("#[") {
                    // The attributes of one function; the client's checks have the same names and none.
                    is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
                    continue;
                }
                let function = line.trim_start_matches("async ").strip_prefix("fn ");
                if let Some(function) = function.filter(|_| is_test) {
                    names.push((is_grpc, function.split('(').next().unwrap_or("").to_owned()));
                }
                is_test &= line.starts_with("//");
            }
        }
    }
    let stands = |letter: char, n: u32| {
        names.iter().any(|(is_grpc, name)| {
            let (name, is_kedas) = match name.strip_prefix("keda_") {
                Some(name) => (name, true),
                None => (name.as_str(), *is_grpc || letter != 'f'),
            };
            is_kedas && name.split('_').take(3).any(|word| *word == format!("{letter}{n}"))
        })
    };
    let missing: Vec<String> = CHECKLIST
        .iter()
        .flat_map(|&(letter, n)| (1..=n).map(move |n| (letter, n)))
        .filter(|&(letter, n)| !stands(letter, n))
        .map(|(letter, n)| format!("{}{n}", letter.to_ascii_uppercase()))
        .collect();
    assert!(missing.is_empty(), "no test is named for {missing:?}");
}
