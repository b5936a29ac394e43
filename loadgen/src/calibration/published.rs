//! Published measurements of real engines, and the same loads put on the simulated one.
//!
//! Must not hold a number without its source.

use std::sync::Arc;

use crate::engine::{Engine, Event, Profile, Rejected, Request, Time, Watch, secs_from_ps};

/// Clients that each send a request, wait for its end and send the next at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedLoop {
    /// Clients.
    pub concurrency: u32,
    /// Tokens of each prompt.
    pub prompt_tokens: u32,
    /// Tokens generated for each request.
    pub output_tokens: u32,
}

/// What a load generator sees of a closed loop; means over requests, or over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// Time to first token.
    pub ttft_ms: f64,
    /// Inter-token latency: (end − first token) / (tokens − 1).
    pub itl_ms: f64,
    /// Output tokens a second.
    pub tokens_per_s: f64,
    /// Requests past their first token, by Little's law: request rate × decode time.
    pub decoding: f64,
    /// The gauge `num_requests_running`, over time.
    pub running: f64,
}

/// A published row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Published {
    /// The load.
    pub load: ClosedLoop,
    /// Time to first token.
    pub ttft_ms: f64,
    /// Inter-token latency.
    pub itl_ms: f64,
    /// Output tokens a second.
    pub tokens_per_s: f64,
}

impl Published {
    /// Requests past their first token, as [`Seen::decoding`].
    #[must_use]
    pub fn decoding(&self) -> f64 {
        decoding(&self.load, self.tokens_per_s, self.itl_ms)
    }
}

const fn row(load: [u32; 3], ttft_ms: f64, itl_ms: f64, tokens_per_s: f64) -> Published {
    let [concurrency, prompt_tokens, output_tokens] = load;
    let load = ClosedLoop { concurrency, prompt_tokens, output_tokens };
    Published { load, ttft_ms, itl_ms, tokens_per_s }
}

/// NVIDIA NIM 1.8.0, Llama-3.3-70B in fp8 on two H100 [docs.nvidia.com/nim/benchmarking].
pub const NIM_70B: [Published; 8] = [
    row([1, 5_000, 500], 406.8, 18.58, 51.7),
    row([5, 5_000, 500], 546.7, 21.83, 218.5),
    row([25, 5_000, 500], 688.7, 38.75, 623.4),
    row([50, 5_000, 500], 834.5, 59.73, 814.4),
    row([100, 5_000, 500], 7_996.0, 92.91, 917.0),
    row([150, 5_000, 500], 34_794.0, 92.86, 921.0),
    row([200, 5_000, 500], 61_680.0, 93.06, 921.0),
    row([250, 5_000, 500], 88_605.0, 93.2, 920.0),
];

/// NVIDIA NIM 1.8.0, Llama-3.1-8B [as [`NIM_70B`]]. Lengths are not printed there: 200 generated
/// tokens follow from its columns, 200 prompt tokens are assumed.
pub const NIM_8B: [Published; 8] = [
    row([1, 200, 200], 10.26, 4.63, 214.6),
    row([5, 200, 200], 16.81, 4.58, 1_077.0),
    row([25, 200, 200], 36.34, 5.19, 4_679.0),
    row([50, 200, 200], 67.41, 5.91, 8_018.0),
    row([100, 200, 200], 119.97, 7.57, 12_215.0),
    row([150, 200, 200], 346.5, 9.81, 12_989.0),
    row([200, 200, 200], 465.2, 12.65, 13_348.0),
    row([250, 200, 200], 605.6, 16.14, 12_965.0),
];

/// Llama-3.1-8B on an A100 with 40 GB under vLLM 0.23 [johnmusgrave.com]: output tokens a second
/// of one client, and how much more eight get.
pub const A100_40GB: (ClosedLoop, f64, f64) =
    (ClosedLoop { concurrency: 1, prompt_tokens: 1_024, output_tokens: 128 }, 75.0, 6.6);

/// Llama-3.1-8B in fp16 on one H100 under vLLM 0.21 (yobitel): inter-token latency at so many
/// clients. Lengths are not printed there: 200 and 200 tokens are assumed. Its rows from 16 clients
/// on are not used: throughput falls where NVIDIA's rises sixfold.
pub const H100_ALONE: [(ClosedLoop, f64); 2] = [
    (ClosedLoop { concurrency: 1, prompt_tokens: 200, output_tokens: 200 }, 6.48),
    (ClosedLoop { concurrency: 4, prompt_tokens: 200, output_tokens: 200 }, 6.59),
];

/// Puts a closed loop on an engine: two rounds of all clients to settle, sixteen to measure, and
/// at least 64 requests.
///
/// # Errors
///
/// When the engine cannot serve requests of these lengths.
pub fn run(profile: &Arc<Profile>, load: &ClosedLoop) -> Result<Seen, Rejected> {
    let settle = 2 * u64::from(load.concurrency);
    let measure = (16 * u64::from(load.concurrency)).max(64);
    let mut engine = Engine::new(Arc::clone(profile));
    let mut submitted = 0;
    let mut submit = |engine: &mut Engine, now: Time| {
        submitted += 1;
        engine.submit(Request::new(submitted, load.prompt_tokens, load.output_tokens), now)
    };
    for _ in 0..load.concurrency {
        submit(&mut engine, Time::ZERO)?;
    }
    let (mut finished, mut begun, mut now) = (0, Time::ZERO, Time::ZERO);
    let (mut ttft_ps, mut decode_ps, mut running_ps) = (0.0, 0.0, 0.0);
    while let Some(next) = engine.next_event().filter(|_| finished < settle + measure) {
        let mut ended = 0;
        let running = engine.metrics().gauges.running as f64;
        engine.advance(next, Watch::FirstToken, &mut |event| match event {
            Event::Finished { served, .. } => {
                ended += 1;
                if finished + ended > settle {
                    let first_token = served.first_token.unwrap_or(served.last_token);
                    ttft_ps += first_token.since(served.arrival) as f64;
                    decode_ps += served.last_token.since(first_token) as f64;
                }
            }
            Event::Token { .. } | Event::Preempted { .. } => {}
        });
        if finished >= settle {
            running_ps += running * next.since(now) as f64;
        } else if finished + ended >= settle {
            begun = next;
        }
        now = next;
        finished += ended;
        for _ in 0..ended {
            submit(&mut engine, now)?;
        }
    }
    let span_s = secs_from_ps(now.since(begun));
    let requests = (finished - settle) as f64;
    let tokens_per_s = requests * f64::from(load.output_tokens) / span_s;
    let gaps = f64::from(load.output_tokens.saturating_sub(1).max(1));
    let itl_ms = decode_ps / requests / gaps / 1e9;
    Ok(Seen {
        ttft_ms: ttft_ps / requests / 1e9,
        itl_ms,
        tokens_per_s,
        decoding: decoding(load, tokens_per_s, itl_ms),
        running: running_ps / now.since(begun) as f64,
    })
}

fn decoding(load: &ClosedLoop, tokens_per_s: f64, itl_ms: f64) -> f64 {
    let requests_per_s = tokens_per_s / f64::from(load.output_tokens);
    requests_per_s * f64::from(load.output_tokens.saturating_sub(1)) * itl_ms / 1e3
}
