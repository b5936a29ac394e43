//! All checks on one ScaledObject's facts.
//!
//! Pure: the same facts give the same findings.

use super::checks::CHECKS;
use super::facts::{Facts, Missing};
use super::finding::Finding;

/// One check.
#[derive(Debug)]
pub struct Check {
    /// The id of what it finds.
    pub id: &'static str,
    /// What it finds; why it could not look, where a fact is missing.
    pub(super) look: fn(&Facts) -> Result<Option<Finding>, Missing>,
}

/// What came of all checks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Examination {
    /// What is wrong, in the order of the checks.
    pub findings: Vec<Finding>,
    /// The checks that could not be made, by id, and why.
    pub not_looked_at: Vec<(&'static str, Missing)>,
    /// The checks that found nothing, by id.
    pub in_order: Vec<&'static str>,
}

/// Makes every check on these facts.
#[must_use]
pub fn examine(facts: &Facts) -> Examination {
    let mut examination = Examination::default();
    for check in &CHECKS {
        match (check.look)(facts) {
            Ok(Some(finding)) => examination.findings.push(finding),
            Ok(None) => examination.in_order.push(check.id),
            Err(missing) => examination.not_looked_at.push((check.id, missing)),
        }
    }
    examination
}
