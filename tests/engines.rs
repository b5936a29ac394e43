//! Every engine dialect of the simulator, over a real socket, read by the scaler: the numbers must
//! be those that the engine itself holds, and what an engine does not tell must stay unknown.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use ghostscaler::decision::{EngineSample, Moment, Why};
use ghostscaler::inventory::Endpoint;
use ghostscaler::signals::engine::{EnginePage, EngineReader, Filter, PageError};
use ghostscaler::source::scrape::{Options, Scraper, Target};
use ghostscaler::trigger::EngineFamily;
use loadgen::engine::{
    Engine, Gauges, Histogram, Metrics, PS_PER_S, Profile, Replica, ReplicaEvent, Request, Time,
    Watch,
};
use loadgen::exposition::{Dialect, Http, Rank, Server, render, with_underscores};
use loadgen::run::engines::Load;
use tokio::net::TcpListener;

/// Requests of each load, of which four run at once.
const REQUESTS: u64 = 30;

/// A tiny engine that has got so many requests, at the first moment at which `reached` holds.
fn engine(requests: u64, reached: fn(&Metrics) -> bool) -> Replica {
    let mut profile = Profile::load("tiny-cpu").unwrap();
    profile.limits.max_num_seqs = 4;
    let mut replica = Replica::warm(Arc::new(profile));
    for id in 0..requests {
        replica.submit(Request::new(id, 42, 200), Time::ZERO).unwrap();
    }
    while !reached(replica.engine().metrics()) {
        let next = replica.next_event().expect("the load gets there");
        replica.advance(next, Watch::FirstToken, &mut |_: ReplicaEvent| {});
    }
    replica
}

/// Some have ended, four run, and the others wait.
fn queued() -> Replica {
    engine(REQUESTS, |metrics| metrics.finished_length >= 9 && metrics.gauges.running == 4)
}

/// All have ended.
fn served() -> Replica {
    engine(REQUESTS, |metrics| metrics.finished_length == REQUESTS && metrics.gauges.running == 0)
}

