//! Faults on command: what can go wrong with a server, how it is written, and when it is in force.
//!
//! Must not do what a fault does; `server/backend.rs` asks here what is in force.

use std::fmt;
use std::str::FromStr;

use crate::duration;
use crate::engine::{PS_PER_MS, Time};
use crate::text::did_you_mean;

/// Something that goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pathology {
    /// No step ends any more; the API server answers as if nothing were wrong.
    Hang,
    /// Gauges stay as they are now, whatever happens. Counters move on.
    StaleGauges,
    /// After its last client has gone away, an engine's gauges stay as they were until it makes a
    /// token again.
    StuckAfterAbort,
    /// `/metrics` takes that many milliseconds.
    SlowScrape(u64),
    /// The process is replaced at once: connections are cut, and every counter starts at 0.
    CounterReset,
    /// The engine process is killed: requests fail, the listener closes, and the server starts
    /// again after that many milliseconds, warm or with the cold start that it is configured for.
    OomKill(u64),
    /// `/metrics` has no engine series, as with `--disable-log-stats`.
    StatsOff,
    /// Engine series begin with this instead of `vllm:`.
    RenamedMetrics(String),
    /// At most that many requests are in the server; more are turned away.
    AdmissionLimit(usize),
}

impl Pathology {
    /// Whether it is over as soon as it has begun.
    fn is_moment(&self) -> bool {
        matches!(self, Pathology::CounterReset | Pathology::OomKill(_))
    }

    pub(super) fn scrape_ms(&self) -> Option<u64> {
        if let Pathology::SlowScrape(ms) = self { Some(*ms) } else { None }
    }

    pub(super) fn admission_limit(&self) -> Option<usize> {
        if let Pathology::AdmissionLimit(most) = self { Some(*most) } else { None }
    }

    pub(super) fn prefix(&self) -> Option<&str> {
        if let Pathology::RenamedMetrics(prefix) = self { Some(prefix) } else { None }
    }
}

/// Names, what the value is, and what happens.
const KINDS: [(&str, &str, &str); 9] = [
    ("hang", "", "no step ends, /health says 200"),
    ("stale-gauges", "", "gauges stay as they are"),
    ("stuck-after-abort", "", "gauges stay when all clients have gone"),
    ("slow-scrape", "=DURATION", "/metrics takes that long [10s]"),
    ("counter-reset", "", "counters at 0, connections cut"),
    ("oom-kill", "=DURATION", "the engine dies, back after that [10s]"),
    ("stats-off", "", "no engine series"),
    ("renamed-metrics", "=PREFIX", "another prefix than vllm: [vllm_]"),
    ("admission-limit", "=N", "more than N requests are turned away"),
];

/// A fault and when it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// What goes wrong.
    pub pathology: Pathology,
    /// Milliseconds until it begins.
    pub after_ms: u64,
    /// Milliseconds that it lasts; `None`: until it is called off.
    pub for_ms: Option<u64>,
}

/// How orders are written, for help texts.
#[must_use]
pub(super) fn help() -> String {
    let mut help = "NAME[=VALUE][@START][+FOR], such as hang@30s+10s:".to_owned();
    for (name, value, what) in KINDS {
        help.push_str(&format!("\n  {:26} {what}", format!("{name}{value}")));
    }
    help
}

impl FromStr for Order {
    type Err = Error;

    fn from_str(text: &str) -> Result<Order, Error> {
        let (rest, for_text) = split(text.trim(), '+');
        let (rest, start_text) = split(rest, '@');
        let (name, value) = split(rest, '=');
        let millis = |what, text: Option<&str>| {
            text.map(|text| {
                duration::parse_millis(text).map_err(|source| Error::Duration {
                    what,
                    text: text.to_owned(),
                    source,
                })
            })
            .transpose()
        };
        let known = KINDS.iter().find(|(known, ..)| *known == name);
        let Some((_, form, _)) = known else {
            let meant = did_you_mean(name, KINDS.iter().map(|(known, ..)| *known));
            return Err(Error::Unknown { name: name.to_owned(), meant });
        };
        if let (Some(value), "") = (value, *form) {
            return Err(Error::NoValue { name: name.to_owned(), value: value.to_owned() });
        }
        let pathology = match name {
            "hang" => Pathology::Hang,
            "stale-gauges" => Pathology::StaleGauges,
            "stuck-after-abort" => Pathology::StuckAfterAbort,
            "slow-scrape" => Pathology::SlowScrape(millis("value", value)?.unwrap_or(10_000)),
            "counter-reset" => Pathology::CounterReset,
            "oom-kill" => Pathology::OomKill(millis("value", value)?.unwrap_or(10_000)),
            "stats-off" => Pathology::StatsOff,
            "renamed-metrics" => {
                let prefix = value.unwrap_or("vllm_");
                if !is_prefix(prefix) {
                    return Err(Error::Prefix { value: prefix.to_owned() });
                }
                Pathology::RenamedMetrics(prefix.to_owned())
            }
            _ => Pathology::AdmissionLimit(
                value
                    .and_then(|value| value.parse().ok())
                    .ok_or_else(|| Error::Limit { value: value.unwrap_or_default().to_owned() })?,
            ),
        };
        Ok(Order {
            pathology,
            after_ms: millis("start", start_text)?.unwrap_or(0),
            for_ms: millis("length", for_text)?,
        })
    }
}

