//! The end of a replica: whether running answers are finished, and what cuts them if not.
//!
//! Three times follow each other: the preStop hook, the engine's own time to finish, and the grace
//! after which the kubelet kills. The shortest is what an answer has.

use crate::doctor::facts::{Facts, Missing};
use crate::doctor::finding::{Finding, Fix, Patch};
use crate::doctor::workload::Engine;

/// How long a preStop hook should sleep: endpoints take some seconds to forget a pod.
const PRE_STOP_S: i64 = 15;
/// The engine's time where nothing says how long answers take; that of the examples.
const USUAL_S: i64 = 150;
/// What vLLM lingers after its last answer (5.5 s measured on 0.32), and the kubelet's own delays.
const LINGER_S: i64 = 10;
/// vLLM's option for its time to finish; without it, it cuts at once.
const DRAIN: &str = "--shutdown-timeout";

/// The times of one engine's end, in seconds.
struct Chain<'a> {
    engine: Engine<'a>,
    pre_stop: Option<i64>,
    /// vLLM's own; others finish until they are killed.
    drain: Option<i64>,
    grace: i64,
    /// The longest answers.
    longest: Option<i64>,
}

impl<'a> Chain<'a> {
    fn of(facts: &'a Facts) -> Result<Option<Chain<'a>>, Missing> {
        let Some(engine) = Engine::of(facts.target.as_ref()?) else { return Ok(None) };
        let given = engine.option(DRAIN).map_or(Some(0), |text| text.parse().ok());
        let longest = facts.longest_answer_ms.as_ref().ok();
        Ok(Some(Chain {
            pre_stop: engine.pre_stop_s(),
            drain: given.filter(|_| engine.family == "vllm"),
            grace: engine.grace_s(),
            longest: longest.and_then(|ms| i64::try_from(ms.div_ceil(1_000)).ok()),
            engine,
        }))
    }

    /// The seconds that answers should have to finish.
    fn wanted(&self) -> i64 {
        let usual = if self.drain == Some(0) { USUAL_S } else { 0 };
        self.drain.unwrap_or(0).max(self.longest.unwrap_or(usual))
    }

    /// A change with a grace that has room for all of it. The same for every finding, so that one
    /// cure does not undo another's.
    fn with_grace(&self, patch: Patch) -> Patch {
        let needed = self.pre_stop.unwrap_or(PRE_STOP_S) + self.wanted() + LINGER_S;
        if self.grace >= needed {
            return patch;
        }
        patch.set(&format!("{}/terminationGracePeriodSeconds", self.engine.pod), needed)
    }

    fn words(&self) -> String {
        let pre_stop = self.pre_stop.map_or_else(|| "none".to_owned(), |s| format!("{s} s"));
        let drain = match self.drain {
            Some(0) => ", no time to finish".to_owned(),
            Some(s) => format!(", {DRAIN} {s} s"),
            None => String::new(),
        };
        let longest =
            self.longest.map_or_else(String::new, |s| format!("; answers take up to {s} s"));
        format!("preStop {pre_stop}{drain}, grace {} s{longest}", self.grace)
    }
}

pub(super) fn answers_cut(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(chain) = Chain::of(facts)? else { return Ok(None) };
    let Some(given) = chain.drain else { return Ok(None) };
    let wanted = chain.wanted();
    if given >= wanted {
        // A time that is given can be too short for answers that nobody has seen.
        return if chain.longest.is_none() { Err(unknown_length(facts)) } else { Ok(None) };
    }
    let what = if given == 0 {
        format!("vLLM runs without {DRAIN} ({})", chain.words())
    } else {
        format!("the {given} s of {DRAIN} are the shortest time ({})", chain.words())
    };
    Ok(Some(Finding {
        id: "answers-cut",
        what,
        why: "at each step down the answers that still run then are cut, and vLLM ends them with \
              status 200: clients take half an answer for a whole one",
        fix: Fix::patch(
            format!("give it {wanted} s to finish, and a grace that is longer"),
            chain.with_grace(chain.engine.with_option(
                Patch::to(chain.engine.target),
                DRAIN,
                &wanted.to_string(),
            )),
        ),
    }))
}

pub(super) fn no_pre_stop(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(chain) = Chain::of(facts)? else { return Ok(None) };
    if chain.engine.at("lifecycle/preStop").is_some() {
        return Ok(None);
    }
    let hook = format!("{}/lifecycle/preStop/sleep/seconds", chain.engine.container);
    let patch = Patch::to(chain.engine.target).set(&hook, PRE_STOP_S);
    Ok(Some(Finding {
        id: "no-pre-stop",
        what: format!("the engine's container has no preStop hook ({})", chain.words()),
        why: "endpoints take some seconds to forget a pod: requests that come in them meet a \
              closed port, or an engine that answers 500 while it finishes",
        fix: Fix::patch(format!("let it sleep {PRE_STOP_S} s first"), chain.with_grace(patch)),
    }))
}

pub(super) fn grace_too_short(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(chain) = Chain::of(facts)? else { return Ok(None) };
    // Of other engines it is known that they finish until they are killed, not for how long they need.
    let drain = match (chain.drain, chain.longest) {
        (Some(drain), _) => drain,
        (None, Some(longest)) => longest,
        (None, None) => return Err(unknown_length(facts)),
    };
    let needed = chain.pre_stop.unwrap_or(0) + drain;
    if needed <= chain.grace {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "grace-too-short",
        what: format!(
            "preStop and the time to finish take {needed} s, and terminationGracePeriodSeconds is {}",
            chain.grace
        ),
        why: "the kubelet kills what is not done by then, whatever time the engine was given",
        fix: Fix::patch("lengthen the grace", chain.with_grace(Patch::to(chain.engine.target))),
    }))
}

fn unknown_length(facts: &Facts) -> Missing {
    let missing = facts.longest_answer_ms.as_ref().err();
    missing.map_or_else(|| Missing::because("how long answers take is not known"), Missing::from)
}
