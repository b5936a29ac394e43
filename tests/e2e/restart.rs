//! What is kept over a restart: the state, and the decision log that `replay` checks.

use std::fs;

use super::engine::{Engine, queue};
use super::program::{Config, Ended, Scaler, run};

/// One workload under a queue and one idle, which a whole default hold would let go.
fn config(queued: &Engine, idle: &Engine) -> Config {
    Config::new(&format!(
        "workloads:\n\
         - {{namespace: demo, name: queued, max: 6, replicas: 2, endpoints: ['{}']}}\n\
         - {{namespace: demo, name: idle, max: 6, replicas: 3, endpoints: ['{}']}}\n",
        queued.address, idle.address
    ))
}

#[tokio::test]
async fn keda_f10_a_restart_under_load_answers_at_once_and_never_below_the_spec() {
    let (mut queued, idle) = (Engine::start().await, Engine::start().await);
    queued.carry(queue());
    let config = config(&queued, &idle);
    let state = config.file("state");
    let flags = ["--state-dir", state.to_str().unwrap()];
    let scaler = Scaler::start(&config.path(), &flags).await;
    scaler.workload_when("demo/queued", "at its maximum", |snapshot| snapshot["want"] == 6).await;
    scaler.healthy("demo/idle").await;
    scaler.stop().await;
    let saved = fs::read_to_string(state.join("state.jsonl")).unwrap();
    assert_eq!(saved.lines().count(), 4, "header, two workloads, footer: {saved}");

    // The engine is not there, so the queue cannot speak for the count.
    queued.leave().await;
    let scaler = Scaler::start(&config.path(), &flags).await;
    let keda = scaler.keda().await;
    let mut answers = vec![keda.poll("demo/queued").await];
    while answers.last() != Some(&(6, true)) {
        assert!(answers.len() < 10_000, "the wanted count does not come back: {answers:?}");
        answers.push(keda.poll("demo/queued").await);
        assert_eq!(keda.poll("demo/idle").await, (3, true));
    }
    assert!(answers.iter().all(|(want, active)| *want >= 2 && *active), "{answers:?}");
    assert_eq!(scaler.logged("what was learned before is restored", 1).await.len(), 1);
    queued.come_back();
    scaler.healthy("demo/queued").await;
    assert_eq!(keda.poll("demo/queued").await, (6, true));
    assert_eq!(keda.poll("demo/idle").await, (3, true));
    scaler.stop().await;
}

#[tokio::test]
async fn a_damaged_state_file_is_set_aside_and_the_scaler_serves() {
    let (queued, idle) = (Engine::start().await, Engine::start().await);
    let config = config(&queued, &idle);
    let state = config.file("state");
    let flags = ["--state-dir", state.to_str().unwrap()];
    let scaler = Scaler::start(&config.path(), &flags).await;
    scaler.healthy("demo/queued").await;
    scaler.healthy("demo/idle").await;
    scaler.stop().await;
    let file = state.join("state.jsonl");
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let cut = whole[..whole.len() - 20].to_vec();
    for (n, damaged) in [cut, flipped, b"\x00\xff no state".to_vec()].into_iter().enumerate() {
        fs::write(&file, &damaged).unwrap();
        let scaler = Scaler::start(&config.path(), &flags).await;
        let aside = state.join(format!("state.jsonl.damaged-{}", n + 1));
        assert_eq!(fs::read(&aside).unwrap(), damaged);
        assert_eq!(scaler.logged("saved state not used; it is learned again", 1).await.len(), 1);
        assert_eq!(scaler.keda().await.poll("demo/queued").await, (2, true));
        assert_eq!(scaler.keda().await.poll("demo/idle").await, (3, true));
        scaler.stop().await;
    }
}

#[tokio::test]
async fn the_decision_log_replays_the_same_and_tampering_is_found() {
    let (queued, idle) = (Engine::start().await, Engine::start().await);
    let config = config(&queued, &idle);
    let log = config.file("decisions.jsonl");
    let scaler = Scaler::start(&config.path(), &["--decision-log", log.to_str().unwrap()]).await;
    scaler.healthy("demo/queued").await;
    queued.carry(queue());
    scaler.workload_when("demo/queued", "at its maximum", |snapshot| snapshot["want"] == 6).await;
    scaler.stop().await;

    let text = fs::read_to_string(&log).unwrap();
    let raised = text.lines().rfind(|line| line.contains("\"workload\":\"demo/queued\"")).unwrap();
    let replay = async |text: &str| -> Ended {
        let file = config.file("replayed.jsonl");
        fs::write(&file, text).unwrap();
        run(&["replay", file.to_str().unwrap(), "--format", "json"]).await
    };
    let summary = |ended: &Ended| -> serde_json::Value {
        let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        report["summary"].clone()
    };
    let lines = text.lines().count();
    assert!(lines >= 3, "first decisions of both and the raise: {text}");
    let same = replay(&text).await;
    assert_eq!(same.code, Some(0), "{same:?}");
    assert_eq!(summary(&same)["same"], lines);

    let (before, decision) = raised.rsplit_once("\"decision\":").unwrap();
    let decision = decision.replacen("\"want\":6", "\"want\":5", 1);
    let tampered = text.replace(raised, &format!("{before}\"decision\":{decision}"));
    assert_ne!(tampered, text);
    let different = replay(&tampered).await;
    assert_eq!(different.code, Some(1), "{different:?}");
    assert_eq!(summary(&different)["different"], 1);

    for garbage in [format!("{text}garbage\n"), String::new(), raised.chars().take(200).collect()] {
        let unreadable = replay(&garbage).await;
        assert_eq!(unreadable.code, Some(2), "{unreadable:?}");
    }
    let absent = run(&["replay", "no-such-log.jsonl"]).await;
    assert_eq!(absent.code, Some(2));
    assert!(absent.stderr.contains("no-such-log.jsonl"), "{}", absent.stderr);
}
