//! Rules B1-B8: trigger metadata.
//!
//! All in the poll role: what the HPA's query gets for bad metadata is the scaler's choice.

use super::{Context, Finding, How, Rule, Shortfall, answered_cleanly};
use crate::conformance::client::{Connection, Failure, Role};
use crate::proto::ScaledObjectRef;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "B1",
        title: "KEDA's own keys are accepted, unknown ones told or ignored",
        why: "KEDA passes the whole metadata on, enableTLS and unsafeSsl included. A scaler that \
              stumbles over them cannot be used with TLS.",
        how: How::Check(|context| Box::pin(b1_other_keys(context))),
    },
    Rule {
        id: "B2",
        title: "key and keyFromEnv are accepted, both together refused",
        why: "KEDA resolves keyFromEnv, but passes the value under the key with the suffix. With \
              both set nobody can know which one counts.",
        how: How::Check(|context| Box::pin(b2_from_env(context))),
    },
    Rule {
        id: "B3",
        title: "a refusal names the key",
        why: "The text of the error in KEDA's event is all that the user sees.",
        how: How::Check(|context| Box::pin(b3_refusal_names_the_key(context))),
    },
    Rule {
        id: "B4",
        title: "bad metadata is INVALID_ARGUMENT in GetMetrics and IsActive",
        why: "KEDA shows the user the text of these two calls only, and only the first text of a \
              phase; the text of a GetMetricSpec error reaches nobody.",
        how: How::Check(|context| Box::pin(b4_bad_metadata(context))),
    },
    Rule {
        id: "B5",
        title: "metadata values are in no log and no metric label",
        why: "Secrets that come by keyFromEnv are in clear text in each request.",
        how: How::Outside("needs the scaler's logs and metrics; see C3 for its errors"),
    },
    Rule {
        id: "B6",
        title: "state is kept by namespace, name and metadata",
        why: "A ScaledObject may hold two triggers to one scaler, and an edit overlaps the old \
              trigger: only the metadata tells them apart.",
        how: How::Check(|context| Box::pin(b6_state_by_metadata(context))),
    },
    Rule {
        id: "B7",
        title: "many metadata keys are handled or refused",
        why: "Whoever may create a ScaledObject decides how much metadata each call carries; the \
              scaler serves all others as well.",
        how: How::Check(|context| Box::pin(b7_many_keys(context))),
    },
    Rule {
        id: "B8",
        title: "numbers are read strictly",
        why: "\"1,5\" or \"NaN\" taken for a number becomes a target or a threshold that nobody \
              chose, and no error says so.",
        how: How::Check(|context| Box::pin(b8_strict_numbers(context))),
    },
];

const FROM_ENV: &str = "FromEnv";

/// What GetMetrics answers after a spec call with the same metadata, as in KEDA's poll.
async fn ask(
    connection: &Connection,
    scaled_object: &ScaledObjectRef,
    metric_name: &str,
) -> Result<(), Failure> {
    drop(connection.metric_spec(Role::Poll, scaled_object).await);
    connection.metrics(Role::Poll, scaled_object, metric_name).await.result.map(drop)
}

/// True if the answer says nothing about the metadata: changed metadata is a new trigger to some
/// scalers, and they may have no data for it yet.
fn is_warming(answer: &Result<(), Failure>) -> bool {
    answer.as_ref().is_err_and(|failure| failure.is(tonic::Code::Unavailable))
}

fn is_invalid_argument(answer: &Result<(), Failure>) -> bool {
    answer.as_ref().is_err_and(|failure| failure.is(tonic::Code::InvalidArgument))
}

fn shown(answer: &Result<(), Failure>) -> String {
    match answer {
        Ok(()) => "a value".to_owned(),
        Err(failure) => failure.to_string(),
    }
}

fn warming() -> Shortfall {
    Shortfall::unseen("changed metadata is answered with UNAVAILABLE, as if there were no data yet")
}

