//! Decisions in plain words, each number with its unit.
//!
//! Pure. Must not decide or recompute anything: it says what the decision holds.

mod kubernetes;

use crate::decision::{
    Answer, Decision, Engine, Health, KeptSample, LevelSource, Mode, Phase, Reason, Rule, Spec,
    Unavailable, Why, ZeroAfter,
};
use crate::duration::format_millis;

pub use kubernetes::{cluster, effect, hpa, refused, start};

/// One sentence for one answer: the count, the rule that set it, the queue, and what is not whole.
/// `engines` are those that the decision was made on, where they are at hand.
#[must_use]
pub fn summary(
    answer: &Answer,
    decision: Option<&Decision>,
    spec: Option<&Spec>,
    engines: &[Engine],
) -> String {
    let want = match answer {
        Answer::Unavailable { why } => return unavailable(*why).to_owned(),
        Answer::Value { want, .. } => *want,
    };
    let Some(decision) = decision else {
        return format!("not observed yet: {} = the present count", replicas(want));
    };
    let mut sentence =
        format!("{} = {}; {}", replicas(decision.want), because(decision, spec), queue(decision));
    let n_asleep = engines.iter().filter(|engine| sleeps(engine)).count();
    if n_asleep > 0 {
        sentence.push_str(&format!(", {n_asleep} asleep"));
    }
    if let Some(health) = health(decision, engines) {
        sentence.push_str("; ");
        sentence.push_str(&health);
    }
    if spec.is_some_and(|spec| spec.mode == Mode::Shadow) {
        sentence.push_str(&format!("; shadow mode answers the present {}", replicas(want)));
    } else if want > decision.want {
        sentence.push_str(&format!("; {want} answered, since the HPA ignores so small a step"));
    }
    sentence
}

/// Why there is no value.
#[must_use]
pub fn unavailable(why: Unavailable) -> &'static str {
    match why {
        Unavailable::NothingKnown => {
            "no answer: not even the present count is known; a workload of the configuration needs \
             `replicas`, one of a cluster a target whose scale can be read"
        }
        Unavailable::SourceLost => {
            "no answer, on purpose: the engines have been unreadable for too long and the \
             ScaledObject's fallback shall count"
        }
    }
}

/// The rule that set the count, as the reason of a count.
fn because(decision: &Decision, spec: Option<&Spec>) -> String {
    let lower = decision.inputs.spec.is_some_and(|present| decision.want < present);
    let higher = decision.inputs.spec.is_some_and(|present| decision.want > present);
    match decision.binding {
        Rule::Demand => match decision.inputs.work {
            Some(work) => format!("what {work:.2} replicas' worth of work needs"),
            None => "what the work needs".to_owned(),
        },
        Rule::Queue => "room to clear the queue".to_owned(),
        Rule::Kv => "room in the KV cache".to_owned(),
        Rule::GpuCeiling => "the GPU ceiling".to_owned(),
        Rule::Ghost if lower => "what the evidence says is enough".to_owned(),
        Rule::Ghost if higher => "what was ordered within the last minute".to_owned(),
        Rule::Ghost => "the present count, until the evidence for fewer is whole".to_owned(),
        Rule::Warm => "the warm schedule".to_owned(),
        Rule::Zero if decision.want == 0 => "asleep after long idleness".to_owned(),
        Rule::Zero => "the last one before zero".to_owned(),
        Rule::Wake => "woken".to_owned(),
        Rule::Degraded => "the last wanted count, held while inputs are not whole".to_owned(),
        Rule::Adopt => "the present count, held after the start until evidence stands".to_owned(),
        Rule::Rollout => "the present count, held during the rollout".to_owned(),
        Rule::Leaving => "the present count and what replaces those about to leave".to_owned(),
        Rule::ByHand => "set by hand".to_owned(),
        Rule::Max => "the maximum".to_owned(),
        Rule::Min if spec.is_some_and(|spec| spec.min == 0) => "the minimum".to_owned(),
        Rule::Min => "warm minimum".to_owned(),
    }
}

fn queue(decision: &Decision) -> String {
    let inputs = &decision.inputs;
    let gateway = match inputs.gateway_queued {
        Some(queued) if queued > 0.0 => format!(", {} held by the gateway", number(queued)),
        Some(_) | None => String::new(),
    };
    let engines = match inputs.waiting {
        None if inputs.ready == 0 => "no replica to wait at".to_owned(),
        None => "waiting not known".to_owned(),
        Some(waiting) if waiting > 0.0 => {
            format!("{} waiting over {}", number(waiting), replicas(inputs.ready))
        }
        Some(_) => "nothing waiting".to_owned(),
    };
    format!("{engines}{gateway}")
}

