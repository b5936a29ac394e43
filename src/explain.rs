//! `ghostscaler explain`: a workload's last decision and its reasons, for a person, from a running
//! scaler's API.
//!
//! Must not recompute: it prints what the scaler says, and what to do when it does not answer.

mod text;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use tokio::time::sleep;

use crate::clock::Clock;
use crate::duration::parse_millis;
use crate::files::{self, MAX_KEY_BYTES};
use crate::web::Snapshot;

pub use text::print;

/// Largest answer that is read; the snapshot of a thousand pods takes some 300 KB.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// Time for a whole answer; the scaler answers from memory.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How often `--watch` looks. Decisions come every second at most.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Prints a workload's last decision and its reasons.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The ScaledObject (or workload of the configuration), as NAMESPACE/NAME.
    #[arg(value_name = "NAMESPACE/NAME", value_parser = workload)]
    pub workload: (String, String),
    /// The running scaler's HTTP address.
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8080",
        env = "GHOSTSCALER_SERVER"
    )]
    pub server: String,
    /// Which trigger, where the ScaledObject has several: an id of `triggers` in the JSON output.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub trigger: Option<String>,
    /// The file with the API's token, where the scaler wants one.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// How to print it.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
    /// Print again whenever anything but an age changes, until interrupted.
    #[arg(long)]
    pub watch: bool,
}

/// How a decision is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For a person, 80 columns.
    Text,
    /// The API's answer; one line a decision with --watch.
    Json,
}

/// Why nothing can be explained. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server's address is no URL of a scaler.
    #[error("`--server {server}`: expected a URL such as http://127.0.0.1:8080")]
    Server {
        /// As given.
        server: String,
    },
    /// The token file cannot be read.
    #[error("`--token-file {}` cannot be read", path.display())]
    Token {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nothing answers there.
    #[error(
        "no scaler answers at {server}: start one with `ghostscaler serve`, or point --server at \
         its --http-address (in a cluster: `kubectl port-forward` to port 8080 first)"
    )]
    Unreachable {
        /// The URL.
        server: String,
        /// Why.
        source: reqwest::Error,
    },
    /// Something answers, and it is no scaler of this version.
    #[error(
        "the answer of {server} is not this version's: check that it is a ghostscaler, and use the \
         same version here"
    )]
    NotOurs {
        /// The URL.
        server: String,
        /// What does not fit.
        source: serde_json::Error,
    },
    /// The answer is too large to be one.
    #[error("the answer of {server} is larger than {MAX_ANSWER_BYTES} bytes: check --server")]
    TooLarge {
        /// The URL.
        server: String,
    },
    /// The scaler refuses.
    #[error("{message}: {remedy}")]
    Refused {
        /// The API's message.
        message: String,
        /// The API's remedy.
        remedy: String,
    },
    /// The result cannot be written.
    #[error("the result cannot be written")]
    Write(#[source] io::Error),
}

