//! The election of the one process that decides, on a Lease of `coordination.k8s.io`.
//!
//! Must not trust anybody's clock: a lease has run out when this process has not seen it change for
//! its duration, by its own monotonic clock. Every write carries the version that was read, so that
//! of two writers one is refused.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::watched::describe;
use crate::clock::Clock;
use crate::lead::Standing;

/// Whose election, and how fast.
#[derive(Debug, Clone)]
pub struct Options {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// This process: the pod's name.
    pub identity: Arc<str>,
    /// After how long without a renewal the lease is anybody's.
    pub duration: Duration,
    /// After how long without a renewal of its own a leader stops deciding; less than `duration`, so
    /// that never two decide.
    pub renew_within: Duration,
    /// Time between two looks, and between two renewals.
    pub interval: Duration,
}

impl Options {
    /// A leader renews every 2 s, decides for 7 s after its last renewal and is followed by another
    /// after 10 s: a third less than the usual 15, 10 and 2, since a change of the leader costs no
    /// restart here.
    #[must_use]
    pub fn new(namespace: &str, name: &str, identity: &str) -> Options {
        Options {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.into(),
            duration: Duration::from_secs(10),
            renew_within: Duration::from_secs(7),
            interval: Duration::from_secs(2),
        }
    }

    fn metadata(&self) -> ObjectMeta {
        ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() }
    }
}

/// The word to give the lease up, and when that is done. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Resignation {
    /// From here on this process only looks on.
    pub asked: CancellationToken,
    /// The lease is not this process's, as far as can be known.
    pub done: CancellationToken,
}

/// Takes part in the election and publishes where this process stands, until `stop`, or until it has
/// resigned.
pub async fn run(
    client: kube::Client,
    options: Options,
    clock: Clock,
    standing: watch::Sender<Standing>,
    resignation: Resignation,
    stop: CancellationToken,
) {
    let Resignation { asked: resign, done } = resignation;
    let api = Api::namespaced(client, &options.namespace);
    let mut candidate =
        Candidate { api, options, clock, seen: None, until: None, resigned: false, failing: None };
    loop {
        let started = Instant::now();
        candidate.resigned = resign.is_cancelled();
        if candidate.resigned {
            // Before the lease is written: the next leader may begin before the answer is here.
            candidate.until = None;
            candidate.publish(&standing);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = candidate.step() => {}
        }
        candidate.publish(&standing);
        if candidate.resigned && candidate.failing.is_none() && !candidate.holds() {
            done.cancel();
        }
        let pause = candidate.options.interval.saturating_sub(started.elapsed());
        // A leader that cannot renew must say so in time, not at the next look.
        let left = candidate.until.map(|until| until.saturating_duration_since(Instant::now()));
        let pause = left.map_or(pause, |left| pause.min(left));
        tokio::select! {
            () = stop.cancelled() => return,
            () = resign.cancelled(), if !candidate.resigned => {}
            () = sleep(pause.max(Duration::from_millis(50))) => {}
        }
    }
}

/// The lease as it was last read.
#[derive(Debug, Clone)]
struct Seen {
    lease: Lease,
    /// When this version was first seen.
    at: Instant,
}

impl Seen {
    fn spec(&self) -> Option<&LeaseSpec> {
        self.lease.spec.as_ref()
    }

    fn holder(&self) -> Option<&str> {
        self.spec()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
    }

    /// Whether it is anybody's. How long a lease lasts is agreed by the program and not said by whoever
    /// writes it: a short one would give its holder a rival, and a long one everybody nobody.
    fn has_run_out(&self, duration: Duration) -> bool {
        self.holder().is_none() || self.at.elapsed() >= duration
    }
}

struct Candidate {
    api: Api<Lease>,
    options: Options,
    clock: Clock,
    seen: Option<Seen>,
    /// Until when this process leads; `None` while it does not.
    until: Option<Instant>,
    resigned: bool,
    /// The failure as logged, so that the same one is not logged at each try.
    failing: Option<String>,
}

