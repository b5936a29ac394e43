//! How near the load generator comes to a bare client of the same HTTP stack, in one run:
//! `cargo bench -p loadgen --bench client`, or with ` -- 1 64` behind it for answers of that many
//! events only, or ` -- 1 @40000` for the lag at that rate only, which is how two builds are compared.
//!
//! The server is a process of its own with one thread. The bare client has one thread: it sends the
//! same bytes in a closed loop over as many connections, reads every frame, and looks at none. The
//! load generator sends with one thread. Rates depend on what else the machine does; the processor
//! time of a request, which is beside them, hardly.
//!
//! Lag is how late a request's first byte is handed to the kernel. It is measured at half of the load
//! generator's own rate, which is the bar's, and at half of the bare client's, and set beside that of
//! a bare sender: one thread with the same arrivals and the same timer, which writes prepared bytes
//! into connections that are open, and throws away what comes back. What that is late, this machine
//! is with this server on its processors; the rest is the load generator's. Rounds take turns, and
//! the median counts: a moment in which the machine ran neither is no figure of anybody's.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints what it measured, and ends at the first fault"
)]

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use loadgen::engine::Prefix;
use loadgen::run::measure::{Outcome, measure};
use loadgen::run::pause::Pause;
use loadgen::run::plan::{Class, Load, Plan};
use loadgen::run::prompt::{Alphabet, Form, Prompts};
use loadgen::run::record::Times;
use loadgen::run::slo::Slo;
use loadgen::run::target::{Target, Tls};
use loadgen::run::users::Users;
use loadgen::traces::{Arrivals, Curve, Lengths, Process};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

const CONNECTIONS: usize = 64;
/// As many as the load generator opens ahead of a high rate.
const OPEN_AHEAD: usize = 512;
/// As many as the load generator may have open at a paced rate.
const MOST_CONNECTIONS: usize = 1_000;
const SPAN: Duration = Duration::from_secs(4);
const ROUNDS: usize = 3;
const INPUT_TOKENS: u32 = 100;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, command, n_events, is_batched] = args.as_slice()
        && command == "serve"
    {
        serve(n_events.parse().unwrap(), is_batched.parse().unwrap());
        return;
    }
    println!("                 requests/s            µs/request");
    println!("events writes    bare  loadgen  ratio  bare loadgen");
    let only: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let rates: Vec<f64> =
        args.iter().filter_map(|arg| arg.strip_prefix('@')?.parse().ok()).collect();
    for (n_events, is_batched) in [(1, true), (8, true), (8, false), (64, true), (64, false)] {
        if !only.is_empty() && !only.contains(&n_events) {
            continue;
        }
        let server = Server::start(n_events, is_batched);
        if !rates.is_empty() {
            print_lags(server.address, &rates.iter().map(|rate| ("", *rate)).collect::<Vec<_>>());
            continue;
        }
        let (mut bare, mut ours) = ((0.0, 0.0), (0.0, 0.0));
        for _ in 0..ROUNDS {
            let round = bare_rate(server.address);
            bare = if round.0 > bare.0 { round } else { bare };
            // More than it can send, so that it always has something to send.
            let outcome = outcome(server.address, bare.0, CONNECTIONS);
            let round =
                (outcome.record.total().completed as f64 / outcome.elapsed_s, cpu_us(&outcome));
            ours = if round.0 > ours.0 { round } else { ours };
        }
        let writes = if is_batched { "one" } else { "each" };
        println!(
            "{n_events:>6} {writes:>6} {:>7.0} {:>8.0} {:>6.2} {:>5.1} {:>7.1}",
            bare.0,
            ours.0,
            ours.0 / bare.0,
            bare.1,
            ours.1
        );
        let halves =
            [("half of loadgen's, ", ours.0 / 2.0), ("half of bare client's, ", bare.0 / 2.0)];
        print_lags(server.address, &halves);
    }
}

/// Measures lag at each of the rates, which have names.
fn print_lags(server: SocketAddr, rates: &[(&str, f64)]) {
    let mut seen: Vec<Lags> = rates.iter().map(|_| Lags::default()).collect();
    for _ in 0..ROUNDS {
        for ((_, rate), lags) in rates.iter().zip(&mut seen) {
            lags.bare_ms.push(p99_ms(&bare_lag(server, *rate)));
            let outcome = outcome(server, *rate, MOST_CONNECTIONS);
            lags.ours_ms.push(p99_ms(&outcome.record.total().schedule_lag));
            lags.ours_us.push(cpu_us(&outcome));
        }
    }
    for ((name, rate), lags) in rates.iter().zip(&seen) {
        println!(
            "       {name}{rate:.0}/s: lag p99 {} ms, of a bare sender {} ms; {:.1} µs/request",
            with_all(&lags.ours_ms),
            with_all(&lags.bare_ms),
            median(&lags.ours_us)
        );
    }
}

