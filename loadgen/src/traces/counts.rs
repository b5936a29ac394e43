//! Traces that say how many requests came in each bin of time.
//!
//! Within a bin the times are uniform, as a Poisson process has them once its count is known:
//! bursts shorter than a bin are lost.

use std::path::Path;

use rand_distr::{Distribution as _, OpenClosed01};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng as _;

use super::lines::{Column, Table};
use super::{Arrival, Error, Lengths, MOST_S, Options};

static COLUMNS: [Column; 1] =
    [Column { name: "count", aliases: &["requests", "n_requests"], required: true }];

/// More than any service gets in a bin; what is above it is a slip.
const MOST_IN_BIN: f64 = 1e7;

/// The requests of a file, bin by bin.
pub(super) struct Counts {
    table: Table,
    rng: Pcg64Mcg,
    lengths: Lengths,
    scale: f64,
    bin_s: f64,
    /// Bins begun so far.
    n_bins: u64,
    /// Requests that the present bin still has.
    left: u64,
    /// Where in the present bin the last one was, 0 to 1.
    position: f64,
}

impl Counts {
    pub(super) fn open(path: &Path, options: &Options) -> Result<Counts, Error> {
        Ok(Counts {
            table: Table::open(path, &COLUMNS)?,
            rng: Pcg64Mcg::seed_from_u64(options.seed),
            lengths: options.lengths.clone(),
            scale: options.scale,
            bin_s: options.bin_s,
            n_bins: 0,
            left: 0,
            position: 0.0,
        })
    }

    /// Seconds that the bins begun so far last.
    pub(super) fn span_s(&self) -> f64 {
        self.n_bins as f64 * self.bin_s
    }

    fn read(&mut self) -> Result<Option<Arrival>, Error> {
        while self.left == 0 {
            if !self.table.advance()? {
                if self.n_bins == 0 {
                    return Err(self.table.lines().empty("one count a row"));
                }
                return Ok(None);
            }
            self.n_bins += 1;
            if self.span_s() > MOST_S {
                let row = self.table.row();
                let expected =
                    "no row whose bin ends later than 213 days; is the bin's width right?";
                return Err(self.table.fault(&row, 0, expected));
            }
            self.position = 0.0;
            self.left = self.count()?;
        }
        // The least of n uniform numbers above the last one: the order comes without sorting.
        let uniform: f64 = OpenClosed01.sample(&mut self.rng);
        self.position = 1.0 - (1.0 - self.position) * uniform.powf((self.left as f64).recip());
        self.left -= 1;
        let t_s = ((self.n_bins - 1) as f64 + self.position) * self.bin_s;
        Ok(Some(Arrival::new(t_s, self.lengths.draw(&mut self.rng))))
    }

    /// Requests of the present row, scaled.
    fn count(&mut self) -> Result<u64, Error> {
        let row = self.table.row();
        let count = self.table.number(&row, 0)?;
        if count > MOST_IN_BIN || count.fract() > 0.0 {
            return Err(self.table.fault(&row, 0, "a whole number up to ten million"));
        }
        let whole = self.scale.trunc();
        let mut scaled = count * whole;
        let rest = self.scale - whole;
        if rest > 0.0 {
            let mut each = 0.0;
            while each < count {
                let uniform: f64 = OpenClosed01.sample(&mut self.rng);
                scaled += if uniform <= rest { 1.0 } else { 0.0 };
                each += 1.0;
            }
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to ten million times at most ten thousand"
        )]
        let scaled = scaled as u64;
        Ok(scaled)
    }
}

impl Iterator for Counts {
    type Item = Result<Arrival, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}
