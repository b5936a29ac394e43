//! The dialects of the engines that are not vLLM.
//!
//! Must not define a family.

use super::{BeforeFirst, Dialect, Evidence, Health, Label, Manners, Numbers, PYTHON};
use crate::exposition::families::{llama_cpp, lmdeploy, nim, sglang, tgi, triton, trtllm};

impl Dialect {
    /// SGLang 0.5.23.
    pub const SGLANG: Dialect = Dialect {
        name: "sglang",
        version: "0.5.23",
        evidence: Evidence::Written,
        namespace: "sglang:",
        has_underscores: true,
        manners: Manners {
            health: Health::Generates(&["/health", "/health_generate"], ""),
            ..Manners::OTHER
        },
        families: sglang::ALL,
        labels: &[
            Label::Model("model_name"),
            Label::Fixed("engine_type", "unified"),
            Label::Fixed("tp_rank", "0"),
            Label::Fixed("pp_rank", "0"),
            Label::Fixed("moe_ep_rank", "0"),
            Label::Rank("dp_rank"),
        ],
        always_multiprocess: true,
        ..PYTHON
    };

    /// Text Generation Inference 3: no series before its first event.
    pub const TGI: Dialect = Dialect {
        name: "tgi",
        version: "3.3.6",
        content_type: "text/plain; charset=utf-8",
        namespace: "tgi_",
        manners: Manners {
            health: Health::Generates(
                &["/health"],
                "{\"error\":\"unhealthy\",\"error_type\":\"healthcheck\"}",
            ),
            ..Manners::OTHER
        },
        families: tgi::ALL,
        labels: &[],
        counter_suffix: "",
        numbers: Numbers::Shortest,
        before_first: BeforeFirst::Only(&[]),
        ..PYTHON
    };

    /// trtllm-serve of 2026: JSON at `/metrics`, the page elsewhere.
    pub const TRTLLM: Dialect = Dialect {
        name: "trtllm",
        version: "1.3.0",
        paths: &["/prometheus/metrics", "/prometheus/metrics/"],
        has_json: true,
        namespace: "trtllm_",
        manners: Manners::OTHER,
        families: trtllm::ALL,
        labels: &[Label::Model("model_name"), Label::Fixed("engine_type", "trtllm")],
        always_multiprocess: true,
        before_first: BeforeFirst::Only(&["prompt_cached_tokens"]),
        ..PYTHON
    };

    /// Triton with the TensorRT-LLM backend.
    pub const TRITON: Dialect = Dialect {
        name: "triton",
        version: "2.73.0",
        content_type: "text/plain; charset=utf-8",
        namespace: "nv_",
        manners: Manners {
            health: Health::Empty(&["/v2/health/ready", "/v2/health/live"]),
            ..Manners::OTHER
        },
        families: triton::ALL,
        labels: &[Label::Fixed("model", "tensorrt_llm"), Label::Fixed("version", "1")],
        counter_suffix: "",
        numbers: Numbers::Shortest,
        ..PYTHON
    };

    /// llama.cpp's server.
    pub const LLAMA_CPP: Dialect = Dialect {
        name: "llamacpp",
        version: "b11549",
        evidence: Evidence::Captured,
        content_type: "text/plain; version=0.0.4",
        namespace: "llamacpp:",
        manners: Manners {
            health: Health::Says(&["/health"], "{\"status\":\"ok\"}"),
            listens_while_loading: true,
            slots: Some(4),
            ..Manners::OTHER
        },
        families: llama_cpp::ALL,
        labels: &[],
        counter_suffix: "",
        numbers: Numbers::SixDigits,
        ..PYTHON
    };

    /// LMDeploy 0.18.
    pub const LMDEPLOY: Dialect = Dialect {
        name: "lmdeploy",
        version: "0.18.0",
        evidence: Evidence::Written,
        namespace: "lmdeploy:",
        has_underscores: true,
        manners: Manners::OTHER,
        families: lmdeploy::ALL,
        labels: &[Label::Model("model_name"), Label::Rank("engine")],
        has_process: true,
        ..PYTHON
    };

    /// NIM for LLMs on TensorRT-LLM: no sample before the first step.
    pub const NIM: Dialect = Dialect {
        name: "nim",
        version: "1.14.0",
        paths: &["/v1/metrics"],
        namespace: "",
        manners: Manners {
            health: Health::Says(
                &["/v1/health/ready", "/v1/health/live"],
                "{\"object\":\"health.response\",\"message\":\"Service is ready.\"}",
            ),
            ..Manners::OTHER
        },
        families: nim::ALL,
        labels: &[Label::Model("model_name")],
        has_process: true,
        before_first: BeforeFirst::Heads,
        ..PYTHON
    };
}
