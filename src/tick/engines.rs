//! Reads the engines of one workload and remembers what each said last.
//!
//! Must not decide what a reading means; it hands fresh, stale or missing to `observe`. A round of
//! reads borrows no memory, so that a decision can be made while it is under way, and waits for no
//! engine that is late when others have answered.

use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::{Parts, Upstreams};
use crate::decision::{EngineSample, KeptSample, Moment, Phase, Reading, Why};
use crate::inventory::{Member, Workload};
use crate::signals::engine::{EngineReader, Filter};
use crate::signals::freshness::Freshness;
use crate::source::scrape::{Page, Target};
use crate::trigger::{Policy, SourceKind};

/// From when on a round no longer waits for those that are late, if any engine has been read: what a
/// sample may take to a decision.
const LATE: Duration = Duration::from_secs(1);

/// The memory of each member's metrics, by the member's id.
#[derive(Debug, Default)]
pub(super) struct Engines {
    // In order of the ids, and never larger than it must be: most workloads have one or two
    // members, and a map's spare places would cost as much as all else that a workload takes.
    memories: Vec<(Arc<str>, Freshness)>,
    /// Reads that no round waits for any more.
    late: Vec<Read>,
}

/// What one round of reads found, by the member's id, and what is still under way.
#[derive(Debug, Default)]
pub(super) struct Round {
    found: Vec<(Arc<str>, Result<EngineSample, Why>)>,
    /// How far the clock of the samples' times is ahead of this process's, milliseconds.
    ahead_ms: i64,
    late: Vec<Read>,
}

/// The read of one member; ends with its value.
#[derive(Debug)]
struct Read {
    id: Arc<str>,
    task: AbortOnDropHandle<Result<EngineSample, Why>>,
}

impl Future for Read {
    type Output = (Arc<str>, Result<EngineSample, Why>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.task.poll_unpin(context).map(|ended| match ended {
            Ok(read) => (Arc::clone(&self.id), read),
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            // The process ends.
            Err(_) => (Arc::clone(&self.id), Err(Why::NotYetRead)),
        })
    }
}

/// Reads every member once, all at the same time, but for those `under_way`; each read has its own
/// deadline.
pub(super) async fn read(
    parts: &Arc<Parts>,
    upstreams: &Upstreams,
    workload: &Workload,
    policy: &Policy,
    under_way: &[Arc<str>],
) -> Round {
    let filter =
        Filter { model_name: policy.model_name.as_deref().map(Box::from), family: policy.engine };
    let live = || workload.members.iter().filter(|member| member.phase != Phase::Terminating);
    match policy.source(workload) {
        SourceKind::Pods => {
            let filter = Arc::new(filter);
            let due = live().filter(|member| !under_way.contains(&member.id));
            let reads = due.map(|member| {
                let target = target(member, policy);
                let (parts, filter) = (Arc::clone(parts), Arc::clone(&filter));
                let task = tokio::spawn(async move {
                    let started = Instant::now();
                    let read = scrape(&parts, target, &filter).await;
                    parts.metrics.scraped(started.elapsed(), read.as_ref().err().copied());
                    read
                });
                Read { id: Arc::clone(&member.id), task: AbortOnDropHandle::new(task) }
            });
            // On a stepped clock nobody is late.
            let late_at = (!parts.clock.is_stepped()).then(|| Instant::now() + LATE);
            in_time(reads.collect(), late_at).await
        }
        SourceKind::Prometheus => {
            let read = upstreams.engines_of(&workload.key.namespace).await;
            let found = live().map(|member| {
                let sample = read.sample(&member.id, &filter).map_err(not_the_engines);
                (Arc::clone(&member.id), sample)
            });
            Round { found: found.collect(), ahead_ms: read.ahead_ms(), late: Vec::new() }
        }
    }
}

