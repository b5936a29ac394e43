//! How long requests are, where a trace or a process says only when they come.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use rand_distr::{Distribution as _, LogNormal, Open01};
use rand_pcg::Pcg64Mcg;

use super::Error;
use super::lines::{Column, MOST_TOKENS, Table};

/// A pool of lengths is held in memory, 12 bytes each.
const MOST_ROWS: usize = 5_000_000;

static COLUMNS: [Column; 3] = [
    Column {
        name: "input_tokens",
        aliases: &["ContextTokens", "Request tokens", "input_length"],
        required: true,
    },
    Column {
        name: "output_tokens",
        aliases: &["GeneratedTokens", "Response tokens", "output_length"],
        required: true,
    },
    Column { name: "cached_tokens", aliases: &[], required: false },
];

/// The tokens of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Length {
    /// Tokens of the prompt, at least 1.
    pub input_tokens: u32,
    /// Tokens generated, at least 1.
    pub output_tokens: u32,
    /// Leading tokens of the prompt that are in the prefix cache already.
    pub cached_tokens: u32,
}

impl Length {
    /// The same with a token where there was none: neither is asked for with 0.
    pub(super) fn raised(self) -> Length {
        let Length { input_tokens, output_tokens, cached_tokens } = self;
        Length {
            input_tokens: input_tokens.max(1),
            output_tokens: output_tokens.max(1),
            cached_tokens,
        }
    }
}

/// Where lengths come from.
#[derive(Debug, Clone)]
pub enum Lengths {
    /// Prompt and output drawn apart.
    Drawn {
        /// Of the prompt.
        input: Size,
        /// Of the output.
        output: Size,
    },
    /// Pairs of a real service, drawn with the same chance: what belongs together stays together.
    Pool(Arc<[Length]>),
}

impl Lengths {
    /// The same length for all.
    #[must_use]
    pub const fn fixed(input_tokens: u32, output_tokens: u32) -> Lengths {
        Lengths::Drawn { input: Size::fixed(input_tokens), output: Size::fixed(output_tokens) }
    }

    /// Reads a pool from any table with `input_tokens` and `output_tokens`, besides perhaps
    /// `cached_tokens`; the names of the trace formats are known too.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, lacks a column, has a row that is none, no row, or more than
    /// five million.
    pub fn load(path: &Path) -> Result<Lengths, Error> {
        let mut table = Table::open(path, &COLUMNS)?;
        let mut pool = Vec::new();
        while table.advance()? {
            if pool.len() == MOST_ROWS {
                let path = table.lines().path().to_owned();
                return Err(Error::TooMany { path, most: MOST_ROWS });
            }
            let row = table.row();
            pool.push(table.length(&row, [0, 1, 2])?.raised());
        }
        if pool.is_empty() {
            return Err(table.lines().empty("one pair of lengths a row"));
        }
        Ok(Lengths::Pool(pool.into()))
    }

    /// Draws the length of one request.
    #[must_use]
    pub fn draw(&self, rng: &mut Pcg64Mcg) -> Length {
        match self {
            Lengths::Drawn { input, output } => Length {
                input_tokens: input.draw(rng),
                output_tokens: output.draw(rng),
                cached_tokens: 0,
            },
            Lengths::Pool(pool) => {
                let uniform: f64 = Open01.sample(rng);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a uniform number below the pool's length"
                )]
                let index = (uniform * pool.len() as f64) as usize;
                let none = Length { input_tokens: 1, output_tokens: 1, cached_tokens: 0 };
                pool.get(index).copied().unwrap_or(none)
            }
        }
    }
}

/// A number of tokens: always the same, or log-normal around a mean. Written `500` or `500:0.8`,
/// the second number being the standard deviation as a share of the mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    mean: f64,
    cv: f64,
    spread: Option<LogNormal<f64>>,
}

impl Size {
    /// Always the same.
    #[must_use]
    pub const fn fixed(tokens: u32) -> Size {
        Size { mean: tokens as f64, cv: 0.0, spread: None }
    }

    /// The mean, in tokens.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    pub(crate) fn draw(&self, rng: &mut Pcg64Mcg) -> u32 {
        let tokens = self.spread.map_or(self.mean, |spread| spread.sample(rng));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to 1 … 1e8"
        )]
        let tokens = tokens.round().clamp(1.0, f64::from(MOST_TOKENS)) as u32;
        tokens
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Size, SizeError> {
        let error = || SizeError { text: text.to_owned() };
        let (mean, cv) = text.split_once(':').unwrap_or((text, "0"));
        let mean: f64 = mean.trim().parse().map_err(|_not_a_number| error())?;
        let cv: f64 = cv.trim().parse().map_err(|_not_a_number| error())?;
        if !(1.0..=f64::from(MOST_TOKENS)).contains(&mean) || !(0.0..=10.0).contains(&cv) {
            return Err(error());
        }
        let spread = match cv > 0.0 {
            true => Some(LogNormal::from_mean_cv(mean, cv).map_err(|_range| error())?),
            false => None,
        };
        Ok(Size { mean, cv, spread })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mean)?;
        if self.cv > 0.0 {
            write!(f, ":{}", self.cv)?;
        }
        Ok(())
    }
}

/// The text is no number of tokens, or of what else has a size, such as a conversation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is no size: expected a mean of 1 to 100000000, alone or with a spread of 0 to 10 of \
     it, such as 500 or 500:0.8"
)]
pub struct SizeError {
    text: String,
}
