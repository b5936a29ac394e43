//! How requests come beside their mean rate: evenly, by chance, in bursts, or because others came.
//!
//! Every process has the mean of a constant rate from the start on: none makes the load larger or
//! smaller, only its shape. [`Process::Hawkes`] follows a change of the rate as its requests come,
//! a lag divided by `1 - share` after it in the mean.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand_distr::{Distribution as _, Exp1, Gamma, Poisson};
use rand_pcg::Pcg64Mcg;

use super::arrivals::Piece;
use crate::duration::{self, format_millis};

/// What bursts leave for the time between them counts from here on, as a share of the mean rate;
/// below it is what rounding has left.
const LEAST_CALM: f64 = 1e-12;
/// Where fewer requests than this come in the mean of a burst and the time after it, bursts show
/// nowhere.
const LEAST_A_TURN: f64 = 1e-6;

/// How the gaps between requests vary.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Process {
    /// Exponential gaps: requests that know nothing of each other.
    Poisson,
    /// Gamma gaps with this standard deviation, as a share of the mean: above 1 burstier than
    /// Poisson, below 1 smoother.
    Gamma {
        /// 0.05 to 20.
        cv: f64,
    },
    /// Equal gaps, the first request at once.
    Constant,
    /// Poisson at one of two rates, which change at random moments: a Markov-modulated Poisson
    /// process of two states, and with no request between bursts an on/off one.
    Mmpp(Bursts),
    /// Requests that bring others after them, which bring others: a Hawkes process (Hawkes, 1971)
    /// with an exponential kernel. Calls of agents and of pipelines come like this.
    Hawkes {
        /// The share of requests that others brought, 0 to 0.95. Each brings so many in the mean.
        share: f64,
        /// How long after the one that brought it a request comes, in seconds in the mean, above 0.
        lag_s: f64,
    },
}

/// The two states of [`Process::Mmpp`]. Both last exponentially long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bursts {
    /// The rate within a burst as a multiple of the mean rate, from 1 to `(on_s + off_s) / on_s`,
    /// which leaves nothing for the time between them.
    pub peak: f64,
    /// How long a burst lasts, in seconds in the mean, above 0.
    pub on_s: f64,
    /// How long the time between two lasts, in seconds in the mean, above 0.
    pub off_s: f64,
}

impl Bursts {
    fn on_share(&self) -> f64 {
        self.on_s / (self.on_s + self.off_s)
    }

    /// The rate between bursts as a multiple of the mean rate.
    fn calm(&self) -> f64 {
        let on_share = self.on_share();
        let left = 1.0 - self.peak * on_share;
        if left < LEAST_CALM { 0.0 } else { left / (1.0 - on_share) }
    }
}

impl FromStr for Process {
    type Err = ProcessError;

    fn from_str(text: &str) -> Result<Process, ProcessError> {
        let process = match text.split(':').collect::<Vec<_>>().as_slice() {
            ["poisson"] => Some(Process::Poisson),
            ["constant"] => Some(Process::Constant),
            ["gamma", cv] => number(cv, 0.05, 20.0).map(|cv| Process::Gamma { cv }),
            ["onoff", on, off] => seconds(on).zip(seconds(off)).map(|(on_s, off_s)| {
                Process::Mmpp(Bursts { peak: (on_s + off_s) / on_s, on_s, off_s })
            }),
            ["mmpp", peak, on, off] => seconds(on).zip(seconds(off)).and_then(|(on_s, off_s)| {
                let peak = number(peak, 1.0, (on_s + off_s) / on_s)?;
                Some(Process::Mmpp(Bursts { peak, on_s, off_s }))
            }),
            ["hawkes", share, lag] => number(share, 0.0, 0.95)
                .zip(seconds(lag))
                .map(|(share, lag_s)| Process::Hawkes { share, lag_s }),
            _ => None,
        };
        process.ok_or_else(|| ProcessError { text: text.to_owned() })
    }
}

fn number(text: &str, least: f64, most: f64) -> Option<f64> {
    text.parse().ok().filter(|number| (least..=most).contains(number))
}

/// Above 0.
fn seconds(text: &str) -> Option<f64> {
    let millis = duration::parse_millis(text).ok().filter(|millis| *millis > 0)?;
    Some(Duration::from_millis(millis).as_secs_f64())
}

/// As [`Process::from_str`] reads it.
impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |seconds: f64| {
            let millis = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_millis();
            format_millis(u64::try_from(millis).unwrap_or(u64::MAX))
        };
        match self {
            Process::Poisson => f.write_str("poisson"),
            Process::Gamma { cv } => write!(f, "gamma:{cv}"),
            Process::Constant => f.write_str("constant"),
            Process::Mmpp(bursts) => {
                let Bursts { peak, on_s, off_s } = *bursts;
                if bursts.calm() > 0.0 {
                    write!(f, "mmpp:{peak}:{}:{}", span(on_s), span(off_s))
                } else {
                    write!(f, "onoff:{}:{}", span(on_s), span(off_s))
                }
            }
            Process::Hawkes { share, lag_s } => write!(f, "hawkes:{share}:{}", span(*lag_s)),
        }
    }
}

/// The text is no arrival process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is no arrival process: expected poisson, constant, gamma:CV with a CV of 0.05 to 20, \
     onoff:ON:OFF, mmpp:PEAK:ON:OFF with a PEAK of 1 to (ON + OFF) / ON, or hawkes:SHARE:LAG with a \
     SHARE of 0 to 0.95; ON, OFF and LAG are durations"
)]
pub struct ProcessError {
    text: String,
}

