//! A scenario's own namespace with everything in it, and the ways to look at it and to wait.
//!
//! Must leave nothing behind: all of it ends with the scenario, whose timeline is printed.

use std::fs;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::engines::Engines;
use crate::gateway::Gateway;
use crate::kubectl::Kubectl;
use crate::load::Load;
use crate::objects::{Kind, NAME, Scaled, Target};
use crate::plane::Plane;
use crate::prometheus::Prometheus;
use crate::scaler::{Scaler, Setup};
use crate::scenarios::Scenario;
use crate::timeline::{Sample, Timeline};

/// How often is looked.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the API server may take to answer a look.
const ANSWER: Duration = Duration::from_secs(5);

/// Plays a scenario and prints its timeline; a failure says where the logs are.
pub(crate) fn play(scenario: &'static Scenario, plane: &Arc<Plane>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut scene = Scene::open(scenario.name, Arc::clone(plane)).await;
        let played = AssertUnwindSafe((scenario.play)(&mut scene)).catch_unwind().await;
        let failure = played.err();
        if failure.is_some() {
            scene.timeline.say("FAILED");
        }
        let dir = scene.dir.clone();
        let timeline = scene.close().await;
        let path = scenario.name;
        println!("\n== {path}: {}\n{timeline}", scenario.about);
        if let Some(failure) = failure {
            println!("   logs: {}", dir.display());
            resume_unwind(failure);
        }
    });
}

/// A namespace with a gateway, engines and a scaler.
pub(crate) struct Scene {
    pub(crate) plane: Arc<Plane>,
    pub(crate) client: kube::Client,
    pub(crate) namespace: String,
    pub(crate) timeline: Timeline,
    pub(crate) gateway: Gateway,
    pub(crate) engines: Engines,
    pub(crate) setup: Setup,
    pub(crate) dir: PathBuf,
    /// What the target is.
    kind: Kind,
    scaler: Option<Scaler>,
    load: Option<Load>,
}

impl Scene {
    /// Opens one; [`play`] does it for a scenario, which may want a second beside its own.
    pub(crate) async fn open(name: &str, plane: Arc<Plane>) -> Scene {
        let namespace = name.replace('_', "-");
        let client = plane.client().await;
        plane.kubectl().run(&["create", "namespace", &namespace]);
        let dir = plane.dir().join(&namespace);
        fs::create_dir(&dir).unwrap();
        let gateway = Gateway::start().await;
        let engines = Engines::follow(&client, &namespace, gateway.clone(), &dir);
        let rights = plane.scaler_rights(&client, &dir).await;
        let setup = Setup::new(rights, &namespace, &dir);
        Scene {
            plane,
            client,
            namespace,
            timeline: Timeline::new(),
            gateway,
            engines,
            setup,
            dir,
            kind: Kind::Deployment,
            scaler: None,
            load: None,
        }
    }

    /// Ends everything; the timeline.
    pub(crate) async fn close(mut self) -> String {
        self.load = None;
        let kubectl = self.kubectl();
        // The ScaledObject first: its finalizer needs KEDA, and KEDA the namespace.
        let kinds = "scaledobject,deployment,statefulset,leaderworkerset";
        let all = ["delete", kinds, "--all", "--timeout=20s"];
        kubectl.try_run(&[&all[..], &["-n", &self.namespace]].concat()).ok();
        kubectl.try_run(&["delete", "namespace", &self.namespace, "--wait=false"]).ok();
        self.scaler = None;
        let took = format!(
            "{:.0} replica-seconds, {} turns",
            self.timeline.replica_seconds, self.timeline.turns
        );
        self.timeline.say(&took);
        self.timeline.text().to_owned()
    }

    pub(crate) fn kubectl(&self) -> Kubectl {
        self.plane.kubectl()
    }

