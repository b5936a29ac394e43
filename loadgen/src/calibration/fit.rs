//! Fits the four constants of a step to what an engine's counters showed.
//!
//! Must not be used on intervals in which the engine rested: their steps look long.

use crate::engine::Step;

/// An interval in which the engine stepped without a rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepRow {
    /// Milliseconds of a step, in the mean.
    pub step_ms: f64,
    /// Prompt tokens of a step, in the mean.
    pub prefill_tokens: f64,
    /// Generated tokens of a step, in the mean.
    pub decoding: f64,
    /// Tokens in the KV cache, in the mean.
    pub resident_tokens: f64,
}

impl StepRow {
    /// What the constants are multiplied with.
    fn features(&self) -> [f64; TERMS] {
        [1.0, self.prefill_tokens, self.decoding, self.resident_tokens]
    }
}

const TERMS: usize = 4;

/// The step whose constants come nearest to the rows by relative error, with no negative
/// constant; `None` if the rows cannot tell the terms apart.
#[must_use]
pub fn fit_step(rows: &[StepRow]) -> Option<Step> {
    let mut used = [true; TERMS];
    let constants = loop {
        let constants = least_squares(rows, used)?;
        // A term that would have to be negative explains nothing: the next fit is without it.
        let worst = (0..TERMS).filter(|&term| constants[term] < 0.0);
        let Some(term) = worst.min_by(|&a, &b| constants[a].total_cmp(&constants[b])) else {
            break constants;
        };
        used[term] = false;
    };
    let [base_ms, prefill, decode, resident] = constants;
    Some(Step {
        base_ms,
        prefill_ms: vec![(0, 0.0), (1_000, 1e3 * prefill)],
        decode_ms: vec![(0, 0.0), (1_000, 1e3 * decode)],
        resident_ms: vec![(0, 0.0), (1_000_000, 1e6 * resident)],
        attention_ns: 0.0,
    })
}

/// Least squares of the relative errors over the used terms, by the normal equations.
fn least_squares(rows: &[StepRow], used: [bool; TERMS]) -> Option<[f64; TERMS]> {
    // Matrix and right side; an unused term keeps its row of the unit matrix and comes out as 0.
    let mut system = [[0.0; TERMS + 1]; TERMS];
    for (i, equation) in system.iter_mut().enumerate() {
        if !used[i] {
            equation[i] = 1.0;
            continue;
        }
        for row in rows {
            let features = row.features();
            let weight = features[i] / (row.step_ms * row.step_ms);
            for j in (0..TERMS).filter(|&j| used[j]) {
                equation[j] += weight * features[j];
            }
            equation[TERMS] += weight * row.step_ms;
        }
    }
    solve(system)
}

/// Gauss's elimination with the largest pivot, each column scaled to 1 on its diagonal first.
fn solve(mut system: [[f64; TERMS + 1]; TERMS]) -> Option<[f64; TERMS]> {
    const SINGULAR: f64 = 1e-9;
    let scale: [f64; TERMS] = std::array::from_fn(|i| system[i][i].sqrt());
    if scale.iter().any(|scale| !scale.is_normal()) {
        return None;
    }
    for (i, equation) in system.iter_mut().enumerate() {
        for (j, cell) in equation.iter_mut().enumerate() {
            *cell /= scale[i] * scale.get(j).copied().unwrap_or(1.0);
        }
    }
    for column in 0..TERMS {
        let size = |&row: &usize| system[row][column].abs();
        let pivot = (column..TERMS).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        system.swap(column, pivot);
        if system[column][column].abs() < SINGULAR {
            return None;
        }
        let pivot_row = system[column];
        for (i, equation) in system.iter_mut().enumerate() {
            if i == column {
                continue;
            }
            let factor = equation[column] / pivot_row[column];
            for (cell, pivot_cell) in equation.iter_mut().zip(pivot_row) {
                *cell -= factor * pivot_cell;
            }
        }
    }
    Some(std::array::from_fn(|i| system[i][TERMS] / system[i][i] / scale[i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(step_ms: impl Fn([f64; TERMS]) -> f64) -> Vec<StepRow> {
        let shapes = [(0.0, 1.0, 50.0), (40.0, 4.0, 900.0), (300.0, 16.0, 9e3), (5.0, 32.0, 4e4)];
        let rows = shapes.map(|(prefill_tokens, decoding, resident_tokens)| {
            let row = StepRow { step_ms: 0.0, prefill_tokens, decoding, resident_tokens };
            StepRow { step_ms: step_ms(row.features()), ..row }
        });
        rows.to_vec()
    }

    #[test]
    fn exact_rows_give_back_their_constants() {
        let step =
            fit_step(&rows(|[_, p, d, kv]| 3.0 + 0.023 * p + 0.062 * d + 1e-5 * kv)).unwrap();
        assert!((step.base_ms - 3.0).abs() < 1e-6);
        for (points, expected) in
            [(&step.prefill_ms, 23.0), (&step.decode_ms, 62.0), (&step.resident_ms, 10.0)]
        {
            assert!((points[1].1 - expected).abs() < 1e-5, "{points:?}");
        }
    }

    #[test]
    fn a_term_that_would_be_negative_is_left_out() {
        let step = fit_step(&rows(|[_, p, d, kv]| 3.0 + 0.023 * p + 0.2 * d - 1e-5 * kv)).unwrap();
        assert!(step.resident_ms[1].1.abs() < 1e-12);
        assert!(step.base_ms > 0.0 && step.decode_ms[1].1 > 0.0);
    }

    #[test]
    fn rows_of_one_shape_tell_nothing() {
        let same = rows(|_| 5.0)[1];
        assert_eq!(fit_step(&[same; 20]), None);
    }
}
