//! Whose series the pods of a template show, by image and command: family, version, spelling.
//!
//! Pure; what neither says stays unknown.

use k8s_openapi::api::core::v1::Container;

use crate::trigger::EngineFamily;

/// An engine as a container's image and command tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shows {
    /// The family.
    pub family: EngineFamily,
    /// The version in the tag of the engine's own image, without a `v`.
    pub version: Option<String>,
    /// Ray exports the series, under names of its own.
    pub by_ray: bool,
}

/// What stands in an image's name, in the order of judgement.
const IMAGES: [(&str, EngineFamily); 12] = [
    ("ray-llm", EngineFamily::Vllm),
    ("sglang", EngineFamily::Sglang),
    ("vllm", EngineFamily::Vllm),
    ("text-generation-inference", EngineFamily::Tgi),
    ("tritonserver", EngineFamily::Triton),
    ("tensorrt-llm", EngineFamily::Trtllm),
    ("tensorrt_llm", EngineFamily::Trtllm),
    ("trtllm", EngineFamily::Trtllm),
    ("lmdeploy", EngineFamily::LmDeploy),
    ("llama.cpp", EngineFamily::LlamaCpp),
    ("llama-cpp", EngineFamily::LlamaCpp),
    ("nvcr.io/nim/", EngineFamily::Nim),
];

/// What stands in a command, which says more than the image that it is found in.
const COMMANDS: [(&str, EngineFamily); 8] = [
    ("ray.serve.llm", EngineFamily::Vllm),
    ("sglang", EngineFamily::Sglang),
    ("vllm", EngineFamily::Vllm),
    ("text-generation-launcher", EngineFamily::Tgi),
    ("trtllm-serve", EngineFamily::Trtllm),
    ("tritonserver", EngineFamily::Triton),
    ("lmdeploy", EngineFamily::LmDeploy),
    ("llama-server", EngineFamily::LlamaCpp),
];

impl Shows {
    /// What this container shows; `None` where it is no engine that is known.
    pub(super) fn of(container: &Container) -> Option<Shows> {
        let (name, tag) = parts(container.image.as_deref().unwrap_or_default());
        let mut words = container.command.iter().chain(&container.args).flatten();
        let by_image = IMAGES.into_iter().find(|(part, _)| name.contains(part));
        // A path or module of Python, or a shell's whole line; but no option's value.
        let by_command = words.clone().flat_map(|text| text.split_whitespace()).find_map(|word| {
            let program = word.rsplit('/').next().unwrap_or(word);
            let runs = |part: &str| program == part || program.starts_with(&format!("{part}."));
            COMMANDS.into_iter().find(|(part, _)| runs(part) || word.starts_with(part))
        });
        // Triton has another engine in it than its own where the tag says so.
        let in_triton = by_image
            .filter(|(_, family)| *family == EngineFamily::Triton && tag.contains("vllm"))
            .map(|_| ("vllm", EngineFamily::Vllm));
        let (part, family) = in_triton.or(by_command).or(by_image)?;
        let is_its_own = by_image.is_some_and(|(_, own)| own == family) && in_triton.is_none();
        let by_ray = part.starts_with("ray")
            || name.contains("ray-llm")
            || words.any(|word| word.contains("ray.serve.llm"));
        // The tag of Ray's image is Ray's version.
        let version = version_in(tag).filter(|_| is_its_own && !by_ray).map(str::to_owned);
        Some(Shows { family, version, by_ray })
    }
}

/// The name and the tag of an image, without its digest.
fn parts(image: &str) -> (&str, &str) {
    let image = image.split('@').next().unwrap_or(image);
    image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).unwrap_or((image, ""))
}

/// A version as `v0.33.0`, `0.33.0-cu129`, `3.3.6`, or llama.cpp's `server-b11549`.
fn version_in(tag: &str) -> Option<&str> {
    let is_number = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_digit())
            && part.contains('.')
            && part.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    };
    let is_build = |part: &str| {
        let digits = part.strip_prefix('b').unwrap_or_default();
        digits.len() > 2 && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let mut parts = tag.split('-').map(|part| part.strip_prefix('v').unwrap_or(part));
    parts.find(|part| is_number(part) || is_build(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(image: &str, command: &[&str]) -> Option<(EngineFamily, Option<String>, bool)> {
        let words: Vec<String> = command.iter().copied().map(str::to_owned).collect();
        let container = Container {
            image: Some(image.to_owned()),
            command: Some(words),
            ..Container::default()
        };
        Shows::of(&container).map(|shows| (shows.family, shows.version, shows.by_ray))
    }

    #[test]
    fn an_image_tells_its_engine_and_its_tag_the_version() {
        use EngineFamily::{LlamaCpp, LmDeploy, Nim, Sglang, Tgi, Triton, Trtllm, Vllm};
        for (image, family, version) in [
            ("vllm/vllm-openai:v0.33.0", Vllm, Some("0.33.0")),
            ("localhost:5000/vllm/vllm-openai", Vllm, None),
            ("vllm/vllm-openai:latest", Vllm, None),
            ("vllm/vllm-openai:v0.20.2-cu129@sha256:1f", Vllm, Some("0.20.2")),
            ("lmsysorg/sglang:v0.5.23-cu129", Sglang, Some("0.5.23")),
            ("ghcr.io/huggingface/text-generation-inference:3.3.6", Tgi, Some("3.3.6")),
            ("nvcr.io/nvidia/tritonserver:24.10-trtllm-python-py3", Triton, Some("24.10")),
            ("nvcr.io/nvidia/tritonserver:24.10-vllm-python-py3", Vllm, None),
            ("nvcr.io/nvidia/tensorrt-llm/release:1.3.0", Trtllm, Some("1.3.0")),
            ("openmmlab/lmdeploy:v0.18.0-cu12", LmDeploy, Some("0.18.0")),
            ("ghcr.io/ggml-org/llama.cpp:server-cuda-b11549", LlamaCpp, Some("b11549")),
            ("ghcr.io/ggml-org/llama.cpp:server", LlamaCpp, None),
            ("nvcr.io/nim/meta/llama-3.1-8b-instruct:1.14.0", Nim, Some("1.14.0")),
        ] {
            let expected = Some((family, version.map(str::to_owned), false));
            assert_eq!(shows(image, &[]), expected, "{image}");
        }
        assert_eq!(shows("nginx:1.27.0", &[]), None);
    }

    #[test]
    fn a_command_says_more_than_the_image_that_it_is_in() {
        use EngineFamily::{LlamaCpp, Trtllm, Vllm};
        for (image, command, family, by_ray) in [
            ("mirror/llm:2.0.0", &["vllm", "serve", "m"][..], Vllm, false),
            ("mirror/llm", &["python3", "-m", "vllm.entrypoints.openai.api_server"], Vllm, false),
            ("mirror/llm", &["sh", "-c", "exec /usr/bin/llama-server -m x"], LlamaCpp, false),
            ("nvcr.io/nvidia/tritonserver:24.10-py3", &["trtllm-serve", "m"], Trtllm, false),
            ("rayproject/ray-llm:2.46.0-py311-cu124", &[], Vllm, true),
            (
                "rayproject/ray:2.60.0",
                &["serve", "run", "ray.serve.llm:build_openai_app"],
                Vllm,
                true,
            ),
        ] {
            assert_eq!(shows(image, command), Some((family, None, by_ray)), "{image} {command:?}");
        }
        // The value of an option is no program.
        assert_eq!(shows("nginx", &["proxy", "--upstream=vllm"]), None);
    }
}
