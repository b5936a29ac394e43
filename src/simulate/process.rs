//! Generated requests: a rate over a day, how gaps and lengths vary, clients that come and go,
//! kept as a few parameters and a seed.
//!
//! Must not hold numbers of its own: each preset is a file in `processes/`.

use std::io::ErrorKind::NotFound;
use std::path::PathBuf;

use loadgen::engine::Prefix;
use loadgen::traces::{Arrival, Curve, Lengths, Process as Gaps, Size, generate};
use serde::Deserialize;

use super::random::Random;
use crate::duration;
use crate::files::{self, MAX_DOCUMENT_BYTES};
use crate::yaml;

/// A process that makes requests.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its name, or the file's.
    pub name: String,
    /// One line.
    pub about: String,
    /// Requests a second over one run of it.
    rate: Curve,
    gaps: Gaps,
    lengths: Lengths,
    /// The share of each prompt that a prefix cache holds, over one run; the last value stays.
    cached: Option<Curve>,
    clients: Option<Clients>,
}

/// Clients that share the rate and are on and off by turns.
#[derive(Debug, Clone, Copy)]
struct Clients {
    count: u32,
    on_s: f64,
    off_s: f64,
    /// Index of the Pareto law of both, above 1: the smaller, the heavier the tail.
    tail: f64,
}

/// A process as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    about: String,
    rate: String,
    #[serde(default = "poisson")]
    arrivals: String,
    input: String,
    output: String,
    cached: Option<String>,
    clients: Option<RawClients>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClients {
    count: u32,
    on: String,
    off: String,
    tail: f64,
}

fn poisson() -> String {
    "poisson".to_owned()
}

/// The processes that come with the program.
const PRESETS: [(&str, &str); 8] = [
    ("step", include_str!("processes/step.yaml")),
    ("ramp", include_str!("processes/ramp.yaml")),
    ("flash", include_str!("processes/flash.yaml")),
    ("tails", include_str!("processes/tails.yaml")),
    ("reasoning", include_str!("processes/reasoning.yaml")),
    ("long-context", include_str!("processes/long-context.yaml")),
    ("long-prompts", include_str!("processes/long-prompts.yaml")),
    ("llm-d", include_str!("processes/llm-d.yaml")),
];
/// The most clients of one process.
const MOST_CLIENTS: u32 = 100_000;
/// More requests than are held in memory come from more than this.
const MOST_REQUESTS: f64 = 2e8;

impl Process {
    /// The names of the presets.
    pub fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|&(name, _)| name)
    }

    /// The preset of that name, or else the process in the file of that name.
    ///
    /// # Errors
    ///
    /// When it is neither, or the file is no process.
    pub fn load(name_or_path: &str) -> Result<Process, Error> {
        if let Some((name, text)) = PRESETS.iter().find(|(name, _)| *name == name_or_path) {
            return Process::parse(name, text);
        }
        let path = PathBuf::from(name_or_path);
        match files::read_text(&path, MAX_DOCUMENT_BYTES) {
            Ok(text) => {
                let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
                Process::parse(&stem.unwrap_or_default(), &text)
            }
            Err(source) if source.kind() == NotFound && !name_or_path.contains(['/', '.']) => {
                Err(Error::Unknown { name: name_or_path.to_owned() })
            }
            Err(source) => Err(Error::Read { path, source }),
        }
    }

    /// Reads a process from YAML. `name` names it, in errors too.
    ///
    /// # Errors
    ///
    /// When the text is no process, or a value makes no sense; it is named.
    pub fn parse(name: &str, text: &str) -> Result<Process, Error> {
        let raw: Raw = serde_saphyr::from_str(text)
            .map_err(|source| Error::Parse { name: name.to_owned(), source: source.into() })?;
        let fault = |field: &'static str, why: &dyn std::fmt::Display| Error::Value {
            name: name.to_owned(),
            field,
            why: why.to_string(),
        };
        let rate: Curve = raw.rate.parse().map_err(|error| fault("rate", &error))?;
        if rate.span_s().is_none() {
            return Err(fault("rate", &"expected an end: a duration after each @"));
        }
        let gaps = raw.arrivals.parse().map_err(|error| fault("arrivals", &error))?;
        let size = |field, text: &str| text.parse::<Size>().map_err(|error| fault(field, &error));
        let (input, output) = (size("input", &raw.input)?, size("output", &raw.output)?);
        let cached = raw.cached.map(|text| text.parse::<Curve>()).transpose();
        let cached = cached.map_err(|error| fault("cached", &error))?;
        if cached.as_ref().is_some_and(|cached| cached.peak_per_s() > 1.0) {
            return Err(fault("cached", &"expected shares of 0 to 1"));
        }
        let clients = raw.clients.map(|raw| clients(&raw)).transpose();
        let clients = clients.map_err(|why| fault("clients", &why))?;
        let lengths = Lengths::Drawn { input, output };
        let (name, about) = (name.to_owned(), raw.about);
        Ok(Process { name, about, rate, gaps, lengths, cached, clients })
    }

    /// Seconds that one run of it takes.
    #[must_use]
    pub fn span_s(&self) -> f64 {
        self.rate.span_s().unwrap_or(0.0)
    }

    /// Its requests over so many runs, at `scale` times its rate.
    ///
    /// # Errors
    ///
    /// When that would be more than fits into memory.
    pub fn arrivals(
        &self,
        runs: usize,
        scale: f64,
        seed: u64,
    ) -> Result<impl Iterator<Item = Arrival> + Send + use<>, Error> {
        let most = self.rate.peak_per_s() * self.span_s() * runs as f64 * scale;
        if most > MOST_REQUESTS {
            return Err(Error::TooMany { name: self.name.clone() });
        }
        let span_s = self.span_s() * runs as f64;
        let mut on = self.clients.map(|clients| On::new(&clients, span_s, seed));
        // Those who are off are left out of the requests of all.
        let scale = scale * on.as_ref().map_or(1.0, |on| on.total / on.expected);
        let curve = self.rate.repeated(runs, scale);
        let cached = self.cached.as_ref().map(|cached| cached.repeated(runs, 1.0));
        let mut kept = Random::new(seed, 7);
        Ok(generate(&curve, self.gaps, &self.lengths, seed).filter_map(move |mut arrival| {
            let share = on.as_mut().map_or(1.0, |on| on.share_at(arrival.t_s));
            if kept.uniform() >= share {
                return None;
            }
            if let Some(cached) = &cached {
                let tokens = cached.at(arrival.t_s) * f64::from(arrival.input_tokens);
                let tokens = super::number::ceil_count(tokens.floor());
                arrival.prefix = Prefix::Cached(tokens.min(arrival.input_tokens));
            }
            Some(arrival)
        }))
    }
}

