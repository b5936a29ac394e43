//! Reads the engines of one workload and remembers what each said last.
//!
//! Must not decide what a reading means; it hands fresh, stale or missing to `observe`. A round of
//! reads borrows no memory, so that a decision can be made while it is under way.

use std::ops::ControlFlow;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{Parts, Upstreams};
use crate::decision::{EngineSample, Moment, Phase, Reading, Why};
use crate::inventory::{Member, Workload};
use crate::signals::engine::{EngineReader, Filter};
use crate::signals::freshness::Freshness;
use crate::source::scrape::{Page, Target};
use crate::trigger::{Policy, SourceKind};

/// The memory of each member's metrics, by the member's id.
#[derive(Debug, Default)]
pub(super) struct Engines {
    // In order of the ids, and never larger than it must be: most workloads have one or two
    // members, and a map's spare places would cost as much as all else that a workload takes.
    memories: Vec<(Arc<str>, Freshness)>,
}

/// What one round of reads found, by the member's id.
pub(super) type Round = Vec<(Arc<str>, Result<EngineSample, Why>)>;

/// Reads every member once, all at the same time; each read has its own deadline.
pub(super) async fn read(
    parts: &Parts,
    upstreams: &Upstreams,
    workload: &Workload,
    policy: &Policy,
) -> Round {
    let filter =
        Filter { model_name: policy.model_name.as_deref().map(Box::from), family: policy.engine };
    let live = || workload.members.iter().filter(|member| member.phase != Phase::Terminating);
    match policy.source(workload) {
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
                .map(|member| {
                    let sample = read.sample(&member.id, &filter).map_err(not_the_engines);
                    (Arc::clone(&member.id), sample)
                })
                .collect()
        }
    }
}

/// A Prometheus that refuses connections says nothing of an engine, which would still be loading.
fn not_the_engines(why: Why) -> Why {
    if why == Why::Refused { Why::Transport } else { why }
}

impl Engines {
    /// Takes what a round found; forgets who is no member any more.
    pub(super) fn record(&mut self, round: Round, workload: &Workload, now: Moment) {
        self.memories.retain(|(id, _)| workload.members.iter().any(|member| member.id == *id));
        for (id, result) in round {
            let memory = match self.position(&id) {
                Ok(known) => &mut self.memories[known].1,
                Err(place) => {
                    self.memories.reserve_exact(1);
                    self.memories.insert(place, (id, Freshness::default()));
                    &mut self.memories[place].1
                }
            };
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
    ) -> Reading<Arc<EngineSample>> {
        match self.position(&member.id) {
            Ok(known) => self.memories[known].1.reading(now, tick_ms),
            Err(_place) => Reading::Missing { why: Why::NotYetRead },
        }
    }

    fn position(&self, id: &str) -> Result<usize, usize> {
        self.memories.binary_search_by(|(known, _)| (**known).cmp(id))
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
    // Apart from what waits for its turn: that may be thousands.
    Box::pin(fold(parts, page, filter)).await
}

async fn fold(parts: &Parts, page: Page, filter: &Filter) -> Result<EngineSample, Why> {
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
