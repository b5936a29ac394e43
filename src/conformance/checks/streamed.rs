//! Rules H1-H7: StreamMetricSpec, which only a scaler that offers it is held to.
//!
//! Whether it may stay UNIMPLEMENTED is rule E8's.

use std::time::Duration;

use futures_util::future::join_all;

use super::push::ends_with_ok;
use super::values::{name_fault, target_fault};
use super::{
    ANSWER_LIMIT, ARRIVAL_LIMIT, Context, Finding, How, Latencies, Rule, Shortfall, SpecStream,
    shown,
};
use crate::conformance::client::{Event, Role};
use crate::proto::MetricSpec;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "H1",
        title: "each open of StreamMetricSpec tells the specs at once",
        why: "Any error drops the streamed specs in KEDA; until the next message the HPA is \
              written from GetMetricSpec.",
        how: How::Check(|context| Box::pin(h1_specs_on_open(context))),
    },
    Rule {
        id: "H2",
        title: "streamed specs are valid and keep their names",
        why: "KEDA ignores an empty list and writes any other into the HPA at once; other names \
              no longer fit the HPA after the next error.",
        how: How::Check(|context| Box::pin(h2_valid_specs(context))),
    },
    Rule {
        id: "H3",
        title: "GetMetricSpec equals the last streamed specs",
        why: "KEDA falls back to GetMetricSpec after each error: where the two differ, the HPA's \
              target flaps.",
        how: How::Check(|context| Box::pin(h3_equals_get(context))),
    },
    Rule {
        id: "H4",
        title: "one message a change, never the same again",
        why: "Each message is a whole reconcile of the ScaledObject.",
        how: How::Check(|context| Box::pin(h4_changes_only(context))),
    },
    Rule {
        id: "H5",
        title: "a value for a new target comes after that target",
        why: "Divided by the old target it asks for a wrong count.",
        how: How::Outside("needs the target to change"),
    },
    Rule {
        id: "H6",
        title: "StreamMetricSpec ends with OK and may stay unread",
        why: "As for StreamIsActive: KEDA keeps a grown reopen delay after an error, and never \
              reads the stream of a ScaledJob.",
        how: How::Check(|context| Box::pin(h6_ends_and_unread(context))),
    },
    Rule {
        id: "H7",
        title: "decisions are the same without the stream",
        why: "KEDA 2.20 and older never open it.",
        how: How::Outside("needs both versions of KEDA"),
    },
];

fn offered(context: &Context) -> Result<(), Shortfall> {
    match context.spec_stream {
        SpecStream::Offered => Ok(()),
        SpecStream::Unimplemented | SpecStream::Silent | SpecStream::Ended(_) => {
            Err(Shortfall::unseen("StreamMetricSpec is not offered; see E8"))
        }
    }
}

/// The messages of each stream of the rehearsal.
fn streamed(context: &Context) -> impl Iterator<Item = Vec<&Vec<MetricSpec>>> {
    let logs = context.transcript.spec_pushes.iter();
    logs.map(|log| log.messages.iter().map(|(_at, specs)| specs).collect())
}

async fn h1_specs_on_open(context: &Context) -> Finding {
    const N_OPENS: usize = 3;
    offered(context)?;
    let mut took = Vec::new();
    for n in 1..=N_OPENS {
        let connection = context.connect().await?;
        let mut stream = connection.stream_metric_spec(context.scaled_object());
        let event = stream.next(ARRIVAL_LIMIT).await;
        if !matches!(event, Some(Event::Message(_))) {
            return Err(Shortfall::Fail(format!(
                "open {n} of {N_OPENS} shows {} within {} s",
                shown(&event),
                ARRIVAL_LIMIT.as_secs()
            )));
        }
        took.push(stream.opened_at.elapsed());
    }
    let took = Latencies::of(took);
    // A busy machine makes one late, a scaler that waits makes all.
    if took.min() > ANSWER_LIMIT {
        return Err(Shortfall::Fail(format!("the first message is late each time: {took}")));
    }
    Ok(format!("{took} (expected below 100 ms)"))
}

async fn h2_valid_specs(context: &Context) -> Finding {
    offered(context)?;
    let mut names: Option<Vec<&str>> = None;
    for specs in streamed(context).flatten() {
        if specs.is_empty() {
            return Err(Shortfall::fail("an empty list was streamed"));
        }
        for spec in specs {
            let name = &spec.metric_name;
            let name_fault = name_fault(name).map(str::to_owned);
            if let Some(fault) = name_fault.or_else(|| target_fault(spec)) {
                return Err(Shortfall::Fail(format!("the streamed metric {name:?}: {fault}")));
            }
        }
        let now: Vec<&str> = specs.iter().map(|spec| spec.metric_name.as_str()).collect();
        match &names {
            None => names = Some(now),
            Some(before) if *before == now => {}
            Some(before) => {
                return Err(Shortfall::Fail(format!("the names were {before:?}, then {now:?}")));
            }
        }
    }
    match names {
        Some(names) => Ok(format!("{names:?}")),
        None => Err(Shortfall::unseen("no message came in time; see H1")),
    }
}

async fn h3_equals_get(context: &Context) -> Finding {
    const N_ROUNDS: usize = 3;
    /// A target that changes between stream and call is told within this.
    const CHANGE: Duration = Duration::from_secs(2);
    offered(context)?;
    let connection = context.connect().await?;
    for _round in 0..N_ROUNDS {
        let mut stream = connection.stream_metric_spec(context.scaled_object());
        let Some(Event::Message(mut streamed)) = stream.next(ARRIVAL_LIMIT).await else {
            return Err(Shortfall::unseen("no message came in time; see H1"));
        };
        let reply = connection.metric_spec(Role::Poll, context.scaled_object()).await;
        let Ok(asked) = reply.result else {
            return Err(Shortfall::unseen("GetMetricSpec gave no answer; see A1 and D2"));
        };
        while streamed != asked
            && let Some(Event::Message(later)) = stream.next(CHANGE).await
        {
            streamed = later;
        }
        if streamed != asked {
            return Err(Shortfall::Fail(format!("streamed {streamed:?}, asked {asked:?}")));
        }
    }
    Ok("equal".to_owned())
}

async fn h4_changes_only(context: &Context) -> Finding {
    offered(context)?;
    let mut n_messages = 0;
    for messages in streamed(context) {
        n_messages += messages.len();
        if messages.iter().zip(messages.iter().skip(1)).any(|(before, after)| before == after) {
            return Err(Shortfall::Fail(format!(
                "{} messages on one stream, some of them the same as before",
                messages.len()
            )));
        }
    }
    Ok(format!("{n_messages} messages, each with a change"))
}

async fn h6_ends_and_unread(context: &Context) -> Finding {
    const N_UNREAD: usize = 8;
    offered(context)?;
    let ends = ends_with_ok(context.transcript.spec_pushes.iter().map(|log| &log.end))?;
    let metric_name = context.polled()?;
    let stalled = context.scaler.connect_stalled().await.map_err(Shortfall::fail)?;
    let mut streams = Vec::new();
    for _stream in 0..N_UNREAD {
        streams.push(stalled.stream_metric_spec(context.scaled_object()));
    }
    join_all(streams.iter_mut().map(|stream| stream.accepted(ANSWER_LIMIT))).await;
    let connection = context.dial().await?;
    match connection.poll(context.scaled_object(), metric_name).await {
        Ok(()) => Ok(format!("{ends}; {N_UNREAD} unread ones block nobody")),
        Err(failure) => Err(Shortfall::Fail(format!(
            "with {N_UNREAD} unread streams a poll is answered with {failure}"
        ))),
    }
}
