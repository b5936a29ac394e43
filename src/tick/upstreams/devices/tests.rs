//! The devices of exporters and of a Prometheus that answer, misbehave and go.

use std::fmt::Write as _;

use super::*;
use crate::clock::Hand;
use crate::decision::Replicas;
use crate::inventory::{Counted, Endpoint, Kubernetes, WorkloadKey};
use crate::signals::dcgm::{Device, DeviceKey};
use crate::source::config::PrometheusConfig;
use crate::source::scrape::Options;
use crate::source::tests::{Act, BlackHole, FLOODS, Flood, Nobody, Server, answer, ok};

/// Devices by UUID with the second of their newest sample.
fn devices(sampled_s: &[(&str, i64)]) -> Devices {
    let device = |&(uuid, at_s): &(&str, i64)| {
        let key = DeviceKey { uuid: uuid.into(), instance: None };
        (key, Device { at: Moment(at_s * 1_000), ..Device::default() })
    };
    Devices { by_key: sampled_s.iter().map(device).collect(), ..Devices::default() }
}

fn learned(rounds: &[&[(&str, i64)]]) -> u64 {
    let mut intervals = Intervals::default();
    for pair in rounds.windows(2) {
        intervals.learn(&devices(pair[0]), &devices(pair[1]));
    }
    intervals.fresh_ms()
}

#[test]
fn a_sample_is_fresh_for_three_reads_or_two_intervals_of_the_source() {
    for (rounds, fresh_ms) in [
        // Nothing learned, and an exporter's own page, whose samples are as new as the read.
        (&[&[("a", 0)][..]][..], 45_000),
        (&[&[("a", 0)], &[("a", 15)], &[("a", 30)]], 45_000),
        // A Prometheus that scrapes each half minute; the reads between see nothing move.
        (&[&[("a", 0)], &[("a", 0)], &[("a", 30)], &[("a", 30)], &[("a", 60)]], 60_000),
        // Another device has missed a sample.
        (&[&[("a", 0), ("b", 0)], &[("a", 60), ("b", 30)]], 60_000),
        // A gap teaches nothing where there was a step before.
        (&[&[("a", 0)], &[("a", 30)], &[("a", 120)]], 60_000),
        // Beyond the window there is nothing.
        (&[&[("a", 0)], &[("a", 90)]], 120_000),
    ] {
        assert_eq!(learned(rounds), fresh_ms, "{rounds:?}");
    }
}

/// A reader on a stepped clock, for one workload of namespace `a` with these pods.
struct Bench {
    reader: Reader,
    hand: Hand,
    clock: Clock,
    workload: Workload,
    seen_at: Option<Moment>,
}

const BEGIN_S: i64 = 1_796_000_000;

impl Bench {
    fn new(from: From, pods: &[&str]) -> Bench {
        let (clock, hand) = Clock::stepped(Moment(BEGIN_S * 1_000));
        let reader = Reader::start(from, Metrics::default(), clock);
        Bench { reader, hand, clock, workload: workload("a", pods), seen_at: None }
    }

    /// With more time for each than a busy machine takes.
    fn of_exporters(urls: &[String], pods: &[&str]) -> Bench {
        Bench::of_exporters_within(60_000, urls, pods)
    }

    fn of_exporters_within(timeout_ms: u64, urls: &[String], pods: &[&str]) -> Bench {
        let options = Options { timeout_ms, ..Options::default() };
        Bench::new(From::Exporters(targets(urls), Scraper::new(options).unwrap()), pods)
    }

    fn of_prometheus(server: &Server, pods: &[&str]) -> Bench {
        let config = PrometheusConfig::at(&format!("http://{}", server.address));
        Bench::new(From::Prometheus(PrometheusClient::new(&config).unwrap()), pods)
    }

    fn gpu(&mut self) -> Gpu {
        self.reader.utilisation(&self.workload, |_| false, &mut self.seen_at, self.clock.now())
    }

    /// What is known so many seconds after the beginning, after the round that is due by then.
    async fn at(&mut self, second: i64) -> Gpu {
        self.hand.set(Moment((BEGIN_S + second) * 1_000));
        // It is followed before it is read.
        let mut seen_at = self.seen_at;
        self.reader.utilisation(&self.workload, |_| false, &mut seen_at, self.clock.now());
        self.reader.read().await;
        self.gpu()
    }
}

fn targets(urls: &[String]) -> Vec<Target> {
    let target =
        |url: &String| Target::new(&Endpoint::Url(url.as_str().into()), None, None).unwrap();
    urls.iter().map(target).collect()
}

fn workload(namespace: &str, pods: &[&str]) -> Workload {
    let member = |pod: &&str| Member {
        id: (*pod).into(),
        phase: Phase::Ready,
        created_at: None,
        ready_at: None,
        endpoint: None,
        node: None,
    };
    Workload {
        key: WorkloadKey::new(namespace, "llm"),
        min: 0,
        max: 8,
        fallback_replicas: None,
        triggers: Vec::new(),
        replicas: Replicas::default(),
        members: pods.iter().map(member).collect(),
        counted: Counted::ByKubernetes,
        gpus_per_replica: None,
        paused: false,
        kubernetes: Kubernetes::default(),
    }
}

