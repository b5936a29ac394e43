//! Rows of dcgm-exporter in every shape it writes them.

use proptest::prelude::*;

use super::*;
use crate::decision::GpuSample;

/// A page of an exporter, read at moment 0.
fn read(page: &str) -> Devices {
    let mut reader = DcgmReader::new(Format::Text, Moment(0));
    reader.push(page.as_bytes()).unwrap();
    reader.finish().unwrap()
}

/// The only device of a page.
fn device(page: &str) -> Device {
    let devices = read(page);
    assert_eq!(devices.by_key.len(), 1, "{devices:?}");
    devices.by_key.into_values().next().unwrap()
}

fn pods(device: &Device) -> Vec<&str> {
    device.owners.iter().map(|owner| &*owner.pod).collect()
}

fn share(devices: &Devices, pods: &[&str]) -> Option<GpuSample> {
    let share = Owned::of(devices).share_of("serving", pods.iter().copied(), Moment(0))?;
    // Of pods that are asked for and hold nothing the tests below say nothing.
    Some(GpuSample { unread: 0, ..share })
}

const ONE_OWNER: &str = r#"
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1f",device="nvidia0",modelName="NVIDIA H100",Hostname="n7",container="vllm",namespace="serving",pod="api-1"} 14
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1f",device="nvidia0",modelName="NVIDIA H100",Hostname="n7",container="vllm",namespace="serving",pod="api-1"} 167.412000
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-1f",device="nvidia0",modelName="NVIDIA H100",Hostname="n7",container="vllm",namespace="serving",pod="api-1"} 0.139206
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1f",device="nvidia0",modelName="NVIDIA H100",Hostname="n7",container="vllm",namespace="serving",pod="api-1"} 61234
"#;

#[test]
fn a_device_with_one_owner_is_attributed_to_it() {
    let devices = read(ONE_OWNER);
    let key = DeviceKey { uuid: "GPU-1f".into(), instance: None };
    let device = &devices.by_key[&key];
    assert_eq!(device.gpu_util, Some(0.14));
    assert_eq!(device.gr_engine, Some(0.139206));
    assert_eq!(device.fb_used_mib, Some(61_234.0));
    assert_eq!(device.host.as_deref(), Some("n7"));
    assert_eq!(devices.board_power_w.get("GPU-1f"), Some(&167.412));
    let expected = GpuSample { devices: 1, busy: Some(0.139206), ..GpuSample::default() };
    assert_eq!(share(&devices, &["api-1"]), Some(expected));
    // Another workload's pods, another tenant's namespace, a pod in its warm-up.
    assert_eq!(share(&devices, &["api-2"]), None);
    let owned = Owned::of(&devices);
    assert_eq!(owned.share_of("other", ["api-1"], Moment(0)), None);
    assert_eq!(owned.pods("serving").collect::<Vec<_>>(), ["api-1"]);
    assert_eq!(owned.pods("other").count(), 0);
    assert_eq!(share(&devices, &[]), None);
}

#[test]
fn f50_three_sharers_of_a_device_are_one_device_and_nobodys() {
    let devices = read(concat!(
        r#"DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-c2",namespace="serving",pod="a",vgpu="0"} 0.714"#,
        "\n",
        r#"DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-c2",namespace="serving",pod="b",vgpu="1"} 0.714"#,
        "\n",
        r#"DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-c2",namespace="demo",pod="c",vgpu="3"} 0.714"#,
        "\n",
        r#"DCGM_FI_DEV_POWER_USAGE{UUID="GPU-c2",namespace="serving",pod="a",vgpu="0"} 60"#,
        "\n",
        r#"DCGM_FI_DEV_POWER_USAGE{UUID="GPU-c2",namespace="serving",pod="b",vgpu="1"} 60"#,
        "\n",
    ));
    assert_eq!(devices.by_key.len(), 1);
    let device = devices.by_key.values().next().unwrap();
    assert_eq!(device.busy(), Some(0.714));
    assert_eq!(pods(device), ["c", "a", "b"]);
    assert!(device.is_shared());
    assert_eq!(devices.board_power_w.get("GPU-c2"), Some(&60.0));
    assert_eq!(share(&devices, &["a"]), None);
}

