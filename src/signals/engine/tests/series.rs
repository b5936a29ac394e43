//! The same fold fed from Prometheus.

use super::*;
use crate::signals::exposition::Labels;

/// Adds one series as Prometheus gives it.
fn add(fold: &mut SeriesFold<'_>, name: &str, labels: &[(&str, &str)], value: f64, at: i64) {
    fold.add(name, labels.iter().copied(), value, Moment(at));
}

#[test]
fn a_page_and_its_series_give_the_same_sample() {
    struct Forward<'f>(SeriesFold<'f>);
    impl Sink for Forward<'_> {
        type Wanted = ();
        fn wants(&self, name: &[u8]) -> Option<()> {
            (name != b"process_start_time_seconds").then_some(())
        }
        fn sample(&mut self, (): (), sample: Sample<'_>) {
            let labels: Labels<'_> = sample.labels;
            self.0.add(sample.name, labels, sample.value, Moment(0));
        }
        fn declared(&mut self, (): (), _name: &str) {}
    }
    for name in ["queued", "dp2-queued", "asc2-idle", "dp2-idle", "0.9.1-v0-idle", "after"] {
        let Some(page) = fixtures::page(&format!("vllm/metrics-{name}.txt")) else {
            return;
        };
        let filter = Filter::default();
        let mut forward = Forward(SeriesFold::new(&filter));
        let mut parser = Parser::default();
        parser.push(&page, &mut forward).unwrap();
        parser.finish().unwrap();
        assert_eq!(forward.0.finish().unwrap(), read(&page).unwrap(), "{name}");
    }
}

#[test]
fn f19_replicas_of_a_prometheus_are_copies() {
    let filter = Filter::default();
    let mut fold = SeriesFold::new(&filter);
    let replica = |name| [("pod", "p"), ("prometheus_replica", name), ("engine", "0")];
    add(&mut fold, "vllm:num_requests_waiting", &replica("a"), 10.0, 60_000);
    add(&mut fold, "vllm:num_requests_waiting", &replica("b"), 10.0, 60_000);
    assert_eq!(fold.finish().unwrap().sample.waiting, Some(10.0));
}

/// A page, or series, of one engine as one target, told by these labels, shows it.
fn as_seen_by(target: &[(&'static str, &'static str)], n: f64) -> Vec<Seen> {
    let seen = |name, own: &[(&'static str, &'static str)], value| {
        let labels = [("model_name", "m"), ("engine", "0")];
        (name, labels.iter().chain(own).chain(target).copied().collect(), value)
    };
    vec![
        seen("vllm:num_requests_waiting", &[], n),
        seen("vllm:num_requests_running", &[], n + 2.0),
        seen("vllm:request_success_total", &[("finished_reason", "stop")], 10.0 * n),
        seen("vllm:request_success_total", &[("finished_reason", "length")], n),
        seen("vllm:generation_tokens_total", &[("customer", "x")], 100.0 * n),
        seen("vllm:generation_tokens_total", &[("customer", "y")], 1_000.0 * n),
    ]
}

