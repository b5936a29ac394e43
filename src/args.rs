//! The command line: every flag a validated type, its help the reference.
//!
//! The only module that reads the environment.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::{
    backtest, config, conformance, demo, doctor, duration, explain, generate, replay, simulate,
};

/// Decides how many GPU replicas an LLM workload needs, and says why.
#[derive(Debug, Parser)]
#[command(name = "ghostscaler", version, max_term_width = 80)]
#[command(after_help = "Start with `ghostscaler demo`. Then `ghostscaler serve --config \
    manifests/local/example.yaml`, and `ghostscaler explain demo/llm`.")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show it working on this machine: simulated engines, and KEDA and the HPA as a model, around
    /// the real scaler; then a verdict.
    ///
    /// A working day in 2 h 37 min, played in a minute or two: asleep, waking, a morning peak with
    /// 30-second dips, a step, a long idle. KEDA's Prometheus trigger gets the same requests, on
    /// queue depth and on concurrency, each at its best target. No cluster, no GPU. The scaler's API
    /// can be asked while it runs. Exits with 0 whoever wins.
    Demo(demo::Args),
    /// Run the scaler: read engines, decide, answer KEDA over gRPC.
    ///
    /// With --kubeconfig, or inside a cluster, the workloads are the cluster's ScaledObjects;
    /// otherwise they are the `workloads` of the configuration file. $KUBECONFIG alone changes
    /// nothing.
    Serve(Box<Serve>),
    /// Print a workload's last decision and its reasons, from a running scaler.
    Explain(explain::Args),
    /// Print a ScaledObject that lets this scaler scale a target.
    ///
    /// Looks at the target and its cluster, changes nothing, and prints YAML with the reasons as
    /// comments. What is doubtful is a comment and a warning on standard error.
    Generate(generate::Args),
    /// Check ScaledObjects and what stands around them; say why it hurts, and the cure.
    ///
    /// Looks at the ScaledObject, its target, the HPA, quotas, permissions and the
    /// scaler's Service, in a cluster or in files, and with --prometheus at the series.
    /// Changes nothing. Each finding has an id and, where possible, a patch to paste.
    /// What could not be looked at is listed with the reason, never assumed.
    ///
    /// Exits with 0 if nothing is wrong, 1 if something is, 2 if it could not look.
    ///
    ///   ghostscaler doctor -n team-a llm                 in the cluster
    ///   ghostscaler doctor -f app.yaml --format json     in a pipeline, without one
    ///   ghostscaler generate deployment/llm | ghostscaler doctor -f -
    #[command(verbatim_doc_comment)]
    Doctor(Box<doctor::Args>),
    /// Run a recorded decision log through the decision again and compare.
    ///
    /// Exits with 0 if all lines are the same byte for byte, 1 if some differ, 2 if the file or a
    /// line cannot be read, or there is none.
    Replay(replay::Args),
    /// Check any external scaler against what KEDA expects of it.
    ///
    /// Plays KEDA's operator and the HPA: their calls, order, deadlines, streams and reconnects.
    /// Point it at an object that has data. Exits with 0 if no check failed, 1 if one did, 2 if it
    /// could not run. Rules that cannot be seen from outside are listed and fail nothing.
    Conformance(conformance::Args),
    /// Run policies on a trace and compare what they cost and how well they serve.
    Simulate(Box<simulate::Args>),
    /// Replay a workload's own history from Prometheus under each policy: GPU-hours, money, risk.
    ///
    /// Reads what the engines counted, reconstructs the requests that came and how far they are
    /// known, learns what the replica's steps cost, and runs the scaler, the usual KEDA triggers and
    /// a static fleet on it. It changes nothing and asks gently: two queries at once, none twice.
    Backtest(Box<backtest::Args>),
}

/// The flags of `serve`.
#[derive(Debug, clap::Args)]
pub struct Serve {
    /// The configuration file (YAML): upstreams, wake sources, and workloads without a cluster.
    /// Read again on SIGHUP and when it changes; a bad new file is refused, the old one stays.
    #[arg(long, value_name = "FILE", env = "GHOSTSCALER_CONFIG")]
    pub config: Option<PathBuf>,

    /// Where KEDA calls [default: 0.0.0.0:9090, or the file's grpcAddress].
    #[arg(long, value_name = "HOST:PORT", value_parser = listen_address)]
    pub grpc_address: Option<SocketAddr>,

    /// Where the API, /metrics and the health paths are [default: 0.0.0.0:8080, or the file's
    /// httpAddress].
    #[arg(long, value_name = "HOST:PORT", value_parser = listen_address)]
    pub http_address: Option<SocketAddr>,

    /// Take the workloads from the cluster that this file describes.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Watch only this namespace; may be repeated [default: all].
    #[arg(long = "namespace", value_name = "NS", value_delimiter = ',', value_parser = config::kubernetes_name)]
    pub namespaces: Vec<String>,

    /// Before a step down, write to each pod of a ReplicaSet what it has to do, so that the idle ones
    /// go; needs the right to patch pods.
    #[arg(long)]
    pub idle_pods_first: bool,

    /// Keep what was learned in this directory, for the next start.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Write each changed decision as a JSON line to this file (`-` is standard output); `replay`
    /// reads it.
    #[arg(long, value_name = "FILE")]
    pub decision_log: Option<PathBuf>,

    /// Size at which the decision log is rotated, from 64 KiB; one old file is kept.
    #[arg(long, value_name = "BYTES", default_value_t = 64 * 1024 * 1024,
        value_parser = clap::value_parser!(u64).range(65_536..), requires = "decision_log")]
    pub decision_log_bytes: u64,

    /// A file with the token that API writes (and reads from other hosts) need; without it the API
    /// takes writes from loopback only.
    #[arg(long, value_name = "FILE")]
    pub api_token_file: Option<PathBuf>,

    /// Serve gRPC over TLS with this certificate chain (PEM); read again when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The key of --tls-cert (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Demand a client certificate of this authority (PEM) from KEDA.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,

    /// How long one engine may take to answer a scrape, from 100ms to 15s.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = scrape_timeout)]
    pub scrape_timeout: u64,

    /// How long to go on answering after SIGTERM, so that KEDA can move to another replica;
    /// an hour at most.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = until_the_end)]
    pub drain_delay: u64,

    /// How long the end may take after that, an hour at most.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = until_the_end)]
    pub shutdown_grace: u64,

    /// How to log to standard error.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: crate::telemetry::Format,

    /// What to log, as a tracing filter such as `info` or `ghostscaler=debug`.
    #[arg(long, value_name = "FILTER", default_value = crate::telemetry::DEFAULT_FILTER, env = "GHOSTSCALER_LOG")]
    pub log: String,

    /// Where the other replicas of the scaler connect, each with a key of its own.
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:9091", value_parser = listen_address)]
    pub pair_address: SocketAddr,

    /// The Lease by which several replicas agree on the one that decides. Also the prefix of the
    /// ConfigMaps that keep what was learned.
    #[arg(long, value_name = "NAME", default_value = "ghostscaler")]
    pub lease_name: String,

    /// This pod's name; with --pod-namespace there is an election, and replicas answer alike.
    /// Without it this process alone decides.
    #[arg(long, value_name = "NAME", env = "POD_NAME", requires = "pod_namespace")]
    pub pod_name: Option<String>,

    /// The namespace of this pod, its Lease and its ConfigMaps.
    #[arg(long, value_name = "NS", env = "POD_NAMESPACE")]
    pub pod_namespace: Option<String>,

    /// The address at which the other replicas reach this pod [default: that of --pair-address].
    #[arg(long, value_name = "IP", env = "POD_IP")]
    pub pod_ip: Option<std::net::IpAddr>,

    /// This pod's uid, so that what it leaves goes with it.
    #[arg(long, hide = true, env = "POD_UID")]
    pub pod_uid: Option<String>,

    /// Set by Kubernetes in every pod; with a service account's token it says "in a cluster".
    #[arg(long, hide = true, env = "KUBERNETES_SERVICE_HOST")]
    pub kubernetes_service_host: Option<String>,
}

fn listen_address(text: &str) -> Result<SocketAddr, config::Error> {
    config::parse_listen_address(text)
}

fn scrape_timeout(text: &str) -> Result<u64, &'static str> {
    // Above the slowest tick a hung engine would set the pace.
    let in_range = duration::parse_millis(text).ok().filter(|ms| (100..=15_000).contains(ms));
    in_range.ok_or("expected a duration from 100ms to 15s")
}

fn until_the_end(text: &str) -> Result<u64, &'static str> {
    let in_range = duration::parse_millis(text).ok().filter(|ms| *ms <= 3_600_000);
    in_range.ok_or("expected a duration of an hour at most")
}
