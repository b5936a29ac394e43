//! `ghostscaler conformance`: plays KEDA against any external scaler and checks what KEDA needs.
//!
//! Knows nothing of this product's own scaler: whatever speaks KEDA's proto is held to the same.

mod checks;
pub(crate) mod client;
mod progress;
mod rehearsal;
mod report;

use std::collections::{HashMap, HashSet};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::{host_and_port, kubernetes_name};
use crate::files::{self, MAX_PEM_BYTES};
use crate::proto::ScaledObjectRef;
use checks::{Context, Faulty, How, Rule, SpecStream};
use client::{Failure, Scaler, Tls};
use progress::Progress;
use report::Report;

/// Checks an external scaler against what KEDA expects of it.
///
/// Plays KEDA's operator and the HPA: their calls, order, deadlines, streams and reconnects. Point
/// it at an object that has data. Exits 0 if a check passed and none failed, 1 if one failed, 2 if it
/// could not run or not one check could be made. Rules that cannot be seen from outside are listed and
/// fail nothing.
#[derive(Debug, Clone, clap::Args)]
#[command(
    override_usage = "ghostscaler conformance HOST:PORT --namespace NS --name NAME [OPTIONS]"
)]
pub struct Args {
    /// Where the scaler listens.
    #[arg(value_name = "HOST:PORT", value_parser = host_and_port)]
    pub address: String,

    /// The ScaledObject's namespace.
    #[arg(long, value_name = "NS", value_parser = kubernetes_name)]
    pub namespace: String,

    /// The ScaledObject's name.
    #[arg(long, value_name = "NAME", value_parser = kubernetes_name)]
    pub name: String,

    /// One key of the trigger's metadata; repeat it for each. KEDA's scalerAddress is added.
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub metadata: Vec<(String, String)>,

    /// A key that the scaler should refuse with this value; repeatable [default: no metadata at
    /// all, if --metadata is given].
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub bad_metadata: Vec<(String, String)>,

    /// How to print the result.
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,

    /// How long to play KEDA before the single checks, from 100ms to 1h. Polls come six times in it, HPA queries
    /// twice; the default has KEDA's own rhythm.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub duration: Duration,

    /// Check only these rules, such as A6,E1.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub only: Vec<String>,

    /// How many ScaledObjects the load checks play.
    #[arg(long, value_name = "N", default_value_t = 1_000,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub load: u32,

    /// Use TLS, with this authority (PEM).
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// This client's certificate chain (PEM).
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    pub tls_cert: Option<PathBuf>,

    /// The key of --tls-cert (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

/// How a report is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people, 80 columns wide.
    Table,
    /// One object with an entry for each check.
    Json,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// At least one check passed and none failed. Exit status 0.
    Passed,
    /// At least one check failed. Exit status 1.
    Failed,
}

/// Why a run could not be made. Exit status 2.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is of no use.
    #[error("address `{address}`: expected HOST:PORT")]
    Address {
        /// As given.
        address: String,
        /// What the transport made of it.
        source: tonic::transport::Error,
    },
    /// Nothing that speaks gRPC answers.
    #[error("no gRPC server answers at {address}: {why}")]
    Unreachable {
        /// As given.
        address: String,
        /// How it failed.
        why: String,
    },
    /// A file of the TLS flags cannot be read.
    #[error("`--{flag} {}` cannot be read", path.display())]
    File {
        /// The flag.
        flag: &'static str,
        /// As given.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// `--only` names no rule.
    #[error("--only {id}: no such rule; expected ids such as A6 or E1")]
    UnknownRule {
        /// As given.
        id: String,
    },
    /// Not one check could be made, so that the run says nothing of the scaler.
    #[error(
        "nothing could be checked: does {namespace}/{name} exist, and has it data? Of the chosen \
         rules none has passed or failed; --format json says what each needs"
    )]
    NothingChecked {
        /// The object's namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The report cannot be written.
    #[error("cannot write the report")]
    Report(#[from] std::io::Error),
    /// A key is given twice.
    #[error("`{key}` is given twice: expected each key once")]
    KeyTwice {
        /// Which.
        key: String,
    },
    /// A flag's text has no `=`.
    #[error("`{text}`: expected KEY=VALUE")]
    KeyAndValue {
        /// As given.
        text: String,
    },
}

/// Runs the checks and writes the report to `out`, with colours if standard output is a terminal.
/// How far it is goes to `progress`: a line that is written over if standard error is a terminal,
/// else one for each group of checks.
///
/// # Errors
///
/// If no run could be made. What the scaler does wrong is no error, but [`Outcome::Failed`].
pub async fn run(
    args: &Args,
    out: &mut dyn Write,
    progress: &mut dyn Write,
) -> Result<Outcome, Error> {
    let rules = chosen_rules(&args.only)?;
    for pairs in [&args.metadata, &args.bad_metadata] {
        let mut keys = HashSet::new();
        if let Some((key, _)) = pairs.iter().find(|(key, _)| !keys.insert(key)) {
            return Err(Error::KeyTwice { key: key.clone() });
        }
    }
    let mut progress = Progress::new(rules.len(), progress);
    let context = prepare(args, &mut progress).await?;
    // Load last: what it breaks must not be laid at another rule's door.
    let (load, rest): (Vec<&Rule>, Vec<&Rule>) =
        rules.iter().partition(|rule| rule.id.starts_with('D'));
    let mut findings = HashMap::new();
    for rule in rest.into_iter().chain(load) {
        progress.step(rule.id)?;
        let finding = match &rule.how {
            How::Check(check) => checks::run(*check, &context).await,
            How::Outside(needs) => Err(checks::Shortfall::NotCheckable((*needs).to_owned())),
        };
        findings.insert(rule.id, finding);
    }
    progress.clear()?;

    let mut report = Report::new(&args.address);
    for rule in rules {
        if let Some(finding) = findings.remove(rule.id) {
            report.add(rule, finding);
        }
    }
    match args.format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, &report).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
        Format::Table => {
            write!(out, "{}", report.table(std::io::stdout().is_terminal()))?;
        }
    }
    report.outcome().ok_or_else(|| Error::NothingChecked {
        namespace: args.namespace.clone(),
        name: args.name.clone(),
    })
}

