//! Objects of a cluster as they stand there, for who checks how it is set up.
//!
//! Reads once, with the rights of whoever asks; gives no meaning to an object and writes none. What
//! it posts are questions about rights, which change nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use serde_json::{Value, json};

use super::scaled_object::is_word;
use super::selector::PodSelector;
use super::survey::{self, Keda};

/// Objects of one list that are looked at; a longer list is not known whole.
const MAX_LISTED: u32 = 5_000;
/// How long one answer may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// A cluster that is looked at.
pub struct Cluster {
    client: kube::Client,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

/// Why something cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Whoever asks may not see it.
    #[error("you may not read {resource}: {message}")]
    Forbidden {
        /// The resource.
        resource: String,
        /// The API server's words.
        message: String,
    },
    /// The API server has no such resource.
    #[error("the cluster has no {0}")]
    NoResource(String),
    /// There are more objects than are looked at.
    #[error("there are more than {MAX_LISTED} {0}")]
    TooMany(String),
    /// No answer in time.
    #[error("{resource} have not come within {} s", DEADLINE.as_secs())]
    Deadline {
        /// The resource.
        resource: String,
    },
    /// A name that could lead elsewhere in the API.
    #[error("{0:?} is no name of the API's")]
    Name(String),
    /// Any other fault on the way.
    #[error("{resource} cannot be read")]
    Api {
        /// The resource.
        resource: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// Where the objects of one kind stand.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The API group and version, such as `apps/v1`; `v1` is the core group.
    pub api_version: &'a str,
    /// The resource in the plural.
    pub resource: &'a str,
    /// The namespace; `None` for all, or for what is in none.
    pub namespace: Option<&'a str>,
}

impl Cluster {
    /// The cluster that `kubectl` would take. Connects to nothing yet.
    ///
    /// # Errors
    ///
    /// As [`connect_as_kubectl`](super::connect_as_kubectl).
    pub async fn as_kubectl(kubeconfig: Option<&Path>) -> Result<Cluster, super::Error> {
        super::connect_as_kubectl(kubeconfig).await.map(|client| Cluster { client })
    }

    /// The namespace of the kubeconfig's context.
    #[must_use]
    pub fn default_namespace(&self) -> &str {
        self.client.default_namespace()
    }

    /// One object; `None` if it is not there.
    ///
    /// # Errors
    ///
    /// When it may not or cannot be read.
    pub async fn get(&self, place: Place<'_>, name: &str) -> Result<Option<Value>, Error> {
        check_words(&[name])?;
        let api = self.api(place)?;
        let object = in_time(place.resource, api.get_opt(name)).await?;
        Ok(object.as_ref().map(value))
    }

    /// All objects of one kind, those with these labels where some are given.
    ///
    /// # Errors
    ///
    /// When they may not or cannot be read, or are too many.
    pub async fn list(&self, place: Place<'_>, labels: Option<&str>) -> Result<Vec<Value>, Error> {
        let params =
            ListParams { label_selector: labels.map(str::to_owned), ..ListParams::default() };
        let api = self.api(place)?;
        let listed = in_time(place.resource, api.list(&params.limit(MAX_LISTED))).await?;
        if listed.metadata.continue_.is_some_and(|token| !token.is_empty()) {
            return Err(Error::TooMany(place.resource.to_owned()));
        }
        Ok(listed.items.iter().map(value).collect())
    }

    /// Asks about rights: posts a review of this kind with this spec, gives its status.
    ///
    /// # Errors
    ///
    /// When it may not or cannot be asked.
    pub async fn review(&self, place: Place<'_>, kind: &str, spec: &Value) -> Result<Value, Error> {
        let review =
            json!({"apiVersion": place.api_version, "kind": kind, "metadata": {}, "spec": spec});
        let review: DynamicObject = serde_json::from_value(review).map_err(|source| {
            let source = Box::new(kube::Error::SerdeError(source));
            Error::Api { resource: place.resource.to_owned(), source }
        })?;
        let api = self.api(place)?;
        let params = PostParams::default();
        let mut answer = in_time(place.resource, api.create(&params, &review)).await?;
        Ok(answer.data["status"].take())
    }

    /// A scale target by its kind, with its scale; `None` where one of them is not there.
    ///
    /// # Errors
    ///
    /// When the kind is unknown, or it may not or cannot be read.
    pub async fn target(
        &self,
        namespace: &str,
        (api_version, kind, name): (&str, &str, &str),
    ) -> Result<Option<(Value, Option<Value>)>, Error> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        check_words(&[namespace, kind, name, version])?;
        // The core group has no name.
        if !group.is_empty() {
            check_words(&[group])?;
        }
        let named = GroupVersionKind::gvk(group, version, kind);
        let read = async {
            let (resource, _) = kube::discovery::pinned_kind(&self.client, &named).await?;
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), namespace, &resource);
            let Some(object) = api.get_opt(name).await? else { return Ok(None) };
            let scale = match api.get_scale(name).await {
                Ok(scale) => Some(value(&scale)),
                Err(kube::Error::Api(status)) if status.is_not_found() => None,
                Err(error) => return Err(error),
            };
            Ok(Some((value(&object), scale)))
        };
        in_time(kind, read).await
    }

    /// The minor version of the API server, 36 of 1.36; `None` if it does not say.
    pub async fn minor(&self) -> Option<u32> {
        survey::minor(&self.client).await
    }

    /// What is known of its KEDA.
    pub async fn keda(&self) -> Keda {
        survey::keda(&self.client).await
    }

    fn api(&self, place: Place<'_>) -> Result<Api<DynamicObject>, Error> {
        let (group, version) = place.api_version.split_once('/').unwrap_or(("", place.api_version));
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: place.api_version.to_owned(),
            // Only what is written needs it, and a review brings its own.
            kind: String::new(),
            plural: place.resource.to_owned(),
        };
        let client = self.client.clone();
        Ok(match place.namespace {
            Some(namespace) => {
                check_words(&[namespace])?;
                Api::namespaced_with(client, namespace, &resource)
            }
            None => Api::all_with(client, &resource),
        })
    }
}

/// Names become parts of a path, and some come from objects that tenants write.
fn check_words(words: &[&str]) -> Result<(), Error> {
    match words.iter().find(|word| !is_word(word)) {
        Some(wrong) => Err(Error::Name((*wrong).to_owned())),
        None => Ok(()),
    }
}

async fn in_time<T>(
    resource: &str,
    read: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    let resource = resource.to_owned();
    match tokio::time::timeout(DEADLINE, read).await {
        Err(_elapsed) => Err(Error::Deadline { resource }),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => {
            Err(Error::Forbidden { resource, message: status.message.clone() })
        }
        Ok(Err(kube::Error::Api(status))) if status.is_not_found() => {
            Err(Error::NoResource(resource))
        }
        Ok(Err(error)) => Err(Error::Api { resource, source: Box::new(error) }),
    }
}

/// What came as JSON, as JSON.
fn value(object: &impl serde::Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// Whether a label selector's text selects these labels; one that cannot be read selects nothing.
#[must_use]
pub fn selects(selector: &str, labels: &BTreeMap<String, String>) -> bool {
    PodSelector::from_text(selector).is_some_and(|selector| selector.matches(labels))
}
