//! What a pod template says about the engine in it: GPUs, port, model server, time to stop.
//!
//! Pure; what a template does not say stays unknown.

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use serde::Deserialize as _;
use serde_json::Value;

use super::image::Shows;
use super::{devices, pod};

/// What the pods of one replica say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Pods of one replica: more than one where a replica is a group.
    pub pods: u32,
    /// GPUs that one replica asks for, over all its pods.
    pub gpus: Option<u32>,
    /// It asks for slices of GPUs, which no number of whole ones tells.
    pub asks_for_slices: bool,
    /// It claims devices through resource claims, whose number a template does not say.
    pub claims_devices: bool,
    /// Where the pods declare their metrics port, so that the scaler finds it by itself.
    pub declared_port: Option<u16>,
    /// Otherwise the port that the engine's arguments name, or its only container port.
    pub likely_port: Option<u16>,
    /// The engine's family by its image or arguments, as trigger metadata writes it: one of the two
    /// whose options are known.
    pub engine: Option<&'static str>,
    /// Whose series its pods show, of all engines.
    pub shows: Option<Shows>,
}

impl PodFacts {
    /// Reads one template as a whole replica.
    pub(super) fn of(template: &PodTemplateSpec) -> PodFacts {
        let no_spec = PodSpec::default();
        let spec = template.spec.as_ref().unwrap_or(&no_spec);
        let asked = devices::of_pod(spec);
        let annotations = template.metadata.as_ref().and_then(|meta| meta.annotations.as_ref());
        let mut engines = spec.containers.iter().filter_map(|c| Some((c, family(c)?)));
        let engine = engines.next();
        PodFacts {
            pods: 1,
            gpus: devices::whole(&asked),
            asks_for_slices: asked.keys().any(|name| devices::is_slice(name)),
            claims_devices: spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()),
            declared_port: pod::declared_port(annotations, Some(spec)),
            likely_port: engine.and_then(|(container, _)| port_argument(container)).or_else(|| {
                let mut ports = spec.containers.iter().flat_map(|c| c.ports.iter().flatten());
                let only = ports.next().filter(|_| ports.next().is_none())?;
                u16::try_from(only.container_port).ok()
            }),
            engine: engine.map(|(_, family)| family),
            shows: spec.containers.iter().find_map(Shows::of),
        }
    }
}

/// The pods of a scale target's object; `None` where it has no template that is known.
pub fn of(object: &Value) -> Option<PodFacts> {
    let read = |template: &Value| PodTemplateSpec::deserialize(template).ok();
    let group = &object["spec"]["leaderWorkerTemplate"];
    if let Some(worker) = group.get("workerTemplate").and_then(read) {
        let size = group["size"].as_u64().and_then(|size| u32::try_from(size).ok()).unwrap_or(1);
        let leader = group.get("leaderTemplate").and_then(read);
        return Some(of_group(leader.as_ref().unwrap_or(&worker), &worker, size.max(1)));
    }
    if let Some(facts) = of_kserve(&object["spec"]) {
        return Some(facts);
    }
    read(object.pointer("/spec/template")?).map(|template| PodFacts::of(&template))
}

/// KServe's kinds have pod specs in the place of templates: an LLMInferenceService `template` and
/// `worker`, an InferenceService `predictor`, whose `model` is a container.
fn of_kserve(spec: &Value) -> Option<PodFacts> {
    let template = |pod: PodSpec| PodTemplateSpec { metadata: None, spec: Some(pod) };
    let read = |pod: &Value| {
        pod.get("containers")?;
        PodSpec::deserialize(pod).ok().map(template)
    };
    if let Some(leader) = read(&spec["template"]) {
        let worker = read(&spec["worker"]);
        return Some(worker.map_or_else(
            || PodFacts::of(&leader),
            |worker| of_group(&leader, &worker, pods_of(&spec["parallelism"])),
        ));
    }
    let predictor = &spec["predictor"];
    let model = predictor.get("model").and_then(|model| Container::deserialize(model).ok());
    let of_model = |model| template(PodSpec { containers: vec![model], ..PodSpec::default() });
    read(predictor).or_else(|| model.map(of_model)).map(|template| PodFacts::of(&template))
}

/// Pods of one replica: as many as the pipeline has stages, or as the data-parallel ranks take.
fn pods_of(parallelism: &Value) -> u32 {
    let count = |key: &str| parallelism[key].as_u64().and_then(|count| u32::try_from(count).ok());
    let by_ranks = count("data").zip(count("dataLocal").filter(|local| *local > 0));
    count("pipeline")
        .or_else(|| by_ranks.map(|(all, local)| all.div_ceil(local)))
        .unwrap_or(1)
        .max(1)
}

/// The leader speaks for its group; GPUs are those of all its pods.
fn of_group(leader: &PodTemplateSpec, worker: &PodTemplateSpec, size: u32) -> PodFacts {
    let leader = PodFacts::of(leader);
    let worker = PodFacts::of(worker);
    let workers = worker.gpus.map(|gpus| gpus.saturating_mul(size - 1)).filter(|gpus| *gpus > 0);
    let gpus = match (leader.gpus, workers) {
        (None, None) => None,
        (leader, workers) => Some(leader.unwrap_or(0).saturating_add(workers.unwrap_or(0))),
    };
    PodFacts { pods: size, gpus, ..leader }
}

