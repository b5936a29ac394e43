//! Tests of an exporter's page: what the exporter's template would print, and each of its faults.

use super::*;
use crate::dcgm::config::Fleet;
use crate::engine::PS_PER_MS;

/// The exporter of the only node of a fleet with this style and these GPUs.
fn exporter(style: &str, gpus: &str) -> Exporter {
    node(style, &format!("name: gpu-node-07, gpus: {gpus}"))
}

fn node(style: &str, node: &str) -> Exporter {
    let fleet = format!("{{style: {{{style}}}, nodes: [{{{node}}}]}}");
    Exporter::of_fleet(&Fleet::parse("fleet", &fleet).unwrap()).remove(0)
}

const ONE_POD: &str =
    "[{model: h100-80gb, pods: [{namespace: serving, name: llm-0, container: vllm}]}]";

/// An engine's work, in milliseconds of base and of prefill.
fn work(base_ms: u64, prefill_ms: u64) -> Work {
    let (base_ps, prefill_ps) = (base_ms * PS_PER_MS, prefill_ms * PS_PER_MS);
    Work { base_ps, prefill_ps, ..Work::default() }
}

/// Ticks each second from `from` to `to`, with each device's only holder busy for a share of each.
fn run(exporter: &mut Exporter, from: u64, to: u64, busy_ms: u64) {
    for second in from..=to {
        for device in 0..exporter.n_devices() {
            exporter.observe(DeviceIndex(device), 0, &work(busy_ms * second, 0));
        }
        exporter.tick(Time::from_millis(1_000 * second));
    }
}

fn rows<'a>(exporter: &'a Exporter, metric: &str) -> Vec<&'a str> {
    let is_row = |line: &&str| line.strip_prefix(metric).is_some_and(|rest| rest.starts_with('{'));
    exporter.page().lines().filter(is_row).collect()
}

fn values(exporter: &Exporter, metric: &str) -> Vec<f64> {
    let value = |row: &&str| row.rsplit_once(' ').unwrap().1.parse().unwrap();
    rows(exporter, metric).iter().map(value).collect()
}

fn label<'a>(row: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = row.split_once(&format!("{name}=\""))?;
    Some(rest.split_once('"')?.0)
}

#[test]
fn a_page_has_the_form_of_the_exporters_template() {
    let mut exporter = exporter("interval: 1s", ONE_POD);
    run(&mut exporter, 0, 2, 140);
    let uuid = label(rows(&exporter, "DCGM_FI_DEV_GPU_UTIL")[0], "UUID").unwrap();
    let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
    assert_eq!(lengths, [3, 8, 4, 4, 4, 12], "{uuid}");
    let labels = "{gpu=\"0\",UUID=\"the uuid\",pci_bus_id=\"00000000:19:00.0\",\
                  device=\"nvidia0\",modelName=\"NVIDIA H100 80GB HBM3\",\
                  Hostname=\"gpu-node-07\",DCGM_FI_DRIVER_VERSION=\"570.124.06\",\
                  container=\"vllm\",namespace=\"serving\",pod=\"llm-0\"}";
    let labels = labels.replace("the uuid", uuid);
    // 108 W of 700 are drawn by holding the model; 0.14 of the time 0.6 of the rest.
    let watts = 108.0 + 592.0 * 0.14 * 0.6;
    let expected = [
        ("DCGM_FI_DEV_POWER_USAGE", "gauge", format!("{watts:.6}")),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", format!("{:.0}", 2e3 * watts)),
        ("DCGM_FI_DEV_GPU_UTIL", "gauge", "14".to_owned()),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "8".to_owned()),
        ("DCGM_FI_DEV_ENC_UTIL", "gauge", "0".to_owned()),
        ("DCGM_FI_DEV_DEC_UTIL", "gauge", "0".to_owned()),
        ("DCGM_FI_DEV_FB_FREE", "gauge", "7519".to_owned()),
        ("DCGM_FI_DEV_FB_USED", "gauge", "73403".to_owned()),
        ("DCGM_FI_DEV_FB_RESERVED", "gauge", "637".to_owned()),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "0.140000".to_owned()),
        ("DCGM_FI_PROF_SM_ACTIVE", "gauge", "0.084000".to_owned()),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "0.004200".to_owned()),
        ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "0.084000".to_owned()),
    ];
    let mut lines = exporter.page().lines();
    for (name, kind, value) in expected {
        assert!(lines.next().unwrap().starts_with(&format!("# HELP {name} ")), "{name}");
        assert_eq!(lines.next().unwrap(), format!("# TYPE {name} {kind}"));
        assert_eq!(lines.next().unwrap(), format!("{name}{labels} {value}"));
    }
    assert_eq!(lines.next(), None);
    assert!(exporter.page().ends_with('\n'));
}

