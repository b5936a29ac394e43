//! Generated arrivals: a process, and a rate that may change in time.
//!
//! Gaps are drawn for a rate of one and stretched by the rate in force, never rescaled to a wanted
//! count: the counts vary as the process has it.

use std::ops::Range;
use std::str::FromStr;

use rand_distr::{Distribution as _, Exp1, Gamma, StandardUniform};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng as _;

use super::process::{Cascade, Modulated, Process, brought_before};
use super::{Arrival, Lengths};
use crate::duration;

/// Far beyond what one machine sends; what is above it is a slip.
const MOST_PER_S: f64 = 1e6;

/// A stretch of time in which the rate is constant or goes straight from one value to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Piece {
    pub(super) from_per_s: f64,
    pub(super) to_per_s: f64,
    /// Infinite for the last one, if no end was given.
    pub(super) span_s: f64,
}

/// The rate over time: `5` for ever, `2@330s,4@6m` in steps, `1-50@10m` as a ramp, `1~9@1d` as a
/// day from its lowest rate to its highest and back (a cosine), or a row of these; each piece but
/// the last needs its duration.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    text: String,
    pieces: Vec<Piece>,
}

impl Curve {
    /// The same rate for ever, in requests a second.
    #[must_use]
    pub fn constant(rate_per_s: f64) -> Curve {
        let piece = Piece { from_per_s: rate_per_s, to_per_s: rate_per_s, span_s: f64::INFINITY };
        Curve { text: rate_per_s.to_string(), pieces: vec![piece] }
    }

    /// How long it is, in seconds; `None` if it never ends.
    #[must_use]
    pub fn span_s(&self) -> Option<f64> {
        let span_s: f64 = self.pieces.iter().map(|piece| piece.span_s).sum();
        span_s.is_finite().then_some(span_s)
    }

    /// The highest rate in it, in requests a second.
    #[must_use]
    pub fn peak_per_s(&self) -> f64 {
        self.pieces.iter().map(|piece| piece.from_per_s.max(piece.to_per_s)).fold(0.0, f64::max)
    }

    /// The rate at a moment, in requests a second; 0 after the end.
    #[must_use]
    pub fn at(&self, t_s: f64) -> f64 {
        let mut began_s = 0.0;
        for piece in &self.pieces {
            let into_s = t_s - began_s;
            if into_s < piece.span_s {
                let share = if piece.span_s.is_finite() { into_s / piece.span_s } else { 0.0 };
                return piece.from_per_s + share * (piece.to_per_s - piece.from_per_s);
            }
            began_s += piece.span_s;
        }
        0.0
    }

    /// The same curve so many times one after another, each rate times `scale`.
    #[must_use]
    pub fn repeated(&self, times: usize, scale: f64) -> Curve {
        let scaled = self.pieces.iter().map(|piece| Piece {
            from_per_s: piece.from_per_s * scale,
            to_per_s: piece.to_per_s * scale,
            ..*piece
        });
        let one: Vec<Piece> = scaled.collect();
        Curve { text: self.text.clone(), pieces: one.repeat(times) }
    }

