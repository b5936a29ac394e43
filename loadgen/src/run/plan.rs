//! A run, settled: where to, what, when, and for how long. The same plan and seed make the same
//! requests at the same times.
//!
//! Must not send anything.

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use rand_distr::{Distribution as _, StandardUniform};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng as _;

use super::lane::Job;
use super::prompt::{Form, Prompts};
use super::replicas::Source;
use super::requests::Requests;
use super::settle::MOST_RUN_S;
use super::slo::Slo;
use super::target::Target;
use super::users::Users;
use crate::duration;
use crate::engine::Prefix;
use crate::traces::{self, Arrivals, Curve, Empty, Format, Length, Lengths, Process};

/// Where and when requests come from.
#[derive(Debug, Clone)]
pub enum Load {
    /// A process at a rate.
    Rate {
        /// The rate over time.
        curve: Curve,
        /// How gaps vary.
        process: Process,
    },
    /// So many users who each wait for their answer before they ask again: a closed loop.
    Users {
        /// How many, at least 1.
        n: u32,
    },
    /// A trace, with the lengths that are in it.
    Trace {
        /// The file.
        path: PathBuf,
        /// Its form.
        format: Format,
        /// How it is read.
        options: traces::Options,
    },
}

/// A kind of requests, with its share of them.
#[derive(Debug, Clone)]
pub struct Class {
    /// Names it in the report.
    pub name: String,
    /// Its share, relative to the others'.
    pub weight: f64,
    /// What its requests look like.
    pub form: Form,
    /// How long they are, unless a trace says it.
    pub lengths: Lengths,
    /// What is promised to them.
    pub slo: Slo,
}

/// Everything about a run.
#[derive(Debug)]
pub struct Plan {
    /// The servers, at least one; each gets a request in turn.
    pub targets: Vec<Target>,
    /// The kinds of requests, at least one.
    pub classes: Vec<Class>,
    /// When they come.
    pub load: Load,
    /// The end of the schedule, in seconds; `None`: that of the trace or curve.
    pub duration_s: Option<f64>,
    /// The schedule ends after so many requests too, those that do not count among them.
    pub count: Option<u64>,
    /// Rows of the trace that ask for 0 tokens, which counts as 1; 0 where there is no trace.
    pub n_empty: u64,
    /// Requests due before this many seconds are sent, but not counted.
    pub warmup_s: f64,
    /// Requests due in the last so many seconds of the schedule are sent, but not counted.
    pub cooldown_s: f64,
    /// The longest that a request may take, from when it is sent.
    pub timeout: Duration,
    /// The longest silence within a stream.
    pub stall: Option<Duration>,
    /// Whether users leave, and what they send again.
    pub users: Users,
    /// How long open requests may go on after the end of the schedule.
    pub grace: Duration,
    /// Settles everything that is drawn.
    pub seed: u64,
    /// Threads that send, at most as many as connections.
    pub n_lanes: usize,
    /// The most connections in use at once, all threads together.
    pub connections: usize,
    /// The value of the `Authorization` header.
    pub authorization: Option<http::HeaderValue>,
    /// Further headers, which go before those that are sent anyway.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
    /// Makes the bodies.
    pub prompts: Prompts,
    /// Whether an answer must name the model that was asked for.
    pub checks_model: bool,
    /// Where the number of replicas is seen.
    pub replicas: Option<Source>,
    /// Whether the targets' own pages are looked at.
    pub watches_engines: bool,
    /// GPUs of a replica.
    pub gpus_per_replica: f64,
    /// Where each request is written to when it has ended.
    pub requests: Option<Arc<Requests>>,
}

/// One request of the schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// When it is due, in seconds since the start.
    pub due_s: f64,
    /// Its class, an index into the plan's.
    pub class: usize,
    /// Tokens of its prompt.
    pub input_tokens: u32,
    /// Tokens it asks for.
    pub output_tokens: u32,
    /// What its prompt shares with others.
    pub prefix: Prefix,
}

/// The requests of a plan, in the order of time.
pub type Schedule = Box<dyn Iterator<Item = Result<Planned, traces::Error>> + Send>;

impl Plan {
    /// The requests to send.
    ///
    /// # Errors
    ///
    /// When a trace cannot be opened.
    pub fn schedule(&self) -> Result<Schedule, traces::Error> {
        Ok(self.schedule_and_empty()?.0)
    }