/// Fetches the decision and prints it to `out`; with `watch` again whenever it says something new,
/// for ever, each time under a line with the time.
///
/// # Errors
///
/// When the scaler does not answer or refuses, or `out` fails.
pub async fn run(args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let client = reqwest::Client::builder()
        .timeout(ANSWER_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .map_err(|source| Error::Unreachable { server: shown(args), source })?;
    let url = url(args)?;
    let clock = Clock::start();
    let (mut last_said, mut is_away) = (None, false);
    loop {
        let body = match fetch(&client, &url, args).await {
            Ok(body) => body,
            // What has answered once is being started anew.
            Err(error @ Error::Unreachable { .. }) if last_said.is_some() => {
                if !std::mem::replace(&mut is_away, true) {
                    // A closed stderr is no reason to stop watching.
                    let _closed = writeln!(io::stderr(), "waiting for the scaler: {error}");
                }
                sleep(WATCH_INTERVAL).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        is_away = false;
        let snapshot: Snapshot = serde_json::from_slice(&body)
            .map_err(|source| Error::NotOurs { server: shown(args), source })?;
        let (page, said) = page(&snapshot, body, args.format).map_err(Error::Write)?;
        if last_said.as_ref() != Some(&said) {
            let has_head = args.watch && args.format == Format::Text;
            let head = if has_head { head(&clock, last_said.is_some()) } else { String::new() };
            let written = out.write_all(head.as_bytes()).and_then(|()| out.write_all(&page));
            written.and_then(|()| out.flush()).map_err(Error::Write)?;
            last_said = Some(said);
        }
        if !args.watch {
            return Ok(());
        }
        sleep(WATCH_INTERVAL).await;
    }
}

/// What is printed of a snapshot, and what of it counts as said: of a text all but its ages, with the
/// durations that are none (settings, what was learned); of JSON the number of the decision.
fn page(snapshot: &Snapshot, mut body: Vec<u8>, format: Format) -> io::Result<(Vec<u8>, String)> {
    match format {
        Format::Text => {
            let mut page = Vec::new();
            print(snapshot, &mut page)?;
            let learned = snapshot.decision.as_deref().map(|decision| {
                let inputs = &decision.inputs;
                (inputs.hold_ms, inputs.cold_start_ms)
            });
            let said = without_ages(&String::from_utf8_lossy(&page));
            Ok((page, format!("{said} {learned:?} {:?}", snapshot.policy)))
        }
        Format::Json => {
            body.push(b'\n');
            Ok((body, format!("{} {:?}", snapshot.workload.version, snapshot.workload.answer)))
        }
    }
}

/// The words of a text that are no durations: where its lines end hangs on the durations too.
fn without_ages(text: &str) -> String {
    let is_age = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        word.ends_with(|c: char| c.is_ascii_alphabetic()) && parse_millis(word).is_ok()
    };
    text.split_whitespace().filter(|word| !is_age(word)).collect::<Vec<_>>().join(" ")
}

fn head(clock: &Clock, is_next: bool) -> String {
    let between = if is_next { "\n" } else { "" };
    let at = jiff::Timestamp::from_millisecond(clock.now().0).unwrap_or_default();
    format!("{between}{at:.0}\n")
}

fn workload(text: &str) -> Result<(String, String), NoWorkload> {
    match text.split_once('/') {
        Some((namespace, name)) if is_name(namespace) && is_name(name) => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        Some(_) | None => Err(NoWorkload),
    }
}

fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    (1..=253).contains(&text.len()) && text.chars().all(allowed)
}

/// The text names no workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected NAMESPACE/NAME of a ScaledObject, e.g. demo/llm")]
pub struct NoWorkload;

fn url(args: &Args) -> Result<reqwest::Url, Error> {
    let (namespace, name) = &args.workload;
    let wrong = || Error::Server { server: shown(args) };
    let whole = if args.server.contains("://") {
        args.server.clone()
    } else {
        // HOST:PORT, as every address of this binary.
        format!("http://{}", args.server)
    };
    let mut url = reqwest::Url::parse(&whole).map_err(|_no_url| wrong())?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong());
    }
    url.path_segments_mut().map_err(|()| wrong())?.pop_if_empty().extend([
        "api",
        "v1",
        "workloads",
        namespace,
        name,
    ]);
    url.set_query(None);
    if let Some(trigger) = &args.trigger {
        url.query_pairs_mut().append_pair("trigger", trigger);
    }
    Ok(url)
}

/// The server as given. What stands before an @ may be a password.
fn shown(args: &Args) -> String {
    args.server.rsplit('@').next().unwrap_or_default().to_owned()
}

#[derive(serde::Deserialize)]
struct Refusal {
    error: RefusalBody,
}

#[derive(serde::Deserialize)]
struct RefusalBody {
    message: String,
    remedy: String,
}

fn token(path: &Path) -> io::Result<String> {
    let text = files::read_text(path, MAX_KEY_BYTES)?;
    let token = text.trim();
    // What no header carries would look like a scaler that does not answer.
    if token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "expected one line with a token"));
    }
    Ok(token.to_owned())
}

async fn fetch(
    client: &reqwest::Client,
    url: &reqwest::Url,
    args: &Args,
) -> Result<Vec<u8>, Error> {
    let server = || shown(args);
    let mut request = client.get(url.clone());
    if let Some(path) = &args.token_file {
        let token = token(path).map_err(|source| Error::Token { path: path.clone(), source })?;
        request = request.bearer_auth(token);
    }
    // The URL may carry user and password; an error is printed.
    let unreachable = |source: reqwest::Error| Error::Unreachable {
        server: server(),
        source: source.without_url(),
    };
    let mut response = request.send().await.map_err(unreachable)?;
    let status = response.status();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ANSWER_BYTES {
            return Err(Error::TooLarge { server: server() });
        }
    }
    if status.is_success() {
        return Ok(body);
    }
    let refusal: Refusal = serde_json::from_slice(&body)
        .map_err(|source| Error::NotOurs { server: server(), source })?;
    Err(Error::Refused { message: refusal.error.message, remedy: refusal.error.remedy })
}

#[cfg(test)]
mod tests;
