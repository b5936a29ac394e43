//! What the documents show against the code: tables, examples, commands, the architecture page.
//!
//! Must not judge prose. A failing test says what to paste, or what is missing where.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Arg, CommandFactory as _, Parser as _};
use ghostscaler::args::Args;
use ghostscaler::clock::Clock;
use ghostscaler::decision::Rule;
use ghostscaler::grpc::observe::RpcMetrics;
use ghostscaler::proto::ScaledObjectRef;
use ghostscaler::proto::external_scaler_client::ExternalScalerClient;
use ghostscaler::registry::{Limits, Registry};
use ghostscaler::signals::engine::About;
use ghostscaler::trigger::EngineFamily;
use ghostscaler::{cluster, config, grpc, metrics, trigger};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

const SCALED_OBJECT: &str = "manifests/examples/scaledobject.yaml";
const LOCAL_EXAMPLE: &str = "manifests/local/example.yaml";

#[test]
fn the_table_of_trigger_metadata_is_the_parsers() {
    let rows = trigger::FIELDS.iter().map(|field| {
        let key = format!("`{}`", field.key);
        [key, field.expected(), field.default.to_owned(), field.doc.to_owned()]
    });
    check_table("Trigger metadata", "key | value | default | what it does", rows);
}

#[test]
fn the_table_of_engines_is_what_is_read_of_them() {
    let rows = About::ALL.iter().map(|about| {
        let named = EngineFamily::NAMED.iter().find(|(_, family)| *family == about.family);
        let reads = about.reads();
        let first = |signal| {
            let names = reads.iter().find(|(known, _)| *known == signal)?.1.first()?;
            let spans: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            Some(format!("{signal} {}", spans.join(" + ")))
        };
        let series = ["waiting", "running", "KV use"].into_iter().filter_map(first);
        [
            format!("`{}`", named.unwrap().0),
            about.engine.to_owned(),
            about.known(),
            about.page.to_owned(),
            series.collect::<Vec<_>>().join(", "),
            about.without.to_owned(),
        ]
    });
    let head = "`engine` | engine | names from | page | read from, first of all | done without";
    check_table("Engines that are read", head, rows);
}

#[test]
fn the_table_of_flags_is_the_command_lines() {
    let args = Args::command();
    let serve = args.find_subcommand("serve").unwrap();
    let rows = serve.get_arguments().filter(|arg| !arg.is_hide_set()).map(flag_row);
    check_table("Flags of `serve`", "flag | default | what it does", rows);
}

#[test]
fn the_table_of_permissions_is_what_the_cluster_part_needs() {
    let rows = cluster::RBAC.iter().chain(cluster::OWN_RBAC).map(|permission| {
        let group = if permission.api_group.is_empty() { "\"\"" } else { permission.api_group };
        let resource = format!("`{}`", permission.resource);
        [format!("`{group}`"), resource, permission.verbs.join(", ")]
    });
    check_table("Permissions and access", "API group | resource | verbs", rows);
}

#[tokio::test]
async fn the_table_of_metrics_is_the_pages() {
    let described = metrics::described().map(|family| {
        let (name, labels) = (format!("`{}`", family.name), family.labels.join(", "));
        [name, family.kind.to_owned(), labels, family.help.to_owned()]
    });
    let rows = described.chain(grpc_families().await);
    check_table("Metrics", "metric | kind | labels | what it says", rows);
}

#[test]
fn the_table_of_rules_has_each_rule_in_order() {
    let labels: Vec<String> = Rule::ALL.iter().map(|rule| format!("`{}`", rule.label())).collect();
    let found = first_cells("How a decision is made");
    assert_eq!(
        found, labels,
        "README.md, How a decision is made: the first column is the left one"
    );
}

