//! A real vLLM on a CPU against the preset that was fitted to it, on loads that the fit did not see.
//!
//! The capture in `data/` is `data/capture.py`'s; the errors allowed are the bars of the design.

use std::path::Path;
use std::sync::Arc;

use loadgen::calibration::{Capture, fit_step};
use loadgen::engine::Profile;

/// A gauge is looked at every half second; below this its mean is that of single looks.
const NOTHING: f64 = 0.05;

fn capture() -> Capture {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    Capture::read(&data).expect("the capture in tests/data")
}

fn assert_within(phase: &str, what: &str, simulated: f64, real: f64, most: f64) {
    assert!(
        (simulated - real).abs() <= most * real + NOTHING,
        "{phase}: {what} {simulated:.2}, captured {real:.2}"
    );
}

#[test]
fn a_fitted_profile_foretells_loads_that_it_was_not_fitted_to() {
    let profile = Arc::new(Profile::load("tiny-cpu").expect("a preset"));
    let capture = capture();
    let judges: Vec<_> =
        capture.phases.iter().filter(|phase| phase.name.starts_with("judge/")).collect();
    assert_eq!(judges.len(), 6, "closed loops, Poisson arrivals and bursts");
    for phase in judges {
        let simulated = phase.simulated(&profile).expect("lengths that fit");
        let real = phase.captured();
        assert_within(&phase.name, "running", simulated.running, real.running, 0.20);
        assert_within(&phase.name, "waiting", simulated.waiting, real.waiting, 0.20);
        let ttft_ms = (simulated.ttft_p50_ms, real.ttft_p50_ms);
        assert_within(&phase.name, "TTFT p50 in ms", ttft_ms.0, ttft_ms.1, 0.25);
    }
}

#[test]
fn the_preset_is_what_its_capture_fits_to() {
    let profile = Profile::load("tiny-cpu").expect("a preset");
    let kv_tokens = profile.kv_tokens() as f64;
    let fitted = fit_step(&capture().fit_rows(kv_tokens)).expect("loads of several shapes");
    let constants = |step: &loadgen::engine::Step| {
        [step.base_ms, step.prefill_ms[1].1, step.decode_ms[1].1, step.resident_ms[1].1]
    };
    for (preset, fitted) in constants(&profile.step).into_iter().zip(constants(&fitted)) {
        assert!((preset - fitted).abs() <= 0.001 * fitted, "{preset}, fitted {fitted}");
    }
}
