//! What a run has measured so far: counts and histograms for each class of requests.
//!
//! Must not read a clock: its callers say when things happened, in seconds since the run's start.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::failure::{Failure, Fault};
use super::slo::Slo;
use super::timeline::Timeline;

/// The longest time that is told from a longer one.
const MOST_US: u64 = 24 * 3_600 * 1_000_000;

/// Times, in microseconds with three digits.
#[derive(Debug, Clone)]
pub struct Times(Histogram<u32>);

impl Default for Times {
    fn default() -> Times {
        let bounds = Histogram::new_with_bounds(1, MOST_US, 3);
        Times(bounds.expect("1 µs to a day with 3 digits is a range that the histogram has"))
    }
}

impl Times {
    /// Adds one.
    pub fn note(&mut self, seconds: f64) {
        self.0.saturating_record(micros(seconds));
    }

    /// Adds one so many times.
    pub fn note_n(&mut self, seconds: f64, n: u64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the cast saturates at 0 and at what the histogram saturates too"
        )]
        let us = (seconds * 1e6).round() as u64;
        self.0.saturating_record_n(us, u32::try_from(n).unwrap_or(u32::MAX));
    }

    /// Adds those of another part of the run.
    pub fn merge(&mut self, other: &Times) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many are at most so long.
    #[must_use]
    pub fn n_within(&self, seconds: f64) -> u64 {
        self.0.count_between(0, micros(seconds))
    }

    /// A quantile in seconds; `None` if there is none.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        (!self.is_empty())
            .then(|| self.0.value_at_quantile(quantile).min(self.0.max()) as f64 / 1e6)
    }

    /// A quantile in seconds beside so many that are longer than all of these; `None` if it is one
    /// of them, or there is none at all.
    #[must_use]
    pub fn quantile_beside(&self, n_longer: u64, quantile: f64) -> Option<f64> {
        let n = (self.len() + n_longer) as f64;
        // As exact as a share of some thousands is written.
        let rank = (n * quantile - 1e-6).ceil().max(1.0);
        let own = (rank - 0.5) / self.len() as f64;
        (own < 1.0).then(|| self.quantile(own)).flatten()
    }

    /// The mean in seconds.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (!self.is_empty()).then(|| self.0.mean() / 1e6)
    }

    /// The largest in seconds.
    #[must_use]
    pub fn max(&self) -> Option<f64> {
        (!self.is_empty()).then(|| self.0.max() as f64 / 1e6)
    }
}

fn micros(seconds: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates at 0 and at what the histogram saturates too"
    )]
    let micros = (seconds * 1e6).round() as u64;
    micros
}

/// What is known of a request when it ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    /// Which server had it.
    pub(super) target: usize,
    /// When it was due and ended, in seconds since the run's start.
    pub(super) due_s: f64,
    pub(super) at_s: f64,
    /// When its first and its last piece of text came.
    pub(super) first_s: Option<f64>,
    pub(super) last_s: f64,
    /// Pieces of text.
    pub(super) events: u32,
    /// What was asked for.
    pub(super) asked_input: u32,
    pub(super) asked_output: u32,
    /// The server's counts, where it told.
    pub(super) usage: Option<(u64, u64)>,
}

