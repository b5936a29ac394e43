//! Rendered pages beside those captured from real servers, family by family.
//!
//! Names, order, help, types, label sets and buckets must be equal; so must every value that does
//! not depend on how fast the machine was. Pages of each version with a queue are in the repository;
//! the others lie outside it: where all of them are absent a test says so past the harness's capture
//! and passes, and where `GHOSTSCALER_FIXTURES` says that they are there, it fails.

use std::io::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use loadgen::engine::{Profile, Replica, ReplicaEvent, Request, Time, Watch};
use loadgen::exposition::{Dialect, Exchange, Http, Rank, Server, render};

/// Families whose values depend on time; of a histogram the count does not.
const TIMED: [&str; 16] = [
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:iteration_tokens_total",
    "vllm:lora_requests_info",
    "vllm:cache_config_info",
    "http_request_size_bytes",
    "http_response_size_bytes",
    "http_request_duration_seconds",
    "http_request_duration_highr_seconds",
];

/// How much of a page is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    /// All but those of [`TIMED`] families.
    All,
    /// These families, besides the structure.
    Of(&'static [&'static str]),
}

/// Gauges and counters that a load at a known point settles.
const QUEUE: Values = Values::Of(&[
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:prompt_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_params_n",
]);

#[derive(Debug, PartialEq, Eq)]
struct Family {
    name: String,
    help: String,
    kind: String,
    samples: Vec<(String, String)>,
}

fn families(page: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            let (name, help) = (name.to_owned(), help.to_owned());
            families.push(Family { name, help, kind: String::new(), samples: Vec::new() });
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let family = families.last_mut().unwrap();
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, family.name);
            kind.clone_into(&mut family.kind);
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            families.last_mut().unwrap().samples.push((series.to_owned(), value.to_owned()));
        }
    }
    families
}

fn captured(name: &str) -> Option<String> {
    let path = fixtures().join(name);
    match std::fs::read_to_string(&path) {
        Ok(page) => Some(page),
        Err(error) => {
            let line = format!("skipped: {} cannot be read ({error})", path.display());
            assert!(!is_given(), "{line}");
            // Not `eprintln`, which a passing test is not heard by.
            let mut heard = std::io::stderr();
            writeln!(heard, "{line}").unwrap();
            None
        }
    }
}

/// A page of the repository; `data/pages/capture.py` says of which server and under which load.
fn kept(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/pages").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Whether somebody has said where the pages are.
#[expect(clippy::disallowed_methods, reason = "a test has no flags to read the path from")]
fn is_given() -> bool {
    std::env::var("GHOSTSCALER_FIXTURES").is_ok()
}

fn fixtures() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "a test has no flags to read the path from")]
    let root = std::env::var("GHOSTSCALER_FIXTURES").map_or_else(
        |_unset| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures"),
        PathBuf::from,
    );
    root.join("vllm")
}

/// The captured server: a tiny model on a CPU, four requests at once.
fn server(change: impl FnOnce(&mut Profile)) -> Replica {
    let mut profile = Profile::load("tiny-cpu").unwrap();
    profile.limits.max_num_seqs = 4;
    profile.kv.blocks = 8_192;
    change(&mut profile);
    Replica::warm(Arc::new(profile))
}

/// A captured load: so many prompts of 42 tokens, but for some of 43, which are a number and
/// twenty times the same two words.
#[derive(Clone)]
struct Load {
    /// A request of two tokens that has been served before.
    warm_up: bool,
    count: u64,
    long: Range<u64>,
    output: u32,
}

impl Load {
    /// A server that has just got it.
    fn on(&self, mut replica: Replica) -> Replica {
        if self.warm_up {
            replica.submit(Request::new(u64::MAX, 2, self.output), Time::ZERO).unwrap();
            run_to_end(&mut replica);
        }
        let now = replica.engine().last_step_end();
        for id in 0..self.count {
            let prompt_tokens = if self.long.contains(&id) { 43 } else { 42 };
            replica.submit(Request::new(id, prompt_tokens, self.output), now).unwrap();
        }
        replica
    }

