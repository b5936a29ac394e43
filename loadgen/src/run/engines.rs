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

/// A gauge by its name, and a label's value where the name has others too.
type Name = (&'static str, Option<(&'static str, &'static str)>);

/// The gauges of an engine: running, waiting, and the used share of its KV cache under any of its
/// names.
struct Gauges {
    running: Name,
    waiting: Name,
    kv_usage: &'static [Name],
    /// Series with another value in one of these labels repeat what others say.
    keep: &'static [(&'static str, &'static str)],
    /// Series may repeat each other under several names: the largest counts, instead of the sum.
    is_repeated: bool,
}

const NO_GAUGES: Gauges = Gauges {
    running: ("", None),
    waiting: ("", None),
    kv_usage: &[],
    keep: &[],
    is_repeated: false,
};

/// By engine; the first of which a page has both counts is the one.
const ENGINES: [Gauges; 9] = [
    Gauges {
        running: ("vllm:num_requests_running", None),
        waiting: ("vllm:num_requests_waiting", None),
        kv_usage: &[("vllm:kv_cache_usage_perc", None), ("vllm:gpu_cache_usage_perc", None)],
        ..NO_GAUGES
    },
    // vLLM as Ray's agent shows it.
    Gauges {
        running: ("ray_vllm_num_requests_running", None),
        waiting: ("ray_vllm_num_requests_waiting", None),
        kv_usage: &[("ray_vllm_kv_cache_usage_perc", None)],
        ..NO_GAUGES
    },
    // With priority scheduling the series without a priority is the total; with metrics of all
    // schedulers each parallel rank repeats rank 0.
    Gauges {
        running: ("sglang:num_running_reqs", None),
        waiting: ("sglang:num_queue_reqs", None),
        kv_usage: &[("sglang:token_usage", None)],
        keep: &[("priority", ""), ("tp_rank", "0"), ("pp_rank", "0")],
        ..NO_GAUGES
    },
    Gauges {
        running: ("tgi_batch_current_size", None),
        waiting: ("tgi_queue_size", None),
        ..NO_GAUGES
    },
    Gauges {
        running: ("trtllm_num_requests_running", None),
        waiting: ("trtllm_num_requests_waiting", None),
        kv_usage: &[("trtllm_kv_cache_utilization", None)],
        ..NO_GAUGES
    },
    Gauges {
        running: ("nv_trt_llm_request_metrics", Some(("request_type", "scheduled"))),
        waiting: ("nv_trt_llm_request_metrics", Some(("request_type", "waiting"))),
        kv_usage: &[(
            "nv_trt_llm_kv_cache_block_metrics",
            Some(("kv_cache_block_type", "fraction")),
        )],
        // The ensemble may repeat what its part says.
        is_repeated: true,
        ..NO_GAUGES
    },
    Gauges {
        running: ("llamacpp:requests_processing", None),
        waiting: ("llamacpp:requests_deferred", None),
        ..NO_GAUGES
    },
    Gauges {
        running: ("lmdeploy:num_requests_running", None),
        waiting: ("lmdeploy:num_requests_waiting", None),
        kv_usage: &[("lmdeploy:gpu_cache_usage_perc", None)],
        ..NO_GAUGES
    },
    Gauges {
        running: ("num_requests_running", None),
        waiting: ("num_requests_waiting", None),
        kv_usage: &[("gpu_cache_usage_perc", None)],
        ..NO_GAUGES
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
        let folded = |(name, only): Name| {
            let values = values_of(page, name).filter(|(labels, _)| {
                let is_own = only.is_none_or(|(label, value)| label_of(labels, label) == value);
                let repeats = |(label, kept): &(&str, &str)| {
                    let value = label_of(labels, label);
                    !value.is_empty() && value != *kept
                };
                is_own && !gauges.keep.iter().any(repeats)
            });
            let values = values.map(|(_, value)| value);
            if gauges.is_repeated {
                values.reduce(f64::max).map(|most| (most, 1.0))
            } else {
                sum(values)
            }
        };
        let (running, _) = folded(gauges.running)?;
        let (waiting, _) = folded(gauges.waiting)?;
        let usage = gauges.kv_usage.iter().find_map(|name| folded(*name));
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
    sum(values_of(page, name).map(|(_, value)| value))
}

fn sum(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (sum, n) = values.fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
    (n > 0.0).then_some((sum, n))
}

/// A metric's series: their labels and their values.
fn values_of<'p>(page: &'p str, name: &str) -> impl Iterator<Item = (&'p str, f64)> {
    page.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']))?;
        let (labels, value) = rest.rsplit_once('}').unwrap_or(("", rest));
        let value = value.split_whitespace().next()?.parse::<f64>().ok()?;
        value.is_finite().then_some((labels, value))
    })
}