impl Candidate {
    /// Renews, or looks and takes what is free.
    async fn step(&mut self) {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            warn!(lease = self.options.name, "the lease could not be renewed in time");
            self.until = None;
        }
        let tried = timeout(self.patience(), self.try_step()).await;
        let failure = match tried {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(describe(&error)),
            Err(_elapsed) => Some("no answer in time".to_owned()),
        };
        if failure.is_some() && failure != self.failing {
            let error = failure.as_deref();
            warn!(lease = self.options.name, error, "the lease cannot be read or written");
        }
        self.failing = failure;
    }

    /// How long one exchange with the API server may take: a leader has to be able to try again, and to
    /// say in time that it leads no more.
    fn patience(&self) -> Duration {
        let patience = self.options.renew_within / 2;
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(patience, |left| patience.min(left))
    }

    async fn try_step(&mut self) -> Result<(), kube::Error> {
        if self.resigned && self.holds() {
            return self.release().await;
        }
        if self.until.is_none() || self.seen.is_none() {
            self.look().await?;
        }
        if self.resigned {
            return if self.holds() { self.release().await } else { Ok(()) };
        }
        let duration = self.options.duration;
        let may_take = self.seen.as_ref().is_none_or(|seen| seen.has_run_out(duration));
        if self.until.is_none() && !may_take {
            return Ok(());
        }
        self.take().await
    }

    async fn look(&mut self) -> Result<(), kube::Error> {
        let Some(lease) = self.api.get_opt(&self.options.name).await? else {
            // Deleted, which its holder may not know yet: it runs out as if it were there.
            if let Some(seen) = &mut self.seen {
                seen.lease.metadata = self.options.metadata();
            }
            return Ok(());
        };
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        let is_same = |seen: &Seen| version(&seen.lease) == version(&lease);
        let at = self.seen.as_ref().filter(|seen| is_same(seen)).map(|seen| seen.at);
        self.seen = Some(Seen { lease, at: at.unwrap_or_else(Instant::now) });
        Ok(())
    }

    /// Writes this process as the holder, for the first time or again.
    async fn take(&mut self) -> Result<(), kube::Error> {
        let mut asked = Instant::now();
        let was_leading = self.until.is_some();
        let written = match self.claim().await {
            Ok(written) => written,
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                self.look().await?;
                let holder = self.seen.as_ref().and_then(Seen::holder);
                if !was_leading {
                    return Ok(());
                }
                if holder != Some(&self.options.identity) {
                    warn!(lease = self.options.name, holder, "the lease was taken away");
                    self.until = None;
                    return Ok(());
                }
                // Its own last renewal, whose answer was lost.
                asked = Instant::now();
                self.claim().await?
            }
            Err(error) => return Err(error),
        };
        if !was_leading {
            info!(lease = self.options.name, "leading");
        }
        self.seen = Some(Seen { lease: written, at: asked });
        // From before the write: nobody can have seen it earlier.
        self.until = Some(asked + self.options.renew_within);
        Ok(())
    }

    async fn claim(&self) -> Result<Lease, kube::Error> {
        self.write(self.record(Some(&self.options.identity))).await
    }

    /// Whether the lease is this process's, as it was last read.
    fn holds(&self) -> bool {
        let holder = self.seen.as_ref().and_then(Seen::holder);
        holder == Some(&*self.options.identity)
    }

    async fn release(&mut self) -> Result<(), kube::Error> {
        match self.write(self.record(None)).await {
            Ok(written) => {
                info!(lease = self.options.name, "the lease is given up");
                self.seen = Some(Seen { lease: written, at: Instant::now() });
            }
            // Another's, or gone, or its own last renewal, whose answer was lost.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                self.look().await?;
                if self.holds() {
                    let written = self.write(self.record(None)).await?;
                    self.seen = Some(Seen { lease: written, at: Instant::now() });
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn write(&self, lease: Lease) -> Result<Lease, kube::Error> {
        let params = PostParams::default();
        if lease.metadata.resource_version.is_none() {
            self.api.create(&params, &lease).await
        } else {
            self.api.replace(&self.options.name, &params, &lease).await
        }
    }

    /// The lease as it shall be, everything kept that others have put on it.
    fn record(&self, holder: Option<&str>) -> Lease {
        let new = || Lease { metadata: self.options.metadata(), ..Lease::default() };
        let mut lease = self.seen.as_ref().map_or_else(new, |seen| seen.lease.clone());
        let now = Timestamp::from_millisecond(self.clock.now().0).ok().map(MicroTime);
        let before = lease.spec.take().unwrap_or_default();
        let is_new = before.holder_identity.as_deref() != holder;
        let seconds = if holder.is_some() { self.options.duration.as_secs() } else { 1 };
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(holder.unwrap_or_default().to_owned()),
            lease_duration_seconds: i32::try_from(seconds).ok(),
            acquire_time: if is_new { now.clone() } else { before.acquire_time.clone() },
            renew_time: now,
            lease_transitions: Some(
                before.lease_transitions.unwrap_or(0).saturating_add(i32::from(is_new)),
            ),
            ..before
        });
        lease
    }

    fn publish(&self, standing: &watch::Sender<Standing>) {
        let now = match self.until {
            Some(until) if Instant::now() < until => Standing::Leading { until },
            Some(_) | None => Standing::Following { leader: self.leader() },
        };
        standing.send_if_modified(|before| {
            let is_news = *before != now;
            *before = now;
            is_news
        });
    }

    /// Who is seen to lead. A holder of this process's own name is an earlier life of it.
    fn leader(&self) -> Option<Arc<str>> {
        let duration = self.options.duration;
        let seen = self.seen.as_ref().filter(|seen| !seen.has_run_out(duration))?;
        seen.holder().filter(|holder| **holder != *self.options.identity).map(Arc::from)
    }
}

#[cfg(test)]
mod tests;
