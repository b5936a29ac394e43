//! What is taken from the answers of a Prometheus that is partial, elsewhere in time, or slow.

use std::sync::Mutex;

use super::*;
use crate::clock::Hand;
use crate::decision::Moment;
use crate::source::config::PrometheusConfig;
use crate::source::tests::{Act, Server, answer, ok};

const BEGIN_S: i64 = 1_796_000_000;

/// Waiting requests by rank, all of pod `a/p`, sampled at this second; and what else it says.
async fn prometheus(ranks: &[u32], sampled_s: i64, told_s: i64, warning: bool) -> Server {
    let series = ranks.iter().map(|rank| {
        format!(
            r#"{{"metric":{{"__name__":"vllm:num_requests_waiting","namespace":"a","pod":"p",
            "engine":"{rank}"}},"values":[[{sampled_s},"2"]]}}"#
        )
    });
    let result = series.collect::<Vec<_>>().join(",");
    let warnings = if warning { r#","warnings":["a store is gone"]"# } else { "" };
    let data = format!(r#"{{"resultType":"matrix","result":[{result}]}}"#);
    let body = format!(r#"{{"status":"success","data":{data}{warnings}}}"#);
    let date = jiff::Timestamp::from_second(told_s).unwrap().strftime("%a, %d %b %Y %T GMT");
    let head = format!("Content-Type: application/json\r\nDate: {date}\r\n");
    Server::start(Act::Answer(answer("200 OK", &head, &body))).await
}

/// Rounds that somebody asks for, on a clock that stands.
struct Bench {
    rounds: Rounds,
    learned: Learned,
    _hand: Hand,
}

impl Bench {
    fn new(server: &Server) -> Bench {
        let (clock, hand) = Clock::stepped(Moment(BEGIN_S * 1_000));
        let (publish, _latest) = watch::channel(Arc::default());
        let (followed, metrics) = (Arc::<Followed>::default(), Metrics::default());
        followed.follow(&"a".into(), clock.now());
        let rounds = Rounds { client: client(server), metrics, clock, followed, publish };
        Bench { rounds, learned: Learned::default(), _hand: hand }
    }

    /// What one more round has found.
    async fn read(&mut self, server: &Server) -> EnginesRead {
        self.rounds.client = client(server);
        let latest = self.rounds.read(&prometheus_names(), &mut self.learned).await;
        self.rounds.publish.send_replace(Arc::new(latest));
        EnginesRead(self.rounds.publish.borrow().get("a").cloned())
    }

    /// The sample of pod `a/p` after one more round.
    async fn sample(&mut self, server: &Server) -> Result<EngineSample, Why> {
        self.read(server).await.sample("p", &Filter::default())
    }
}

fn client(server: &Server) -> PrometheusClient {
    let config = PrometheusConfig::at(&format!("http://{}", server.address));
    PrometheusClient::new(&config).unwrap()
}

#[tokio::test]
async fn ranks_that_a_partial_answer_lacks_are_not_summed_as_none() {
    let whole = prometheus(&[0, 1], BEGIN_S, BEGIN_S, false).await;
    let same = prometheus(&[0, 1], BEGIN_S, BEGIN_S, true).await;
    let part = prometheus(&[0], BEGIN_S, BEGIN_S, true).await;
    let fewer = prometheus(&[0], BEGIN_S, BEGIN_S, false).await;
    let mut bench = Bench::new(&whole);
    let waiting = |read: Result<EngineSample, Why>| read.map(|sample| sample.waiting);
    assert_eq!(waiting(bench.sample(&whole).await), Ok(Some(4.0)));
    assert_eq!(waiting(bench.sample(&same).await), Ok(Some(4.0)), "nothing of it is missing");
    for _ in 0..3 {
        assert_eq!(waiting(bench.sample(&part).await), Err(Why::Partial));
    }
    assert_eq!(waiting(bench.sample(&fewer).await), Ok(Some(2.0)), "whole, and smaller");
}

#[tokio::test]
async fn f19_copies_by_any_label_count_once_and_are_told_once() {
    let series = |value: u32, label: &str| {
        format!(
            r#"{{"metric":{{"__name__":"vllm:num_requests_waiting","namespace":"a","pod":"p",
            "engine":"0",{label}}},"values":[[{BEGIN_S},"{value}"]]}}"#
        )
    };
    let body = |series: &[String]| {
        let data = format!(r#"{{"resultType":"matrix","result":[{}]}}"#, series.join(","));
        format!(r#"{{"status":"success","data":{data}}}"#)
    };
    let told = |log: &Log| String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for (one, other) in [
        (r#""cluster_replica":"a""#, r#""cluster_replica":"b""#),
        (r#""prometheus_replica":"a""#, r#""prometheus_replica":"b""#),
        (r#""container":"vllm""#, r#""app":"llm","pod_template_hash":"5d""#),
    ] {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).finish();
        let _logged = tracing::subscriber::set_default(subscriber);
        let answers = async |series: &[String]| {
            Server::start(Act::Answer(ok("application/json", &body(series)))).await
        };
        let alone = answers(&[series(6, one)]).await;
        let mut bench = Bench::new(&alone);
        assert_eq!(bench.sample(&alone).await.unwrap().waiting, Some(6.0));
        assert_eq!(told(&log), "");
        let twice = answers(&[series(6, one), series(6, other)]).await;
        for _ in 0..3 {
            assert_eq!(bench.sample(&twice).await.unwrap().waiting, Some(6.0), "{other}");
        }
        let told = told(&log);
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(told.contains("engine series in copies"), "{told}");
    }
}

/// Log lines in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

#[tokio::test]
async fn what_was_whole_is_known_after_a_failure_and_after_an_answer_without_it() {
    let whole = prometheus(&[0, 1], BEGIN_S, BEGIN_S, false).await;
    let part = prometheus(&[0], BEGIN_S, BEGIN_S, true).await;
    let absent = prometheus(&[], BEGIN_S, BEGIN_S, true).await;
    let broken = answer("500 Internal Server Error", "Content-Type: application/json\r\n", "{}");
    let broken = Server::start(Act::Answer(broken)).await;
    for (between, why) in [(&broken, Why::HttpStatus), (&absent, Why::Partial)] {
        let mut bench = Bench::new(&whole);
        assert!(bench.sample(&whole).await.is_ok());
        assert_eq!(bench.sample(between).await, Err(why));
        assert_eq!(bench.sample(&part).await, Err(Why::Partial), "after {why:?}");
        assert!(bench.sample(&whole).await.is_ok());
    }
}

#[tokio::test]
async fn samples_of_a_prometheus_with_another_time_have_the_age_that_they_have() {
    for (what, ahead_s) in [("behind, as after our own clock was stepped", -60), ("ahead", 600)] {
        let told_s = BEGIN_S + ahead_s;
        let server = prometheus(&[0], told_s - 10, told_s, false).await;
        let read = Bench::new(&server).read(&server).await;
        let at = read.sample("p", &Filter::default()).unwrap().at;
        assert_eq!(at.0 - read.ahead_ms(), (BEGIN_S - 10) * 1_000, "{what}");
    }
}

/// Waiting requests of these pods of namespace `a`, one series each.
async fn naming(pods: &[&str]) -> Server {
    let series = pods.iter().map(|pod| {
        format!(
            r#"{{"metric":{{"__name__":"vllm:num_requests_waiting","namespace":"a","pod":"{pod}"}},
            "values":[[{BEGIN_S},"2"]]}}"#
        )
    });
    let result = series.collect::<Vec<_>>().join(",");
    let data = format!(r#"{{"resultType":"matrix","result":[{result}]}}"#);
    let body = format!(r#"{{"status":"success","data":{data}}}"#);
    Server::start(Act::Answer(answer("200 OK", "Content-Type: application/json\r\n", &body))).await
}

#[tokio::test]
async fn f17_series_that_name_no_pod_are_counted_and_those_with_a_known_suffix_are_joined() {
    let server = naming(&["x-rank-0", "x-rank-1", "y-router"]).await;
    let mut bench = Bench::new(&server);
    let read = bench.read(&server).await;
    let of = |pod: &str| read.sample(pod, &Filter::default());
    assert_eq!(of("x").unwrap().waiting, Some(4.0), "both of its ranks");
    assert_eq!(of("y"), Err(Why::NoKnownSeries));
    let unmatched = |bench: &Bench| bench.rounds.metrics.n_unmatched_series();
    bench.read(&server).await;
    assert_eq!(unmatched(&bench), 1, "of y-router");
    // What was matched once needs nobody to look again before the next read.
    bench.read(&server).await;
    assert_eq!(unmatched(&bench), 1);
    let server = naming(&["x-rank-0", "x-rank-1"]).await;
    bench.read(&server).await;
    bench.read(&server).await;
    assert_eq!(unmatched(&bench), 0);
}
