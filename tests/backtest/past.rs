//! A history with a known demand: simulated engines, and what Prometheus would have kept of them.
//!
//! Must not be kinder than life: a replica restarts, the version changes on the way with its names,
//! and Prometheus is away twice.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use loadgen::engine::{Lean, LeanEvent, LeanRequest, LeanSample, Profile, Time};

/// Seconds between two scrapes.
pub(super) const SCRAPE_S: u64 = 15;
/// Seconds of the whole history.
pub(super) const LENGTH_S: u64 = 3 * 3_600;
/// The replica that crashes, and when.
const CRASH_S: f64 = 2_407.0;
/// When the new version takes over.
const ROLLOUT_S: f64 = 4_800.0;
/// Seconds in which Prometheus was away: once for four minutes, once for twenty.
const SHORT_GAP_S: (u64, u64) = (3_600, 3_840);
pub(super) const LONG_GAP_S: (u64, u64) = (7_800, 9_000);
/// Tokens that all prompts of the new version have in the cache.
const CACHED: u32 = 256;

/// What came, counted apart from what is scraped.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Truth {
    pub(super) requests: f64,
    pub(super) prompt_tokens: f64,
    pub(super) cached_tokens: f64,
    pub(super) output_tokens: f64,
}

/// A history.
#[derive(Debug)]
pub(super) struct Past {
    /// What Prometheus has kept.
    pub(super) openmetrics: String,
    /// What came outside of the long gap.
    pub(super) truth: Truth,
    /// What came in the long gap.
    pub(super) hidden: Truth,
    /// Seconds since 1970 at which it begins, and ends.
    pub(super) from_s: u64,
    pub(super) to_s: u64,
}

struct Pod {
    name: &'static str,
    new: bool,
    uuid: &'static str,
    from_s: f64,
    /// It takes no more requests from here on.
    until_s: f64,
    engine: Lean,
    /// Of what this process has ended, by the bounds of its histogram.
    outputs: BTreeMap<u32, u32>,
    prompts: BTreeMap<u32, u32>,
}

const BOUNDS: [u32; 9] = [50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000];

impl Pod {
    fn new(profile: &Profile, name: &'static str, uuid: &'static str, new: bool) -> Pod {
        let (from_s, until_s) = if new { (ROLLOUT_S, f64::MAX) } else { (0.0, ROLLOUT_S) };
        let (outputs, prompts) = (BTreeMap::new(), BTreeMap::new());
        Pod { name, new, uuid, from_s, until_s, engine: Lean::new(profile), outputs, prompts }
    }

    fn takes(&self, at_s: f64) -> bool {
        (self.from_s..self.until_s).contains(&at_s)
    }

    /// A minute of drain after its last request.
    fn lives(&self, at_s: f64) -> bool {
        at_s >= self.from_s && at_s < self.until_s + 60.0
    }

    fn advance(&mut self, to: Time, requests: &[LeanRequest]) {
        let (outputs, prompts) = (&mut self.outputs, &mut self.prompts);
        self.engine.advance(to, &mut |event| {
            if let LeanEvent::Finished { id, .. } = event {
                let request = &requests[id as usize];
                for bound in BOUNDS {
                    *outputs.entry(bound).or_default() += u32::from(request.output_tokens <= bound);
                    *prompts.entry(bound).or_default() += u32::from(request.prompt_tokens <= bound);
                }
            }
        });
    }
}

/// Makes it, so that it ends when the clock says.
pub(super) fn past(to_s: u64) -> Past {
    let profile = Profile::load("8b-a100").unwrap();
    let from_s = to_s - LENGTH_S;
    let mut pods = [
        Pod::new(&profile, "llm-6d4cf56db-bcd2f", "GPU-a", false),
        Pod::new(&profile, "llm-6d4cf56db-x7k2p", "GPU-b", false),
        Pod::new(&profile, "llm-7f9c8b5d4-q9w8z", "GPU-c", true),
        Pod::new(&profile, "llm-7f9c8b5d4-m4n5r", "GPU-d", true),
    ];
    let (arrivals, requests) = demand();
    let (mut truth, mut hidden) = (Truth::default(), Truth::default());
    let mut text = String::new();
    let mut next = 0;
    let mut has_crashed = false;
    for scrape_s in (0..=LENGTH_S).step_by(usize::try_from(SCRAPE_S).unwrap()) {
        // Targets are scraped at different moments of the round.
        for (phase, index) in [(3.2, 0), (7.7, 1), (4.1, 2), (9.6, 3)] {
            let now_s = scrape_s as f64 + phase;
            while arrivals.get(next).is_some_and(|at_s| *at_s <= now_s) {
                let at_s = arrivals[next];
                if at_s >= CRASH_S && !has_crashed {
                    has_crashed = true;
                    pods[1].engine = Lean::new(&profile);
                    pods[1].outputs.clear();
                    pods[1].prompts.clear();
                }
                let pod = pods.iter_mut().filter(|pod| pod.takes(at_s));
                let pod = pod.min_by_key(|pod| pod.engine.in_flight()).unwrap();
                let at = Time::from_secs_f64(at_s);
                pod.advance(at, &requests);
                let request = &requests[next];
                let request =
                    LeanRequest { cached_tokens: if pod.new { CACHED } else { 0 }, ..*request };
                pod.engine.submit(request, at);
                let sum = if in_gap(at_s, LONG_GAP_S) { &mut hidden } else { &mut truth };
                sum.requests += 1.0;
                sum.prompt_tokens += f64::from(request.prompt_tokens);
                sum.cached_tokens += f64::from(request.cached_tokens);
                sum.output_tokens += f64::from(request.output_tokens);
                next += 1;
            }
            let now = Time::from_secs_f64(now_s);
            let pod = &mut pods[index];
            if pod.lives(now_s) {
                pod.advance(now, &requests);
                if !in_gap(now_s, SHORT_GAP_S) && !in_gap(now_s, LONG_GAP_S) {
                    let page = pod.engine.sample(now);
                    write_page(&mut text, pod, &page, from_s as f64 + now_s);
                }
            }
        }
        if scrape_s % 30 == 0
            && !in_gap(scrape_s as f64, SHORT_GAP_S)
            && !in_gap(scrape_s as f64, LONG_GAP_S)
        {
            let at_s = from_s + scrape_s;
            let labels = r#"{namespace="team-a",deployment="llm"}"#;
            writeln!(text, "kube_deployment_spec_replicas{labels} 2 {at_s}").unwrap();
            writeln!(text, "kube_deployment_status_replicas_ready{labels} 2 {at_s}").unwrap();
        }
    }
    text.push_str("# EOF\n");
    Past { openmetrics: text, truth, hidden, from_s, to_s }
}

