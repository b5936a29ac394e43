//! The other end of the wire for this module's tests: servers that answer, misbehave and count.
//!
//! Must not fake anything but the wire.

use std::error::Error as _;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::Error;
use crate::decision::Why;

/// What a server does with every connection, after its request's head has come.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Sends these bytes and waits for the next request.
    Answer(Vec<u8>),
    /// Sends these bytes after a pause.
    Late(Duration, Vec<u8>),
    /// Sends these bytes and closes.
    AnswerAndClose(Vec<u8>),
    /// Sends these bytes and resets the connection.
    AnswerAndReset(Vec<u8>),
    /// Sends the first bytes, then the second ones for ever, with this pause between.
    Endless(Vec<u8>, Vec<u8>, Duration),
    /// Says nothing.
    Hang,
}

/// A server on a free port of the loopback; ends with its value.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicUsize,
    open: AtomicUsize,
    pausing: AtomicUsize,
    most_pausing: AtomicUsize,
    requests: Mutex<Vec<String>>,
}

impl Server {
    pub(crate) async fn start(act: Act) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new(Counts::default());
        let task = tokio::spawn({
            let counts = Arc::clone(&counts);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    counts.accepted.fetch_add(1, Ordering::SeqCst);
                    counts.open.fetch_add(1, Ordering::SeqCst);
                    let (counts, act) = (Arc::clone(&counts), act.clone());
                    tokio::spawn(async move {
                        serve(stream, &act, &counts).await;
                        counts.open.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            }
        });
        Server { address, counts, task }
    }

    /// A server that answers each request with this body as a metrics page.
    pub(crate) async fn page(body: &str) -> Server {
        Server::start(Act::Answer(ok("text/plain; version=0.0.4", body))).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    pub(crate) fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    /// Most requests of [`Act::Late`] that were in their pause at once.
    pub(crate) fn most_pausing(&self) -> usize {
        self.counts.most_pausing.load(Ordering::SeqCst)
    }

    /// The requests as they came, body included.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.counts.requests.lock().unwrap().clone()
    }

