//! The rules an external scaler is held to, each with the reason it exists and how it is checked.
//!
//! Must not judge by taste: a rule's reason is what KEDA or the HPA does when it is broken.

mod contract;
mod errors;
mod load;
mod metadata;
mod operation;
mod push;
mod streamed;
mod values;

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::client::{Connection, Event, Failure, Reply, Role, Scaler};
use super::rehearsal::Transcript;
use crate::proto::{MetricSpec, MetricValue, ScaledObjectRef};

/// The hard bound of one answer. Errors that came after 1.5 s have scaled a target to zero.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// What an answer from memory may take beyond one of a method that does not exist: ten times the
/// 10 ms that the slowest hundredth of the answers may take.
const EXTRA_MAX: Duration = Duration::from_millis(100);
/// How long is waited for what must come. Generous, because the client's machine or the way to the
/// scaler may be busy: whether it came in time is judged by itself, by what it took.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(10);
/// How long is watched for what must not come, at least.
const QUIET: Duration = Duration::from_millis(300);
/// How long one check may take, whatever the scaler does.
const CHECK_LIMIT: Duration = Duration::from_secs(120);

/// One rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// Why the rule exists: what KEDA or the HPA does otherwise.
    pub(super) why: &'static str,
    pub(super) how: How,
}

/// How a rule is checked.
#[derive(Debug)]
pub(super) enum How {
    Check(Check),
    /// Not from outside; the text says what it would take.
    Outside(&'static str),
}

/// A check: `Ok` is a pass with what was seen.
pub(super) type Check = for<'a> fn(&'a Context) -> BoxFuture<'a, Finding>;
pub(super) type Finding = Result<String, Shortfall>;

/// Why a check did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shortfall {
    /// The rule is broken.
    Fail(String),
    /// This scaler in its present state does not show it.
    NotCheckable(String),
}

impl Shortfall {
    fn fail(what: impl fmt::Display) -> Shortfall {
        Shortfall::Fail(what.to_string())
    }

    fn unseen(why: impl fmt::Display) -> Shortfall {
        Shortfall::NotCheckable(why.to_string())
    }
}

/// All rules in the order of the checklist.
pub(super) fn rules() -> Vec<&'static Rule> {
    [
        values::RULES,
        contract::RULES,
        metadata::RULES,
        errors::RULES,
        load::RULES,
        push::RULES,
        operation::RULES,
        streamed::RULES,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What a check may use: the scaler, and what was seen in the rehearsal.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) scaler: Scaler,
    /// The object with metadata that the scaler should refuse.
    pub(super) faulty: Option<Faulty>,
    /// ScaledObjects whose load is played.
    pub(super) n_objects: usize,
    pub(super) transcript: Transcript,
    pub(super) spec_stream: SpecStream,
}

/// Metadata that a scaler should refuse.
#[derive(Debug)]
pub(super) struct Faulty {
    pub(super) scaled_object: ScaledObjectRef,
    /// The keys that are wrong or missing.
    pub(super) keys: Vec<String>,
}

/// What the scaler does with StreamMetricSpec, which is optional.
#[derive(Debug)]
pub(super) enum SpecStream {
    Unimplemented,
    Offered,
    /// Open, and nothing came.
    Silent,
    Ended(Result<(), Failure>),
}

impl SpecStream {
    /// Opens the stream once.
    pub(super) async fn probe(connection: &Connection, scaled_object: &ScaledObjectRef) -> Self {
        let mut stream = connection.stream_metric_spec(scaled_object);
        match stream.next(ARRIVAL_LIMIT).await {
            Some(Event::Message(_)) => SpecStream::Offered,
            Some(Event::End(Err(failure))) if failure.is(tonic::Code::Unimplemented) => {
                SpecStream::Unimplemented
            }
            Some(Event::End(end)) => SpecStream::Ended(end),
            Some(Event::Opened) | None => SpecStream::Silent,
        }
    }
}

/// Runs one check within its time.
pub(super) async fn run(check: Check, context: &Context) -> Finding {
    match tokio::time::timeout(CHECK_LIMIT, check(context)).await {
        Ok(finding) => finding,
        Err(_elapsed) => Err(Shortfall::Fail(format!(
            "the check was not over after {} s",
            CHECK_LIMIT.as_secs()
        ))),
    }
}

impl Context {
    fn scaled_object(&self) -> &ScaledObjectRef {
        &self.scaler.scaled_object
    }

    /// A new connection, for a check that says itself in which order it calls.
    async fn dial(&self) -> Result<Connection, Shortfall> {
        self.scaler
            .connect()
            .await
            .map_err(|failure| Shortfall::Fail(format!("cannot connect: {failure}")))
    }