#[test]
fn the_table_of_configuration_keys_has_each_field() {
    let mut known = BTreeSet::new();
    for (functions, prefix) in [
        (&["config"][..], ""),
        (&["dcgm"], "dcgm."),
        (&["workload"], "workloads[]."),
        (&["prometheus", "matchers"], "prometheus[]."),
        (&["wake_source", "matchers"], "wakeSources[]."),
    ] {
        let keys = functions.iter().flat_map(|function| keys(function));
        known.extend(keys.map(|key| format!("`{prefix}{key}`")));
    }
    // These are tables of their own.
    for parent in ["`prometheus`", "`wakeSources`", "`dcgm`", "`workloads`"] {
        assert!(known.remove(parent), "src/config/read.rs no longer has the key {parent}");
    }
    check_set("Configuration file", &known);
}

#[test]
fn the_table_of_paths_is_the_routers() {
    let web = read("src/web.rs");
    let routes = web.split(".route(\"").skip(1).map(|route| {
        let (path, rest) = route.split_once("\", ").unwrap();
        let method = rest.split('(').next().unwrap().to_ascii_uppercase();
        format!("`{method} {path}`")
    });
    check_set("HTTP API", &routes.collect());
}

#[test]
fn the_scaled_object_is_the_manifest_and_lets_each_decision_through() {
    let manifest = read(SCALED_OBJECT);
    let shown = block("With KEDA", "yaml");
    assert!(shown == manifest, "README.md, With KEDA: paste the whole of {SCALED_OBJECT}");

    let object: Value = serde_saphyr::from_str(&manifest).unwrap();
    crate::manifests::check_scaled_object(SCALED_OBJECT, &object);
}

#[test]
fn the_examples_of_a_configuration_are_accepted() {
    let local = config::parse(&read(LOCAL_EXAMPLE)).unwrap();
    assert!(!local.inventory.workloads.is_empty());
    let shown = config::parse(&block("Configuration file", "yaml")).unwrap();
    assert!(!shown.prometheus.is_empty() && !shown.wake_sources.is_empty() && shown.dcgm.is_some());
}

#[test]
fn commands_that_are_shown_can_be_given() {
    let readme = read("README.md");
    let in_blocks = blocks(&readme, "sh").join("\n").replace("\\\n", "");
    let example = read(LOCAL_EXAMPLE);
    let in_example = example
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .map(str::trim)
        .filter(|line| line.starts_with("cargo"));
    let mut n_commands = 0;
    let in_blocks = in_blocks.lines().filter(|line| !line.is_empty());
    for line in in_blocks.chain(in_example) {
        check_command(line);
        n_commands += 1;
    }
    assert!(n_commands >= 5, "README.md shows no commands in ```sh blocks any more");
}

#[test]
fn lines_of_the_readme_fit_120_columns_outside_of_tables() {
    for line in read("README.md").lines().filter(|line| !line.starts_with('|')) {
        assert!(line.chars().count() <= 120, "{line}");
    }
}

#[test]
fn every_help_fits_80_columns() {
    for mut args in [Args::command(), loadgen::args::Args::command()] {
        args.build();
        for command in args.get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
        }
    }
}

#[test]
fn flags_and_benches_that_are_named_exist() {
    let args = Args::command();
    let manifest = read("Cargo.toml") + &read("loadgen/Cargo.toml");
    let all: BTreeSet<&str> = args
        .get_subcommands()
        .flat_map(|command| command.get_arguments())
        .filter_map(Arg::get_long)
        .collect();
    for span in code_spans(&read("README.md")) {
        // Variables may stand before the command.
        let is_variable =
            |word: &&str| word.starts_with(|c: char| c.is_ascii_uppercase()) && word.contains('=');
        let first = span.split_whitespace().find(|word| !is_variable(word)).unwrap_or_default();
        if first == "cargo" {
            if let Some((_, bench)) = span.split_once(" --bench ") {
                let listed = manifest.contains(&format!("[[bench]]\nname = \"{bench}\""));
                assert!(listed, "README.md: `{span}` names a bench that Cargo.toml does not have");
            }
            continue;
        }
        // A script of the tests has flags of its own.
        if first.starts_with("tests/") || first.starts_with("loadgen/tests/") {
            continue;
        }
        let command = args.find_subcommand(first);
        for flag in span.split_whitespace().filter_map(|word| word.strip_prefix("--")) {
            let known = match command {
                Some(command) => command.get_arguments().any(|arg| arg.get_long() == Some(flag)),
                None => all.contains(flag),
            };
            assert!(known, "README.md: `{span}` names --{flag}, which does not exist");
        }
    }
}