    /// Waits until no more than `wanted` connections are open, ten seconds at most.
    pub(crate) async fn open_falls_to(&self, wanted: usize) {
        let fallen = async {
            while self.counts.open.load(Ordering::SeqCst) > wanted {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(10), fallen).await.expect("connections are let go");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A server on threads of its own that answers every request with some bytes and then others for
/// ever, as fast as they are taken; ends with its value.
#[derive(Debug)]
pub(crate) struct Flood {
    pub(crate) address: SocketAddr,
    ended: Arc<AtomicBool>,
    n_blocks: Arc<AtomicUsize>,
}

/// Blocks of 64 KiB that a flood may get rid of: the longest answer that anybody reads, twice, which
/// leaves room for what the kernel takes.
pub(crate) const MAX_BLOCKS: usize = 1_024;

impl Flood {
    /// Blocks of 64 KiB that have been taken.
    pub(crate) fn n_blocks(&self) -> usize {
        self.n_blocks.load(Ordering::SeqCst)
    }

    pub(crate) fn start(first: &'static str, then: &'static str) -> Flood {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (ended, n_blocks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let block = then.repeat(64 * 1024 / then.len());
        std::thread::spawn({
            let (ended, n_blocks) = (Arc::clone(&ended), Arc::clone(&n_blocks));
            move || {
                for mut stream in listener.incoming().map_while(Result::ok) {
                    if ended.load(Ordering::SeqCst) {
                        return;
                    }
                    let (block, n_blocks) = (block.clone(), Arc::clone(&n_blocks));
                    std::thread::spawn(move || {
                        let _asked = stream.read(&mut [0; 16 * 1024]);
                        let mut written = stream.write_all(first.as_bytes());
                        while written.is_ok() {
                            written = stream.write_all(block.as_bytes());
                            n_blocks.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                }
            }
        });
        Flood { address, ended, n_blocks }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // It sees that when the next one comes.
        std::net::TcpStream::connect(self.address).ok();
    }
}

/// An address that answers no attempt to connect, as in a zone that is lost: a listener whose queue
/// is full, and who takes nobody from it.
#[derive(Debug)]
pub(crate) struct BlackHole {
    pub(crate) address: SocketAddr,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl BlackHole {
    pub(crate) async fn start() -> BlackHole {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) =
            timeout(Duration::from_millis(500), TcpStream::connect(address)).await
        {
            queued.push(stream.unwrap());
        }
        BlackHole { address, _listener: listener, _queued: queued }
    }
}

/// An address that refuses: its port is kept, so that nobody else gets it, and not listened on.
#[derive(Debug)]
pub(crate) struct Nobody(TcpSocket);

impl Nobody {
    pub(crate) fn new() -> Nobody {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Nobody(socket)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/metrics", self.0.local_addr().unwrap())
    }
}

/// What a server may send for ever, and the reason that it is given up for.
pub(crate) const FLOODS: [(&str, &str, Why); 8] = [
    ("", "HTTP/1.1 100 Continue\r\n\r\n", Why::TooLarge),
    ("", "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", Why::TooLarge),
    ("HTTP/1.1 200 OK\r\n", "x: y\r\n", Why::TooLarge),
    ("HTTP/1.1 200 OK\r\nx: ", "yyyyyyyy", Why::TooLarge),
    (CHUNKED, "00000000", Why::TooLarge),
    (CHUNKED, "1\r\n#\r\n", Why::TooLarge),
    (CHUNKED, "1;a=b\r\n#\r\n", Why::Transport),
    (CHUNKED, "0\r\nx: y\r\n", Why::Transport),
];

const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A 200 with this type and body.
pub(crate) fn ok(content_type: &str, body: &str) -> Vec<u8> {
    answer("200 OK", &format!("Content-Type: {content_type}\r\n"), body)
}

/// An answer with this status line, these further headers and this body.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// A test certificate or key.
pub(crate) fn tls_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

/// Gives one answer to each connection over TLS, as `localhost`.
pub(crate) async fn tls_server(answer: Vec<u8>) -> SocketAddr {
    let chain = vec![CertificateDer::from_pem_file(tls_file("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(tls_file("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust this server ends the handshake.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let request_bytes = stream.read(&mut [0; 4096]).await.unwrap();
            assert!(request_bytes > 0);
            stream.write_all(&answer).await.unwrap();
        }
    });
    address
}

/// All that an error could show to anybody: its text, its debug form, its sources.
pub(crate) fn everything_said(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        text += &format!(" {inner}");
        cause = inner.source();
    }
    text
}

async fn serve(mut stream: TcpStream, act: &Act, counts: &Counts) {
    while let Some(request) = read_request(&mut stream).await {
        counts.requests.lock().unwrap().push(request);
        let written = match act {
            Act::Answer(bytes) => stream.write_all(bytes).await,
            Act::Late(pause, bytes) => {
                let pausing = counts.pausing.fetch_add(1, Ordering::SeqCst) + 1;
                counts.most_pausing.fetch_max(pausing, Ordering::SeqCst);
                sleep(*pause).await;
                counts.pausing.fetch_sub(1, Ordering::SeqCst);
                stream.write_all(bytes).await
            }
            Act::AnswerAndClose(bytes) => {
                stream.write_all(bytes).await.ok();
                return;
            }
            Act::AnswerAndReset(bytes) => {
                stream.write_all(bytes).await.ok();
                // The reader has to have the bytes before the reset throws them away.
                sleep(Duration::from_millis(50)).await;
                stream.set_zero_linger().ok();
                return;
            }
            Act::Endless(first, then, pause) => {
                let mut written = stream.write_all(first).await;
                while written.is_ok() {
                    written = stream.write_all(then).await;
                    sleep(*pause).await;
                }
                written
            }
            Act::Hang => {
                // Until the other side closes.
                stream.readable().await
            }
        };
        if written.is_err() {
            return;
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&request);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
                })
                .unwrap_or(0);
            if body.len() >= length {
                return Some(text.into_owned());
            }
        }
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(n) => request.extend_from_slice(&buffer[..n]),
        }
    }
}