    /// When so many have finished, and those that run have made so many tokens each.
    fn queued(&self, finished: u64, tokens: u64) -> Replica {
        let mut replica = self.on(server(|_| {}));
        let all = finished * u64::from(self.output) + 4 * tokens;
        run_until(&mut replica, |replica| replica.engine().metrics().generation_tokens >= all);
        assert_eq!(replica.engine().metrics().finished_length, finished);
        replica
    }

    fn done(&self) -> Replica {
        let mut replica = self.on(server(|_| {}));
        run_to_end(&mut replica);
        replica
    }
}

/// The load of the pages of 0.32 with one API server.
const THIRTY: Load = Load { warm_up: true, count: 30, long: 11..29, output: 200 };

fn run_until(replica: &mut Replica, reached: impl Fn(&Replica) -> bool) {
    while !reached(replica) {
        let next = replica.next_event().expect("the load gets there");
        replica.advance(next, Watch::FirstToken, &mut |_: ReplicaEvent| {});
    }
}

fn run_to_end(replica: &mut Replica) {
    replica.advance(Time::MAX, Watch::FirstToken, &mut |_: ReplicaEvent| {});
}

/// Exchanges as the page says that they have been.
fn http_of(page: &str) -> Http {
    const HANDLERS: [&str; 3] = ["/v1/models", "/v1/completions", "/v1/chat/completions"];
    let mut http = Http::new(0.0);
    for family in families(page) {
        if family.name != "http_requests_total" {
            continue;
        }
        for (series, count) in family.samples {
            let exchange = Exchange {
                handler: HANDLERS
                    .into_iter()
                    .find(|h| series.contains(&format!("\"{h}\"")))
                    .unwrap(),
                method: if series.contains("GET") { "GET" } else { "POST" },
                status: if series.contains("2xx") { 200 } else { 503 },
                request_bytes: 0,
                response_bytes: 0,
                duration_s: 0.0,
                ended_unix_s: 0.0,
            };
            let exchanges: usize = count.strip_suffix(".0").unwrap().parse().unwrap();
            for _ in 0..exchanges {
                http.record(&exchange);
            }
        }
    }
    http
}

