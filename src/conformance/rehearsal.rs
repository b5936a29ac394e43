//! Plays KEDA 2.21 with one ScaledObject for a while, in its order and rhythm, and writes it down.
//!
//! Judges nothing; the checks read the transcript.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::client::{Connection, Event, Failure, Reply, Role, Scaler, Stream};
use crate::proto::{MetricSpec, MetricValue, ScaledObjectRef};

/// Polls in one rehearsal: with the default 30 s one each 5 s.
const N_POLLS: u32 = 6;
/// HPA queries in one rehearsal: with the default 30 s one each 15 s, the HPA's own sync period.
/// The first comes with the third poll (10 s), so that each meets a poll.
const N_HPA_QUERIES: u32 = 2;
const POLLS_BEFORE_HPA: u32 = 2;
/// KEDA opens an ended stream again after 2, 4, 8 ... 60 s; an OK end starts again with 2 s.
const REOPEN_DELAY_FIRST: Duration = Duration::from_secs(2);
const REOPEN_DELAY_MAX: Duration = Duration::from_secs(60);
/// Messages of one stream that are kept; a scaler that sends more has failed by then.
const MESSAGES_MAX: usize = 1_000;

/// Everything that was asked and answered.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    pub(super) specs: Vec<Reply<Vec<MetricSpec>>>,
    pub(super) metrics: Vec<MetricsCall>,
    pub(super) activity: Vec<ActivityCall>,
    /// One entry for each time that the stream was opened.
    pub(super) pushes: Vec<StreamLog<bool>>,
    /// The same of StreamMetricSpec.
    pub(super) spec_pushes: Vec<StreamLog<Vec<MetricSpec>>>,
}

/// One GetMetrics call.
#[derive(Debug)]
pub(super) struct MetricsCall {
    pub(super) role: Role,
    pub(super) metric_name: String,
    pub(super) reply: Reply<Vec<MetricValue>>,
}

/// One IsActive call.
#[derive(Debug)]
pub(super) struct ActivityCall {
    pub(super) role: Role,
    pub(super) reply: Reply<bool>,
}

/// What came over one stream until it ended or the rehearsal did.
#[derive(Debug)]
pub(super) struct StreamLog<T> {
    pub(super) opened_at: Instant,
    pub(super) messages: Vec<(Instant, T)>,
    /// How the server ended it, if it did.
    pub(super) end: Option<Result<(), Failure>>,
}

impl Transcript {
    fn append(&mut self, mut other: Transcript) {
        self.specs.append(&mut other.specs);
        self.metrics.append(&mut other.metrics);
        self.activity.append(&mut other.activity);
    }

    /// The answered lists of specs.
    pub(super) fn answered_specs(&self) -> impl Iterator<Item = &[MetricSpec]> {
        self.specs.iter().filter_map(|reply| reply.result.as_deref().ok())
    }

    /// The answered lists of values with the metric that was asked for.
    pub(super) fn answered_metrics(&self) -> impl Iterator<Item = (&str, &[MetricValue])> {
        self.metrics.iter().filter_map(|call| {
            Some((call.metric_name.as_str(), call.reply.result.as_deref().ok()?))
        })
    }

    /// The answered activities with the moment of the call.
    pub(super) fn answered_activity(&self) -> impl Iterator<Item = (Instant, bool)> {
        self.activity
            .iter()
            .filter_map(|call| Some((call.reply.at, *call.reply.result.as_ref().ok()?)))
    }
}

/// Plays KEDA for `duration`: the reconcile, the opening of the streams beside the first poll,
/// polls, and queries of the HPA that overlap them.
///
/// An error answer does not cut the connection, as with several ScaledObjects on one address. A
/// call without any answer ends the polls: KEDA's own would wait there for ever.
pub(super) async fn play(scaler: &Scaler, duration: Duration) -> Result<Transcript, Failure> {
    let connection = scaler.connect().await?;
    let scaled_object = &scaler.scaled_object;
    let (streamed_specs, _kept) = watch::channel(None);
    let operator = Operator { connection: &connection, scaled_object, streamed_specs };

    let mut reconcile = Transcript::default();
    reconcile.specs.push(connection.metric_spec(Role::Poll, scaled_object).await);
    let started_at = Instant::now();
    let ends_at = started_at + duration;
    let (mut transcript, queried, pushes, spec_pushes, reconciled) = tokio::join!(
        operator.ask_every(duration / N_POLLS, started_at, ends_at, Role::Poll),
        operator.ask_every(
            duration / N_HPA_QUERIES,
            started_at + duration / N_POLLS * POLLS_BEFORE_HPA,
            ends_at,
            Role::Hpa
        ),
        listen(ends_at, || connection.stream_is_active(scaled_object), |_activity| {}),
        listen(
            ends_at,
            || connection.stream_metric_spec(scaled_object),
            |specs: &Vec<MetricSpec>| operator.cache(specs),
        ),
        // KEDA's own writes to the HPA and the status cause another reconcile.
        connection.metric_spec(Role::Poll, scaled_object),
    );
    transcript.append(reconcile);
    transcript.append(queried);
    transcript.specs.push(reconciled);
    transcript.specs.sort_by_key(|reply| reply.at);
    transcript.metrics.sort_by_key(|call| call.reply.at);
    transcript.activity.sort_by_key(|call| call.reply.at);
    transcript.pushes = pushes;
    transcript.spec_pushes = spec_pushes;
    Ok(transcript)
}

