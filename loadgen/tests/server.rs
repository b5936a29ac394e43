//! `loadgen engine` as a process: its answers, faults and end, seen over HTTP.

mod api;
pub(crate) mod client;
mod dialects;
mod life;
mod pathologies;

use client::Engine;

#[test]
fn bad_input_is_named_with_what_was_expected() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("broken.yaml");
    std::fs::write(&broken, "name: x\nabout: y\ngpus: 0\nspeed: 3\n").unwrap();
    let broken = broken.to_str().unwrap();
    let empty = directory.path().join("key");
    std::fs::write(&empty, "\n").unwrap();
    let empty = empty.to_str().unwrap();
    let good = ["--profile", "tiny-cpu", "--listen", "127.0.0.1:0"];
    for (args, expect) in [
        (vec!["--profile", "9b"], "profile `9b` is not known: expected a file or one of 8b-a100"),
        (vec!["--profile", "./no.yaml"], "failed to read profile `./no.yaml`"),
        (vec!["--profile", broken], "speed"),
        (vec!["--profile", "tiny-cpu", "--listen", &taken], &taken),
        (vec!["--profile", "tiny-cpu", "--listen", "host"], "expected HOST:PORT"),
        (
            vec!["--profile", "tiny-cpu", "--listen", "127.0.0.1:65535", "--replicas", "2"],
            "no port 1 above 127.0.0.1:65535",
        ),
        ([&good[..], &["--dialect", "vllm-0.31"]].concat(), "expected one of vllm-0.32"),
        ([&good[..], &["--pathology", "hagn"]].concat(), "did you mean `hang`?"),
        ([&good[..], &["--cold-start", "soon"]].concat(), "expected `profile` or a duration"),
        ([&good[..], &["--api-key-file", empty]].concat(), "is empty"),
        ([&good[..], &["--api-key-file", "/no/key"]].concat(), "failed to read the key in /no/key"),
    ] {
        let (code, error) = Engine::fail(&args);
        assert_eq!(code, Some(2), "{args:?}: {error}");
        assert!(error.contains(expect), "{args:?}: {error}");
    }
}