    /// Its pieces as they were written, and from when to when each goes, in seconds; the last may
    /// have no end.
    #[must_use]
    pub fn parts(&self) -> Vec<(&str, Range<f64>)> {
        let mut from_s = 0.0;
        let part = |part: &'_ str| {
            let span = part.split_once('@').and_then(|(_, span)| duration::parse_millis(span).ok());
            let until_s = span.map_or(f64::INFINITY, |millis| from_s + millis as f64 / 1e3);
            std::mem::replace(&mut from_s, until_s)..until_s
        };
        let texts = self.text.split(',').map(str::trim);
        let spans: Vec<Range<f64>> = texts.clone().map(part).collect();
        texts.zip(spans).collect()
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Curve {
    type Err = CurveError;

    fn from_str(text: &str) -> Result<Curve, CurveError> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let n_parts = parts.len();
        let mut pieces = Vec::new();
        for (index, part) in parts.into_iter().enumerate() {
            let error = |why| CurveError { part: part.to_owned(), why };
            let (rates, span) = match part.split_once('@') {
                Some((rates, span)) => (rates, Some(span)),
                None => (part, None),
            };
            let span_s = match span.map(duration::parse_millis) {
                Some(Ok(millis)) if millis > 0 => millis as f64 / 1e3,
                Some(_) => return Err(error("expected a duration such as 90s or 5m after the @")),
                None if index + 1 == n_parts => f64::INFINITY,
                None => return Err(error("expected its duration after an @: others follow it")),
            };
            let is_day = rates.contains('~');
            let (from, to) = rates.split_once(['-', '~']).unwrap_or((rates, rates));
            let rate = |text: &str| {
                let rate: Option<f64> = text.trim().parse().ok();
                rate.filter(|rate| (0.0..=MOST_PER_S).contains(rate)).ok_or_else(|| {
                    // Of 1e-3 the - stands between two rates.
                    error(match text.trim().ends_with(['e', 'E']) {
                        true => "expected digits without an exponent, such as 0.001",
                        false => {
                            "expected requests a second, 0 to 1000000, or two of them with a - or ~"
                        }
                    })
                })
            };
            let (from_per_s, to_per_s) = (rate(from)?, rate(to)?);
            if span_s.is_infinite() && from != to {
                return Err(error("expected the ramp's duration after an @"));
            }
            let piece = Piece { from_per_s, to_per_s, span_s };
            if is_day { pieces.extend(day(piece)) } else { pieces.push(piece) }
        }
        let curve = Curve { text: text.to_owned(), pieces };
        if curve.peak_per_s() > 0.0 {
            Ok(curve)
        } else {
            Err(CurveError { part: text.to_owned(), why: "expected a rate above 0 somewhere" })
        }
    }
}

/// From one rate to the other and back, along a cosine of so many straight pieces.
fn day(Piece { from_per_s, to_per_s, span_s }: Piece) -> impl Iterator<Item = Piece> {
    const N_PIECES: u32 = 48;
    let at = move |index: u32| {
        let turn = std::f64::consts::TAU * f64::from(index) / f64::from(N_PIECES);
        from_per_s + (to_per_s - from_per_s) * (1.0 - turn.cos()) / 2.0
    };
    (0..N_PIECES).map(move |index| Piece {
        from_per_s: at(index),
        to_per_s: at(index + 1),
        span_s: span_s / f64::from(N_PIECES),
    })
}

/// The text is no rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rate \"{part}\": {why}")]
pub struct CurveError {
    part: String,
    why: &'static str,
}

/// Times of arrival in seconds, ascending; ends with its curve.
pub struct Arrivals(Box<dyn Iterator<Item = f64> + Send>);

impl std::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrivals").finish_non_exhaustive()
    }
}

impl Arrivals {
    /// The arrivals of a process at these rates.
    #[must_use]
    pub fn new(curve: &Curve, process: Process, seed: u64) -> Arrivals {
        let rng = Pcg64Mcg::seed_from_u64(seed);
        let pieces = curve.pieces.clone().into_iter();
        // A stream of its own: the gaps are those of the same seed without it.
        let other = Pcg64Mcg::seed_from_u64(seed ^ 0x7377_6974_6368_6573);
        Arrivals(match process {
            Process::Poisson => Box::new(Stretched::new(pieces, Gaps::Poisson, rng)),
            Process::Gamma { cv } => Box::new(Stretched::new(pieces, Gaps::gamma(cv), rng)),
            Process::Constant => Box::new(Stretched::new(pieces, Gaps::Constant, rng)),
            Process::Mmpp(bursts) => {
                let pieces = Modulated::new(pieces, bursts, other);
                Box::new(Stretched::new(pieces, Gaps::Poisson, rng))
            }
            Process::Hawkes { share, lag_s } => {
                let own = curve.repeated(1, 1.0 - share).pieces.into_iter();
                let own = Stretched::new(own, Gaps::Poisson, rng);
                let until_s = curve.span_s().unwrap_or(f64::INFINITY);
                let before = Pcg64Mcg::seed_from_u64(seed ^ 0x6265_666f_7265_6974);
                let before = brought_before(curve.at(0.0), share, lag_s, before)
                    .take_while(move |t_s| *t_s < until_s);
                Box::new(Cascade::new(merged(own, before), share, lag_s, until_s, other))
            }
        })
    }
}

impl Iterator for Arrivals {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        self.0.next()
    }
}