/// A page with one device a pod.
fn page(owned: &[(&str, &str)]) -> String {
    let mut page = String::new();
    for (uuid, pod) in owned {
        let labels = format!("UUID=\"{uuid}\",namespace=\"a\",pod=\"{pod}\"");
        writeln!(page, "DCGM_FI_DEV_GPU_UTIL{{{labels}}} 50").unwrap();
    }
    page
}

/// An exporter that answers each connection with a page and closes it, so that it can go.
async fn exporter(owned: &[(&str, &str)]) -> Server {
    Server::start(Act::AnswerAndClose(ok("text/plain", &page(owned)))).await
}

fn is_fresh(gpu: Gpu, devices: u32, unread: u32) -> bool {
    matches!(gpu, Gpu::Fresh(sample) if (sample.devices, sample.unread) == (devices, unread))
}

#[tokio::test]
async fn a_device_whose_exporter_is_gone_is_lost_when_its_sample_is_no_longer_fresh() {
    let server = exporter(&[("G", "p")]).await;
    let mut bench = Bench::of_exporters(&[server.url()], &["p"]);
    assert_eq!(bench.gpu(), Gpu::Unread { why: Why::NotYetRead });
    assert!(is_fresh(bench.at(0).await, 1, 0));
    drop(server);
    for second in [15, 30, 45] {
        assert!(is_fresh(bench.at(second).await, 1, 0), "{second}");
    }
    let lost = Gpu::Lost { for_ms: 15_000, why: Some(Why::Refused) };
    assert_eq!(bench.at(60).await, lost);
}

#[tokio::test]
async fn owners_are_forgotten_while_another_exporter_is_gone_for_ever() {
    let (before, after) = (exporter(&[("G", "old")]).await, exporter(&[("G", "new")]).await);
    let nobody = Nobody::new();
    let gone = nobody.url();
    let mut bench = Bench::of_exporters(&[before.url(), gone.clone()], &["new"]);
    assert_eq!(bench.at(0).await, Gpu::Unread { why: Why::Refused });
    let scraper = Scraper::new(Options::default()).unwrap();
    bench.reader.rounds.lock().await.from = From::Exporters(targets(&[after.url(), gone]), scraper);
    for round in 1..=20 {
        let gpu = bench.at(15 * round).await;
        assert_eq!(gpu, Gpu::Unread { why: Why::Refused }, "shared with its last owner: {round}");
    }
    assert!(is_fresh(bench.at(315).await, 1, 0), "five minutes after it was last named");
}

#[tokio::test]
async fn pods_of_an_exporter_that_is_gone_are_missing_and_not_left_out() {
    let server = exporter(&[("G", "p")]).await;
    let gone = Nobody::new();
    let mut bench = Bench::of_exporters(&[server.url(), gone.url()], &["p", "q", "r"]);
    assert!(is_fresh(bench.at(0).await, 1, 2));
}

#[tokio::test]
async fn exporters_that_answer_and_know_no_device_of_a_workload_are_no_fault() {
    let server = exporter(&[("G", "p")]).await;
    let mut bench = Bench::of_exporters(&[server.url()], &["other"]);
    assert_eq!(bench.at(0).await, Gpu::Absent);
}

#[tokio::test]
async fn whatever_an_exporter_sends_is_a_reading_or_has_its_fault() {
    let text = |body: &str| Act::Answer(ok("text/plain", body));
    let value = |value: &str| text(&page(&[("G", "p")]).replace("50", value));
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
    let bytes = |text: String| text.into_bytes();
    let many: String = (0..400).map(|n| page(&[(&format!("G-{n}"), "p")])).collect();
    let label = format!("DCGM_FI_DEV_GPU_UTIL{{UUID=\"{}\"}} 1\n", "x".repeat(1_000_000));
    let slow = Duration::from_millis(10);
    for (act, why) in [
        (value("NaN"), Some(Why::NoKnownSeries)),
        (value("+Inf"), Some(Why::NoKnownSeries)),
        (value("-1"), Some(Why::NoKnownSeries)),
        (value("1e308"), Some(Why::NoKnownSeries)),
        (text(""), Some(Why::NoKnownSeries)),
        (text("<html>\n"), Some(Why::BadBody)),
        (text("\u{1f}\u{8b}\u{8}"), Some(Why::BadBody)),
        (text(page(&[("G", "p")]).trim_end()), Some(Why::BadBody)),
        (Act::Answer(ok("text/html", &page(&[("G", "p")]))), Some(Why::BadBody)),
        (Act::Answer(answer("200 OK", "Content-Encoding: gzip\r\n", "bomb")), Some(Why::BadBody)),
        (Act::Answer(answer("401 Unauthorized", "", "")), Some(Why::Unauthorized)),
        (Act::Answer(answer("500 Error", "", "")), Some(Why::HttpStatus)),
        (
            Act::Answer(bytes(format!("{head}Content-Length: 52428800\r\n\r\n"))),
            Some(Why::TooLarge),
        ),
        (
            Act::Endless(bytes(format!("{head}Content-Length: 999\r\n\r\n")), b"#".to_vec(), slow),
            Some(Why::Timeout),
        ),
        (Act::Endless(bytes(head.to_owned()), b"x: y\r\n".to_vec(), slow), Some(Why::Timeout)),
        (Act::Hang, Some(Why::Timeout)),
        (text(&label), Some(Why::TooLarge)),
        (text(&page(&[("G", "p")]).repeat(17_000)), Some(Why::TooLarge)),
        // The same device again and again, and many of one pod.
        (text(&page(&[("G", "p")]).repeat(1_000)), None),
        (text(&many), None),
    ] {
        let shown = format!("{act:?}").chars().take(200).collect::<String>();
        let server = Server::start(act).await;
        let timeout_ms = if why == Some(Why::Timeout) { 300 } else { 60_000 };
        let mut bench = Bench::of_exporters_within(timeout_ms, &[server.url()], &["p"]);
        let gpu = bench.at(0).await;
        match why {
            Some(why) => assert_eq!(gpu, Gpu::Unread { why }, "{shown}"),
            None => assert!(matches!(gpu, Gpu::Fresh(_)), "{shown}: {gpu:?}"),
        }
    }
}

