//! The Kubernetes API as the source of the inventory: ScaledObjects, their targets, their pods, the
//! HPAs that KEDA makes of them, and the devices on the nodes.
//!
//! Decides nothing, and writes nothing but events ([`events`]), where it is asked to which pods go first
//! ([`deletion`]), and in the scaler's own namespace who leads ([`lease`]), how the replicas reach each
//! other ([`members`]) and what was learned ([`shards`]).
//!
//! **How fresh.** ScaledObjects, Deployments, StatefulSets and pods are watched, one watch a kind
//! and namespace (or one a kind for all): a change is published 0.1 s after it is seen. So are HPAs,
//! resource claims and nodes, which no answer waits for: where a role does not allow them or a cluster
//! does not have them, less is known (the HPA's tolerance, claimed devices, the room for more). `/scale`
//! itself cannot be watched; of a Deployment or StatefulSet its `spec.replicas` and selector are
//! the same values. Targets of any other kind are read through `/scale` when their pods or their
//! ScaledObject change, and every 15 s.
//!
//! **When the API server does not answer**, what was read last stays, and [`Inventory`] says since
//! when it may be out of date, for each namespace by itself; a count that `/scale` has not told for half a
//! minute is unknown. Watches are resumed where they stopped; only one that is told that
//! its place is gone (410) lists again.
//!
//! **Memory.** Each object is reduced when it arrives, and the pods of one template share their
//! labels and device counts. Of each kind a bounded number is kept; where pods are left out, those of
//! namespaces without a ScaledObject first, what would be counted of the others is unknown. `tests/cluster/run.sh fleet --ignored` measures it with 10,000
//! ScaledObjects and 50,000 pods.

pub mod deletion;
mod devices;
pub mod events;
#[cfg(test)]
pub(crate) mod fixtures;
mod group;
mod hpa;
mod image;
pub mod inspect;
pub mod lease;
pub mod members;
mod pod;
mod scale;
mod scaled_object;
mod selector;
pub mod shards;
pub mod survey;
mod target;
mod template;
mod watch;
mod watched;
mod workload;
mod world;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::clock::Clock;
use crate::files::{self, MAX_DOCUMENT_BYTES};
use crate::inventory::Inventory;

pub use image::Shows;
pub use template::{PodFacts, of as pod_facts};

/// How long changes are collected before they are published together.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// How long the API server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be silent. The server ends each watch after 60 s (`watch`), so only a
/// hung server or a dead network is silent for longer.
const READ_TIMEOUT: Duration = Duration::from_secs(75);

/// The way to the Kubernetes API.
pub type Client = kube::Client;

/// What to read.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The namespaces to watch; all when empty.
    pub namespaces: Vec<String>,
}

/// One permission that [`run`] or [`events::run`] needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permission {
    /// The API group; empty for the core group, `*` for any.
    pub api_group: &'static str,
    /// The resource, with its subresource where that is meant.
    pub resource: &'static str,
    /// What is done with it.
    pub verbs: &'static [&'static str],
}

impl Permission {
    /// Whether a role of one namespace can give it.
    #[must_use]
    pub fn is_namespaced(&self) -> bool {
        self.resource != "nodes"
    }
}

/// Every permission that [`run`] and [`events::run`] need, for the manifests' role.
pub const RBAC: &[Permission] = &[
    Permission {
        api_group: "keda.sh",
        resource: "scaledobjects",
        verbs: &["get", "list", "watch"],
    },
    Permission { api_group: "apps", resource: "deployments", verbs: &["list", "watch"] },
    Permission { api_group: "apps", resource: "statefulsets", verbs: &["list", "watch"] },
    Permission { api_group: "", resource: "pods", verbs: &["list", "watch"] },
    Permission {
        api_group: "autoscaling",
        resource: "horizontalpodautoscalers",
        verbs: &["list", "watch"],
    },
    Permission {
        api_group: "resource.k8s.io",
        resource: "resourceclaims",
        verbs: &["list", "watch"],
    },
    Permission { api_group: "", resource: "nodes", verbs: &["list", "watch"] },
    Permission { api_group: "*", resource: "*/scale", verbs: &["get"] },
    Permission { api_group: "events.k8s.io", resource: "events", verbs: &["create", "patch"] },
];

/// Every permission that [`lease`], [`members`] and [`shards`] need, in the scaler's own namespace
/// only, for the manifests' second role.
pub const OWN_RBAC: &[Permission] = &[
    Permission {
        api_group: "coordination.k8s.io",
        resource: "leases",
        verbs: &["get", "list", "create", "update", "patch"],
    },
    Permission {
        api_group: "",
        resource: "configmaps",
        verbs: &["get", "list", "create", "update", "patch", "delete"],
    },
    // Of a shard that cannot be used: a binding of each watched namespace alone does not reach here.
    Permission { api_group: "events.k8s.io", resource: "events", verbs: &["create", "patch"] },
];