#[test]
fn names_and_labels_follow_the_version() {
    let mut renamed = exporter("names: renamed, host: hostname", ONE_POD);
    renamed.tick(Time::ZERO);
    let row = rows(&renamed, "DCGM_FI_DEV_GPU_UTIL_RATIO")[0];
    assert_eq!((label(row, ",hostname"), label(row, "Hostname")), (Some("gpu-node-07"), None));
    assert_eq!(rows(&renamed, "DCGM_FI_PROF_TENSOR_UTIL_RATIO").len(), 1);

    let mut old = exporter("names: old, host: none", ONE_POD);
    old.tick(Time::ZERO);
    let row = rows(&old, "dcgm_gpu_utilization")[0];
    let pod = ["pod_namespace", "pod_name", "container_name"].map(|name| label(row, name));
    assert_eq!(pod, [Some("serving"), Some("llm-0"), Some("vllm")]);
    assert!(label(row, "uuid").unwrap().starts_with("GPU-"));
    assert!(!old.page().contains("PROF") && !old.page().contains("ostname"));

    let mut exported = exporter("pods: exported, sm_active: false", ONE_POD);
    exported.tick(Time::ZERO);
    let row = rows(&exported, "DCGM_FI_DEV_GPU_UTIL")[0];
    let seen = ["exported_pod", ",namespace", ",pod", "exported_container"];
    let expected = [
        Some("llm-0"),
        Some("gpu-operator"),
        Some("nvidia-dcgm-exporter-gpu-node-07"),
        Some("vllm"),
    ];
    assert_eq!(seen.map(|name| label(row, name)), expected);
    assert!(!exported.page().contains("SM_ACTIVE"));

    let mut without = exporter("pods: none", ONE_POD);
    without.tick(Time::ZERO);
    assert!(!without.page().contains("llm-0") && !without.page().contains("namespace"));
}

