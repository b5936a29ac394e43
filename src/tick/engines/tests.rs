//! Rounds over engines that answer, are slow, and say nothing.

use super::super::tests::{parts, workload};
use super::*;
use crate::inventory::Endpoint;
use crate::source::tests::{Act, Server, ok};

const PAGE: &str = "vllm:num_requests_running{engine=\"0\"} 1.0\n\
                    vllm:num_requests_waiting{engine=\"0\"} 3.0\n";

/// One workload of these engines, of which each has 60 s to answer.
struct Bench {
    parts: Arc<Parts>,
    workload: Workload,
    engines: Engines,
}

impl Bench {
    fn new(servers: &[&Server]) -> Bench {
        let mut workload = workload(1, &[], Some("http://127.0.0.1:1/metrics"));
        let model = workload.members.remove(0);
        let member = |server: &&Server| {
            let url: Arc<str> = server.url().into();
            Member { id: Arc::clone(&url), endpoint: Some(Endpoint::Url(url)), ..model.clone() }
        };
        workload.members = servers.iter().map(member).collect();
        let engines = Engines::default();
        Bench { parts: parts(workload.clone()), workload, engines }
    }

    /// One round; how many it waited for.
    async fn round(&mut self) -> usize {
        let policy = &self.parts.registry.trackers()[0].policy;
        let late = self.under_way();
        let round = read(&self.parts, &Upstreams::default(), &self.workload, policy, &late).await;
        let n_found = round.found.len();
        self.engines.record(round, &self.workload, self.parts.clock.now());
        n_found
    }

    fn under_way(&mut self) -> Vec<Arc<str>> {
        self.engines.under_way(self.parts.clock.now())
    }

    fn waiting(&self, server: &Server) -> Option<f64> {
        let member = self.workload.members.iter().find(|member| *member.id == *server.url())?;
        self.engines.reading(member, 60_000, self.parts.clock.now()).fresh()?.get().waiting
    }
}

#[tokio::test]
async fn an_engine_that_says_nothing_delays_no_other_and_is_asked_once() {
    let (answers, hangs) = (Server::page(PAGE).await, Server::start(Act::Hang).await);
    let mut bench = Bench::new(&[&answers, &hangs]);
    for _ in 0..3 {
        let round = tokio::time::timeout(Duration::from_secs(30), bench.round());
        assert_eq!(round.await.expect("half of the deadline is enough"), 1);
        assert_eq!((bench.waiting(&answers), bench.waiting(&hangs)), (Some(3.0), None));
    }
    assert_eq!(hangs.requests().len(), 1, "it is still being read");
    assert_eq!(answers.requests().len(), 3);
    bench.workload.members.pop();
    bench.round().await;
    assert_eq!(bench.under_way(), []);
    hangs.open_falls_to(0).await;
}

#[tokio::test]
async fn an_engine_that_is_slow_is_read_when_it_has_answered() {
    let answers = Server::page(PAGE).await;
    // Long after a round has waited enough, on a machine that stands still for a moment too.
    let slow = Act::Late(3 * LATE, ok("text/plain", PAGE));
    let slow = Server::start(slow).await;
    let mut alone = Bench::new(&[&slow]);
    assert_eq!(alone.round().await, 1, "there is nobody else to decide by");
    let mut bench = Bench::new(&[&answers, &slow]);
    assert_eq!(bench.round().await, 1);
    assert_eq!(bench.waiting(&slow), None);
    while !bench.under_way().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(bench.waiting(&slow), Some(3.0), "before the next round");
    assert_eq!(slow.requests().len(), 2);
    bench.round().await;
    assert_eq!(slow.requests().len(), 3, "it is read in every round");
}

#[tokio::test]
async fn a_refused_connection_ends_no_round() {
    let slow = Act::Late(Duration::from_millis(1_500), ok("text/plain", PAGE));
    let (refuses, slow) = (Server::page(PAGE).await, Server::start(slow).await);
    let mut bench = Bench::new(&[&refuses, &slow]);
    drop(refuses);
    assert_eq!(bench.round().await, 2);
    assert_eq!(bench.waiting(&slow), Some(3.0));
}
