//! How far a mean of a few measurements can be trusted, Student's t, and how far a share: at 95 %.
//!
//! Pure.

use serde::Serialize;

/// Quantiles of Student's distribution for 95 % on both sides together, by degrees of freedom from
/// 1 on (any table of it).
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// The mean of several measurements of the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// Each of them.
    pub values: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// The mean is known within so much on either side; `null` for one measurement.
    pub half_width: Option<f64>,
}

impl Spread {
    /// Of at least one measurement; `None` if there is none.
    #[must_use]
    pub fn of(values: Vec<f64>) -> Option<Spread> {
        let mean = mean(&values)?;
        let half_width = error(&values).map(|(error, freedom)| t(freedom) * error);
        Some(Spread { values, mean, half_width })
    }
}

/// What the mean has changed by, from and to: Welch's interval, which asks for no equal variances.
/// `None` unless there are two measurements of each.
#[must_use]
pub fn change(before: &[f64], after: &[f64]) -> Option<(f64, f64)> {
    let (before_error, before_freedom) = error(before)?;
    let (after_error, after_freedom) = error(after)?;
    let change = mean(after)? - mean(before)?;
    let (a, b) = (before_error.powi(2), after_error.powi(2));
    // Welch-Satterthwaite; where nothing varies at all, the change is what it is.
    let freedom = match a * a / before_freedom + b * b / after_freedom {
        least if least > 0.0 => (a + b).powi(2) / least,
        _ => f64::INFINITY,
    };
    let half_width = t(freedom) * (a + b).sqrt();
    Some((change - half_width, change + half_width))
}

/// Where a share lies at 95 %, seen `n_good` times of `n`: Wilson's interval, which is one for all
/// and for none too (Wilson 1927). `None` if it was not looked at.
#[must_use]
pub fn share_interval(n_good: u64, n: u64) -> Option<(f64, f64)> {
    const Z: f64 = 1.960;
    if n == 0 {
        return None;
    }
    let (n, share) = (n as f64, n_good as f64 / n as f64);
    let scale = 1.0 + Z * Z / n;
    let middle = (share + Z * Z / (2.0 * n)) / scale;
    let half_width =
        Z / scale * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).max(0.0).sqrt();
    Some(((middle - half_width).max(0.0), (middle + half_width).min(1.0)))
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The standard error of a mean, and its degrees of freedom.
fn error(values: &[f64]) -> Option<(f64, f64)> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    let freedom = (values.len() - 1) as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some(((squares / freedom / values.len() as f64).sqrt(), freedom))
}

/// The quantile for so many degrees of freedom, at least 1; what is between is rounded down.
fn t(freedom: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "1 to 31, or beyond the table"
    )]
    let whole = freedom.clamp(1.0, 31.0) as usize;
    // Beyond the table within 0.1 % of it.
    T.get(whole - 1).copied().unwrap_or(1.960 + 2.5 / freedom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_as_sure_as_its_measurements_agree() {
        // 2.776 × 1.5811 / √5.
        let spread = Spread::of(vec![1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((spread.mean - 3.0).abs() < 1e-12);
        assert!((spread.half_width.unwrap() - 1.963).abs() < 1e-3, "{spread:?}");
        assert_eq!(Spread::of(vec![7.0]).unwrap().half_width, None);
        assert_eq!(Spread::of(Vec::new()), None);
        assert!((t(60.0) - 2.000).abs() < 3e-3 && (t(1e9) - 1.960).abs() < 1e-6);
    }

    #[test]
    fn a_share_of_few_is_known_roughly() {
        let near = |seen: Option<(f64, f64)>, low: f64, high: f64| {
            let (seen_low, seen_high) = seen.unwrap();
            assert!((seen_low - low).abs() < 1e-4 && (seen_high - high).abs() < 1e-4, "{seen:?}");
        };
        // 20 / (20 + 1.96²), and the textbook's 10 of 20.
        near(share_interval(20, 20), 0.8389, 1.0);
        near(share_interval(0, 20), 0.0, 0.1611);
        near(share_interval(10, 20), 0.2993, 0.7007);
        assert_eq!(share_interval(0, 0), None);
    }

    #[test]
    fn a_change_is_seen_where_it_is_more_than_chance() {
        // By hand: means 10 and 12, variances 1 and 4 of four each: 2 ± 2.776 × √1.25 at 4.41
        // degrees of freedom, taken as 4.
        let (before, after) = ([9.0, 9.0, 11.0, 11.0], [10.0, 10.0, 14.0, 14.0]);
        let (low, high) = change(&before, &after).unwrap();
        let half_width = 2.776 * (4.0_f64 / 3.0 / 4.0 + 16.0 / 3.0 / 4.0).sqrt();
        assert!((low - (2.0 - half_width)).abs() < 1e-9, "{low}");
        assert!((high - (2.0 + half_width)).abs() < 1e-9, "{high}");
        assert_eq!(change(&[1.0], &[2.0, 3.0]), None);
        assert_eq!(change(&[1.0, 1.0], &[2.0, 2.0]), Some((1.0, 1.0)));
    }
}