#[test]
fn the_architecture_page_has_a_row_for_each_module() {
    let text = read("src/lib.rs");
    let modules: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("pub use loadgen::"))
        })
        .filter_map(|rest| rest.split([';', ' ']).next())
        .collect();
    let rows: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("//! | ["))
        .filter_map(|row| row.split(" | ").next())
        .flat_map(|cell| cell.split(", "))
        .map(|name| name.trim_matches(['[', ']', '`']))
        .collect();
    assert_eq!(rows, modules, "src/lib.rs: the rows of the module table, and the modules");
}

/// One row of the flags' table.
fn flag_row(arg: &Arg) -> [String; 3] {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    // A default that depends on something else stands in the help's own words.
    let (help, told) = match help.split_once(" [default: ") {
        Some((help, told)) => (help.to_owned(), told.trim_end_matches(']').to_owned()),
        None => (help, String::new()),
    };
    let fixed: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let words: Vec<_> =
        arg.get_possible_values().iter().map(|word| word.get_name().to_owned()).collect();
    let value = match arg.get_value_names() {
        Some(names) if words.is_empty() => names.join(" "),
        Some(_) | None => words.join("|"),
    };
    let env = arg.get_env().map(|name| format!(", `${}`", name.to_string_lossy()));
    let (name, env) = (arg.get_long().unwrap(), env.unwrap_or_default());
    if !arg.get_action().takes_values() {
        return [format!("`--{name}`{env}"), "off".to_owned(), format!("{help}.")];
    }
    let flag = format!("`--{name} {value}`{env}");
    [flag, if fixed.is_empty() { told } else { fixed.join(",") }, format!("{help}.")]
}

/// The families that the gRPC part registers, as rows, after one call has been counted.
async fn grpc_families() -> Vec<[String; 4]> {
    let counted = RpcMetrics::default();
    // There only with TLS.
    counted.tls_served(Some(0));
    let registry = Registry::new(Limits::default(), Clock::start());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let options = grpc::Options { drain_delay: Duration::ZERO, ..grpc::Options::default() };
    let stop = CancellationToken::new();
    let server = grpc::spawn(listener, registry, counted.clone(), options, stop.clone()).unwrap();
    let url = format!("http://{}", server.address);
    let mut client = ExternalScalerClient::connect(url).await.unwrap();
    client.get_metric_spec(ScaledObjectRef::default()).await.unwrap();
    drop(client);
    stop.cancel();
    server.finished().await.unwrap();

    let mut families = prometheus_client::registry::Registry::with_prefix("ghostscaler");
    counted.register(&mut families);
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &families).unwrap();
    page.split("# HELP ").skip(1).map(grpc_row).collect()
}

/// One row of one family of an OpenMetrics page, from its help on.
fn grpc_row(family: &str) -> [String; 4] {
    let (first, rest) = family.split_once('\n').unwrap();
    let (name, help) = first.split_once(' ').unwrap();
    let sample = rest.lines().find(|line| !line.starts_with('#')).unwrap();
    let kind = rest.lines().find_map(|line| line.strip_prefix("# TYPE ")).unwrap();
    let kind = kind.split(' ').nth(1).unwrap();
    let total = if kind == "counter" { "_total" } else { "" };
    let labels = sample.split_once('{').map_or("", |(_, labels)| labels.split('}').next().unwrap());
    let labels: Vec<&str> = labels
        .split(',')
        .filter_map(|label| label.split('=').next())
        .filter(|label| !label.is_empty() && *label != "le")
        .collect();
    let help = help.trim_end_matches('.').to_owned();
    [format!("`{name}{total}`"), kind.to_owned(), labels.join(", "), help]
}

