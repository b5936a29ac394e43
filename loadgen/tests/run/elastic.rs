//! What happens when the service changes its size, and where it breaks.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::server::{Act, Server, plain, stream};
use super::{alone, at, report};

#[test]
fn a_wake_from_zero_is_timed_and_its_requests_are_held_or_lost() {
    // A gateway that holds what comes in the first two seconds but refuses each tenth, while its
    // page tells 0 replicas and then 2.
    let began = Arc::new(OnceLock::<Instant>::new());
    let server = Server::start(move |asked| {
        if asked.path == "/scale?of=m" {
            let is_awake = began.get().is_some_and(|began| *began + WAKE <= asked.at);
            let body = json!({"status": {"replicas": if is_awake { 2 } else { 0 }}});
            return vec![plain("200 OK", "application/json", &body.to_string())];
        }
        let ready = *began.get_or_init(|| asked.at) + WAKE;
        if asked.at < ready && asked.number % 10 == 9 {
            return vec![plain("503 Service Unavailable", "text/plain", "no capacity")];
        }
        let mut acts = vec![Act::Until(ready)];
        acts.extend(stream(asked, 4, Duration::ZERO));
        acts
    });
    const WAKE: Duration = Duration::from_secs(2);
    let url = server.url();
    let flags = format!(
        "--rate 20 --duration 5s --arrival constant --slo-ttft 500ms --replicas-url \
         {url}/scale?of=m --gpus-per-replica 4"
    );
    let report = report(&url, &flags);
    let elasticity = &report["elasticity"];
    assert_eq!(elasticity["from_zero"], true);
    let first = at(&report, "/elasticity/time_to_first_token_s");
    assert!((1.9..2.6).contains(&first), "{first}");
    assert_eq!(at(&report, "/elasticity/lost"), 4.0);
    assert_eq!(report["errors_by_class"], json!({"http_503": 4}));
    // Due before 1.5 s, they waited more than half a second: 30, less the 3 that were refused.
    let held = at(&report, "/elasticity/held");
    assert!((25.0..=32.0).contains(&held), "{held}");
    assert_eq!(elasticity["scale_events"][0]["from"], 0);
    assert_eq!(elasticity["scale_events"][0]["to"], 2);
    assert_eq!(elasticity["scale_events"][0]["held"], elasticity["held"]);
    let worst = at(&report, "/elasticity/scale_events/0/worst_ttft_s");
    assert!((1.9..2.6).contains(&worst), "{worst}");
    // Each of the 27 waits 0 to 1.5 s beyond its 0.5 s: 20 request-seconds.
    let area = at(&report, "/elasticity/slo_violation_area_s");
    assert!((16.0..27.0).contains(&area), "{area}");
    // Two replicas for three seconds with four GPUs each, over the good answers' tokens.
    let cost = at(&report, "/elasticity/gpu_seconds_per_good_token");
    let good_tokens = at(&report, "/good") * 4.0;
    let expected = at(&report, "/elasticity/replica_seconds") * 4.0 / good_tokens;
    assert!((cost / expected - 1.0).abs() < 1e-9, "{cost} {expected}");
    assert!((2.0..8.0).contains(&at(&report, "/elasticity/replica_seconds")));
}

#[test]
fn replicas_that_cannot_be_seen_cost_an_unknown_amount() {
    let server = Server::start(|asked| match asked.path.as_str() {
        "/broken" => vec![plain("500 Internal Server Error", "text/plain", "0")],
        _ => stream(asked, 2, Duration::ZERO),
    });
    let url = server.url();
    let report = report(&url, &format!("--rate 20 --duration 2s --replicas-url {url}/broken"));
    for key in ["replica_seconds", "gpu_seconds_per_good_token", "from_zero"] {
        assert!(report["elasticity"][key].is_null(), "{key}");
    }
    assert!(report["warnings"].to_string().contains("not seen"));
}

#[test]
fn several_targets_share_the_load_and_those_that_answer_are_replicas() {
    let servers: Vec<Server> = (0..2)
        .map(|_| {
            Server::start(|asked| match asked.path.as_str() {
                "/health" => vec![plain("200 OK", "text/plain", "")],
                _ => stream(asked, 2, Duration::ZERO),
            })
        })
        .collect();
    let second = servers[1].url();
    let flags = format!("--url {second} --rate 50 --duration 2s --arrival constant --watch-health");
    let report = report(&servers[0].url(), &flags);
    assert_eq!(at(&report, "/completed"), 100.0);
    assert!(servers.iter().all(|server| server.asked().len() == 50));
    assert_eq!(report["replicas"][0][1], 2);
}

#[test]
fn the_target_with_the_fewest_open_requests_gets_the_next() {
    let slow = Server::start(|asked| stream(asked, 1, Duration::from_secs(20)));
    let fast = Server::start(|asked| stream(asked, 1, Duration::ZERO));
    let fast_url = fast.url();
    let flags = format!(
        "--url {fast_url} --balance least --rate 50 --duration 2s --arrival constant --grace 0"
    );
    let report = report(&slow.url(), &flags);
    assert!(fast.asked().len() > 80, "{}", fast.asked().len());
    assert!(at(&report, "/unfinished") < 20.0);
}

/// Four at a time, 40 ms each: a hundred a second.
#[test]
fn the_knee_is_where_a_queue_begins_to_grow() {
    let _alone = alone();
    let slots: Arc<std::sync::Mutex<[Option<Instant>; 4]>> = Arc::default();
    let server = Server::start(move |asked| {
        let mut slots = slots.lock().unwrap();
        let slot = slots.iter_mut().min_by_key(|free| **free).unwrap();
        let done = slot.map_or(asked.at, |free| free.max(asked.at)) + Duration::from_millis(40);
        *slot = Some(done);
        let mut acts = vec![Act::Until(done)];
        acts.extend(stream(asked, 1, Duration::ZERO));
        acts
    });
    let flags =
        "--find-knee --rate 20 --duration 4s --arrival constant --slo-ttft 500ms --grace 5s";
    let report = report(&server.url(), flags);
    let knee = &report["knee"];
    assert_eq!(knee["limit"], "service", "{knee:#}");
    let rate = at(&report, "/knee/rate");
    // Up to an eighth more than it carries, the queue of four seconds is still within the promise.
    assert!((80.0..=125.0).contains(&rate), "{knee:#}");
    assert!(at(&report, "/knee/fails_at") < rate * 1.06);
    // The report is that of the best step.
    assert!(at(&report, "/attainment") >= 0.99);
}
