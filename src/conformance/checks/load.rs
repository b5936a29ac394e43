//! Rules D1-D9: time and load. They strain the scaler, so they run after all others.
//!
//! Fails only beyond bounds that no busy machine explains; what is typical is in the detail.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::{ANSWER_LIMIT, Context, EXTRA_MAX, Finding, How, Latencies, Rule, Shortfall, millis};
use crate::conformance::client::{Connection, Event, Failure, Role};
use crate::proto::ScaledObjectRef;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "D1",
        title: "answers come from memory",
        why: "A call that waits for a source holds one of few HPA workers of the whole cluster, \
              and widens the window in which KEDA takes an error for \"not active\".",
        how: How::Check(|context| Box::pin(d1_from_memory(context))),
    },
    Rule {
        id: "D2",
        title: "each call is over within one second",
        why: "KEDA's polls carry no deadline. A call that hangs holds the object's lock, so that \
              pushes wait as well; the HPA's 60 s ended such a poll as \"not active\": to zero.",
        how: How::Check(|context| Box::pin(d2_hard_limit(context))),
    },
    Rule {
        id: "D3",
        title: "a herd of polls on one connection is served",
        why: "After a restart or a change of leader KEDA polls all ScaledObjects at once, without \
              jitter, over one connection.",
        how: How::Check(|context| Box::pin(d3_herd(context))),
    },
    Rule {
        id: "D4",
        title: "open streams do not keep calls out",
        why: "KEDA holds two streams open for each push trigger on the shared connection. Beyond \
              the server's stream limit grpc-go queues further calls silently, without deadline.",
        how: How::Check(|context| Box::pin(d4_stream_limit(context))),
    },
    Rule {
        id: "D5",
        title: "a stream that nobody reads blocks nobody",
        why: "KEDA reads a stream between its API writes, and not at all for a ScaledJob.",
        how: How::Check(|context| Box::pin(d5_dead_consumer(context))),
    },
    Rule {
        id: "D6",
        title: "cancelled streams are freed",
        why: "An operator that stops or edits its objects cancels all their streams at once and \
              opens them again.",
        how: How::Check(|context| Box::pin(d6_cancelled_streams(context))),
    },
    Rule {
        id: "D7",
        title: "one bad ScaledObject does not slow the others",
        why: "A failing object is asked twice as often, and the HPA of each other one waits in \
              the same few workers.",
        how: How::Check(|context| Box::pin(d7_bad_neighbour(context))),
    },
    Rule {
        id: "D8",
        title: "1 MiB of metadata is handled or refused",
        why: "A request beyond a limit must fail alone: the connection carries everyone's calls.",
        how: How::Check(|context| Box::pin(d8_huge_metadata(context))),
    },
    Rule {
        id: "D9",
        title: "connections may come and go",
        why: "KEDA 2.21 dials anew for each failing poll and HPA query of a ScaledObject that is \
              alone on its address, and drops the connection with its streams open.",
        how: How::Check(|context| Box::pin(d9_churn(context))),
    },
];

/// Calls at a time where a check needs many, but is not about a herd.
const PARALLEL: usize = 8;

/// Runs the futures, some at a time, and collects what they give in no particular order.
pub(super) async fn in_parallel<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    futures_util::stream::iter(futures).buffer_unordered(PARALLEL).collect().await
}

async fn d1_from_memory(context: &Context) -> Finding {
    const N_CALLS: usize = 20;
    let metric_name = context.metric()?;
    let connection = context.connect().await?;
    let mut took = Vec::new();
    let mut without_handler = Vec::new();
    for _call in 0..N_CALLS {
        let scaled_object = context.scaled_object();
        took.push(connection.metrics(Role::Poll, scaled_object, metric_name).await.took);
        without_handler.push(connection.unknown_method().await.took);
    }
    let took = Latencies::of(took);
    let without_handler = Latencies::of(without_handler);
    let detail = format!(
        "GetMetrics {took}; a method that does not exist p50 {}",
        millis(without_handler.median())
    );
    if took.median() > without_handler.median() + EXTRA_MAX {
        return Err(Shortfall::Fail(detail));
    }
    Ok(detail)
}

async fn d2_hard_limit(context: &Context) -> Finding {
    let transcript = &context.transcript;
    let mut took: Vec<(&str, Duration)> = Vec::new();
    took.extend(transcript.specs.iter().map(|reply| ("GetMetricSpec", reply.took)));
    took.extend(transcript.metrics.iter().map(|call| ("GetMetrics", call.reply.took)));
    took.extend(transcript.activity.iter().map(|call| ("IsActive", call.reply.took)));
    let (polls, without_handler) = timed_polls(context).await?;
    took.extend(polls);
    if let Some(detail) = beyond_limit(&took, without_handler) {
        // A machine that stood still for once explains it, and a scaler that waits does so again.
        let (again, without_handler) = timed_polls(context).await?;
        if again.is_empty() || beyond_limit(&again, without_handler).is_some() {
            return Err(Shortfall::Fail(detail));
        }
        return Ok(format!("once {detail}; not again in {} calls", again.len()));
    }
    let took = took.into_iter().map(|(_method, took)| took).collect();
    Ok(format!("{} (expected below 10 ms)", Latencies::of(took)))
}