#[test]
fn a_pod_with_two_replicas_of_a_device_is_one_owner() {
    let device = device(concat!(
        r#"DCGM_FI_DEV_GPU_UTIL{UUID="G",namespace="s",pod="a",container="x",vgpu="0"} 50"#,
        "\n",
        r#"DCGM_FI_DEV_GPU_UTIL{UUID="G",namespace="s",pod="a",container="y",vgpu="1"} 50"#,
        "\n",
    ));
    assert!(!device.is_shared());
}

#[test]
fn rows_of_processes_do_not_add_to_the_devices_own_row() {
    let device = device(concat!(
        r#"DCGM_FI_DEV_FB_USED{UUID="GPU-c2",Hostname="t4"} 9120"#,
        "\n",
        r#"DCGM_FI_DEV_FB_USED{UUID="GPU-c2",namespace="dev",pod="a",pod_uid="0d",vgpu="0"} 6210"#,
        "\n",
        r#"DCGM_FI_DEV_FB_USED{UUID="GPU-c2",namespace="dev",pod="b",pod_uid="77",vgpu="1"} 2410"#,
        "\n",
        r#"DCGM_FI_DEV_GPU_UTIL{UUID="GPU-c2",Hostname="t4"} 71"#,
        "\n",
        // No process is mapped: every sharer shows 0 beside a busy device.
        r#"DCGM_FI_DEV_GPU_UTIL{UUID="GPU-c2",namespace="dev",pod="a",pod_uid="0d",vgpu="0"} 0"#,
        "\n",
    ));
    assert_eq!(device.fb_used_mib, Some(9120.0));
    assert_eq!(device.gpu_util, Some(0.71));
    assert_eq!(pods(&device), ["a", "b"]);
}

#[test]
fn f52_the_workload_is_the_exported_pod_and_never_the_exporter() {
    let exported = device(
        r#"DCGM_FI_DEV_GPU_UTIL{UUID="G",container="exporter",exported_container="vllm",exported_namespace="serving",exported_pod="m-1",instance="10.2.4.9:9400",namespace="gpu-operator",pod="nvidia-dcgm-exporter-q8r7z"} 14
"#,
    );
    let honored = device(
        r#"DCGM_FI_DEV_GPU_UTIL{UUID="G",namespace="serving",pod="m-1"} 14
"#,
    );
    let old = device(
        r#"dcgm_gpu_utilization{uuid="G",pod_namespace="serving",pod_name="m-1"} 14
"#,
    );
    assert_eq!(exported.owners, honored.owners);
    assert_eq!(old.owners, honored.owners);
    assert_eq!(honored.owners, [PodRef { namespace: "serving".into(), pod: "m-1".into() }]);
    assert_eq!((exported.gpu_util, old.gpu_util), (Some(0.14), Some(0.14)));
}

#[test]
fn f51_a_row_that_names_only_the_exporter_is_unattributed() {
    for labels in [
        r#"namespace="gpu-operator",pod="nvidia-dcgm-exporter-q8r7z""#,
        r#"namespace="monitoring",pod="gpu-metrics-x",container="exporter""#,
        r#"container="",namespace="",pod="""#,
    ] {
        let device = device(&format!("DCGM_FI_DEV_GPU_UTIL{{UUID=\"G\",{labels}}} 14\n"));
        assert_eq!(pods(&device), Vec::<&str>::new(), "{labels}");
    }
    // The kubelet's id of a shared device is its UUID with a replica.
    let devices = read("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-x::3\"} 14\n");
    assert_eq!(&*devices.by_key.keys().next().unwrap().uuid, "GPU-x");
}

