//! Rules E1-E8: the push streams.
//!
//! A scaler without StreamIsActive is for triggers of type `external`, and is not held to them.

use futures_util::future::join_all;
use tonic::Code;

use super::{
    ARRIVAL_LIMIT, Context, Finding, How, QUIET, Rule, Shortfall, SpecStream, quiet, shown,
};
use crate::conformance::client::{Event, Failure, Role};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "E1",
        title: "each open tells `true` once if active, else nothing",
        why: "Streams break with each error and restart and come back after 2 to 60 s. What became \
              active in between is known only if the open says so, each time.",
        how: How::Check(|context| Box::pin(e1_true_on_open(context))),
    },
    Rule {
        id: "E2",
        title: "later only `true` on a rising edge; never `false`",
        why: "Each message costs KEDA API reads and a status write, and refreshes the last active \
              time: a stale `true` keeps the target from sleeping. A `false` has scaled to zero at \
              once before KEDA 2.18.",
        how: How::Check(|context| Box::pin(e2_edges_only(context))),
    },
    Rule {
        id: "E3",
        title: "parallel streams of one object all work",
        why: "When a ScaledObject is edited, the new stream may open before the old one ends; two \
              triggers and a ScaledJob open their own as well.",
        how: How::Check(|context| Box::pin(e3_parallel_streams(context))),
    },
    Rule {
        id: "E4",
        title: "a failing source does not end the stream",
        why: "KEDA opens it again only after 2 to 60 s, and the delay stays grown.",
        how: How::Outside("needs the scaler's source to be cut off"),
    },
    Rule {
        id: "E5",
        title: "a stream that ends does so with OK",
        why: "KEDA resets its reopen delay of up to 60 s only then; after any error the grown \
              delay stays for the life of the loop.",
        how: How::Check(|context| Box::pin(e5_ends_with_ok(context))),
    },
    Rule {
        id: "E6",
        title: "a lost push is made good by IsActive",
        why: "A push without a true IsActive buys one cooldown; polls are the safety net.",
        how: How::Outside("needs the workload to become active while a stream is down"),
    },
    Rule {
        id: "E7",
        title: "activity is not lost across a reconnect",
        why: "The gap is 2 to 60 s, and comes with each error phase on KEDA 2.21.",
        how: How::Outside("needs the workload to become active in the gap; see E1 for reopening"),
    },
    Rule {
        id: "E8",
        title: "StreamMetricSpec is UNIMPLEMENTED or answers",
        why: "KEDA 2.21 opens it for each push trigger. UNIMPLEMENTED ends it quietly; any other \
              error is tried again for ever, and an open stream without a message is a promise of \
              specs that never come.",
        how: How::Check(|context| Box::pin(e8_spec_stream(context))),
    },
];

/// Passes over a scaler that offers no push at all.
fn offers_push(context: &Context) -> Result<(), Shortfall> {
    let ends = context.transcript.pushes.iter().filter_map(|log| log.end.as_ref());
    let mut refusals = ends.filter_map(|end| end.as_ref().err());
    if refusals.any(|failure| failure.is(Code::Unimplemented)) {
        return Err(Shortfall::unseen("StreamIsActive is not offered; use the type external"));
    }
    Ok(())
}

async fn e1_true_on_open(context: &Context) -> Finding {
    const N_OPENS: usize = 3;
    offers_push(context)?;
    context.active()?;
    let mut n_compared = 0;
    for n in 1..=N_OPENS {
        let connection = context.connect().await?;
        let reply = connection.is_active(Role::Poll, context.scaled_object()).await;
        let (before, silence) = (reply.result, quiet(reply.took));
        let mut stream = connection.stream_is_active(context.scaled_object());
        let event = stream.next(if before == Ok(true) { ARRIVAL_LIMIT } else { silence }).await;
        let after = connection.is_active(Role::Poll, context.scaled_object()).await.result;
        // A change while the stream opens proves nothing.
        let (Ok(active), true) = (before.clone(), before == after) else {
            continue;
        };
        n_compared += 1;
        let is_as_expected = match &event {
            Some(Event::Message(message)) => active && *message,
            // An error end is as silent as nothing to the one who needs to know.
            Some(Event::End(_) | Event::Opened) | None => !active,
        };
        if !is_as_expected {
            let expected = if active { "true" } else { "nothing" };
            return Err(Shortfall::Fail(format!(
                "IsActive is {active}, and open {n} of {N_OPENS} shows {}, expected {expected}",
                shown(&event)
            )));
        }
    }
    if n_compared == 0 {
        return Err(Shortfall::unseen("IsActive changed or failed at each open"));
    }
    Ok(format!("{n_compared} opens, each as IsActive says"))
}

