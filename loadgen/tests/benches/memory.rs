//! What ten thousand open streams take in memory, in `loadgen run` and in `loadgen engine`, each a
//! process of its own: `cargo bench -p loadgen --bench memory`.
//!
//! The engine runs all of them at once, a token every two seconds. RssAnon is read when all streams
//! are open and have had a token.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints what it measured, and ends at the first fault"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use loadgen::engine::Profile;
use tempfile::NamedTempFile;
use tokio::time::{Instant, sleep};

const STREAMS: u32 = 10_000;
const LIMIT: Duration = Duration::from_secs(120);

fn main() {
    let profile = slow_profile();
    let mut engine = Process::start(&[
        "engine",
        "--listen",
        "127.0.0.1:0",
        "--model",
        "m",
        "--profile",
        profile.path().to_str().unwrap(),
    ]);
    let mut line = String::new();
    let stdout = engine.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let url = line.trim().split_once("http://").unwrap().1.to_owned();
    let address: SocketAddr = url.parse().unwrap();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for threads in ["1", "2"] {
        let client = Process::start(&[
            "run",
            "--url",
            &format!("http://{url}"),
            "--model",
            "m",
            "--rate",
            &format!("{}@5s", STREAMS / 5),
            "--arrival",
            "constant",
            "--input-tokens",
            "100",
            "--output-tokens",
            "200",
            "--grace",
            "1h",
            "--threads",
            threads,
        ]);
        runtime.block_on(async {
            let deadline = Instant::now() + LIMIT;
            // Open streams have all had a token after another step.
            while running(address) < f64::from(STREAMS) {
                assert!(Instant::now() < deadline, "{} streams", running(address));
                sleep(Duration::from_millis(200)).await;
            }
            sleep(Duration::from_secs(3)).await;
        });
        let said = |who: &str, kib: u64| {
            format!("{who} {} MiB, {:.1} KiB a stream", kib / 1024, kib as f64 / f64::from(STREAMS))
        };
        println!(
            "RssAnon at {STREAMS} open streams, threads that send {threads}: {}; {}",
            said("run", client.anonymous_kib()),
            said("engine", engine.anonymous_kib()),
        );
        drop(client);
        runtime.block_on(async {
            while running(address) > 0.0 {
                sleep(Duration::from_millis(200)).await;
            }
        });
    }
}

/// A profile that runs all streams at once, in steps of two seconds.
fn slow_profile() -> NamedTempFile {
    let text = Profile::preset_text("8b-a100").unwrap();
    let (before, rest) = text.split_once("\nkv:").unwrap();
    let (_, after) = rest.split_once("\nstart:").unwrap();
    let file = NamedTempFile::with_suffix(".yaml").unwrap();
    let middle = format!(
        "{before}\nkv: {{ block_tokens: 16, blocks: 1000000 }}\n\
         limits:\n  max_num_seqs: {STREAMS}\n  max_num_batched_tokens: 2000000\n  \
         max_model_tokens: 100000\n\
         step:\n  base_ms: 2000\n  prefill_ms: [[0, 0]]\n  decode_ms: [[0, 0]]\n  \
         resident_ms: [[0, 0]]\nstart:{after}"
    );
    std::fs::write(file.path(), middle).unwrap();
    file
}

/// How many requests the engine says it runs.
fn running(engine: SocketAddr) -> f64 {
    let mut stream = TcpStream::connect(engine).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let line = page.lines().find(|line| line.starts_with("vllm:num_requests_running")).unwrap();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// The program; killed when dropped.
struct Process(Child);

impl Process {
    fn start(args: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::null());
        Process(command.spawn().unwrap())
    }

    /// Memory of its own that is in use, in KiB.
    fn anonymous_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
