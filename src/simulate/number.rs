//! From measured numbers to counts and places, saturating.
//!
//! Must not decide anything: only range and rounding live here.

/// The largest whole number that is not above `value`; 0 for what is negative or undefined.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates at both ends and makes NaN 0, which is what is wanted"
)]
pub(crate) fn floor_index(value: f64) -> usize {
    value as usize
}

/// The smallest whole number that is not below `value`, forgiving rounding errors.
pub(crate) fn ceil_index(value: f64) -> usize {
    floor_index((value - 1e-9).ceil())
}

/// The same as a number of replicas.
pub(crate) fn ceil_count(value: f64) -> u32 {
    u32::try_from(ceil_index(value)).unwrap_or(u32::MAX)
}
