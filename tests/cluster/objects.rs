//! The objects of a scenario: a target of engines, and the ScaledObject of `generate`'s making.
//!
//! Must say what `generate` says, with short holds and cool-downs, so that a scenario takes minutes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::engines::PORT;

/// The name of the target and of its ScaledObject.
pub(crate) const NAME: &str = "llm";

/// What a target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Deployment,
    StatefulSet,
    /// Groups of two pods; [`Operator`](crate::operator::Operator) makes them.
    LeaderWorkerSet,
}

impl Kind {
    /// Group, version and kind, as an object and a reference to it name them.
    pub(crate) fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Kind::Deployment => ("apps", "v1", "Deployment"),
            Kind::StatefulSet => ("apps", "v1", "StatefulSet"),
            Kind::LeaderWorkerSet => ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"),
        }
    }

    /// A reference to the target of this kind.
    pub(crate) fn reference(self) -> Value {
        let (group, version, kind) = self.names();
        json!({"apiVersion": format!("{group}/{version}"), "kind": kind, "name": NAME})
    }
}

/// A target to be.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    replicas: u32,
    cold_start: &'static str,
    pool: &'static str,
    surge: &'static str,
    revision: u32,
}

impl Target {
    /// Ready three seconds after its placement, in the pool with room.
    pub(crate) fn new(replicas: u32) -> Target {
        let (kind, pool) = (Kind::Deployment, "large");
        Target { kind, replicas, cold_start: "3s", pool, surge: "25%", revision: 1 }
    }

    /// Of another kind than a Deployment.
    pub(crate) fn kind(self, kind: Kind) -> Target {
        Target { kind, ..self }
    }

    /// How long a pod takes to be ready.
    pub(crate) fn cold_start(self, cold_start: &'static str) -> Target {
        Target { cold_start, ..self }
    }

    /// Which nodes it may use.
    pub(crate) fn pool(self, pool: &'static str) -> Target {
        Target { pool, ..self }
    }

    /// How many pods beyond its count a rollout may have.
    pub(crate) fn surge(self, surge: &'static str) -> Target {
        Target { surge, ..self }
    }

    /// Another template, which rolls out.
    pub(crate) fn revision(self, revision: u32) -> Target {
        Target { revision, ..self }
    }

    /// The pod template.
    pub(crate) fn template(&self) -> Value {
        json!({
            "metadata": {"labels": {"app": NAME}, "annotations": {
                "ghostscaler.test/cold-start": self.cold_start,
                // As long as a request of the tests takes, and some more.
                "ghostscaler.test/drain": "5s",
                "ghostscaler.test/revision": self.revision.to_string(),
            }},
            "spec": {
                "nodeSelector": {"pool": self.pool},
                "terminationGracePeriodSeconds": 5,
                "containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.32.0",
                    "ports": [{"name": "http", "containerPort": PORT}],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            },
        })
    }

    /// The object.
    pub(crate) fn object(&self) -> Value {
        let selector = json!({"matchLabels": {"app": NAME}});
        let (replicas, template) = (self.replicas, self.template());
        let (group, version, kind) = self.kind.names();
        let spec = match self.kind {
            Kind::Deployment => json!({
                "replicas": replicas, "selector": selector, "template": template,
                "strategy": {"rollingUpdate": {"maxSurge": self.surge, "maxUnavailable": 0}},
            }),
            Kind::StatefulSet => json!({
                "replicas": replicas, "selector": selector, "template": template,
                "serviceName": NAME,
            }),
            Kind::LeaderWorkerSet => json!({
                "replicas": replicas,
                "leaderWorkerTemplate": {"size": 2, "workerTemplate": template},
            }),
        };
        json!({
            "apiVersion": format!("{group}/{version}"), "kind": kind,
            "metadata": {"name": NAME}, "spec": spec,
        })
    }
}

impl Target {
    /// The same pods as a StatefulSet's beside the Deployment.
    pub(crate) fn as_stateful_set(&self) -> Value {
        let mut set = self.clone().kind(Kind::StatefulSet).object();
        set["spec"]["selector"]["matchLabels"]["of"] = json!("set");
        set["spec"]["template"]["metadata"]["labels"]["of"] = json!("set");
        set
    }

    /// A second Deployment of one replica of the same pods, as a canary without a controller has it.
    pub(crate) fn canary(&self) -> Value {
        let mut canary =
            Target { replicas: 1, revision: self.revision + 1, ..self.clone() }.object();
        canary["metadata"]["name"] = json!(format!("{NAME}-canary"));
        canary["spec"]["selector"]["matchLabels"]["track"] = json!("canary");
        canary["spec"]["template"]["metadata"]["labels"]["track"] = json!("canary");
        canary
    }
}

/// KEDA's own Prometheus trigger on the engines' queue, so many waiting a replica; everything else is left
/// to its defaults.
pub(crate) fn queue_trigger(
    prometheus: &str,
    namespace: &str,
    threshold: &str,
    (min, max): (u32, u32),
) -> Value {
    let query = format!("sum(vllm:num_requests_waiting{{namespace=\"{namespace}\"}})");
    json!({
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": NAME},
        "spec": {
            "scaleTargetRef": {"name": NAME}, "minReplicaCount": min, "maxReplicaCount": max,
            "triggers": [{"type": "prometheus", "metadata": {
                "serverAddress": prometheus, "query": query, "threshold": threshold}}],
        },
    })
}

