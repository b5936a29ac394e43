//! `loadgen dcgm` as a process: its flags, its pages, its end; and an engine that it reads.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::get;
use loadgen::dcgm::{self, Fleet};
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Duration, Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(60);

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
    command.args(args).stdin(Stdio::null());
    command
}

fn file(text: &str) -> NamedTempFile {
    let file = NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), text).expect("it can be written");
    file
}

fn run(args: &[&str]) -> Output {
    program(args).output().expect("the program starts")
}

/// A process that is killed with its value.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Status line and body of a GET.
async fn fetch(address: &str, path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.lines().next()?.to_owned(), body.to_owned()))
}

fn value(page: &str, metric: &str) -> Option<f64> {
    let row =
        page.lines().find(|line| line.strip_prefix(metric).is_some_and(|r| r.starts_with('{')));
    row?.rsplit_once(' ')?.1.parse().ok()
}

async fn until<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(Instant::now() < end, "{what} has not come");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_fleet_is_served_a_page_for_each_node_until_sigterm() {
    let fleet = file(
        "style: {interval: 1s}\nnodes:\n\
         - {name: n1, gpus: [{model: t4, count: 2, pods: [{load: {busy: 0.3}}]}]}\n\
         - {name: n2, gpus: [{model: l4}]}\n",
    );
    let path = fleet.path().to_str().expect("a path in UTF-8");
    let mut command = program(&["dcgm", "--config", path, "--listen", "127.0.0.1:0"]);
    let child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut child = Owned(child);
    let stdout = child.0.stdout.take().expect("it is piped");
    let lines: Vec<String> = tokio::task::spawn_blocking(move || {
        BufReader::new(stdout).lines().take(2).map_while(Result::ok).collect()
    })
    .await
    .expect("it is read");
    let address = |line: &String| {
        let (_, rest) = line.split_once(" http://").expect("node and address");
        rest.trim_end_matches("/metrics").to_owned()
    };
    assert!(lines[0].starts_with("n1 ") && lines[1].starts_with("n2 "), "{lines:?}");
    let [first, second] = [address(&lines[0]), address(&lines[1])];
    let (status, page) = fetch(&second, "/metrics").await.expect("it answers");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert_eq!(value(&page, "DCGM_FI_DEV_FB_USED"), Some(0.0));
    assert_eq!(fetch(&second, "/health").await.map(|(_, body)| body), Some("OK".to_owned()));
    let page = until("a second of work", async || {
        let (_, page) = fetch(&first, "/metrics").await?;
        (value(&page, "DCGM_FI_DEV_GPU_UTIL")? > 0.0).then_some(page)
    });
    let page = page.await;
    assert_eq!(value(&page, "DCGM_FI_DEV_GPU_UTIL"), Some(30.0));
    assert_eq!(page.matches("\nDCGM_FI_DEV_GPU_UTIL{").count(), 2);

    let pid = child.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    let ended = until("its end", async || child.0.try_wait().expect("it can be asked"));
    assert_eq!(ended.await.code(), Some(0));
}

#[tokio::test]
async fn gpus_are_as_busy_as_the_engine_that_is_read() {
    // 40 steps a second of 12.5 ms, with one token of 0.067 ms each: 0.503 of the time.
    let began = Instant::now();
    let show = move || {
        let steps = (40.0 * began.elapsed().as_secs_f64()).floor();
        let mut page = String::new();
        for (name, value) in [
            ("iteration_tokens_total_count", steps),
            ("prompt_tokens_total", 0.0),
            ("generation_tokens_total", steps),
            ("kv_cache_usage_perc", 0.0),
        ] {
            writeln!(page, "vllm:{name}{{engine=\"0\"}} {value}").expect("a string takes all");
        }
        async move { page }
    };
    let engine = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/metrics", engine.local_addr().expect("an address"));
    let router = Router::new().route("/metrics", get(show));
    let engine = tokio::spawn(async move { axum::serve(engine, router).await });
    let fleet = format!(
        "{{style: {{interval: 1s}}, nodes: [{{name: n, gpus: [{{model: a100-80gb, count: 2, pods: [\
         {{namespace: s, name: p, load: {{engine: {{url: '{url}', profile: 8b-a100}}}}}}]}}]}}]}}"
    );
    let fleet = Fleet::parse("fleet", &fleet).expect("a fleet");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let exporter =
        tokio::spawn(
            async move { dcgm::serve(&fleet, vec![listener], std::future::pending()).await },
        );
    let seen = Arc::new(Mutex::new(Vec::new()));
    let like_it = until("the engine's work", async || {
        let (_, page) = fetch(&address, "/metrics").await?;
        let busy = value(&page, "DCGM_FI_PROF_GR_ENGINE_ACTIVE")?;
        seen.lock().expect("nobody panics").push(busy);
        // Two clocks of a second each: a look may fall a little early or late.
        ((busy - 0.503).abs() < 0.1).then_some(())
    });
    timeout(PATIENCE, like_it).await.unwrap_or_else(|_elapsed| panic!("{seen:?}"));
    exporter.abort();
    engine.abort();
}

#[test]
fn what_cannot_be_served_is_named() {
    let fleet = file("nodes: [{name: n, gpus: [{model: h10}]}]");
    let path = fleet.path().to_str().expect("a path in UTF-8");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let whole = file("nodes: [{name: n, gpus: [{model: t4}]}]");
    let whole = whole.path().to_str().expect("a path in UTF-8").to_owned();
    for (args, named) in [
        (vec!["--config", path], "`nodes[0].gpus[0].model` is h10: expected one of t4, l4"),
        (vec!["--config", "/nowhere.yaml"], "failed to read fleet `/nowhere.yaml`"),
        (vec!["--config", &whole, "--listen", &address], "failed to listen on 127.0.0.1:"),
        (
            vec!["--config", &whole, "--listen", "9400"],
            "'--listen <HOST:PORT>': expected HOST:PORT",
        ),
    ] {
        let ended = run(&[&["dcgm"], args.as_slice()].concat());
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(named), "{stderr}");
    }
}

#[test]
fn help_shows_a_fleet_that_is_one() {
    let ended = run(&["dcgm", "--help"]);
    assert_eq!(ended.status.code(), Some(0));
    let help = String::from_utf8_lossy(&ended.stdout).into_owned();
    let (_, fleet) = help.split_once("explains every key:\n\n").expect("the example");
    Fleet::parse("--help", fleet).expect("a fleet");
}
