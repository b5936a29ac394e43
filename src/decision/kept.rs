//! An engine's sample as it is kept: shared, and in little more than half its space.
//!
//! Must not lose anything of it: what is not known stays so.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::known::Known;
use super::{EngineSample, Moment};

/// A sample that several remember: thousands are kept, and each read makes a new one. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "EngineSample", into = "EngineSample")]
pub struct KeptSample(Arc<Compact>);

#[derive(Debug, PartialEq)]
struct Compact {
    at: Moment,
    numbers: [Known; EngineSample::N_NUMBERS],
    asleep: Option<bool>,
    /// [`NEVER`] where it is not known.
    started_at: Moment,
}

/// The first of all moments, in which nobody started.
const NEVER: Moment = Moment(i64::MIN);

impl KeptSample {
    /// The sample.
    #[must_use]
    pub fn get(&self) -> EngineSample {
        let Compact { at, ref numbers, asleep, started_at } = *self.0;
        let started_at = (started_at != NEVER).then_some(started_at);
        let mut sample = EngineSample { at, asleep, started_at, ..EngineSample::default() };
        for (number, kept) in sample.numbers_mut().into_iter().zip(numbers) {
            *number = kept.get();
        }
        sample
    }

    /// When it was taken.
    #[must_use]
    pub fn at(&self) -> Moment {
        self.0.at
    }

    /// Whether the engine said that it sleeps.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.0.asleep == Some(true)
    }

    /// The sample to be changed; who else has it keeps it as it is.
    pub fn edit(&mut self) -> Edit<'_> {
        Edit { sample: self.get(), kept: self }
    }
}

impl From<EngineSample> for KeptSample {
    fn from(mut sample: EngineSample) -> KeptSample {
        let numbers = sample.numbers_mut().map(|number| Known::from(*number));
        let EngineSample { at, asleep, started_at, .. } = sample;
        let started_at = started_at.unwrap_or(NEVER);
        KeptSample(Arc::new(Compact { at, numbers, asleep, started_at }))
    }
}

impl From<KeptSample> for EngineSample {
    fn from(kept: KeptSample) -> EngineSample {
        kept.get()
    }
}

/// A sample that is being changed; kept when this goes.
#[derive(Debug)]
pub struct Edit<'a> {
    sample: EngineSample,
    kept: &'a mut KeptSample,
}

impl Deref for Edit<'_> {
    type Target = EngineSample;

    fn deref(&self) -> &EngineSample {
        &self.sample
    }
}

impl DerefMut for Edit<'_> {
    fn deref_mut(&mut self) -> &mut EngineSample {
        &mut self.sample
    }
}

impl Drop for Edit<'_> {
    fn drop(&mut self) {
        *self.kept = self.sample.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> EngineSample {
        let mut sample = EngineSample {
            at: Moment(7),
            asleep: Some(false),
            started_at: Some(Moment(3)),
            ..EngineSample::default()
        };
        for (index, number) in (0_u32..).zip(sample.numbers_mut()) {
            // Some known, zero among them, and some not.
            *number = (index % 3 > 0).then(|| f64::from(index / 2));
        }
        sample
    }

    #[test]
    fn a_sample_is_kept_and_saved_as_it_is() {
        for sample in [sample(), EngineSample::default()] {
            let kept = KeptSample::from(sample);
            assert_eq!(kept.get(), sample);
            let text = serde_json::to_string(&kept).unwrap();
            assert_eq!(text, serde_json::to_string(&sample).unwrap());
            assert_eq!(serde_json::from_str::<KeptSample>(&text).unwrap(), kept);
        }
    }

    #[test]
    fn a_change_is_nobody_elses() {
        let mut kept = KeptSample::from(sample());
        let other = kept.clone();
        kept.edit().waiting = Some(99.0);
        assert_eq!(kept.get(), EngineSample { waiting: Some(99.0), ..sample() });
        assert_eq!(other.get(), sample());
    }

    #[test]
    fn with_its_counts_it_fits_the_allocators_class_of_192_bytes() {
        assert!(size_of::<Compact>() <= 192 - 16, "{}", size_of::<Compact>());
    }
}