/// A curve's pieces, cut where a burst begins or ends, each with the rate of its state.
pub(super) struct Modulated<P> {
    pieces: P,
    bursts: Bursts,
    rng: Pcg64Mcg,
    /// What is left of the piece.
    piece: Piece,
    is_on: bool,
    /// What is left of the state.
    left_s: f64,
}

impl<P> Modulated<P> {
    pub(super) fn new(pieces: P, bursts: Bursts, mut rng: Pcg64Mcg) -> Modulated<P> {
        // Begun long ago: in a burst with the probability of one, and what is left of a state is
        // as long as a whole one.
        let drawn: f64 = rand_distr::StandardUniform.sample(&mut rng);
        let piece = Piece { from_per_s: 0.0, to_per_s: 0.0, span_s: 0.0 };
        let is_on = drawn < bursts.on_share();
        let mut modulated = Modulated { pieces, bursts, rng, piece, is_on, left_s: 0.0 };
        modulated.left_s = modulated.lasts_s();
        modulated
    }

    fn lasts_s(&mut self) -> f64 {
        let drawn: f64 = Exp1.sample(&mut self.rng);
        drawn * if self.is_on { self.bursts.on_s } else { self.bursts.off_s }
    }
}

impl<P: Iterator<Item = Piece>> Iterator for Modulated<P> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.piece.span_s <= 0.0 {
            self.piece = self.pieces.next()?;
        }
        let Piece { from_per_s, to_per_s, span_s } = self.piece;
        let turn_s = self.bursts.on_s + self.bursts.off_s;
        if from_per_s.max(to_per_s) * turn_s < LEAST_A_TURN {
            // Who looks for a request in it would get cuts without one, for ever if it never ends.
            self.piece.span_s = 0.0;
            return Some(Piece { from_per_s, to_per_s, span_s });
        }
        let cut_s = span_s.min(self.left_s);
        let at_cut_per_s = if span_s.is_finite() {
            from_per_s + (to_per_s - from_per_s) * cut_s / span_s
        } else {
            to_per_s
        };
        let multiple = if self.is_on { self.bursts.peak } else { self.bursts.calm() };
        self.piece = Piece { from_per_s: at_cut_per_s, to_per_s, span_s: span_s - cut_s };
        self.left_s -= cut_s;
        if self.left_s <= 0.0 {
            self.is_on = !self.is_on;
            self.left_s = self.lasts_s();
        }
        Some(Piece {
            from_per_s: from_per_s * multiple,
            to_per_s: at_cut_per_s * multiple,
            span_s: cut_s,
        })
    }
}

/// What requests before the start bring after it, as if they had come for ever at this rate. Without
/// it the rate would begin at that of the requests which nobody brought.
///
/// They come at a rate that falls with the lag from what the start finds. In the long run that has
/// the mean `share * rate` and the variance `share² * rate / (2 * lag * (1 - share))` (Hawkes, 1971).
/// A gamma distribution has both, and so counts have their mean and variance from the start on.
pub(super) fn brought_before(
    rate_per_s: f64,
    share: f64,
    lag_s: f64,
    mut rng: Pcg64Mcg,
) -> impl Iterator<Item = f64> + Send {
    let found = Gamma::new(2.0 * rate_per_s * lag_s * (1.0 - share), share / (2.0 * (1.0 - share)));
    // Where there is no rate, or no request brings another, nothing is found.
    let expected = found.map_or(0.0, |found| found.sample(&mut rng));
    let mut passed = 0.0;
    std::iter::from_fn(move || {
        let gap: f64 = Exp1.sample(&mut rng);
        passed += gap;
        (passed < expected).then(|| -lag_s * (-passed / expected).ln_1p())
    })
}

/// Arrivals with those that they bring, as the clusters that a Hawkes process consists of (Hawkes
/// and Oakes, 1974): no intensity has to be followed, and the draw is exact.
pub(super) struct Cascade<I: Iterator> {
    own: std::iter::Peekable<I>,
    /// How many an arrival brings; none if it brings none.
    brought: Option<Poisson<f64>>,
    lag_s: f64,
    until_s: f64,
    rng: Pcg64Mcg,
    /// What was brought and is yet to come. A time above 0 has the order of its bits.
    coming: BinaryHeap<Reverse<u64>>,
}

impl<I: Iterator<Item = f64>> Cascade<I> {
    pub(super) fn new(own: I, share: f64, lag_s: f64, until_s: f64, rng: Pcg64Mcg) -> Cascade<I> {
        let (own, brought) = (own.peekable(), Poisson::new(share).ok());
        Cascade { own, brought, lag_s, until_s, rng, coming: BinaryHeap::new() }
    }
}

impl<I: Iterator<Item = f64>> Iterator for Cascade<I> {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        let brought_s = self.coming.peek().map(|Reverse(bits)| f64::from_bits(*bits));
        let t_s = match (self.own.peek().copied(), brought_s) {
            (Some(own_s), Some(brought_s)) if brought_s < own_s => brought_s,
            (None, brought_s) => brought_s?,
            (Some(own_s), _) => own_s,
        };
        if brought_s.is_some_and(|brought_s| brought_s <= t_s) {
            self.coming.pop();
        } else {
            self.own.next();
        }
        let n = self.brought.map_or(0.0, |brought| brought.sample(&mut self.rng));
        let mut left = n;
        while left >= 1.0 {
            let drawn: f64 = Exp1.sample(&mut self.rng);
            let comes_s = t_s + drawn * self.lag_s;
            if comes_s < self.until_s {
                self.coming.push(Reverse(comes_s.to_bits()));
            }
            left -= 1.0;
        }
        Some(t_s)
    }
}