/// The value of a label, as far as its first quote; empty where there is none.
fn label_of<'l>(labels: &'l str, label: &str) -> &'l str {
    let parts = labels.split(['{', ',']).map(str::trim_start);
    let mut values = parts.filter_map(|part| part.strip_prefix(label)?.strip_prefix("=\""));
    values.next().and_then(|value| value.split('"').next()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Profile, Replica, ReplicaEvent, Request, Time, Watch};
    use crate::exposition::{Dialect, Http, Rank, Server, render};

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
    fn what_repeats_other_series_is_not_added() {
        let sglang = "sglang:num_running_reqs{model_name=\"a\",tp_rank=\"0\"} 4\n\
                      sglang:num_running_reqs{model_name=\"a\",tp_rank=\"1\"} 4\n\
                      sglang:num_queue_reqs{model_name=\"a\",tp_rank=\"0\",priority=\"\"} 5\n\
                      sglang:num_queue_reqs{model_name=\"a\",tp_rank=\"0\",priority=\"1\"} 3\n\
                      sglang:num_queue_reqs{model_name=\"a\",tp_rank=\"0\",priority=\"2\"} 2\n";
        assert_eq!(read(sglang), Some((4.0, 5.0, None)));
        let series = |model: &str, kind: &str, n: u32| {
            format!("nv_trt_llm_request_metrics{{model=\"{model}\",request_type=\"{kind}\"}} {n}\n")
        };
        let triton = ["tensorrt_llm", "ensemble"].map(|model| {
            series(model, "scheduled", 2) + &series(model, "waiting", 7) + &series(model, "max", 64)
        });
        assert_eq!(read(&triton.concat()), Some((2.0, 7.0, None)));
    }

    /// Every engine that can be simulated can be watched, at the page that it has.
    #[test]
    fn the_page_of_every_dialect_is_read() {
        let profile = std::sync::Arc::new(Profile::load("tiny-cpu").unwrap());
        let mut replica = Replica::warm(profile);
        for id in 0..30 {
            replica.submit(Request::new(id, 42, 20), Time::ZERO).unwrap();
        }
        while replica.engine().metrics().finished_length < 5 {
            let next = replica.next_event().unwrap();
            replica.advance(next, Watch::FirstToken, &mut |_: ReplicaEvent| {});
        }
        let gauges = replica.engine().metrics().gauges;
        let (running, waiting) = (gauges.running as f64, gauges.waiting as f64);
        assert!(running > 0.0 && waiting > 0.0);
        for dialect in Dialect::ALL {
            let (ranks, http) = ([Rank::of(&replica)], Http::default());
            let mut page = String::new();
            render(dialect, &Server::new("m", &ranks, &http), &mut page);
            let (seen_running, seen_waiting, _) = read(&page).unwrap_or_else(|| panic!("{page}"));
            assert_eq!((seen_running, seen_waiting), (running, waiting), "{}", dialect.name);
            assert!(PATHS.contains(&dialect.paths[0]), "{}", dialect.name);
        }
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
