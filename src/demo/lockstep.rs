//! Our own lane: the real scaler between the simulated cluster and KEDA, in lock step.
//!
//! The clock stands while anything is asked: it moves on when every scrape and call of the step has
//! answered. So the result depends on no machine's speed, and a seed gives the same bytes again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loadgen::engine::Profile;
use tokio::time::Instant;

use super::cluster::{Cluster, Score};
use super::gpus::Gpus;
use super::pages::{Pages, Shared, Site, lock};
use super::scaler::{Records, Scaler};
use super::screen::{Now, Screen};
use super::story::Story;
use super::timeline::Timeline;
use super::{Error, MAX, NAME, NAMESPACE, START, moment, time};
use crate::clock::{Clock, Hand};
use crate::conformance::client::{self, Connection, Event, Role, Stream};
use crate::decision::Moment;
use crate::grpc::METRIC_NAME;
use crate::hpa::{Behavior, Keda, ScaledObject, Turn};
use crate::proto::{MetricValue, ScaledObjectRef};

/// How often the gateway is read, as `serve` does.
const GATEWAY_MS: u64 = 250;
/// The HPA's phase: as good as any.
const FIRST_SYNC_MS: u64 = 11_000;
/// A push comes within milliseconds; after this it counts as lost.
const PUSH_LIMIT: Duration = Duration::from_secs(30);

/// The ScaledObject that the README recommends.
fn object() -> ScaledObject {
    ScaledObject {
        min: 0,
        max: MAX,
        polling_ms: 5_000,
        cooldown_ms: 300_000,
        initial_cooldown_ms: 600_000,
        target: 1.0,
        behavior: Some(Behavior::pass_through(MAX)),
    }
}

/// Runs our lane to the story's end.
pub(super) async fn run(
    story: &Arc<Story>,
    profile: &Arc<Profile>,
    speed: Option<f64>,
    records: Records,
    sweep_done: &AtomicUsize,
    screen: &mut Screen,
) -> Result<(Score, Timeline), Error> {
    let cluster = Cluster::new(Arc::clone(story), Arc::clone(profile), 0);
    let (clock, hand) = Clock::stepped(START);
    let site = Site { cluster, gpus: Gpus::new()? };
    let site: Shared = Arc::new(std::sync::Mutex::new(site));
    let pages = Pages::serve(Arc::clone(&site)).await.map_err(Error::Listen)?;
    let scaler = Scaler::start(clock, pages.address, &site, records).await?;
    let mut lane = Lane::new(site, hand, scaler).await?;
    let mut timeline = Timeline::new(story);
    screen.begin(lane.scaler.http);
    let began = Instant::now();
    while time(lane.now) < story.end() {
        lane.step(moment(timeline.next()).min(moment(story.end()))).await?;
        if lane.now == moment(timeline.next()) {
            timeline.note(&lock(&lane.site).cluster.gauges());
            screen.show(&Now {
                at: lane.now,
                timeline: &timeline,
                sweep_done: sweep_done.load(Ordering::Relaxed),
            });
        }
        if let Some(speed) = speed {
            let wall = Duration::from_secs_f64(time(lane.now).as_secs_f64() / speed);
            tokio::time::sleep_until(began + wall).await;
        }
    }
    lane.scaler.end().await;
    let score = lock(&lane.site).cluster.score();
    Ok((score, timeline))
}

/// The loop's parts.
struct Lane {
    now: Moment,
    hand: Hand,
    site: Shared,
    scaler: Scaler,
    keda: Keda,
    connection: Connection,
    pushes: Stream<bool>,
    object: ScaledObjectRef,
    was_active: bool,
    next_gateway_read: Moment,
}

impl Lane {
    async fn new(site: Shared, hand: Hand, scaler: Scaler) -> Result<Lane, Error> {
        let object = ScaledObjectRef {
            name: NAME.to_owned(),
            namespace: NAMESPACE.to_owned(),
            scaler_metadata: HashMap::new(),
        };
        let server = client::Scaler::new(&scaler.grpc.to_string(), None, object.clone())?;
        let connection = server.connect().await.map_err(Error::call)?;
        let mut pushes = connection.stream_is_active(&object);
        if !pushes.accepted(PUSH_LIMIT).await {
            return Err(Error::PushLost);
        }
        Ok(Lane {
            now: START,
            hand,
            site,
            keda: Keda::new(self::object(), START, START.plus_millis(FIRST_SYNC_MS)),
            was_active: scaler.is_active(),
            scaler,
            connection,
            pushes,
            object,
            next_gateway_read: START,
        })
    }

    /// Moves on to whatever comes next, `limit` at the latest, and does all that is due then.
    async fn step(&mut self, limit: Moment) -> Result<(), Error> {
        let (keda_at, turn) = self.keda.next();
        let tick_at = self.scaler.tick().due();
        self.now = limit.min(keda_at).min(tick_at).min(self.next_gateway_read).max(self.now);
        {
            let Site { cluster, gpus } = &mut *lock(&self.site);
            cluster.advance(time(self.now));
            gpus.follow(cluster.pods(), time(self.now));
            self.hand.set(self.now);
            self.scaler.tell(cluster);
        }
        if self.now >= self.next_gateway_read {
            self.scaler.read_upstreams().await;
            self.next_gateway_read = self.now.plus_millis(GATEWAY_MS);
        }
        if !self.scaler.tick().step().await {
            return Err(Error::NoTrigger);
        }
        self.take_push().await?;
        if self.now >= keda_at {
            self.turn(turn).await?;
        }
        Ok(())
    }

    /// A rising edge of activity is one message on the stream.
    async fn take_push(&mut self) -> Result<(), Error> {
        let is_active = self.scaler.is_active();
        if is_active && !self.was_active {
            match self.pushes.next(PUSH_LIMIT).await {
                Some(Event::Message(true)) => self.scale(|keda, now, spec| keda.push(now, spec)),
                _ => return Err(Error::PushLost),
            }
        }
        self.was_active = is_active;
        Ok(())
    }

    async fn turn(&mut self, turn: Turn) -> Result<(), Error> {
        let spec = lock(&self.site).cluster.spec();
        let (role, asks) = match turn {
            Turn::Poll => (Role::Poll, self.keda.polls_ask()),
            Turn::Sync => (Role::Hpa, self.keda.reads_metric(spec)),
        };
        let mut answer = None;
        if turn == Turn::Poll || asks {
            self.connection.metric_spec(role, &self.object).await.result.map_err(Error::call)?;
        }
        if asks {
            // An error in either is KEDA's "no answer", which freezes the count.
            let values = self.connection.metrics(role, &self.object, METRIC_NAME).await.result;
            let active = self.connection.is_active(role, &self.object).await.result;
            answer = values.ok().zip(active.ok());
        }
        self.scale(|keda, now, spec| match turn {
            Turn::Poll => keda.poll(now, spec, answer.map(|(_, active)| active)),
            Turn::Sync => {
                let sum = |values: Vec<MetricValue>| {
                    values.iter().map(|value| value.metric_value_float).sum()
                };
                keda.sync(now, spec, spec, answer.map(|(values, _)| sum(values)))
            }
        });
        Ok(())
    }

    fn scale(&mut self, change: impl FnOnce(&mut Keda, Moment, u32) -> u32) {
        let cluster = &mut lock(&self.site).cluster;
        let spec = cluster.spec();
        cluster.scale_to(change(&mut self.keda, self.now, spec));
        self.scaler.tell(cluster);
    }
}
