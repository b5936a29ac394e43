//! What the horizontal pod autoscaler does with the value: the arithmetic of its dead band, and the
//! answer that gets past it.
//!
//! Covers AverageValue with target 1, which is what this scaler serves; no pod list and no readiness
//! enter that formula. Must not decide how many replicas are wanted.

use serde::{Deserialize, Serialize};

use super::Spec;

/// The HPA's own default tolerance, where neither `behavior` nor the controller's flag sets one.
pub const DEFAULT_TOLERANCE: f64 = 0.1;

/// What follows from a wanted count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub enum HpaEffect {
    /// The counts are equal.
    Stays,
    /// The HPA goes to this count, within the limits of its `behavior`.
    Goes {
        /// The count.
        to: u32,
    },
    /// The wanted count lies in the dead band, so nothing happens.
    Ignored {
        /// Smallest wanted count that is ignored.
        from: u32,
        /// Largest wanted count that is ignored.
        to: u32,
    },
    /// Zero is involved on one side: KEDA itself activates or deactivates, the HPA is asleep.
    Keda,
}

/// What the HPA does with `want` while the target has `current` replicas.
///
/// The formula of Kubernetes 1.33 and later (`replica_calculator.go`): with the ratio
/// `want / current` inside `[1 − tolerance, 1 + tolerance]`, both ends included, nothing changes.
///
/// `tolerance` is a fraction, 0..1; anything else counts as [`DEFAULT_TOLERANCE`].
#[must_use]
pub fn hpa_effect(current: u32, want: u32, tolerance: f64) -> HpaEffect {
    let tolerance = if (0.0..1.0).contains(&tolerance) { tolerance } else { DEFAULT_TOLERANCE };
    if current == 0 || want == 0 {
        return if current == want { HpaEffect::Stays } else { HpaEffect::Keda };
    }
    if current == want {
        return HpaEffect::Stays;
    }
    let ignored = |count: u32| {
        let ratio = f64::from(count) / f64::from(current);
        (1.0 - tolerance..=1.0 + tolerance).contains(&ratio)
    };
    if !ignored(want) {
        return HpaEffect::Goes { to: want };
    }
    let (mut from, mut to) =
        (scaled(current, 1.0 - tolerance, f64::floor), scaled(current, 1.0 + tolerance, f64::ceil));
    // The same test decides about the ends and about the value, so that both agree at the rounding
    // edge; the loops run twice at most.
    while !ignored(from) {
        from += 1;
    }
    while !ignored(to) {
        to -= 1;
    }
    HpaEffect::Ignored { from, to }
}

