//! Devices as exporters show them.

use std::fmt::Write as _;

use ghostscaler::decision::{Gpu, GpuSample, Observation, Phase};
use ghostscaler::inventory::Member;
use ghostscaler::trigger;
use libtest_mimic::Trial;

use super::scaler::{NAMESPACE, Scaler, pod, vllm, workload};
use super::trial;
use super::upstream::Upstream;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("f08_replicas_that_load_are_not_in_the_mean_of_the_gpus", loading),
        trial("f48_every_poll_gets_the_same_aggregate_of_all_nodes", nodes),
        trial("f64_reserved_memory_is_no_signal", reserved),
    ]
}

/// One row a pod, each on a device of its own.
fn page(metric: &str, by_pod: &[(&str, f64)]) -> String {
    let mut page = String::new();
    for (index, (pod, value)) in by_pod.iter().enumerate() {
        writeln!(
            page,
            "{metric}{{gpu=\"{index}\",UUID=\"GPU-{pod}\",Hostname=\"n-{pod}\",\
             namespace=\"{NAMESPACE}\",pod=\"{pod}\"}} {value}"
        )
        .unwrap();
    }
    page
}

fn config(exporters: &[Upstream]) -> String {
    let urls: Vec<_> = exporters.iter().map(|exporter| format!("'{}'", exporter.url())).collect();
    format!("dcgm: {{endpoints: [{}]}}", urls.join(", "))
}

fn sample(seen: &Observation) -> Option<GpuSample> {
    match seen.gpu {
        Gpu::Fresh(sample) => Some(sample),
        Gpu::Absent | Gpu::Unread { .. } | Gpu::Lost { .. } => None,
    }
}

/// The use of so many devices, once all of them have been read.
async fn busy(scaler: &Scaler, devices: u32) -> GpuSample {
    let is_whole = |sample: GpuSample| sample.devices == devices;
    let seen = scaler.observed("llm", |seen| sample(seen).is_some_and(is_whole)).await;
    sample(&seen).unwrap()
}

fn assert_close(found: Option<f64>, expected: f64) {
    assert!(found.is_some_and(|found| (found - expected).abs() < 1e-9), "{found:?}");
}

async fn loading() {
    let rows = [("a", 85.0), ("b", 83.0), ("c", 0.0), ("d", 0.0)];
    let exporters = [Upstream::page(page("DCGM_FI_DEV_GPU_UTIL", &rows)).await];
    let engine = Upstream::page(vllm(0, 8)).await;
    // One pod loads its weights; one has just turned ready.
    let starting = Member { phase: Phase::Starting, ready_at: None, ..pod("c", None) };
    let now = ghostscaler::clock::Clock::start().now();
    let new = Member { ready_at: Some(now), ..pod("d", Some(&engine)) };
    let pods = vec![pod("a", Some(&engine)), pod("b", Some(&engine)), starting, new];
    let scaler = Scaler::start(&config(&exporters), vec![workload("llm", pods, &[])]).await;
    assert_close(busy(&scaler, 2).await.busy, 0.84);
    assert_eq!(scaler.decided("llm", |_| true).await.want, 4);
}

async fn nodes() {
    let mut exporters = Vec::new();
    for (pod, used) in [("a", 90.0), ("b", 10.0), ("c", 10.0)] {
        exporters.push(Upstream::page(page("DCGM_FI_DEV_GPU_UTIL", &[(pod, used)])).await);
    }
    let engine = Upstream::page(vllm(0, 8)).await;
    let pods = ["a", "b", "c"].map(|name| pod(name, Some(&engine))).to_vec();
    let scaler = Scaler::start(&config(&exporters), vec![workload("llm", pods, &[])]).await;
    assert_close(busy(&scaler, 3).await.busy, 1.1 / 3.0);
    let all = |busy: f64| (busy - 1.1 / 3.0).abs() < 1e-9;
    scaler.decided("llm", |decision| decision.inputs.gpu_busy.is_some_and(all)).await;
    // Whichever connection a poll takes, what is answered was decided on all nodes.
    for _ in 0..20 {
        assert_eq!(scaler.keda().await.wanted("llm").await.unwrap(), 3);
        let (_status, shown) = scaler.http("GET", "/api/v1/workloads/field/llm").await;
        assert_close(shown["decision"]["inputs"]["gpu_busy"].as_f64(), 1.1 / 3.0);
    }
}

async fn reserved() {
    let memory = page("DCGM_FI_DEV_FB_USED", &[("a", 75_000.0)])
        + &page("DCGM_FI_DEV_FB_FREE", &[("a", 6_500.0)])
        + &page("DCGM_FI_DEV_GPU_UTIL", &[("a", 0.0)]);
    let exporters = [Upstream::page(memory).await];
    let engine = Upstream::page(vllm(0, 0)).await;
    let pods = vec![pod("a", Some(&engine))];
    let scaler = Scaler::start(&config(&exporters), vec![workload("llm", pods, &[])]).await;
    let expected = GpuSample { devices: 1, busy: Some(0.0), ..GpuSample::default() };
    assert_eq!(busy(&scaler, 1).await, expected);
    let decision = scaler.decided("llm", |decision| decision.inputs.gpu_busy.is_some()).await;
    assert_eq!(decision.want, 1);
    assert!(decision.votes.iter().all(|vote| vote.want.is_none_or(|want| want <= 1)));
    // Whoever wires it is told.
    for key in ["gpuMemory", "metricName", "DCGM_FI_DEV_FB_USED"] {
        trigger::parse([(key, "80")]).unwrap_err();
    }
}