/// The given metadata's keys but for KEDA's own and those in another form.
fn own_keys(scaled_object: &ScaledObjectRef) -> Vec<&str> {
    let keda_own = ["scalerAddress", "enableTLS", "unsafeSsl"];
    let mut keys: Vec<&str> = scaled_object
        .scaler_metadata
        .keys()
        .map(String::as_str)
        .filter(|key| !keda_own.contains(key) && !key.ends_with(FROM_ENV))
        .collect();
    keys.sort_unstable();
    keys
}

fn with(scaled_object: &ScaledObjectRef, key: &str, value: &str) -> ScaledObjectRef {
    let mut changed = scaled_object.clone();
    changed.scaler_metadata.insert(key.to_owned(), value.to_owned());
    changed
}

async fn b1_other_keys(context: &Context) -> Finding {
    let metric_name = context.metric()?;
    let connection = context.connect().await?;
    let with_keda_keys =
        with(&with(context.scaled_object(), "enableTLS", "false"), "unsafeSsl", "false");
    let answer = ask(&connection, &with_keda_keys, metric_name).await;
    if is_warming(&answer) {
        return Err(warming());
    }
    if let Err(failure) = answer {
        return Err(Shortfall::Fail(format!(
            "with enableTLS and unsafeSsl the answer is {failure}"
        )));
    }
    let with_unknown_key = with(context.scaled_object(), "conformanceUnknownKey", "1");
    let answer = ask(&connection, &with_unknown_key, metric_name).await;
    match &answer {
        Ok(()) => Ok("KEDA's keys are accepted, an unknown key is ignored".to_owned()),
        Err(_) if is_invalid_argument(&answer) => {
            Ok("KEDA's keys are accepted, an unknown key is refused".to_owned())
        }
        Err(_) if is_warming(&answer) => Err(warming()),
        Err(failure) => Err(Shortfall::Fail(format!(
            "an unknown key is answered with {failure}, expected a value or INVALID_ARGUMENT"
        ))),
    }
}

async fn b2_from_env(context: &Context) -> Finding {
    let metric_name = context.metric()?;
    let keys = own_keys(context.scaled_object());
    if keys.is_empty() {
        return Err(Shortfall::unseen("give the trigger's metadata with --metadata"));
    }
    let connection = context.connect().await?;
    for key in &keys {
        let mut from_env = context.scaled_object().clone();
        let value = from_env.scaler_metadata.remove(*key).unwrap_or_default();
        let key_from_env = format!("{key}{FROM_ENV}");
        from_env.scaler_metadata.insert(key_from_env.clone(), value.clone());
        let answer = ask(&connection, &from_env, metric_name).await;
        if is_warming(&answer) {
            return Err(warming());
        }
        if answer.is_err() {
            return Err(Shortfall::Fail(format!(
                "{key_from_env} instead of {key} is answered with {}",
                shown(&answer)
            )));
        }
        let both = with(context.scaled_object(), &key_from_env, &value);
        let answer = ask(&connection, &both, metric_name).await;
        if !is_invalid_argument(&answer) {
            return Err(Shortfall::Fail(format!(
                "{key} with {key_from_env} is answered with {}, expected INVALID_ARGUMENT",
                shown(&answer)
            )));
        }
    }
    Ok(format!("{} keys in both forms", keys.len()))
}

async fn b3_refusal_names_the_key(context: &Context) -> Finding {
    let (faulty, metric_name) = context.faulty()?;
    let connection = context.connect().await?;
    let answer = ask(&connection, &faulty.scaled_object, metric_name).await;
    let activity = connection.is_active(Role::Poll, &faulty.scaled_object).await.result.map(drop);
    let refusal = [answer, activity].into_iter().find_map(|answer| match answer {
        Err(Failure::Status(_code, message)) => Some(message),
        Ok(()) | Err(Failure::Broken(_) | Failure::Late) => None,
    });
    let Some(message) = refusal else {
        return Err(accepted());
    };
    if faulty.keys.iter().any(|key| message.contains(key)) {
        return Ok(message);
    }
    Err(Shortfall::Fail(format!(
        "\"{}\" names none of {}",
        message.escape_debug(),
        faulty.keys.join(", ")
    )))
}

fn accepted() -> Shortfall {
    Shortfall::unseen("the metadata was accepted; give some that is wrong with --bad-metadata")
}