fn page(dialect: &Dialect, replicas: &[Replica], change: impl FnOnce(&mut Server<'_>)) -> String {
    let ranks: Vec<Rank<'_>> = replicas.iter().map(Rank::of).collect();
    let http = Http::default();
    let mut server = Server::new("m", &ranks, &http);
    change(&mut server);
    let mut page = String::new();
    render(dialect, &server, &mut page);
    page
}

/// Serves the page where the dialect has it, and reads it there as the scaler does.
async fn read(dialect: &'static Dialect, page: String) -> Result<EnginePage, PageError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = move || async move { ([(CONTENT_TYPE, dialect.content_type)], page) };
    let router: Router = Router::new().route(dialect.paths[0], get(answer));
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let url = format!("http://{address}{}", dialect.paths[0]);
    let scraper = Scraper::new(Options::default()).unwrap();
    let target = Target::new(&Endpoint::Url(url.into()), None, None).unwrap();
    let body = scraper.open(&target).await.unwrap();
    let filter = Filter::default();
    let mut reader = EngineReader::new(&filter).with_format(body.format());
    let read = body.read::<Infallible>(|chunk| {
        reader.push(chunk).unwrap();
        ControlFlow::Continue(())
    });
    assert!(matches!(read.await, Ok(ControlFlow::Continue(_))));
    server.abort();
    reader.finish(Moment(0))
}

/// What a dialect tells, of what the engine holds.
#[derive(Clone, Copy)]
struct Tells {
    family: EngineFamily,
    /// Waiting that replicas do not cure, apart from the rest.
    deferred: bool,
    rejected: bool,
    preemptions: bool,
    steps: bool,
    /// Tokens as they are made, and prompts when they are read.
    live_tokens: bool,
    /// Prompt tokens: with what the cache held, without it, or not.
    net_prompts: bool,
    lengths: bool,
    finished: bool,
    kv_usage: bool,
    kv_tokens: bool,
    ttft: bool,
    /// The time between tokens, or of each request's mean token.
    itl: Option<fn(&Engine) -> &Histogram>,
    limit: bool,
    asleep: bool,
    started: bool,
}

const EACH_TOKEN: Option<fn(&Engine) -> &Histogram> =
    Some(|engine| &engine.metrics().inter_token_latency);
const EACH_REQUEST: Option<fn(&Engine) -> &Histogram> =
    Some(|engine| &engine.metrics().time_per_output_token);

const VLLM: Tells = Tells {
    family: EngineFamily::Vllm,
    deferred: true,
    rejected: true,
    preemptions: true,
    steps: true,
    live_tokens: true,
    net_prompts: true,
    lengths: true,
    finished: true,
    kv_usage: true,
    kv_tokens: true,
    ttft: true,
    itl: EACH_TOKEN,
    limit: false,
    asleep: true,
    started: true,
};

const OLD_VLLM: Tells =
    Tells { deferred: false, rejected: false, net_prompts: false, asleep: false, ..VLLM };

const OTHER: Tells = Tells {
    deferred: false,
    rejected: false,
    preemptions: false,
    steps: false,
    net_prompts: false,
    asleep: false,
    started: false,
    ..VLLM
};

fn tells(dialect: &Dialect) -> Tells {
    match dialect.name {
        "vllm-0.32" | "vllm-0.33" => VLLM,
        "vllm-0.20" => Tells { rejected: false, ..VLLM },
        "vllm-ray" => Tells { rejected: false, kv_tokens: false, started: false, ..VLLM },
        "vllm-0.11" | "vllm-0.9.2" | "vllm-0.9.1-v1" | "vllm-0.8" => OLD_VLLM,
        "vllm-0.9.1-v0" | "vllm-0.6" => Tells { started: false, ..OLD_VLLM },
        "sglang" => Tells {
            family: EngineFamily::Sglang,
            deferred: true,
            preemptions: true,
            net_prompts: true,
            ..OTHER
        },
        "tgi" => Tells {
            family: EngineFamily::Tgi,
            rejected: true,
            steps: true,
            live_tokens: false,
            ttft: false,
            itl: EACH_REQUEST,
            ..OTHER
        },
        "trtllm" => Tells {
            family: EngineFamily::Trtllm,
            live_tokens: false,
            net_prompts: true,
            itl: EACH_REQUEST,
            limit: true,
            ..OTHER
        },
        "triton" => Tells {
            family: EngineFamily::Triton,
            steps: true,
            live_tokens: false,
            itl: None,
            limit: true,
            ..OTHER
        },
        "llamacpp" => Tells {
            family: EngineFamily::LlamaCpp,
            steps: true,
            net_prompts: true,
            itl: Some(|engine| &engine.metrics().decode_time),
            lengths: false,
            finished: false,
            kv_usage: false,
            kv_tokens: false,
            ttft: false,
            ..OTHER
        },
        "lmdeploy" => {
            Tells { family: EngineFamily::LmDeploy, kv_tokens: false, started: true, ..OTHER }
        }
        "nim" => Tells {
            family: EngineFamily::Nim,
            kv_tokens: false,
            limit: true,
            started: true,
            ..OTHER
        },
        other => panic!("{other} has no expectation"),
    }
}

/// The share of the KV cache in use: 0.9.1 counted vLLM's null block as used.
fn kv_usage(dialect: &Dialect, gauges: &Gauges) -> f64 {
    match dialect.name {
        "vllm-0.9.1-v1" | "vllm-0.8" => {
            (gauges.kv_blocks_used + 1) as f64 / (gauges.kv_blocks_total + 1) as f64
        }
        _ => gauges.kv_usage(),
    }
}

/// The sample that the engine's own numbers make.
fn truth(dialect: &Dialect, replica: &Replica) -> EngineSample {
    let tells = tells(dialect);
    let engine = replica.engine();
    let (metrics, profile) = (engine.metrics(), engine.profile());
    let gauges = metrics.gauges;
    let count = |number: u64| number as f64;
    let some = |told: bool, number: f64| told.then_some(number);
    let seconds = |histogram: &Histogram| histogram.sum() as f64 / PS_PER_S as f64;
    // vLLM's null block is part of its cache's size.
    let blocks = match tells.family == EngineFamily::Vllm {
        true => profile.kv.blocks,
        false => gauges.kv_blocks_total,
    };
    let prompts = match (tells.live_tokens, tells.net_prompts) {
        (true, false) => count(metrics.prompt_tokens),
        (true, true) => count(metrics.prompt_tokens - metrics.prompt_tokens_cached),
        (false, false) => metrics.request_prompt_tokens.sum() as f64,
        (false, true) => metrics.request_computed_tokens.sum() as f64,
    };
    let all_prompts = match tells.family {
        EngineFamily::Vllm => Some(count(metrics.prompt_tokens)),
        EngineFamily::Trtllm => Some(metrics.request_prompt_tokens.sum() as f64),
        EngineFamily::Sglang
        | EngineFamily::Tgi
        | EngineFamily::Triton
        | EngineFamily::LlamaCpp
        | EngineFamily::LmDeploy
        | EngineFamily::Nim => None,
    };
    let ended = metrics.finished_stop + metrics.finished_length + metrics.finished_abort;
    EngineSample {
        at: Moment(0),
        waiting: Some(gauges.waiting as f64),
        waiting_deferred: some(tells.deferred, gauges.deferred as f64),
        running: Some(gauges.running as f64),
        kv_usage: some(tells.kv_usage, kv_usage(dialect, &gauges)),
        kv_tokens: some(tells.kv_tokens, (blocks * profile.kv.block_tokens) as f64),
        prompt_tokens: Some(prompts),
        all_prompt_tokens: all_prompts,
        generated_tokens: match dialect.name {
            // Of requests that have ended, and yet all that it tells of its throughput.
            "llamacpp" => Some(metrics.request_generation_tokens.sum() as f64),
            _ => some(tells.live_tokens, count(metrics.generation_tokens)),
        },
        finished: some(tells.finished, count(ended)),
        finished_generated_tokens: some(
            tells.lengths,
            metrics.request_generation_tokens.sum() as f64,
        ),
        rejected: some(tells.rejected, 0.0),
        preemptions: some(tells.preemptions, count(metrics.preemptions)),
        steps: some(tells.steps, count(metrics.iteration_tokens.count())),
        ttft_sum_s: some(tells.ttft, seconds(&metrics.time_to_first_token)),
        ttft_count: some(tells.ttft, count(metrics.time_to_first_token.count())),
        itl_sum_s: tells.itl.map(|of| seconds(of(engine))),
        itl_count: tells.itl.map(|of| match dialect.name {
            // Tokens, the first of each request too.
            "llamacpp" => metrics.request_generation_tokens.sum() as f64,
            _ => count(of(engine).count()),
        }),
        max_running: some(tells.limit, profile.limits.max_num_seqs as f64),
        asleep: tells.asleep.then_some(false),
        started_at: tells.started.then_some(Moment(1_700_000_000_000)),
        waiting_spread: None,
    }
}

/// Asserts that two samples are equal, but for the last digits of their numbers.
fn assert_same(name: &str, found: &EngineSample, expected: &EngineSample) {
    let numbers = |sample: &EngineSample| serde_json::to_value(sample).unwrap();
    let (found, expected) = (numbers(found), numbers(expected));
    let keys = |value: &serde_json::Value| {
        value.as_object().unwrap().keys().cloned().collect::<std::collections::BTreeSet<_>>()
    };
    for key in keys(&found).union(&keys(&expected)) {
        let (found, expected) = (&found[key], &expected[key]);
        let same = match (found.as_f64(), expected.as_f64()) {
            // llama.cpp writes six digits.
            (Some(found), Some(expected)) => (found - expected).abs() <= 1e-5 * expected.abs(),
            _ => found == expected,
        };
        assert!(same, "{name}: {key} is {found}, expected {expected}");
    }
}

fn started(server: &mut Server<'_>) {
    server.started_unix_s = 1.7e9;
}

#[tokio::test]
async fn every_dialect_under_a_queue_gives_the_engines_own_numbers() {
    let replica = [queued()];
    let gauges = replica[0].engine().metrics().gauges;
    assert!(gauges.running == 4 && gauges.waiting >= 10, "{gauges:?}");
    for dialect in Dialect::ALL {
        let read = read(dialect, page(dialect, &replica, started)).await.unwrap();
        assert_eq!(read.family, tells(dialect).family, "{}", dialect.name);
        assert_same(dialect.name, &read.sample, &truth(dialect, &replica[0]));
    }
}

#[tokio::test]
async fn every_dialect_after_its_load_is_a_true_zero_with_its_totals() {
    let replica = [served()];
    for dialect in Dialect::ALL {
        let read = read(dialect, page(dialect, &replica, started)).await.unwrap();
        assert_eq!((read.sample.waiting, read.sample.running), (Some(0.0), Some(0.0)));
        assert_same(dialect.name, &read.sample, &truth(dialect, &replica[0]));
    }
}

#[tokio::test]
async fn before_the_first_request_a_dialect_says_zero_or_nothing_and_never_a_guess() {
    let replica = [engine(0, |_| true)];
    for dialect in Dialect::ALL {
        let read = read(dialect, page(dialect, &replica, started)).await;
        let load = read.map(|read| (read.sample.waiting, read.sample.running));
        let expected = match dialect.name {
            // An empty page is no reading.
            "tgi" => Err(PageError::NoKnownSeries),
            // Nothing tells an idle server from one whose first request has not ended.
            "trtllm" => Ok((None, None)),
            _ => Ok((Some(0.0), Some(0.0))),
        };
        assert_eq!(load, expected, "{}", dialect.name);
    }
}

#[tokio::test]
async fn ranks_of_a_server_are_summed_in_every_dialect_that_tells_them_apart() {
    let replicas = [queued(), engine(12, |metrics| metrics.generation_tokens > 100)];
    let in_flight = |replica: &Replica| {
        let gauges = replica.engine().metrics().gauges;
        (gauges.waiting as f64, gauges.running as f64)
    };
    let ((waiting, running), (more_waiting, more_running)) =
        (in_flight(&replicas[0]), in_flight(&replicas[1]));
    let mut told = 0;
    for dialect in Dialect::ALL.into_iter().filter(|dialect| dialect.tells_ranks_apart()) {
        let read = read(dialect, page(dialect, &replicas, started)).await.unwrap();
        let load = (read.sample.waiting, read.sample.running);
        let expected = (Some(waiting + more_waiting), Some(running + more_running));
        assert_eq!(load, expected, "{}", dialect.name);
        assert_eq!(read.sample.waiting_spread, Some((waiting - more_waiting).abs()));
        // Of what each process repeats, the one that knows counts (vLLM 0.11.0).
        let usage = |replica: &Replica| kv_usage(dialect, &replica.engine().metrics().gauges);
        let most = usage(&replicas[0]).max(usage(&replicas[1]));
        assert!((read.sample.kv_usage.unwrap() - most).abs() < 1e-9, "{}", dialect.name);
        told += 1;
    }
    assert_eq!(told, 10);
}

#[tokio::test]
async fn without_statistics_or_under_another_name_no_dialect_is_an_idle_engine() {
    let replica = [queued()];
    for dialect in Dialect::ALL {
        let off = page(dialect, &replica, |server| server.log_stats = false);
        let error = read(dialect, off).await.unwrap_err();
        assert_eq!(error.why(), Why::NoKnownSeries, "{}", dialect.name);
        let renamed = page(dialect, &replica, |server| server.namespace = Some("fork_"));
        let error = read(dialect, renamed).await.unwrap_err();
        assert_eq!(error, PageError::NoKnownSeries, "{}", dialect.name);
    }
}

#[tokio::test]
async fn a_page_cut_off_anywhere_in_its_last_line_is_no_reading() {
    let replica = [queued()];
    for dialect in Dialect::ALL {
        let mut page = page(dialect, &replica, started);
        page.pop();
        let filter = Filter::default();
        let mut reader = EngineReader::new(&filter);
        reader.push(page.as_bytes()).unwrap();
        assert_eq!(reader.finish(Moment(0)).unwrap_err().why(), Why::BadBody, "{}", dialect.name);
    }
}

/// Pages that two readers of names once read otherwise.
const DISPUTED: [&str; 9] = [
    "sglang_num_running_reqs{tp_rank=\"0\"} 4\nsglang_num_queue_reqs{tp_rank=\"0\"} 5\n\
     sglang_num_grammar_queue_reqs{tp_rank=\"0\"} 7\n",
    "sglang:num_running_reqs{tp_rank=\"0\"} 4\nsglang:num_running_reqs{tp_rank=\"1\"} 4\n\
     sglang:num_queue_reqs{model_name=\"a,priority=\\\"1\\\"}\"} 5\n\
     sglang:num_queue_reqs{priority=\"1\"} 3\n",
    "lmdeploy:num_requests_running 1\nlmdeploy:num_requests_waiting 0\n\
     lmdeploy:num_api_requests_waiting 9\n",
    "tgi_queue_size 0\ntgi_batch_current_size 1\ntgi_batch_current_max_tokens 50\n\
     tgi_batch_total_tokens 100\n",
    "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n\
     vllm:kv_cache_usage_perc{pid=\"101\"} 0.9\nvllm:kv_cache_usage_perc{pid=\"102\"} 0.0\n\
     vllm:gpu_cache_usage_perc 0.2\n",
    "ray_vllm:num_requests_running{ReplicaId=\"a\"} 1\n\
     ray_vllm:num_requests_waiting{ReplicaId=\"a\"} 2\n\
     ray_vllm:num_requests_running{ReplicaId=\"b\"} 4\n\
     ray_vllm:num_requests_waiting{ReplicaId=\"b\"} 8\n",
    "vllm:num_requests_running{server=\"a\"} 1\nvllm:num_requests_waiting{server=\"a\"} 0\n\
     vllm:num_incoming_requests_total 5\n",
    "vllm:num_requests_running -1\nvllm:num_requests_waiting 0\n",
    "num_requests_running{model_name=\"m\"} 1\nnum_requests_waiting{model_name=\"m\"} 2\n\
     gpu_cache_usage_perc{model_name=\"m\"} 1.01\n",
];

/// `run --watch-engines` and the scaler read the same of every page: one table of names, and two
/// ways to put them together that come to the same.
#[test]
fn what_loadgen_watches_is_what_the_scaler_reads() {
    let replicas = [queued(), served()];
    let mut pages: Vec<(String, String)> = Vec::new();
    for dialect in Dialect::ALL {
        for (moment, replica) in ["queued", "served"].into_iter().zip(replicas.chunks(1)) {
            let page = page(dialect, replica, started);
            let underscores = with_underscores(&page).replace("# EOF\n", "");
            pages.push((format!("{} {moment}, underscores", dialect.name), underscores));
            pages.push((format!("{} {moment}", dialect.name), page));
        }
        if dialect.tells_ranks_apart() {
            pages.push((format!("{} of two", dialect.name), page(dialect, &replicas, started)));
        }
    }
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/loadgen/tests/data/pages");
    for file in std::fs::read_dir(kept).unwrap() {
        let path = file.unwrap().path();
        let is_page = path.extension().is_some_and(|extension| extension == "txt");
        let name = path.display().to_string();
        pages.extend(is_page.then(|| (name, std::fs::read_to_string(path).unwrap())));
    }
    pages.extend(DISPUTED.iter().map(|page| ((*page).to_owned(), (*page).to_owned())));
    let mut told = 0;
    for (name, page) in &pages {
        let filter = Filter::default();
        let mut reader = EngineReader::new(&filter);
        let read = reader.push(page.as_bytes()).and_then(|()| reader.finish(Moment(0)));
        let read = read.ok().and_then(|EnginePage { sample, .. }| {
            let waiting = sample.waiting? + sample.waiting_deferred.unwrap_or(0.0);
            Some((sample.running?, waiting, sample.kv_usage))
        });
        let watched = Load::read(page).map(|load| (load.running, load.waiting, load.kv_usage));
        // The scaler concludes from other series that an engine has not had a request yet.
        let is_idle = read.is_some_and(|(running, waiting, _)| running + waiting == 0.0);
        let is_concluded = watched.is_none() && is_idle;
        assert!(watched == read || is_concluded, "{name}: watched {watched:?}, read {read:?}");
        told += usize::from(watched.is_some());
    }
    assert!(told > 60, "{told} of {}", pages.len());
}
