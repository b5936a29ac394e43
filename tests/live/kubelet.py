"""Plays the kubelet for pods of one Deployment: a real vLLM on each pod's own loopback address.

The cluster's stand-in kubelet must leave these pods alone (annotation `cold-start: 24h`). Here a
scheduled pod gets an address, its engine is started on it, the pod turns Ready when the engine's
/health answers, and a deleted pod's engine gets SIGTERM.
"""

import http.client
import itertools
import json
import os
import signal
import subprocess
import threading
import time

PORT = 8000


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Kubelet(threading.Thread):
    def __init__(self, kubectl, namespace, selector, serve, log_dir):
        super().__init__(daemon=True)
        self.kubectl, self.namespace, self.selector = kubectl, namespace, selector
        self.serve, self.log_dir = serve, log_dir
        self.engines = {}  # pod name -> {"ip", "process", "started", "ready"}
        self.turns = itertools.cycle(sorted(os.sched_getaffinity(0)))
        self.stopping = False
        self.lock = threading.Lock()

    def run(self):
        while not self.stopping:
            try:
                self.reconcile()
            except (subprocess.SubprocessError, ValueError, OSError) as fault:
                print(f"kubelet: {fault!r}", flush=True)
            time.sleep(0.5)

    def reconcile(self):
        listed = json.loads(self.kubectl("get", "pods", "-l", self.selector, "-o", "json"))
        pods = {pod["metadata"]["name"]: pod for pod in listed["items"]}
        for name, pod in pods.items():
            leaving = "deletionTimestamp" in pod["metadata"]
            if leaving:
                self.stop(name)
            elif pod["spec"].get("nodeName") and name not in self.engines:
                self.start_engine(name, pod)
            elif name in self.engines:
                self.mark_ready(name, pod)
        for name in set(self.engines) - set(pods):
            self.stop(name)

    def start_engine(self, name, pod):
        used = {engine["ip"] for engine in self.engines.values()}
        ip = next(f"127.20.0.{n}" for n in range(10, 250) if f"127.20.0.{n}" not in used)
        log = open(os.path.join(self.log_dir, f"{name}.log"), "w", encoding="utf-8")
        process = subprocess.Popen([self.serve, str(PORT), "--host", ip], stdout=log, stderr=log,
                                   start_new_session=True)
        keep_to_one_core(process.pid, next(self.turns))
        with self.lock:
            self.engines[name] = {"ip": ip, "process": process, "started": time.time(), "ready": None}
        self.patch(name, pod, ip, ready=False)

    def mark_ready(self, name, pod):
        engine = self.engines[name]
        if engine["process"].poll() is not None:
            # As the kubelet would: the container is restarted on the same address.
            if engine["ready"]:
                self.patch(name, pod, engine["ip"], ready=False)
            with self.lock:
                del self.engines[name]
            return
        if engine["ready"]:
            return
        if healthy(engine["ip"]):
            engine["ready"] = time.time()
            self.patch(name, pod, engine["ip"], ready=True)
            print(f"kubelet: {name} ready after {engine['ready'] - engine['started']:.0f} s", flush=True)

    def patch(self, name, pod, ip, ready):
        state = "True" if ready else "False"
        conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}]
        conditions += [{"type": kind, "status": state, "lastTransitionTime": now()}
                       for kind in ("Initialized", "Ready", "ContainersReady")]
        containers = [{"name": c["name"], "image": c["image"], "imageID": "live", "ready": ready,
                       "started": ready, "restartCount": 0, "state": {"running": {"startedAt": now()}}}
                      for c in pod["spec"]["containers"]]
        status = {"status": {"phase": "Running", "startTime": now(), "hostIP": "127.0.0.1", "podIP": ip,
                             "podIPs": [{"ip": ip}], "conditions": conditions,
                             "containerStatuses": containers}}
        self.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))

    def stop(self, name, how=signal.SIGTERM):
        with self.lock:
            engine = self.engines.pop(name, None)
        if engine and engine["process"].poll() is None:
            os.killpg(engine["process"].pid, how)

    def signal_engine(self, name, how):
        os.killpg(self.engines[name]["process"].pid, how)

    def ready(self):
        with self.lock:
            return {name: e["ip"] for name, e in self.engines.items() if e["ready"]}

    def close(self):
        self.stopping = True
        for name in list(self.engines):
            self.stop(name, signal.SIGKILL)


def keep_to_one_core(pid, core):
    """Engines that share their cores with each other and the load start in minutes, not in one."""
    os.sched_setaffinity(pid, {core})
    try:
        os.setpriority(os.PRIO_PROCESS, pid, -18)
    except PermissionError:
        pass  # only root may


def healthy(ip):
    connection = http.client.HTTPConnection(ip, PORT, timeout=1)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
