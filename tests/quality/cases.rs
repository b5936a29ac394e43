//! What is judged: traces, engines, cold starts.
//!
//! Must not measure.

use std::path::Path;

use ghostscaler::simulate::input::{Origin, Source};
use ghostscaler::simulate::process::Process;
use ghostscaler::simulate::scenario::{Change, Scenario, stretched};
use loadgen::engine::Profile;
use loadgen::traces::{Format, Lengths};

/// One trace on one engine.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// The trace.
    pub(crate) trace: Trace,
    /// The engine's profile.
    pub(crate) profile: &'static str,
    /// Factor on the time that tokens take.
    pub(crate) token_cost: f64,
    /// What the engine does that no linear model says.
    pub(crate) twist: Twist,
    /// Mean seconds to load.
    pub(crate) cold_s: f64,
    /// How many seeds.
    pub(crate) seeds: usize,
}

/// What an engine may do that a linear model of its steps does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Twist {
    /// Nothing.
    None,
    /// Prompts cost with their square too.
    Square,
    /// A KV cache that is too small: preemptions.
    SmallCache,
    /// Steps become 15 % slower and faster in the course of a day.
    Drift,
    /// Another engine in the middle of the counted part: an H100.
    Update,
    /// Prefix hits go from none to 70 %.
    PrefixHits,
}

/// Attention of an 8B on an A100: 4 × 32 layers × 4,096 FLOP a pair at half of 312 TFLOPS.
const ATTENTION_NS: f64 = 3.4;
/// Blocks of a small cache: 60,000 tokens.
const SMALL_BLOCKS: usize = 3_751;
const SMALL_CONTEXT: usize = 32_768;
const DRIFT: f64 = 0.15;
const HITS: &str = "0-0.7@24h,0.7@72h";

/// Requests of a published trace or a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trace {
    pub(crate) name: &'static str,
    from: From,
    /// Seconds of warm-up.
    warmup_s: f64,
    /// The share of requests within their targets that is asked for.
    pub(crate) bar: f64,
    /// Replicas that the busiest minute shall need.
    pub(crate) peak_need: f64,
}

