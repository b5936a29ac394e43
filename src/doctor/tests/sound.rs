//! A workload about which nothing is wrong, with every fact known. It may sleep: that is where most
//! can be wrong.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::survey::Keda;
use crate::config;
use crate::doctor::{
    Facts, Installation, Labels, NodeAutoscaler, Nodes, Prometheus, Rights, Said, Selected, Wake,
};

const OBJECT: &str = r#"
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: llm, namespace: team-a}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: llm}
  minReplicaCount: 0
  maxReplicaCount: 12
  cooldownPeriod: 600
  initialCooldownPeriod: 600
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleUp:
          tolerance: "0"
          stabilizationWindowSeconds: 0
          policies: [{type: Pods, value: 12, periodSeconds: 15}]
        scaleDown:
          tolerance: "0"
          stabilizationWindowSeconds: 0
          policies: [{type: Percent, value: 100, periodSeconds: 15}]
  triggers:
    - type: external-push
      metricType: AverageValue
      metadata:
        scalerAddress: ghostscaler.ghostscaler.svc.cluster.local:9090
        wakeSource: gateway
        modelName: m1
        sloTtft: 5m
        source: prometheus
status:
  conditions: [{type: Ready, status: "True"}, {type: Paused, status: "False"}]
"#;

const TARGET: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm, namespace: team-a, uid: "1"}
spec:
  replicas: 3
  selector: {matchLabels: {app: llm}}
  progressDeadlineSeconds: 1800
  template:
    metadata:
      annotations: {karpenter.sh/do-not-disrupt: "true"}
    spec:
      terminationGracePeriodSeconds: 200
      volumes: [{name: models, persistentVolumeClaim: {claimName: models}}]
      containers:
        - name: proxy
          image: envoy
        - name: vllm
          image: vllm/vllm-openai:v0.32.0
          args: [--model=/models/m1, --shutdown-timeout=150]
          lifecycle: {preStop: {sleep: {seconds: 15}}}
          startupProbe: {periodSeconds: 5, failureThreshold: 360}
          volumeMounts: [{name: models, mountPath: /models}]
          resources: {limits: {nvidia.com/gpu: "2"}}
"#;

const HPA: &str = r#"
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: keda-hpa-llm, namespace: team-a, labels: {scaledobject.keda.sh/name: llm}}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: llm}
  behavior: {scaleUp: {tolerance: "0"}, scaleDown: {tolerance: "0"}}
  metrics:
    - type: External
      external: {metric: {name: s0-ghostscaler}, target: {type: AverageValue, averageValue: "1"}}
"#;

const SERVICE: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: ghostscaler, namespace: ghostscaler}
spec: {selector: {app: scaler}, clusterIP: 10.0.0.7, ports: [{name: grpc, port: 9090}, {name: http, port: 8080}]}
"#;

pub(super) const CONFIGURATION: &str = r#"
prometheus: [{name: main, url: "http://prometheus:9090"}]
wakeSources:
  - name: gateway
    kind: gauge
    prometheus: main
    query: 'sum(queue_size{model="{model}"}) or 0 * max(up{job="gateway"})'
"#;

pub(super) fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

pub(super) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The HPA that KEDA makes.
pub(super) fn hpa() -> Value {
    yaml(HPA)
}

/// The scaler's Deployment with these arguments.
pub(super) fn scaler(args: &[&str]) -> Value {
    json!({"kind": "Deployment", "metadata": {"name": "ghostscaler", "namespace": "ghostscaler"},
        "spec": {"template": {"metadata": {"labels": {"app": "scaler"}}, "spec": {
            "serviceAccountName": "ghostscaler",
            "containers": [{"name": "proxy", "args": ["--namespace=none"]},
                {"name": "ghostscaler", "args": args}]}}}})
}

/// An installation of this name, asked from these namespaces.
pub(super) fn installation(home: &str, args: &[&str], asked_from: &[&str]) -> Installation {
    let (mut service, mut deployment) = (yaml(SERVICE), scaler(args));
    service["metadata"]["namespace"] = json!(home);
    deployment["metadata"]["namespace"] = json!(home);
    let asked_from = Ok(asked_from.iter().map(|&name| name.to_owned()).collect());
    Installation { service, deployment: Ok(deployment), asked_from }
}

