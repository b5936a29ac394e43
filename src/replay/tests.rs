//! Logs of real decisions, run again: the same to the byte, and each kind of difference found.

use std::sync::Arc;

use super::*;
use crate::decision::{
    Engine, EngineSample, KeptSample, Moment, Observation, Phase, Reading, Spec, State,
};
use crate::web::fixtures::replicas;

/// The log of a workload through a ramp, a stale minute, and its end; one line a tick.
fn recorded() -> Vec<String> {
    let spec = Arc::new(Spec::default());
    let mut state = State::default();
    let mut lines = Vec::new();
    for tick in 0..120_u32 {
        let now = Moment(1_700_000_000_000 + i64::from(tick) * 5_000);
        let observation = Arc::new(seen(tick, now));
        let before = state.clone();
        let (decision, after) = decide(&spec, state, &observation, now);
        state = after;
        let record = Record {
            version: VERSION,
            workload: "prod/llm".to_owned(),
            trigger: "0000000000000000".to_owned(),
            spec: Arc::clone(&spec),
            state: before,
            observation,
            now,
            decision: Arc::new(decision),
        };
        lines.push(serde_json::to_string(&record).unwrap());
    }
    lines
}

fn seen(tick: u32, now: Moment) -> Observation {
    let load = f64::from(tick % 40) * 1.7;
    let total = f64::from(tick) * 1234.567;
    let sample = EngineSample {
        at: now.minus_millis(300),
        waiting: Some((load - 20.0).max(0.0)),
        running: Some(load.min(20.0)),
        kv_usage: Some((load / 70.0).min(1.0)),
        prompt_tokens: Some(total),
        generated_tokens: Some(total / 3.0),
        finished: Some(f64::from(tick) * 1.1),
        steps: Some(total / 7.0),
        ..EngineSample::default()
    };
    let reading = if (40..52).contains(&tick) {
        let age_ms = u64::from(tick - 39) * 5_000;
        Reading::Stale {
            value: KeptSample::from(sample),
            age_ms,
            why: crate::decision::Why::Timeout,
        }
    } else {
        Reading::Fresh { value: KeptSample::from(sample), age_ms: 300 }
    };
    let engine =
        Engine { id: "llm-0".into(), phase: Phase::Ready, ready_ms: Some(600_000), reading };
    Observation {
        replicas: replicas(Some(2), 2),
        engines: [engine].into(),
        ..Observation::default()
    }
}

fn replay(log: impl AsRef<[u8]>, format: Format) -> (Summary, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), log).unwrap();
    let mut out = Vec::new();
    let summary = run(&Args { file: file.path().to_owned(), format }, &mut out).unwrap();
    (summary, String::from_utf8(out).unwrap())
}

#[test]
fn a_run_is_decided_the_same_to_the_byte() {
    let lines = recorded();
    let (summary, out) = replay(lines.join("\n") + "\n", Format::Text);
    assert_eq!(summary, Summary { same: 120, different: 0, unreadable: 0 }, "{out}");
    assert_eq!(summary.exit_code(), 0);
    assert!(out.starts_with("line 1: same (prod/llm)\nline 2: same"), "{out}");
    assert!(out.ends_with("\n120 same, 0 different, 0 unreadable\n"), "{out}");
}

#[test]
fn each_line_stands_for_itself_in_any_order() {
    let mut lines = recorded();
    lines.reverse();
    lines.truncate(7);
    let (summary, _) = replay(lines.join("\r\n"), Format::Text);
    assert_eq!(summary, Summary { same: 7, different: 0, unreadable: 0 });
}

#[test]
fn a_decision_that_differs_is_named_by_its_first_field() {
    let line = recorded().swap_remove(60);
    let mut record: Record = serde_json::from_str(&line).unwrap();
    let mut decision = (*record.decision).clone();
    let want = decision.want;
    decision.want = want + 3;
    record.decision = Arc::new(decision);
    let (summary, out) = replay(serde_json::to_string(&record).unwrap(), Format::Text);
    assert_eq!((summary.different, summary.exit_code()), (1, 1));
    let expected = format!(
        "line 1: different (prod/llm) at decision.want: recorded {}, now {want}\n",
        want + 3
    );
    assert!(out.starts_with(&expected), "{out}");
}

