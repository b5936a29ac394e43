#!/usr/bin/env python3
"""`loadgen run` beside `vllm bench serve`, AIPerf and GuideLLM, in one run on one simulated engine.

    cargo build --release -p loadgen && loadgen/tests/benches/peers.py [--rates 50,200,1000] [--seconds 15]
    cargo build --release -p loadgen && loadgen/tests/benches/peers.py --sweep

With --sweep it looks for the highest rate that each tool reaches within 1 % of what it was asked for (equal gaps,
so that chance has no part in it), doubled until it fails and then narrowed down to a tenth, and sets it beside the best
other's. From some 16 tokens on the engine, which writes each token, takes more than half of two cores.

Each tool sends the same load (Poisson, chat, streamed answers of --output-tokens) to the same `loadgen
engine`, one after the other. What it reached is counted at the engine, so that no tool is taken at
its word: the rate at which requests came to an end there, and the mean time to first token that the
engine itself gave. What a tool says above that is what the tool has added.

AIPerf and GuideLLM are installed from PyPI into a virtual environment of their own (--venv; more than 6 GB, as
GuideLLM brings a PyTorch with CUDA);
`vllm bench serve` comes with a vLLM that is there already (--vllm; its CUDA build would be 6 GB).
What cannot be had is said and left out.
"""
import argparse
import glob
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

PACKAGES = {"aiperf": "aiperf==0.13.0", "guidellm": "guidellm==0.8.1"}
INPUT_TOKENS = 100
MODEL = "m"
# A token every 5 ms for up to 4,096 requests at once: 51,000 requests a second, more than anybody here sends.
PROFILE = """name: peers
about: a token every 5 ms, whatever it holds
gpus: 1
kv: { block_tokens: 16, blocks: 1000000 }
limits: { max_num_seqs: 4096, max_num_batched_tokens: 1000000, max_model_tokens: 100000 }
step: { base_ms: 5, prefill_ms: [[0, 0]], decode_ms: [[0, 0]], resident_ms: [[0, 0]] }
start:
  schedule: { median_s: 1, p95_s: 2 }
  pull: { median_s: 1, p95_s: 2 }
  load: { median_s: 1, p95_s: 2 }
  warm: { median_s: 1, p95_s: 2 }
wake: { level_1_s: 2.0, level_2_s: 2.6 }
shutdown: { timeout_s: 0, linger_s: 0, exit_s: 0.1 }
"""
# Byte for byte, so that it needs no file from anywhere.
TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {token: index for index, token in enumerate(["<unk>", "<s>", "</s>", *alphabet])}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
fast.save_pretrained(sys.argv[1])
"""


class Engine:
    """The target, and what it has seen."""

    def __init__(self, loadgen, folder):
        profile = os.path.join(folder, "peers.yaml")
        with open(profile, "w") as file:
            file.write(PROFILE)
        self.process = subprocess.Popen(
            [loadgen, "engine", "--listen", "127.0.0.1:0", "--model", MODEL, "--profile", profile],
            stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split()[-1]

    def counts(self):
        """Requests ended, and sums and counts of times to first token, so far."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as page:
            text = page.read().decode()
        total = lambda name: sum(float(v) for v in re.findall(rf"^vllm:{name}(?:{{[^}}]*}})? (\S+)", text, re.M))
        return (total("request_success_total"), total("time_to_first_token_seconds_sum"),
                total("time_to_first_token_seconds_count"))

    def watch(self, stop, seen):
        while not stop.wait(0.1):
            try:
                seen.append((time.monotonic(), self.counts()[0]))
            except OSError:
                pass  # Drowned in requests: the next look tells as much.


def rate_of(seen):
    """Requests a second between the first and the last tenth of them: no start-up, no run-out."""
    if not seen or seen[-1][1] == seen[0][1]:
        return None
    first, last = seen[0][1], seen[-1][1]
    inner = [(at, n) for at, n in seen if first + (last - first) * 0.1 <= n <= first + (last - first) * 0.9]
    if len(inner) < 3:
        return None
    (at, n), (end, more) = inner[0], inner[-1]
    return (more - n) / (end - at)


OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def run(command, log, env=None, offline=OFFLINE, seconds=600):
    with open(log, "w") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=seconds,
                              env={**os.environ, **offline, **(env or {})})
    if done.returncode:
        with open(log) as file:
            raise RuntimeError(f"exit {done.returncode}: {' | '.join(file.read().strip().splitlines()[-4:])}")


def n_requests(rate, seconds):
    """For tools that take a number instead of a time: all that is due in it, or a tool that falls behind is done
    before its queue shows."""
    return rate * seconds


# Each runs its tool and returns (mean time to first token, its 99th percentile) in seconds.

