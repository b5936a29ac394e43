//! Rules A9-A17: how the calls hang together.
//!
//! Each check has its own connections and judges only its own rule.

use super::{
    Context, Finding, How, NO_SUCH_METRIC, Rule, Shortfall, as_keda_reads, not_refused_to_the_hpa,
    values,
};
use crate::conformance::client::{Connection, Failure, Role};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "A9",
        title: "an unknown metric is an error, a stray s0- prefix is not",
        why: "A wrong name that is answered with a number is a number about nothing, and 0 scales \
              down. KEDA 2.5 and 2.6 left the HPA's sN- prefix on the name.",
        how: How::Check(|context| Box::pin(a9_unknown_metric(context))),
    },
    Rule {
        id: "A10",
        title: "IsActive agrees with GetMetrics",
        why: "KEDA asks for both one after the other. Wanted replicas with \"not active\" are taken \
              to zero after the cooldown; \"active\" with nothing wanted never sleeps.",
        how: How::Check(|context| Box::pin(a10_activity_agrees(context))),
    },
    Rule {
        id: "A11",
        title: "what is not known is UNAVAILABLE, never 0 or false",
        why: "KEDA acts on 0 and on false: an outage of the source would scale to zero. A last \
              good answer may be held for a bounded time before the error.",
        how: How::Outside("needs the scaler's source to be cut off"),
    },
    Rule {
        id: "A12",
        title: "a confirmed zero is 0 and false with status OK",
        why: "Only an answer lets KEDA scale to zero; an error freezes the count.",
        how: How::Outside("needs a workload that is known to be idle"),
    },
    Rule {
        id: "A13",
        title: "old and new KEDA read the same target",
        why: "KEDA 2.16 and older divide by the integer target, newer ones by the float. Where the \
              two differ by more than the HPA's tolerance of 10 %, an upgrade of KEDA rescales.",
        how: How::Check(|context| Box::pin(a13_old_clients(context))),
    },
    Rule {
        id: "A14",
        title: "a missing metric name or reference is INVALID_ARGUMENT",
        why: "A handler that panics takes the connection, and with it the calls and push streams \
              of every ScaledObject on the address. A made-up answer hides a broken client.",
        how: How::Check(|context| Box::pin(a14_missing_fields(context))),
    },
    Rule {
        id: "A15",
        title: "calls are idempotent and may overlap",
        why: "KEDA repeats each failing call, and a poll and an HPA query of one object run at \
              once. If calls move the value, load on the scaler scales the workload.",
        how: How::Check(|context| Box::pin(a15_idempotent(context))),
    },
    Rule {
        id: "A16",
        title: "no order of calls is assumed",
        why: "KEDA's calls may come over any connection to any replica, after a restart of either \
              side, with a stream first or GetMetrics without a spec before it.",
        how: How::Check(|context| Box::pin(a16_any_order(context))),
    },
    Rule {
        id: "A17",
        title: "the first metric alone serves a ScaledJob",
        why: "A ScaledJob counts only the values of the first spec; a scaler that answers another \
              one only starts no jobs.",
        how: How::Check(|context| Box::pin(a17_first_metric(context))),
    },
];

async fn a9_unknown_metric(context: &Context) -> Finding {
    let metric_name = context.metric()?;
    let connection = context.connect().await?;
    let scaled_object = context.scaled_object();
    let unknown = match connection.metrics(Role::Poll, scaled_object, NO_SUCH_METRIC).await.result {
        Err(failure) if is_refusal(&failure) => failure,
        Err(failure) => {
            return Err(Shortfall::Fail(format!(
                "the metric \"{NO_SUCH_METRIC}\" is answered with {failure}, expected NOT_FOUND"
            )));
        }
        Ok(values) => {
            let numbers: Vec<f64> = values.iter().map(as_keda_reads).collect();
            return Err(Shortfall::Fail(format!(
                "the metric \"{NO_SUCH_METRIC}\" has the value {numbers:?}, expected NOT_FOUND"
            )));
        }
    };
    let prefixed = format!("s0-{metric_name}");
    match connection.metrics(Role::Poll, scaled_object, &prefixed).await.result {
        Ok(_) => Ok(format!("{unknown}; \"{prefixed}\" is accepted")),
        Err(failure) => {
            Err(Shortfall::Fail(format!("the metric \"{prefixed}\" is answered with {failure}")))
        }
    }
}

