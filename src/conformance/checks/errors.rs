//! Rules C1-C5: what errors look like and how soon they come.
//!
//! Provokes errors by what the caller can do wrong; faults inside the scaler are out of reach.

use std::time::Duration;

use super::{Context, EXTRA_MAX, Finding, How, Latencies, NO_SUCH_METRIC, Rule, Shortfall, millis};
use crate::conformance::client::{Connection, Failure, Reply, Role};
use crate::proto::{MetricValue, ScaledObjectRef};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "C1",
        title: "errors are stable, short, one line of ASCII",
        why: "KEDA puts the text into an event and keeps the first one of a phase; beyond 1,024 \
              characters Kubernetes rejects the event, and a text that changes makes a new event \
              each time in older versions.",
        how: How::Check(|context| Box::pin(c1_stable_texts(context))),
    },
    Rule {
        id: "C2",
        title: "odd requests do not break the connection",
        why: "All ScaledObjects of an address share one connection: a handler that panics on one \
              object's name or metadata cuts the calls and push streams of all.",
        how: How::Check(|context| Box::pin(c2_odd_requests(context))),
    },
    Rule {
        id: "C3",
        title: "errors leak no secrets and no stack traces",
        why: "The text is shown in events, which more people may read than may read secrets.",
        how: How::Check(|context| Box::pin(c3_no_leaks(context))),
    },
    Rule {
        id: "C4",
        title: "partial data is a state of its own",
        why: "A sum over the replicas that happened to answer looks like less load.",
        how: How::Outside("needs a part of the scaler's source to be cut off"),
    },
    Rule {
        id: "C5",
        title: "errors come as fast as values",
        why: "A poll that waits for a slow error while the HPA's query fails counts as \"not \
              active\" without an error in KEDA 2.20 and newer. Errors after 1.5 s were seen to \
              take a running target to zero.",
        how: How::Check(|context| Box::pin(c5_fast_errors(context))),
    },
];

/// One way to provoke an error.
struct Provocation {
    what: &'static str,
    scaled_object: ScaledObjectRef,
    metric_name: String,
}

impl Provocation {
    async fn provoke(&self, connection: &Connection) -> Reply<Vec<MetricValue>> {
        connection.metrics(Role::Poll, &self.scaled_object, &self.metric_name).await
    }
}

fn provocations(context: &Context) -> Result<Vec<Provocation>, Shortfall> {
    let metric_name = context.metric()?;
    let mut provocations = vec![
        Provocation {
            what: "an unknown metric",
            scaled_object: context.scaled_object().clone(),
            metric_name: NO_SUCH_METRIC.to_owned(),
        },
        Provocation {
            what: "an empty metric name",
            scaled_object: context.scaled_object().clone(),
            metric_name: String::new(),
        },
    ];
    if let Some(faulty) = &context.faulty {
        provocations.push(Provocation {
            what: "bad metadata",
            scaled_object: faulty.scaled_object.clone(),
            metric_name: metric_name.to_owned(),
        });
    }
    Ok(provocations)
}

async fn c1_stable_texts(context: &Context) -> Finding {
    const N_REPEATS: usize = 3;
    /// So that a text with a time in it, to the hundredth of a second, changes.
    const PAUSE: Duration = Duration::from_millis(25);
    let connection = context.connect().await?;
    let mut n_errors = 0;
    for provocation in provocations(context)? {
        let mut first: Option<Failure> = None;
        for _repeat in 0..N_REPEATS {
            let result = provocation.provoke(&connection).await.result;
            tokio::time::sleep(PAUSE).await;
            let Err(failure @ Failure::Status(..)) = result else { continue };
            n_errors += 1;
            if let Some(fault) = text_fault(&failure) {
                return Err(Shortfall::Fail(format!("the error of {} {fault}", provocation.what)));
            }
            match &first {
                None => first = Some(failure),
                Some(before) if *before == failure => {}
                Some(before) => {
                    return Err(Shortfall::Fail(format!(
                        "{} is answered with {before} and then with {failure}",
                        provocation.what
                    )));
                }
            }
        }
    }
    if n_errors == 0 {
        return Err(Shortfall::unseen("nothing that was tried is answered with an error"));
    }
    Ok(format!("{n_errors} errors looked at"))
}

/// What is wrong with an error's text, if anything.
fn text_fault(failure: &Failure) -> Option<String> {
    /// KEDA adds its own words, and an event holds 1,024 characters.
    const LENGTH_MAX: usize = 200;
    let Failure::Status(_code, message) = failure else { return None };
    if message.len() > LENGTH_MAX {
        Some(format!("has {} bytes, expected at most {LENGTH_MAX}", message.len()))
    } else if !message.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
        Some(format!("is not one line of ASCII: \"{}\"", message.escape_default()))
    } else {
        None
    }
}

