//! Tests of captures: read back, and answered by the simulated engine.

use super::*;

const REQUESTS: &str = "phase,arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s
fit/closed/1/100/3,0.000,100,3,0.0300,0.06
judge/closed/2/100/101,0.001,100,101,0.0300,1.4
judge/closed/2/100/101,0.002,100,101,0.0400,1.4
judge/closed/2/100/101,1.500,100,101,0.0500,1.4
judge/closed/2/100/101,1.600,100,101,0.0600,1.4
judge/poisson/5/100/101,0.500,100,101,0.0200,1.4
";

const SECONDS: &str =
    "phase,at_s,span_s,steps,prompt_tokens,generated_tokens,running,waiting,kv_usage
fit/closed/1/100/3,0.500,0.500,25,200,50,1,0,0.01
fit/closed/1/100/3,1.000,0.500,20,100,40,1,0,0.03
fit/closed/1/100/3,1.500,0.500,20,100,40,0,0,0
judge/closed/2/100/101,0.500,0.500,40,200,80,2,1,0.01
judge/closed/2/100/101,1.400,0.500,40,200,80,1,0,0.01
judge/closed/2/100/101,9.000,0.500,40,200,80,0,0,0
";

fn written(requests: &str, seconds: &str) -> (tempfile::TempDir, Result<Capture, Error>) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("vllm-cpu-requests.csv"), requests).unwrap();
    std::fs::write(directory.path().join("vllm-cpu-seconds.csv"), seconds).unwrap();
    let capture = Capture::read(directory.path());
    (directory, capture)
}

#[test]
fn a_phase_is_summed_up_over_the_time_in_which_requests_came() {
    let (_directory, capture) = written(REQUESTS, SECONDS);
    let capture = capture.unwrap();
    let names: Vec<&str> = capture.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names, ["fit/closed/1/100/3", "judge/closed/2/100/101", "judge/poisson/5/100/101"]);
    let judge = &capture.phases[1];
    assert_eq!(judge.shape(), Shape::Closed { clients: 2 });
    assert_eq!(capture.phases[2].shape(), Shape::Open);
    // The look at 9 s is behind the last arrival; the third of four times is the upper median.
    let seen = judge.captured();
    assert_eq!(
        (seen.running.to_bits(), seen.waiting.to_bits()),
        (1.5_f64.to_bits(), 0.5_f64.to_bits())
    );
    assert!((seen.ttft_p50_ms - 50.0).abs() < 1e-9);
}

#[test]
fn only_intervals_without_a_rest_are_fitted() {
    let (_directory, capture) = written(REQUESTS, SECONDS);
    let expected =
        StepRow { step_ms: 25.0, prefill_tokens: 5.0, decoding: 2.0, resident_tokens: 20.0 };
    assert_eq!(capture.unwrap().fit_rows(1_000.0), [expected]);
}

#[test]
fn clients_of_a_closed_loop_send_on_when_the_simulated_engine_has_answered() {
    let (_directory, capture) = written(REQUESTS, SECONDS);
    let profile = Arc::new(Profile::load("8b-a100").unwrap());
    let seen = capture.unwrap().phases[1].simulated(&profile).unwrap();
    // Four requests of 101 tokens on two clients: two rounds of some 1.3 s, with both running.
    assert_eq!(seen.running.to_bits(), 2.0_f64.to_bits());
    // Only the second prompt comes while another is computed. The others take a step at once, of
    // 12.5 + 100 × 0.067 ms, and the one decode beside them 0.067 ms and some KV.
    assert!((seen.ttft_p50_ms - 19.28).abs() < 0.01, "{seen:?}");
}

#[test]
fn a_broken_line_is_named() {
    let broken = SECONDS.replace("1.400,0.500,40", "1.400,0.500,many");
    let (directory, capture) = written(REQUESTS, &broken);
    let path = directory.path().join("vllm-cpu-seconds.csv");
    assert_eq!(
        capture.unwrap_err().to_string(),
        format!("`{}` line 6: expected a phase and 8 numbers", path.display())
    );
    let (_directory, capture) = written("phase\nfit/closed/1,0.1\n", SECONDS);
    assert!(capture.unwrap_err().to_string().ends_with("line 2: expected a phase and 5 numbers"));
}