def with_loadgen(tools, url, rate, seconds, folder, arrival):
    report = os.path.join(folder, "loadgen.json")
    run([tools["loadgen"], "run", "--url", url, "--model", MODEL, "--rate", str(rate), "--duration", f"{seconds}s",
         "--arrival", arrival, "--input-tokens", str(INPUT_TOKENS), "--output-tokens", str(tools["output_tokens"]),
         "--format", "json", "--output", report, "--quiet"], os.path.join(folder, "loadgen.log"))
    with open(report) as file:
        ttft = json.load(file)["ttft"]
    return ttft["mean"], ttft["p99"]


def with_vllm(tools, url, rate, seconds, folder, arrival):
    run([*tools["vllm bench serve"], "bench", "serve", "--backend", "openai-chat", "--base-url", url,
         "--endpoint", "/v1/chat/completions", "--model", MODEL, "--tokenizer", tools["tokenizer"],
         "--dataset-name", "random", "--random-input-len", str(INPUT_TOKENS),
         "--random-output-len", str(tools["output_tokens"]), "--num-prompts", str(n_requests(rate, seconds)),
         "--request-rate", str(rate), "--burstiness", "1" if arrival == "poisson" else "1000000",
         "--ignore-eos", "--disable-tqdm", "--save-result", "--result-dir", folder, "--result-filename", "vllm.json"],
        os.path.join(folder, "vllm.log"), {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1"})
    with open(os.path.join(folder, "vllm.json")) as file:
        result = json.load(file)
    return result["mean_ttft_ms"] / 1e3, result["p99_ttft_ms"] / 1e3


# Offline, AIPerf takes a folder for a name in its cache.
def with_aiperf(tools, url, rate, seconds, folder, arrival):
    run([tools["AIPerf"], "profile", "--model", MODEL, "--url", url, "--endpoint-type", "chat", "--streaming",
         "--tokenizer", tools["tokenizer"], "--request-rate", str(rate), "--arrival-pattern", arrival,
         "--request-count", str(n_requests(rate, seconds)), "--synthetic-input-tokens-mean", str(INPUT_TOKENS),
         "--synthetic-input-tokens-stddev", "0", "--output-tokens-mean", str(tools["output_tokens"]),
         "--output-tokens-stddev", "0", "--extra-inputs", "ignore_eos:true", "--artifact-dir", folder,
         "--ui", "none"], os.path.join(folder, "aiperf.log"), offline={})
    [path] = glob.glob(os.path.join(folder, "**", "profile_export_aiperf.json"), recursive=True)
    with open(path) as file:
        ttft = json.load(file)["time_to_first_token"]
    return ttft["avg"] / 1e3, ttft["p99"] / 1e3


def with_guidellm(tools, url, rate, seconds, folder, arrival):
    report = os.path.join(folder, "guidellm.json")
    run([tools["GuideLLM"], "run", "--backend", f"kind=openai_http,target={url},model={MODEL}",
         "--profile", f"kind={arrival},rate={rate}", "--constraint", f"kind=max_duration,seconds={seconds}",
         "--data", f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={tools['output_tokens']}",
         "--tokenizer", f"kind=huggingface_auto,model={tools['tokenizer']}", "--output", f"kind=json,path={report}",
         "--disable-console"],
        os.path.join(folder, "guidellm.log"))
    with open(report) as file:
        metrics = json.load(file)["benchmarks"][0]["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]
    return ttft["mean"] / 1e3, ttft["percentiles"]["p99"] / 1e3


TOOLS = [("loadgen", with_loadgen), ("vllm bench serve", with_vllm), ("AIPerf", with_aiperf),
         ("GuideLLM", with_guidellm)]


def installed(venv):
    """The tools that can be had, by name; says what cannot."""
    tools = {}
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    for command, package in PACKAGES.items():
        name = {"aiperf": "AIPerf", "guidellm": "GuideLLM"}[command]
        path = os.path.join(venv, "bin", command)
        if not os.path.exists(path):
            print(f"installing {package} into {venv}", file=sys.stderr)
            done = subprocess.run([python, "-m", "pip", "install", "-q", package], capture_output=True, text=True)
            if done.returncode:
                print(f"{name}: left out, pip cannot install {package}: {done.stderr.strip()[-200:]}")
                continue
        tools[name] = path
    return tools, python


def measure(engine, name, tool, tools, rate, seconds, arrival="poisson"):
    """One tool at one rate, as a row."""
    stop, seen = threading.Event(), []
    watcher = threading.Thread(target=engine.watch, args=(stop, seen))
    with tempfile.TemporaryDirectory() as folder:
        _, sum_before, n_before = engine.counts()
        cpu_before = resource.getrusage(resource.RUSAGE_CHILDREN)
        watcher.start()
        try:
            mean, p99 = tool(tools, engine.url, rate, seconds, folder, arrival)
        except (RuntimeError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
            return {"tool": name, "rate": rate, "error": str(error)}
        finally:
            stop.set()
            watcher.join()
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = cpu.ru_utime + cpu.ru_stime - cpu_before.ru_utime - cpu_before.ru_stime
    _, sum_after, n_after = engine.counts()
    n = n_after - n_before
    own = (sum_after - sum_before) / n
    return {"tool": name, "rate": rate, "requests": int(n), "achieved": rate_of(seen), "engine_ttft_s": own,
            "ttft_s": mean, "ttft_p99_s": p99, "added_s": mean - own, "cpu_s_per_request": cpu_s / n}


def highest(engine, name, tool, tools, seconds, first):
    """The highest rate that a tool reaches within 1 %: every row, and the best one that holds."""
    rows, holds, fails, rate = [], None, None, first
    while True:
        print(f"{name} at {rate}/s", file=sys.stderr)
        row = measure(engine, name, tool, tools, rate, seconds, "constant")
        rows.append(row)
        if (row.get("achieved") or 0) >= 0.99 * rate:
            holds = row
        else:
            fails = rate
        if holds and fails:
            if fails <= 1.1 * holds["rate"]:
                return rows, holds
            rate = round((holds["rate"] * fails) ** 0.5)
        else:
            rate = rate * 2 if holds else rate // 2
        if rate < 5 or rate > 50_000:
            return rows, holds


def sweep(engine, tools, seconds, is_json):
    """Each tool's highest rate, the others' first."""
    out = sys.stderr if is_json else sys.stdout
    print("tool               highest  of the best other's  CPU/request  TTFT added", file=out)
    found, best = [], 0
    for name, tool in [*TOOLS[1:], TOOLS[0]]:
        if name not in tools:
            continue
        ours = name == "loadgen"
        rows, holds = highest(engine, name, tool, tools, seconds, 1600 if ours else 100)
        found.append({"tool": name, "highest": holds and holds["rate"], "steps": rows})
        if not holds:
            print(f"{name:16}  none: {rows[-1].get('error', 'more than 1 % short at every rate')}"[:200], file=out, flush=True)
            continue
        best = best if ours else max(best, holds["rate"])
        ahead = f"{holds['rate'] / best:.1f} x" if ours and best else ""
        print(f"{name:16} {holds['rate']:7}/s {ahead:>20} {holds['cpu_s_per_request'] * 1e3:9.2f} ms "
              f"{holds['added_s'] * 1e3:8.2f} ms", file=out, flush=True)
    if is_json:
        json.dump(found, sys.stdout, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.join(os.path.dirname(__file__), "..", "..", "..")
    parser.add_argument("--loadgen", default=os.path.join(root, "target", "release", "loadgen"))
    parser.add_argument("--venv", default=os.path.join(root, "target", "peers"))
    parser.add_argument("--vllm", default=shutil.which("vllm"), help="the vllm command [default: the one in PATH]")
    parser.add_argument("--rates", default="50,200,1000")
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--output-tokens", type=int, default=16, help="of an answer, one event each [default: 16]")
    parser.add_argument("--sweep", action="store_true", help="look for each tool's highest rate")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    args = parser.parse_args()
    if not os.path.exists(args.loadgen):
        sys.exit(f"no {args.loadgen}: cargo build --release -p loadgen")
    tools, python = installed(os.path.abspath(args.venv))
    tools["loadgen"] = args.loadgen
    tools["output_tokens"] = args.output_tokens
    if args.vllm:
        tools["vllm bench serve"] = [args.vllm]
    else:
        print("vllm bench serve: left out, no vllm command (--vllm)")
    rows = []
    if args.format == "table" and not args.sweep:
        print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        tools["tokenizer"] = os.path.join(folder, "tokenizer")
        if any(name in tools for name, _ in TOOLS[1:]):
            subprocess.run([python, "-c", TOKENIZER, tools["tokenizer"]], check=True, capture_output=True)
        engine = Engine(args.loadgen, folder)
        try:
            if args.sweep:
                sweep(engine, tools, args.seconds, args.format == "json")
                return
            for rate in map(int, args.rates.split(",")):
                for name, tool in TOOLS:
                    if name in tools:
                        print(f"{name} at {rate}/s", file=sys.stderr)
                        rows.append(measure(engine, name, tool, tools, rate, args.seconds))
                        if args.format == "table":
                            print(line(rows), flush=True)
        finally:
            engine.process.terminate()
            engine.process.wait()
    if args.format == "json":
        json.dump(rows, sys.stdout, indent=1)


HEAD = "offered  tool              reached  of ours  TTFT added     p99  CPU/request"


def line(rows):
    """The last row; the first of its rate is loadgen's."""
    row = rows[-1]
    if "error" in row:
        return f"{row['rate']:6}/s  {row['tool']:16}  failed: {row['error']}"[:200]
    ours = next(own.get("achieved") for own in rows if own["rate"] == row["rate"])
    reached = row["achieved"]
    share = f"{reached / ours:7.0%}" if reached and ours else "      –"
    rate = f"{reached:6.0f}/s" if reached else "       –"
    return (f"{row['rate']:6}/s  {row['tool']:16} {rate}  {share} {row['added_s'] * 1e3:8.2f} ms "
            f"{row['ttft_p99_s'] * 1e3:6.0f} ms {row['cpu_s_per_request'] * 1e3:7.2f} ms")


if __name__ == "__main__":
    main()
