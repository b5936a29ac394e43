//! The random numbers of a run, all from its seed.
//!
//! Must not be shared between two things of a run: each has its own stream, so that one more draw
//! in one of them changes nothing in another.

use std::f64::consts::TAU;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(Pcg64Mcg);

impl Random {
    /// The stream of that name below a seed.
    #[must_use]
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        // Far apart for neighbouring seeds and streams (a step of SplitMix64).
        let mixed =
            (seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Random(Pcg64Mcg::seed_from_u64(mixed))
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in 0 to 1, 1 excluded.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normal with mean 0 and variance 1 (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (TAU * self.uniform()).cos()
    }
}