/// Why the cluster cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The given file is no usable kubeconfig.
    #[error("the kubeconfig {path} cannot be used", path = path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// No service account of a pod.
    #[error("this process has no service account: give a kubeconfig, or run it in a cluster")]
    InCluster(#[source] InClusterError),
    /// Nothing says where the cluster is.
    #[error(
        "no cluster is found: give --kubeconfig, set $KUBECONFIG, or run this in a pod with a \
         service account"
    )]
    NoCluster(#[source] Box<kube::config::InferConfigError>),
    /// The configuration makes no client.
    #[error("the cluster's configuration makes no client")]
    Client(#[source] Box<kube::Error>),
    /// The watches have ended, which they never should.
    #[error("the watches of the Kubernetes API have ended")]
    Ended,
}

/// A client from a kubeconfig file (its current context), else from the pod's service account.
/// Connects to nothing yet.
///
/// # Errors
///
/// When the file or the service account is missing or unusable.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<kube::Client, Error> {
    let config = match kubeconfig {
        None => kube::Config::incluster().map_err(Error::InCluster)?,
        Some(path) => from_file(path).await?,
    };
    client(config)
}

/// A client of the cluster that `kubectl` would take: a kubeconfig file, else that of $KUBECONFIG or
/// the home directory, else the pod's service account. Connects to nothing yet.
///
/// # Errors
///
/// When none of them is there, or the first that is there is unusable.
pub async fn connect_as_kubectl(kubeconfig: Option<&Path>) -> Result<kube::Client, Error> {
    let config = match kubeconfig {
        None => kube::Config::infer().await.map_err(|error| Error::NoCluster(Box::new(error)))?,
        Some(path) => from_file(path).await?,
    };
    client(config)
}

async fn from_file(path: &Path) -> Result<kube::Config, Error> {
    let wrong = |source| Error::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    // It is read again just below, and there without a bound.
    files::read(path, MAX_DOCUMENT_BYTES)
        .map_err(|source| wrong(KubeconfigError::ReadConfig(source, path.to_owned())))?;
    let file = Kubeconfig::read_from(path).map_err(wrong)?;
    let options = KubeConfigOptions::default();
    kube::Config::from_custom_kubeconfig(file, &options).await.map_err(wrong)
}

fn client(mut config: kube::Config) -> Result<kube::Client, Error> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Else the time that a pooled connection sat idle would count against the next answer.
    config.reset_reader_on_write = true;
    kube::Client::try_from(config).map_err(|error| Error::Client(Box::new(error)))
}

/// Publishes the cluster's workloads whenever something about them changes, until cancelled.
///
/// A failed read ends nothing: it is logged, tried again, and shows in the inventory's `synced`,
/// `unread` and `stale`, there for the namespaces alone that cannot be read.
///
/// # Errors
///
/// Only if the watches end by themselves, which is a fault of this program.
pub async fn run(
    client: kube::Client,
    options: Options,
    publish: tokio::sync::watch::Sender<Arc<Inventory>>,
    clock: Clock,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let namespaces: BTreeSet<Arc<str>> =
        options.namespaces.iter().map(|namespace| namespace.as_str().into()).collect();
    let namespaces: Vec<Arc<str>> = namespaces.into_iter().collect();
    let mut world = world::World::new(&namespaces);
    let mut updates = watch::updates(&client, &namespaces);
    let mut scales = scale::Reader::new(client);
    let mut publish_at: Option<Instant> = None;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            update = updates.next() => {
                world.apply(update.ok_or(Error::Ended)?, clock.now());
            }
            (key, target) = scales.next() => {
                world.apply_scale(key.scope, &key.namespace, key.target, target);
            }
            () = scale::sleep_until(publish_at) => {
                publish_at = None;
                let rebuilt = world.rebuild();
                for wanted in rebuilt.scales {
                    scales.want(wanted);
                }
                if let Some(inventory) = rebuilt.inventory {
                    if inventory.synced && !publish.borrow().synced {
                        let n_workloads = inventory.workloads.len();
                        info!(n_workloads, "the Kubernetes API has been read whole");
                    }
                    publish.send_replace(inventory);
                }
            }
        }
        if publish_at.is_none() && world.is_changed() {
            publish_at = Some(Instant::now() + DEBOUNCE);
        }
    }
}

#[cfg(test)]
mod tests;
