//! Conversions between the numbers of the outside and those of the rules, each saturating.
//!
//! Must not decide anything: only range and rounding live here.

/// Largest count, rate or total that is believed: 10^15 is exact in an `f64` and far above
/// anything a fleet can produce (10^5 tokens/s for three centuries).
const LARGEST: f64 = 1e15;

/// The value if it can be one: finite, not negative, not absurd.
pub(super) fn usable(value: Option<f64>) -> Option<f64> {
    value.filter(|value| (0.0..=LARGEST).contains(value))
}

/// The smallest count that is not below `value`, forgiving rounding errors of the arithmetic.
pub(super) fn ceil_count(value: f64) -> u32 {
    count((value - 1e-6).ceil())
}

/// The largest count that is not above `value`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates at both ends and makes NaN 0, which is what is wanted"
)]
pub(super) fn count(value: f64) -> u32 {
    value as u32
}

/// Number of items as a count.
pub(super) fn count_of(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}

/// Seconds from milliseconds; exact below 2^53 ms.
pub(super) fn seconds(millis: u64) -> f64 {
    millis as f64 / 1_000.0
}

/// The compact form in which histories are kept.
#[expect(clippy::cast_possible_truncation, reason = "24 bits of precision are enough here")]
pub(super) fn compact(value: f64) -> f32 {
    value.clamp(-LARGEST, LARGEST) as f32
}

/// The larger of two numbers, where at least one is known.
pub(super) fn larger(one: Option<f64>, two: Option<f64>) -> Option<f64> {
    match (one, two) {
        (Some(one), Some(two)) => Some(one.max(two)),
        (one, two) => one.or(two),
    }
}
