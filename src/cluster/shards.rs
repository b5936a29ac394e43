//! What was learned, in ConfigMaps: it outlives every pod of the scaler.
//!
//! Must never stop a start: a shard that is damaged, or of a newer version, is set aside with an event,
//! and what it held is learned again. The form of a shard is that of a state file (`statedir`).
//!
//! A workload's shard is a hash of its key, and their number a power of two that grows until each
//! stays below [`MAX_SHARD_BYTES`]. Where a workload is in two, after their number has changed, the
//! later write counts, in the order of the API server: those who saved may have had different clocks.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::watched::describe;
use crate::decision::{Moment, State};
use crate::lead::Lead;
use crate::registry::TrackerKey;
use crate::statedir::{self, Damage, Restored};

/// Largest shard: half of what a ConfigMap may be, so that it may grow until the next save.
pub const MAX_SHARD_BYTES: usize = 512 * 1024;
/// Most shards: 512 MiB in all, which no API server would like and no fleet reaches.
const MAX_SHARDS: u32 = 1_024;
/// How long the API server may take for one shard.
const DEADLINE: Duration = Duration::from_secs(5);
/// The label by which the shards of one election are listed.
const LABEL: &str = "ghostscaler.io/state-of";
/// The key of the data.
const FILE: &str = "state.jsonl";
/// Shards of one page of a list.
const PAGE_SIZE: u32 = 20;

/// The shards could not be read or saved; those that were not saved keep what they had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// They cannot all be listed.
    #[error("the shards cannot be listed: {0}")]
    List(String),
    /// The account may not list them.
    #[error("the shards may not be listed: {0}")]
    Refused(String),
    /// The API server does not take one.
    #[error("the shard {name} cannot be written: {why}")]
    Write {
        /// Which.
        name: String,
        /// Why.
        why: String,
    },
    /// Another process has written it.
    #[error("the shard {name} was written by another replica")]
    Taken {
        /// Which.
        name: String,
    },
    /// This process may no longer decide.
    #[error("another replica leads")]
    NotLeading,
}

/// The shards of one election.
pub struct Shards {
    api: Api<ConfigMap>,
    client: kube::Client,
    namespace: String,
    lease: String,
    /// Those that exist, with the version that was read or written last.
    versions: BTreeMap<u32, String>,
}

