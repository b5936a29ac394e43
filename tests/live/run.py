#!/usr/bin/env python3
"""The whole loop on real parts: vLLM -> scrape -> decision -> KEDA -> HPA -> replicas.

Needs a cluster with KEDA whose stand-in kubelet (KWOK) leaves pods with the annotation
`cold-start: 24h` alone and whose pods may have loopback addresses, and a command that serves a real
vLLM in the foreground: `COMMAND PORT --host IP`. Prints a timeline and a verdict per scenario: it
holds, it does not, or it was skipped. Reads what KEDA complains of, in its log and in the ScaledObject's
events; `complaints.py` says what of it is expected, and when. Exit status 0 when a scenario holds, none
fails and nothing else was complained of; the last line says how many were skipped.

    tests/live/run.py --kubeconfig FILE --kubectl FILE --vllm COMMAND --keda-log FILE \\
        [--ghostscaler target/release/ghostscaler] [--only NAME,...] [--cluster COMMAND]

COMMAND of --cluster takes `kill PART` and `start PART` (parts: keda); without it the scenarios that
stop KEDA are skipped. FILE of --keda-log is where KEDA's operator writes its log; without it that log is
not judged, which is counted as skipped. The scenarios on Prometheus need `prometheus` on the PATH. Each
scenario sets up what it starts from, so that --only may name any of them.

The parts that need no cluster: python3 -m unittest discover -s tests/live
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

import complaints
from kubelet import PORT, Kubelet
from load import Load

NAMESPACE, NAME = "live", "llm"
GRPC, HTTP, PROM = "127.0.0.1:19090", "127.0.0.1:18080", "127.0.0.1:19091"
HOLD_S = 60

# From a queue to the order: the engines are read each tick, KEDA asks each poll, the HPA each sync.
TICK_S, POLL_S, HPA_SYNC_S = 5, 5, 15
ORDER_WITHIN_S = TICK_S + POLL_S + HPA_SYNC_S
LOOK_S = 0.25  # between two looks while this is measured
LATE_S = 1.0  # what the looks themselves may take


class Skipped(Exception):
    """A scenario that cannot be played here."""


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
                     "pollingInterval": POLL_S, "cooldownPeriod": 300, "initialCooldownPeriod": 600,
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
        self.disturbances = complaints.Disturbances()  # of the scaler or KEDA
        self.faults = complaints.Disturbances()  # of engines or Prometheus
        self.keda_log = complaints.Tail(args.keda_log) if args.keda_log else None
        self.judged_events = set()
        self.unexpected = []
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

    def kill_scaler(self):
        self.disturbances.begin(time.time())
        self.end("ghostscaler", signal.SIGKILL)
        self.say("scaler killed")

    def restart_scaler(self):
        self.start_scaler()
        self.disturbances.end(time.time())
        self.say("scaler started")

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
            self.look_for_complaints()
            if never and never(seen):
                return False
            if until(seen):
                return True
            time.sleep(1)
        return until is at_the_end

    def look_for_complaints(self):
        """Judges what KEDA has said since the last look."""
        for line in self.keda_log.lines() if self.keda_log else ():
            text = complaints.complaint(line)
            if text:
                self.judge("KEDA's log", text, time.time())
        listed = json.loads(self.kubectl("get", "events", "-o", "json"))["items"]
        for event in listed:
            told = complaints.of_event(event)
            if event["involvedObject"]["kind"] != "ScaledObject" or not told:
                continue
            said = (event["metadata"]["uid"], event.get("count"))
            if said not in self.judged_events and told[1] >= self.started - 1:
                self.judged_events.add(said)
                self.judge("event of the ScaledObject", *told)

    def judge(self, where, text, moment):
        spans = {"disturbed": self.disturbances, "faulted": self.faults}
        why = complaints.reason(text, {name for name, it in spans.items() if it.cover(moment)})
        self.say(f"{where}: {text}\n           {'expected: ' + why if why else 'NOT EXPECTED'}")
        if not why:
            self.unexpected.append(f"{where}: {text}")

    def waiting(self):
        """Requests that wait, by the engines' own pages."""
        total = 0.0
        for ip in self.kubelet.ready().values():
            try:
                with urllib.request.urlopen(f"http://{ip}:{PORT}/metrics", timeout=2) as answer:
                    total += waiting_on(answer.read().decode())
            except OSError:
                pass
        return total

    # where a scenario starts from

    def one_idle(self):
        self.load.stop()
        self.prepare("one idle replica", lambda s: s["spec"] == 1 and s["ready"] == 1)

    def two_loaded(self):
        if not self.load.is_on():
            self.load.start(24, 200)
        self.prepare("two loaded replicas", lambda s: s["spec"] == 2 and s["ready"] == 2)

    def prepare(self, what, until):
        self.say(f"preparing {what}")
        if not self.watch(until, 900):
            raise Unprepared(what)

    def close(self):
        self.load.stop()
        for name in list(self.processes):
            self.end(name, signal.SIGKILL)
        self.kubelet.close()