/// Whether a metric's name can begin with it.
fn is_prefix(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    !text.starts_with(|c: char| c.is_ascii_digit()) && !text.is_empty() && text.chars().all(plain)
}

fn split(text: &str, separator: char) -> (&str, Option<&str>) {
    text.split_once(separator).map_or((text, None), |(before, after)| (before, Some(after)))
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pathology {
            Pathology::Hang => f.write_str("hang"),
            Pathology::StaleGauges => f.write_str("stale-gauges"),
            Pathology::StuckAfterAbort => f.write_str("stuck-after-abort"),
            Pathology::SlowScrape(ms) => write!(f, "slow-scrape={}", duration::format_millis(*ms)),
            Pathology::CounterReset => f.write_str("counter-reset"),
            Pathology::OomKill(ms) => write!(f, "oom-kill={}", duration::format_millis(*ms)),
            Pathology::StatsOff => f.write_str("stats-off"),
            Pathology::RenamedMetrics(prefix) => write!(f, "renamed-metrics={prefix}"),
            Pathology::AdmissionLimit(most) => write!(f, "admission-limit={most}"),
        }
    }
}

/// Why an order cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such fault.
    #[error("pathology `{name}` is not known: {meant}{}", names())]
    Unknown {
        /// What was asked for.
        name: String,
        /// The question for a similar name, if there is one.
        meant: String,
    },
    /// A fault got a value that takes none.
    #[error("pathology `{name}` takes no value: found `{value}`")]
    NoValue {
        /// The fault.
        name: String,
        /// The value.
        value: String,
    },
    /// A time is none.
    #[error("the {what} of a pathology is `{text}`: expected a duration such as 90, 90s or 5m")]
    Duration {
        /// Which time.
        what: &'static str,
        /// What was found.
        text: String,
        /// Why it is none.
        source: duration::Error,
    },
    /// A prefix that no metric's name can have.
    #[error("`renamed-metrics` is `{value}`: expected letters, digits, _ and :, no digit first")]
    Prefix {
        /// What was found.
        value: String,
    },
    /// An admission limit without a number.
    #[error("`admission-limit` is `{value}`: expected a number of requests")]
    Limit {
        /// What was found.
        value: String,
    },
}

fn names() -> String {
    let names: Vec<&str> = KINDS.iter().map(|(name, ..)| *name).collect();
    format!("expected one of {}", names.join(", "))
}

/// The faults of a server, in force or to come.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    planned: Vec<Planned>,
}

#[derive(Debug)]
struct Planned {
    order: Order,
    from: Time,
    until: Time,
    has_begun: bool,
}

impl Schedule {
    /// Plans a fault that was ordered now.
    pub(super) fn add(&mut self, order: Order, now: Time) {
        let from = now.plus_ps(order.after_ms.saturating_mul(PS_PER_MS));
        let until = order.for_ms.map_or(Time::MAX, |ms| from.plus_ps(ms.saturating_mul(PS_PER_MS)));
        self.planned.push(Planned { order, from, until, has_begun: false });
    }

    /// Calls everything off.
    pub(super) fn clear(&mut self) {
        self.planned.clear();
    }

    /// Forgets what is over, and returns what begins now.
    pub(super) fn begin(&mut self, now: Time) -> Vec<Pathology> {
        self.planned.retain(|planned| planned.until > now);
        let due = self.planned.iter_mut().filter(|p| !p.has_begun && p.from <= now);
        let begun = due
            .map(|planned| {
                planned.has_begun = true;
                planned.order.pathology.clone()
            })
            .collect();
        // What happens in a moment is over with it.
        self.planned.retain(|planned| !(planned.order.pathology.is_moment() && planned.has_begun));
        begun
    }

    /// When something begins or ends next.
    pub(super) fn next_change(&self) -> Option<Time> {
        self.planned.iter().map(|p| if p.has_begun { p.until } else { p.from }).min()
    }

