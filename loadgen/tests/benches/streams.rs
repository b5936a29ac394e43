//! Streamed events a second of `loadgen engine`, beside a hyper server that does nothing but send
//! the same bytes, one event at a time: `cargo bench -p loadgen --bench streams`.
//!
//! Both are processes of their own, the bare one being this program again; one client reads from
//! them in turns, so that what else the machine does meets both alike. The simulated engine's
//! steps take a microsecond, the least that a profile may say: from some streams on it is always
//! behind, and streams as fast as it can. Bar: at least 70 % of the bare server's rate.
#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::convert::Infallible;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use loadgen::engine::Profile;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Events of a round, divided among the streams.
const EVENTS: usize = 640_000;
const STREAMS: [usize; 3] = [8, 64, 256];
const N_ROUNDS: usize = 7;
const WORKERS: usize = 2;
const BARE: &str = "bare-server";

fn main() {
    if std::env::args().nth(1).as_deref() == Some(BARE) {
        runtime(WORKERS).block_on(serve_bare());
        return;
    }
    let profile = quick_profile();
    let mut engine = Command::new(env!("CARGO_BIN_EXE_loadgen"));
    engine.args(["engine", "--listen", "127.0.0.1:0", "--model", "m", "--profile"]);
    engine.arg(profile.path());
    let engine = Server::start(engine);
    let mut bare = Command::new(std::env::current_exe().expect("this program has a path"));
    bare.arg(BARE);
    let bare = Server::start(bare);
    println!("Streamed events a second: medians of {N_ROUNDS} rounds, and of their ratios");
    println!("streams      engine        bare  ratio");
    runtime(1).block_on(async {
        for streams in STREAMS {
            let mut rounds = Vec::new();
            for _ in 0..N_ROUNDS {
                let engine = round(engine.address, streams).await;
                rounds.push((engine, round(bare.address, streams).await));
            }
            let median = |of: fn(&(f64, f64)) -> f64| {
                let mut values: Vec<f64> = rounds.iter().map(of).collect();
                values.sort_by(f64::total_cmp);
                values[N_ROUNDS / 2]
            };
            let (ours, theirs) = (median(|round| round.0), median(|round| round.1));
            let ratio = median(|round| round.0 / round.1);
            println!("{streams:7} {ours:11.0} {theirs:11.0} {ratio:6.2}");
        }
    });
}

fn runtime(workers: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// A process that says where it listens; killed when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a program");
        let stdout = child.stdout.take().expect("piped");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let (_, address) = line.trim().split_once("http://").expect("an address");
        Server { child, address: address.parse().expect("an address") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A profile whose steps take a microsecond.
fn quick_profile() -> NamedTempFile {
    let text = Profile::preset_text("8b-a100").expect("a preset");
    let (before, rest) = text.split_once("\nkv:").expect("a profile");
    let (_, after) = rest.split_once("\nstart:").expect("a profile");
    let file = NamedTempFile::with_suffix(".yaml").expect("a file");
    std::fs::write(
        file.path(),
        format!(
            "{before}\nkv: {{ block_tokens: 16, blocks: 16000000 }}\n\
             limits:\n  max_num_seqs: 256\n  max_num_batched_tokens: 2048\n  \
             max_model_tokens: 2000000\n\
             step:\n  base_ms: 0.001\n  prefill_ms: [[0, 0]]\n  decode_ms: [[0, 0]]\n  \
             resident_ms: [[0, 0]]\nstart:{after}"
        ),
    )
    .expect("a file");
    file
}

/// Streams from that many connections at once; returns events a second.
async fn round(address: SocketAddr, streams: usize) -> f64 {
    let tokens = EVENTS / streams;
    let start = Instant::now();
    let mut readers = JoinSet::new();
    for _ in 0..streams {
        readers.spawn(read_stream(address, tokens));
    }
    let bytes: usize = readers.join_all().await.into_iter().sum();
    let elapsed_s = start.elapsed().as_secs_f64();
    assert!(bytes > EVENTS * 200, "{bytes} bytes are not all events");
    EVENTS as f64 / elapsed_s
}

async fn read_stream(address: SocketAddr, tokens: usize) -> usize {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let body =
        format!("{{\"prompt\":[1],\"max_tokens\":{tokens},\"ignore_eos\":true,\"stream\":true}}");
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.expect("a server that reads");
    let mut buffer = vec![0; 256 * 1024];
    let mut total = 0;
    loop {
        match stream.read(&mut buffer).await.expect("a server that writes") {
            0 => return total,
            n => total += n,
        }
    }
}

/// The least that a server can do for the same bytes.
async fn serve_bare() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    println!("http://{address}");
    std::io::stdout().flush().expect("a reader");
    let event = Bytes::from_static(
        b"data: {\"id\":\"cmpl-00000000000000000000000000000000\",\"object\":\"text_completion\",\
          \"created\":1796000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" one\",\
          \"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null,\
          \"prompt_token_ids\":null,\"token_ids\":null}]}\n\n",
    );
    let event = Arc::new(event);
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let event = Arc::clone(&event);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, Bytes::clone(&event)));
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    event: Bytes,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let text = String::from_utf8_lossy(&body);
    let (_, rest) = text.split_once("\"max_tokens\":").expect("the client's own form");
    let (tokens, _) = rest.split_once(',').expect("the client's own form");
    let tokens: usize = tokens.parse().expect("a number");
    let events = (0..tokens).map(move |_| Ok(Frame::data(event.clone())));
    Ok(Response::new(StreamBody::new(stream::iter(events))))
}