type Seen = (&'static str, Vec<(&'static str, &'static str)>, f64);

#[test]
fn f19_copies_by_labels_of_any_name_count_once_and_what_differs_otherwise_is_summed() {
    let pairs: [[&[(&str, &str)]; 2]; 4] = [
        [&[("cluster_replica", "a")], &[("cluster_replica", "b")]],
        [&[("prometheus_replica", "a")], &[("prometheus_replica", "b")]],
        // A PodMonitor, and a job that copies the pod's labels.
        [
            &[("job", "models/llm"), ("container", "vllm"), ("instance", "10.0.0.1:8000")],
            &[
                ("job", "pods"),
                ("app", "llm"),
                ("pod_template_hash", "5d"),
                ("instance", "10.0.0.1:8000"),
            ],
        ],
        // One of them has nothing beyond what the engine says.
        [&[], &[("zone", "a")]],
    ];
    for targets in pairs {
        let filter = Filter::default();
        let (mut fold, mut page) = (SeriesFold::new(&filter), String::new());
        // The second is 15 s behind.
        for (target, n, at) in [(targets[0], 6.0, 60_000), (targets[1], 5.0, 45_000)] {
            for (name, labels, value) in as_seen_by(target, n) {
                add(&mut fold, name, &labels, value, at);
                let labels: Vec<_> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
                page.push_str(&format!("{name}{{{}}} {value} {at}\n", labels.join(",")));
            }
        }
        let read = fold.finish().unwrap();
        assert!(read.copied, "{targets:?}");
        assert_eq!(super::read(page.as_bytes()).unwrap(), read, "{targets:?}");
        let sample = read.sample;
        assert_eq!((sample.waiting, sample.running), (Some(6.0), Some(8.0)), "{targets:?}");
        assert_eq!(sample.finished, Some(66.0), "{targets:?}");
        assert_eq!(sample.generated_tokens, Some(6_600.0), "{targets:?}");
        assert_eq!(sample.at, Moment(60_000));
    }
}

#[test]
fn of_a_target_alone_nothing_is_copied() {
    let filter = Filter::default();
    let mut fold = SeriesFold::new(&filter);
    for (name, labels, value) in as_seen_by(&[("job", "a"), ("zone", "b")], 6.0) {
        add(&mut fold, name, &labels, value, 0);
    }
    let read = fold.finish().unwrap();
    assert_eq!((read.sample.finished, read.copied), (Some(66.0), false));
}

#[test]
fn of_copies_the_newest_counts() {
    let filter = Filter::default();
    let mut fold = SeriesFold::new(&filter);
    let job = |name| [("job", name), ("instance", "10.0.0.1:8000")];
    add(&mut fold, "vllm:num_requests_waiting", &job("a"), 12.0, 45_000);
    add(&mut fold, "vllm:num_requests_waiting", &job("b"), 3.0, 60_000);
    add(&mut fold, "vllm:num_requests_running", &job("b"), 4.0, 60_000);
    let sample = fold.finish().unwrap().sample;
    assert_eq!((sample.waiting, sample.at), (Some(3.0), Moment(60_000)));
}

#[test]
fn ports_of_a_pod_are_ranks_and_the_oldest_load_dates_the_sample() {
    let filter = Filter::default();
    let mut fold = SeriesFold::new(&filter);
    let port = |instance| [("pod", "p"), ("instance", instance), ("engine", "0")];
    add(&mut fold, "vllm:num_requests_running", &port("10.0.0.1:8000"), 4.0, 60_000);
    add(&mut fold, "vllm:num_requests_running", &port("10.0.0.1:8001"), 5.0, 30_000);
    add(&mut fold, "vllm:generation_tokens_total", &port("10.0.0.1:8000"), 5.0, 70_000);
    let read = fold.finish().unwrap();
    assert_eq!((read.sample.running, read.sample.at), (Some(9.0), Moment(30_000)));
}

#[test]
fn f17_a_rank_suffix_is_joined_to_its_pod() {
    let is_live = |pod: &str| ["x", "y-rank-0"].contains(&pod);
    assert_eq!(joined_pod("x", is_live), Some("x"));
    assert_eq!(joined_pod("x-rank-0", is_live), Some("x"));
    assert_eq!(joined_pod("x-rank-12", is_live), Some("x"));
    assert_eq!(joined_pod("y-rank-0", is_live), Some("y-rank-0"));
    // f14: the series of a pod that is gone belong to nobody.
    for gone in ["z", "z-rank-0", "x-rank-", "x-rank-a", "x-0"] {
        assert_eq!(joined_pod(gone, is_live), None, "{gone}");
    }
    // Ranks of one pod that share an engine label are still two engines.
    let filter = Filter::default();
    let mut fold = SeriesFold::new(&filter);
    for pod in ["x-rank-0", "x-rank-1"] {
        add(&mut fold, "vllm:num_requests_waiting", &[("pod", pod), ("engine", "0")], 5.0, 0);
    }
    assert_eq!(fold.finish().unwrap().sample.waiting, Some(10.0));
}

#[test]
fn no_series_and_foreign_series_are_no_engine() {
    let filter = Filter::default();
    assert_eq!(SeriesFold::new(&filter).finish(), Err(PageError::NoKnownSeries));
    let mut fold = SeriesFold::new(&filter);
    add(&mut fold, "up", &[("pod", "p")], 1.0, 0);
    assert_eq!(fold.finish(), Err(PageError::NoKnownSeries));
}

#[test]
fn prometheus_names_are_the_names_that_are_read() {
    let names = prometheus_names();
    for name in [
        "vllm:num_requests_waiting_by_reason",
        "vllm_num_requests_waiting",
        "ray_vllm_kv_cache_usage_perc",
        "sglang:num_queue_reqs",
        "sglang_token_usage",
        "tgi_queue_size",
        "trtllm_num_requests_waiting",
        "nv_trt_llm_request_metrics",
        "llamacpp:requests_deferred",
        "lmdeploy_num_requests_waiting",
        "num_request_max",
    ] {
        assert!(names.iter().any(|known| known == name), "{name}");
    }
    assert!(names.iter().all(|name| SeriesFold::look_up(name.as_bytes()).is_some()));
    let unique: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
}

#[test]
fn profiles_are_sorted_for_the_look_up() {
    for profile in profile::PROFILES {
        assert!(profile.rows.is_sorted_by_key(|row| row.name), "{:?}", profile.family);
    }
}
