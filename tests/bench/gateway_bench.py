#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the gateway adds to the bare runtime, and many streams at once, on the demo model over loopback. Prints JSON.

gateway_bench.py <dilaunch> <http_load> <source folder> [--requests 300] [--streams 2000]

Added latency of a request = its time at the client minus the time that its rank says it took (queue, prefill, decode): HTTP, JSON,
rendering, tokenizer, desk, journal, parser and the way back. Both ends are clocks of one host.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("dilaunch")
arguments.add_argument("http_load")
arguments.add_argument("source")
arguments.add_argument("--requests", type=int, default=300)
arguments.add_argument("--streams", type=int, default=2000)
arguments.add_argument("--tokens", type=int, default=16)
options = arguments.parse_args()
sys.path.insert(0, options.source + "/tests/e2e")
from served import Served, expect  # noqa: E402

topology = options.source + "/launch/topologies/local1.yaml"
chat = "/v1/chat/completions"


def body(tokens, stream=False):
    return json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Tell a story."}], "thinking": {"type": "disabled"},
                       "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "seed": 7, "stream": stream})


def percentiles(values):
    values = sorted(values)
    at = lambda p: round(values[int(p * (len(values) - 1))], 1)  # noqa: E731
    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1), "count": len(values)}


def cpu_us(pid):
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as f:
            total += int(f.read().split()[0])
    return total / 1000


def resident(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


def logged(s):
    """{request id: {queue_us, prefill_us, decode_us, first_token_us, total_us}} of the gateway's log."""
    found = {}
    for line in s.log().splitlines():
        if " http_request " in line:
            found[re.search(r" id=(\S+)", line)[1]] = {k: int(v) for k, v in re.findall(r" (\w+_us)=(\d+)", line)}
    return found


def added_latency(s):
    c = s.connect()
    sent = []
    for i in range(options.requests + 20):
        start = time.perf_counter()
        c.request("POST", chat, body(options.tokens), {"Content-Type": "application/json"})
        r = c.getresponse()
        r.read()
        took = (time.perf_counter() - start) * 1e6
        expect(r.status == 200, r.status)
        if i >= 20:
            sent.append((r.headers["x-request-id"], took))
    log = logged(s)
    at_rank = [sum(log[i][k] for k in ("queue_us", "prefill_us", "decode_us")) for i, _ in sent]
    return {"requests": len(sent), "output_tokens": options.tokens, "client_us": percentiles([t for _, t in sent]), "rank_us": percentiles(at_rank),
            "added_us": percentiles([t - r for (_, t), r in zip(sent, at_rank)]),
            "added_inside_gateway_us": percentiles([log[i]["total_us"] - r for (i, _), r in zip(sent, at_rank)]),
            "added_to_first_token_us": percentiles([log[i]["first_token_us"] - log[i]["queue_us"] - log[i]["prefill_us"] for i, _ in sent])}


def load(s, path, text, *args):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        f.write(text)
        f.flush()
        done = subprocess.run([options.http_load, "--port", str(s.ports[0]), "--path", path, "--body", f.name, *args],
                              stdout=subprocess.PIPE, timeout=300, check=True)
    return json.loads(done.stdout)


def per_core(s, path, text):
    """Requests that one core of the gateway serves in a second, of those the rest of the machine let through."""
    pid = s.processes()["gateway 0"]
    before = cpu_us(pid)
    f = load(s, path, text, "--connections", "16", "--seconds", "5")
    cost = (cpu_us(pid) - before) / f["answers"]
    return {"answers": f["answers"], "others": f["others"], "requests_per_s": round(f["answers"] / f["seconds"]),
            "gateway_cpu_us_per_request": round(cost, 1), "requests_per_core_s": round(1e6 / cost), "answer_us": f["answer_us"]}


def many_streams(s):
    pid = s.processes()["gateway 0"]
    before, cpu_before, most, over = resident(pid), cpu_us(pid), [0], threading.Event()

    def look():
        while not over.wait(0.1):
            most[0] = max(most[0], resident(pid))

    looking = threading.Thread(target=look)
    looking.start()
    f = load(s, chat, body(options.tokens, stream=True), "--connections", str(options.streams), "--requests", str(options.streams), "--seconds", "200")
    over.set()
    looking.join()
    return {"streams": options.streams, "whole": f["answers"], "others": f["others"], "broken": f["broken"], "events": f["events"],
            "seconds": f["seconds"], "gateway_bytes_per_stream": round((most[0] - before) / options.streams),
            "gateway_cpu_us_per_event": round((cpu_us(pid) - cpu_before) / max(f["events"], 1), 1),
            "first_event_us": f["first_us"], "event_gap_us": f["event_gap_us"]}


def main():
    sets = ("gateway.model_names=[demo]", f"gateway.limits.queue={options.streams + 100}", f"gateway.limits.connections={options.streams + 200}",
            f"gateway.limits.requests_per_key={options.streams + 100}")
    out = {"processor": next((x.split(": ")[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), "unknown"),
           "cores": os.cpu_count(), "model": "launch/models/demo"}
    with Served(options.dilaunch, topology, sets) as s:
        out["added_latency"] = added_latency(s)
        out["chat_of_one_token"] = per_core(s, chat, body(1))
        out["tokenize"] = per_core(s, "/tokenize", json.dumps({"model": "demo", "prompt": "Tell a story."}))
        out["streams"] = many_streams(s)
    out["load_average"] = os.getloadavg()[0]
    print("{" + ",\n ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "}")


if __name__ == "__main__":
    main()
