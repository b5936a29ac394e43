//! Weighted least squares in four unknowns that cannot be negative.
//!
//! Must stay finite whatever it is fed: the caller bounds the rows, the ridge bounds the rest.

use serde::{Deserialize, Serialize};

/// Unknowns.
pub(super) const N: usize = 4;
/// Ridge relative to the diagonal: what the rows do not tell apart is shared out evenly instead of
/// blown up. It moves a well told cost by far less than the noise of a shared machine.
const RIDGE: f64 = 1e-5;
/// Ridge under a variance: small enough that what is not told apart shows as uncertain.
const RIDGE_VARIANCE: f64 = 1e-8;

/// Normal equations: `left · costs = right`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Normal {
    left: [[f64; N]; N],
    right: [f64; N],
}

impl Normal {
    /// Forgets all but `keep` of what is known and adds a row with its target.
    pub(super) fn add(&mut self, row: &[f64; N], target: f64, weight: f64, keep: f64) {
        for (i, value) in row.iter().enumerate() {
            for (j, other) in row.iter().enumerate() {
                self.left[i][j] = self.left[i][j] * keep + weight * value * other;
            }
            self.right[i] = self.right[i] * keep + weight * value * target;
        }
    }

    pub(super) fn right(&self) -> [f64; N] {
        self.right
    }

    /// The costs, none negative: the most negative one is set to zero until none is left, which
    /// in four unknowns that grow together finds the bounded minimum or one close to it.
    pub(super) fn solve(&self) -> [f64; N] {
        let mut free = std::array::from_fn(|i| self.left[i][i] > 0.0);
        loop {
            let costs = self.solve_free(&free, &self.right, RIDGE);
            let lowest = (0..N).filter(|i| free[*i] && costs[*i] < 0.0).min_by(|i, j| {
                (costs[*i] * self.scale(*i)).total_cmp(&(costs[*j] * self.scale(*j)))
            });
            match lowest {
                Some(lowest) => free[lowest] = false,
                None => return costs,
            }
        }
    }

    /// `directionᵀ · left⁻¹ · direction`: the variance of a prediction per unit of error².
    pub(super) fn variance_along(&self, direction: &[f64; N]) -> f64 {
        let free = std::array::from_fn(|i| self.left[i][i] > 0.0);
        let solved = self.solve_free(&free, direction, RIDGE_VARIANCE);
        solved.iter().zip(direction).map(|(a, b)| a * b).sum()
    }

    /// Mean and relative variance of `prices · features` over the rows, whose first feature is
    /// constant.
    pub(super) fn mean_and_relative_variance(&self, prices: &[f64; N]) -> (f64, f64) {
        let priced = self.left.map(|row| row.iter().zip(prices).map(|(a, b)| a * b).sum::<f64>());
        let squares: f64 = priced.iter().zip(prices).map(|(a, b)| a * b).sum();
        let (sum, rows) = (priced[0], self.left[0][0]);
        if sum > 0.0 {
            (sum / rows, (squares * rows / (sum * sum) - 1.0).max(0.0))
        } else {
            (0.0, 0.0)
        }
    }

    fn scale(&self, i: usize) -> f64 {
        self.left[i][i].sqrt()
    }

    /// Solves among the free unknowns by Cholesky on the matrix scaled to a unit diagonal.
    fn solve_free(&self, free: &[bool; N], right: &[f64; N], ridge: f64) -> [f64; N] {
        let mut lower = [[0.0; N]; N];
        let mut solution = [0.0; N];
        for i in 0..N {
            if !free[i] {
                continue;
            }
            for j in 0..=i {
                if !free[j] {
                    continue;
                }
                let mut sum = self.left[i][j] / (self.scale(i) * self.scale(j));
                if i == j {
                    sum += ridge;
                }
                for (a, b) in lower[i].iter().zip(&lower[j]).take(j) {
                    sum -= a * b;
                }
                lower[i][j] =
                    if i == j { sum.max(ridge * ridge).sqrt() } else { sum / lower[j][j] };
            }
            let known: f64 = (0..i).map(|j| lower[i][j] * solution[j]).sum();
            solution[i] = (right[i] / self.scale(i) - known) / lower[i][i];
        }
        for i in (0..N).rev() {
            if !free[i] {
                continue;
            }
            let known: f64 = (i + 1..N).map(|j| lower[j][i] * solution[j]).sum();
            solution[i] = (solution[i] - known) / lower[i][i];
        }
        for (i, value) in solution.iter_mut().enumerate() {
            *value = if free[i] { *value / self.scale(i) } else { 0.0 };
        }
        solution
    }
}
