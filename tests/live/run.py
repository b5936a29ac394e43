#!/usr/bin/env python3
"""The whole loop on real parts: vLLM -> scrape -> decision -> KEDA -> HPA -> replicas.

Needs a cluster with KEDA whose stand-in kubelet (KWOK) leaves pods with the annotation
`cold-start: 24h` alone and whose pods may have loopback addresses, and a command that serves a real
vLLM in the foreground: `COMMAND PORT --host IP`. Prints a timeline and a verdict per scenario; exit
status 0 when every one holds.

    tests/live/run.py --kubeconfig FILE --kubectl FILE --vllm COMMAND \\
        [--ghostscaler target/release/ghostscaler] [--only NAME,...] [--cluster COMMAND]

COMMAND of --cluster takes `kill PART` and `start PART` (parts: keda); without it the scenarios that
stop KEDA are skipped. The scenarios on Prometheus need `prometheus` on the PATH.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from kubelet import PORT, Kubelet
from load import Load

NAMESPACE, NAME = "live", "llm"
GRPC, HTTP, PROM = "127.0.0.1:19090", "127.0.0.1:18080", "127.0.0.1:19091"
HOLD_S = 60


def manifest(source):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "apps/v1", "kind": "Deployment",
         "metadata": {"name": NAME, "namespace": NAMESPACE},
         "spec": {"replicas": 1, "selector": {"matchLabels": {"app": NAME}},
                  "template": {"metadata": {"labels": {"app": NAME},
                                            "annotations": {"cold-start": "24h", "prometheus.io/port": str(PORT)}},
                               "spec": {"containers": [{"name": "vllm", "image": "vllm", "resources": {
                                   "limits": {"nvidia.com/gpu": "1"}}}]}}}},
        scaled_object(source)]})


def scaled_object(source):
    step = {"tolerance": "0", "stabilizationWindowSeconds": 0}
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"scaleTargetRef": {"name": NAME}, "minReplicaCount": 1, "maxReplicaCount": 2,
                     "pollingInterval": 5, "cooldownPeriod": 300, "initialCooldownPeriod": 600,
                     "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {
                         "scaleUp": {**step, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 15}]},
                         "scaleDown": {**step, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}}}},
                     "triggers": [{"type": "external-push", "metadata": {
                         "scalerAddress": GRPC, "source": source, "ghostHold": f"{HOLD_S}s"}}]}}


class Lab:
    def __init__(self, args):
        self.args = args
        self.dir = tempfile.mkdtemp(prefix="ghostscaler-live-")
        self.processes = {}
        self.started = time.time()
        self.last_line = None
        self.kubelet = Kubelet(self.kubectl, NAMESPACE, f"app={NAME}", args.vllm, self.dir)
        self.load = Load(self.kubelet, args.model)

    def kubectl(self, *words):
        command = [self.args.kubectl, "--kubeconfig", self.args.kubeconfig, "-n", NAMESPACE, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout

    def apply(self, text):
        command = [self.args.kubectl, "--kubeconfig", self.args.kubeconfig, "apply", "-f", "-"]
        subprocess.run(command, input=text, check=True, capture_output=True, text=True, timeout=30)

    def say(self, text):
        print(f"{time.time() - self.started:7.1f} s  {text}", flush=True)

    # processes of our own

    def spawn(self, name, *command):
        log = open(os.path.join(self.dir, f"{name}.log"), "a", encoding="utf-8")
        self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def end(self, name, how=signal.SIGTERM):
        process = self.processes.pop(name, None)
        if process:
            process.send_signal(how)
            process.wait(timeout=30)

    def start_scaler(self):
        config = os.path.join(self.dir, "config.yaml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"prometheus: [{{name: main, url: 'http://{PROM}'}}]\n")
        self.spawn("ghostscaler", self.args.ghostscaler, "serve", "--kubeconfig", self.args.kubeconfig,
                   "--config", config, "--grpc-address", GRPC, "--http-address", HTTP,
                   "--state-dir", os.path.join(self.dir, "state"),
                   "--decision-log", os.path.join(self.dir, "decisions.jsonl"))

    def start_prometheus(self):
        config = os.path.join(self.dir, "prometheus.yml")
        self.write_targets()
        with open(config, "w", encoding="utf-8") as file:
            file.write("global: {scrape_interval: 5s}\nscrape_configs:\n- job_name: vllm\n"
                       f"  file_sd_configs: [{{files: ['{self.dir}/targets.json'], refresh_interval: 2s}}]\n")
        self.spawn("prometheus", "prometheus", f"--config.file={config}", f"--web.listen-address={PROM}",
                   f"--storage.tsdb.path={self.dir}/tsdb", "--log.level=warn")

    def write_targets(self):
        targets = [{"targets": [f"{ip}:{PORT}"], "labels": {"namespace": NAMESPACE, "pod": pod}}
                   for pod, ip in self.kubelet.ready().items()]
        path = os.path.join(self.dir, "targets.json")
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(targets, file)
        os.replace(path + ".new", path)

    # what there is to see

    def state(self):
        deployment = json.loads(self.kubectl("get", "deployment", NAME, "-o", "json"))
        seen = {"spec": deployment["spec"]["replicas"], "ready": len(self.kubelet.ready())}
        try:
            with urllib.request.urlopen(f"http://{HTTP}/api/v1/workloads/{NAMESPACE}/{NAME}", timeout=2) as answer:
                snapshot = json.load(answer)
            decision = snapshot.get("decision") or {}
            inputs = decision.get("inputs", {})
            seen.update(want=decision.get("want"), rule=decision.get("binding"),
                        waiting=inputs.get("waiting"), running=inputs.get("running"),
                        health=(decision.get("health") or {}).get("state"), level=inputs.get("level_source"))
        except OSError:
            seen["want"] = "-"
        return seen

    def watch(self, until, timeout_s, never=None):
        """Polls each second; True when `until(state)`, False at the time-out or when `never(state)`."""
        deadline = time.time() + timeout_s
        while time.time() < deadline:
            self.write_targets()
            seen = self.state()
            line = " ".join(f"{key}={value}" for key, value in seen.items() if value is not None)
            if line != self.last_line:
                self.say(line)
                self.last_line = line
            if never and never(seen):
                return False
            if until(seen):
                return True
            time.sleep(1)
        return until is NEVER

    def close(self):
        self.load.stop()
        for name in list(self.processes):
            self.end(name, signal.SIGKILL)
        self.kubelet.close()


def NEVER(_seen):
    return False


def up_and_down(lab):
    lab.load.start(24, 200)
    ok = lab.watch(lambda s: s["spec"] == 2, 60)
    lab.say("ordered a second replica" if ok else "no second replica was ordered")
    ok = ok and lab.watch(lambda s: s["ready"] == 2, 900, never=lambda s: s["spec"] < 2)
    lab.say("the second engine serves" if ok else "the second engine does not serve")
    ok = ok and lab.watch(NEVER, 30, never=lambda s: s["spec"] != 2)
    lab.load.stop()
    lab.say(f"load stopped; {lab.load.done} done, {lab.load.failed} failed")
    return ok and lab.watch(lambda s: s["spec"] == 1, HOLD_S * 3 + 60)


def scaler_restart(lab):
    lab.load.start(24, 200)
    if not lab.watch(lambda s: s["spec"] == 2 and s["ready"] == 2, 900):
        return False
    lab.end("ghostscaler", signal.SIGKILL)
    lab.say("scaler killed")
    ok = lab.watch(NEVER, 20, never=lambda s: s["spec"] != 2)
    lab.start_scaler()
    lab.say("scaler started")
    return ok and lab.watch(NEVER, 60, never=lambda s: s["spec"] != 2)


def keda_restart(lab):
    if not lab.args.cluster:
        lab.say("skipped: no --cluster command")
        return True
    subprocess.run([lab.args.cluster, "kill", "keda"], check=True)
    lab.say("KEDA killed")
    ok = lab.watch(NEVER, 15, never=lambda s: s["spec"] != 2)
    subprocess.run([lab.args.cluster, "start", "keda"], check=True)
    lab.say("KEDA started")
    return ok and lab.watch(NEVER, 60, never=lambda s: s["spec"] != 2)


def engine_faults(lab):
    pod = sorted(lab.kubelet.ready())[0]
    lab.kubelet.signal_engine(pod, signal.SIGSTOP)
    lab.say(f"engine of {pod} hung")
    ok = lab.watch(NEVER, 60, never=lambda s: s["spec"] != 2)
    lab.kubelet.signal_engine(pod, signal.SIGCONT)
    lab.say("it goes on")
    ok = ok and lab.watch(NEVER, 15, never=lambda s: s["spec"] != 2)
    lab.kubelet.signal_engine(pod, signal.SIGKILL)
    lab.say(f"engine of {pod} killed; it starts again")
    ok = ok and lab.watch(lambda s: s["ready"] == 2, 900, never=lambda s: s["spec"] != 2)
    lab.load.stop()
    return lab.watch(lambda s: s["spec"] == 1, HOLD_S * 3 + 60) and ok


def through_prometheus(lab):
    if not shutil.which("prometheus"):
        lab.say("skipped: no prometheus on the PATH")
        return True
    lab.start_prometheus()
    lab.apply(json.dumps(scaled_object("prometheus")))
    lab.watch(NEVER, 45)
    lab.load.start(24, 200)
    ok = lab.watch(lambda s: s["spec"] == 2 and s["ready"] == 2, 900)
    lab.say("up through Prometheus" if ok else "not up through Prometheus")
    if ok:
        lab.end("prometheus", signal.SIGKILL)
        lab.say("Prometheus killed")
        ok = lab.watch(lambda s: s["health"] == "degraded", 180, never=lambda s: s["spec"] != 2)
        ok = ok and lab.watch(NEVER, 30, never=lambda s: s["spec"] != 2)
        lab.start_prometheus()
        lab.say("Prometheus started")
        ok = ok and lab.watch(lambda s: s["health"] == "ok", 120, never=lambda s: s["spec"] != 2)
    lab.load.stop()
    return lab.watch(lambda s: s["spec"] == 1, HOLD_S * 3 + 120) and ok


SCENARIOS = [up_and_down, scaler_restart, keda_restart, engine_faults, through_prometheus]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--kubectl", default="kubectl")
    parser.add_argument("--vllm", required=True, metavar="COMMAND")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--cluster", metavar="COMMAND")
    parser.add_argument("--ghostscaler", default="target/release/ghostscaler")
    parser.add_argument("--only", help="names of scenarios, in order: " + ",".join(s.__name__ for s in SCENARIOS))
    args = parser.parse_args()
    chosen = [s for s in SCENARIOS if not args.only or s.__name__ in args.only.split(",")]

    lab = Lab(args)
    print(f"logs: {lab.dir}", flush=True)
    results = {}
    try:
        try:
            lab.kubectl("create", "namespace", NAMESPACE)
        except subprocess.CalledProcessError:
            pass  # from an earlier run
        lab.start_scaler()
        lab.apply(manifest("pods"))
        lab.kubelet.start()
        if not lab.watch(lambda s: s["ready"] == 1 and s["want"] == 1, 900):
            lab.say("the first engine did not get ready")
            return 1
        for scenario in chosen:
            lab.say(f"== {scenario.__name__}")
            results[scenario.__name__] = scenario(lab)
            lab.say(f"== {scenario.__name__}: {'holds' if results[scenario.__name__] else 'DOES NOT HOLD'}")
        print(lab.kubectl("get", "events", "--sort-by=.lastTimestamp"), flush=True)
        print(lab.kubectl("describe", "scaledobject", NAME), flush=True)
    finally:
        lab.close()
        try:
            lab.kubectl("delete", "scaledobject,deployment", NAME, "--wait=false")
        except (subprocess.SubprocessError, OSError):
            pass
    print(json.dumps(results))
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