struct Operator<'a> {
    connection: &'a Connection,
    scaled_object: &'a ScaledObjectRef,
    /// While there is a streamed spec, KEDA does not ask for it; any error drops it.
    streamed_specs: watch::Sender<Option<Vec<MetricSpec>>>,
}

impl Operator<'_> {
    fn cache(&self, specs: &[MetricSpec]) {
        if !specs.is_empty() {
            self.streamed_specs.send_replace(Some(specs.to_vec()));
        }
    }

    async fn ask_every(
        &self,
        period: Duration,
        first_at: Instant,
        ends_at: Instant,
        role: Role,
    ) -> Transcript {
        let mut transcript = Transcript::default();
        let mut ticks = interval_at(first_at, period);
        // A poll that is longer than the interval is followed by the next one at once.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        while ticks.tick().await < ends_at {
            if !self.ask(role, &mut transcript).await {
                break;
            }
        }
        transcript
    }

    /// One poll or query; false if a call had no answer at all.
    async fn ask(&self, role: Role, transcript: &mut Transcript) -> bool {
        let streamed = self.streamed_specs.borrow().clone();
        let specs = match streamed {
            Some(specs) => specs,
            None => match self.specs_with_one_retry(role, transcript).await {
                Ok(specs) => specs,
                Err(failure) => return failure != Failure::Late,
            },
        };
        for spec in &specs {
            for _attempt in 0..2 {
                match self.value_and_activity(role, &spec.metric_name, transcript).await {
                    Ok(()) => break,
                    Err(Failure::Late) => return false,
                    Err(_answered) => {
                        self.streamed_specs.send_replace(None);
                    }
                }
            }
        }
        true
    }

    async fn specs_with_one_retry(
        &self,
        role: Role,
        transcript: &mut Transcript,
    ) -> Result<Vec<MetricSpec>, Failure> {
        let mut result = Ok(Vec::new());
        for _attempt in 0..2 {
            let reply = self.connection.metric_spec(role, self.scaled_object).await;
            result = reply.result.clone();
            transcript.specs.push(reply);
            match &result {
                Ok(specs) if specs.is_empty() => {}
                Ok(_) | Err(Failure::Late) => break,
                Err(_answered) => {}
            }
        }
        result
    }

    async fn value_and_activity(
        &self,
        role: Role,
        metric_name: &str,
        transcript: &mut Transcript,
    ) -> Result<(), Failure> {
        let reply = self.connection.metrics(role, self.scaled_object, metric_name).await;
        let outcome = reply.result.clone();
        transcript.metrics.push(MetricsCall { role, metric_name: metric_name.to_owned(), reply });
        outcome?;
        let reply = self.connection.is_active(role, self.scaled_object).await;
        let outcome = reply.result.clone();
        transcript.activity.push(ActivityCall { role, reply });
        outcome.map(|_activity| ())
    }
}

/// Listens to a stream until `ends_at` and opens it again as KEDA does.
async fn listen<T>(
    ends_at: Instant,
    open: impl Fn() -> Stream<T>,
    on_message: impl Fn(&T),
) -> Vec<StreamLog<T>> {
    let mut logs: Vec<StreamLog<T>> = Vec::new();
    let mut reopen_delay = REOPEN_DELAY_FIRST;
    loop {
        let mut stream = open();
        let mut log = StreamLog { opened_at: stream.opened_at, messages: Vec::new(), end: None };
        let rest = || ends_at.saturating_duration_since(Instant::now());
        while log.messages.len() < MESSAGES_MAX {
            match stream.next(rest()).await {
                Some(Event::Message(message)) => {
                    on_message(&message);
                    log.messages.push((Instant::now(), message));
                }
                Some(Event::End(end)) => {
                    log.end = Some(end);
                    break;
                }
                Some(Event::Opened) => {}
                None => break,
            }
        }
        let reopen = match &log.end {
            None => false,
            // The one place where KEDA looks at a code: it asks no more.
            Some(Err(failure)) => !failure.is(tonic::Code::Unimplemented),
            Some(Ok(())) => {
                reopen_delay = REOPEN_DELAY_FIRST;
                true
            }
        };
        logs.push(log);
        let reopens_at = Instant::now() + reopen_delay;
        if !reopen || reopens_at >= ends_at {
            return logs;
        }
        sleep_until(reopens_at).await;
        reopen_delay = (reopen_delay * 2).min(REOPEN_DELAY_MAX);
    }
}