/// What the calls of some polls took, none if polls are not answered; and what the slowest call took
/// that no handler has to do with: the machine and the way.
async fn timed_polls(
    context: &Context,
) -> Result<(Vec<(&'static str, Duration)>, Duration), Shortfall> {
    const N_POLLS: usize = 60;
    let (mut took, mut without_handler) = (Vec::new(), Duration::ZERO);
    let Ok(metric_name) = context.polled() else { return Ok((took, without_handler)) };
    let connection = context.connect().await?;
    let scaled_object = context.scaled_object();
    let polls = (0..N_POLLS).map(async |_poll| {
        let unknown = connection.unknown_method().await.took;
        let calls = [
            ("GetMetricSpec", connection.metric_spec(Role::Poll, scaled_object).await.took),
            ("GetMetrics", connection.metrics(Role::Poll, scaled_object, metric_name).await.took),
            ("IsActive", connection.is_active(Role::Poll, scaled_object).await.took),
        ];
        (unknown, calls)
    });
    for (unknown, calls) in in_parallel(polls).await {
        without_handler = without_handler.max(unknown);
        took.extend(calls);
    }
    Ok((took, without_handler))
}

/// The slowest of the calls, if it took longer than any may.
fn beyond_limit(took: &[(&str, Duration)], without_handler: Duration) -> Option<String> {
    let (method, slowest) = took.iter().max_by_key(|(_method, took)| *took)?;
    (*slowest > ANSWER_LIMIT + without_handler).then(|| {
        format!(
            "{method} took {}; the slowest call of a method that does not exist {}",
            millis(*slowest),
            millis(without_handler)
        )
    })
}

async fn d3_herd(context: &Context) -> Finding {
    let metric_name = context.polled()?;
    let connection = context.connect().await?;
    let started_at = Instant::now();
    let polls =
        (0..context.n_objects).map(|_object| connection.poll(context.scaled_object(), metric_name));
    let failures: Vec<Failure> =
        join_all(polls).await.into_iter().filter_map(Result::err).collect();
    match failures.first() {
        None => Ok(format!(
            "{} polls of three calls at once, over after {}",
            context.n_objects,
            millis(started_at.elapsed())
        )),
        Some(first) => Err(Shortfall::Fail(format!(
            "{} of {} polls at once failed, the first with {first}",
            failures.len(),
            context.n_objects
        ))),
    }
}

async fn d4_stream_limit(context: &Context) -> Finding {
    /// What the rule leaves free for calls beside two streams a ScaledObject.
    const SPARE: usize = 100;
    let metric_name = context.metric()?;
    let connection = context.connect().await?;
    let n_streams = 2 * context.n_objects + SPARE;
    let mut streams = Vec::with_capacity(n_streams);
    for _stream in 0..n_streams {
        streams.push(connection.stream_is_active(context.scaled_object()));
    }
    // Not each server answers a silent stream before its first message; the wait is bounded.
    let n_accepted = join_all(streams.iter_mut().map(|stream| stream.accepted(ANSWER_LIMIT)))
        .await
        .into_iter()
        .filter(|accepted| *accepted)
        .count();
    if answers(&connection, context.scaled_object(), metric_name).await {
        return Ok(format!(
            "a call is answered beside {n_streams} open streams, {n_accepted} of them confirmed"
        ));
    }
    Err(Shortfall::Fail(format!(
        "no call is answered beside {n_streams} open streams, of which {n_accepted} were accepted"
    )))
}

/// True if one of a few calls at a time is answered. What else is wrong has its own checks.
async fn answers(
    connection: &Connection,
    scaled_object: &ScaledObjectRef,
    metric_name: &str,
) -> bool {
    const N_CALLS: usize = 3;
    let calls =
        (0..N_CALLS).map(|_call| connection.metrics(Role::Poll, scaled_object, metric_name));
    join_all(calls).await.iter().any(|reply| reply.result.is_ok())
}

async fn d5_dead_consumer(context: &Context) -> Finding {
    const N_STREAMS: usize = 20;
    let metric_name = context.metric()?;
    let connection = context.connect().await?;
    let stalled = context.scaler.connect_stalled().await.map_err(Shortfall::fail)?;
    let mut streams = Vec::new();
    for _stream in 0..N_STREAMS {
        streams.push(stalled.stream_is_active(context.scaled_object()));
    }
    join_all(streams.iter_mut().map(|stream| stream.accepted(ANSWER_LIMIT))).await;
    if !answers(&connection, context.scaled_object(), metric_name).await {
        return Err(Shortfall::Fail(format!(
            "no call is answered while {N_STREAMS} streams of another connection are not read"
        )));
    }
    Ok(format!("{N_STREAMS} streams that are not read block nobody"))
}

async fn d6_cancelled_streams(context: &Context) -> Finding {
    const N_ROUNDS: usize = 3;
    let metric_name = context.polled()?;
    let connection = context.connect().await?;
    // Tells a connection that was cut from one that lives on; calls alone would dial anew.
    let mut sentinel = connection.stream_is_active(context.scaled_object());
    for _round in 0..N_ROUNDS {
        let mut streams = Vec::with_capacity(context.n_objects);
        for _stream in 0..context.n_objects {
            streams.push(connection.stream_is_active(context.scaled_object()));
        }
        join_all(streams.iter_mut().map(|stream| stream.accepted(ANSWER_LIMIT))).await;
    }
    let n_cancelled = N_ROUNDS * context.n_objects;
    if let Err(failure) = connection.poll(context.scaled_object(), metric_name).await {
        return Err(Shortfall::Fail(format!(
            "after {n_cancelled} cancelled streams a poll is answered with {failure}"
        )));
    }
    while let Some(event) = sentinel.next(Duration::ZERO).await {
        if let Event::End(Err(failure @ Failure::Broken(_))) = event {
            return Err(Shortfall::Fail(format!("cancelling {n_cancelled} streams: {failure}")));
        }
    }
    Ok(format!("{n_cancelled} streams opened and cancelled on one connection"))
}

async fn d7_bad_neighbour(context: &Context) -> Finding {
    const N_BAD: usize = 16;
    const N_GOOD: usize = 3;
    let metric_name = context.metric()?;
    let connection = context.connect().await?;
    let bad_connection = context.dial().await?;
    let bad = match &context.faulty {
        Some(faulty) => faulty.scaled_object.clone(),
        None => {
            let name = "conformance-nobody".to_owned();
            ScaledObjectRef { name, ..context.scaled_object().clone() }
        }
    };
    let good = async || {
        let scaled_object = context.scaled_object();
        connection.metrics(Role::Poll, scaled_object, metric_name).await.took
    };
    let mut alone = Vec::new();
    for _call in 0..N_GOOD {
        alone.push(good().await);
    }
    let hammer = join_all((0..N_BAD).map(async |_caller| {
        loop {
            drop(bad_connection.metrics(Role::Poll, &bad, metric_name).await);
            tokio::task::yield_now().await;
        }
    }));
    let measured = async {
        let (mut took, mut without_handler) = (Vec::new(), Vec::new());
        // Begun before the bad ones, perhaps; with its answer they are in line.
        let _first = good().await;
        for _call in 0..N_GOOD {
            took.push(good().await);
            without_handler.push(connection.unknown_method().await.took);
        }
        (Latencies::of(took), Latencies::of(without_handler))
    };
    let (took, without_handler) = tokio::select! {
        both = measured => both,
        _never = hammer => (Latencies::default(), Latencies::default()),
    };
    let alone = Latencies::of(alone);
    let detail = format!(
        "beside a bad object {took}; alone p50 {}; a method that does not exist, beside it, p50 {}",
        millis(alone.median()),
        millis(without_handler.median())
    );
    // The fastest: one slow call alone is rule D2's, or the machine's. Slow with no neighbour is D1's.
    if took.min() > alone.min().max(without_handler.min()) + EXTRA_MAX {
        return Err(Shortfall::Fail(detail));
    }
    Ok(detail)
}

async fn d8_huge_metadata(context: &Context) -> Finding {
    const SIZE_BYTES: usize = 1 << 20;
    let mut huge = context.scaled_object().clone();
    huge.scaler_metadata.insert("conformanceKey".to_owned(), "x".repeat(SIZE_BYTES));
    super::metadata::handled_or_refused(context, &huge, "1 MiB in a key").await
}

async fn d9_churn(context: &Context) -> Finding {
    let metric_name = context.polled()?;
    let visits = (0..context.n_objects).map(async |_visit| {
        let connection = context.scaler.connect().await?;
        let scaled_object = context.scaled_object();
        let stream = connection.stream_is_active(scaled_object);
        connection.metric_spec(Role::Poll, scaled_object).await.result?;
        connection.metrics(Role::Poll, scaled_object, metric_name).await.result?;
        drop((connection, stream));
        Ok(())
    });
    let failures: Vec<Failure> =
        in_parallel(visits).await.into_iter().filter_map(Result::err).collect();
    if let Some(first) = failures.first() {
        return Err(Shortfall::Fail(format!(
            "{} of {} connections failed, the first with {first}",
            failures.len(),
            context.n_objects
        )));
    }
    context.dial().await?.poll(context.scaled_object(), metric_name).await.map_err(|failure| {
        Shortfall::Fail(format!("after {} connections: {failure}", context.n_objects))
    })?;
    Ok(format!("{} connections made and dropped", context.n_objects))
}