#[test]
fn a_page_shows_the_second_before_it_was_collected() {
    let mut exporter = exporter("interval: 30s", ONE_POD);
    assert_eq!(exporter.page(), "", "nothing has been collected");
    exporter.tick(Time::ZERO);
    assert_eq!(values(&exporter, "DCGM_FI_DEV_GPU_UTIL"), [0.0]);
    // A burst of 29 seconds, of which the first is collected, and two of rest.
    run(&mut exporter, 1, 29, 1_000);
    assert_eq!(values(&exporter, "DCGM_FI_DEV_GPU_UTIL"), [100.0]);
    for second in 30..=31 {
        exporter.tick(Time::from_millis(1_000 * second));
    }
    assert_eq!(values(&exporter, "DCGM_FI_DEV_GPU_UTIL"), [0.0]);
    // Energy is the one counter that has seen all of it.
    let joules = values(&exporter, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")[0] / 1e3;
    let expected = 31.0 * 108.0 + 29.0 * 592.0 * 0.6;
    assert!((joules - expected).abs() < 0.001, "{joules} J, expected {expected}");
}

#[test]
fn memory_is_held_from_the_start_and_does_not_move_with_the_load() {
    let mut exporter = exporter("interval: 1s", ONE_POD);
    exporter.tick(Time::ZERO);
    let idle = values(&exporter, "DCGM_FI_DEV_FB_USED");
    run(&mut exporter, 1, 3, 1_000);
    assert_eq!(values(&exporter, "DCGM_FI_DEV_FB_USED"), idle);
    assert_eq!(values(&exporter, "DCGM_FI_DEV_GPU_UTIL"), [100.0]);
}

#[test]
fn mig_instances_have_rows_of_their_own_and_their_boards_power() {
    let gpus = "[{model: t4}, {model: a100-40gb, mig: [\
                {profile: 3g.20gb, id: 2, pods: [{namespace: chat, name: a}]}, \
                {profile: 1g.5gb, id: 9, pods: [{namespace: chat, name: b}]}]}]";
    let mut exporter = exporter("interval: 1s", gpus);
    exporter.tick(Time::ZERO);
    exporter.observe(DeviceIndex(1), 0, &work(0, 700));
    exporter.tick(Time::from_millis(1_000));
    let found = rows(&exporter, "DCGM_FI_PROF_GR_ENGINE_ACTIVE");
    let labels: Vec<_> = found
        .iter()
        .map(|row| {
            (
                label(row, "{gpu"),
                label(row, "GPU_I_PROFILE"),
                label(row, "GPU_I_ID"),
                label(row, ",pod"),
            )
        })
        .collect();
    let expected = [
        (Some("0"), None, None, None),
        (Some("1"), Some("3g.20gb"), Some("2"), Some("a")),
        (Some("1"), Some("1g.5gb"), Some("9"), Some("b")),
    ];
    assert_eq!(labels, expected);
    assert_eq!(label(found[1], "UUID"), label(found[2], "UUID"), "the parent's");
    assert_eq!(values(&exporter, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), [0.0, 0.7, 0.0]);
    for absent in ["GPU_UTIL", "MEM_COPY_UTIL", "ENC_UTIL"] {
        assert_eq!(rows(&exporter, &format!("DCGM_FI_DEV_{absent}")).len(), 1, "{absent}");
    }
    // Three sevenths of the board at 0.7 of its power.
    let watts = 104.0 + 296.0 * 0.7 * 3.0 / 7.0;
    let power = values(&exporter, "DCGM_FI_DEV_POWER_USAGE");
    assert!((power[1] - watts).abs() < 1e-6 && power[1].to_bits() == power[2].to_bits());
    let memory = values(&exporter, "DCGM_FI_DEV_FB_USED");
    assert_eq!(memory, [0.0, (19_456.0_f64 * 0.9).round(), (4_864.0_f64 * 0.9).round()]);
}

const SHARED: &str = "[{model: t4, sharing: {by: time_slicing, replicas: 4}, pods: [\
                      {namespace: dev, name: a, fb_mib: 6210}, \
                      {namespace: dev, name: b, fb_mib: 2410}, \
                      {namespace: demo, name: c, fb_mib: 0}]}]";

fn shared(style: &str, gpus: &str) -> Exporter {
    let mut exporter = exporter(&format!("interval: 1s, {style}"), gpus);
    exporter.tick(Time::ZERO);
    exporter.observe(DeviceIndex(0), 0, &work(0, 500));
    exporter.observe(DeviceIndex(0), 1, &work(0, 200));
    exporter.tick(Time::from_millis(1_000));
    exporter
}

#[test]
fn a_shared_device_names_one_pod_and_another_one_the_next_time() {
    let mut exporter = shared("shared: one", SHARED);
    let mut named = Vec::new();
    for second in 2..=4 {
        let rows = rows(&exporter, "DCGM_FI_DEV_GPU_UTIL");
        assert_eq!(rows.len(), 1);
        named.push(label(rows[0], ",pod").unwrap().to_owned());
        exporter.tick(Time::from_millis(1_000 * second));
    }
    assert_eq!(named, ["b", "c", "a"]);
}

#[test]
fn copies_of_a_shared_device_repeat_its_value_and_processes_have_their_own() {
    let copies = shared("shared: copies", SHARED);
    assert_eq!(values(&copies, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), [0.7; 3]);
    assert_eq!(values(&copies, "DCGM_FI_DEV_FB_USED"), [8_620.0; 3]);
    let vgpus: Vec<_> =
        rows(&copies, "DCGM_FI_DEV_FB_USED").iter().map(|r| label(r, "vgpu")).collect();
    assert_eq!(vgpus, [Some("0"), Some("1"), Some("2")]);

    let processes = shared("shared: processes", SHARED);
    assert_eq!(values(&processes, "DCGM_FI_DEV_FB_USED"), [8_620.0, 6_210.0, 2_410.0, 0.0]);
    assert_eq!(values(&processes, "DCGM_FI_DEV_GPU_UTIL"), [70.0, 50.0, 20.0, 0.0]);
    assert_eq!(values(&processes, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), [0.7]);
    assert_eq!(label(rows(&processes, "DCGM_FI_DEV_FB_USED")[0], ",pod"), None);
}

#[test]
fn turns_add_up_and_what_runs_at_once_overlaps() {
    let sliced = shared("shared: one", SHARED);
    assert_eq!(values(&sliced, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), [0.7]);
    let mps = shared("shared: one", &SHARED.replace("time_slicing", "mps"));
    // 0.5 + 0.2 - 0.5 x 0.2.
    assert_eq!(values(&mps, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), [0.6]);
}

#[test]
fn gaps_and_broken_profiling_take_values_away() {
    let mut gone = node(
        "interval: 1s",
        "name: n, gaps: [{from: 2s, for: 2s}], \
         gpus: [{model: t4}, {model: t4, gaps: [{from: 5s, for: 1s}]}]",
    );
    let mut seen = Vec::new();
    for second in 0..=6 {
        gone.tick(Time::from_millis(1_000 * second));
        seen.push(rows(&gone, "DCGM_FI_DEV_GPU_UTIL").len());
    }
    assert_eq!(seen, [2, 2, 0, 0, 2, 1, 2]);

    for (profiling, n_rows) in [("on", 1), ("off", 0), ("zero", 1)] {
        let mut exporter =
            node("interval: 1s", &format!("name: n, profiling: {profiling}, gpus: {ONE_POD}"));
        run(&mut exporter, 0, 2, 900);
        let expected = if profiling == "on" { 0.9 } else { 0.0 };
        assert_eq!(values(&exporter, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), vec![expected; n_rows]);
        assert_eq!(values(&exporter, "DCGM_FI_DEV_GPU_UTIL"), [90.0]);
    }
}

#[test]
fn a_pod_that_has_ended_leaves_what_the_file_says() {
    let gpus = "[{model: l4, pods: [{namespace: s, name: clean, ends: 3s}]}, \
                {model: l4, pods: [{namespace: s, name: late, ends: 3s, label_lingers: 2s}]}, \
                {model: l4, pods: [{namespace: s, name: latched, ends: 3s, latched: true}]}]";
    let mut exporter = exporter("interval: 1s", gpus);
    run(&mut exporter, 0, 4, 800);
    assert_eq!(values(&exporter, "DCGM_FI_DEV_GPU_UTIL"), [0.0, 0.0, 80.0]);
    assert_eq!(values(&exporter, "DCGM_FI_DEV_FB_USED"), [0.0; 3]);
    assert_eq!(values(&exporter, "DCGM_FI_DEV_POWER_USAGE"), [15.0; 3], "no process holds them");
    let pods = |exporter: &Exporter| {
        let rows = rows(exporter, "DCGM_FI_DEV_GPU_UTIL");
        rows.iter().map(|row| label(row, ",pod").map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(pods(&exporter), [None, Some("late".to_owned()), None]);
    run(&mut exporter, 5, 5, 800);
    assert_eq!(pods(&exporter), [None, None, None]);
}

#[test]
fn a_process_that_no_pod_accounts_for_is_busy_without_labels() {
    let mut exporter = exporter("interval: 1s", "[{model: t4, pods: [{}]}]");
    run(&mut exporter, 0, 1, 600);
    assert_eq!(values(&exporter, "DCGM_FI_DEV_GPU_UTIL"), [60.0]);
    assert_eq!(label(rows(&exporter, "DCGM_FI_DEV_GPU_UTIL")[0], ",pod"), None);
}

#[test]
fn devices_change_hands_in_a_simulation() {
    let mut exporter = exporter("interval: 1s", "[{model: t4, count: 2}]");
    let pod = |name: &str| Pod {
        namespace: Some("s".to_owned()),
        name: Some(name.to_owned()),
        ..Pod::default()
    };
    assert!(exporter.hold(DeviceIndex(1), &pod("a")));
    assert!(!exporter.hold(DeviceIndex(2), &pod("a")), "there is no such device");
    assert!(!exporter.observe(DeviceIndex(0), 0, &work(1, 0)), "nobody holds it");
    run(&mut exporter, 0, 1, 500);
    assert_eq!(values(&exporter, "DCGM_FI_DEV_GPU_UTIL"), [0.0, 50.0]);
    assert!(exporter.release(DeviceIndex(1), "s", "a"));
    assert!(!exporter.release(DeviceIndex(1), "s", "a"));
    assert!(exporter.hold(DeviceIndex(1), &pod("b")));
    exporter.tick(Time::from_millis(2_000));
    assert_eq!(values(&exporter, "DCGM_FI_DEV_GPU_UTIL"), [0.0, 0.0]);
    assert_eq!(label(rows(&exporter, "DCGM_FI_DEV_GPU_UTIL")[1], ",pod"), Some("b"));
}
