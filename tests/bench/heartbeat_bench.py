#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What heartbeats between node processes cost. Prints JSON.

heartbeat_bench.py <dilaunch> <source folder> [--rounds 3] [--seconds 8]

Two node processes over loopback tcp with a group at rest, once with a heartbeat every 100 ms (the default) and once with none within the
run; processor time of all threads of all processes, taken in turns. At rest nothing else is sent between the nodes, so the difference
is what heartbeats take; it is set beside what one core can do.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("dilaunch")
arguments.add_argument("source")
arguments.add_argument("--rounds", type=int, default=3)
arguments.add_argument("--seconds", type=float, default=8)
options = arguments.parse_args()
sys.path.insert(0, options.source + "/tests/e2e")
from served import Served  # noqa: E402

WITH = ("supervisor.heartbeat.every=100ms",)
WITHOUT = ("supervisor.heartbeat.every=30m", "supervisor.heartbeat.suspect=50m", "supervisor.lease=55m")


def processor_ns(pids):
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                total += int(f.read().split()[0])
    return total


def at_rest(sets):
    """[us of processor time per second] of a group that has nothing to do."""
    topology = f"{options.source}/launch/topologies/two_nodes.yaml"
    with Served(options.dilaunch, topology, sets=("cluster.launcher=local", "cluster.ports.base=0", *sets)) as s:
        pids = [s.p.pid, *s.processes().values()]
        begin, before = time.monotonic(), processor_ns(pids)
        time.sleep(options.seconds)
        return (processor_ns(pids) - before) / 1000 / (time.monotonic() - begin)


rounds = {"with": [], "without": []}
for _ in range(options.rounds):
    rounds["with"].append(at_rest(WITH))
    rounds["without"].append(at_rest(WITHOUT))
middle = {k: statistics.median(v) for k, v in rounds.items()}
commit = subprocess.run(["git", "-C", options.source, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
print(json.dumps({"bench": "heartbeat", "commit": commit, "nodes": 2, "seconds": options.seconds,
                  "processor_us_per_s": {k: [round(x) for x in v] for k, v in rounds.items()},
                  "cost_us_per_s": round(middle["with"] - middle["without"]),
                  "cost_percent_of_a_core": round((middle["with"] - middle["without"]) / 1e4, 3)}))
