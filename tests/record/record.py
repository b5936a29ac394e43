#!/usr/bin/env python3
"""Records what a real KEDA and HPA make of a sequence of values: the files of tests/hpa.

Plays an external scaler that answers each ScaledObject of `cases.yaml` by its script, and watches
the replica counts of their Deployments. All cases run at the same time, eight minutes in all. Needs
a cluster whose KEDA operator reaches this host (pods may be stand-ins), and the packages grpcio,
grpcio-tools and PyYAML. Overwrites the recordings of the cases it runs:

    tests/record/record.py --kubeconfig FILE --kubectl FILE [--address HOST] [--only NAME,...]
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import threading
import time

import grpc
import yaml

HERE = pathlib.Path(__file__).resolve().parent
NAMESPACE = "hpa-recording"
sys.path.insert(0, str(HERE.parent.parent / "proto"))
MESSAGES, _ = grpc.protos_and_services("externalscaler.proto")
SERVICE = "externalscaler.ExternalScaler"


class Scaler:
    """Answers by the scripts, each counted from the creation of its ScaledObject."""

    def __init__(self, cases):
        self.cases = cases
        self.started = {}
        self.syncs = {name: [] for name in cases}
        self.ended = threading.Event()

    def step(self, name):
        seconds = time.time() - self.started[name]
        return [step for step in self.cases[name]["values"] if step["at"] <= seconds][-1]

    def get_metric_spec(self, request, context):
        spec = MESSAGES.MetricSpec(metricName="wanted-replicas", targetSize=1, targetSizeFloat=1.0)
        return MESSAGES.GetMetricSpecResponse(metricSpecs=[spec])

    def get_metrics(self, request, context):
        name = request.scaledObjectRef.name
        # The HPA's query carries a deadline, a poll of KEDA's does not.
        if context.time_remaining() is not None and context.time_remaining() < 1e6:
            self.syncs[name].append(round(time.time() - self.started[name], 1))
        want = self.step(name)["want"]
        value = MESSAGES.MetricValue(metricName=request.metricName, metricValue=want,
                                     metricValueFloat=float(want))
        return MESSAGES.GetMetricsResponse(metricValues=[value])

    def is_active(self, request, context):
        return MESSAGES.IsActiveResponse(result=self.step(request.name)["active"])

    def stream_is_active(self, request, context):
        was = False
        while context.is_active() and not self.ended.is_set():
            now = self.step(request.name)["active"]
            if now and not was:
                yield MESSAGES.IsActiveResponse(result=True)
            was = now
            time.sleep(0.05)

    def serve(self, address):
        def unary(call, request):
            return grpc.unary_unary_rpc_method_handler(
                call, request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString())
        reference = MESSAGES.ScaledObjectRef
        handlers = {
            "GetMetricSpec": unary(self.get_metric_spec, reference),
            "GetMetrics": unary(self.get_metrics, MESSAGES.GetMetricsRequest),
            "IsActive": unary(self.is_active, reference),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(
                self.stream_is_active, request_deserializer=reference.FromString,
                response_serializer=lambda message: message.SerializeToString()),
        }
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=64))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = server.add_insecure_port(f"{address}:0")
        server.start()
        return server, port


def deployment(name, case):
    labels = {"app": name}
    return {"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"replicas": case["start"], "selector": {"matchLabels": labels},
                     "template": {"metadata": {"labels": labels},
                                  "spec": {"containers": [{"name": "main", "image": "none"}]}}}}


def scaled_object(name, case, address):
    trigger = {"type": "external-push", "metricType": "AverageValue",
               "metadata": {"scalerAddress": address}}
    spec = {"scaleTargetRef": {"name": name}, "triggers": [trigger], **case["object"]}
    if "behavior" in spec:
        behavior = spec.pop("behavior")
        spec["advanced"] = {"horizontalPodAutoscalerConfig": {"behavior": behavior}}
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


class Recorder:
    def __init__(self, args, cases):
        self.kubectl = [args.kubectl, "--kubeconfig", args.kubeconfig, "-n", NAMESPACE]
        self.cases = cases
        self.scaler = Scaler(cases)
        self.counts = {name: [] for name in cases}

    def apply(self, *objects):
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        subprocess.run([*self.kubectl, "apply", "-f", "-"], input=text, text=True, check=True,
                       stdout=subprocess.DEVNULL)

    def watch(self):
        form = 'jsonpath={.metadata.name} {.spec.replicas}{"\\n"}'
        watching = subprocess.Popen([*self.kubectl, "get", "deployments", "-w", "-o", form],
                                    stdout=subprocess.PIPE, text=True)

        def follow():
            for line in watching.stdout:
                name, count = line.split()
                seen = self.counts.get(name)
                if seen is None or name not in self.scaler.started:
                    continue
                at = round(time.time() - self.scaler.started[name], 1)
                if (seen[-1][1] if seen else self.cases[name]["start"]) != int(count):
                    seen.append((at, int(count)))
        threading.Thread(target=follow, daemon=True).start()
        return watching

    def run(self, address):
        server, port = self.scaler.serve(address)
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        self.apply(*(deployment(name, case) for name, case in self.cases.items()))
        watching = self.watch()
        try:
            for name, case in self.cases.items():
                self.scaler.started[name] = time.time()
                self.apply(scaled_object(name, case, f"{address}:{port}"))
            longest = max(case["seconds"] for case in self.cases.values())
            for second in range(longest):
                time.sleep(1)
                if second % 30 == 0:
                    print(f"{second:4d} of {longest} s", {n: c[-1:] for n, c in self.counts.items()},
                          file=sys.stderr, flush=True)
        finally:
            watching.terminate()
            self.scaler.ended.set()
            subprocess.run([*self.kubectl, "delete", "namespace", NAMESPACE, "--wait=false"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            server.stop(2)

    def write(self, versions):
        for name, case in self.cases.items():
            lines = [f"# {case['about']}", f"# Recorded by tests/record/record.py on {versions}."]
            lines += [f"object: {json.dumps(case['object'])}", f"start: {case['start']}",
                      f"seconds: {case['seconds']}",
                      "# When the HPA asked for the value.",
                      f"syncs: {[at for at in self.scaler.syncs[name] if at <= case['seconds']]}",
                      "values:"]
            lines += [f"- {json.dumps(step)}" for step in case["values"]]
            lines += ["# Seconds since the ScaledObject's creation, and the count from then on.",
                      "replicas:"]
            lines += [f"- [{at}, {count}]" for at, count in self.counts[name] if at <= case["seconds"]]
            target = HERE.parent / "hpa" / f"{name}.yaml"
            target.parent.mkdir(exist_ok=True)
            target.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--kubectl", default="kubectl")
    parser.add_argument("--address", default="127.0.0.1", help="this host, as KEDA reaches it")
    parser.add_argument("--versions", default="Kubernetes 1.36.3 and KEDA 2.21.0")
    parser.add_argument("--only", help="cases, comma-separated")
    args = parser.parse_args()
    cases = yaml.safe_load((HERE / "cases.yaml").read_text())
    if args.only:
        cases = {name: cases[name] for name in args.only.split(",")}
    recorder = Recorder(args, cases)
    recorder.run(args.address)
    recorder.write(args.versions)


if __name__ == "__main__":
    main()