    /// The requests to send, and who counts the rows with a length of 0 while they are read.
    pub(super) fn schedule_and_empty(&self) -> Result<(Schedule, Empty), traces::Error> {
        let mut empty = Empty::default();
        // At a rate that falls towards nothing the last of a count may never be due.
        let most_s = if self.count.is_some() { MOST_RUN_S } else { f64::INFINITY };
        let until_s = self.duration_s.unwrap_or(most_s);
        let mut draw = Pcg64Mcg::seed_from_u64(self.seed ^ 0x636c_6173_7365_7321);
        let classes = self.classes.clone();
        let total: f64 = classes.iter().map(|class| class.weight).sum();
        let mut class = move || {
            let uniform: f64 = StandardUniform.sample(&mut draw);
            let mut left = uniform * total;
            let found = classes.iter().position(|class| {
                left -= class.weight;
                left < 0.0
            });
            found.unwrap_or(0)
        };
        let planned: Schedule = match &self.load {
            Load::Rate { .. } | Load::Users { .. } => {
                let lengths: Vec<Lengths> =
                    self.classes.iter().map(|class| class.lengths.clone()).collect();
                let mut draw = Pcg64Mcg::seed_from_u64(self.seed ^ 0x6c65_6e67_7468_7321);
                let due: Box<dyn Iterator<Item = f64> + Send> = match &self.load {
                    Load::Rate { curve, process } => {
                        Box::new(Arrivals::new(curve, *process, self.seed))
                    }
                    // Due when a user is free.
                    Load::Users { .. } | Load::Trace { .. } => Box::new(std::iter::repeat(0.0)),
                };
                Box::new(due.map(move |due_s| {
                    let class = class();
                    let Length { input_tokens, output_tokens, cached_tokens } =
                        lengths[class].draw(&mut draw);
                    let prefix = match cached_tokens {
                        0 => Prefix::Unknown,
                        cached => Prefix::Cached(cached),
                    };
                    Ok(Planned { due_s, class, input_tokens, output_tokens, prefix })
                }))
            }
            Load::Trace { path, format, options } => {
                let trace = traces::read(path, *format, options)?;
                empty = trace.empty();
                Box::new(trace.map(move |arrival| {
                    let arrival = arrival?;
                    Ok(Planned {
                        due_s: arrival.t_s,
                        class: class(),
                        input_tokens: arrival.input_tokens,
                        output_tokens: arrival.output_tokens,
                        prefix: arrival.prefix,
                    })
                }))
            }
        };
        let planned = planned.take_while(move |next| match next {
            Ok(planned) => planned.due_s < until_s,
            Err(_) => true,
        });
        let most = self.count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        Ok((Box::new(planned.take(most)), empty))
    }

    /// Writes the requests as a trace that [`Format::Csv`] reads, each with its exact time.
    ///
    /// # Errors
    ///
    /// When a trace cannot be read, what its prompts share has no place in that form (Mooncake), or
    /// nothing can be written.
    pub fn write_schedule(&self, out: &mut impl io::Write) -> anyhow::Result<()> {
        // Told before anything is written, as what is there would pass for a whole trace.
        let has_hashes = |planned: &Planned| matches!(planned.prefix, Prefix::Segments { .. });
        if matches!(self.load, Load::Trace { format: Format::Mooncake, .. })
            && self.schedule()?.any(|next| next.is_ok_and(|planned| has_hashes(&planned)))
        {
            bail!("what a mooncake trace's prompts share has no place in a csv trace");
        }
        writeln!(out, "t_s,input_tokens,output_tokens,cached_tokens")?;
        for planned in self.schedule()? {
            let Planned { due_s, input_tokens, output_tokens, prefix, .. } = planned?;
            let cached_tokens = match prefix {
                Prefix::Unknown | Prefix::Segments { .. } => 0,
                Prefix::Cached(tokens) => tokens,
            };
            writeln!(out, "{due_s},{input_tokens},{output_tokens},{cached_tokens}")?;
        }
        Ok(())
    }

    /// Draws everything anew, prompts too: an engine's prefix cache knows those of the run before.
    pub fn reseed(&mut self, seed: u64) {
        self.seed = seed;
        self.users.seed = seed;
        self.prompts = self.prompts.reseeded(seed);
        if let Load::Trace { options, .. } = &mut self.load {
            options.seed = seed;
        }
    }