/// What a class of requests has seen.
#[derive(Debug, Clone, Default)]
pub struct Class {
    /// Requests whose time came.
    pub scheduled: u64,
    /// Requests that a connection was sought for.
    pub sent: u64,
    /// Times that a refused request was sent again.
    pub retries: u64,
    /// Whole answers.
    pub completed: u64,
    /// Requests that were open when the run ended.
    pub unfinished: u64,
    /// Those of them, and of what waited for a connection then, that could still have met their SLO.
    pub censored: u64,
    /// Whole answers within the SLO.
    pub good: u64,
    /// Failures by their kind.
    pub errors: BTreeMap<Failure, u64>,
    /// From the intended start to the first text.
    pub ttft: Times,
    /// From the actual start, the first byte handed to the kernel, to the first text.
    pub ttft_from_send: Times,
    /// Mean time of a token after the first.
    pub tpot: Times,
    /// Between two pieces of text.
    pub itl: Times,
    /// Between two tokens: each token of a piece has its share of the wait for the piece, by the
    /// count that came with it.
    pub token_itl: Times,
    /// Pieces after the first that came without a count of their tokens.
    pub uncounted_pieces: u64,
    /// From the intended start to the end of a whole answer.
    pub e2e: Times,
    /// From the intended start to the actual one, less what the opening of a connection took.
    pub schedule_lag: Times,
    /// From the intended start to the end of the run, of requests that were open or waited for a
    /// connection then.
    pub open: Times,
    /// Those of them that had no first token by then.
    pub waiting: Times,
    /// Requests that ended without a first token, in whatever way.
    pub tokenless: u64,
    /// Prompt tokens asked for in completed requests that the server counted.
    pub asked_prompt_tokens: u64,
    /// What the server counted for these.
    pub prompt_tokens: u64,
    /// Tokens asked for as their answers.
    pub asked_output_tokens: u64,
    /// What the server counted for these.
    pub counted_output_tokens: u64,
    /// Answers in one piece to requests for a stream: their first token is their end.
    pub in_one_piece: u64,
    /// Tokens of completed answers.
    pub output_tokens: u64,
    /// Those of them in answers within the SLO.
    pub good_output_tokens: u64,
    /// Pieces of text in completed answers.
    pub events: u64,
    /// Completed answers whose tokens the server did not count: pieces of text stand for tokens.
    pub uncounted: u64,
    /// Tokens that were asked for in these.
    pub asked_uncounted: u64,
    /// Pieces of text that came for them.
    pub pieces_uncounted: u64,
    /// Request-seconds spent waiting for a first token beyond the SLO.
    pub violation_s: f64,
}

impl Class {
    /// Failures of all kinds.
    #[must_use]
    pub fn n_errors(&self) -> u64 {
        self.errors.values().sum()
    }

    /// How late requests left, but for the latest hundredth of them, the latest tenth of fewer than a
    /// hundred, or the later half of fewer than ten, of whom a single one would decide otherwise: that
    /// share, and seconds. `None` if none has left.
    #[must_use]
    pub fn usual_lag(&self) -> Option<(f64, f64)> {
        let share = match self.schedule_lag.len() {
            ..10 => 0.5,
            10..100 => 0.9,
            100.. => 0.99,
        };
        Some((share, self.schedule_lag.quantile(share)?))
    }

    /// Adds what another part of the run saw.
    pub fn merge(&mut self, other: &Class) {
        self.scheduled += other.scheduled;
        self.sent += other.sent;
        self.retries += other.retries;
        self.completed += other.completed;
        self.unfinished += other.unfinished;
        self.censored += other.censored;
        self.good += other.good;
        for (failure, n) in &other.errors {
            *self.errors.entry(*failure).or_default() += n;
        }
        self.ttft.merge(&other.ttft);
        self.ttft_from_send.merge(&other.ttft_from_send);
        self.tpot.merge(&other.tpot);
        self.itl.merge(&other.itl);
        self.token_itl.merge(&other.token_itl);
        self.uncounted_pieces += other.uncounted_pieces;
        self.e2e.merge(&other.e2e);
        self.schedule_lag.merge(&other.schedule_lag);
        self.open.merge(&other.open);
        self.waiting.merge(&other.waiting);
        self.tokenless += other.tokenless;
        self.asked_prompt_tokens += other.asked_prompt_tokens;
        self.prompt_tokens += other.prompt_tokens;
        self.asked_output_tokens += other.asked_output_tokens;
        self.counted_output_tokens += other.counted_output_tokens;
        self.in_one_piece += other.in_one_piece;
        self.output_tokens += other.output_tokens;
        self.good_output_tokens += other.good_output_tokens;
        self.events += other.events;
        self.uncounted += other.uncounted;
        self.asked_uncounted += other.asked_uncounted;
        self.pieces_uncounted += other.pieces_uncounted;
        self.violation_s += other.violation_s;
    }
}

/// What became of the requests to one server.
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// Requests that a connection to it was sought for.
    pub sent: u64,
    /// Whole answers.
    pub completed: u64,
    /// Requests that were open when the run ended.
    pub unfinished: u64,
    /// Failures by their kind.
    pub errors: BTreeMap<Failure, u64>,
}

