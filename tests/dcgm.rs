//! The simulated DCGM exporter and the scaler's reader of DCGM, put together: what one writes, in
//! any of its forms, the other must understand.

use std::sync::Arc;

use ghostscaler::decision::{GpuSample, Moment};
use ghostscaler::signals::dcgm::{DcgmReader, Device, Devices, Error, Owned, OwnerMemory};
use ghostscaler::signals::exposition::Format;
use loadgen::dcgm::{DeviceIndex, Exporter, Fleet};
use loadgen::engine::{Engine, PS_PER_MS, Profile, Request, Time, Watch, Work};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::support::eventually;

fn exporters(style: &str, nodes: &str) -> Vec<Exporter> {
    let fleet = format!("{{style: {{interval: 1s, {style}}}, nodes: {nodes}}}");
    Exporter::of_fleet(&Fleet::parse("fleet", &fleet).unwrap())
}

fn read_page(page: &str) -> Result<Devices, Error> {
    let mut reader = DcgmReader::new(Format::Text, Moment(0));
    reader.push(page.as_bytes())?;
    reader.finish()
}

fn read(exporters: &[Exporter]) -> Devices {
    let mut devices = Devices::default();
    for exporter in exporters {
        devices.merge(read_page(exporter.page()).unwrap());
    }
    devices
}

/// The only device that one exporter shows.
fn only(exporter: &Exporter) -> Device {
    let devices = read_page(exporter.page()).unwrap();
    assert_eq!(devices.by_key.len(), 1);
    devices.by_key.into_values().next().unwrap()
}

/// A second in which a device's pod works for so many milliseconds.
fn work_for(exporter: &mut Exporter, device: usize, holder: usize, busy_ms: u64) {
    let work = Work { prefill_ps: busy_ms * PS_PER_MS, ..Work::default() };
    assert!(exporter.observe(DeviceIndex(device), holder, &work));
}

fn share(devices: &Devices, pods: &[&str]) -> Option<GpuSample> {
    Owned::of(devices).share_of("serving", pods.iter().copied(), Moment(0))
}

const ONE: &str = "[{name: n1, gpus: [{model: h100-80gb, pods: [{namespace: serving, name: a}]}]}]";

#[test]
fn every_version_of_names_and_labels_is_the_same_device() {
    for style in [
        "names: classic",
        "names: renamed, host: hostname",
        "names: renamed, pods: exported",
        "names: classic, pods: exported, host: none",
        "names: old",
        "shared: copies",
        "shared: processes",
    ] {
        let mut exporter = exporters(style, ONE).remove(0);
        exporter.tick(Time::ZERO);
        work_for(&mut exporter, 0, 0, 400);
        exporter.tick(Time::from_millis(1_000));
        let device = only(&exporter);
        assert_eq!((device.gpu_util, device.busy()), (Some(0.4), Some(0.4)), "{style}");
        assert_eq!(device.fb_used_mib, Some(73_403.0), "{style}");
        let owners: Vec<_> = device.owners.iter().map(|o| (&*o.namespace, &*o.pod)).collect();
        assert_eq!(owners, [("serving", "a")], "{style}");
        let profiling = (device.sm, device.tensor, device.dram);
        match style {
            "names: old" => assert_eq!(profiling, (None, None, None)),
            _ => assert_eq!(profiling, (Some(0.38), Some(0.2), Some(0.04)), "{style}"),
        }
        let watts = read_page(exporter.page()).unwrap().board_power_w;
        assert_eq!(watts.into_values().collect::<Vec<_>>(), [108.0 + 592.0 * 0.4], "{style}");
    }
    let mut without = exporters("pods: none", ONE).remove(0);
    without.tick(Time::ZERO);
    assert!(only(&without).owners.is_empty());
}

#[test]
fn the_devices_of_several_nodes_are_one_workloads() {
    let nodes = "[{name: n1, gpus: [\
                   {model: t4, pods: [{namespace: serving, name: a}]}, {model: t4}]}, \
                 {name: n2, gpus: [{model: t4, pods: [{namespace: serving, name: b}]}]}]";
    let mut exporters = exporters("", nodes);
    for (exporter, busy_ms) in exporters.iter_mut().zip([900, 200]) {
        exporter.tick(Time::ZERO);
        work_for(exporter, 0, 0, busy_ms);
        exporter.tick(Time::from_millis(1_000));
    }
    let devices = read(&exporters);
    assert_eq!(devices.by_key.len(), 3, "every UUID is another");
    let sample = share(&devices, &["a", "b"]).unwrap();
    assert_eq!((sample.devices, sample.busy), (2, Some(0.55)));
}

#[test]
fn mig_instances_are_devices_with_one_boards_power() {
    let nodes = "[{name: n, gpus: [{model: a100-40gb, mig: [\
                 {profile: 3g.20gb, id: 1, pods: [{namespace: serving, name: a}]}, \
                 {profile: 3g.20gb, id: 2}]}]}]";
    let mut exporter = exporters("", nodes).remove(0);
    exporter.tick(Time::ZERO);
    work_for(&mut exporter, 0, 0, 600);
    exporter.tick(Time::from_millis(1_000));
    let devices = read_page(exporter.page()).unwrap();
    let seen: Vec<_> = devices
        .by_key
        .iter()
        .map(|(key, d)| (key.instance.as_deref(), d.gpu_util, d.busy()))
        .collect();
    assert_eq!(seen, [(Some("1"), None, Some(0.6)), (Some("2"), None, Some(0.0))]);
    assert_eq!(devices.board_power_w.len(), 1);
}