/// Compares the page of these replicas with a captured one.
fn check(
    fixture: &str,
    dialect: &Dialect,
    replicas: &[Replica],
    values: Values,
    change: impl FnOnce(&mut Server<'_>),
) {
    if let Some(captured) = captured(fixture) {
        compare(fixture, &captured, dialect, replicas, values, change);
    }
}

fn compare(
    fixture: &str,
    captured: &str,
    dialect: &Dialect,
    replicas: &[Replica],
    values: Values,
    change: impl FnOnce(&mut Server<'_>),
) {
    let http = http_of(captured);
    let ranks: Vec<Rank<'_>> = replicas.iter().map(Rank::of).collect();
    let mut server = Server::new("tiny-llama", &ranks, &http);
    change(&mut server);
    let mut page = String::new();
    render(dialect, &server, &mut page);
    let (mut expected, mut found) = (families(captured), families(&page));
    if !captured.contains("# HELP python_info") {
        // In multiprocess mode the order of the types, and of HTTP rows, is that in which files
        // happened to be read; within a type it is that of the code.
        for page in [&mut expected, &mut found] {
            page.sort_by_key(|family| {
                let is_http = family.name.starts_with("http_");
                (is_http, if is_http { family.name.clone() } else { family.kind.clone() })
            });
            page.iter_mut().filter(|f| f.name.starts_with("http_")).for_each(|f| f.samples.sort());
        }
    }
    let names = |page: &[Family]| page.iter().map(|f| f.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected), "{fixture}: families");
    for (found, expected) in found.iter().zip(&expected) {
        let name = &found.name;
        assert_eq!(found.help, expected.help, "{fixture}: help of {name}");
        assert_eq!(found.kind, expected.kind, "{fixture}: type of {name}");
        let keys = |family: &Family| {
            family.samples.iter().map(|(series, _)| shape(name, series)).collect::<Vec<_>>()
        };
        assert_eq!(keys(found), keys(expected), "{fixture}: series of {name}");
        // On CPUs the V0 engine says 0 while requests run.
        let is_left_out = dialect.name == "vllm-0.9.1-v0" && name == "vllm:gpu_cache_usage_perc";
        for ((series, found), (_, expected)) in found.samples.iter().zip(&expected.samples) {
            if is_settled(name, series, values) && !is_left_out {
                assert_eq!(found, expected, "{fixture}: {series}");
            }
        }
    }
}

/// A series as it must be; of the cache configuration, what a profile does not say is left out.
fn shape(family: &str, series: &str) -> String {
    if family != "vllm:cache_config_info" {
        return series.to_owned();
    }
    let unknown =
        ["kv_cache_memory_bytes=", "cpu_kvcache_space_bytes=", "num_gpu_blocks_override="];
    let labels = series
        .split(',')
        .map(|label| unknown.into_iter().find(|name| label.starts_with(name)).unwrap_or(label));
    labels.collect::<Vec<_>>().join(",")
}

fn is_settled(family: &str, series: &str, values: Values) -> bool {
    let base = family.strip_suffix("_created").unwrap_or(family);
    if family.ends_with("_created")
        || family.starts_with("python_")
        || family.starts_with("process_")
    {
        return false;
    }
    match values {
        Values::Of(names) => names.contains(&family),
        Values::All if TIMED.contains(&base) => {
            series.contains("_count") && family != "vllm:iteration_tokens_total"
        }
        Values::All => true,
    }
}

#[test]
fn vllm_0_32_idle() {
    check("metrics-idle.txt", &Dialect::VLLM_0_32, &[server(|_| {})], Values::All, |_| {});
}

#[test]
fn vllm_0_32_queued() {
    check("metrics-queued.txt", &Dialect::VLLM_0_32, &[THIRTY.queued(9, 113)], QUEUE, |_| {});
}

#[test]
fn vllm_0_32_after() {
    check("metrics-after.txt", &Dialect::VLLM_0_32, &[THIRTY.done()], Values::All, |_| {});
}

#[test]
fn vllm_0_32_after_admission_rejections() {
    let rejections = Values::Of(&["vllm:admission_rejections_total", "vllm:num_requests_running"]);
    let replicas = [THIRTY.done()];
    check("metrics-after-admission.txt", &Dialect::VLLM_0_32, &replicas, rejections, |server| {
        server.rejections = 18;
    });
}

#[test]
fn vllm_0_32_without_log_stats() {
    let replicas = [server(|_| {})];
    let dialect = &Dialect::VLLM_0_32;
    check("metrics-disable-log-stats.txt", dialect, &replicas, Values::All, |server| {
        server.log_stats = false;
    });
}

#[test]
fn vllm_0_32_under_kv_pressure() {
    let load = Load { warm_up: false, count: 24, long: 0..0, output: 1_500 };
    let mut replica = load.on(server(|profile| {
        profile.kv.blocks = 34;
        profile.limits.max_num_seqs = 8;
    }));
    // A preemption frees its blocks: the captured moment is one at which they are taken again.
    run_until(&mut replica, |replica| {
        let metrics = replica.engine().metrics();
        metrics.preemptions >= 5 && metrics.gauges.kv_usage() > 0.8
    });
    let gauges = replica.engine().metrics().gauges;
    assert!(gauges.running < 8 && gauges.waiting > 12, "no room in spite of places: {gauges:?}");
    let values = Values::Of(&["vllm:num_preemptions_total"]);
    check("metrics-kvpressure.txt", &Dialect::VLLM_0_32, &[replica], values, |_| {});
}

#[test]
fn vllm_0_32_two_api_servers() {
    let dialect = &Dialect::VLLM_0_32;
    let multiprocess = |server: &mut Server<'_>| server.multiprocess = true;
    check("metrics-asc2-idle.txt", dialect, &[server(|_| {})], Values::All, multiprocess);

    let load = Load { warm_up: false, count: 12, long: 11..12, output: 300 };
    check("metrics-asc2-queued.txt", dialect, &[load.queued(0, 242)], QUEUE, multiprocess);
    check("metrics-asc2-after.txt", dialect, &[load.done()], Values::All, multiprocess);
}

#[test]
fn vllm_0_32_two_data_parallel_engines() {
    let dialect = &Dialect::VLLM_0_32;
    let idle = [server(|_| {}), server(|_| {})];
    check("metrics-dp2-idle.txt", dialect, &idle, Values::All, |_| {});

    let load = Load { warm_up: false, count: 20, long: 6..20, output: 600 };
    let queued = [load.queued(0, 100), load.queued(0, 100)];
    let gauges = Values::Of(&["vllm:num_requests_running", "vllm:num_requests_waiting"]);
    check("metrics-dp2-queued.txt", dialect, &queued, gauges, |_| {});
    check("metrics-dp2-after.txt", dialect, &[load.done(), load.done()], Values::All, |_| {});
}

#[test]
fn vllm_0_9_1_with_the_v1_engine() {
    let dialect = &Dialect::VLLM_0_9_1_V1;
    check("metrics-0.9.1-v1-idle.txt", dialect, &[server(|_| {})], Values::All, |_| {});
    let load = Load { warm_up: false, long: 12..30, ..THIRTY };
    check("metrics-0.9.1-v1-queued.txt", dialect, &[load.queued(16, 59)], QUEUE, |_| {});
    check("metrics-0.9.1-v1-after.txt", dialect, &[load.done()], Values::All, |_| {});
}

#[test]
fn vllm_0_9_1_with_the_v0_engine() {
    let dialect = &Dialect::VLLM_0_9_1_V0;
    check("metrics-0.9.1-v0-idle.txt", dialect, &[server(|_| {})], Values::All, |_| {});
    let load = Load { warm_up: false, ..THIRTY };
    check("metrics-0.9.1-v0-queued.txt", dialect, &[load.queued(8, 154)], QUEUE, |_| {});
    check("metrics-0.9.1-v0-after.txt", dialect, &[load.done()], Values::All, |_| {});
}

#[test]
fn vllm_0_20_and_0_11() {
    // So many tokens each of the four has made when the page was taken.
    for (dialect, tokens) in [(&Dialect::VLLM_0_20, 191), (&Dialect::VLLM_0_11, 6)] {
        let check = |moment: &str, replica: Replica, values| {
            let name = format!("vllm-{}-{moment}.txt", dialect.version);
            compare(&name, &kept(&name), dialect, &[replica], values, |_| {});
        };
        let load = Load { warm_up: false, long: 0..0, ..THIRTY };
        check("idle", server(|_| {}), Values::All);
        check("queued", load.queued(4, tokens), QUEUE);
        check("after", load.done(), Values::All);
    }
}

/// The same pages as above, from the repository.
#[test]
fn vllm_0_32_and_0_9_1_with_a_queue_wherever_this_runs() {
    let v1 = Load { warm_up: false, long: 12..30, ..THIRTY };
    let v0 = Load { warm_up: false, ..THIRTY };
    for (name, dialect, queued) in [
        ("vllm-0.32.0-queued.txt", &Dialect::VLLM_0_32, THIRTY.queued(9, 113)),
        ("vllm-0.9.1-v1-queued.txt", &Dialect::VLLM_0_9_1_V1, v1.queued(16, 59)),
        ("vllm-0.9.1-v0-queued.txt", &Dialect::VLLM_0_9_1_V0, v0.queued(8, 154)),
    ] {
        compare(name, &kept(name), dialect, &[queued], QUEUE, |_| {});
    }
}

#[test]
fn llama_cpp() {
    let dialect = &Dialect::LLAMA_CPP;
    let check = |moment: &str, replica: Replica, values| {
        let name = format!("llamacpp-{moment}.txt");
        compare(&name, &kept(&name), dialect, &[replica], values, |_| {});
    };
    // Not what it took.
    const SETTLED: Values = Values::Of(&[
        "llamacpp:prompt_tokens_total",
        "llamacpp:prompt_tokens_cached_total",
        "llamacpp:tokens_predicted_total",
        "llamacpp:n_tokens_max",
        "llamacpp:spec_decode_num_drafts_total",
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
    ]);
    let load = Load { warm_up: false, count: 30, long: 0..0, output: 200 };
    check("idle", server(|_| {}), Values::All);
    check("queued", load.queued(12, 60), SETTLED);
    check("after", load.done(), SETTLED);
}

/// Checks that each family that is shown is on the page that the engine's own code makes, which has
/// more. Where that page has no samples, each series has these labels beside its own.
fn check_part_of(own: &str, dialect: &Dialect, labels: &[&str]) {
    let (replica, http) = (server(|_| {}), Http::new(0.0));
    let ranks = [Rank::of(&replica)];
    let mut page = String::new();
    render(dialect, &Server::new("tiny-llama", &ranks, &http), &mut page);
    let own = families(&kept(own));
    let prefix = format!("{}:", dialect.name);
    // Its HTTP layer's, which is not part of the metrics code that wrote the page.
    let is_own = |family: &Family| {
        family.name.starts_with(&prefix) && family.name != "sglang:http_requests_total"
    };
    let shown: Vec<Family> = families(&page).into_iter().filter(is_own).collect();
    assert!(shown.len() > 14, "{}", shown.len());
    let series = |family: &Family| -> Vec<String> {
        family.samples.iter().map(|(series, _)| series.clone()).collect()
    };
    for family in &shown {
        let found = own.iter().find(|own| own.name == family.name);
        let own = found.unwrap_or_else(|| panic!("no {}", family.name));
        assert_eq!((&family.help, &family.kind), (&own.help, &own.kind), "{}", family.name);
        let (series, known) = (series(family), series(own));
        // The bounds of a histogram are the simulated engine's.
        let mut bare = series.iter().filter(|series| !series.contains("_bucket{"));
        let is_labelled = |series: &String| {
            let named = |label: &&str| series.contains(&format!("{label}=\""));
            let own = ["le", "mode"].iter().filter(|label| named(label)).count();
            labels.iter().all(named) && series.matches("=\"").count() == labels.len() + own
        };
        match labels {
            [] => {
                assert!(bare.all(|series| known.contains(series)), "{}: {series:#?}", family.name)
            }
            _ => assert!(series.iter().all(is_labelled), "{}: {series:#?}", family.name),
        }
    }
}

#[test]
fn what_is_shown_of_lmdeploy_and_sglang_is_on_their_own_pages() {
    check_part_of("lmdeploy-0.18.0-idle.txt", &Dialect::LMDEPLOY, &[]);
    // The labels of the scheduler's own collector, by SGLang's source.
    let labels = ["model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank", "dp_rank"];
    check_part_of("sglang-0.5.23-heads.txt", &Dialect::SGLANG, &labels);
}

/// What Triton itself counts; what its TensorRT-LLM backend adds needs a GPU.
#[test]
fn what_is_shown_of_triton_itself_is_on_its_own_page() {
    let (replica, http) = (server(|_| {}), Http::new(0.0));
    let ranks = [Rank::of(&replica)];
    let mut page = String::new();
    render(&Dialect::TRITON, &Server::new("tiny-llama", &ranks, &http), &mut page);
    let own = families(&kept("triton-2.51.0-queued.txt"));
    for name in ["nv_inference_request_success", "nv_inference_pending_request_count"] {
        let of = |families: &[Family]| -> (String, String, Vec<String>) {
            let family = families.iter().find(|family| family.name == name).unwrap();
            let series = family.samples.iter().map(|(series, _)| series.clone()).collect();
            (family.help.clone(), family.kind.clone(), series)
        };
        let (shown, own) = (of(&families(&page)), of(&own));
        assert_eq!((shown.0, shown.1), (own.0, own.1), "{name}");
        assert!(
            !shown.2.is_empty() && shown.2.iter().all(|series| own.2.contains(series)),
            "{name}"
        );
    }
}

#[test]
fn every_captured_page_of_these_versions_has_its_test() {
    let Some(_present) = captured("metrics-idle.txt") else {
        return;
    };
    let source = include_str!("golden.rs");
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with("metrics-") && name.ends_with(".txt") {
            assert!(source.contains(&format!("\"{name}\"")), "{name} has no test");
        }
    }
}