fn family(container: &Container) -> Option<&'static str> {
    let image = container.image.as_deref().into_iter();
    let words = image
        .chain(container.command.iter().flatten().map(String::as_str))
        .chain(container.args.iter().flatten().map(String::as_str));
    let mut found = None;
    for word in words {
        if word.contains("sglang") {
            return Some("sglang");
        }
        if word.contains("vllm") {
            found = Some("vllm");
        }
    }
    found
}

fn port_argument(container: &Container) -> Option<u16> {
    let words: Vec<&str> = container
        .command
        .iter()
        .chain(&container.args)
        .flatten()
        // A shell's argument is a whole command line.
        .flat_map(|text| text.split_whitespace())
        .collect();
    words.iter().enumerate().find_map(|(index, word)| match word.strip_prefix("--port")? {
        "" => words.get(index + 1)?.parse().ok(),
        value => value.strip_prefix('=')?.parse().ok(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts(spec: Value) -> PodFacts {
        of(&json!({"spec": {"template": {"spec": spec}}})).unwrap()
    }

    #[test]
    fn an_engine_is_known_by_its_image_or_command() {
        for (container, engine) in [
            (json!({"name": "a", "image": "vllm/vllm-openai:v0.32.0"}), Some("vllm")),
            (
                json!({"name": "a", "image": "mirror/llm", "command": ["vllm", "serve"]}),
                Some("vllm"),
            ),
            (json!({"name": "a", "image": "lmsysorg/sglang:v0.6"}), Some("sglang")),
            (
                json!({"name": "a", "image": "x", "args": ["-m", "sglang.launch_server"]}),
                Some("sglang"),
            ),
            (json!({"name": "a", "image": "nginx"}), None),
        ] {
            assert_eq!(facts(json!({"containers": [container]})).engine, engine, "{container}");
        }
    }

    #[test]
    fn a_port_is_declared_or_read_from_the_arguments() {
        let vllm = |more: Value| {
            let mut container = json!({"name": "a", "image": "vllm"});
            container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let facts = facts(json!({"containers": [container]}));
            (facts.declared_port, facts.likely_port)
        };
        assert_eq!(vllm(json!({})), (None, None));
        assert_eq!(vllm(json!({"args": ["--port", "9000"]})), (None, Some(9000)));
        assert_eq!(vllm(json!({"args": ["--port=9001"]})), (None, Some(9001)));
        assert_eq!(vllm(json!({"args": ["exec vllm serve m --port 9002"]})), (None, Some(9002)));
        assert_eq!(vllm(json!({"ports": [{"containerPort": 80}]})), (None, Some(80)));
        let two = json!({"ports": [{"containerPort": 80}, {"containerPort": 81}]});
        assert_eq!(vllm(two), (None, None), "no guess among several");
        let named =
            json!({"ports": [{"containerPort": 80}, {"containerPort": 81, "name": "http"}]});
        assert_eq!(vllm(named), (Some(81), None));
    }

    #[test]
    fn f92_a_group_of_pods_is_one_replica_and_its_gpus_are_summed() {
        let pod = |gpus: u32| {
            json!({"spec": {"containers": [{"name": "a", "image": "vllm",
                "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]}})
        };
        let group = |template: Value| of(&json!({"spec": {"leaderWorkerTemplate": template}}));
        let same = group(json!({"size": 2, "workerTemplate": pod(8)})).unwrap();
        assert_eq!((same.pods, same.gpus, same.engine), (2, Some(16), Some("vllm")));
        let apart = group(json!({"size": 4, "leaderTemplate": pod(0), "workerTemplate": pod(8)}));
        assert_eq!(apart.unwrap().gpus, Some(24));
        let alone = group(json!({"size": 1, "workerTemplate": pod(8)}));
        assert_eq!(alone.unwrap().gpus, Some(8));
    }

    #[test]
    fn kserves_kinds_are_read_where_they_say_something() {
        let pod = |gpus: u32| {
            json!({"containers": [{"name": "main", "image": "vllm/vllm-openai:v0.32.0",
                "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]})
        };
        let read = |spec: Value| {
            let facts = of(&json!({"spec": spec})).unwrap();
            (facts.pods, facts.gpus, facts.engine)
        };
        assert_eq!(read(json!({"template": pod(2)})), (1, Some(2), Some("vllm")));
        let pipeline =
            json!({"template": pod(8), "worker": pod(8), "parallelism": {"pipeline": 2}});
        assert_eq!(read(pipeline), (2, Some(16), Some("vllm")));
        let ranks = json!({"data": 8, "dataLocal": 2});
        let ranks = json!({"template": pod(4), "worker": pod(4), "parallelism": ranks});
        assert_eq!(read(ranks), (4, Some(16), Some("vllm")));
        let model = json!({"predictor": {"model": {"modelFormat": {"name": "vllm"},
            "args": ["--port=9000"], "resources": {"limits": {"nvidia.com/gpu": "4"}}}}});
        assert_eq!(read(model), (1, Some(4), None));
    }

    #[test]
    fn claims_are_seen_and_an_object_without_a_template_is_unknown() {
        let claims = json!({"containers": [], "resourceClaims": [{"name": "gpu"}]});
        assert!(facts(claims).claims_devices);
        assert_eq!(of(&json!({"spec": {"predictor": {}}})), None);
        assert_eq!(of(&json!({"spec": {"model": {"uri": "hf://m"}}})), None, "all by its config");
        assert_eq!(of(&json!({})), None);
    }
}
