//! An engine, or another page, as it looks on the wire: right, slow, cut off, endless or gone.
//!
//! Must not keep a connection, so that what it does next holds for the next scrape.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::nobody::Nobody;

/// What the engine's gauges say.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) waiting: f64,
    pub(super) running: f64,
    pub(super) kv_usage: f64,
}

/// How a request is answered.
#[derive(Debug, Clone)]
pub(super) enum Manner {
    /// With the engine's page.
    Page,
    /// With this metrics page.
    Text(String),
    /// With these bytes, head and body, and the end of the connection.
    Bytes(Vec<u8>),
    /// Never.
    Hangs,
    /// With these bytes one by one, this far apart.
    Drips(Vec<u8>, Duration),
    /// With the head of a chunked page and then one chunk after the other, this far apart.
    Endless(String, Duration),
}

/// A server of one page; ends with its value.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) address: SocketAddr,
    page: Arc<Mutex<Page>>,
    task: JoinHandle<()>,
    /// Keeps its port while it is away.
    away: Option<Nobody>,
}

#[derive(Debug)]
struct Page {
    manner: Manner,
    load: Load,
    /// When the present load was first read whole.
    load_read_at: Option<Instant>,
    /// Seconds of engine time worked so far, and until when.
    worked_s: f64,
    tokens: f64,
    counted_to: Instant,
}

impl Engine {
    /// An idle vLLM.
    pub(super) async fn start() -> Engine {
        let page = Page {
            manner: Manner::Page,
            load: Load::default(),
            load_read_at: None,
            worked_s: 0.0,
            tokens: 0.0,
            counted_to: Instant::now(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let page = Arc::new(Mutex::new(page));
        let task = tokio::spawn(accept(listener, Arc::clone(&page)));
        Engine { address, page, task, away: None }
    }

    /// A server of another page.
    pub(super) async fn of_text(text: impl Into<String>) -> Engine {
        let engine = Engine::start().await;
        engine.set(Manner::Text(text.into()));
        engine
    }

    pub(super) fn set(&self, manner: Manner) {
        self.page.lock().unwrap().manner = manner;
    }

    pub(super) fn carry(&self, load: Load) {
        let mut page = self.page.lock().unwrap();
        page.count();
        page.load = load;
        page.load_read_at = None;
    }

    /// When the present load was first read.
    pub(super) fn load_read_at(&self) -> Option<Instant> {
        self.page.lock().unwrap().load_read_at
    }

    /// Closes the port: from now on connections are refused.
    pub(super) async fn leave(&mut self) {
        self.task.abort();
        // The port is free once the task has dropped its listener.
        assert!((&mut self.task).await.unwrap_err().is_cancelled());
        self.away = Some(Nobody::at(self.address));
    }

    /// Opens the port again.
    pub(super) fn come_back(&mut self) {
        let listener = self.away.take().expect("it has left").listen();
        self.task = tokio::spawn(accept(listener, Arc::clone(&self.page)));
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A load of this many waiting and running requests.
pub(super) fn load(waiting: u32, running: u32) -> Load {
    Load { waiting: f64::from(waiting), running: f64::from(running), kv_usage: 0.2 }
}

/// More waiting than one replica could finish within any cold start, so that it never has to be
/// read soon to be believed.
pub(super) fn queue() -> Load {
    load(4_000, 4)
}

/// A whole answer with this body.
pub(super) fn answer(status: &str, head: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{head}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

pub(super) const METRICS: &str = "content-type: text/plain; version=0.0.4; charset=utf-8";

impl Page {
    /// Moves the counters on: a step takes 25 ms, and each running request gets one token of it.
    fn count(&mut self) {
        let elapsed_s = self.counted_to.elapsed().as_secs_f64();
        self.counted_to = Instant::now();
        if self.load.running > 0.0 {
            self.worked_s += elapsed_s;
            self.tokens += elapsed_s * 40.0 * self.load.running;
        }
    }

    /// What vLLM 0.32 shows, without buckets.
    fn text(&mut self) -> String {
        self.count();
        let Load { waiting, running, kv_usage } = self.load;
        let steps = (self.worked_s * 40.0).floor();
        let tokens = self.tokens.floor();
        let finished = (self.tokens / 200.0).floor();
        let mut text = String::new();
        for (kind, name, labels, value) in [
            ("gauge", "num_requests_running", "", running),
            ("gauge", "num_requests_waiting", "", waiting),
            ("gauge", "num_requests_waiting_by_reason", ",reason=\"capacity\"", waiting),
            ("gauge", "kv_cache_usage_perc", "", kv_usage),
            ("counter", "num_preemptions_total", "", 0.0),
            ("counter", "generation_tokens_total", "", tokens),
            ("counter", "prompt_tokens_total", "", finished * 100.0),
            ("counter", "request_success_total", ",finished_reason=\"stop\"", finished),
            ("counter", "iteration_tokens_total_count", "", steps),
        ] {
            writeln!(text, "# TYPE vllm:{name} {kind}").unwrap();
            writeln!(text, "vllm:{name}{{engine=\"0\",model_name=\"tiny\"{labels}}} {value}")
                .unwrap();
        }
        text
    }
}

async fn accept(listener: TcpListener, page: Arc<Mutex<Page>>) {
    // Dropped with the listener, so that a server that leaves takes its connections along.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _peer) = listener.accept().await.unwrap();
        while connections.try_join_next().is_some() {}
        connections.spawn(respond(stream, Arc::clone(&page)));
    }
}

async fn respond(mut stream: TcpStream, page: Arc<Mutex<Page>>) {
    if read_request(&mut stream).await.is_none() {
        return;
    }
    let manner = page.lock().unwrap().manner.clone();
    let is_page = matches!(manner, Manner::Page);
    // A scraper that has seen enough goes away, which is no fault of this side.
    let sent = match manner {
        Manner::Page => {
            let text = page.lock().unwrap().text();
            stream.write_all(&answer("200 OK", METRICS, text.as_bytes())).await
        }
        Manner::Text(text) => stream.write_all(&answer("200 OK", METRICS, text.as_bytes())).await,
        Manner::Bytes(bytes) => stream.write_all(&bytes).await,
        Manner::Hangs => std::future::pending().await,
        Manner::Drips(bytes, pause) => drip(&mut stream, &bytes, pause).await,
        Manner::Endless(chunk, pause) => endless(&mut stream, &chunk, pause).await,
    };
    if sent.is_ok() && is_page {
        page.lock().unwrap().load_read_at.get_or_insert_with(Instant::now);
    }
    stream.shutdown().await.ok();
}

/// Reads one request's head.
async fn read_request(stream: &mut TcpStream) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > 16 * 1024 || stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    Some(())
}

async fn drip(stream: &mut TcpStream, bytes: &[u8], pause: Duration) -> std::io::Result<()> {
    for byte in bytes {
        stream.write_all(&[*byte]).await?;
        sleep(pause).await;
    }
    Ok(())
}

async fn endless(stream: &mut TcpStream, chunk: &str, pause: Duration) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n{METRICS}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let chunk = format!("{:x}\r\n{chunk}\r\n", chunk.len());
    loop {
        stream.write_all(chunk.as_bytes()).await?;
        sleep(pause).await;
    }
}