    /// What is in force.
    pub(super) fn in_force(&self) -> impl Iterator<Item = &Pathology> {
        self.planned.iter().filter(|p| p.has_begun).map(|p| &p.order.pathology)
    }

    pub(super) fn is_in_force(&self, pathology: &Pathology) -> bool {
        self.in_force().any(|other| other == pathology)
    }

    /// One line for each fault in force or to come.
    pub(super) fn lines(&self, now: Time) -> String {
        let line = |planned: &Planned| {
            let seconds = |at: Time| duration::format_millis(shown_ms(at.since(now) / PS_PER_MS));
            let state = match (planned.from <= now, planned.until) {
                (false, _) => format!("in {}", seconds(planned.from)),
                (true, _) if planned.order.pathology.is_moment() => "now".to_owned(),
                (true, Time::MAX) => "in force".to_owned(),
                (true, until) => format!("in force for {}", seconds(until)),
            };
            format!("{}: {state}\n", planned.order)
        };
        self.planned.iter().map(line).collect()
    }
}

/// Milliseconds that are left, beyond a second in whole ones of these: not less than there are, so
/// that what was ordered a moment ago has all of its time.
fn shown_ms(left_ms: u64) -> u64 {
    if left_ms < 1_000 { left_ms } else { left_ms.next_multiple_of(1_000) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_with_value_start_and_length() {
        let order: Order = "slow-scrape=15s@1m+90".parse().unwrap();
        assert_eq!(order.pathology, Pathology::SlowScrape(15_000));
        assert_eq!((order.after_ms, order.for_ms), (60_000, Some(90_000)));
        let order: Order = "hang".parse().unwrap();
        assert_eq!(order, Order { pathology: Pathology::Hang, after_ms: 0, for_ms: None });
        let order: Order = "admission-limit=12".parse().unwrap();
        assert_eq!(order.pathology, Pathology::AdmissionLimit(12));
        for (name, value, _) in KINDS {
            let value = if value == "=N" { "=3" } else { "" };
            let order: Order = format!("{name}{value}").parse().unwrap();
            assert!(order.to_string().starts_with(name), "{name} is written back as {order}");
        }
    }

    #[test]
    fn a_bad_order_names_what_is_wrong() {
        for (text, expect) in [
            ("hnag", "pathology `hnag` is not known: did you mean `hang`?"),
            ("foo", "pathology `foo` is not known: expected one of hang, "),
            ("hang=3", "pathology `hang` takes no value: found `3`"),
            ("hang@soon", "the start of a pathology is `soon`: expected a duration"),
            ("hang+", "the length of a pathology is ``: expected a duration"),
            ("admission-limit", "`admission-limit` is ``: expected a number"),
            ("renamed-metrics=", "`renamed-metrics` is ``: expected letters"),
            ("renamed-metrics=8 b", "`renamed-metrics` is `8 b`: expected letters"),
        ] {
            let error = text.parse::<Order>().unwrap_err().to_string();
            assert!(error.starts_with(expect), "{text}: {error}");
        }
    }

    #[test]
    fn an_order_is_listed_with_all_of_its_time_and_a_moment_too() {
        let listed = |orders: &str, now_ms: u64| {
            let mut schedule = Schedule::default();
            for order in orders.split(' ') {
                schedule.add(order.parse().unwrap(), Time::from_millis(500));
            }
            schedule.lines(Time::from_millis(now_ms))
        };
        assert_eq!(listed("hang+2s", 500), "hang: in force for 2s\n");
        assert_eq!(listed("hang+2s", 501), "hang: in force for 2s\n");
        assert_eq!(listed("hang+2s", 1_600), "hang: in force for 900ms\n");
        assert_eq!(listed("hang@1h", 501), "hang: in 1h\n");
        assert_eq!(
            listed("counter-reset oom-kill=3s+2s", 500),
            "counter-reset: now\noom-kill=3s: now\n"
        );
    }

    #[test]
    fn a_fault_is_in_force_from_its_start_for_its_length() {
        let mut schedule = Schedule::default();
        schedule.add("hang@1s+2s".parse().unwrap(), Time::from_millis(500));
        assert_eq!(schedule.next_change(), Some(Time::from_millis(1_500)));
        assert!(schedule.begin(Time::from_millis(1_499)).is_empty());
        assert_eq!(schedule.begin(Time::from_millis(1_500)), [Pathology::Hang]);
        assert!(schedule.begin(Time::from_millis(3_499)).is_empty());
        assert!(schedule.is_in_force(&Pathology::Hang));
        schedule.begin(Time::from_millis(3_500));
        assert!(!schedule.is_in_force(&Pathology::Hang));
    }
}
