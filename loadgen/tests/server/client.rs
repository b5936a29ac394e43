//! The program under test, and the least of an HTTP client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Longer than anything takes that happens at all.
const PATIENCE: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(5);

/// A running `loadgen engine`; killed when dropped.
pub(crate) struct Engine {
    child: Child,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Engine {
    /// Starts replicas of the CPU profile, with further flags, and waits for their addresses.
    pub(crate) fn start(replicas: usize, args: &[&str]) -> Engine {
        Engine::started_by(command(), replicas, args)
    }

    /// The same by a shell, which has the program and its arguments as `$0` and `$@`.
    pub(super) fn start_under(script: &str, replicas: usize, args: &[&str]) -> Engine {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, env!("CARGO_BIN_EXE_loadgen"), "engine"]);
        Engine::started_by(shell, replicas, args)
    }

    fn started_by(mut command: Command, replicas: usize, args: &[&str]) -> Engine {
        let replicas_arg = replicas.to_string();
        let profile =
            if args.contains(&"--profile") { &[][..] } else { &["--profile", "tiny-cpu"] };
        let mut child = command
            .args(profile)
            .args(["--listen", "127.0.0.1:0", "--model", "m"])
            .args(["--replicas", &replicas_arg])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let addresses = lines
            .take(replicas)
            .map(|line| line.unwrap().split_once("http://").unwrap().1.parse().unwrap())
            .collect();
        Engine { child, addresses }
    }

    /// Runs it with flags that it must refuse; returns the exit code and what it said.
    pub(super) fn fail(args: &[&str]) -> (Option<i32>, String) {
        let output = command().args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub(super) fn get(&self, path: &str) -> Reply {
        Exchange::open(self.address(), "GET", path, "", "").reply().unwrap()
    }

    pub(super) fn post(&self, path: &str, body: &str) -> Reply {
        Exchange::open(self.address(), "POST", path, "", body).reply().unwrap()
    }

    /// Sends a completion of that many tokens, and does not wait.
    pub(super) fn complete(&self, tokens: u32, streams: bool) -> Exchange {
        let body = format!(
            r#"{{"prompt":[1,2,3],"max_tokens":{tokens},"ignore_eos":true,"stream":{streams}}}"#
        );
        Exchange::open(self.address(), "POST", "/v1/completions", "", &body)
    }

    /// The value of the first series on `/metrics` that begins with `series`.
    pub(super) fn metric(&self, series: &str) -> Option<f64> {
        metric(&self.get("/metrics").body, series)
    }

    /// The sum over the replicas of the first series of each that begins with `series`.
    pub(crate) fn sum_of(&self, series: &str) -> f64 {
        let page = |address| Exchange::open(address, "GET", "/metrics", "", "").reply().unwrap();
        self.addresses.iter().map(|at| metric(&page(*at).body, series).unwrap()).sum()
    }

    /// Waits until the series has that value.
    pub(crate) fn wait_for(&self, series: &str, value: f64) {
        eventually(series, || self.metric(series).filter(|found| (found - value).abs() < 1e-9));
    }

    pub(super) fn load(&self) -> String {
        self.get("/load").body
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    pub(super) fn exit(&mut self) -> ExitStatus {
        eventually("the process to end", || self.child.try_wait().unwrap())
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
    command.arg("engine");
    command
}

/// A request that has been sent.
pub(super) struct Exchange {
    stream: BufReader<TcpStream>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
    /// Whether the body came to its end.
    pub(super) is_whole: bool,
}

impl Exchange {
    pub(super) fn open(
        address: SocketAddr,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Exchange {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\
             content-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        Exchange { stream: BufReader::new(stream) }
    }

    /// Reads up to the line that contains this.
    pub(super) fn read_to(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert_ne!(self.stream.read_line(&mut line).unwrap(), 0, "ended before {text}");
        }
    }

    /// Reads the answer; an error if the connection ends before one began.
    pub(super) fn reply(mut self) -> std::io::Result<Reply> {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes)?;
        let text = String::from_utf8(bytes).unwrap();
        let Some((head, rest)) = text.split_once("\r\n\r\n") else {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        };
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let (body, is_whole) = if head.contains("transfer-encoding: chunked") {
            unchunk(rest)
        } else {
            (rest.to_owned(), true)
        };
        Ok(Reply { status, head: head.to_owned(), body, is_whole })
    }

    /// What has not been read of a stream of events; chunk lines included.
    pub(super) fn rest(mut self) -> String {
        let mut text = String::new();
        self.stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Whether nothing comes within a moment.
    pub(super) fn is_silent(&mut self) -> bool {
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let silent = self.stream.fill_buf().is_err();
        self.stream.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
        silent
    }
}

fn unchunk(mut rest: &str) -> (String, bool) {
    let mut body = String::new();
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return (body, true);
        }
        let Some((chunk, after)) = after.split_at_checked(length) else {
            break;
        };
        body.push_str(chunk);
        rest = after.strip_prefix("\r\n").unwrap_or_default();
    }
    (body, false)
}

pub(super) fn metric(page: &str, series: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(series))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// Whether a connection is refused.
pub(super) fn is_refused(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err()
}

/// Waits for something to be there.
pub(super) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let tries = PATIENCE.as_millis() / TICK.as_millis();
    for _ in 0..tries {
        if let Some(found) = look() {
            return found;
        }
        #[expect(clippy::disallowed_methods, reason = "there is no runtime in these tests")]
        std::thread::sleep(TICK);
    }
    panic!("waited in vain for {what}");
}
