//! Tests of profiles: presets load, faults are named.

use std::error::Error as _;

use super::*;

fn preset(name: &str) -> String {
    PRESETS.iter().find(|&&(other, _)| other == name).unwrap().1.to_owned()
}

#[test]
fn every_preset_loads_under_its_own_name() {
    for name in Profile::preset_names() {
        assert_eq!(Profile::load(name).unwrap().name, name);
    }
}

#[test]
fn a_fault_names_the_field_its_value_and_what_was_expected() {
    for (from, to, message) in [
        (
            "max_num_batched_tokens: 2048",
            "max_num_batched_tokens: 100",
            "`limits.max_num_batched_tokens` is 100: expected 256 to 16777216, at least \
             max_num_seqs",
        ),
        ("base_ms: 12.5", "base_ms: 0", "`step.base_ms` is 0: expected 0.001 to 3600000"),
        ("base_ms: 12.5", "base_ms: .nan", "`step.base_ms` is NaN"),
        ("[[0, 0], [1000, 67.0]]", "[[0, 0], [0, 67.0]]", "`step.prefill_ms` is [(0, 0.0)"),
        ("[[0, 0], [1000, 67.0]]", "[]", "`step.prefill_ms` is []"),
        (
            "[[0, 0], [1000, 67.0]]",
            "[[0, 0], [1, 3600000]]",
            "`step.prefill_ms` is 7372800000 ms at 2048: expected at most 3600000 ms there",
        ),
        ("exit_s: 0.9", "exit_s: -1", "`shutdown.exit_s` is -1: expected 0 to 86400"),
    ] {
        let text = preset("8b-a100");
        let broken = text.replacen(from, to, 1);
        assert_ne!(broken, text, "{from}");
        let error = Profile::parse("mine", &broken).unwrap_err().to_string();
        assert!(error.starts_with("profile `mine`: "), "{error}");
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_request_that_could_never_fit_is_refused_with_the_profile() {
    let broken = preset("8b-a100").replacen("blocks: 25001", "blocks: 100", 1);
    let error = Profile::parse("mine", &broken).unwrap_err().to_string();
    assert!(error.contains("`limits.max_model_tokens` is 131072"), "{error}");
}

#[test]
fn an_unknown_field_is_refused_by_name() {
    let broken = preset("8b-a100").replacen("gpus: 1", "gpus: 1\nseqs: 3", 1);
    let error = Profile::parse("mine", &broken).unwrap_err();
    assert!(error.source().unwrap().to_string().contains("seqs"), "{error:?}");
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let error = Profile::load("8b-a1000").unwrap_err().to_string();
    assert!(error.contains("`8b-a1000`") && error.contains("8b-a100, 8b-h100"), "{error}");
    let error = Profile::load("./none.yaml").unwrap_err();
    assert_eq!(error.to_string(), "failed to read profile `./none.yaml`");
}