async fn b4_bad_metadata(context: &Context) -> Finding {
    let (faulty, metric_name) = context.faulty()?;
    let connection = context.connect().await?;
    let mut answers = Vec::new();
    for _repeat in 0..2 {
        answers.push(ask(&connection, &faulty.scaled_object, metric_name).await);
        let activity = connection.is_active(Role::Poll, &faulty.scaled_object).await;
        answers.push(activity.result.map(drop));
    }
    if answers.iter().all(Result::is_ok) {
        return Err(accepted());
    }
    match answers.iter().find(|answer| !is_invalid_argument(answer)) {
        None => Ok("INVALID_ARGUMENT from the first call on".to_owned()),
        Some(answer) => Err(Shortfall::Fail(format!(
            "answered with {}, expected INVALID_ARGUMENT from both calls",
            shown(answer)
        ))),
    }
}

async fn b6_state_by_metadata(context: &Context) -> Finding {
    let (faulty, metric_name) = context.faulty()?;
    let connection = context.connect().await?;
    if ask(&connection, &faulty.scaled_object, metric_name).await.is_ok() {
        return Err(accepted());
    }
    // Without a spec call between: nothing of the other trigger may stick to the object.
    match connection.metrics(Role::Poll, context.scaled_object(), metric_name).await.result {
        Ok(_) => Ok("one trigger's bad metadata leaves the other's answers alone".to_owned()),
        Err(failure) => Err(Shortfall::Fail(format!(
            "after a call with other metadata the good trigger is answered with {failure}"
        ))),
    }
}

async fn b7_many_keys(context: &Context) -> Finding {
    const N_KEYS: usize = 5_000;
    let mut large = context.scaled_object().clone();
    for n in 0..N_KEYS {
        large.scaler_metadata.insert(format!("conformanceKey{n}"), "1".to_owned());
    }
    handled_or_refused(context, &large, "5,000 keys").await
}

/// Passes if metadata beyond any need is answered or refused, and the connection serves on.
pub(super) async fn handled_or_refused(
    context: &Context,
    large: &ScaledObjectRef,
    what: &str,
) -> Finding {
    let metric_name = context.metric()?;
    let connection = context.connect().await?;
    let answer = connection.metrics(Role::Poll, large, metric_name).await.result.map(drop);
    if !answered_cleanly(&answer) {
        return Err(Shortfall::Fail(format!(
            "{what} are answered with {}, expected a value or RESOURCE_EXHAUSTED",
            shown(&answer)
        )));
    }
    match connection.metrics(Role::Poll, context.scaled_object(), metric_name).await.result {
        Ok(_) => Ok(format!("{what} are answered with {}", shown(&answer))),
        Err(failure) => {
            Err(Shortfall::Fail(format!("after {what} the next call is answered with {failure}")))
        }
    }
}

async fn b8_strict_numbers(context: &Context) -> Finding {
    const NO_NUMBERS: [&str; 4] = ["NaN", "inf", "1,5", "0x10"];
    let metric_name = context.metric()?;
    let connection = context.connect().await?;
    let mut n_strict = 0;
    for key in own_keys(context.scaled_object()) {
        let value = context.scaled_object().scaler_metadata.get(key);
        if !value.is_some_and(|value| value.trim().parse::<f64>().is_ok_and(f64::is_finite)) {
            continue;
        }
        let mut accepted = Vec::new();
        for text in NO_NUMBERS {
            let changed = with(context.scaled_object(), key, text);
            let answer = ask(&connection, &changed, metric_name).await;
            if answer.is_ok() || is_warming(&answer) {
                accepted.push(text);
            }
        }
        // A key that takes anything is text that only happens to look like a number.
        if accepted.len() == NO_NUMBERS.len() {
            continue;
        }
        if !accepted.is_empty() {
            return Err(Shortfall::Fail(format!("{key} may be {accepted:?}")));
        }
        n_strict += 1;
    }
    if n_strict == 0 {
        return Err(Shortfall::unseen("no metadata with a number; give it with --metadata"));
    }
    Ok(format!("{n_strict} keys refuse {NO_NUMBERS:?}"))
}