#[test]
fn f53_labels_that_come_and_go_leave_no_dip() {
    let mut memory = OwnerMemory::default();
    let at = |seconds: i64| Moment(seconds * 1_000);
    for (seconds, labels) in [
        (0, r#",namespace="serving",pod="a""#),
        (30, ""),
        (60, r#",namespace="serving",pod="a""#),
        (90, ""),
        (120, r#",namespace="serving",pod="a""#),
        // The last owner is forgotten five minutes after it was named, not before.
        (420, ""),
    ] {
        let mut devices = read(&format!("DCGM_FI_DEV_GPU_UTIL{{UUID=\"G\"{labels}}} 80\n"));
        memory.update(&mut devices, at(seconds));
        let sample = share(&devices, &["a"]).unwrap();
        assert_eq!((sample.devices, sample.busy), (1, Some(0.8)), "{seconds}");
    }
    let mut devices = read("DCGM_FI_DEV_GPU_UTIL{UUID=\"G\"} 80\n");
    memory.update(&mut devices, at(421));
    assert_eq!(share(&devices, &["a"]), None);
}

#[test]
fn a_device_whose_owner_changes_with_each_scrape_is_shared() {
    let mut memory = OwnerMemory::default();
    let mut seen = |pod: &str, seconds: i64| {
        let row = format!("DCGM_FI_DEV_GPU_UTIL{{UUID=\"G\",namespace=\"serving\",pod=\"{pod}\"}}");
        let mut devices = read(&format!("{row} 80\n"));
        memory.update(&mut devices, Moment(seconds * 1_000));
        share(&devices, &["a"]).is_some()
    };
    assert!(seen("a", 0));
    assert!(!seen("b", 30));
    assert!(!seen("a", 60));
    // b is forgotten after five minutes.
    assert!(seen("a", 331));
}

#[test]
fn f54_a_pod_that_is_gone_owns_nothing() {
    let devices = read("DCGM_FI_DEV_GPU_UTIL{UUID=\"G\",namespace=\"serving\",pod=\"p1\"} 0\n");
    assert_eq!(share(&devices, &["p2"]), None);
}

#[test]
fn f55_a_mig_instance_has_no_gpu_util_and_its_boards_power_once() {
    let mut page = String::new();
    for instance in [7, 8, 9, 10, 11, 12, 13] {
        let labels = format!("UUID=\"GPU-5b\",GPU_I_PROFILE=\"1g.5gb\",GPU_I_ID=\"{instance}\"");
        page += &format!("DCGM_FI_DEV_GPU_UTIL{{{labels}}} 0\n");
        page += &format!("DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels}}} 0.62\n");
        page += &format!("DCGM_FI_DEV_POWER_USAGE{{{labels}}} 121.886\n");
    }
    let devices = read(&page);
    assert_eq!(devices.by_key.len(), 7);
    assert!(devices.by_key.values().all(|d| d.gpu_util.is_none() && d.busy() == Some(0.62)));
    assert_eq!(devices.board_power_w.len(), 1);
    assert_eq!(devices.board_power_w.get("GPU-5b"), Some(&121.886));
}

#[test]
fn f56_memory_that_is_not_told_is_not_zero() {
    let device = device("DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID=\"G\",GPU_I_ID=\"9\"} 0.03\n");
    assert_eq!((device.fb_used_mib, device.busy()), (None, Some(0.03)));
}

#[test]
fn f57_rows_without_a_pod_are_attributed_to_nobody() {
    let devices = read("DCGM_FI_DEV_GPU_UTIL{UUID=\"G\",dra_device_name=\"gpu-3\"} 80\n");
    assert_eq!(Owned::of(&devices), Owned::default());
}

#[test]
fn f58_nodes_with_and_without_profiling_counters_are_both_read() {
    let devices = read(concat!(
        r#"DCGM_FI_DEV_GPU_UTIL{UUID="A",Hostname="a",namespace="serving",pod="p"} 40"#,
        "\n",
        r#"DCGM_FI_DEV_GPU_UTIL{UUID="B",Hostname="b",namespace="serving",pod="q"} 99"#,
        "\n",
        r#"DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="B",Hostname="b",namespace="serving",pod="q"} 0.6"#,
        "\n",
    ));
    let sample = share(&devices, &["p", "q"]).unwrap();
    assert_eq!((sample.devices, sample.busy), (2, Some(0.5)));
}

#[test]
fn f59_only_own_devices_count() {
    let devices = read(concat!(
        r#"DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="own",namespace="serving",pod="a"} 0.2"#,
        "\n",
        r#"DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="both",namespace="serving",pod="a"} 0.95"#,
        "\n",
        r#"DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="both",namespace="serving",pod="b"} 0.95"#,
        "\n",
        r#"DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="theirs",namespace="serving",pod="b"} 0.95"#,
        "\n",
    ));
    let expected = GpuSample { devices: 1, busy: Some(0.2), ..GpuSample::default() };
    assert_eq!(share(&devices, &["a"]), Some(expected));
}

#[test]
fn names_of_dcgm_4_6_are_read_with_their_scales() {
    let device = device(concat!(
        "DCGM_FI_DEV_GPU_UTIL_RATIO{UUID=\"G\",hostname=\"n\"} 97\n",
        "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{UUID=\"G\",hostname=\"n\"} 0.93\n",
        "DCGM_FI_PROF_SM_UTIL_RATIO{UUID=\"G\",hostname=\"n\"} 0.41\n",
        "DCGM_FI_PROF_TENSOR_UTIL_RATIO{UUID=\"G\",hostname=\"n\"} 0.12\n",
        "DCGM_FI_PROF_DRAM_UTIL_RATIO{UUID=\"G\",hostname=\"n\"} 0.55\n",
    ));
    let expected = Device {
        host: Some("n".into()),
        gpu_util: Some(0.97),
        gr_engine: Some(0.93),
        sm: Some(0.41),
        tensor: Some(0.12),
        dram: Some(0.55),
        ..Device::default()
    };
    assert_eq!(device, expected);
}

#[test]
fn blanks_and_impossible_values_are_no_measurement() {
    for (name, value) in [
        ("DCGM_FI_DEV_GPU_UTIL", "2147483632"),
        ("DCGM_FI_DEV_GPU_UTIL", "4294967295"),
        ("DCGM_FI_DEV_GPU_UTIL", "9223372036854775794"),
        ("DCGM_FI_DEV_GPU_UTIL", "100.5"),
        ("DCGM_FI_DEV_GPU_UTIL", "-1"),
        ("DCGM_FI_DEV_GPU_UTIL", "NaN"),
        ("DCGM_FI_DEV_GPU_UTIL", "ERROR - FAILED TO CONVERT TO STRING"),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "140737488355328"),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "1.03"),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "+Inf"),
        ("DCGM_FI_DEV_FB_USED", "17592186044415"),
        ("DCGM_FI_DEV_POWER_USAGE", "0"),
        ("DCGM_FI_DEV_POWER_USAGE", "1800.1"),
    ] {
        let mut reader = DcgmReader::new(Format::Text, Moment(0));
        reader.push(format!("{name}{{UUID=\"G\"}} {value}\n").as_bytes()).unwrap();
        assert_eq!(reader.finish(), Err(Error::NoKnownSeries), "{name} {value}");
    }
    let rounded = device("DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID=\"G\"} 1.004\n");
    assert_eq!(rounded.gr_engine, Some(1.0));
}