#[tokio::test]
async fn an_exporter_that_sends_for_ever_or_lets_nobody_in_is_given_up() {
    for (first, then, _why) in FLOODS {
        let flood = Flood::start(first, then);
        let url = format!("http://{}/metrics", flood.address);
        let gpu = Bench::of_exporters(&[url], &["p"]).at(0).await;
        assert!(matches!(gpu, Gpu::Unread { .. }), "{first:?} {then:?}: {gpu:?}");
    }
    let hole = BlackHole::start().await;
    let url = format!("http://{}/metrics", hole.address);
    let server = exporter(&[("G", "p")]).await;
    let mut bench = Bench::of_exporters_within(3_000, &[url, server.url()], &["p", "q"]);
    assert!(is_fresh(bench.at(0).await, 1, 1), "the other one is read");
}

/// What a Prometheus answers that knows no device.
fn nothing(warnings: &str) -> Vec<u8> {
    let data = r#"{"resultType":"matrix","result":[]}"#;
    let body = format!(r#"{{"status":"success","data":{data},"warnings":[{warnings}]}}"#);
    ok("application/json", &body)
}

#[tokio::test]
async fn a_prometheus_that_says_its_answer_is_partial_leaves_a_reason() {
    let server = Server::start(Act::Answer(nothing(r#""a store is gone""#))).await;
    let mut bench = Bench::of_prometheus(&server, &["p"]);
    assert_eq!(bench.at(0).await, Gpu::Unread { why: Why::Partial });
    let server = Server::start(Act::Answer(nothing(""))).await;
    let mut bench = Bench::of_prometheus(&server, &["p"]);
    assert_eq!(bench.at(0).await, Gpu::Unread { why: Why::NoKnownSeries }, "nobody has a device");
    let server = Server::start(Act::Answer(answer("403 Forbidden", "", ""))).await;
    let mut bench = Bench::of_prometheus(&server, &["p"]);
    assert_eq!(bench.at(0).await, Gpu::Unread { why: Why::Unauthorized });
}

#[tokio::test]
async fn devices_of_members_that_sleep_are_not_in_the_mean() {
    let page = "DCGM_FI_DEV_GPU_UTIL{UUID=\"1\",namespace=\"a\",pod=\"awake\"} 80\n\
                DCGM_FI_DEV_GPU_UTIL{UUID=\"2\",namespace=\"a\",pod=\"sleeper\"} 0\n";
    let server = Server::start(Act::AnswerAndClose(ok("text/plain", page))).await;
    let url = format!("http://{}/metrics", server.address);
    let mut bench = Bench::of_exporters(&[url], &["awake", "sleeper"]);
    bench.at(0).await;
    let of = |sleeper: &str| {
        let sleeps = |member: &Member| &*member.id == sleeper;
        let gpu = bench.reader.utilisation(&bench.workload, sleeps, &mut None, bench.clock.now());
        let Gpu::Fresh(sample) = gpu else { panic!("{gpu:?}") };
        (sample.devices, sample.unread, sample.busy)
    };
    assert_eq!(of("nobody"), (2, 0, Some(0.4)));
    assert_eq!(of("sleeper"), (1, 0, Some(0.8)));
}

#[tokio::test]
async fn all_namespaces_are_asked_for_at_once() {
    let server = Server::start(Act::Late(Duration::from_millis(100), nothing(""))).await;
    let bench = Bench::of_prometheus(&server, &[]);
    for n in 0..120 {
        let other = workload(&format!("ns-{n}"), &[]);
        bench.reader.utilisation(&other, |_| false, &mut None, bench.clock.now());
    }
    bench.reader.read().await;
    assert_eq!(server.most_pausing(), 3, "batches of fifty");
}