#[test]
fn a_shared_device_counts_once_and_is_nobodys() {
    let nodes = "[{name: n, gpus: [{model: t4, sharing: {by: time_slicing, replicas: 4}, pods: [\
                 {namespace: serving, name: a}, {namespace: serving, name: b}]}]}]";
    for style in ["shared: one", "shared: copies", "shared: processes"] {
        let mut exporter = exporters(style, nodes).remove(0);
        let mut memory = OwnerMemory::default();
        let mut devices = Devices::default();
        for second in 0..=2 {
            work_for(&mut exporter, 0, 0, 300 * second);
            work_for(&mut exporter, 0, 1, 400 * second);
            exporter.tick(Time::from_millis(1_000 * second));
            devices = read_page(exporter.page()).unwrap();
            memory.update(&mut devices, Moment(1_000 * i64::try_from(second).unwrap()));
        }
        let device = devices.by_key.values().next().unwrap();
        assert_eq!((devices.by_key.len(), device.busy()), (1, Some(0.7)), "{style}");
        assert_eq!(share(&devices, &["a"]), None, "{style}");
    }
}

#[test]
fn faults_are_missing_values_and_never_idleness() {
    let node = |fault: &str| {
        let nodes = format!(
            "[{{name: n, {fault} gpus: [{{model: t4, pods: [{{namespace: serving, name: a, \
             ends: 3s, latched: true}}]}}]}}]"
        );
        exporters("", &nodes).remove(0)
    };
    let run = |exporter: &mut Exporter, seconds: u64| {
        for second in 0..=seconds {
            work_for(exporter, 0, 0, 800 * second);
            exporter.tick(Time::from_millis(1_000 * second));
        }
    };
    let mut zero = node("profiling: zero,");
    run(&mut zero, 2);
    let device = only(&zero);
    assert_eq!((device.gr_engine, device.sm, device.busy()), (None, None, Some(0.8)));

    let mut off = node("profiling: off,");
    run(&mut off, 2);
    assert_eq!((only(&off).gr_engine, only(&off).busy()), (None, Some(0.8)));

    let mut gap = node("gaps: [{from: 2s, for: 1s}],");
    run(&mut gap, 2);
    assert_eq!(read_page(gap.page()).unwrap_err(), Error::NoKnownSeries);

    // Counters that stay where they were are nobody's load.
    let mut latched = node("");
    run(&mut latched, 4);
    assert_eq!(only(&latched).busy(), Some(0.8));
    assert_eq!(share(&read_page(latched.page()).unwrap(), &["a"]), None);
}

#[test]
fn time_busy_saturates_at_one_request_and_tensor_activity_grows_with_the_work() {
    let mut seen = Vec::new();
    for requests_per_s in [1, 4, 8] {
        let mut exporter = exporters("", ONE).remove(0);
        let mut engine = Engine::new(Arc::new(Profile::load("8b-a100").unwrap()));
        exporter.tick(Time::ZERO);
        let mut tensor = 0.0;
        for second in 0..120_u64 {
            for request in 0..requests_per_s {
                let id = 8 * second + request;
                let now = Time::from_millis(1_000 * second + 1_000 * request / requests_per_s);
                engine.advance(now, Watch::FirstToken, &mut |_| {});
                engine.submit(Request::new(id, 1_000, 210), now).unwrap();
            }
            let now = Time::from_millis(1_000 * (second + 1));
            engine.advance(now, Watch::FirstToken, &mut |_| {});
            exporter.observe(DeviceIndex(0), 0, engine.work());
            exporter.tick(now);
            let device = only(&exporter);
            if second >= 60 {
                assert!(device.busy().unwrap() > 0.98, "{requests_per_s}/s: {device:?}");
                tensor += device.tensor.unwrap() / 60.0;
            }
        }
        seen.push(tensor);
    }
    assert!(seen[1] > 2.0 * seen[0] && seen[2] > 1.5 * seen[1], "{seen:?}");
}

#[tokio::test]
async fn the_page_is_read_over_its_socket() {
    let fleet = "{style: {interval: 1s}, nodes: [{name: n, gpus: [{model: t4, pods: [\
                 {namespace: serving, name: a, load: {busy: 0.4}}]}]}]}";
    let fleet = Fleet::parse("fleet", fleet).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let (end, ended) = oneshot::channel::<()>();
    let server = tokio::spawn(async move {
        loadgen::dcgm::serve(&fleet, vec![listener], async { drop(ended.await) }).await
    });
    rustls::crypto::ring::default_provider().install_default().ok();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let busy = eventually("a busy device", async || {
        let page = client.get(&url).send().await.ok()?.text().await.ok()?;
        let devices = read_page(&page).unwrap();
        share(&devices, &["a"])?.busy.filter(|busy| *busy > 0.0)
    });
    assert!((busy.await - 0.4).abs() < 1e-6);
    end.send(()).unwrap();
    server.await.unwrap().unwrap();
}