/// Requests a second: a slow wave from one to five.
fn rate(at_s: f64) -> f64 {
    3.0 - 2.0 * (at_s / 5_000.0 * std::f64::consts::TAU).cos()
}

/// Moments and lengths, random and always the same.
fn demand() -> (Vec<f64>, Vec<LeanRequest>) {
    let mut state = 7_u64;
    let mut uniform = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1_u32 << 31)
    };
    let (mut arrivals, mut requests) = (Vec::new(), Vec::new());
    let mut at_s = 0.0;
    while at_s < LENGTH_S as f64 {
        at_s -= (1.0 - uniform()).ln() / rate(at_s);
        let mut around = |mean: u32| {
            let step = usize::from(uniform() > 0.3)
                + usize::from(uniform() > 0.5)
                + usize::from(uniform() > 0.7);
            mean * [30, 60, 100, 210][step] / 100
        };
        let id = u32::try_from(requests.len()).unwrap();
        let (prompt_tokens, output_tokens) = (around(1_400), around(180));
        requests.push(LeanRequest { id, prompt_tokens, cached_tokens: 0, output_tokens });
        arrivals.push(at_s);
    }
    (arrivals, requests)
}

fn in_gap(at_s: f64, (from_s, to_s): (u64, u64)) -> bool {
    (from_s as f64..to_s as f64).contains(&at_s)
}

/// What Prometheus keeps of one scrape: vLLM 0.9.1's names, or those of 0.32.
fn write_page(text: &mut String, pod: &Pod, page: &LeanSample, at_s: f64) {
    let target = format!(r#"namespace="team-a",pod="{}",model_name="m""#, pod.name);
    let rank = if pod.new { r#",engine="0""# } else { "" };
    let mut put = |name: &str, labels: &str, value: f64| {
        writeln!(text, "{name}{{{target}{rank}{labels}}} {value} {at_s:.3}").unwrap();
    };
    put("vllm:num_requests_running", "", page.running as f64);
    put("vllm:num_requests_waiting", "", page.waiting as f64);
    put("vllm:generation_tokens_total", "", page.generation_tokens as f64);
    put("vllm:request_success_total", r#",finished_reason="stop""#, page.finished as f64);
    put("vllm:iteration_tokens_total_count", "", page.steps as f64);
    put("vllm:time_to_first_token_seconds_sum", "", page.ttft_sum_s);
    put("vllm:time_to_first_token_seconds_count", "", page.ttft_count as f64);
    let computed = page.computed_prompt_tokens as f64;
    let itl = if pod.new {
        // Every prompt that was computed had the same part in the cache.
        let cached = f64::from(CACHED) * page.ttft_count as f64;
        put("vllm:kv_cache_usage_perc", "", page.kv_usage);
        put("vllm:prompt_tokens_total", "", computed + cached);
        put("vllm:prompt_tokens_by_source_total", r#",source="local_compute""#, computed);
        put("vllm:prompt_tokens_by_source_total", r#",source="local_cache_hit""#, cached);
        "vllm:inter_token_latency_seconds"
    } else {
        put("vllm:gpu_cache_usage_perc", "", page.kv_usage);
        put("vllm:prompt_tokens_total", "", computed);
        "vllm:time_per_output_token_seconds"
    };
    put(&format!("{itl}_sum"), "", page.itl_sum_s);
    put(&format!("{itl}_count"), "", page.itl_count as f64);
    for (name, counts) in [("prompt", &pod.prompts), ("generation", &pod.outputs)] {
        let name = format!("vllm:request_{name}_tokens_bucket");
        for bound in BOUNDS {
            let count = counts.get(&bound).copied().unwrap_or(0);
            put(&name, &format!(r#",le="{bound}.0""#), f64::from(count));
        }
        put(&name, r#",le="+Inf""#, page.finished as f64);
    }
    let info = r#"block_size="16",num_gpu_blocks="25001""#;
    writeln!(
        text,
        "vllm:cache_config_info{{namespace=\"team-a\",pod=\"{}\",{info}}} 1 {at_s:.3}",
        pod.name
    )
    .unwrap();
    let busy = if page.running > 0 { 93 } else { 0 };
    writeln!(
        text,
        "DCGM_FI_DEV_GPU_UTIL{{namespace=\"team-a\",pod=\"{}\",UUID=\"{}\",gpu=\"0\",Hostname=\"n\"}} {busy} {at_s:.3}",
        pod.name, pod.uuid
    )
    .unwrap();
}