#[test]
fn profiling_counters_that_are_zero_beside_work_are_dropped_for_the_node() {
    let page = concat!(
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"A\",Hostname=\"broken\"} 99\n",
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"B\",Hostname=\"broken\"} 0\n",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID=\"A\",Hostname=\"broken\"} 0\n",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID=\"B\",Hostname=\"broken\"} 0\n",
        "DCGM_FI_PROF_DRAM_ACTIVE{UUID=\"A\",Hostname=\"broken\"} 0\n",
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"C\",Hostname=\"idle\"} 5\n",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID=\"C\",Hostname=\"idle\"} 0\n",
    );
    let devices = read(page);
    let busy: Vec<_> = devices.by_key.values().map(|d| (d.busy(), d.dram)).collect();
    assert_eq!(busy, [(Some(0.99), None), (Some(0.0), None), (Some(0.0), None)]);
    let gr: Vec<_> = devices.by_key.values().map(|d| d.gr_engine).collect();
    assert_eq!(gr, [None, None, Some(0.0)]);
}

#[test]
fn two_exporters_of_a_node_are_one_device_by_its_newest_row() {
    let add = |fold: &mut DcgmFold, instance: &str, value: f64, at: i64| {
        let labels =
            [("UUID", "G"), ("instance", instance), ("pod", "a"), ("namespace", "serving")];
        fold.add("DCGM_FI_DEV_GPU_UTIL", labels.into_iter(), value, Moment(at));
    };
    let mut fold = DcgmFold::default();
    add(&mut fold, "x:9400", 30.0, 100_000);
    add(&mut fold, "y:9400", 20.0, 107_000);
    // A label set that ended a minute ago: Prometheus still answers with it.
    add(&mut fold, "z:9400", 90.0, 40_000);
    let devices = fold.finish().unwrap();
    let device = devices.by_key.values().next().unwrap();
    assert_eq!((device.gpu_util, device.at), (Some(0.3), Moment(107_000)));
    // Older than asked for: not counted.
    let owned = Owned::of(&devices);
    let share_since = |since| owned.share_of("serving", ["a"], Moment(since));
    assert_eq!(share_since(107_000).map(|s| s.devices), Some(1));
    assert_eq!(share_since(107_001), None);
}

