//! A short story from its first byte to its last.

use serde_json::Value;

use super::story::{Part, part};
use super::*;

/// Asleep, woken by a few requests that become many, and idle.
const SHORT: [Part; 3] =
    [part("asleep", 20, 0.0, 0.0), part("morning", 400, 1.0, 8.0), part("idle", 60, 0.0, 0.0)];

async fn told(seed: u64, format: Format) -> String {
    // Set by another test, it is the same.
    rustls::crypto::ring::default_provider().install_default().ok();
    let args = Args { seed, speed: None, decision_log: None, format };
    let mut out = Vec::new();
    let story = Story::of(&SHORT, seed);
    let screen = Screen::silent(&story);
    tell(story, &args, screen, &mut out).await.unwrap();
    String::from_utf8(out).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_gives_the_same_bytes_whenever_it_is_told() {
    let json = told(5, Format::Json).await;
    assert_eq!(json, told(5, Format::Json).await);
    assert_ne!(json, told(6, Format::Json).await);
    let verdict: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(verdict["scenario"]["seed"], 5);
    let lanes = verdict["lanes"].as_array().unwrap();
    let names: Vec<&Value> = lanes.iter().map(|lane| &lane["name"]).collect();
    assert_eq!(names, ["ghostscaler", "queue-depth", "concurrency"]);
    for lane in lanes {
        let attainment = lane["attainment"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&attainment), "{lane}");
        assert_eq!(lane["lost"], 0);
        for number in ["gpu_hours", "cold_starts", "flaps", "held"] {
            assert!(lane[number].as_f64().unwrap() >= 0.0, "{number} of {lane}");
        }
    }
    // It began at zero; the others never are there.
    assert!(lanes[0]["held"].as_u64().unwrap() > 0 && lanes[0]["cold_starts"] != 0);
    assert_eq!((&lanes[1]["held"], &lanes[0]["timeline"]["ready"][0]), (&0.into(), &0.into()));
}

#[tokio::test]
async fn a_log_that_cannot_be_written_is_told_before_anything_begins() {
    let args = Args {
        seed: 5,
        speed: None,
        decision_log: Some("/nonexistent/log".into()),
        format: Format::Text,
    };
    let mut out = Vec::new();
    // The whole day, for which nobody waits here.
    let story = Story::new(5);
    let screen = Screen::silent(&story);
    let error = tell(story, &args, screen, &mut out).await.unwrap_err();
    assert!(matches!(error, Error::Log(_)), "{error}");
    assert!(out.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verdict_fits_eighty_columns() {
    let text = told(5, Format::Text).await;
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(text.contains("ghostscaler") && text.contains("GPU-hours"), "{text}");
}