impl Target {
    fn merge(&mut self, other: &Target) {
        self.sent += other.sent;
        self.completed += other.completed;
        self.unfinished += other.unfinished;
        for (failure, n) in &other.errors {
            *self.errors.entry(*failure).or_default() += n;
        }
    }
}

/// What one part of a run, or the whole of it, has seen.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// By class, in the plan's order.
    pub classes: Vec<Class>,
    /// By server, in the plan's order.
    pub targets: Vec<Target>,
    /// All classes over time.
    pub timeline: Timeline,
    /// One example of each kind of failure, and which server it was.
    pub examples: BTreeMap<Failure, (usize, String)>,
    /// When the first text of all came.
    pub first_text_s: Option<f64>,
    /// When the first request was due.
    pub first_due_s: Option<f64>,
    /// When the last request was due, whether or not it counts.
    pub last_due_s: f64,
    /// Requests that were due, whether or not they count.
    pub n_due: u64,
    /// Requests that were due and never sent: they waited for a connection until the end, or could
    /// not even wait.
    pub unsent: u64,
}

impl Record {
    pub(super) fn new(n_classes: usize, n_targets: usize) -> Record {
        Record {
            classes: vec![Class::default(); n_classes],
            targets: vec![Target::default(); n_targets],
            ..Record::default()
        }
    }

    /// A request's time has come.
    pub(super) fn scheduled(&mut self, class: usize, due_s: f64) {
        self.classes[class].scheduled += 1;
        self.timeline.at(due_s).scheduled += 1;
        self.first_due_s = earlier(self.first_due_s, Some(due_s));
    }

    /// A connection is sought for a request.
    pub(super) fn sent(&mut self, class: usize, target: usize, at_s: f64) {
        self.classes[class].sent += 1;
        self.targets[target].sent += 1;
        self.timeline.at(at_s).sent += 1;
    }

    /// A request has left, so late.
    pub(super) fn left(&mut self, class: usize, lag_s: f64) {
        self.classes[class].schedule_lag.note(lag_s);
    }

    /// A refused request is sent again.
    pub(super) fn retried(&mut self, class: usize) {
        self.classes[class].retries += 1;
    }

    /// The first text of an answer came.
    pub(super) fn first_text(&mut self, class: usize, slo: &Slo, times: (f64, f64, f64)) {
        let (due_s, sent_s, at_s) = times;
        let class = &mut self.classes[class];
        let ttft_s = at_s - due_s;
        class.ttft.note(ttft_s);
        class.ttft_from_send.note(at_s - sent_s);
        class.violation_s += (ttft_s - slo.ttft_s).max(0.0);
        let bin = self.timeline.at(due_s);
        bin.note_ttft(ttft_s);
        bin.late += u64::from(ttft_s > slo.ttft_s);
        self.timeline.at(at_s).events += 1;
        self.first_text_s = earlier(self.first_text_s, Some(at_s));
    }

    /// A whole answer came in one piece, where a stream was asked for.
    pub(super) fn came_in_one_piece(&mut self, class: usize) {
        self.classes[class].in_one_piece += 1;
    }

    /// More text of an answer came, so long after the piece before it, of so many tokens if that is
    /// known.
    pub(super) fn more_text(&mut self, class: usize, gap_s: f64, at_s: f64, tokens: Option<u64>) {
        let class = &mut self.classes[class];
        class.itl.note(gap_s);
        match tokens {
            Some(n @ 1..) => class.token_itl.note_n(gap_s / n as f64, n),
            Some(0) | None => class.uncounted_pieces += 1,
        }
        self.timeline.at(at_s).events += 1;
    }