    /// Whether requests follow answers: turns of a conversation, or users in a closed loop.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.users.turns.is_some() || matches!(self.load, Load::Users { .. })
    }

    /// The next turn of a conversation after an answer of so many tokens, its moment left to who
    /// knows it; `None` after the last. Its prompt is all that was said before and something new.
    pub(super) fn next_turn(&self, job: &Job, answer_tokens: u32) -> Option<Job> {
        let turn = job.turn + 1;
        if turn >= self.users.n_turns(job.number) {
            return None;
        }
        let mut draw = self.users.draw(job.number ^ (u64::from(turn) << 40));
        let Length { input_tokens, output_tokens, .. } =
            self.classes[job.class].lengths.draw(&mut draw);
        let said = job.input_tokens.saturating_add(answer_tokens);
        let input_tokens = said.saturating_add(input_tokens);
        Some(Job { turn, input_tokens, output_tokens, ..job.clone() })
    }

    /// Whether what is due at this moment counts.
    #[must_use]
    pub fn counts(&self, due_s: f64) -> bool {
        let end_s = self.span_s().map_or(f64::INFINITY, |span_s| span_s - self.cooldown_s);
        (self.warmup_s..end_s).contains(&due_s)
    }

    /// Requests a second at the beginning; 0 where it is not known without reading a trace.
    #[must_use]
    pub fn first_rate_per_s(&self) -> f64 {
        match &self.load {
            Load::Rate { curve, .. } => curve.at(0.0),
            Load::Users { .. } | Load::Trace { .. } => 0.0,
        }
    }

    /// The end of the schedule in seconds, where it is known without reading a trace.
    #[must_use]
    pub fn span_s(&self) -> Option<f64> {
        let curve_s = match &self.load {
            Load::Rate { curve, .. } => curve.span_s(),
            Load::Users { .. } | Load::Trace { .. } => None,
        };
        match (self.duration_s, curve_s) {
            (Some(duration_s), Some(curve_s)) => Some(duration_s.min(curve_s)),
            (duration_s, curve_s) => duration_s.or(curve_s),
        }
    }
}

/// A class as it is written: `NAME[,weight=W][,input=SIZE][,output=SIZE][,model=NAME]
/// [,slo-ttft=D][,slo-tpot=D][,slo-e2e=D]`. What is left out is as for the whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassSpec {
    pub(super) name: String,
    pub(super) weight: f64,
    pub(super) input: Option<traces::Size>,
    pub(super) output: Option<traces::Size>,
    pub(super) model: Option<String>,
    pub(super) ttft_s: Option<f64>,
    pub(super) tpot_s: Option<f64>,
    pub(super) e2e_s: Option<f64>,
}

impl FromStr for ClassSpec {
    type Err = ClassError;

    fn from_str(text: &str) -> Result<ClassSpec, ClassError> {
        let error = |part: &str, why: &str| ClassError {
            text: text.to_owned(),
            part: part.to_owned(),
            why: why.to_owned(),
        };
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().unwrap_or_default();
        if name.is_empty() || name.contains('=') {
            return Err(error(name, "expected the class's name first"));
        }
        let mut spec = ClassSpec {
            name: name.to_owned(),
            weight: 1.0,
            input: None,
            output: None,
            model: None,
            ttft_s: None,
            tpot_s: None,
            e2e_s: None,
        };
        for part in parts {
            let (key, value) =
                part.split_once('=').ok_or_else(|| error(part, "expected KEY=VALUE"))?;
            let size =
                || value.parse().map_err(|why: traces::SizeError| error(part, &why.to_string()));
            let span_s = || match duration::parse_millis(value) {
                Ok(millis) => Ok(millis as f64 / 1e3),
                Err(why) => Err(error(part, &why.to_string())),
            };
            match key {
                "weight" => {
                    let weight = value.parse().ok().filter(|weight| (1e-6..=1e6).contains(weight));
                    spec.weight = weight.ok_or_else(|| error(part, "expected a number above 0"))?;
                }
                "input" => spec.input = Some(size()?),
                "output" => spec.output = Some(size()?),
                "model" => spec.model = Some(value.to_owned()),
                "slo-ttft" => spec.ttft_s = Some(span_s()?),
                "slo-tpot" => spec.tpot_s = Some(span_s()?),
                "slo-e2e" => spec.e2e_s = Some(span_s()?),
                _ => {
                    let known =
                        "expected weight, input, output, model, slo-ttft, slo-tpot or slo-e2e";
                    return Err(error(part, known));
                }
            }
        }
        Ok(spec)
    }
}

/// The text is no class.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("class \"{text}\": \"{part}\": {why}")]
pub struct ClassError {
    text: String,
    part: String,
    why: String,
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::prompt::Alphabet;
    use super::super::target::Tls;
    use super::*;

