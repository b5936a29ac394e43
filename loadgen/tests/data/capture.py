"""Puts loads on a real vLLM and writes what was seen: vllm-cpu-requests.csv and vllm-cpu-seconds.csv.

usage: capture.py PORT OUTDIR PID     (PID: the server; standard library only; its model is named tiny-llama)

A phase in which other processes took more than a tenth of a core is thrown away and repeated. Prompts are random token ids, so their lengths are exact and nothing hits the prefix cache. Each
phase starts on an idle server. `fit` phases are what a profile is fitted to, `judge` phases what
it is judged on: closed loops of other shapes, Poisson arrivals, an overload and bursts.
"""
import asyncio, glob, json, os, random, re, sys, time, urllib.request

PORT, OUT, PID = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
OTHERS = 0.1
VOCABULARY = 1000
# kind, name, clients (closed loop) or arrivals a second (poisson) or burst size, prompt, output, seconds
PHASES = [
    ("fit", "closed", 1, 60, 100, 15), ("fit", "closed", 4, 60, 100, 15), ("fit", "closed", 16, 60, 100, 15),
    ("fit", "closed", 8, 600, 20, 15), ("fit", "closed", 16, 300, 40, 15), ("fit", "closed", 16, 20, 200, 20),
    ("judge", "closed", 8, 200, 80, 20), ("judge", "closed", 32, 100, 60, 20), ("judge", "closed", 24, 400, 30, 20),
    ("judge", "poisson", 5, 100, 80, 30), ("judge", "poisson", 25, 150, 60, 20), ("judge", "burst", 40, 150, 50, 24),
]


async def one(phase, t0, prompt, output, rows):
    ids = [random.randrange(3, VOCABULARY) for _ in range(prompt)]
    body = json.dumps({"model": "tiny-llama", "prompt": ids, "max_tokens": output, "ignore_eos": True, "stream": True})
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT, limit=1 << 22)
    writer.write((f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
    first = None
    while line := await reader.readline():
        if first is None and line.startswith(b"data: {"):
            first = time.perf_counter()
    end = time.perf_counter()
    writer.close()
    rows.append((phase, start - t0, prompt, output, first - start, end - start))


def scrape():
    page = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10).read().decode()
    sums = {}
    for name, value in re.findall(r"^vllm:([a-z_]+)\{(?![^}]*le=)[^}]*\} (\S+)", page, re.M):
        sums[name] = sums.get(name, 0.0) + float(value)
    return time.perf_counter(), sums


async def watch(phase, t0, seconds, stop):
    loop = asyncio.get_running_loop()
    before, old = await loop.run_in_executor(None, scrape)
    while not stop.is_set():
        await asyncio.sleep(0.5)
        now, new = await loop.run_in_executor(None, scrape)
        delta = [new[k] - old[k] for k in ("iteration_tokens_total_count", "prompt_tokens_total", "generation_tokens_total")]
        seconds.append((phase, now - t0, now - before, *delta, new["num_requests_running"], new["num_requests_waiting"],
                        new["kv_cache_usage_perc"]))
        before, old = now, new


async def run(phase, kind, rate, prompt, output, length, rows, seconds):
    t0, stop, tasks = time.perf_counter(), asyncio.Event(), []
    watcher = asyncio.create_task(watch(phase, t0, seconds, stop))
    spread = lambda mean: random.randint(mean // 2, mean * 3 // 2)
    start = lambda: tasks.append(asyncio.create_task(one(phase, t0, spread(prompt), spread(output), rows)))

    async def client():
        while time.perf_counter() - t0 < length:
            await one(phase, t0, spread(prompt), spread(output), rows)

    if kind == "closed":
        tasks += [asyncio.create_task(client()) for _ in range(rate)]
    elif kind == "burst":
        for at in range(0, length, 8):
            await asyncio.sleep(max(0, t0 + at - time.perf_counter()))
            for _ in range(rate):
                start()
    else:
        at = 0.0
        while (at := at + random.expovariate(rate)) < length:
            await asyncio.sleep(max(0, t0 + at - time.perf_counter()))
            start()
    await asyncio.gather(*tasks)
    stop.set()
    await watcher


def cpu():
    """Seconds of CPU that the machine has spent, and those of the server and of this client."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    stats = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            text = open(path).read()
        except OSError:
            continue
        after = text.rpartition(")")[2].split()
        stats[int(text.split()[0])] = (int(after[1]), int(after[11]) + int(after[12]))
    ours, found = {PID, os.getpid()}, True
    while found:
        found = {pid for pid, (parent, _) in stats.items() if parent in ours} - ours
        ours |= found
    return (sum(fields) - fields[3] - fields[4]) / ticks, sum(stats[pid][1] for pid in ours if pid in stats) / ticks


async def calm(action):
    """Does it again until the rest of the machine was quiet; returns how loud it was."""
    while True:
        start, (all_before, ours_before) = time.perf_counter(), cpu()
        result = await action()
        all_after, ours_after = cpu()
        others = (all_after - all_before - ours_after + ours_before) / (time.perf_counter() - start)
        if others < OTHERS:
            return result, others


async def main():
    rows, seconds = [], []
    random.seed(7)
    await run("warm-up", "closed", 4, 60, 30, 5, [], [])
    for use, kind, rate, prompt, output, length in PHASES:
        phase = f"{use}/{kind}/{rate}/{prompt}/{output}"

        async def once():
            await calm(lambda: asyncio.sleep(2))
            seen = [], []
            await run(phase, kind, rate, prompt, output, length, *seen)
            return seen

        (new_rows, new_seconds), others = await calm(once)
        rows += new_rows
        seconds += new_seconds
        print(phase, len(new_rows), f"others took {others:.3f} cores", flush=True)
    with open(f"{OUT}/vllm-cpu-requests.csv", "w") as f:
        f.write("phase,arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n")
        for phase, at, prompt, output, ttft, e2e in sorted(rows, key=lambda r: (r[0], r[1])):
            f.write(f"{phase},{at:.3f},{prompt},{output},{ttft:.4f},{e2e:.4f}\n")
    with open(f"{OUT}/vllm-cpu-seconds.csv", "w") as f:
        f.write("phase,at_s,span_s,steps,prompt_tokens,generated_tokens,running,waiting,kv_usage\n")
        for phase, at, span, *rest in seconds:
            f.write(f"{phase},{at:.3f},{span:.3f}," + ",".join(f"{x:.6g}" for x in rest) + "\n")


asyncio.run(main())