/// True if the scaler says that the caller asked for something wrong.
fn is_refusal(failure: &Failure) -> bool {
    failure.is(tonic::Code::NotFound) || failure.is(tonic::Code::InvalidArgument)
}

async fn a10_activity_agrees(context: &Context) -> Finding {
    /// A refresh may fall between two calls of a round, hardly into each of ten.
    const N_ROUNDS: usize = 10;
    context.metric()?;
    if context.transcript.answered_activity().next().is_none() {
        return Err(match context.transcript.activity.first().map(|call| &call.reply.result) {
            Some(Err(Failure::Late)) => Shortfall::unseen("no answer in time; see D2"),
            Some(Err(failure)) => Shortfall::Fail(format!(
                "GetMetrics answers, but each IsActive failed, the first with {failure}"
            )),
            Some(Ok(_)) | None => Shortfall::unseen("IsActive was not asked"),
        });
    }
    let calls = context.transcript.activity.iter();
    not_refused_to_the_hpa(calls.map(|call| (call.role, &call.reply)))?;
    let connection = context.connect().await?;
    let mut n_compared = 0;
    for _round in 0..N_ROUNDS {
        let before = total(context, &connection).await;
        let activity = connection.is_active(Role::Poll, context.scaled_object()).await.result;
        let after = total(context, &connection).await;
        // Only between two equal values both calls saw the same snapshot.
        let (Some(before), Ok(active), Some(after)) = (before, activity, after) else {
            continue;
        };
        if before.to_bits() != after.to_bits() {
            continue;
        }
        n_compared += 1;
        if active != (before > 0.0) {
            return Err(Shortfall::Fail(format!("the value is {before} and IsActive is {active}")));
        }
    }
    if n_compared == 0 {
        return Err(Shortfall::unseen("no two values in a row were usable and alike"));
    }
    Ok(format!("{n_compared} comparisons, all agree"))
}

/// The sum over all metrics as KEDA reads them; `None` if one has no usable value.
async fn total(context: &Context, connection: &Connection) -> Option<f64> {
    let specs = context.transcript.answered_specs().next()?;
    let mut sum = 0.0;
    for spec in specs {
        let reply =
            connection.metrics(Role::Poll, context.scaled_object(), &spec.metric_name).await;
        for value in reply.result.unwrap_or_default() {
            let number = as_keda_reads(&value);
            if !values::is_usable(number) {
                return None;
            }
            sum += number;
        }
    }
    Some(sum)
}

async fn a13_old_clients(context: &Context) -> Finding {
    /// The HPA's default tolerance.
    const TOLERANCE: f64 = 0.1;
    let mut n_targets = 0;
    for spec in context.transcript.answered_specs().flatten() {
        if values::target_fault(spec).is_some() {
            continue;
        }
        n_targets += 1;
        if (spec.target_size as f64 / spec.target_size_float - 1.0).abs() > TOLERANCE {
            return Err(Shortfall::Fail(format!(
                "targetSize {} beside targetSizeFloat {}",
                spec.target_size, spec.target_size_float
            )));
        }
    }
    if n_targets == 0 {
        return Err(Shortfall::unseen("no valid pair of targets; see A4"));
    }
    Ok("both targets lead to the same count".to_owned())
}

async fn a14_missing_fields(context: &Context) -> Finding {
    let metric_name = context.metric()?;
    let connection = context.connect().await?;
    let scaled_object = context.scaled_object().clone();
    for (what, reference, name) in [
        ("an empty metricName", Some(scaled_object), ""),
        ("no scaledObjectRef", None, metric_name),
    ] {
        match connection.raw_metrics(Role::Poll, reference, name).await.result {
            Err(failure) if is_refusal(&failure) => {}
            Err(failure) => {
                return Err(Shortfall::Fail(format!(
                    "{what} is answered with {failure}, expected INVALID_ARGUMENT"
                )));
            }
            Ok(_) => {
                return Err(Shortfall::Fail(format!(
                    "{what} is answered with a value, expected INVALID_ARGUMENT"
                )));
            }
        }
    }
    Ok("both are refused".to_owned())
}

