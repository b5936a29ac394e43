//! The replicas of the scaler to each other: address and public key of each, on a Lease of its own.
//!
//! Who may write these Leases is a replica; that is all the trust that the pair has, so the key
//! itself need not be secret and nobody has to install one. Must not be used for anything else: the
//! election has its own Lease.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams};
use tokio::time::timeout;

use super::watched::describe;

const ADDRESS: &str = "ghostscaler.io/pair-address";
const KEY: &str = "ghostscaler.io/pair-key";
/// The label by which the members of one election are listed.
const LEASE: &str = "ghostscaler.io/lease";
/// How long the API server may take.
const DEADLINE: Duration = Duration::from_secs(3);

/// How a replica is reached and known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The pod's name, which is also its identity in the election.
    pub name: Arc<str>,
    /// Where it serves the others, HOST:PORT.
    pub address: String,
    /// Its public key, in hexadecimal.
    pub key: String,
}

/// The record of members. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Members {
    api: Api<Lease>,
    lease: Arc<str>,
    pod_uid: Option<Arc<str>>,
    /// As they were last read.
    seen: Arc<Mutex<Vec<Member>>>,
}

/// The record could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("the Leases of the scaler's replicas cannot be {doing}: {why}")]
pub struct Error {
    doing: &'static str,
    why: String,
}

impl Members {
    /// The members of the election `lease` in `namespace`. With the pod's uid its record goes with
    /// the pod.
    #[must_use]
    pub fn new(
        client: kube::Client,
        namespace: &str,
        lease: &str,
        pod_uid: Option<&str>,
    ) -> Members {
        let api = Api::namespaced(client, namespace);
        let seen = Arc::default();
        Members { api, lease: lease.into(), pod_uid: pod_uid.map(Into::into), seen }
    }

    /// Says how this process is reached.
    ///
    /// # Errors
    ///
    /// When it cannot be written within 3 s.
    pub async fn publish(&self, own: &Member) -> Result<(), Error> {
        let object = self.object_name(&own.name);
        let annotations = [(ADDRESS, &own.address), (KEY, &own.key)];
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(object.clone()),
                labels: Some(BTreeMap::from([(LEASE.to_owned(), self.lease.to_string())])),
                annotations: Some(
                    annotations.map(|(key, value)| (key.to_owned(), value.clone())).into(),
                ),
                owner_references: self.pod_uid.as_ref().map(|uid| vec![pod(&own.name, uid)]),
                ..ObjectMeta::default()
            },
            ..Lease::default()
        };
        let params = PatchParams::apply("ghostscaler").force();
        let patch = Patch::Apply(&lease);
        within("written", self.api.patch(&object, &params, &patch)).await.map(drop)
    }

    /// How a replica is reached; `None` if it has not said so.
    ///
    /// # Errors
    ///
    /// When it cannot be read within 3 s.
    pub async fn find(&self, name: &str) -> Result<Option<Member>, Error> {
        let found = within("read", self.api.get_opt(&self.object_name(name))).await?;
        Ok(found.and_then(|lease| self.member(lease)))
    }

    /// All that have said how they are reached, this process among them.
    ///
    /// # Errors
    ///
    /// When they cannot be read within 3 s.
    pub async fn list(&self) -> Result<Vec<Member>, Error> {
        let params = ListParams::default().labels(&format!("{LEASE}={}", self.lease)).limit(500);
        let leases = within("read", self.api.list(&params)).await?;
        let all: Vec<_> = leases.into_iter().filter_map(|lease| self.member(lease)).collect();
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&all);
        Ok(all)
    }

    /// All as they were last read: who is cut off from the API server still knows whom to follow.
    #[must_use]
    pub fn last_seen(&self) -> Vec<Member> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a key is that of any replica.
    ///
    /// # Errors
    ///
    /// When they cannot be read within 3 s.
    pub async fn knows(&self, key: &str) -> Result<bool, Error> {
        Ok(self.list().await?.iter().any(|member| member.key == key))
    }

    fn member(&self, lease: Lease) -> Option<Member> {
        let name = lease.metadata.name?;
        let name = name.strip_prefix(&self.object_name(""))?.into();
        let mut said = lease.metadata.annotations?;
        Some(Member { name, address: said.remove(ADDRESS)?, key: said.remove(KEY)? })
    }

    fn object_name(&self, member: &str) -> String {
        format!("{}-{member}", self.lease)
    }
}

fn pod(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}

async fn within<T>(
    doing: &'static str,
    asked: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match timeout(DEADLINE, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Error { doing, why: describe(&error) }),
        Err(_elapsed) => Err(Error { doing, why: "no answer in time".to_owned() }),
    }
}
