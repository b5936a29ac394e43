//! Reads the engines of one workload and remembers what each said last.
//!
//! Must not decide what a reading means; it hands fresh, stale or missing to `observe`.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{Parts, Upstreams};
use crate::decision::{EngineSample, Moment, Phase, Reading, Why};
use crate::inventory::{Member, Workload};
use crate::signals::engine::{EngineReader, Filter};
use crate::signals::freshness::Freshness;
use crate::source::scrape::Target;
use crate::trigger::{Policy, SourceKind};

/// The memory of each member's metrics, by the member's id.
#[derive(Debug, Default)]
pub(super) struct Engines {
    memories: HashMap<Arc<str>, Freshness>,
}

impl Engines {
    /// Reads every member once, all at the same time; each read has its own deadline.
    pub(super) async fn read(
        &mut self,
        parts: &Parts,
        upstreams: &Upstreams,
        workload: &Workload,
        policy: &Policy,
    ) {
        let filter = Filter {
            model_name: policy.model_name.as_deref().map(Box::from),
            family: policy.engine,
        };
        let live = || workload.members.iter().filter(|member| member.phase != Phase::Terminating);
        let results: Vec<(Arc<str>, Result<EngineSample, Why>)> =
            match policy.source.unwrap_or(SourceKind::Pods) {
                SourceKind::Pods => {
                    let reads = live().map(|member| async {
                        let started = Instant::now();
                        let read = scrape(parts, member, policy, &filter).await;
                        parts.metrics.scraped(started.elapsed(), read.as_ref().err().copied());
                        (Arc::clone(&member.id), read)
                    });
                    join_all(reads).await
                }
                SourceKind::Prometheus => {
                    let read = upstreams.engines_of(&workload.key.namespace).await;
                    live()
                        .map(|member| (Arc::clone(&member.id), read.sample(&member.id, &filter)))
                        .collect()
                }
            };
        self.memories.retain(|id, _| workload.members.iter().any(|member| member.id == *id));
        let now = parts.clock.now();
        for (id, result) in results {
            let memory = self.memories.entry(id).or_default();
            match result {
                Ok(sample) => memory.record(sample, now),
                Err(why) => memory.fail(why),
            }
        }
    }

    /// The state of one member's metrics.
    pub(super) fn reading(
        &self,
        member: &Member,
        tick_ms: u64,
        now: Moment,
    ) -> Reading<EngineSample> {
        match self.memories.get(&member.id) {
            Some(memory) => memory.reading(now, tick_ms),
            None => Reading::Missing { why: Why::NotYetRead },
        }
    }
}

async fn scrape(
    parts: &Parts,
    member: &Member,
    policy: &Policy,
    filter: &Filter,
) -> Result<EngineSample, Why> {
    let endpoint = member.endpoint.as_ref().ok_or(Why::NoEndpoint)?;
    let target = Target::new(endpoint, policy.metrics_port, policy.metrics_path.as_deref())
        .map_err(|error| error.why())?;
    let page = parts.scraper.open(&target).await.map_err(|error| error.why())?;
    let mut reader = EngineReader::new(filter).with_format(page.format());
    let read = page.read(|chunk| match reader.push(chunk) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error.why()),
    });
    match read.await.map_err(|error| error.why())? {
        ControlFlow::Break(why) => Err(why),
        ControlFlow::Continue(_bytes) => {
            let page = reader.finish(parts.clock.now()).map_err(|error| error.why())?;
            Ok(page.sample)
        }
    }
}