/// What rounds at one rate have shown.
#[derive(Default)]
struct Lags {
    bare_ms: Vec<f64>,
    ours_ms: Vec<f64>,
    ours_us: Vec<f64>,
}

fn p99_ms(lag: &Times) -> f64 {
    lag.quantile(0.99).unwrap() * 1e3
}

/// Processor time of a request, in microseconds.
fn cpu_us(outcome: &Outcome) -> f64 {
    let total = outcome.record.total();
    assert_eq!(total.n_errors(), 0, "{:?}", outcome.record.examples);
    outcome.cpu_s / total.completed as f64 * 1e6
}

fn median(rounds: &[f64]) -> f64 {
    let mut rounds = rounds.to_vec();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// The median, and each round behind it.
fn with_all(rounds: &[f64]) -> String {
    let all: Vec<String> = rounds.iter().map(|round| format!("{round:.2}")).collect();
    format!("{:.2} ({})", median(rounds), all.join(", "))
}

/// The server's process; ended when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(n_events: usize, is_batched: bool) -> Server {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["serve", &n_events.to_string(), &is_batched.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Server { child, address: line.trim().parse().unwrap() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A server that answers every request with the same bytes, event by event or all at once.
fn serve(n_events: usize, is_batched: bool) {
    let mut writes = vec![
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec(),
    ];
    let token = "data: {\"id\":\"chatcmpl-7e1b6b2f0c5e4f1f\",\"object\":\"chat.completion.chunk\",\
                 \"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":\
                 {\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
    let usage = format!(
        "data: {{\"model\":\"m\",\"choices\":[],\"usage\":{{\"prompt_tokens\":{INPUT_TOKENS},\
         \"total_tokens\":200,\"completion_tokens\":{n_events}}}}}\n\n"
    );
    let events = std::iter::repeat_n(token, n_events).chain([usage.as_str(), "data: [DONE]\n\n"]);
    writes.extend(events.map(|text| format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()));
    writes.push(b"0\r\n\r\n".to_vec());
    if is_batched {
        writes = vec![writes.concat()];
    }
    let writes = Arc::new(writes);
    runtime().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(answer(stream, Arc::clone(&writes)));
        }
    });
}

async fn answer(mut stream: TcpStream, writes: Arc<Vec<Vec<u8>>>) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = vec![0; 16 << 10];
    let mut filled = 0;
    loop {
        // The end of the body of a chat request, which no other place of it has.
        while !buffer[..filled].ends_with(b"\"include_usage\":true}}") {
            match stream.read(&mut buffer[filled..]).await {
                Ok(0) | Err(_) => return,
                Ok(n) => filled += n,
            }
        }
        filled = 0;
        for bytes in writes.iter() {
            if stream.write_all(bytes).await.is_err() {
                return;
            }
        }
    }
}

fn form() -> Form {
    Form {
        model: "m".to_owned(),
        is_chat: true,
        is_streaming: true,
        forces_length: true,
        counts_tokens: false,
        more: None,
    }
}

/// Requests a second of the bare client, and its processor time for each, in microseconds.
fn bare_rate(server: SocketAddr) -> (f64, f64) {
    runtime().block_on(async {
        let prompts = Prompts::new(Alphabet::Words, 1);
        let body = prompts.body(&form(), 1, INPUT_TOKENS, 64, &Prefix::Unknown);
        let count = Arc::new(AtomicU64::new(0));
        let (began, cpu_before_s) = (Instant::now(), cpu_s());
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|_| tokio::spawn(bare(server, body.clone(), Arc::clone(&count))))
            .collect();
        tokio::time::sleep(SPAN).await;
        let n = count.load(Ordering::Relaxed) as f64;
        let measured = (n / began.elapsed().as_secs_f64(), (cpu_s() - cpu_before_s) / n * 1e6);
        clients.iter().for_each(tokio::task::JoinHandle::abort);
        measured
    })
}