    /// A new connection that has begun as KEDA does, with a poll. What the poll answers is another
    /// check's business.
    async fn connect(&self) -> Result<Connection, Shortfall> {
        let connection = self.dial().await?;
        if let Ok(metric_name) = self.polled() {
            drop(connection.poll(self.scaled_object(), metric_name).await);
        }
        Ok(connection)
    }

    /// A metric that has a value, which most checks ask for.
    fn metric(&self) -> Result<&str, Shortfall> {
        let mut answered = self.transcript.answered_metrics();
        match answered.find(|(_name, values)| !values.is_empty()) {
            Some((metric_name, _values)) => Ok(metric_name),
            None => Err(Shortfall::unseen("GetMetrics gave no value; see A1, A2, A6 and D2")),
        }
    }

    /// The last activity that IsActive answered.
    fn active(&self) -> Result<bool, Shortfall> {
        match self.transcript.answered_activity().last() {
            Some((_at, active)) => Ok(active),
            None => Err(Shortfall::unseen("IsActive gave no answer; see A10 and D2")),
        }
    }

    /// The same metric, if whole polls are answered: value and activity.
    fn polled(&self) -> Result<&str, Shortfall> {
        self.active()?;
        self.metric()
    }

    /// The faulty metadata and a metric to ask for.
    fn faulty(&self) -> Result<(&Faulty, &str), Shortfall> {
        match &self.faulty {
            Some(faulty) => Ok((faulty, self.polled()?)),
            None => Err(Shortfall::unseen("give metadata that is wrong with --bad-metadata")),
        }
    }
}

/// How long to watch for what must not come, where a call has just taken `took`: what the scaler
/// sends by itself may be as slow, several times over.
fn quiet(took: Duration) -> Duration {
    (10 * took).clamp(QUIET, 4 * QUIET)
}

/// The number that KEDA 2.17 and newer read from a value: the float only if it is above 0.
fn as_keda_reads(value: &MetricValue) -> f64 {
    if value.metric_value_float > 0.0 {
        value.metric_value_float
    } else {
        value.metric_value as f64
    }
}

/// The same of a spec's target.
fn target_as_keda_reads(spec: &MetricSpec) -> f64 {
    if spec.target_size_float > 0.0 { spec.target_size_float } else { spec.target_size as f64 }
}

/// Latencies of some calls, sorted.
#[derive(Debug, Default)]
struct Latencies(Vec<Duration>);

impl Latencies {
    fn of(mut sorted: Vec<Duration>) -> Latencies {
        sorted.sort_unstable();
        Latencies(sorted)
    }

    fn median(&self) -> Duration {
        self.percentile(50)
    }

    fn min(&self) -> Duration {
        self.0.first().copied().unwrap_or_default()
    }

    fn max(&self) -> Duration {
        self.0.last().copied().unwrap_or_default()
    }

    /// The smallest latency that `percent` of the calls did not exceed.
    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100);
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls: p50 {}, p99 {}, max {}",
            self.0.len(),
            millis(self.median()),
            millis(self.percentile(99)),
            millis(self.max())
        )
    }
}

/// Fails for a query of the HPA's that is refused where a poll of the same is answered: the HPA's come
/// with a deadline, and what cannot read that refuses them alone.
fn not_refused_to_the_hpa<'a, T: 'a>(
    calls: impl Iterator<Item = (Role, &'a Reply<T>)> + Clone,
) -> Result<(), Shortfall> {
    let of = |asked: Role| {
        let calls = calls.clone().filter(move |(role, _)| *role == asked);
        calls.map(|(_, reply)| &reply.result)
    };
    let refused = of(Role::Hpa).find_map(|result| match result {
        Err(failure @ Failure::Status(..)) => Some(failure),
        Ok(_) | Err(_) => None,
    });
    match refused {
        Some(failure) if of(Role::Poll).any(Result::is_ok) => Err(Shortfall::Fail(format!(
            "polls have an answer, the HPA's query with its 60 s deadline {failure}"
        ))),
        Some(_) | None => Ok(()),
    }
}

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1_000.0)
}

/// True if the scaler itself answered, with a value or with an error that says what is wrong.
fn answered_cleanly<T>(result: &Result<T, Failure>) -> bool {
    match result {
        Ok(_) => true,
        Err(Failure::Status(code, _)) => {
            !matches!(code, tonic::Code::Internal | tonic::Code::Unknown)
        }
        Err(Failure::Broken(_) | Failure::Late) => false,
    }
}

/// A name that no scaler has a metric for.
const NO_SUCH_METRIC: &str = "no-such-metric";

/// The first thing that a stream shows, as text for a report.
fn shown<T: fmt::Debug>(event: &Option<Event<T>>) -> String {
    match event {
        Some(Event::Message(message)) => format!("{message:?}"),
        Some(Event::End(Ok(()))) => "an end with OK".to_owned(),
        Some(Event::End(Err(failure))) => format!("an end with {failure}"),
        Some(Event::Opened) | None => "nothing".to_owned(),
    }
}
