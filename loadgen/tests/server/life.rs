//! Start and end of the process, as captured of real servers.

use super::client::{Engine, eventually, is_refused};

const RUNNING: &str = "vllm:num_requests_running{";

#[test]
fn a_cold_server_refuses_connections_until_it_is_ready() {
    let engine = Engine::start(1, &["--cold-start", "3s"]);
    assert!(is_refused(engine.address()));
    eventually("the start", || Some(()).filter(|()| !is_refused(engine.address())));
    assert_eq!(engine.get("/health").status, 200);
    assert_eq!(engine.metric(RUNNING), Some(0.0), "all at once");
}

#[test]
fn sigterm_without_a_timeout_ends_requests_with_what_they_have() {
    let mut engine = Engine::start(1, &[]);
    let mut stream = engine.complete(2_000, true);
    stream.read_to("data: {");
    let plain = engine.complete(2_000, false);
    engine.wait_for(RUNNING, 2.0);
    engine.signal("-TERM");
    let rest = stream.rest();
    assert!(
        rest.contains("\"finish_reason\":\"abort\"") && rest.contains("data: [DONE]"),
        "{rest}"
    );
    let plain = plain.reply().unwrap();
    assert_eq!(plain.status, 200);
    assert!(plain.body.contains("\"finish_reason\":\"abort\""), "{}", plain.body);
    eventually("the listener to close", || Some(()).filter(|()| is_refused(engine.address())));
    assert!(engine.exit().success());
}

#[test]
fn a_queued_stream_ends_with_nothing_but_its_end() {
    let profile = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let text = loadgen::engine::Profile::preset_text("tiny-cpu").unwrap();
    std::fs::write(profile.path(), text.replace("max_num_seqs: 16", "max_num_seqs: 1")).unwrap();
    let mut engine = Engine::start(1, &["--profile", profile.path().to_str().unwrap()]);
    let _running = engine.complete(2_000, true);
    engine.wait_for(RUNNING, 1.0);
    let queued = engine.complete(2_000, true);
    engine.wait_for("vllm:num_requests_waiting{", 1.0);
    engine.signal("-TERM");
    assert_eq!(queued.reply().unwrap().body, "data: [DONE]\n\n");
    assert!(engine.exit().success());
}

#[test]
fn sigterm_with_a_timeout_lets_requests_finish_and_takes_no_more() {
    let mut engine = Engine::start(1, &["--shutdown-timeout", "30s"]);
    let stream = engine.complete(1_000, true);
    let plain = engine.complete(1_000, false);
    engine.wait_for(RUNNING, 2.0);
    engine.signal("-TERM");
    let refused = eventually("the drain", || {
        Some(engine.complete(1, false).reply().unwrap()).filter(|reply| reply.status != 200)
    });
    assert_eq!(refused.status, 500);
    assert_eq!(
        refused.body,
        "{\"error\":{\"message\":\"cannot schedule new futures after shutdown\",\
         \"type\":\"InternalServerError\",\"param\":null,\"code\":500}}"
    );
    assert_eq!(engine.get("/health").status, 200, "it looks healthy");
    assert!(plain.reply().unwrap().body.contains("\"completion_tokens\":1000"));
    assert_eq!(stream.reply().unwrap().body.matches("data: {").count(), 1_000);
    assert_eq!(engine.get("/health").status, 200, "it lingers");
    assert!(engine.exit().success());
}

#[test]
fn data_parallel_servers_cut_connections_at_sigterm() {
    let mut engine = Engine::start(1, &["--data-parallel", "2"]);
    let mut stream = engine.complete(2_000, true);
    stream.read_to("data: {");
    let plain = engine.complete(2_000, false);
    engine.wait_for("vllm:num_requests_running{engine=\"1\"", 1.0);
    engine.signal("-TERM");
    assert!(!stream.rest().contains("[DONE]"));
    assert!(plain.reply().is_err(), "closed without an answer");
    assert!(engine.exit().success());
}

#[test]
fn an_old_server_leaves_connections_open_at_sigterm() {
    for dialect in ["vllm-0.9.1-v1", "vllm-0.9.1-v0"] {
        let mut engine = Engine::start(1, &["--dialect", dialect]);
        let mut plain = engine.complete(2_000, false);
        engine.wait_for(RUNNING, 1.0);
        engine.signal("-TERM");
        eventually("the listener to close", || Some(()).filter(|()| is_refused(engine.address())));
        assert!(plain.is_silent() && engine.is_running(), "{dialect}");
        drop(plain);
        assert!(engine.exit().success());
    }
}

#[test]
fn a_second_signal_ends_a_server_that_would_hang() {
    let mut engine = Engine::start(1, &["--dialect", "vllm-0.8"]);
    let mut plain = engine.complete(2_000, false);
    engine.wait_for(RUNNING, 1.0);
    engine.signal("-TERM");
    eventually("the listener to close", || Some(()).filter(|()| is_refused(engine.address())));
    assert!(plain.is_silent() && engine.is_running());
    engine.signal("-INT");
    assert!(engine.exit().success());
}

/// As under `nohup`, whose point it is.
#[test]
fn a_lost_terminal_ends_a_server_unless_it_was_told_to_ignore_that() {
    // Whoever runs the tests may ignore the signal, and a child would too.
    let mut engine = Engine::start_under("exec env --default-signal=HUP \"$0\" \"$@\"", 1, &[]);
    engine.signal("-HUP");
    assert!(engine.exit().success());
    let mut engine = Engine::start_under("trap '' HUP; exec \"$0\" \"$@\"", 1, &[]);
    engine.signal("-HUP");
    assert_eq!(engine.get("/health").status, 200);
    engine.signal("-TERM");
    assert!(engine.exit().success());
}

#[test]
fn a_flag_that_makes_no_sense_is_named_with_what_was_expected() {
    for (flags, words) in [
        (["--model", ""], "--model <NAME>"),
        (["--replicas", "0"], "--replicas <N>"),
        (["--api-key-file", "/dev/zero"], "it has more than 65536 bytes"),
        (["--api-key-file", "/dev/null"], "the key file /dev/null is empty"),
        (["--api-key-file", "/"], "it is a directory"),
        (["--profile", "/dev/zero"], "it has more than 20971520 bytes"),
        (["--profile", "nobody"], "profile `nobody` is not known"),
    ] {
        let profile = if flags[0] == "--profile" { &[][..] } else { &["--profile", "tiny-cpu"] };
        let (code, said) = Engine::fail(&[profile, &flags].concat());
        assert_eq!(code, Some(2), "{flags:?}: {said}");
        assert!(said.contains(words), "{flags:?}: {said}");
    }
}