fn clients(raw: &RawClients) -> Result<Clients, String> {
    if !(1..=MOST_CLIENTS).contains(&raw.count) {
        return Err(format!("`count` is {}: expected 1 to {MOST_CLIENTS}", raw.count));
    }
    if !(1.05..=10.0).contains(&raw.tail) {
        return Err(format!("`tail` is {}: expected 1.05 to 10", raw.tail));
    }
    let seconds = |name: &str, text: &str| match duration::parse_millis(text) {
        Ok(millis) if millis >= 1_000 => Ok(millis as f64 / 1e3),
        Ok(_) | Err(_) => Err(format!("`{name}` is \"{text}\": expected a duration of 1s or more")),
    };
    let (on_s, off_s) = (seconds("on", &raw.on)?, seconds("off", &raw.off)?);
    Ok(Clients { count: raw.count, on_s, off_s, tail: raw.tail })
}

/// How many clients are on, over time.
#[derive(Debug)]
struct On {
    /// Who comes (1) or goes (-1), in the order of time, from the last on.
    changes: Vec<(f64, f64)>,
    now: f64,
    total: f64,
    expected: f64,
}

impl On {
    fn new(clients: &Clients, span_s: f64, seed: u64) -> On {
        let mut changes = Vec::new();
        let mut now = 0.0;
        let on_share = clients.on_s / (clients.on_s + clients.off_s);
        for client in 0..clients.count {
            let mut rng = Random::new(seed, 1_000 + u64::from(client));
            // A Pareto law of that mean begins at mean × (tail − 1) / tail.
            let mut draw = |mean_s: f64| {
                let least_s = mean_s * (clients.tail - 1.0) / clients.tail;
                least_s * (1.0 - rng.uniform()).powf(-clients.tail.recip())
            };
            let is_on = f64::from(client) < on_share * f64::from(clients.count);
            let mut state = if is_on { 1.0 } else { 0.0 };
            now += state;
            let mut t_s = draw(if is_on { clients.on_s } else { clients.off_s });
            while t_s < span_s {
                let change = 1.0 - 2.0 * state;
                changes.push((t_s, change));
                state += change;
                t_s += draw(if state > 0.5 { clients.on_s } else { clients.off_s });
            }
        }
        changes.sort_by(|a, b| b.0.total_cmp(&a.0));
        let total = f64::from(clients.count);
        On { changes, now, total, expected: total * on_share }
    }

    /// The share of the clients that is on; moments must not descend.
    fn share_at(&mut self, t_s: f64) -> f64 {
        while let Some(&(at_s, change)) = self.changes.last()
            && at_s <= t_s
        {
            self.now += change;
            self.changes.pop();
        }
        self.now / self.total
    }
}

