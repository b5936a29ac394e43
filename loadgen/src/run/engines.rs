//! What the engines say of themselves under the load, once a second: requests that they run and
//! that wait in them, and how full their KV caches are.
//!
//! Must not act on it, nor take a page that is missing or knows nothing of this for an engine
//! without work.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::Serialize;

use super::target::Target;
use crate::series::{self, Combine, Field, From, ROUTER_LABELS, ROUTER_NAMES, lines};

const PERIOD: Duration = Duration::from_secs(1);
const ANSWER_LIMIT: Duration = Duration::from_millis(900);
/// A day of looks, some 4 MB; a longer run keeps its first day.
const MOST_LOOKS: usize = 86_400;

/// Where pages are, in the order in which they are asked for: trtllm-serve has another thing at
/// `/metrics`, which is gone once it was read.
const PATHS: [&str; 3] = ["/prometheus/metrics", "/metrics", "/v1/metrics"];

/// What was seen at a moment, all targets together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Look {
    /// Seconds since the start.
    pub t_s: f64,
    /// Requests that run; `null` unless every target told it.
    pub running: Option<f64>,
    /// Requests that wait in the engines, for room or for something else, likewise.
    pub waiting: Option<f64>,
    /// The used share of the KV cache, 0 to 1, of each target's fullest engine, in the mean over the
    /// targets, likewise.
    pub kv_usage: Option<f64>,
}

impl Look {
    fn of(t_s: f64, pages: &[Option<String>]) -> Look {
        let read: Option<Vec<Load>> =
            pages.iter().map(|page| Load::read(page.as_deref()?)).collect();
        let (mut running, mut waiting, mut kv_usage) = (None, None, None);
        if let Some(engines) = read.filter(|engines| !engines.is_empty()) {
            running = Some(engines.iter().map(|load| load.running).sum());
            waiting = Some(engines.iter().map(|load| load.waiting).sum());
            let usages: Option<Vec<f64>> = engines.iter().map(|load| load.kv_usage).collect();
            kv_usage = usages.map(|usages| usages.iter().sum::<f64>() / usages.len() as f64);
        }
        Look { t_s, running, waiting, kv_usage }
    }
}

/// Most requests that a gauge is believed, as in the scaler.
const MOST_REQUESTS: f64 = 1e9;
/// A share; what is above 1 by rounding is 1.
const MOST_USAGE: f64 = 1.02;

/// The label by which the processes of one server repeat a gauge (vLLM 0.9.2 to 0.11.0).
const COPY_LABEL: &str = "pid";

/// What a page says of its engines' load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Requests that run.
    pub running: f64,
    /// Requests that wait, for whatever it is.
    pub waiting: f64,
    /// The used share of the KV cache, 0 to 1, of the fullest engine; `None` where none tells it.
    pub kv_usage: Option<f64>,
}

impl Load {
    /// What a page says, by the names that the scaler reads too; `None` where it does not tell both
    /// what runs and what waits, says what cannot be, or is a router's that repeats its engines'.
    #[must_use]
    pub fn read(page: &str) -> Option<Load> {
        let mut cells: BTreeMap<Cell, f64> = BTreeMap::new();
        for (name, text, value) in lines::samples(page) {
            if ROUTER_NAMES.contains(&name.as_bytes()) {
                return None;
            }
            let Some(meaning) = series::look_up(name.as_bytes()) else { continue };
            let labels = || lines::labels(text).filter(|(_, value)| !value.is_empty());
            let keep = series::PROFILES[meaning.profile].keep;
            let repeats =
                |(label, value)| keep.iter().any(|&(name, kept)| name == label && value != kept);
            if labels().any(|(label, _)| ROUTER_LABELS.contains(&label)) || labels().any(repeats) {
                continue;
            }
            let mut own: Vec<_> = labels().filter(|(label, _)| *label != COPY_LABEL).collect();
            own.sort_unstable();
            for row in meaning.rows {
                let selects = |only| labels().any(|label| label == only);
                if !matches!(row.from, From::Value) || !row.only.is_none_or(selects) {
                    continue;
                }
                let cell = Cell {
                    profile: meaning.profile,
                    field: row.field,
                    preference: row.preference,
                    takes_largest: row.combine == Combine::Max,
                    series: (row.name, own.clone()),
                };
                // Of copies the largest counts, as a process that knows nothing says 0.
                cells.entry(cell).and_modify(|most| *most = most.max(value)).or_insert(value);
            }
        }
        (0..series::PROFILES.len()).find_map(|profile| Load::of(profile, &cells))
    }