#[test]
fn an_owner_of_an_older_scrape_is_no_sharer() {
    let mut fold = DcgmFold::default();
    for (pod, at) in [("old", 0), ("new", 31_000)] {
        let labels = [("UUID", "G"), ("pod", pod), ("namespace", "serving")];
        fold.add("DCGM_FI_DEV_GPU_UTIL", labels.into_iter(), 50.0, Moment(at));
    }
    let devices = fold.finish().unwrap();
    assert_eq!(pods(devices.by_key.values().next().unwrap()), ["new"]);
}

#[test]
fn pages_of_several_exporters_merge_by_device() {
    let mut devices = read(ONE_OWNER);
    devices.merge(read(
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-2\",namespace=\"serving\",pod=\"api-2\"} 50\n",
    ));
    devices.merge(read(ONE_OWNER));
    assert_eq!(devices.by_key.len(), 2);
    let sample = share(&devices, &["api-1", "api-2"]).unwrap();
    assert_eq!((sample.devices, sample.busy), (2, Some((0.139206 + 0.5) / 2.0)));
}

#[test]
fn pods_of_which_no_device_was_read_are_counted() {
    let owned = Owned::of(&read(concat!(
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"1\",namespace=\"serving\",pod=\"a\"} 40\n",
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"2\",namespace=\"serving\",pod=\"a\"} 60\n",
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"3\",namespace=\"serving\",pod=\"b\"} 80\n",
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"4\",namespace=\"serving\",pod=\"c\"} 10\n",
        "DCGM_FI_DEV_GPU_UTIL{UUID=\"4\",namespace=\"serving\",pod=\"d\"} 10\n",
        "DCGM_FI_DEV_FB_USED{UUID=\"5\",namespace=\"serving\",pod=\"e\"} 10\n",
    )));
    // Shared, without activity, and not there at all.
    let share = owned.share_of("serving", ["a", "b", "c", "e", "f"], Moment(0)).unwrap();
    assert_eq!((share.devices, share.unread), (3, 3));
    assert!((share.busy.unwrap() - 0.6).abs() < 1e-9, "{share:?}");
}