class Unprepared(Exception):
    """What a scenario starts from did not come about."""


def at_the_end(_seen):
    """What `watch` waits for where something must stay as it is for the whole time."""
    return False


def waiting_on(page):
    """Requests that wait, by a vLLM's page."""
    rows = (line.split() for line in page.splitlines() if line.startswith("vllm:num_requests_waiting{"))
    return sum(float(row[-1]) for row in rows)


def dated(look, clock, pause):
    """When a queue, the wish and the order were first seen; `look` gives the queue and the state."""
    seen = {}
    while "ordered" not in seen:
        now = clock()
        waiting, state = look()
        if waiting > 0:
            seen.setdefault("queued", now)
        if state["want"] == 2:
            seen.setdefault("wanted", now)
        if state["spec"] == 2:
            seen.setdefault("ordered", now)
        if now - seen.get("queued", now) > 4 * ORDER_WITHIN_S:
            break
        pause()
    return seen


def rises_in_time(lab):
    """Loads one replica until a queue stands; whether the order comes within a tick, a poll and a sync."""
    lab.load.start(24, 200)
    started = time.time()

    def clock():
        if time.time() - started > 300:
            raise Unprepared("a queue")
        return time.time()

    seen = dated(lambda: (lab.waiting(), lab.state()), clock, lambda: time.sleep(LOOK_S))
    if "queued" not in seen:
        lab.say("no queue was seen before the order: nothing is measured")
        return "ordered" in seen
    wished, ordered = (seen.get(key, float("inf")) - seen["queued"] for key in ("wanted", "ordered"))
    lab.say(f"from the queue to the wish {wished:.1f} s (at most {TICK_S} and {LATE_S:.0f} to look), "
            f"to the order {ordered:.1f} s (at most {ORDER_WITHIN_S} and {LATE_S:.0f})")
    return wished <= TICK_S + LATE_S and ordered <= ORDER_WITHIN_S + LATE_S


def up_and_down(lab):
    lab.one_idle()
    ok = rises_in_time(lab)
    lab.say("ordered a second replica in time" if ok else "no second replica was ordered in time")
    ok = lab.watch(lambda s: s["ready"] == 2, 900, never=lambda s: s["spec"] < 2) and ok
    lab.say("the second engine serves" if ok else "the second engine does not serve")
    ok = ok and lab.watch(at_the_end, 30, never=lambda s: s["spec"] != 2)
    lab.load.stop()
    lab.say(f"load stopped; {lab.load.done} done, {lab.load.failed} failed")
    return ok and lab.watch(lambda s: s["spec"] == 1, HOLD_S * 3 + 60)


def scaler_restart(lab):
    lab.two_loaded()
    lab.kill_scaler()
    ok = lab.watch(at_the_end, 20, never=lambda s: s["spec"] != 2)
    lab.restart_scaler()
    return ok and lab.watch(at_the_end, 60, never=lambda s: s["spec"] != 2)


def keda_restart(lab):
    if not lab.args.cluster:
        raise Skipped("no --cluster command")
    lab.two_loaded()
    lab.disturbances.begin(time.time())
    subprocess.run([lab.args.cluster, "kill", "keda"], check=True)
    lab.say("KEDA killed")
    ok = lab.watch(at_the_end, 15, never=lambda s: s["spec"] != 2)
    subprocess.run([lab.args.cluster, "start", "keda"], check=True)
    lab.disturbances.end(time.time())
    lab.say("KEDA started")
    return ok and lab.watch(at_the_end, 60, never=lambda s: s["spec"] != 2)


def engine_faults(lab):
    lab.two_loaded()
    pod = sorted(lab.kubelet.ready())[0]
    lab.faults.begin(time.time())
    lab.kubelet.signal_engine(pod, signal.SIGSTOP)
    lab.say(f"engine of {pod} hung")
    ok = lab.watch(at_the_end, 60, never=lambda s: s["spec"] != 2)
    lab.kubelet.signal_engine(pod, signal.SIGCONT)
    lab.say("it goes on")
    ok = ok and lab.watch(at_the_end, 15, never=lambda s: s["spec"] != 2)
    lab.kubelet.signal_engine(pod, signal.SIGKILL)
    lab.say(f"engine of {pod} killed; it starts again")
    ok = ok and lab.watch(lambda s: s["ready"] == 2, 900, never=lambda s: s["spec"] != 2)
    lab.faults.end(time.time())
    lab.load.stop()
    return lab.watch(lambda s: s["spec"] == 1, HOLD_S * 3 + 60) and ok