    /// Creates or changes an object of the namespace, as a person with a file does.
    pub(crate) fn apply(&self, object: &Value) {
        let words = ["apply", "-n", &self.namespace, "-f", "-"];
        let applied = self.kubectl().try_run_with(&words, &object.to_string());
        applied.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Starts the target and waits until it is ready.
    pub(crate) async fn deploy(&mut self, target: &Target) {
        self.kind = target.kind;
        self.apply(&target.object());
        let replicas = target.object()["spec"]["replicas"].as_u64();
        self.until("the target is ready", 150, |now| now.ready.map(u64::from) == replicas).await;
    }

    /// Changes the template alone: the count stays the autoscaler's.
    pub(crate) fn roll_out(&self, target: &Target) {
        let patch = json!({"spec": {"template": target.template()}}).to_string();
        let words = ["patch", "deployment", NAME, "-n", &self.namespace, "--patch", &patch];
        self.kubectl().run(&words);
    }

    pub(crate) fn scale_with(&mut self, scaled: &Scaled) {
        self.timeline.say("ScaledObject applied");
        self.apply(&scaled.object());
    }

    /// A Prometheus that scrapes this namespace; `None`, with a word of it, where it is not installed.
    pub(crate) fn prometheus(&mut self) -> Option<Prometheus> {
        let prometheus = Prometheus::start(&self.dir);
        if prometheus.is_none() {
            self.timeline.say("skipped: no `prometheus` on the path (tests/setup.sh installs it)");
        }
        prometheus
    }

    /// A ScaledObject that points at the scaler of this scene.
    pub(crate) fn scaled(&self, min: u32, max: u32) -> Scaled {
        Scaled::new(&self.setup.address(), min, max)
    }

    pub(crate) async fn start_scaler(&mut self) {
        self.scaler = Some(self.setup.start().await);
        self.timeline.say("scaler ready");
    }

    pub(crate) fn kill_scaler(&mut self) {
        self.scaler.take().unwrap().kill();
        self.timeline.say("scaler killed");
    }

    pub(crate) async fn stop_scaler(&mut self) {
        self.scaler.take().unwrap().stop().await;
        self.timeline.say("scaler stopped");
    }

    /// The usual start: target, scaler, ScaledObject, and the first decision.
    pub(crate) async fn begin(&mut self, target: &Target, scaled: &Scaled) {
        self.deploy(target).await;
        self.start_scaler().await;
        self.scale_with(scaled);
        self.until("the scaler decides", 60, |now| now.health.as_deref() == Some("ok")).await;
    }

    /// Sends this many requests a second from now on; none with 0.
    pub(crate) async fn load(&mut self, rate: f64) {
        let ended = self.load.take();
        if rate > 0.0 {
            self.load = Some(Load::start(&self.gateway, rate, &self.dir));
        }
        self.timeline.say(&format!("load {rate} requests/s"));
        if let Some(load) = ended {
            self.tell(&load.end().await);
        }
    }

    /// Sends requests at these rates, as the load generator writes them, looks until all are
    /// answered, and gives the report.
    pub(crate) async fn play_load(&mut self, rates: &str, duration: &str) -> Value {
        let load = Load::by_chance(&self.gateway, rates, duration, &self.dir);
        self.timeline.say(&format!("load {rates} for {duration}"));
        self.look_on(load).await
    }

    /// Sends the requests of a trace and looks until all are answered.
    pub(crate) async fn replay(&mut self, trace: &Path) {
        let load = Load::of_trace(&self.gateway, trace, &self.dir);
        self.timeline.say("the trace begins");
        self.look_on(load).await;
    }

    async fn look_on(&mut self, mut load: Load) -> Value {
        while load.runs() {
            self.look().await;
            sleep(INTERVAL).await;
        }
        let report = load.end().await;
        self.tell(&report);
        report
    }

    /// Sends this many requests within a second and gives the report once all are answered.
    pub(crate) async fn burst(&mut self, requests: u32, within_s: u64) -> Value {
        let mut load = Load::burst(&self.gateway, requests, &self.dir);
        self.timeline.say(&format!("{requests} requests within a second"));
        let end = Instant::now() + Duration::from_secs(within_s);
        while load.runs() {
            assert!(Instant::now() < end, "not all are answered within {within_s} s");
            self.look().await;
            sleep(INTERVAL).await;
        }
        let report = load.end().await;
        self.tell(&report);
        report
    }

    fn tell(&mut self, report: &Value) {
        let numbers = ["sent", "completed", "errors"].map(|key| format!("{key} {}", report[key]));
        let ttft = ["p50", "p99"].map(|key| format!("{key} {} s", report["ttft"][key]));
        let (numbers, ttft) = (numbers.join(", "), ttft.join(", "));
        self.timeline.say(&format!("load: {numbers}; first token {ttft}"));
    }

    /// Looks once.
    pub(crate) async fn look(&mut self) -> Sample {
        let mut sample = Sample { in_flight: self.gateway.in_flight(), ..Sample::default() };
        let (group, version, kind) = self.kind.names();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let targets: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        if let Ok(Ok(Some(found))) = tokio::time::timeout(ANSWER, targets.get_opt(NAME)).await {
            // What is not written is 0.
            let count =
                |at| u32::try_from(found.data.pointer(at).map_or(Some(0), Value::as_u64)?).ok();
            sample.spec = count("/spec/replicas");
            sample.ready = count("/status/readyReplicas");
        }
        if let Some(scaler) = &self.scaler
            && let Some(snapshot) = scaler.workload(&self.namespace, NAME).await
        {
            sample.want = snapshot["want"].as_u64().and_then(|want| u32::try_from(want).ok());
            sample.rule = snapshot["binding"].as_str().map(str::to_owned);
            sample.health = snapshot["health"].as_str().map(str::to_owned);
        }
        self.timeline.see(&sample);
        sample
    }

    /// The scaler's whole answer about the target.
    pub(crate) async fn snapshot(&self) -> Value {
        let scaler = self.scaler.as_ref().unwrap();
        scaler.workload(&self.namespace, NAME).await.unwrap()
    }

    /// Waits until the scaler has read the HPA that KEDA has made, with this number in it.
    pub(crate) async fn until_its_hpa_has(&mut self, key: &str, value: f64) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let hpa = self.snapshot().await["hpa"].clone();
            if hpa[key].as_f64().is_some_and(|read| (read - value).abs() < 1e-9) {
                self.timeline.say(&format!("{} has {key} {value}", hpa["name"]));
                return;
            }
            assert!(Instant::now() < end, "within 60 s: {key} {value}; now {hpa}");
            sleep(INTERVAL).await;
        }
    }

    /// Looks each second until it is so; the scenario fails if that takes longer.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        within_s: u64,
        is: impl Fn(&Sample) -> bool,
    ) -> Sample {
        let end = Instant::now() + Duration::from_secs(within_s);
        loop {
            let sample = self.look().await;
            if is(&sample) {
                self.timeline.say(what);
                return sample;
            }
            assert!(Instant::now() < end, "within {within_s} s: {what}; now {sample}");
            sleep(INTERVAL).await;
        }
    }

    /// Only looks for so long.
    pub(crate) async fn wait(&mut self, for_s: u64) {
        let end = Instant::now() + Duration::from_secs(for_s);
        while Instant::now() < end {
            self.look().await;
            sleep(INTERVAL).await;
        }
    }

    /// Looks each second for so long; the scenario fails the moment it is not so. A count that could
    /// not be read, with the API server away or slow, is no change.
    pub(crate) async fn stays(&mut self, what: &str, for_s: u64, is: impl Fn(&Sample) -> bool) {
        let end = Instant::now() + Duration::from_secs(for_s);
        let mut n_seen = 0;
        while Instant::now() < end || n_seen == 0 {
            let sample = self.look().await;
            if sample.spec.is_some() {
                assert!(is(&sample), "for {for_s} s: {what}; now {sample}");
                n_seen += 1;
            }
            sleep(INTERVAL).await;
        }
        self.timeline.say(&format!("{what} for {for_s} s"));
    }
}
