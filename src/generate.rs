//! `ghostscaler generate`: a ScaledObject for a target, made so that each decision gets through.
//!
//! Reads the cluster once and changes nothing. What to write is decided in `plan`, how it looks in
//! `text`; both are pure.

mod plan;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use crate::cluster;
use crate::cluster::survey::{self, TargetName};
use crate::config::{host_and_port, kubernetes_name};
use crate::trigger::{self, Faults};
use crate::yaml;

/// The address at which the manifests' Service answers KEDA.
pub const DEFAULT_ADDRESS: &str = "ghostscaler.ghostscaler.svc.cluster.local:9090";

/// Seconds that KEDA waits after the last active poll before it goes to zero, in what is generated the
/// least that outlives a scaler whose packets vanish: with two ScaledObjects on its address KEDA 2.21
/// kept the dead connection for 305 s. A hung scaler is ended by its liveness probe before that.
pub const COOLDOWN_S: i64 = 600;

/// The same for an object that has just been made, whose scaler may be cold.
pub const INITIAL_COOLDOWN_S: i64 = 600;

/// Prints a ScaledObject for a target.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    ghostscaler generate deployment/llm -n team-a --max 8 > llm.yaml\n  \
    kubectl apply -f llm.yaml")]
pub struct Args {
    /// What shall be scaled, as KIND/NAME: deployment/llm, statefulset/llm, lws/llm, or any other
    /// kind with a scale subresource.
    #[arg(value_name = "KIND/NAME")]
    pub target: TargetName,
    /// Its namespace [default: that of the kubeconfig's context].
    #[arg(short, long, value_name = "NS", value_parser = kubernetes_name)]
    pub namespace: Option<String>,
    /// Fewest replicas; 0 lets it sleep, which needs a wakeSource.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub min: u32,
    /// Most replicas [default: twice the present count, at least 4].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max: Option<u32>,
    /// The ScaledObject's name [default: the target's].
    #[arg(long, value_name = "NAME", value_parser = kubernetes_name)]
    pub name: Option<String>,
    /// Trigger metadata, such as sloTtft=1s or wakeSource=gateway; may be repeated.
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = pair)]
    pub metadata: Vec<(String, String)>,
    /// Where KEDA's operator reaches the scaler.
    #[arg(long, value_name = "HOST:PORT", default_value = DEFAULT_ADDRESS, value_parser = host_and_port)]
    pub scaler_address: String,
    /// The cluster, as for kubectl [default: $KUBECONFIG, ~/.kube/config, the pod's own].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// How to print it.
    #[arg(long, value_name = "FORMAT", default_value = "yaml")]
    pub format: Format,
}

/// How a ScaledObject is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// With its reasons as comments.
    Yaml,
    /// The object alone.
    Json,
}

/// Why there is no ScaledObject. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bounds cross.
    #[error("`--max {max}` is below `--min {min}`: expected at least as many")]
    Bounds {
        /// As given.
        min: u32,
        /// As given.
        max: u32,
    },
    /// The scaler would refuse the metadata.
    #[error("`--metadata` is not what the scaler takes")]
    Metadata(#[source] Faults),
    /// A key is given twice, or belongs to KEDA.
    #[error("`--metadata {key}=…`: expected each key once, and `--scaler-address` for the address")]
    Key {
        /// The key.
        key: String,
    },
    /// There is no cluster to look at.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The target cannot be looked at.
    #[error(transparent)]
    Survey(#[from] survey::Error),
    /// The result is no object, which is a fault of this program.
    #[error("the result is not the YAML that it should be")]
    Yaml(#[source] yaml::Error),
    /// The result cannot be written.
    #[error("the result cannot be written")]
    Write(#[source] io::Error),
}

/// Prints the ScaledObject to `out` and what is doubtful to `warnings`.
///
/// # Errors
///
/// When an argument is wrong, the target cannot be read or scaled, or `out` fails.
pub async fn run(args: &Args, out: &mut dyn Write, warnings: &mut dyn Write) -> Result<(), Error> {
    let metadata = checked_metadata(args)?;
    if let Some(max) = args.max.filter(|max| *max < args.min) {
        return Err(Error::Bounds { min: args.min, max });
    }
    let client = cluster::connect_as_kubectl(args.kubeconfig.as_deref()).await?;
    let namespace = args.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let survey = survey::survey(client, &namespace, &args.target).await?;
    let plan = plan::plan(&survey, args, metadata);
    print(&plan, args.format, out, warnings)
}

fn print(
    plan: &plan::Plan,
    format: Format,
    out: &mut dyn Write,
    warnings: &mut dyn Write,
) -> Result<(), Error> {
    let mut yaml = Vec::new();
    text::write(plan, &mut yaml).map_err(Error::Write)?;
    for doubt in plan.doubts() {
        writeln!(warnings, "warning: {doubt}").map_err(Error::Write)?;
    }
    match format {
        Format::Yaml => out.write_all(&yaml).map_err(Error::Write)?,
        Format::Json => {
            let object: serde_json::Value =
                serde_saphyr::from_slice(&yaml).map_err(|error| Error::Yaml(error.into()))?;
            writeln!(out, "{object:#}").map_err(Error::Write)?;
        }
    }
    out.flush().map_err(Error::Write)
}

/// The metadata by key, once the scaler's own parser has taken it.
fn checked_metadata(args: &Args) -> Result<BTreeMap<String, String>, Error> {
    let mut metadata = BTreeMap::new();
    for (key, value) in &args.metadata {
        let is_address = key.strip_suffix(trigger::FROM_ENV).unwrap_or(key) == "scalerAddress";
        if is_address || metadata.insert(key.clone(), value.clone()).is_some() {
            return Err(Error::Key { key: key.clone() });
        }
    }
    trigger::parse(metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())))
        .map_err(Error::Metadata)?;
    Ok(metadata)
}

fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, such as sloTtft=1s")?;
    Ok((key.to_owned(), value.to_owned()))
}