async fn e2_edges_only(context: &Context) -> Finding {
    offers_push(context)?;
    let mut n_messages = 0;
    for log in &context.transcript.pushes {
        n_messages += log.messages.len();
        if log.messages.iter().any(|(_at, active)| !active) {
            return Err(Shortfall::fail("a `false` was pushed"));
        }
        for (before, after) in log.messages.iter().zip(log.messages.iter().skip(1)) {
            let mut between = context
                .transcript
                .answered_activity()
                .filter(|(at, _active)| (before.0..=after.0).contains(at));
            if !between.any(|(_at, active)| !active) {
                return Err(Shortfall::Fail(format!(
                    "{} messages in {:.1} s while IsActive stayed true",
                    log.messages.len(),
                    (after.0 - log.opened_at).as_secs_f64(),
                )));
            }
        }
    }
    Ok(format!("{n_messages} messages, none without an edge"))
}

async fn e3_parallel_streams(context: &Context) -> Finding {
    const N_ON_ONE: usize = 5;
    offers_push(context)?;
    let active = context.active()?;
    let shared = context.connect().await?;
    let other = context.connect().await?;
    let limit = if active { ARRIVAL_LIMIT } else { QUIET };
    let alone = other.stream_is_active(context.scaled_object()).next(limit).await;
    if matches!(alone, Some(Event::End(_))) {
        return Err(Shortfall::unseen("a single stream ends at once; see E1 and E5"));
    }
    let mut streams = Vec::new();
    for _stream in 0..N_ON_ONE {
        streams.push(shared.stream_is_active(context.scaled_object()));
    }
    streams.push(other.stream_is_active(context.scaled_object()));
    let mut events = join_all(streams.iter_mut().map(|stream| stream.next(limit))).await;
    // A later stream may end an earlier one that has had its message. Calls on both connections
    // show how long that may take to arrive.
    let answered = [&shared, &other].map(|connection| async {
        connection.is_active(Role::Poll, context.scaled_object()).await.took
    });
    let silence = quiet(join_all(answered).await.into_iter().max().unwrap_or_default());
    events.extend(join_all(streams.iter_mut().map(|stream| stream.next(silence))).await);
    for event in &events {
        if let Some(Event::End(_)) = event {
            return Err(Shortfall::Fail(format!(
                "with {} streams of one object open, one shows {}",
                streams.len(),
                shown(event)
            )));
        }
    }
    Ok(format!("{} streams on two connections", streams.len()))
}

async fn e5_ends_with_ok(context: &Context) -> Finding {
    offers_push(context)?;
    ends_with_ok(context.transcript.pushes.iter().map(|log| &log.end))
}

/// Judges how the server ended streams, if it did.
pub(super) fn ends_with_ok<'a>(
    ends: impl Iterator<Item = &'a Option<Result<(), Failure>>>,
) -> Finding {
    let mut n_ends = 0;
    for end in ends {
        match end {
            None => {}
            Some(Ok(())) => n_ends += 1,
            Some(Err(failure)) => {
                return Err(Shortfall::Fail(format!("a stream ended with {failure}")));
            }
        }
    }
    Ok(match n_ends {
        0 => "no stream ended".to_owned(),
        n_ends => format!("{n_ends} streams ended, all with OK"),
    })
}

async fn e8_spec_stream(context: &Context) -> Finding {
    match &context.spec_stream {
        SpecStream::Unimplemented => Ok("UNIMPLEMENTED: GetMetricSpec alone is used".to_owned()),
        SpecStream::Offered => Ok("offered; held to H1-H6".to_owned()),
        SpecStream::Silent => Err(Shortfall::Fail(format!(
            "an open stream without a message in {} s",
            ARRIVAL_LIMIT.as_secs()
        ))),
        SpecStream::Ended(Ok(())) => {
            Err(Shortfall::fail("the stream ends with OK, but without a message"))
        }
        SpecStream::Ended(Err(failure)) => {
            Err(Shortfall::Fail(format!("answered with {failure}, expected UNIMPLEMENTED")))
        }
    }
}