#[test]
fn a_difference_inside_a_list_is_named_with_its_index() {
    let line = recorded().swap_remove(60);
    let mut record: Record = serde_json::from_str(&line).unwrap();
    let mut decision = (*record.decision).clone();
    let last = decision.votes.len() - 1;
    decision.votes = decision.votes[..last].into();
    record.decision = Arc::new(decision);
    let (_, out) = replay(serde_json::to_string(&record).unwrap(), Format::Text);
    assert!(out.contains(&format!("at decision.votes[{last}]: recorded null, now {{")), "{out}");
}

#[test]
fn a_log_written_anew_by_another_tool_is_not_the_same() {
    let line = recorded().swap_remove(3);
    let value: Value = serde_json::from_str(&line).unwrap();
    let (summary, out) = replay(serde_json::to_string(&value).unwrap(), Format::Text);
    assert_eq!(summary.different, 1);
    assert!(out.contains("same values, other bytes"), "{out}");
}

#[test]
fn bad_lines_are_named_by_number_with_what_is_wrong() {
    let good = recorded().swap_remove(0);
    let unknown = good.replacen(r#""version":1,"#, r#""version":1,"extra":0,"#, 1);
    let newer = good.replacen(r#""version":1,"#, r#""version":2,"#, 1);
    let (head, _) = good.split_at(good.len() / 2);
    let log = [good.as_str(), "", "not json", unknown.as_str(), newer.as_str(), "{}", head];
    let (summary, out) = replay(log.join("\n"), Format::Text);
    assert_eq!(summary, Summary { same: 1, different: 0, unreadable: 6 }, "{out}");
    assert_eq!(summary.exit_code(), 2);
    for expected in [
        "line 2: unreadable: column 0: EOF while parsing a value\n",
        "line 3: unreadable: column 2: expected ident\n",
        "line 4: unreadable: column 20: unknown field `extra`",
        "line 5: unreadable: version 2: this ghostscaler reads version 1",
        "line 6: unreadable: column 2: missing field `version`\n",
        "line 7: unreadable: column ",
    ] {
        assert!(out.contains(expected), "{expected}\nis not in\n{out}");
    }
}

#[test]
fn a_line_without_end_is_named_and_the_next_one_still_read() {
    let mut log = vec![b'x'; 3 * MAX_LINE_BYTES + 17];
    log.push(b'\n');
    log.extend_from_slice(recorded().swap_remove(0).as_bytes());
    let (summary, out) = replay(log, Format::Text);
    assert_eq!(summary, Summary { same: 1, different: 0, unreadable: 1 });
    assert!(out.starts_with("line 1: unreadable: line is longer than 4194304 bytes"), "{out}");
    assert!(out.contains("line 2: same"), "{out}");
}

#[test]
fn a_log_without_a_line_proves_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_owned();
    for (format, shown) in [(Format::Text, "0 same, "), (Format::Json, r#"{"lines":[],"summary""#)]
    {
        let mut out = Vec::new();
        let error = run(&Args { file: path.clone(), format }, &mut out).unwrap_err();
        let expected = format!("decision log `{}` holds no decision", path.display());
        assert_eq!(error.to_string(), expected);
        assert!(out.starts_with(shown.as_bytes()), "{}", String::from_utf8_lossy(&out));
    }
}

#[test]
fn json_is_one_object_with_every_line() {
    let lines = recorded();
    let log = format!("{}\nnonsense\n", lines[5]);
    let (_, out) = replay(log, Format::Json);
    let object: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        object["lines"][0],
        serde_json::json!({"line": 1, "workload": "prod/llm", "result": "same"})
    );
    assert_eq!(object["lines"][1]["result"], "unreadable");
    assert_eq!(object["summary"], serde_json::json!({"same": 1, "different": 0, "unreadable": 1}));
}

#[test]
fn a_file_that_is_not_there_is_an_error_with_its_path() {
    let args = Args { file: "/nonexistent/log".into(), format: Format::Text };
    let error = run(&args, &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "decision log `/nonexistent/log` cannot be read");
}