impl std::fmt::Debug for Shards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shards").field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl Shards {
    /// The shards beside the Lease of this name.
    #[must_use]
    pub fn new(client: kube::Client, namespace: &str, lease: &str) -> Shards {
        Shards {
            api: Api::namespaced(client.clone(), namespace),
            client,
            namespace: namespace.to_owned(),
            lease: lease.to_owned(),
            versions: BTreeMap::new(),
        }
    }

    /// Reads what was saved, the oldest first. What cannot be used is set aside.
    ///
    /// # Errors
    ///
    /// [`Error::List`] or [`Error::Refused`]: a part of what was saved is no answer.
    pub async fn restore(&mut self) -> Result<Vec<Restored>, Error> {
        self.versions.clear();
        let mut restored = Vec::new();
        let mut params = self.list_params();
        loop {
            let page = timeout(DEADLINE, self.api.list(&params))
                .await
                .map_err(|_elapsed| Error::List("no answer in time".to_owned()))?
                .map_err(unlisted)?;
            for shard in page.items {
                let version = shard.metadata.resource_version.as_deref();
                let version: u64 = version.and_then(|it| it.parse().ok()).unwrap_or(0);
                restored.extend(self.take(shard).await.map(|shard| (version, shard)));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = self.list_params().continue_token(&token),
                None => break,
            }
        }
        restored.sort_by_key(|(version, _)| *version);
        Ok(restored.into_iter().map(|(_, shard)| shard).collect())
    }

    /// Forgets which shards there are: another has led, and written them. The next save looks.
    pub fn forget(&mut self) {
        self.versions.clear();
    }

    /// Replaces what is saved, within about `over`, while this process leads.
    ///
    /// # Errors
    ///
    /// When a shard cannot be written, or somebody else has written it; when none is known and they
    /// cannot be listed.
    pub async fn save(
        &mut self,
        now: Moment,
        states: &[(TrackerKey, State)],
        lead: &Lead,
        over: Duration,
    ) -> Result<(), Error> {
        if self.versions.is_empty() {
            // Who has led on from another's answers has read none of its shards.
            self.look().await?;
        }
        let mut n_shards = u32::try_from(self.versions.len()).unwrap_or(MAX_SHARDS).max(1);
        n_shards = n_shards.next_power_of_two().min(MAX_SHARDS);
        let texts = loop {
            let texts = split(now, states, n_shards);
            let largest = texts.iter().map(String::len).max().unwrap_or(0);
            if largest <= MAX_SHARD_BYTES || n_shards >= MAX_SHARDS {
                break texts;
            }
            let times = u32::try_from(largest.div_ceil(MAX_SHARD_BYTES)).unwrap_or(MAX_SHARDS);
            n_shards = n_shards.saturating_mul(times).min(MAX_SHARDS).next_power_of_two();
        };
        let mut failed = None;
        for (index, text) in (0..).zip(texts) {
            if !lead.decides() {
                return Err(Error::NotLeading);
            }
            if text.len() > MAX_SHARD_BYTES {
                warn!(shard = index, bytes = text.len(), "a shard is too large and is not saved");
                continue;
            }
            if let Err(error) = self.write(index, text, lead).await {
                failed.get_or_insert(error);
            }
            sleep(over / n_shards).await;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let surplus: Vec<u32> = self.versions.range(n_shards..).map(|(index, _)| *index).collect();
        for index in surplus {
            // What is left of it is older than what was written just now.
            drop(self.api.delete(&self.name(index), &DeleteParams::default()).await);
            self.versions.remove(&index);
        }
        Ok(())
    }

    /// What a shard holds, if it is one.
    async fn take(&mut self, shard: ConfigMap) -> Option<Restored> {
        let index = self.note(&shard.metadata)?;
        let text = shard.data.as_ref().and_then(|data| data.get(FILE)).map_or("", String::as_str);
        match statedir::decode(text.as_bytes()) {
            Ok(restored) => Some(restored),
            Err(damage) => {
                let text = text.to_owned();
                self.set_aside(shard, index, text, damage).await;
                None
            }
        }
    }

    /// Keeps a copy of what cannot be used, and tells it; the next save replaces the shard.
    async fn set_aside(&self, shard: ConfigMap, index: u32, text: String, damage: Damage) {
        let aside = format!("{}-{index}", self.name_of("damaged"));
        let copy = ConfigMap {
            metadata: ObjectMeta { name: Some(aside.clone()), ..ObjectMeta::default() },
            data: Some(BTreeMap::from([(FILE.to_owned(), text)])),
            ..ConfigMap::default()
        };
        let params = PatchParams::apply("ghostscaler").force();
        let patch = Patch::Apply(&copy);
        let kept = timeout(DEADLINE, self.api.patch(&aside, &params, &patch)).await;
        let is_kept = matches!(kept, Ok(Ok(_)));
        let name = shard.metadata.name.clone();
        warn!(shard = name, %damage, is_kept, "saved state not used; it is learned again");
        let note =
            format!("{damage}: what it held is learned again; a copy is in ConfigMap {aside}");
        let reporter = Reporter { controller: "ghostscaler".to_owned(), instance: None };
        let event = Event {
            type_: EventType::Warning,
            reason: "StateNotUsed".to_owned(),
            action: "SetAside".to_owned(),
            note: Some(note),
            secondary: None,
        };
        let reference = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            name,
            namespace: Some(self.namespace.clone()),
            uid: shard.metadata.uid,
            ..ObjectReference::default()
        };
        let recorder = Recorder::new(self.client.clone(), reporter);
        let told = timeout(DEADLINE, recorder.publish(&event, &reference)).await;
        if !matches!(told, Ok(Ok(()))) {
            info!("the event about it could not be written");
        }
    }

    /// Writes a shard. Who has written it meanwhile led before, if this process leads.
    async fn write(&mut self, index: u32, text: String, lead: &Lead) -> Result<(), Error> {
        let name = self.name(index);
        let version = self.versions.get(&index).cloned();
        let mut object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(BTreeMap::from([(LABEL.to_owned(), self.lease.clone())])),
                resource_version: version,
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(FILE.to_owned(), text)])),
            ..ConfigMap::default()
        };
        let params = PostParams::default();
        // At a hand-over there is no next time.
        let writing = async {
            let mut is_again = false;
            loop {
                let is_known = object.metadata.resource_version.is_some();
                let written = if is_known {
                    self.api.replace(&name, &params, &object).await
                } else {
                    self.api.create(&params, &object).await
                };
                object.metadata.resource_version = match written {
                    // Deleted meanwhile.
                    Err(kube::Error::Api(status)) if status.code == 404 && is_known => None,
                    Err(kube::Error::Api(status))
                        if status.code == 409 && !is_again && lead.decides() =>
                    {
                        is_again = true;
                        let found = self.api.get_metadata_opt(&name).await?;
                        found.and_then(|found| found.metadata.resource_version)
                    }
                    written => return written,
                };
            }
        };
        match timeout(DEADLINE, writing).await {
            Ok(Ok(written)) => {
                let version = written.metadata.resource_version.unwrap_or_default();
                self.versions.insert(index, version);
                Ok(())
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(Error::Taken { name }),
            Ok(Err(error)) => Err(Error::Write { name, why: describe(&error) }),
            Err(_elapsed) => Err(Error::Write { name, why: "no answer in time".to_owned() }),
        }
    }

    /// Learns which shards there are.
    async fn look(&mut self) -> Result<(), Error> {
        let params = ListParams { limit: None, ..self.list_params() };
        let found = timeout(DEADLINE, self.api.list_metadata(&params))
            .await
            .map_err(|_elapsed| Error::List("no answer in time".to_owned()))?
            .map_err(unlisted)?;
        for shard in found.items {
            self.note(&shard.metadata);
        }
        Ok(())
    }

    /// Notes the version of a shard; gives its number, if it is one.
    fn note(&mut self, found: &ObjectMeta) -> Option<u32> {
        let number = found.name.as_deref()?.strip_prefix(&self.name_of(""))?;
        let index = number.parse().ok().filter(|index| *index < MAX_SHARDS)?;
        self.versions.insert(index, found.resource_version.clone().unwrap_or_default());
        Some(index)
    }

    fn list_params(&self) -> ListParams {
        ListParams::default().labels(&format!("{LABEL}={}", self.lease)).limit(PAGE_SIZE)
    }

    fn name(&self, index: u32) -> String {
        self.name_of(&index.to_string())
    }

    fn name_of(&self, part: &str) -> String {
        format!("{}-state-{part}", self.lease)
    }
}

fn unlisted(error: kube::Error) -> Error {
    let is_refused = matches!(&error, kube::Error::Api(status) if status.is_forbidden());
    let why = describe(&error);
    if is_refused { Error::Refused(why) } else { Error::List(why) }
}

/// The texts of all shards.
fn split(now: Moment, states: &[(TrackerKey, State)], n_shards: u32) -> Vec<String> {
    let mut parts: Vec<Vec<&(TrackerKey, State)>> = Vec::new();
    parts.resize_with(usize::try_from(n_shards).unwrap_or(1), Vec::new);
    let n_parts = u64::from(n_shards);
    for entry in states {
        let hash = statedir::checksum(entry.0.workload.to_string().as_bytes());
        let index = usize::try_from(hash % n_parts).unwrap_or(0);
        if let Some(part) = parts.get_mut(index) {
            part.push(entry);
        }
    }
    let text = |part: Vec<&(TrackerKey, State)>| {
        statedir::encode(now, part.into_iter().map(|(key, state)| (key, state)))
    };
    parts.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests;