/// Waits until all have answered, or until it is late and any engine has been read: a refused connection
/// is nothing to decide by.
async fn in_time(mut reads: FuturesUnordered<Read>, late_at: Option<Instant>) -> Round {
    let mut found = Vec::with_capacity(reads.len());
    let late = async {
        match late_at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    let mut late = std::pin::pin!(late);
    loop {
        tokio::select! {
            biased;
            read = reads.next() => match read {
                Some(read) => found.push(read),
                None => break,
            },
            () = &mut late, if found.iter().any(|(_, read): &(_, Result<_, _>)| read.is_ok()) => break,
        }
    }
    Round { found, ahead_ms: 0, late: reads.into_iter().collect() }
}

/// A Prometheus that refuses connections says nothing of an engine, which would still be loading.
fn not_the_engines(why: Why) -> Why {
    if why == Why::Refused { Why::Transport } else { why }
}

impl Engines {
    /// The members that are still being read. Takes what late reads have found meanwhile: who has
    /// answered is read again.
    pub(super) fn under_way(&mut self, now: Moment) -> Vec<Arc<str>> {
        self.take_late(now);
        self.late.iter().map(|read| Arc::clone(&read.id)).collect()
    }

    /// Takes what a round found, and what late reads have found meanwhile; forgets who is no member any
    /// more.
    pub(super) fn record(&mut self, round: Round, workload: &Workload, now: Moment) {
        // Before the round's: it is older.
        self.take_late(now);
        self.late.extend(round.late);
        let is_member = |id: &Arc<str>| workload.members.iter().any(|member| member.id == *id);
        self.late.retain(|read| is_member(&read.id));
        self.memories.retain(|(id, _)| is_member(id));
        for (id, read) in round.found.into_iter().filter(|(id, _)| is_member(id)) {
            self.note(id, read, round.ahead_ms, now);
        }
    }

    fn take_late(&mut self, now: Moment) {
        let mut found = Vec::new();
        self.late.retain_mut(|read| match read.now_or_never() {
            Some(read) => {
                found.push(read);
                false
            }
            None => true,
        });
        for (id, read) in found {
            self.note(id, read, 0, now);
        }
    }

    fn note(&mut self, id: Arc<str>, read: Result<EngineSample, Why>, ahead_ms: i64, now: Moment) {
        let memory = match self.position(&id) {
            Ok(known) => &mut self.memories[known].1,
            Err(place) => {
                self.memories.reserve_exact(1);
                self.memories.insert(place, (id, Freshness::default()));
                &mut self.memories[place].1
            }
        };
        match read {
            Ok(sample) => memory.record_ahead(sample, ahead_ms, now),
            Err(why) => memory.fail(why),
        }
    }

    /// The state of one member's metrics.
    pub(super) fn reading(
        &self,
        member: &Member,
        tick_ms: u64,
        now: Moment,
    ) -> Reading<KeptSample> {
        match self.position(&member.id) {
            Ok(known) => self.memories[known].1.reading(now, tick_ms),
            Err(_place) => Reading::Missing { why: Why::NotYetRead },
        }
    }

    /// Whether a member said last that it sleeps.
    pub(super) fn sleeps(&self, member: &Member) -> bool {
        let known = self.position(&member.id).ok();
        known.is_some_and(|known| self.memories[known].1.sleeps())
    }

    fn position(&self, id: &str) -> Result<usize, usize> {
        self.memories.binary_search_by(|(known, _)| (**known).cmp(id))
    }
}

fn target(member: &Member, policy: &Policy) -> Result<Target, Why> {
    let endpoint = member.endpoint.as_ref().ok_or(Why::NoEndpoint)?;
    Target::new(endpoint, policy.metrics_port, policy.metrics_path.as_deref())
        .map_err(|error| error.why())
}

async fn scrape(
    parts: &Parts,
    target: Result<Target, Why>,
    filter: &Filter,
) -> Result<EngineSample, Why> {
    let page = parts.scraper.open(&target?).await.map_err(|error| error.why())?;
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

#[cfg(test)]
mod tests;