/// Series of one engine that is labelled as it should be.
pub(super) fn engine() -> Vec<Labels> {
    ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:prompt_tokens_total"]
        .map(|name| labels(&[("__name__", name), ("namespace", "team-a"), ("model_name", "m1")]))
        .to_vec()
}

/// What Prometheus says where all is well.
pub(super) fn said() -> Said {
    let wake = Wake {
        source: "gateway".to_owned(),
        is_empty: false,
        selectors: vec![Selected {
            metric: "queue_size".to_owned(),
            wants: labels(&[("model", "m1")]),
            found: vec![labels(&[("model", "m0")]), labels(&[("model", "m1")])],
        }],
    };
    Said { engines: engine(), wake: Some(wake) }
}

/// One of the target's pods.
pub(super) fn pod(index: u32) -> Value {
    let owner = json!({"kind": "ReplicaSet", "name": "llm-7d9", "controller": true});
    json!({"metadata": {"name": format!("llm-7d9-{index}"), "ownerReferences": [owner],
        "labels": {"app": "llm", "pod-template-hash": "7d9"}}, "status": {"phase": "Running"}})
}

/// Facts with this said by Prometheus.
pub(super) fn with_said(said: Said) -> Facts {
    let url = "http://prometheus:9090".to_owned();
    Facts { prometheus: Ok(Prometheus { url, said: Ok(said) }), ..sound() }
}

/// Everything is right, and everything is known.
pub(super) fn sound() -> Facts {
    Facts {
        object: yaml(OBJECT),
        target: Ok(yaml(TARGET)),
        scale: Ok(Some(json!({"spec": {"replicas": 3}, "status": {"selector": "app=llm"}}))),
        owner: Ok(None),
        hpa: Ok(Some(hpa())),
        other_hpas: Ok(Vec::new()),
        other_objects: Ok(Vec::new()),
        pods: Ok((0..3).map(pod).collect()),
        service: Ok(Some(yaml(SERVICE))),
        scaler: Ok(scaler(&["serve"])),
        installations: Ok(vec![installation("ghostscaler", &["serve"], &["team-a"])]),
        configuration: Ok(Arc::new(config::parse(CONFIGURATION).unwrap())),
        kubernetes_minor: Ok(36),
        keda: Ok(Keda::Installed { takes_tolerance: true }),
        external_metrics: Ok(Some(json!({
            "kind": "APIService", "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
            "spec": {"service": {"namespace": "keda", "name": "keda-operator-metrics-apiserver"}},
        }))),
        keda_adapter: Ok(Some(json!({"kind": "Service",
            "metadata": {"namespace": "keda", "name": "keda-operator-metrics-apiserver"}}))),
        nodes: Ok(Nodes { gpus: 64, autoscaler: Some(NodeAutoscaler::Karpenter) }),
        quotas: Ok(vec![json!({"metadata": {"name": "gpus"}, "status": {
            "hard": {"requests.nvidia.com/gpu": "40"}, "used": {"requests.nvidia.com/gpu": "10"}}})]),
        stranger: Ok(None),
        rights: Ok(Rights {
            account: "ghostscaler/ghostscaler".to_owned(),
            within: None,
            lacks: Vec::new(),
            own_lacks: Vec::new(),
        }),
        prometheus: Ok(Prometheus { url: "http://prometheus:9090".to_owned(), said: Ok(said()) }),
        cold_start_ms: Ok(240_000),
        longest_answer_ms: Ok(120_000),
    }
}

/// The sound ScaledObject with another value at a pointer; `null` takes it away.
pub(super) fn with(pointer: &str, value: Value) -> Facts {
    let mut facts = sound();
    put(&mut facts.object, pointer, value);
    facts
}

/// The same for the target.
pub(super) fn with_target(pointer: &str, value: Value) -> Facts {
    let mut facts = sound();
    put(facts.target.as_mut().unwrap(), pointer, value);
    facts
}

/// Sets or, with `null`, removes what stands at a pointer.
pub(super) fn put(object: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer} has no parent"));
    match (parent, value) {
        (Value::Object(fields), Value::Null) => drop(fields.remove(&key.replace("~1", "/"))),
        (Value::Object(fields), value) => drop(fields.insert(key.replace("~1", "/"), value)),
        (Value::Array(items), value) if key == "-" => items.push(value),
        (Value::Array(items), value) => items[key.parse::<usize>().unwrap()] = value,
        (other, _) => panic!("{pointer} stands in {other}"),
    }
}