async fn bare(server: SocketAddr, body: Bytes, count: Arc<AtomicU64>) {
    let stream = TcpStream::connect(server).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    loop {
        sender.ready().await.unwrap();
        let request = http::Request::post("/v1/chat/completions")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(body.clone()))
            .unwrap();
        let mut answer = sender.send_request(request).await.unwrap().into_body();
        while let Some(frame) = answer.frame().await {
            std::hint::black_box(frame.unwrap());
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// How late the bare sender is at a rate.
fn bare_lag(server: SocketAddr, rate: f64) -> Times {
    runtime().block_on(async {
        let prompts = Prompts::new(Alphabet::Words, 1);
        let body = prompts.body(&form(), 1, INPUT_TOKENS, 64, &Prefix::Unknown);
        let mut request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(&body);
        let mut readers = Vec::new();
        let mut writers = Vec::new();
        for _ in 0..OPEN_AHEAD {
            let stream = TcpStream::connect(server).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let (reader, writer) = stream.into_split();
            readers.push(reader);
            writers.push(writer);
        }
        let sender = Arc::new(Mutex::new(BareSender {
            request,
            idle: (0..OPEN_AHEAD).collect(),
            writers,
            overdue: VecDeque::new(),
            start: Instant::now() + Duration::from_millis(20),
            lag: Times::default(),
        }));
        for (index, reader) in readers.into_iter().enumerate() {
            tokio::spawn(read_answers(reader, index, Arc::clone(&sender)));
        }
        let (pause, start) = (Pause::new().unwrap(), sender.lock().unwrap().start);
        for due_s in Arrivals::new(&Curve::constant(rate), Process::Poisson, 1) {
            if due_s > SPAN.as_secs_f64() {
                break;
            }
            let due = start + Duration::from_secs_f64(due_s);
            if Instant::now() < due {
                pause.until(due.max(Instant::now() + Duration::from_micros(100))).await;
            }
            sender.lock().unwrap().send(due);
        }
        sender.lock().unwrap().lag.clone()
    })
}

struct BareSender {
    request: Vec<u8>,
    writers: Vec<OwnedWriteHalf>,
    idle: Vec<usize>,
    overdue: VecDeque<Instant>,
    start: Instant,
    lag: Times,
}

impl BareSender {
    fn send(&mut self, due: Instant) {
        match self.idle.pop() {
            Some(index) => self.write(index, due),
            None => self.overdue.push_back(due),
        }
    }

    fn freed(&mut self, index: usize) {
        match self.overdue.pop_front() {
            Some(due) => self.write(index, due),
            None => self.idle.push(index),
        }
    }

    fn write(&mut self, index: usize, due: Instant) {
        assert_eq!(self.writers[index].try_write(&self.request).unwrap(), self.request.len());
        self.lag.note(due.elapsed().as_secs_f64());
    }
}

/// Reads to each answer's end, which no other place of it has.
async fn read_answers(mut reader: OwnedReadHalf, index: usize, sender: Arc<Mutex<BareSender>>) {
    let mut buffer = vec![0; 64 << 10];
    let mut filled = 0;
    while let Ok(n @ 1..) = reader.read(&mut buffer[filled..]).await {
        filled += n;
        if buffer[..filled].ends_with(b"\r\n0\r\n\r\n") {
            filled = 0;
            sender.lock().unwrap().freed(index);
        }
    }
}

/// What the load generator sees at a rate.
fn outcome(server: SocketAddr, rate: f64, connections: usize) -> Outcome {
    let lengths = Lengths::fixed(INPUT_TOKENS, 64);
    let slo = Slo { ttft_s: 2.0, tpot_s: 0.2, e2e_s: None };
    let plan = Arc::new(Plan {
        targets: vec![Target::parse(&format!("http://{server}"), &Tls::default()).unwrap()],
        classes: vec![Class { name: "all".to_owned(), weight: 1.0, form: form(), lengths, slo }],
        load: Load::Rate { curve: Curve::constant(rate), process: Process::Poisson },
        duration_s: Some(SPAN.as_secs_f64()),
        count: None,
        n_empty: 0,
        warmup_s: 0.0,
        cooldown_s: 0.0,
        timeout: Duration::from_secs(60),
        stall: None,
        users: Users::default(),
        grace: Duration::ZERO,
        seed: 1,
        n_lanes: 1,
        connections,
        authorization: None,
        headers: Vec::new(),
        prompts: Prompts::new(Alphabet::Words, 1),
        checks_model: true,
        replicas: None,
        watches_engines: false,
        gpus_per_replica: 1.0,
        requests: None,
    });
    let (_never, interrupt) = watch::channel(false);
    runtime().block_on(measure(&plan, interrupt, |_| {})).unwrap()
}

/// Processor time of this process so far.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
