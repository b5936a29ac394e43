//! A number that may not be known, in the space of a number: for what is held of each of thousands.
//!
//! Must not make a number of what is not known: it is taken out as an `Option`.

use serde::{Deserialize, Serialize};

/// An `Option<f64>` in half its space. NaN is not known.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(from = "Option<f64>", into = "Option<f64>")]
pub(in crate::decision) struct Known(f64);

impl Known {
    /// Not known.
    pub(in crate::decision) const NOT: Known = Known(f64::NAN);

    /// The number, if it is known.
    pub(in crate::decision) fn get(self) -> Option<f64> {
        (!self.0.is_nan()).then_some(self.0)
    }

    /// Whether it is not known.
    pub(in crate::decision) fn is_not(&self) -> bool {
        self.0.is_nan()
    }

    /// Adds what is known; an unknown part leaves the sum as it is.
    pub(in crate::decision) fn add(&mut self, part: Known) {
        if let Some(part) = part.get() {
            self.0 = self.get().unwrap_or(0.0) + part;
        }
    }
}

impl Default for Known {
    fn default() -> Known {
        Known::NOT
    }
}

impl From<Option<f64>> for Known {
    fn from(number: Option<f64>) -> Known {
        number.map_or(Known::NOT, Known)
    }
}

impl From<Known> for Option<f64> {
    fn from(known: Known) -> Option<f64> {
        known.get()
    }
}

impl PartialEq for Known {
    fn eq(&self, other: &Known) -> bool {
        self.get() == other.get()
    }
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_zero_stay_two_things_and_are_saved_as_an_option_is() {
        for (number, text) in [(None, "null"), (Some(0.0), "0.0"), (Some(-1.5), "-1.5")] {
            let known = Known::from(number);
            assert_eq!(known.get(), number);
            assert_eq!(serde_json::to_string(&known).unwrap(), text);
            assert_eq!(serde_json::from_str::<Known>(text).unwrap(), known);
        }
        assert_eq!(Known::default(), Known::NOT);
        assert_eq!(Known::from(Some(f64::NAN)), Known::NOT);
        assert_ne!(Known::from(Some(0.0)), Known::NOT);
        assert_eq!(size_of::<Known>(), size_of::<f64>());
    }
}