/// Why there is no process.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is neither a preset nor a file.
    #[error(
        "process `{name}` is not known: expected a file or one of {}",
        Process::preset_names().collect::<Vec<_>>().join(", ")
    )]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The file cannot be read.
    #[error("failed to read process `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The text is not the YAML of a process.
    #[error("process `{name}` cannot be parsed")]
    Parse {
        /// The preset or file.
        name: String,
        /// Where and why; an unknown field is named here.
        source: yaml::Error,
    },
    /// A value makes no sense.
    #[error("process `{name}`, `{field}`: {why}")]
    Value {
        /// The preset or file.
        name: String,
        /// The field.
        field: &'static str,
        /// What was expected.
        why: String,
    },
    /// More requests than fit into memory.
    #[error("process `{name}` makes too many requests: choose a smaller --scale or fewer --days")]
    TooMany {
        /// The preset or file.
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(process: &Process, scale: f64, seed: u64) -> Vec<Arrival> {
        process.arrivals(1, scale, seed).unwrap().collect()
    }

    #[test]
    fn every_preset_loads_lasts_a_day_and_makes_what_its_rate_says() {
        for name in Process::preset_names().filter(|name| *name != "llm-d") {
            let process = Process::load(name).unwrap();
            assert!((process.span_s() - 86_400.0).abs() < 1e-6, "{name}: {}", process.span_s());
            let hundredth = arrivals(&process, 0.01, 3);
            let expected: f64 = (0..86_400).map(|s| process.rate.at(f64::from(s)) * 0.01).sum();
            let ratio = hundredth.len() as f64 / expected;
            let spread = if process.clients.is_some() { 0.3 } else { 0.05 };
            assert!((ratio - 1.0).abs() < spread, "{name}: {ratio}");
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_requests_and_another_one_others() {
        let process = Process::load("tails").unwrap();
        assert_eq!(arrivals(&process, 0.05, 1), arrivals(&process, 0.05, 1));
        assert_ne!(arrivals(&process, 0.05, 1), arrivals(&process, 0.05, 2));
    }

    #[test]
    fn clients_that_come_and_go_make_minutes_differ_far_more_than_chance() {
        let dispersion = |process: &Process| {
            let mut minutes = vec![0.0; 1_440];
            for arrival in arrivals(process, 0.2, 5) {
                minutes[super::super::number::floor_index(arrival.t_s / 60.0)] += 1.0;
            }
            let mean = minutes.iter().sum::<f64>() / 1_440.0;
            minutes.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / 1_440.0 / mean
        };
        let mut process = Process::load("tails").unwrap();
        let with = dispersion(&process);
        process.clients = None;
        let without = dispersion(&process);
        assert!((0.85..1.15).contains(&without), "Poisson: {without}");
        assert!(with > 20.0, "{with}");
    }

    #[test]
    fn the_cached_share_follows_its_curve() {
        let process = Process::load("long-context").unwrap();
        let share = |from_h: f64| {
            let (mut cached, mut all) = (0.0, 0.0);
            for arrival in arrivals(&process, 0.2, 1) {
                if (from_h..from_h + 1.0).contains(&(arrival.t_s / 3_600.0)) {
                    let Prefix::Cached(tokens) = arrival.prefix else { panic!("{arrival:?}") };
                    cached += f64::from(tokens);
                    all += f64::from(arrival.input_tokens);
                }
            }
            cached / all
        };
        assert!(share(1.0) < 1e-9);
        assert!((share(12.0) - 0.7).abs() < 0.01, "{}", share(12.0));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let text = "about: x\nrate: 2@1h\ninput: \"100\"\noutput: \"10\"\n";
        assert!(Process::parse("mine", text).is_ok());
        for (from, to, message) in [
            ("2@1h", "2", "process `mine`, `rate`: expected an end"),
            ("2@1h", "fast@1h", "process `mine`, `rate`: rate \"fast@1h\""),
            ("\"100\"", "\"-1\"", "process `mine`, `input`: \"-1\" is no size"),
            ("about: x", "about: x\ncached: 0-1.5@1h", "`cached`: expected shares of 0 to 1"),
            ("about: x", "about: x\narrivals: often", "`arrivals`: \"often\" is no arrival"),
            (
                "about: x",
                "about: x\nclients: {count: 0, \"on\": 1m, \"off\": 1m, tail: 2}",
                "`clients`: `count` is 0",
            ),
        ] {
            let error = Process::parse("mine", &text.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        let unknown = Process::load("stairs").unwrap_err().to_string();
        assert!(unknown.contains("one of step, ramp, flash"), "{unknown}");
    }
}
