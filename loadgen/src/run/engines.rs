//! What the engines say of themselves under the load, once a second: requests that they run and
//! that wait in them, and how full their KV caches are.
//!
//! Must not act on it, nor take a page that is missing or knows nothing of this for an engine
//! without work.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::Serialize;

use super::target::Target;

const PERIOD: Duration = Duration::from_secs(1);
const ANSWER_LIMIT: Duration = Duration::from_millis(900);
/// A day of looks, some 4 MB; a longer run keeps its first day.
const MOST_LOOKS: usize = 86_400;

/// Where pages are, in the order in which they are asked for: trtllm-serve has another thing at
/// `/metrics`, which is gone once it was read.
const PATHS: [&str; 3] = ["/prometheus/metrics", "/metrics", "/v1/metrics"];

/// The gauges of an engine: running, waiting, and the used share of its KV cache under any of its
/// names.
struct Gauges {
    running: &'static str,
    waiting: &'static str,
    kv_usage: &'static [&'static str],
}

/// By engine; the first of which a page has both counts is the one.
const ENGINES: [Gauges; 7] = [
    Gauges {
        running: "vllm:num_requests_running",
        waiting: "vllm:num_requests_waiting",
        kv_usage: &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
    },
    Gauges {
        running: "sglang:num_running_reqs",
        waiting: "sglang:num_queue_reqs",
        kv_usage: &["sglang:token_usage"],
    },
    Gauges { running: "tgi_batch_current_size", waiting: "tgi_queue_size", kv_usage: &[] },
    Gauges {
        running: "trtllm_num_requests_running",
        waiting: "trtllm_num_requests_waiting",
        kv_usage: &["trtllm_kv_cache_utilization"],
    },
    Gauges {
        running: "llamacpp:requests_processing",
        waiting: "llamacpp:requests_deferred",
        kv_usage: &[],
    },
    Gauges {
        running: "lmdeploy:num_requests_running",
        waiting: "lmdeploy:num_requests_waiting",
        kv_usage: &["lmdeploy:gpu_cache_usage_perc"],
    },
    Gauges {
        running: "num_requests_running",
        waiting: "num_requests_waiting",
        kv_usage: &["gpu_cache_usage_perc"],
    },
];

/// What was seen at a moment, all targets together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Look {
    /// Seconds since the start.
    pub t_s: f64,
    /// Requests that run; `null` unless every target told it.
    pub running: Option<f64>,
    /// Requests that wait in the engines, likewise.
    pub waiting: Option<f64>,
    /// The used share of the KV caches, 0 to 1, in the mean, likewise.
    pub kv_usage: Option<f64>,
}

impl Look {
    fn of(t_s: f64, pages: &[Option<String>]) -> Look {
        let read: Option<Vec<_>> = pages.iter().map(|page| read(page.as_deref()?)).collect();
        let (mut running, mut waiting, mut kv_usage) = (None, None, None);
        if let Some(engines) = read.filter(|engines| !engines.is_empty()) {
            running = Some(engines.iter().map(|(running, _, _)| running).sum());
            waiting = Some(engines.iter().map(|(_, waiting, _)| waiting).sum());
            let usages: Option<Vec<f64>> = engines.iter().map(|(_, _, usage)| *usage).collect();
            kv_usage = usages.map(|usages| usages.iter().sum::<f64>() / usages.len() as f64);
        }
        Look { t_s, running, waiting, kv_usage }
    }
}

/// Requests running and waiting, and the used share of the KV cache, if a page tells them.
fn read(page: &str) -> Option<(f64, f64, Option<f64>)> {
    ENGINES.iter().find_map(|gauges| {
        let (running, _) = sum_of_series(page, gauges.running)?;
        let (waiting, _) = sum_of_series(page, gauges.waiting)?;
        let usage = gauges.kv_usage.iter().find_map(|name| sum_of_series(page, name));
        Some((running, waiting, usage.map(|(sum, n)| sum / n)))
    })
}

/// Looks once a second, for as long as there is room.
pub(super) async fn watch(targets: &[Target], now_s: impl Fn() -> f64, mut note: impl FnMut(Look)) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for _ in 0..MOST_LOOKS {
        ticks.tick().await;
        let pages = join_all(targets.iter().map(page)).await;
        note(Look::of(now_s(), &pages));
    }
}

/// The first page of a target with an engine's gauges.
async fn page(target: &Target) -> Option<String> {
    let look = async {
        for path in PATHS {
            let asked = target.get(&target.path(path)).await;
            let page = asked.ok().filter(|(status, _)| *status == 200);
            let page = page.and_then(|(_, body): (u16, Bytes)| String::from_utf8(body.into()).ok());
            if page.as_deref().is_some_and(|page| read(page).is_some()) {
                return page;
            }
        }
        None
    };
    tokio::time::timeout(ANSWER_LIMIT, look).await.ok().flatten()
}

/// The sum of a metric's series, and how many there are; `None` without one.
pub(crate) fn sum_of_series(page: &str, name: &str) -> Option<(f64, f64)> {
    let values = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']))?;
        let value = rest.rsplit_once('}').map_or(rest, |(_, value)| value);
        value.split_whitespace().next()?.parse::<f64>().ok().filter(|value| value.is_finite())
    });
    let (sum, n) = values.fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
    (n > 0.0).then_some((sum, n))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &str = "vllm:num_requests_running{engine=\"0\"} 4.0\n\
                        vllm:num_requests_running{engine=\"1\"} 2.0\n\
                        vllm:num_requests_waiting{engine=\"0\"} 3.0\n\
                        vllm:num_requests_waiting_by_reason{engine=\"0\"} 9.0\n\
                        vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n\
                        vllm:kv_cache_usage_perc{engine=\"1\"} 0.25\n";

    #[test]
    fn engines_are_summed_and_told_by_their_names() {
        let llama = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 7\n";
        assert_eq!(read(VLLM), Some((6.0, 3.0, Some(0.375))));
        assert_eq!(read(llama), Some((1.0, 7.0, None)));
        let pages = [VLLM, llama].map(|page| Some(page.to_owned()));
        let look = Look::of(2.0, &pages);
        assert_eq!((look.running, look.waiting, look.kv_usage), (Some(7.0), Some(10.0), None));
    }

    #[test]
    fn what_one_target_does_not_tell_is_not_known_of_all() {
        let unknown = Look { t_s: 1.0, running: None, waiting: None, kv_usage: None };
        for pages in [
            vec![Some(VLLM.to_owned()), None],
            vec![Some("# HELP x y\nx 1\n".to_owned())],
            vec![Some("vllm:num_requests_running 1\n".to_owned())],
            vec![],
        ] {
            assert_eq!(Look::of(1.0, &pages), unknown, "{pages:?}");
        }
    }
}
