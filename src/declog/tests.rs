//! Lines on change, the cap, the queue, and that nothing is half written.

use std::time::Duration;

use tokio::time::timeout;

use super::*;
use crate::decision::{Answer, Notice, Rule, Why};
use crate::web::fixtures::{decision, observation, wanting};

pub(crate) fn record(want: u32) -> Record {
    Record {
        version: VERSION,
        workload: "prod/llm".to_owned(),
        trigger: "0000000000000000".to_owned(),
        spec: Arc::new(Spec::default()),
        state: State::default(),
        observation: Arc::new(observation()),
        now: Moment(1_000_000),
        decision: Arc::new(wanting(want)),
    }
}

fn file(dir: &tempfile::TempDir, max_bytes: u64) -> (PathBuf, Target) {
    let path = dir.path().join("decisions.jsonl");
    (path.clone(), Target::File { path, max_bytes })
}

/// Writes these records to the target and waits for the end.
async fn write(target: Target, records: impl IntoIterator<Item = Record>) -> Metrics {
    let metrics = Metrics::default();
    let (log, writer) = DecisionLog::open(target, metrics.clone()).unwrap();
    for record in records {
        log.offer(record);
    }
    timeout(Duration::from_secs(30), writer.finish()).await.unwrap();
    metrics
}

fn read(path: &Path) -> Vec<Record> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn only_what_is_acted_on_or_told_is_news() {
    let quiet = Decision { notices: Box::default(), ..decision() };
    assert!(is_news(None, &quiet));
    assert!(!is_news(Some(&quiet), &quiet));
    let changes: [fn(&mut Decision); 5] = [
        |decision| decision.want += 1,
        |decision| decision.answer = Answer::Value { want: 0, active: false },
        |decision| decision.binding = Rule::GpuCeiling,
        |decision| decision.health = degraded(Why::Tls, 1),
        |decision| decision.notices = [Notice::Woke].into(),
    ];
    for change in changes {
        let mut changed = quiet.clone();
        change(&mut changed);
        assert!(is_news(Some(&quiet), &changed), "{changed:?}");
    }
    let mut later = quiet.clone();
    later.at = later.at.plus_millis(5_000);
    later.inputs.waiting = Some(99.0);
    assert!(!is_news(Some(&quiet), &later));
}

fn degraded(why: Why, answered: u32) -> Health {
    Health::Degraded { since: Moment(0), why, answered, expected: 3 }
}

#[test]
fn a_cause_is_news_and_the_number_of_answers_is_not() {
    let with = |health| Decision { health, notices: Box::default(), ..decision() };
    let timeouts = with(degraded(Why::Timeout, 1));
    assert!(!is_news(Some(&timeouts), &with(degraded(Why::Timeout, 2))));
    assert!(is_news(Some(&timeouts), &with(degraded(Why::Refused, 1))));
}

#[tokio::test]
async fn lines_are_whole_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (path, target) = file(&dir, u64::MAX);
    let metrics = write(target, (1..=8).map(record)).await;
    let wants: Vec<u32> = read(&path).iter().map(|record| record.decision.want).collect();
    assert_eq!(wants, (1..=8).collect::<Vec<_>>());
    assert_eq!(read(&path)[0], record(1));
    assert_eq!(metrics.lines_dropped(), 0);
}

#[tokio::test]
async fn at_the_cap_the_file_turns_and_one_old_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let line_bytes = u64::try_from(serde_json::to_vec(&record(1)).unwrap().len() + 1).unwrap();
    // Room for two lines: of seven, the last is in the file and the two before it in the old one.
    let (path, target) = file(&dir, 2 * line_bytes + 1);
    write(target, (1..=7).map(record)).await;
    let wants = |path: &Path| -> Vec<u32> {
        read(path).iter().map(|record| record.decision.want).collect()
    };
    assert_eq!(wants(&path), [7]);
    assert_eq!(wants(&rotated(&path)), [5, 6]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn a_line_larger_than_the_cap_gets_a_file_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (path, target) = file(&dir, 10);
    let metrics = write(target, (1..=3).map(record)).await;
    assert_eq!(read(&path).len(), 1);
    assert_eq!(read(&rotated(&path)).len(), 1);
    assert_eq!(metrics.lines_dropped(), 0);
}

#[tokio::test]
async fn a_restart_appends_and_mends_a_line_that_was_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (path, target) = file(&dir, u64::MAX);
    write(target.clone(), [record(1)]).await;
    let mut cut = std::fs::read(&path).unwrap();
    cut.extend_from_slice(br#"{"version":1,"work"#);
    std::fs::write(&path, cut).unwrap();
    write(target, [record(2)]).await;
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[1], r#"{"version":1,"work"#);
    assert_eq!(serde_json::from_str::<Record>(lines[2]).unwrap(), record(2));
}

#[tokio::test]
async fn a_line_beyond_the_bound_is_dropped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (path, target) = file(&dir, u64::MAX);
    let long = Record { workload: "x".repeat(MAX_LINE_BYTES), ..record(1) };
    let metrics = write(target, [long, record(2)]).await;
    assert_eq!(read(&path), [record(2)]);
    assert_eq!(metrics.lines_dropped(), 1);
}

#[tokio::test]
async fn a_queue_that_is_full_drops_and_counts_instead_of_waiting() {
    let metrics = Metrics::default();
    let (queue, mut records) = mpsc::channel(2);
    let log = DecisionLog { queue, metrics: metrics.clone() };
    for want in 1..=5 {
        log.offer(record(want));
    }
    assert_eq!(metrics.lines_dropped(), 3);
    assert_eq!(records.recv().await.unwrap().unwrap().decision.want, 1);
}

#[tokio::test]
async fn a_disk_that_fails_loses_lines_and_then_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("logs");
    std::fs::create_dir(&below).unwrap();
    let path = below.join("decisions.jsonl");
    let mut sink = Sink::new(Target::File { path: path.clone(), max_bytes: 10 });
    sink.write(b"first line of a full file\n").unwrap();
    sink.flush().unwrap();
    // The next line turns the file, which fails while the directory is gone.
    std::fs::remove_dir_all(&below).unwrap();
    sink.write(b"lost\n").unwrap_err();
    sink.write(b"lost\n").unwrap_err();
    std::fs::create_dir(&below).unwrap();
    sink.write(b"last\n").unwrap();
    sink.flush().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "last\n");
}

#[test]
fn a_log_that_cannot_be_opened_is_refused_with_its_path() {
    let target = Target::File { path: "/nonexistent/decisions.jsonl".into(), max_bytes: 1 };
    let error = DecisionLog::open(target, Metrics::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "decision log `/nonexistent/decisions.jsonl` cannot be opened for appending: expected a \
         file in a directory that is there, which this process may write to"
    );
}