/// A ScaledObject to be.
#[derive(Debug, Clone)]
pub(crate) struct Scaled {
    target: Kind,
    min: u32,
    max: u32,
    cooldown_s: u32,
    initial_cooldown_s: u32,
    kind: &'static str,
    triggers: Vec<BTreeMap<&'static str, String>>,
    paused: bool,
    paused_scale_in: bool,
    tolerance: bool,
    authentication: Option<&'static str>,
}

impl Scaled {
    /// One trigger with a hold of ten seconds, the shortest there is.
    pub(crate) fn new(address: &str, min: u32, max: u32) -> Scaled {
        let metadata = BTreeMap::from([
            ("scalerAddress", address.to_owned()),
            ("ghostHold", "10s".to_owned()),
        ]);
        Scaled {
            target: Kind::Deployment,
            min,
            max,
            cooldown_s: 30,
            initial_cooldown_s: 60,
            kind: "external-push",
            triggers: vec![metadata],
            paused: false,
            paused_scale_in: false,
            tolerance: true,
            authentication: None,
        }
    }

    /// Another target than the Deployment.
    pub(crate) fn of(self, target: Kind) -> Scaled {
        Scaled { target, ..self }
    }

    /// Metadata of the first trigger.
    pub(crate) fn with(mut self, key: &'static str, value: &str) -> Scaled {
        self.triggers[0].insert(key, value.to_owned());
        self
    }

    /// The metadata of the first trigger.
    pub(crate) fn metadata(&self) -> BTreeMap<String, String> {
        let entries = self.triggers[0].iter();
        entries.map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    }

    /// A second trigger, the same but for this.
    pub(crate) fn second(mut self, key: &'static str, value: &str) -> Scaled {
        let mut second = self.triggers[0].clone();
        second.insert(key, value.to_owned());
        self.triggers.push(second);
        self
    }

    /// `external` in the place of `external-push`.
    pub(crate) fn polled(self) -> Scaled {
        Scaled { kind: "external", ..self }
    }

    /// Paused by KEDA's annotation.
    pub(crate) fn paused(self, paused: bool) -> Scaled {
        Scaled { paused, ..self }
    }

    /// Held by KEDA's annotation for one direction.
    pub(crate) fn paused_scale_in(self, paused_scale_in: bool) -> Scaled {
        Scaled { paused_scale_in, ..self }
    }

    /// With the times and the hold that `generate` writes and nobody has to give.
    pub(crate) fn with_defaults(mut self) -> Scaled {
        self.triggers[0].remove("ghostHold");
        Scaled { cooldown_s: 600, initial_cooldown_s: 600, ..self }
    }

    /// With another cool-down, in seconds.
    pub(crate) fn with_cooldown(self, cooldown_s: u32) -> Scaled {
        Scaled { cooldown_s, ..self }
    }

    /// With the keys of a TriggerAuthentication.
    pub(crate) fn authenticated_by(self, name: &'static str) -> Scaled {
        Scaled { authentication: Some(name), ..self }
    }

    /// As users write it who know nothing of the dead band.
    pub(crate) fn without_tolerance(self) -> Scaled {
        Scaled { tolerance: false, ..self }
    }

    /// The object.
    pub(crate) fn object(&self) -> Value {
        let step = |policy: Value| {
            let mut step = json!({"stabilizationWindowSeconds": 0, "policies": [policy]});
            if self.tolerance {
                step["tolerance"] = json!("0");
            }
            step
        };
        let triggers: Vec<Value> = self
            .triggers
            .iter()
            .map(|metadata| {
                let mut trigger =
                    json!({"type": self.kind, "metricType": "AverageValue", "metadata": metadata});
                if let Some(name) = self.authentication {
                    trigger["authenticationRef"] = json!({"name": name});
                }
                trigger
            })
            .collect();
        let annotations: BTreeMap<&str, &str> = [
            (self.paused, "autoscaling.keda.sh/paused"),
            (self.paused_scale_in, "autoscaling.keda.sh/paused-scale-in"),
        ]
        .into_iter()
        .filter_map(|(is_set, key)| is_set.then_some((key, "true")))
        .collect();
        json!({
            "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
            "metadata": {"name": NAME, "annotations": annotations},
            "spec": {
                "scaleTargetRef": self.target.reference(),
                "minReplicaCount": self.min,
                "maxReplicaCount": self.max,
                "pollingInterval": 5,
                "cooldownPeriod": self.cooldown_s,
                "initialCooldownPeriod": self.initial_cooldown_s,
                "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {
                    "scaleUp": step(json!({"type": "Pods", "value": self.max, "periodSeconds": 15})),
                    "scaleDown": step(json!({"type": "Percent", "value": 100, "periodSeconds": 15})),
                }}},
                "triggers": triggers,
            },
        })
    }
}

/// A warm schedule whose floor holds now and for the next hours: from the last full hour on.
pub(crate) fn all_day(replicas: u32) -> String {
    let hour = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).hour();
    let end = (hour + 12) % 24;
    format!("start=0 {hour} * * *; end=0 {end} * * *; timezone=UTC; replicas={replicas}")
}