    /// A whole answer is there.
    pub(super) fn completed(&mut self, class: usize, slo: &Slo, ended: &Ended) {
        let record = &mut self.classes[class];
        record.completed += 1;
        let e2e_s = ended.at_s - ended.due_s;
        record.e2e.note(e2e_s);
        record.events += u64::from(ended.events);
        let tokens = match ended.usage {
            Some((prompt, output)) => {
                record.asked_prompt_tokens += u64::from(ended.asked_input);
                record.prompt_tokens += prompt;
                record.asked_output_tokens += u64::from(ended.asked_output);
                record.counted_output_tokens += output;
                output
            }
            None => {
                record.uncounted += 1;
                record.asked_uncounted += u64::from(ended.asked_output);
                record.pieces_uncounted += u64::from(ended.events);
                u64::from(ended.events)
            }
        };
        record.output_tokens += tokens;
        let tpot_s = match ended.first_s {
            // One piece shows no time between its tokens, however many there are.
            Some(first_s) if tokens > 1 && ended.events > 1 => {
                let tpot_s = (ended.last_s - first_s) / (tokens - 1) as f64;
                record.tpot.note(tpot_s);
                Some(tpot_s)
            }
            Some(_) | None => None,
        };
        let ttft_s = ended.first_s.map(|first_s| first_s - ended.due_s);
        let is_good = slo.is_met(ttft_s, tpot_s, e2e_s);
        if is_good {
            record.good += 1;
            record.good_output_tokens += tokens;
            self.timeline.at(ended.due_s).good += 1;
        }
        self.timeline.at(ended.at_s).completed += 1;
        self.targets[ended.target].completed += 1;
        self.ended(ended);
    }

    /// A request failed.
    pub(super) fn failed(&mut self, class: usize, slo: &Slo, ended: &Ended, fault: Fault) {
        *self.classes[class].errors.entry(fault.failure).or_default() += 1;
        *self.targets[ended.target].errors.entry(fault.failure).or_default() += 1;
        self.examples.entry(fault.failure).or_insert((ended.target, fault.example));
        self.timeline.at(ended.due_s).failed += 1;
        self.timeline.at(ended.at_s).cut += u64::from(fault.failure == Failure::CutShort);
        self.without_token(class, slo, ended);
        self.ended(ended);
    }

    /// The run ended before a request did.
    pub(super) fn unfinished(&mut self, class: usize, slo: &Slo, ended: &Ended) {
        self.classes[class].unfinished += 1;
        self.targets[ended.target].unfinished += 1;
        self.left_open(class, slo, ended);
        self.ended(ended);
    }

    /// The run ended while a request waited for a connection.
    pub(super) fn never_sent(&mut self, class: usize, slo: &Slo, due_s: f64, at_s: f64) {
        self.unsent += 1;
        let ended = Ended {
            target: 0,
            due_s,
            at_s,
            first_s: None,
            last_s: at_s,
            events: 0,
            asked_input: 0,
            asked_output: 0,
            usage: None,
        };
        self.left_open(class, slo, &ended);
    }

    fn left_open(&mut self, class: usize, slo: &Slo, ended: &Ended) {
        let record = &mut self.classes[class];
        let open_s = ended.at_s - ended.due_s;
        let waited_s = ended.first_s.unwrap_or(ended.at_s) - ended.due_s;
        record.open.note(open_s);
        if waited_s <= slo.ttft_s && slo.e2e_s.is_none_or(|e2e_s| open_s <= e2e_s) {
            record.censored += 1;
        }
        if ended.first_s.is_none() {
            record.waiting.note(open_s);
            self.timeline.at(ended.due_s).late += u64::from(open_s > slo.ttft_s);
        }
        self.without_token(class, slo, ended);
    }

    fn without_token(&mut self, class: usize, slo: &Slo, ended: &Ended) {
        if ended.first_s.is_none() {
            let record = &mut self.classes[class];
            record.tokenless += 1;
            record.violation_s += (ended.at_s - ended.due_s - slo.ttft_s).max(0.0);
        }
    }

    fn ended(&mut self, ended: &Ended) {
        self.timeline.at(ended.at_s).ended += 1;
    }

    /// Adds what another part of the run saw.
    pub(super) fn merge(&mut self, other: Record) {
        for (own, other) in self.classes.iter_mut().zip(&other.classes) {
            own.merge(other);
        }
        for (own, other) in self.targets.iter_mut().zip(&other.targets) {
            own.merge(other);
        }
        self.timeline.merge(other.timeline);
        for (failure, example) in other.examples {
            self.examples.entry(failure).or_insert(example);
        }
        self.first_text_s = earlier(self.first_text_s, other.first_text_s);
        self.first_due_s = earlier(self.first_due_s, other.first_due_s);
        self.last_due_s = self.last_due_s.max(other.last_due_s);
        self.n_due += other.n_due;
        self.unsent += other.unsent;
    }

