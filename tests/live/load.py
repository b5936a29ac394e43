"""A closed loop of completions over the ready engines, the least loaded first."""

import http.client
import json
import threading
import time

from kubelet import PORT


class Load:
    def __init__(self, kubelet, model):
        self.kubelet, self.model = kubelet, model
        self.in_flight, self.done, self.failed = {}, 0, 0
        self.lock = threading.Lock()
        self.generation = 0
        self.on = False

    def start(self, concurrency, max_tokens):
        self.generation += 1
        self.on = True
        for _ in range(concurrency):
            threading.Thread(target=self.loop, args=(self.generation, max_tokens), daemon=True).start()

    def stop(self):
        self.generation += 1
        self.on = False

    def is_on(self):
        return self.on

    def loop(self, generation, max_tokens):
        while self.generation == generation:
            ready = self.kubelet.ready()
            if not ready:
                time.sleep(0.5)
                continue
            with self.lock:
                name = min(ready, key=lambda pod: self.in_flight.get(pod, 0))
                self.in_flight[name] = self.in_flight.get(name, 0) + 1
            ok = self.one(ready[name], max_tokens)
            with self.lock:
                self.in_flight[name] -= 1
                self.done += ok
                self.failed += not ok
            if not ok:
                time.sleep(0.5)

    def one(self, ip, max_tokens):
        connection = http.client.HTTPConnection(ip, PORT, timeout=120)
        body = {"model": self.model, "prompt": "import os " * 20, "max_tokens": max_tokens, "ignore_eos": True}
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            return response.status == 200
        except OSError:
            return False
        except http.client.HTTPException:
            return False
        finally:
            connection.close()