    fn of(profile: usize, cells: &BTreeMap<Cell<'_>, f64>) -> Option<Load> {
        let total = |field, most| {
            let of_field =
                |(cell, _): &(&Cell<'_>, &f64)| (cell.profile, cell.field) == (profile, field);
            let mut cells = cells.iter().filter(of_field).peekable();
            let preference = cells.peek()?.0.preference;
            let mut total: Option<f64> = None;
            for (cell, &value) in cells.take_while(|(cell, _)| cell.preference == preference) {
                if !(0.0..=most).contains(&value) {
                    return None;
                }
                total = Some(match total {
                    None => value,
                    Some(so_far) if cell.takes_largest => so_far.max(value),
                    Some(so_far) => so_far + value,
                });
            }
            total
        };
        let running = total(Field::Running, MOST_REQUESTS)?;
        let waiting = total(Field::Waiting, MOST_REQUESTS)?;
        let deferred = total(Field::WaitingDeferred, MOST_REQUESTS).unwrap_or(0.0);
        let by_tokens = || {
            let used = total(Field::KvUsedTokens, f64::MAX)?;
            Some(used / total(Field::KvTokens, f64::MAX)?).filter(|usage| *usage <= MOST_USAGE)
        };
        let kv_usage = total(Field::KvUsage, MOST_USAGE).or_else(by_tokens);
        let kv_usage = kv_usage.map(|usage| usage.min(1.0));
        Some(Load { running, waiting: waiting + deferred, kv_usage })
    }
}

/// A series of an engine, without the labels of its copies. In this order the preferred names of a
/// field come first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cell<'p> {
    profile: usize,
    field: Field,
    preference: u8,
    takes_largest: bool,
    series: (&'static str, Vec<(&'p str, &'p str)>),
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
            if page.as_deref().is_some_and(|page| Load::read(page).is_some()) {
                return page;
            }
        }
        None
    };
    tokio::time::timeout(ANSWER_LIMIT, look).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Profile, Replica, ReplicaEvent, Request, Time, Watch};
    use crate::exposition::{Dialect, Http, Rank, Server, render};

    const VLLM: &str = "vllm:num_requests_running{engine=\"0\"} 4.0\n\
                        vllm:num_requests_running{engine=\"1\"} 2.0\n\
                        vllm:num_requests_waiting{engine=\"0\"} 3.0\n\
                        vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n\
                        vllm:kv_cache_usage_perc{engine=\"1\"} 0.25\n";

    #[test]
    fn engines_are_summed_and_told_by_their_names() {
        let read = |page| Load::read(page).map(|load| (load.running, load.waiting, load.kv_usage));
        let llama = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 7\n";
        assert_eq!(read(VLLM), Some((6.0, 3.0, Some(0.5))));
        assert_eq!(read(llama), Some((1.0, 7.0, None)));
        let pages = [VLLM, llama].map(|page| Some(page.to_owned()));
        let look = Look::of(2.0, &pages);
        assert_eq!((look.running, look.waiting, look.kv_usage), (Some(7.0), Some(10.0), None));
    }

    #[test]
    fn pages_that_were_once_misread_are_read_as_the_scaler_reads_them() {
        let read =
            |page: &str| Load::read(page).map(|load| (load.running, load.waiting, load.kv_usage));
        let sglang = "sglang_num_running_reqs{model_name=\"a\",tp_rank=\"0\"} 4\n\
                      sglang_num_running_reqs{model_name=\"a\",tp_rank=\"1\"} 4\n\
                      sglang_num_queue_reqs{model_name=\"a,priority=\\\"9\\\"\",tp_rank=\"0\",priority=\"\"} 5\n\
                      sglang_num_queue_reqs{model_name=\"a\",tp_rank=\"0\",priority=\"1\"} 3\n\
                      sglang_num_grammar_queue_reqs{model_name=\"a\",tp_rank=\"0\"} 7\n";
        assert_eq!(read(sglang), Some((4.0, 12.0, None)));
        assert_eq!(read(&sglang.replace("sglang_", "sglang:")), Some((4.0, 12.0, None)));
        let series = |model: &str, kind: &str, n: u32| {
            format!("nv_trt_llm_request_metrics{{model=\"{model}\",request_type=\"{kind}\"}} {n}\n")
        };
        let triton = ["tensorrt_llm", "ensemble"].map(|model| {
            series(model, "scheduled", 2) + &series(model, "waiting", 7) + &series(model, "max", 64)
        });
        assert_eq!(read(&triton.concat()), Some((2.0, 7.0, None)));
        let lmdeploy = "lmdeploy:num_requests_running 1\nlmdeploy:num_requests_waiting 0\n\
                        lmdeploy:num_api_requests_waiting 9\n";
        assert_eq!(read(lmdeploy), Some((1.0, 9.0, None)));
        let tgi = "tgi_batch_current_size 1\ntgi_queue_size 0\n\
                   tgi_batch_current_max_tokens 50\ntgi_batch_total_tokens 100\n";
        assert_eq!(read(tgi), Some((1.0, 0.0, Some(0.5))));
        let copies = "vllm:num_requests_running{engine=\"0\"} 1\n\
                      vllm:num_requests_waiting{engine=\"0\"} 0\n\
                      vllm:kv_cache_usage_perc{engine=\"0\",pid=\"101\"} 0.9\n\
                      vllm:kv_cache_usage_perc{engine=\"0\",pid=\"102\"} 0.0\n";
        assert_eq!(read(copies), Some((1.0, 0.0, Some(0.9))));
        // A router's, and an impossible one.
        assert_eq!(read(&copies.replace("engine=", "server=")), None);
        assert_eq!(read(&copies.replace("\"} 1\n", "\"} -1\n")), None);
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
            let load = Load::read(&page).unwrap_or_else(|| panic!("{page}"));
            assert_eq!((load.running, load.waiting), (running, waiting), "{}", dialect.name);
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