/// The keys that a function of `config/read.rs` takes from its entry.
fn keys(function: &str) -> Vec<String> {
    let text = read("src/config/read.rs");
    let (_, body) = text.split_once(&format!("fn {function}(")).unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let body: String = body.split_whitespace().collect();
    // `entry.text("key", …)` and `count(&mut entry, "key", …)`.
    let ways = ["take(\"", "text(\"", "needed(\"", "list(\"", ",\""];
    let taken = |call: &str| {
        let rest = ways.iter().find_map(|way| call.strip_prefix(way))?;
        rest.split('"').next().map(str::to_owned)
    };
    let calls = body.split("entry.").chain(body.split("&mutentry"));
    let keys: Vec<String> = calls.filter_map(taken).collect();
    assert!(!keys.is_empty(), "src/config/read.rs: no keys in {function}");
    keys
}

/// Checks one line of a shell: the programs' own by their parsers, a script by its text.
fn check_command(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let taken = |program: &'static str, rest: &[&str]| {
        let words = [program].into_iter().chain(rest.iter().copied()).map(str::to_owned);
        let refused = match program {
            "loadgen" => loadgen::args::Args::try_parse_from(words).err(),
            _ => Args::try_parse_from(words).err(),
        };
        if let Some(error) = refused {
            panic!("`{line}` is shown and refused: {error}");
        }
    };
    match words.as_slice() {
        ["cargo", "run", "--release", "--", rest @ ..] | ["ghostscaler", rest @ ..] => {
            taken("ghostscaler", rest);
        }
        ["cargo", "run", "--release", "-p", "loadgen", "--", rest @ ..] => taken("loadgen", rest),
        [script, rest @ ..] if root().join(script).is_file() => {
            let text = read(script);
            for flag in rest.iter().filter(|word| word.starts_with("--")) {
                assert!(text.contains(&format!("\"{flag}\"")), "`{line}`: {script} has no {flag}");
            }
        }
        _ => panic!("`{line}` is shown, and is neither this program nor a script that exists"),
    }
}

/// Compares the table of a section of the README; what differs is told whole.
fn check_table<const N: usize>(
    title: &str,
    head: &str,
    rows: impl IntoIterator<Item = [String; N]>,
) {
    let mut expected = format!("| {head} |\n|{}\n", "---|".repeat(N));
    for cells in rows {
        let row = cells.map(|cell| cell.replace('|', r"\|")).join(" | ");
        writeln!(expected, "| {row} |").unwrap();
    }
    // An empty cell is written as one space.
    let expected = expected.replace("|  |", "| |");
    let found = table(title);
    assert!(
        found == expected,
        "README.md, section {title:?}: the table differs from the code. Paste this:\n\n{expected}"
    );
}

fn check_set(title: &str, known: &BTreeSet<String>) {
    let found: BTreeSet<String> = first_cells(title).into_iter().collect();
    let missing: Vec<_> = known.difference(&found).collect();
    let unknown: Vec<_> = found.difference(known).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "README.md, section {title:?}: rows to add: {missing:?}; rows of nothing: {unknown:?}"
    );
}

fn first_cells(title: &str) -> Vec<String> {
    let table = table(title);
    let rows = table.lines().skip(2);
    rows.filter_map(|row| row.split('|').nth(1)).map(|cell| cell.trim().to_owned()).collect()
}

fn table(title: &str) -> String {
    let section = section(title);
    let lines = section.lines().filter(|line| line.starts_with('|'));
    lines.fold(String::new(), |table, line| table + line + "\n")
}

fn section(title: &str) -> String {
    let readme = read("README.md");
    let Some((_, rest)) = readme.split_once(&format!("\n## {title}\n")) else {
        panic!("README.md has no section {title:?}");
    };
    rest.split("\n## ").next().unwrap().to_owned()
}

/// The first block of a section in a language.
fn block(title: &str, language: &str) -> String {
    let found = blocks(&section(title), language).into_iter().next();
    found.unwrap_or_else(|| panic!("README.md, section {title:?}: no ```{language} block"))
}

fn blocks(text: &str, language: &str) -> Vec<String> {
    let open = format!("```{language}\n");
    let bodies = text.split(&open).skip(1);
    bodies.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// What stands between single backticks outside of blocks.
fn code_spans(text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|prose| prose.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
