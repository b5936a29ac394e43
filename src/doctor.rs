//! `ghostscaler doctor`: what is wrong with a ScaledObject and what stands around it, and what cures it.
//!
//! Two gatherers, `cluster` and `files`, and a question to Prometheus (`series`) fill [`Facts`]; the
//! checks are pure. Changes nothing anywhere. What could not be looked at is told as such, with why.

mod checks;
mod cluster;
mod examine;
mod facts;
mod files;
mod finding;
mod installed;
mod object;
mod promql;
mod report;
mod series;
#[cfg(test)]
mod tests;
mod workload;

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;

use crate::cluster::{Error as ClusterError, inspect};
use crate::config::kubernetes_name;
use crate::duration;
use crate::files::{MAX_KEY_BYTES, MAX_PEM_BYTES};
use crate::source::config::{Fault, PrometheusConfig};
use crate::yaml;

pub use checks::CHECKS;
pub use examine::{Check, Examination, examine};
pub use facts::{
    Fact, Facts, Installation, Labels, Lack, Missing, NodeAutoscaler, Nodes, Owner, Prometheus,
    Rights, Said, Selected, Wake,
};
pub use finding::{Finding, Fix, Patch};

/// Checks ScaledObjects and prints what is wrong with them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The ScaledObject [default: each one of the namespace or the files].
    #[arg(value_name = "NAME", value_parser = kubernetes_name)]
    pub name: Option<String>,
    /// Its namespace; of files, that of documents without one [default: that of the kubeconfig's
    /// context; of files `default`].
    #[arg(short, long, value_name = "NS", value_parser = kubernetes_name)]
    pub namespace: Option<String>,
    /// Check this file instead of a cluster (`-` is standard input); may be repeated. Put the target,
    /// HPAs and the scaler's ConfigMap beside the ScaledObject: each document tells more.
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Also ask this Prometheus for the engines' series and the wake source's.
    #[arg(long, value_name = "URL", value_parser = prometheus)]
    pub prometheus: Option<PrometheusConfig>,
    /// A file with the bearer token that it wants.
    #[arg(long, value_name = "FILE", requires = "prometheus")]
    pub prometheus_token_file: Option<PathBuf>,
    /// The authority (PEM) that signed its certificate.
    #[arg(long, value_name = "FILE", requires = "prometheus")]
    pub prometheus_ca_file: Option<PathBuf>,
    /// How long a replica takes from order to readiness [default: as the cluster's pods took].
    #[arg(long, value_name = "DURATION", value_parser = millis)]
    pub cold_start: Option<u64>,
    /// How long the longest answers take, p99 [default: as Prometheus has it].
    #[arg(long, value_name = "DURATION", value_parser = millis)]
    pub longest_answer: Option<u64>,
    /// A finding that is meant to be so; may be repeated. It is shown and does not count.
    #[arg(long, value_name = "ID", value_parser = id)]
    pub accept: Vec<&'static str>,
    /// The cluster, as for kubectl [default: $KUBECONFIG, ~/.kube/config, the pod's own].
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    pub kubeconfig: Option<PathBuf>,
    /// How to print it.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
}

/// How the findings are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For a person, 80 columns.
    Text,
    /// For a program: each finding with its patch.
    Json,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was found, or only what is accepted.
    InOrder,
    /// Something is wrong.
    Findings,
}

/// Why nothing could be looked at. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("`--{flag} {}` cannot be read", path.display())]
    File {
        /// The flag that names it.
        flag: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no YAML.
    #[error("`--file {}` is no YAML", path.display())]
    Yaml {
        /// Which.
        path: PathBuf,
        /// Where.
        source: yaml::Error,
    },
    /// There is no cluster to look at.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Its ScaledObjects cannot be read.
    #[error(
        "the ScaledObjects of namespace {namespace} cannot be read: is KEDA installed, and may you \
         list them? Without a cluster, check files with --file"
    )]
    Objects {
        /// Where.
        namespace: String,
        /// Why.
        source: inspect::Error,
    },
    /// There is nothing to check.
    #[error("there is no ScaledObject{} in {place}", of_name(name.as_deref()))]
    Nothing {
        /// The one that was asked for.
        name: Option<String>,
        /// Where it was looked for.
        place: String,
    },
    /// The result cannot be written.
    #[error("the result cannot be written")]
    Write(#[source] io::Error),
}

