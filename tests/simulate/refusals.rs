//! What the command refuses, and how it says so.

use super::*;

/// Why the command does not run with these flags.
fn refusal(flags: &str) -> String {
    match simulated(flags) {
        Ok(text) => panic!("{flags} ran: {text}"),
        Err(why) => why,
    }
}

#[test]
fn what_is_wrong_with_a_flag_is_said_with_what_was_expected() {
    let (_dir, path) = file("trace.csv", &plain(60));
    let trace = format!("--trace {} --trace-format csv --no-references", shown(&path));
    for (flags, message) in [
        ("--policy foo", "`--policy foo` is not known: expected some of ghostscaler, "),
        ("--policy hpa-que", "`--policy hpa-que` is not known: did you mean `hpa-queue`?"),
        ("--profile 8b-a10", "profile `8b-a10` is not known: expected a file or one of 8b-a100"),
        ("--bar 1.5", "`--bar` is 1.5: expected 0.5 to 1"),
        ("--slo-ttft 0", "`--slo-ttft` is 0: expected 1 ms to 10 min"),
        ("--slo-tpot 2h", "`--slo-tpot` is 7200: expected 1 ms to 1 min"),
        ("--slo-ttft soon", "invalid value 'soon' for '--slo-ttft <DURATION>'"),
        ("--cold-start 3h", "`--cold-start` is 10800: expected at most two hours"),
        ("--min 5 --max 3", "`--min` is 5 and `--max` is 3: expected at most as many"),
        ("--max 0", "invalid value '0' for '--max <N>'"),
        ("--scale 0", "`--scale` is 0: expected 0.000001 to 10000"),
        ("--scale 1 --scale 2", "`--scale` is given 2 times: expected once"),
        ("--warmup 1h", "no request comes after --warmup 3600 s: the trace ends at 30 s"),
        ("--drift 2", "`--drift` is 2: expected 0 to 0.9"),
        ("--token-cost 0", "`--token-cost` is 0: expected 0.01 to 100"),
        ("--cached 1.5", "`--cached` is 1.5: expected shares of 0 to 1"),
        ("--change 8b-h100", "expected TIME=PROFILE, such as 12h=8b-h100"),
        ("--change 1m=70b-4xh100", "`--change` from `8b-a100` to `70b-4xh100`: expected as many"),
        ("--generate stairs", "process `stairs` is not known: expected a file or one of step"),
        ("--seeds 0", "invalid value '0' for '--seeds <N>'"),
        ("--min 251", "invalid value '251' for '--min <N>'"),
        ("--gpu-budget 0", "invalid value '0' for '--gpu-budget <N>'"),
        ("--standing-gpus 0", "invalid value '0' for '--standing-gpus <N>'"),
        ("--days 2", "--generate <NAME|FILE>"),
        ("--report /nowhere/page.html", "cannot write `/nowhere/page.html`: No such file"),
    ] {
        let why = refusal(&format!("{trace} {flags}"));
        assert!(why.contains(message), "{flags}: {why}");
    }
}

#[test]
fn a_trace_that_is_none_is_refused_with_its_line() {
    let missing = refusal("--trace /nowhere.csv --trace-format csv");
    assert!(missing.contains("cannot open /nowhere.csv: No such file"), "{missing}");
    let (_dir, path) = file("trace.csv", "t_s,input_tokens,output_tokens\n1,500,50\n2,many,50\n");
    let fault = refusal(&format!("--trace {} --trace-format csv", shown(&path)));
    assert!(fault.contains("line 3: `input_tokens` is \"many\": expected a whole"), "{fault}");
    let other = refusal(&format!("--trace {} --trace-format counts", shown(&path)));
    assert!(other.contains("no column `count` in the header"), "{other}");
    let formless = refusal(&format!("--trace {}", shown(&path)));
    assert!(formless.contains("needs a `--trace-format`: azure, mooncake"), "{formless}");
    let nothing = refusal("--trace-format csv");
    assert!(nothing.contains("--trace <FILE>"), "{nothing}");
}

#[test]
fn a_request_that_the_engine_would_refuse_is_named() {
    let (_dir, path) = file("trace.csv", "t_s,input_tokens,output_tokens\n1,500000,50\n");
    let why = refusal(&format!("--trace {} --trace-format csv", shown(&path)));
    assert!(why.contains("has 500050 tokens with its answer"), "{why}");
    assert!(why.contains("choose another --profile"), "{why}");
}

#[test]
fn a_profile_that_is_wrong_is_refused_by_its_field() {
    let text = loadgen::engine::Profile::preset_text("8b-a100").unwrap();
    let (_dir, path) = file("mine.yaml", &text.replacen("base_ms: 12.5", "base_ms: -1", 1));
    let why = refusal(&format!("--generate step --profile {}", shown(&path)));
    assert!(why.contains("`step.base_ms` is -1: expected"), "{why}");
}