def through_prometheus(lab):
    if not shutil.which("prometheus"):
        raise Skipped("no prometheus on the PATH")
    lab.one_idle()
    lab.start_prometheus()
    # A source that has not been read yet is degraded.
    lab.faults.begin(time.time())
    lab.apply(json.dumps(scaled_object("prometheus")))
    lab.watch(at_the_end, 45)
    lab.faults.end(time.time())
    lab.load.start(24, 200)
    ok = lab.watch(lambda s: s["spec"] == 2 and s["ready"] == 2, 900)
    lab.say("up through Prometheus" if ok else "not up through Prometheus")
    if ok:
        lab.faults.begin(time.time())
        lab.end("prometheus", signal.SIGKILL)
        lab.say("Prometheus killed")
        ok = lab.watch(lambda s: s["health"] == "degraded", 180, never=lambda s: s["spec"] != 2)
        ok = ok and lab.watch(at_the_end, 30, never=lambda s: s["spec"] != 2)
        lab.start_prometheus()
        lab.faults.end(time.time())
        lab.say("Prometheus started")
        ok = ok and lab.watch(lambda s: s["health"] == "ok", 120, never=lambda s: s["spec"] != 2)
    lab.load.stop()
    return lab.watch(lambda s: s["spec"] == 1, HOLD_S * 3 + 120) and ok


def play(lab, scenarios):
    """The verdict of each: True, False, or why it was skipped."""
    results = {}
    for scenario in scenarios:
        name = scenario.__name__
        lab.say(f"== {name}")
        try:
            results[name] = bool(scenario(lab))
            verdict = "holds" if results[name] else "DOES NOT HOLD"
        except Skipped as why:
            results[name] = verdict = f"skipped: {why}"
        except Unprepared as what:
            results[name] = False
            verdict = f"DOES NOT HOLD: {what} did not come about"
        lab.say(f"== {name}: {verdict}")
    lab.look_for_complaints()
    return results


def conclude(lab, results):
    """Prints what came of it all; the exit status."""
    held = sum(result is True for result in results.values())
    failed = sum(result is False for result in results.values())
    print(json.dumps(results))
    for text in lab.unexpected:
        print(f"not expected: {text}")
    print(f"{held} held, {failed} failed, {len(results) - held - failed} skipped, "
          f"{len(lab.unexpected)} complaints that nothing explains")
    return 0 if held and not failed and not lab.unexpected else 1


SCENARIOS = [up_and_down, scaler_restart, keda_restart, engine_faults, through_prometheus]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--kubectl", default="kubectl")
    parser.add_argument("--vllm", required=True, metavar="COMMAND")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--cluster", metavar="COMMAND")
    parser.add_argument("--keda-log", metavar="FILE")
    parser.add_argument("--ghostscaler", default="target/release/ghostscaler")
    parser.add_argument("--only", help="names of scenarios: " + ",".join(s.__name__ for s in SCENARIOS))
    args = parser.parse_args()
    names = [s.__name__ for s in SCENARIOS]
    unknown = [name for name in (args.only or "").split(",") if name and name not in names]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: expected of {', '.join(names)}")
    chosen = [s for s in SCENARIOS if not args.only or s.__name__ in args.only.split(",")]

    lab = Lab(args)
    print(f"logs: {lab.dir}", flush=True)
    results = {}
    try:
        try:
            lab.kubectl("create", "namespace", NAMESPACE)
        except subprocess.CalledProcessError:
            pass  # from an earlier run
        # KEDA may ask before it listens.
        lab.disturbances.begin(time.time())
        lab.restart_scaler()
        lab.apply(manifest("pods"))
        lab.kubelet.start()
        if not lab.watch(lambda s: s["ready"] == 1 and s["want"] == 1, 900):
            lab.say("the first engine did not get ready")
            return 1
        results = play(lab, chosen)
        if not args.keda_log:
            results["keda_log"] = "skipped: no --keda-log"
        print(lab.kubectl("get", "events", "--sort-by=.lastTimestamp"), flush=True)
        print(lab.kubectl("describe", "scaledobject", NAME), flush=True)
    finally:
        lab.close()
        try:
            lab.kubectl("delete", "scaledobject,deployment", NAME, "--wait=false")
        except (subprocess.SubprocessError, OSError):
            pass
    return conclude(lab, results)


if __name__ == "__main__":
    sys.exit(main())