async fn a15_idempotent(context: &Context) -> Finding {
    const N_ROUNDS: usize = 2;
    const N_CALLS: usize = 100;
    let metric_name = context.polled()?;
    let connection = context.connect().await?;
    let value = || async {
        let reply = connection.metrics(Role::Poll, context.scaled_object(), metric_name).await;
        Some(reply.result.ok()?.iter().map(as_keda_reads).sum::<f64>())
    };
    let mut n_moved = 0;
    let mut example = String::new();
    for _round in 0..N_ROUNDS {
        let before = value().await;
        let started_at = tokio::time::Instant::now();
        let calls = (0..N_CALLS).map(|_call| connection.poll(context.scaled_object(), metric_name));
        super::load::in_parallel(calls).await;
        let took = started_at.elapsed();
        let after = value().await;
        // The value may move by itself: what it does in the same time without calls is no fault.
        tokio::time::sleep(took).await;
        let later = value().await;
        let (Some(before), Some(after), Some(later)) = (before, after, later) else {
            continue;
        };
        // Ten times: the two calls around the pause move it as well, if calls do.
        if (after - before).abs() > 10.0 * (later - after).abs() {
            n_moved += 1;
            example = format!("{N_CALLS} polls moved the value from {before} to {after}");
        }
    }
    // Once can be chance: a real change that fell into the burst.
    if n_moved == N_ROUNDS {
        return Err(Shortfall::Fail(example));
    }
    Ok(format!("{} polls moved nothing", N_ROUNDS * N_CALLS))
}

/// One call, or the opening of StreamIsActive.
#[derive(Debug, Clone, Copy)]
enum Step {
    GetMetricSpec,
    GetMetrics,
    IsActive,
    StreamIsActive,
}

async fn a16_any_order(context: &Context) -> Finding {
    use Step::{GetMetricSpec, GetMetrics, IsActive, StreamIsActive};
    const ORDERS: &[&[Step]] = &[
        &[GetMetricSpec, GetMetrics, IsActive],
        &[GetMetricSpec, IsActive, GetMetrics],
        &[GetMetrics, GetMetricSpec, IsActive],
        &[GetMetrics, IsActive, GetMetricSpec],
        &[IsActive, GetMetricSpec, GetMetrics],
        &[IsActive, GetMetrics, GetMetricSpec],
        &[StreamIsActive, GetMetrics],
        &[StreamIsActive, IsActive],
    ];
    let metric_name = context.polled()?;
    let scaled_object = context.scaled_object();
    for order in ORDERS {
        let connection = context.dial().await?;
        let mut streams = Vec::new();
        for step in *order {
            let result = match step {
                GetMetricSpec => {
                    connection.metric_spec(Role::Poll, scaled_object).await.result.map(drop)
                }
                GetMetrics => {
                    let reply = connection.metrics(Role::Poll, scaled_object, metric_name).await;
                    reply.result.map(drop)
                }
                IsActive => connection.is_active(Role::Poll, scaled_object).await.result.map(drop),
                StreamIsActive => {
                    streams.push(connection.stream_is_active(scaled_object));
                    Ok(())
                }
            };
            if let Err(failure) = result {
                return Err(Shortfall::Fail(format!(
                    "on a new connection, calling {order:?}, {step:?} is answered with {failure}"
                )));
            }
        }
    }
    Ok(format!("{} orders, each on a new connection, are answered", ORDERS.len()))
}

async fn a17_first_metric(context: &Context) -> Finding {
    context.metric()?;
    let specs = context.transcript.answered_specs().find(|specs| !specs.is_empty());
    let first = specs.and_then(<[_]>::first).map_or("", |spec| spec.metric_name.as_str());
    if context.transcript.answered_metrics().any(|(name, _values)| name == first) {
        return Ok(format!("{first} has a value"));
    }
    Err(Shortfall::Fail(format!("{first}, the first of the specs, has no value; a later one has")))
}