    /// The same on a clock that was started so many seconds earlier.
    #[must_use]
    pub(super) fn later(self, by_s: f64) -> Record {
        Record {
            timeline: self.timeline.later(by_s),
            first_text_s: self.first_text_s.map(|at_s| at_s + by_s),
            first_due_s: self.first_due_s.map(|at_s| at_s + by_s),
            last_due_s: self.last_due_s + by_s,
            ..self
        }
    }

    /// Whether requests left so late that what was measured is the client rather than the server: by
    /// more than 1 ms and more than a hundredth of the median time to first token, but for the latest
    /// of them ([`Class::usual_lag`]); or not at all.
    #[must_use]
    pub fn is_bottleneck(&self) -> bool {
        let total = self.total();
        let lag_s = total.usual_lag().map_or(0.0, |(_, lag_s)| lag_s);
        let usual_s = total.ttft.quantile(0.5).or_else(|| total.e2e.quantile(0.5)).unwrap_or(0.0);
        let is_full = total.errors.contains_key(&Failure::ClientLimit);
        self.unsent > 0 || is_full || lag_s > (usual_s / 100.0).max(1e-3)
    }

    /// All classes as one.
    #[must_use]
    pub fn total(&self) -> Class {
        let mut total = Class::default();
        self.classes.iter().for_each(|class| total.merge(class));
        total
    }
}

fn earlier(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_at_the_end_is_late_once_it_has_waited_longer_than_promised() {
        let slo = Slo { ttft_s: 2.0, tpot_s: 0.1, e2e_s: None };
        let mut record = Record::new(1, 1);
        for due_s in [7.0, 9.0] {
            record.scheduled(0, due_s);
            record.never_sent(0, &slo, due_s, 10.0);
        }
        let class = record.total();
        assert_eq!((record.unsent, class.censored, class.tokenless), (2, 1, 2));
        assert!((class.violation_s - 1.0).abs() < 1e-9, "{}", class.violation_s);
        assert_eq!((record.timeline.at(7.0).late, record.timeline.at(9.0).late), (1, 0));
        assert_eq!((class.waiting.n_within(2.0), class.open.n_within(3.1)), (1, 2));
        assert_eq!(record.first_due_s, Some(7.0));
    }

    #[test]
    fn a_single_late_request_is_no_bottleneck_and_a_tenth_of_few_is() {
        let bottleneck = |n: u32, n_late: u32| {
            let mut record = Record::new(1, 1);
            for index in 0..n {
                record.classes[0].ttft.note(0.05);
                record.left(0, if index < n_late { 0.5 } else { 1e-4 });
            }
            record.is_bottleneck()
        };
        assert!(!bottleneck(38, 1) && bottleneck(38, 8) && bottleneck(38, 38));
        assert!(!bottleneck(2, 1) && !bottleneck(9, 1) && bottleneck(9, 6) && bottleneck(2, 2));
        assert!(!bottleneck(1_000, 9) && bottleneck(1_000, 20));
        assert!(!bottleneck(0, 0));
    }

    #[test]
    fn a_quantile_beside_longer_ones_is_one_of_all() {
        let mut times = Times::default();
        (1..=10).for_each(|ms| times.note(f64::from(ms) / 1e3));
        let near = |quantile: Option<f64>, ms: f64| {
            let seen = quantile.unwrap();
            assert!((seen * 1e3 / ms - 1.0).abs() < 1e-3, "{seen}");
        };
        near(times.quantile_beside(0, 0.9), 9.0);
        near(times.quantile_beside(0, 1.0), 10.0);
        near(times.quantile_beside(10, 0.5), 10.0);
        near(times.quantile_beside(10, 0.25), 5.0);
        assert_eq!(times.quantile_beside(10, 0.51), None);
        assert_eq!(Times::default().quantile_beside(3, 0.0), None);
    }
}