#[test]
fn a_device_that_cannot_be_read_any_more_names_nobody_anew() {
    let of = |uuid: &str, pod: &str| {
        format!("DCGM_FI_DEV_GPU_UTIL{{UUID=\"{uuid}\",namespace=\"serving\",pod=\"{pod}\"}} 50\n")
    };
    let both = read(&(of("1", "a") + &of("2", "b")));
    let mut now = read(&of("1", "c"));
    now.fill(&both, Moment(0));
    let owners: Vec<_> = now.by_key.values().map(pods).collect();
    assert_eq!(owners, [vec!["c"], vec![]]);
    let mut later = read(&of("1", "c"));
    later.fill(&both, Moment(1));
    assert_eq!(later.by_key.len(), 1, "too old to be taken over");
}

#[test]
fn a_device_whose_source_is_ahead_is_as_old_as_its_first_sight() {
    let ahead = |at: i64| {
        let labels = [("UUID", "G"), ("pod", "a"), ("namespace", "serving")];
        let mut fold = DcgmFold::default();
        fold.add("DCGM_FI_DEV_GPU_UTIL", labels.into_iter(), 50.0, Moment(at));
        fold.finish().unwrap()
    };
    let (mut first, mut again, mut moved) = (ahead(600_000), ahead(600_000), ahead(615_000));
    first.follow(&Devices::default(), 0, Moment(1_000));
    // That it is ahead is known from now on, and says nothing anew of what was seen before.
    again.follow(&first, 590_000, Moment(16_000));
    moved.follow(&again, 590_000, Moment(31_000));
    let sampled_at = |devices: &Devices| devices.by_key.values().next().unwrap().sampled_at;
    assert_eq!([&first, &again, &moved].map(sampled_at), [1_000, 1_000, 25_000].map(Moment));
    assert!(Owned::of(&again).share_of("serving", ["a"], Moment(1_001)).is_none());
}

#[test]
fn a_page_without_dcgm_series_or_cut_off_is_an_error() {
    let read = |page: &str| {
        let mut reader = DcgmReader::new(Format::Text, Moment(0));
        reader.push(page.as_bytes()).and_then(|()| reader.finish())
    };
    assert_eq!(read("").unwrap_err().why(), Why::NoKnownSeries);
    assert_eq!(read("up 1\n").unwrap_err().why(), Why::NoKnownSeries);
    assert_eq!(read("<html>\n").unwrap_err().why(), Why::BadBody);
    assert_eq!(read("DCGM_FI_DEV_GPU_UTIL{UUID=\"G\"} 1").unwrap_err().why(), Why::BadBody);
    // A row that names no device.
    assert_eq!(read("DCGM_FI_DEV_GPU_UTIL 1\n").unwrap_err().why(), Why::NoKnownSeries);
}

#[test]
fn prometheus_names_are_the_names_that_are_read() {
    let names = prometheus_names();
    assert!(names.contains(&"DCGM_FI_PROF_GR_ENGINE_ACTIVE"));
    assert!(names.iter().all(|name| names::field_of(name.as_bytes()).is_some()));
}

proptest! {
    #[test]
    fn fleet_totals_never_exceed_the_devices(
        rows in prop::collection::vec((0..4_usize, 0..3_usize, 0.0..150.0_f64), 1..60),
    ) {
        let mut page = String::new();
        for (uuid, pod, value) in &rows {
            let labels = format!("UUID=\"G{uuid}\",namespace=\"serving\",pod=\"p{pod}\"");
            page += &format!("DCGM_FI_DEV_GPU_UTIL{{{labels}}} {value}\n");
        }
        let mut reader = DcgmReader::new(Format::Text, Moment(0));
        reader.push(page.as_bytes()).unwrap();
        let Ok(devices) = reader.finish() else { return Ok(()) };
        let total: f64 = devices.by_key.values().filter_map(Device::busy).sum();
        let physical = rows.iter().map(|row| row.0).collect::<std::collections::BTreeSet<_>>();
        prop_assert!(total <= physical.len() as f64);
        let attributed: u32 = ["p0", "p1", "p2"]
            .iter()
            .filter_map(|pod| share(&devices, &[pod]))
            .map(|sample| sample.devices)
            .sum();
        prop_assert!(attributed as usize <= physical.len());
    }
}
