//! A server that does with each connection what a test tells it, byte by byte.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

/// One step of an answer.
pub(crate) enum Act {
    Write(Vec<u8>),
    Wait(Duration),
    Until(Instant),
    /// Waits until so many requests have come.
    UntilAsked(u64),
    Close,
}

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Counted from 0 as they come.
    pub(crate) number: u64,
    /// On which connection, counted likewise.
    pub(crate) connection: u64,
    pub(crate) path: String,
    /// The head's lines, lower case.
    pub(crate) head: Vec<String>,
    pub(crate) body: Value,
    pub(crate) at: Instant,
}

impl Asked {
    /// The prompt's words or token numbers.
    pub(crate) fn prompt_tokens(&self) -> usize {
        let prompt =
            self.body.get("prompt").unwrap_or_else(|| &self.body["messages"][0]["content"]);
        match prompt.as_str() {
            Some(text) => text.split(' ').count(),
            None => prompt.as_array().unwrap().len(),
        }
    }
}

type Script = dyn Fn(&Asked) -> Vec<Act> + Send + Sync;

/// Requests that have come, and those that have been answered to the end.
#[derive(Default)]
struct Counts {
    asked: AtomicU64,
    answered: AtomicU64,
}

/// A server on a port of its own, until it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    counts: Arc<Counts>,
    _runtime: tokio::runtime::Runtime,
}

impl Server {
    pub(crate) fn start(script: impl Fn(&Asked) -> Vec<Act> + Send + Sync + 'static) -> Server {
        Server::with_tls(None, script)
    }

    pub(crate) fn with_tls(
        tls: Option<TlsAcceptor>,
        script: impl Fn(&Asked) -> Vec<Act> + Send + Sync + 'static,
    ) -> Server {
        Server::on(nobody().0, tls, script)
    }

    fn on(
        socket: TcpSocket,
        tls: Option<TlsAcceptor>,
        script: impl Fn(&Asked) -> Vec<Act> + Send + Sync + 'static,
    ) -> Server {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(async { socket.listen(16_384).unwrap() });
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let counts = Arc::<Counts>::default();
        let counted = Arc::clone(&counts);
        runtime.spawn(accept(listener, tls, Arc::clone(&asked), Arc::new(script), counted));
        Server { address, asked, counts, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// How many requests have been answered to the end.
    pub(crate) fn n_answered(&self) -> u64 {
        self.counts.answered.load(Ordering::Relaxed)
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    asked: Arc<Mutex<Vec<Asked>>>,
    script: Arc<Script>,
    counts: Arc<Counts>,
) {
    for connection in 0.. {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (asked, script) = (Arc::clone(&asked), Arc::clone(&script));
        let counts = Arc::clone(&counts);
        let tls = tls.clone();
        tokio::spawn(async move {
            match tls {
                None => serve(stream, connection, &asked, &*script, &counts).await,
                // A client that does not trust the certificate goes away.
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, connection, &asked, &*script, &counts).await;
                    }
                }
            }
        });
    }
}

/// Answers until either side closes. Errors are what the tests are about, and end it.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    connection: u64,
    asked: &Mutex<Vec<Asked>>,
    script: &Script,
    counts: &Counts,
) {
    let mut stream = BufReader::with_capacity(4_096, stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            match stream.read_line(&mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) if line.trim().is_empty() => break,
                Ok(_) => head.push(line.trim().to_owned()),
            }
        }
        let length = head.iter().find_map(|line| {
            line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned)
        });
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let path = head[0].split(' ').nth(1).unwrap().to_owned();
        let is_request = head[0].starts_with("POST");
        let number = if is_request { counts.asked.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let request = Asked { number, connection, path, head, body, at: Instant::now() };
        let acts = script(&request);
        if is_request {
            asked.lock().unwrap().push(request);
        }
        for act in acts {
            match act {
                Act::Write(bytes) => {
                    if stream.write_all(&bytes).await.is_err() || stream.flush().await.is_err() {
                        return;
                    }
                }
                Act::Wait(span) => tokio::time::sleep(span).await,
                Act::Until(moment) => tokio::time::sleep_until(moment).await,
                Act::UntilAsked(n) => {
                    while counts.asked.load(Ordering::Relaxed) < n {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
                Act::Close => return,
            }
        }
        if is_request {
            counts.answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The beginning of a stream's answer.
pub(crate) fn stream_head() -> Act {
    Act::Write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
          transfer-encoding: chunked\r\n\r\n"
            .to_vec(),
    )
}

/// A piece of a chunked body.
pub(crate) fn piece(text: &str) -> Act {
    Act::Write(format!("{:x}\r\n{text}\r\n", text.len()).into_bytes())
}

/// An event of a stream.
pub(crate) fn event(json: &Value) -> Act {
    piece(&format!("data: {json}\n\n"))
}

/// An event with a token of a chat.
pub(crate) fn token(model: &str) -> Act {
    event(&json!({
        "id": "x", "object": "chat.completion.chunk", "model": model,
        "choices": [{"index": 0, "delta": {"content": " a"}, "finish_reason": null}]
    }))
}

/// An event without a token that says why the model has stopped.
pub(crate) fn finish(reason: &str) -> Act {
    event(&json!({
        "model": "m", "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": reason}]
    }))
}

/// The end of a stream, with the server's counts.
pub(crate) fn stream_end(prompt_tokens: usize, completion_tokens: usize) -> Vec<Act> {
    vec![
        event(&json!({
            "model": "m", "choices": [],
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        })),
        piece("data: [DONE]\n\n"),
        Act::Write(b"0\r\n\r\n".to_vec()),
    ]
}

/// A whole right stream: the role, then `n` tokens with a pause before each.
pub(crate) fn stream(asked: &Asked, n: usize, pause: Duration) -> Vec<Act> {
    let role = json!({"model": "m", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]});
    let mut acts = vec![stream_head(), event(&role)];
    for _ in 0..n {
        if !pause.is_zero() {
            acts.push(Act::Wait(pause));
        }
        acts.push(token("m"));
    }
    acts.extend(stream_end(asked.prompt_tokens(), n));
    acts
}

/// An answer in one piece.
pub(crate) fn plain(status: &str, kind: &str, body: &str) -> Act {
    Act::Write(
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes(),
    )
}

/// A port that refuses: bound, so that nobody else gets it, and not listened on.
pub(crate) struct Nobody(TcpSocket);

pub(crate) fn nobody() -> Nobody {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    Nobody(socket)
}

impl Nobody {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }

    /// Somebody from now on.
    pub(crate) fn serves(
        self,
        script: impl Fn(&Asked) -> Vec<Act> + Send + Sync + 'static,
    ) -> Server {
        Server::on(self.0, None, script)
    }
}