/// The count to answer for `want` while the target has `current` replicas: the next one past the
/// dead band, where the HPA is known to ignore the step up and waiting for a larger one would break
/// the SLO (`urgent`); else `want`.
///
/// Steps down are left to the evidence for a larger one: what is ignored costs a replica and no
/// user. With an unknown tolerance nothing is pushed, since on most clusters `generate` has set it
/// to zero, and the queue that grows meanwhile asks for more by itself. What `max` cuts back into
/// the dead band is not pushed either.
#[must_use]
pub(super) fn past_dead_band(want: u32, current: u32, spec: &Spec, urgent: bool) -> u32 {
    let Some(tolerance) = spec.hpa_tolerance.filter(|_| urgent && want > current) else {
        return want;
    };
    match hpa_effect(current, want, tolerance) {
        HpaEffect::Ignored { to, .. } if to < spec.max => to + 1,
        HpaEffect::Ignored { .. } | HpaEffect::Stays | HpaEffect::Goes { .. } | HpaEffect::Keda => {
            want
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the product is positive, whole after rounding, and a cast saturates"
)]
fn scaled(count: u32, factor: f64, round: fn(f64) -> f64) -> u32 {
    round(f64::from(count) * factor) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pushed(want: u32, current: u32, tolerance: Option<f64>, urgent: bool) -> u32 {
        let spec = Spec { max: 300, hpa_tolerance: tolerance, ..Spec::default() };
        past_dead_band(want, current, &spec, urgent)
    }

    #[test]
    fn a_step_up_that_cannot_wait_is_pushed_just_past_the_known_dead_band() {
        // 10 % of 10 and of 20 ignores up to 11 and 22.
        assert_eq!(pushed(11, 10, Some(0.1), true), 12);
        assert_eq!(pushed(21, 20, Some(0.1), true), 23);
        assert_eq!(pushed(23, 20, Some(0.1), true), 23);
        assert_eq!(pushed(11, 10, Some(0.0), true), 11);
    }

    #[test]
    fn what_can_wait_is_a_step_down_or_meets_an_unknown_tolerance_is_answered_as_it_is() {
        assert_eq!(pushed(11, 10, Some(0.1), false), 11);
        assert_eq!(pushed(9, 10, Some(0.1), true), 9);
        assert_eq!(pushed(11, 10, None, true), 11);
        assert_eq!(pushed(1, 0, Some(0.1), true), 1);
        let spec = Spec { max: 11, hpa_tolerance: Some(0.1), ..Spec::default() };
        assert_eq!(past_dead_band(11, 10, &spec, true), 11);
    }

    proptest! {
        #[test]
        fn a_pushed_answer_keeps_bounds_and_direction_and_goes_one_past_the_dead_band_at_most(
            current in 0_u32..400, wanted in 0_u32..400, min in 0_u32..20, span in 0_u32..400,
            tolerance in proptest::option::of(0.0_f64..0.6), urgent in any::<bool>(),
        ) {
            let spec = Spec { min, max: (min + span).max(1), hpa_tolerance: tolerance, ..Spec::default() };
            let want = spec.clamp(wanted);
            let answer = past_dead_band(want, current, &spec, urgent);
            prop_assert_eq!(answer, spec.clamp(answer));
            prop_assert_eq!(answer.cmp(&current), want.cmp(&current));
            prop_assert!(answer >= want);
            if answer > want {
                let tolerance = tolerance.unwrap();
                prop_assert!(urgent && want > current);
                let stays = |count| matches!(hpa_effect(current, count, tolerance), HpaEffect::Ignored { .. });
                prop_assert!(stays(want) && stays(answer - 1) && !stays(answer));
            }
        }
    }

    /// The measured table: current, the ignored band, next smaller and next larger that act.
    #[test]
    fn the_default_dead_band_swallows_what_was_measured() {
        for (current, band, down, up) in [
            (10, (9, 11), 8, 12),
            (11, (10, 12), 9, 13),
            (12, (11, 13), 10, 14),
            (15, (14, 16), 13, 17),
            (19, (18, 20), 17, 21),
            (20, (18, 22), 17, 23),
            (21, (19, 23), 18, 24),
            (25, (23, 27), 22, 28),
            (30, (27, 33), 26, 34),
            (40, (36, 44), 35, 45),
            (50, (45, 55), 44, 56),
            (64, (58, 70), 57, 71),
            (100, (90, 110), 89, 111),
            (200, (180, 220), 179, 221),
        ] {
            let (from, to) = band;
            let ignored = HpaEffect::Ignored { from, to };
            for want in (from..=to).filter(|want| *want != current) {
                assert_eq!(hpa_effect(current, want, 0.1), ignored, "{current} -> {want}");
            }
            assert_eq!(hpa_effect(current, down, 0.1), HpaEffect::Goes { to: down });
            assert_eq!(hpa_effect(current, up, 0.1), HpaEffect::Goes { to: up });
        }
    }

    #[test]
    fn below_ten_replicas_every_step_is_taken() {
        for current in 1..10_u32 {
            for want in (1..=12).filter(|want| *want != current) {
                let effect = hpa_effect(current, want, DEFAULT_TOLERANCE);
                assert_eq!(effect, HpaEffect::Goes { to: want }, "{current} -> {want}");
            }
        }
    }

    #[test]
    fn without_tolerance_every_step_is_taken() {
        for current in [10, 12, 20, 100] {
            assert_eq!(hpa_effect(current, current + 1, 0.0), HpaEffect::Goes { to: current + 1 });
            assert_eq!(hpa_effect(current, current - 1, 0.0), HpaEffect::Goes { to: current - 1 });
        }
    }

    #[test]
    fn zero_is_the_business_of_keda() {
        assert_eq!(hpa_effect(0, 1, 0.1), HpaEffect::Keda);
        assert_eq!(hpa_effect(1, 0, 0.1), HpaEffect::Keda);
        assert_eq!(hpa_effect(0, 0, 0.1), HpaEffect::Stays);
        assert_eq!(hpa_effect(7, 7, 0.1), HpaEffect::Stays);
    }

    #[test]
    fn an_impossible_tolerance_counts_as_the_default() {
        for tolerance in [f64::NAN, f64::INFINITY, -0.1, 1.0] {
            assert_eq!(
                hpa_effect(10, 11, tolerance),
                HpaEffect::Ignored { from: 9, to: 11 },
                "{tolerance}"
            );
        }
    }
}