#[derive(Debug, Clone, Copy)]
enum From {
    /// Counts and lengths.
    Counts(&'static str, &'static str),
    /// Single requests.
    Requests(&'static str),
    /// A process, run twice.
    Process(&'static str),
}

/// The middle of 10 to 30.
const PEAK_NEED: f64 = 20.0;
const DAY_S: f64 = 86_400.0;
const BAR: f64 = 0.99;
/// Of answers of thousands of tokens.
const BAR_REASONING: f64 = 0.98;

const fn process(name: &'static str, bar: f64) -> Trace {
    Trace { name, from: From::Process(name), warmup_s: DAY_S, bar, peak_need: PEAK_NEED }
}

const CODE: Trace = Trace {
    name: "code-day",
    from: From::Counts("azure2024_code_10s_counts_d1-4.csv", "azure2023_code_lengths.csv"),
    warmup_s: 3.0 * DAY_S,
    bar: BAR,
    peak_need: PEAK_NEED,
};
const CHAT: Trace = Trace {
    name: "chat-day",
    from: From::Counts("azure2024_conv_10s_counts_d1-4.csv", "azure2023_conv.csv"),
    warmup_s: 3.0 * DAY_S,
    bar: BAR,
    peak_need: PEAK_NEED,
};
const CHAT_HOUR: Trace = Trace {
    name: "chat-hour",
    from: From::Requests("azure2023_conv.csv"),
    warmup_s: 600.0,
    bar: BAR,
    peak_need: PEAK_NEED,
};
const MOONCAKE: Trace = Trace {
    name: "mooncake-hour",
    from: From::Requests("mooncake_conversation.csv"),
    warmup_s: 600.0,
    bar: BAR,
    peak_need: PEAK_NEED,
};
const REASONING: Trace = process("reasoning", BAR_REASONING);
const FLASH: Trace = process("flash", BAR);
const LONG_CONTEXT: Trace = process("long-context", BAR);
const TRACES: [Trace; 11] = [
    CODE,
    CHAT,
    CHAT_HOUR,
    MOONCAKE,
    process("step", BAR),
    process("ramp", BAR),
    FLASH,
    process("tails", BAR),
    REASONING,
    LONG_CONTEXT,
    // A small fleet: what a large one shares out evens out.
    Trace { peak_need: 5.0, ..process("long-prompts", BAR) },
];
/// Those on which one factor at a time is changed.
const FACTORED: [Trace; 4] = [CODE, CHAT, FLASH, REASONING];

/// Those on engines that are not linear, or do not stay the same.
const TWISTED: [(Trace, Twist); 10] = [
    (MOONCAKE, Twist::Square),
    (LONG_CONTEXT, Twist::Square),
    (REASONING, Twist::SmallCache),
    (CHAT, Twist::SmallCache),
    (CODE, Twist::Drift),
    (CHAT, Twist::Drift),
    (CHAT, Twist::Update),
    (FLASH, Twist::Update),
    (CODE, Twist::PrefixHits),
    (FLASH, Twist::PrefixHits),
];

/// All of them: every trace on the plain engine, then one factor at a time.
pub(crate) fn all() -> Vec<Case> {
    let plain = |trace| Case {
        trace,
        profile: "8b-a100",
        token_cost: 1.0,
        twist: Twist::None,
        cold_s: 120.0,
        seeds: 10,
    };
    let mut cases: Vec<Case> = TRACES.into_iter().map(plain).collect();
    for trace in FACTORED {
        let three = Case { seeds: 3, ..plain(trace) };
        for profile in ["8b-h100", "70b-4xh100", "nim-8b"] {
            cases.push(Case { profile, ..three.clone() });
        }
        for token_cost in [0.7, 1.7] {
            cases.push(Case { token_cost, ..three.clone() });
        }
        for cold_s in [15.0, 60.0, 300.0] {
            cases.push(Case { cold_s, ..three.clone() });
        }
    }
    for (trace, twist) in TWISTED {
        cases.push(Case { twist, seeds: 3, ..plain(trace) });
    }
    cases
}

impl Case {
    /// Its name, unique.
    pub(crate) fn name(&self) -> String {
        let cost = match self.token_cost {
            cost if (cost - 1.0).abs() < 1e-9 => String::new(),
            cost => format!(" tokens×{cost}"),
        };
        let twist = match self.twist {
            Twist::None => "",
            Twist::Square => " square",
            Twist::SmallCache => " small-cache",
            Twist::Drift => " drift",
            Twist::Update => " update",
            Twist::PrefixHits => " prefix-hits",
        };
        format!("{} {}{cost}{twist} cold {}", self.trace.name, self.profile, self.cold_s)
    }

    /// Whether it is the plain engine with its plain cold start.
    pub(crate) fn is_plain(&self) -> bool {
        self.seeds == 10
    }

    /// The engine.
    pub(crate) fn engine(&self) -> anyhow::Result<Profile> {
        let mut profile = stretched(&Profile::load(self.profile)?, self.token_cost, 1.0);
        match self.twist {
            Twist::Square => profile.step.attention_ns = ATTENTION_NS,
            Twist::SmallCache => {
                profile.kv.blocks = SMALL_BLOCKS;
                profile.limits.max_model_tokens = SMALL_CONTEXT;
            }
            Twist::None | Twist::Drift | Twist::Update | Twist::PrefixHits => {}
        }
        Ok(profile)
    }

    /// What becomes of it.
    pub(crate) fn scenario(&self) -> anyhow::Result<Scenario> {
        let drift = if self.twist == Twist::Drift { DRIFT } else { 0.0 };
        let mut changes = Vec::new();
        if self.twist == Twist::Update {
            let at_s = self.trace.warmup_s + DAY_S / 2.0;
            changes.push(Change { at_s, profile: Profile::load("8b-h100")? });
        }
        Ok(Scenario { changes, drift })
    }

    /// Its requests at a multiple of their rate.
    pub(crate) fn source(&self, dir: &Path, scale: f64) -> anyhow::Result<Source> {
        let mut source = self.trace.source(dir, scale)?;
        if self.twist == Twist::PrefixHits {
            source.cached = Some(HITS.parse()?);
        }
        Ok(source)
    }
}

impl Trace {
    /// Its requests at a multiple of its rate.
    fn source(&self, dir: &Path, scale: f64) -> anyhow::Result<Source> {
        let file = |name: &str, format, lengths| Origin::File {
            path: dir.join(name),
            format,
            bin_s: 10.0,
            lengths,
        };
        let origin = match self.from {
            From::Counts(counts, lengths) => {
                file(counts, Format::Counts, Lengths::load(&dir.join(lengths))?)
            }
            From::Requests(name) => file(name, Format::Csv, Lengths::fixed(1, 1)),
            From::Process(name) => Origin::Process { process: Process::load(name)?, runs: 2 },
        };
        Ok(Source { origin, scale, warmup_s: self.warmup_s, cached: None })
    }
}