async fn c2_odd_requests(context: &Context) -> Finding {
    let scaled_object = |name: &str, key: &str, value: &str| ScaledObjectRef {
        name: name.to_owned(),
        namespace: name.to_owned(),
        scaler_metadata: [(key.to_owned(), value.to_owned())].into(),
    };
    let odd = [
        ("empty strings", scaled_object("", "", "")),
        ("NUL characters", scaled_object("a\0b", "\0", "\0")),
        ("a path", scaled_object("../../etc/passwd", "../key", "../value")),
        ("format marks", scaled_object("%s%n{}{0}", "%s", "{{")),
        ("characters beyond ASCII", scaled_object("\u{1F47B}\u{202E}\u{FFFF}", "ключ", "値")),
        ("10,000 characters", scaled_object(&"a".repeat(10_000), "key", "value")),
        ("an overlong number", scaled_object("a", "key", &"9".repeat(400))),
    ];
    context.polled()?;
    let connection = context.connect().await?;
    for (what, scaled_object) in &odd {
        let spec = connection.metric_spec(Role::Poll, scaled_object).await.result.map(drop);
        let metrics = connection.metrics(Role::Poll, scaled_object, what).await.result.map(drop);
        let activity = connection.is_active(Role::Poll, scaled_object).await.result.map(drop);
        for (method, result) in
            [("GetMetricSpec", spec), ("GetMetrics", metrics), ("IsActive", activity)]
        {
            if let Err(failure @ (Failure::Broken(_) | Failure::Late)) = result {
                return Err(Shortfall::Fail(format!("{method} for {what}: {failure}")));
            }
        }
        drop(connection.stream_is_active(scaled_object));
    }
    if let Err(failure) = connection.metric_spec(Role::Poll, context.scaled_object()).await.result
        && matches!(failure, Failure::Broken(_))
    {
        return Err(Shortfall::Fail(format!("after them GetMetricSpec fails: {failure}")));
    }
    Ok(format!("{} odd requests to three methods are answered", odd.len()))
}

async fn c3_no_leaks(context: &Context) -> Finding {
    /// Told apart from anything that a scaler might say by itself.
    const CANARY: &str = "canary-5e7d1b";
    const TRACES: [&str; 4] = ["panicked at", "Traceback", "goroutine ", "stack backtrace"];
    let connection = context.connect().await?;
    let mut messages = Vec::new();
    for mut provocation in provocations(context)? {
        let metadata = &mut provocation.scaled_object.scaler_metadata;
        metadata.insert("passwordFromEnv".to_owned(), CANARY.to_owned());
        if let Err(Failure::Status(_code, message)) = provocation.provoke(&connection).await.result
        {
            messages.push(message);
        }
    }
    if messages.is_empty() {
        return Err(Shortfall::unseen("nothing that was tried is answered with an error"));
    }
    for message in &messages {
        if message.contains(CANARY) {
            return Err(Shortfall::fail(
                "an error repeats the value of passwordFromEnv from the metadata",
            ));
        }
        if let Some(trace) = TRACES.iter().find(|trace| message.contains(*trace)) {
            return Err(Shortfall::Fail(format!("an error contains \"{trace}\"")));
        }
    }
    Ok(format!("{} errors looked at", messages.len()))
}

async fn c5_fast_errors(context: &Context) -> Finding {
    const N_REPEATS: usize = 3;
    let connection = context.connect().await?;
    let mut took = Vec::new();
    for provocation in provocations(context)? {
        let mut repeats = Vec::new();
        let mut without_handler = Duration::MAX;
        for _repeat in 0..N_REPEATS {
            without_handler = without_handler.min(connection.unknown_method().await.took);
            let reply = provocation.provoke(&connection).await;
            if reply.result.is_err() {
                repeats.push(reply.took);
            }
        }
        // A busy machine makes one slow, a scaler that waits makes all.
        if let Some(fastest) = repeats.iter().min()
            && *fastest > without_handler.saturating_add(EXTRA_MAX)
        {
            return Err(Shortfall::Fail(format!(
                "the error of {} took {} at the least; a method that does not exist {}",
                provocation.what,
                millis(*fastest),
                millis(without_handler)
            )));
        }
        took.extend(repeats);
    }
    if took.is_empty() {
        return Err(Shortfall::unseen("nothing that was tried is answered with an error"));
    }
    Ok(format!("{} (expected below 10 ms)", Latencies::of(took)))
}