    fn class(name: &str, weight: f64, lengths: Lengths) -> Class {
        let form = Form {
            model: "m".to_owned(),
            is_chat: true,
            is_streaming: true,
            forces_length: true,
            counts_tokens: false,
            more: None,
        };
        let slo = Slo { ttft_s: 2.0, tpot_s: 0.2, e2e_s: None };
        Class { name: name.to_owned(), weight, form, lengths, slo }
    }

    pub(in crate::run) fn plan(seed: u64) -> Plan {
        Plan {
            targets: vec![Target::parse("http://localhost:1", &Tls::default()).unwrap()],
            classes: vec![
                class("chat", 3.0, Lengths::fixed(100, 10)),
                class("batch", 1.0, Lengths::fixed(2_000, 5)),
            ],
            load: Load::Rate { curve: Curve::constant(50.0), process: Process::Poisson },
            duration_s: Some(200.0),
            count: None,
            n_empty: 0,
            warmup_s: 0.0,
            cooldown_s: 0.0,
            timeout: Duration::from_secs(1),
            stall: None,
            users: Users::default(),
            grace: Duration::from_secs(1),
            seed,
            n_lanes: 1,
            connections: 1,
            authorization: None,
            headers: Vec::new(),
            prompts: Prompts::new(Alphabet::Words, seed),
            checks_model: true,
            replicas: None,
            watches_engines: false,
            gpus_per_replica: 1.0,
            requests: None,
        }
    }

    #[test]
    fn classes_come_in_their_shares_with_their_own_lengths() {
        let planned: Vec<Planned> = plan(1).schedule().unwrap().collect::<Result<_, _>>().unwrap();
        assert!((9_500..=10_500).contains(&planned.len()), "{}", planned.len());
        assert!(planned.last().unwrap().due_s < 200.0);
        let chats: Vec<&Planned> = planned.iter().filter(|planned| planned.class == 0).collect();
        let share = chats.len() as f64 / planned.len() as f64;
        assert!((share - 0.75).abs() < 0.02, "{share}");
        assert!(chats.iter().all(|planned| planned.input_tokens == 100));
    }

    #[test]
    fn a_count_ends_the_schedule_and_so_do_thirty_days() {
        let n_due = |rate_per_s, count| {
            let load =
                Load::Rate { curve: Curve::constant(rate_per_s), process: Process::Constant };
            let plan = Plan { load, duration_s: None, count: Some(count), ..plan(1) };
            plan.schedule().unwrap().count()
        };
        assert_eq!(n_due(50.0, 7), 7);
        assert!((29..=30).contains(&n_due(1.0 / 86_400.0, 100)), "one a day");
    }

    #[test]
    fn another_seed_sends_other_prompts() {
        let mut plan = plan(1);
        let body =
            |plan: &Plan| plan.prompts.body(&plan.classes[0].form, 3, 40, 1, &Prefix::Unknown);
        let first = body(&plan);
        plan.reseed(2);
        let second = body(&plan);
        let prompt = |body: &[u8]| {
            let json: serde_json::Value = serde_json::from_slice(body).unwrap();
            json["messages"][0]["content"].as_str().unwrap().to_owned()
        };
        // They differ from the first words on, so that no block of a cache is shared.
        let (first, second) = (prompt(&first), prompt(&second));
        let common = first.split(' ').zip(second.split(' ')).take_while(|(a, b)| a == b).count();
        assert!(common < 5, "{first}\n{second}");
    }

    #[test]
    fn a_seed_settles_the_schedule() {
        let of = |seed| -> Vec<Planned> {
            plan(seed).schedule().unwrap().collect::<Result<_, _>>().unwrap()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn classes_are_read_with_what_they_change() {
        let spec: ClassSpec =
            "chat,weight=3,input=500:0.8,model=a/b,slo-ttft=1500ms,slo-tpot=0.05".parse().unwrap();
        assert_eq!((spec.name.as_str(), spec.model.as_deref()), ("chat", Some("a/b")));
        assert_eq!((spec.weight, spec.ttft_s, spec.tpot_s), (3.0, Some(1.5), Some(0.05)));
        assert_eq!(spec.input, Some("500:0.8".parse().unwrap()));
        for (text, expected) in [
            ("", "class \"\": \"\": expected the class's name first"),
            ("weight=1", "expected the class's name first"),
            ("a,weight=0", "\"weight=0\": expected a number above 0"),
            ("a,x=1", "expected weight, input"),
            ("a,input=x", "is no size"),
            ("a,slo-ttft=x", "expected a duration"),
        ] {
            let error = text.parse::<ClassSpec>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