fn sleeps(engine: &Engine) -> bool {
    let sample = engine.reading.last().filter(|_| engine.phase == Phase::Ready);
    sample.is_some_and(KeptSample::is_asleep)
}

/// What is not whole; `None` if everything is.
fn health(decision: &Decision, engines: &[Engine]) -> Option<String> {
    match decision.health {
        Health::Ok => None,
        Health::Starting => Some(starting(engines)),
        Health::NotYetObserved => Some("not observed yet".to_owned()),
        Health::Degraded { since, why, answered, expected } => Some(format!(
            "degraded for {}: {answered} of {expected} engines answered ({})",
            format_millis(decision.at.millis_since(since)),
            why.sentence()
        )),
    }
}

/// A refused connection is told from the start: it may be an engine that loads, or a wrong port.
fn starting(engines: &[Engine]) -> String {
    if !engines.iter().any(|engine| engine.reading.why() == Some(Why::Refused)) {
        return "all replicas are starting".to_owned();
    }
    let n_answered = engines.iter().filter(|engine| engine.reading.last().is_some()).count();
    let (n_engines, why) = (engines.len(), Why::Refused.sentence());
    format!("{n_answered} of {n_engines} engines answered yet ({why})")
}

/// The health's metric label and JSON word.
#[must_use]
pub fn health_label(health: Health) -> &'static str {
    match health {
        Health::Ok => "ok",
        Health::Starting => "starting",
        Health::Degraded { .. } => "degraded",
        Health::NotYetObserved => "not_yet_observed",
    }
}

/// Where the level comes from.
#[must_use]
pub fn level_source(source: LevelSource) -> &'static str {
    match source {
        LevelSource::CostModel => "learned cost model",
        LevelSource::Saturation => "measured throughput at saturation",
        LevelSource::InFlight => "in-flight requests per replica",
        LevelSource::Unlearned => "not learned yet: only queue and KV cache raise",
    }
}

/// What would change the answer, one sentence each.
#[must_use]
pub fn next(decision: &Decision, spec: Option<&Spec>) -> Vec<String> {
    let next = &decision.next;
    let mut sentences = Vec::new();
    if spec.is_some_and(|spec| decision.want >= spec.max) {
        sentences.push("up: only with a larger maxReplicaCount".to_owned());
    } else if let Some(waiting) = next.up_at_waiting {
        sentences.push(format!("up: one more replica at {} waiting", number(waiting)));
    } else if let Some(first) = decision.votes.iter().find_map(|vote| not_by_waiting(&vote.reason))
    {
        sentences.push(format!("up: not by more waiting, {first}"));
    }
    match next.down_in_ms {
        Some(0) => sentences.push("down: the evidence for fewer is whole".to_owned()),
        Some(millis) => {
            sentences.push(format!("down: after {} more of such evidence", format_millis(millis)))
        }
        None => {}
    }
    match (next.zero_in_ms, spec) {
        (Some(millis), _) => {
            sentences.push(format!("zero: after {} more without work", format_millis(millis)));
        }
        (None, Some(spec)) if spec.min == 0 && spec.zero_after == ZeroAfter::Never => {
            sentences.push("zero: never, by zeroAfter".to_owned());
        }
        (None, Some(spec)) if spec.min == 0 && !spec.has_wake_source => {
            sentences.push("zero: never without a wakeSource".to_owned());
        }
        (None, _) => {}
    }
    if let Some(millis) = next.wake_eta_ms {
        sentences.push(format!("wake: the first replica is expected in {}", format_millis(millis)));
    }
    sentences
}

/// What has to end first, where more waiting brings no replica.
fn not_by_waiting(reason: &Reason) -> Option<&'static str> {
    if matches!(reason, Reason::Imbalance { .. }) {
        Some("until those that idle beside the queue get some of it")
    } else if matches!(reason, Reason::NotServing { .. }) {
        Some("until the GPUs work on what waits")
    } else if matches!(reason, Reason::CapacityExhausted { .. }) {
        Some("until those that cannot start do")
    } else {
        None
    }
}

/// "1 replica", "3 replicas".
#[must_use]
pub fn replicas(count: u32) -> String {
    if count == 1 { "1 replica".to_owned() } else { format!("{count} replicas") }
}

/// A count of requests: whole where it is whole, else with one decimal.
#[must_use]
pub fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

#[cfg(test)]
mod tests;