/// Two rows of times, each ascending, as one.
fn merged(
    one: impl Iterator<Item = f64>,
    other: impl Iterator<Item = f64>,
) -> impl Iterator<Item = f64> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(t_s), Some(other_s)) if other_s < t_s => other.next(),
        (Some(_), _) => one.next(),
        (None, _) => other.next(),
    })
}

enum Gaps {
    Poisson,
    Gamma {
        gaps: Gamma<f64>,
        /// Those that the start falls into: the likelier, the longer they are.
        found: Gamma<f64>,
    },
    Constant,
}

impl Gaps {
    /// Shape 1/cv² and scale cv² have the mean 1; drawn by their length they have a shape larger by
    /// 1. A cv out of range falls back to Poisson, which is what a cv of 1 is.
    fn gamma(cv: f64) -> Gaps {
        let (shape, scale) = ((cv * cv).recip(), cv * cv);
        match (Gamma::new(shape, scale), Gamma::new(shape + 1.0, scale)) {
            (Ok(gaps), Ok(found)) => Gaps::Gamma { gaps, found },
            (_, _) => Gaps::Poisson,
        }
    }
}

/// Gaps of a mean of one, stretched by the rate in force.
struct Stretched<P> {
    rng: Pcg64Mcg,
    gaps: Gaps,
    pieces: P,
    piece: Piece,
    piece_began_s: f64,
    /// Arrivals expected between the piece's beginning and the last one.
    passed: f64,
    last_s: f64,
    is_first: bool,
}

impl<P> Stretched<P> {
    fn new(pieces: P, gaps: Gaps, rng: Pcg64Mcg) -> Stretched<P> {
        Stretched {
            rng,
            gaps,
            pieces,
            piece: Piece { from_per_s: 0.0, to_per_s: 0.0, span_s: 0.0 },
            piece_began_s: 0.0,
            passed: 0.0,
            last_s: 0.0,
            is_first: true,
        }
    }

    /// A gap in units of the mean gap.
    fn gap(&mut self) -> f64 {
        let is_first = std::mem::take(&mut self.is_first);
        match &self.gaps {
            Gaps::Poisson => Exp1.sample(&mut self.rng),
            // The start is any moment within a gap: with an arrival there, the mean of the first
            // minutes would be (cv² - 1) / 2 requests too high.
            Gaps::Gamma { found, .. } if is_first => {
                let left: f64 = StandardUniform.sample(&mut self.rng);
                left * found.sample(&mut self.rng)
            }
            Gaps::Gamma { gaps, .. } => gaps.sample(&mut self.rng),
            Gaps::Constant if is_first => 0.0,
            Gaps::Constant => 1.0,
        }
    }
}

impl<P: Iterator<Item = Piece>> Iterator for Stretched<P> {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        // Counted from the piece's beginning rather than from the last one: sums of equal gaps stay
        // exact.
        self.passed += self.gap();
        loop {
            let Piece { from_per_s, to_per_s, span_s } = self.piece;
            let expected = match f64::midpoint(from_per_s, to_per_s) {
                mean if mean > 0.0 => mean * span_s,
                _ => 0.0,
            };
            if self.passed < expected {
                let slope = (to_per_s - from_per_s) / span_s;
                // The root of from·t + slope·t²/2 = passed, in the form that stands a slope of 0.
                let root = (from_per_s * from_per_s + 2.0 * slope * self.passed).max(0.0).sqrt();
                let into_s = match from_per_s + root {
                    sum if sum > 0.0 => 2.0 * self.passed / sum,
                    _ => 0.0,
                };
                // Rounding must not turn two that are a hair apart round.
                self.last_s = self.last_s.max(self.piece_began_s + into_s.min(span_s));
                return Some(self.last_s);
            }
            if !span_s.is_finite() {
                return None;
            }
            self.passed -= expected;
            self.piece_began_s += span_s;
            self.piece = self.pieces.next()?;
        }
    }
}

/// Requests of a process at these rates, with their lengths.
pub fn generate(
    curve: &Curve,
    process: Process,
    lengths: &Lengths,
    seed: u64,
) -> impl Iterator<Item = Arrival> + Send + use<> {
    let lengths = lengths.clone();
    // A stream of its own: other lengths change no arrival.
    let mut rng = Pcg64Mcg::seed_from_u64(seed ^ 0x6c65_6e67_7468_7321);
    Arrivals::new(curve, process, seed).map(move |t_s| Arrival::new(t_s, lengths.draw(&mut rng)))
}
