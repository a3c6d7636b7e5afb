#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gateway with a stub for the cluster, on one core: requests/s, 2,000 streams, memory of each. Prints JSON.

serve_load.py <serve_stub> <http_load> <source folder>
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import threading

serve_stub, http_load, source = sys.argv[1:4]
streams, stream_tokens, answer_tokens = 2000, 50, 16


def body(tokens, stream):
    return {"model": "demo", "messages": [{"role": "user", "content": "Tell a story of a river. " * 20}], "thinking": {"type": "disabled"}, "max_tokens": tokens, "ignore_eos": True, "stream": stream}


class Stub:
    def __init__(self):
        self.p = subprocess.Popen([serve_stub, source], stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {0}))
        self.port = int(self.p.stdout.readline())

    def resident(self):
        with open(f"/proc/{self.p.pid}/statm") as f:
            return int(f.read().split()[1]) * 4096

    def cpu_us(self):
        """Of all its threads."""
        total = 0
        for path in glob.glob(f"/proc/{self.p.pid}/task/*/schedstat"):
            with open(path) as f:
                total += int(f.read().split()[0])
        return total / 1e3

    def load(self, asked, *words):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(asked, f)
            f.flush()
            before = self.cpu_us()
            last = max(os.sched_getaffinity(0))
            r = subprocess.run([http_load, "--port", str(self.port), "--path", "/v1/chat/completions", "--body", f.name, *words], capture_output=True, text=True,
                               preexec_fn=lambda: os.sched_setaffinity(0, {last}))
            return json.loads(r.stdout), self.cpu_us() - before


def requests(stub, connections):
    f, cpu = stub.load(body(answer_tokens, False), "--connections", str(connections), "--seconds", "4")
    return {"connections": connections, "answer_tokens": answer_tokens, "requests_per_s": round(f["answers"] / f["seconds"]), "requests_per_cpu_s": round(f["answers"] / cpu * 1e6),
            "cpu_us_per_request": round(cpu / max(f["answers"], 1), 1), "broken": f["broken"], "others": f["others"], "answer_us": f["answer_us"]}


def many_streams(stub):
    before, most, done = stub.resident(), [0], threading.Event()

    def look():
        while not done.wait(0.1):
            most[0] = max(most[0], stub.resident())
    looking = threading.Thread(target=look)
    looking.start()
    f, cpu = stub.load(body(stream_tokens, True), "--connections", str(streams), "--requests", str(streams), "--seconds", "90")
    done.set()
    looking.join()
    return {"streams": streams, "whole": f["answers"], "broken": f["broken"], "events": f["events"], "tokens_per_stream": stream_tokens, "tick_ms": 100, "seconds": round(f["seconds"], 2),
            "server_bytes_per_stream": round((most[0] - before) / streams), "cpu_us_per_event": round(cpu / max(f["events"], 1), 2), "first_us": f["first_us"], "event_gap_us": f["event_gap_us"]}


def main():
    stub = Stub()
    try:
        figures = {"load_average": os.getloadavg()[0], "streams": many_streams(stub), "one_connection": requests(stub, 1), "one_core": requests(stub, 32)}
    finally:
        stub.p.kill()
        stub.p.wait()
    print(json.dumps(figures, indent=1))


main()