fn of_name(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!(" {name}"))
}

/// What the command line tells of the facts.
struct Given {
    cold_start_ms: Option<u64>,
    longest_answer_ms: Option<u64>,
}

impl Given {
    fn cold_start(&self, seen: Option<u64>) -> Fact<u64> {
        let known = self.cold_start_ms.or(seen);
        known.ok_or_else(|| Missing::because("how long a start takes is not known: --cold-start"))
    }

    fn longest_answer(&self, seen: Option<u64>) -> Fact<u64> {
        let known = self.longest_answer_ms.or(seen);
        known.ok_or_else(|| {
            Missing::because("how long answers take is not known: --longest-answer or --prometheus")
        })
    }

    /// Until it is asked.
    fn prometheus(&self) -> Fact<Prometheus> {
        Err(Missing::because("no Prometheus is given: --prometheus"))
    }
}

/// Checks what the arguments name and prints it to `out`.
///
/// # Errors
///
/// When nothing could be looked at. A closed pipe is a normal end.
pub async fn run(args: &Args, out: &mut dyn Write) -> Result<Outcome, Error> {
    for (flag, path, max_bytes) in [
        ("prometheus-token-file", &args.prometheus_token_file, MAX_KEY_BYTES),
        ("prometheus-ca-file", &args.prometheus_ca_file, MAX_PEM_BYTES),
    ] {
        // Later a file that is of no use would only be one more thing that could not be looked at.
        if let Some(path) = path {
            crate::files::read(path, max_bytes).map_err(|source| Error::File {
                flag,
                path: path.clone(),
                source,
            })?;
        }
    }
    let given = Given { cold_start_ms: args.cold_start, longest_answer_ms: args.longest_answer };
    let wanted = args.name.as_deref();
    let (mut all, place) = if args.files.is_empty() {
        let cluster = inspect::Cluster::as_kubectl(args.kubeconfig.as_deref()).await?;
        let around = cluster::Surroundings::read(cluster, args.namespace.as_deref()).await?;
        let place = format!("namespace {}", around.namespace());
        (around.gather(wanted, &given).await, place)
    } else {
        let documents = files::read(&args.files, args.namespace.as_deref().unwrap_or("default"))?;
        (files::gather(&documents, wanted, &given), "the files".to_owned())
    };
    if all.is_empty() {
        return Err(Error::Nothing { name: args.name.clone(), place });
    }
    if let Some(config) = &args.prometheus {
        let config = PrometheusConfig {
            bearer_token_file: args.prometheus_token_file.clone(),
            ca_file: args.prometheus_ca_file.clone(),
            ..config.clone()
        };
        for facts in &mut all {
            series::ask(&config, facts).await;
        }
    }
    let report = report::Report::of(&all, &args.accept);
    let text = match args.format {
        Format::Text => report.text(io::stdout().is_terminal()),
        Format::Json => report.json(),
    };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::Write(error)),
        Ok(()) | Err(_) => {
            Ok(if report.is_in_order() { Outcome::InOrder } else { Outcome::Findings })
        }
    }
}

fn id(text: &str) -> Result<&'static str, String> {
    let ids = || CHECKS.iter().map(|check| check.id);
    ids().find(|id| *id == text).ok_or_else(|| {
        let nearest = crate::trigger::nearest(text, ids()).unwrap_or_default();
        format!("expected the id of a finding, nearest is {nearest}")
    })
}

fn prometheus(url: &str) -> Result<PrometheusConfig, Fault> {
    let config = PrometheusConfig::at(url);
    config.validate().map(|()| config)
}

fn millis(text: &str) -> Result<u64, duration::Error> {
    duration::parse_millis(text)
}