fn chosen_rules(only: &[String]) -> Result<Vec<&'static Rule>, Error> {
    let rules = checks::rules();
    if let Some(unknown) =
        only.iter().find(|id| !rules.iter().any(|rule| rule.id.eq_ignore_ascii_case(id)))
    {
        return Err(Error::UnknownRule { id: unknown.clone() });
    }
    let is_chosen = |rule: &&'static Rule| {
        only.is_empty() || only.iter().any(|id| rule.id.eq_ignore_ascii_case(id))
    };
    Ok(rules.into_iter().filter(is_chosen).collect())
}

/// Makes contact, plays KEDA for a while, and gathers what the checks need.
async fn prepare(args: &Args, progress: &mut Progress<'_>) -> Result<Context, Error> {
    let scaled_object = scaled_object(args);
    let faulty = faulty(args, &scaled_object);
    let tls = read_tls(args)?;
    let scaler = Scaler::new(&args.address, tls.as_ref(), scaled_object)
        .map_err(|source| Error::Address { address: args.address.clone(), source })?;
    let unreachable = |failure: Failure| Error::Unreachable {
        address: args.address.clone(),
        why: failure.to_string(),
    };
    let connection = scaler.connect().await.map_err(unreachable)?;
    if let Err(failure @ (Failure::Broken(_) | Failure::Late)) =
        connection.unknown_method().await.result
    {
        return Err(unreachable(failure));
    }
    let millis = u64::try_from(args.duration.as_millis()).unwrap_or(u64::MAX);
    progress.say(&format!("playing KEDA for {}", crate::duration::format_millis(millis)))?;
    // Boxed: five loops at once are too large for every caller's stack.
    let transcript =
        Box::pin(rehearsal::play(&scaler, args.duration)).await.map_err(unreachable)?;
    let spec_stream = SpecStream::probe(&connection, &scaler.scaled_object).await;
    let n_objects = usize::try_from(args.load).unwrap_or(usize::MAX);
    Ok(Context { scaler, faulty, n_objects, transcript, spec_stream })
}

/// The reference that KEDA would send: with the address among the metadata.
fn scaled_object(args: &Args) -> ScaledObjectRef {
    let mut scaler_metadata: HashMap<String, String> = args.metadata.iter().cloned().collect();
    scaler_metadata.entry("scalerAddress".to_owned()).or_insert_with(|| args.address.clone());
    ScaledObjectRef { name: args.name.clone(), namespace: args.namespace.clone(), scaler_metadata }
}

fn faulty(args: &Args, good: &ScaledObjectRef) -> Option<Faulty> {
    let mut scaled_object = good.clone();
    let metadata = &mut scaled_object.scaler_metadata;
    if !args.bad_metadata.is_empty() {
        metadata.extend(args.bad_metadata.iter().cloned());
        let keys = args.bad_metadata.iter().map(|(key, _value)| key.clone()).collect();
        return Some(Faulty { scaled_object, keys });
    }
    if args.metadata.is_empty() {
        return None;
    }
    metadata.retain(|key, _value| key == "scalerAddress");
    let keys = args.metadata.iter().map(|(key, _value)| key.clone()).collect();
    Some(Faulty { scaled_object, keys })
}

fn read_tls(args: &Args) -> Result<Option<Tls>, Error> {
    let Some(authority) = &args.tls_ca else {
        return Ok(None);
    };
    let identity = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            Some((read("tls-cert", certificate)?, read("tls-key", key)?))
        }
        (None, _) | (_, None) => None,
    };
    Ok(Some(Tls { authority: read("tls-ca", authority)?, identity }))
}

fn read(flag: &'static str, path: &Path) -> Result<String, Error> {
    files::read_text(path, MAX_PEM_BYTES).map_err(|source| Error::File {
        flag,
        path: path.to_owned(),
        source,
    })
}

fn key_and_value(text: &str) -> Result<(String, String), Error> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err(Error::KeyAndValue { text: text.to_owned() }),
    }
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    // In less than that the rehearsal's polls would only measure each other.
    let millis = crate::duration::parse_millis(text).ok();
    let in_range = millis.filter(|millis| (100..=3_600_000).contains(millis));
    in_range.map(Duration::from_millis).ok_or("expected a duration from 100ms to 1h")
}
