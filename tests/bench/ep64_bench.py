#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What 64 rank processes on one host cost: start, memory and processor time at rest, time and messages of a decode step.

    tests/bench/ep64_bench.py build/launch/dilaunch [--ranks 64] [--model DIR] [--set key=value ...] [--check] [--out FILE]

Without --model a tiny synthetic checkpoint is made. Prints JSON. Each figure stands beside its target where there is one.

- start: from exec of dilaunch until it says that all processes are ready.
- at rest: the group has answered a first batch and its answers wait in a full pipe, so nobody has anything to do. Private memory is
  Private_Clean + Private_Dirty of /proc/<pid>/smaps_rollup per rank; processor time is the sum over all threads of all processes (schedstat).
- steps: time of a step from the answers' own timings; two runs that differ in their length give processor time and messages of a
  token without start and prefill.
- messages: frames that the ranks sent, counted by their post offices, against the least possible: one call and one answer for each
  (rank with rows) x (other rank that holds a chosen expert) per layer and step.
"""
import argparse
import fcntl
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from cluster_run import Run  # noqa: E402

SOURCE = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
F_SETPIPE_SZ = 1031


def request(i, tokens, prompt_tokens=4):
    return {"id": f"r{i}", "prompt_ids": [(7 * i + 11 * k) % 900 + 3 for k in range(prompt_tokens)], "max_tokens": tokens, "ignore_eos": True, "temperature": 1, "seed": i}


def cpu_ns(pid):
    total = 0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                total += int(f.read().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return total


def rollup(pid):
    out = {}
    with open(f"/proc/{pid}/smaps_rollup") as f:
        for line in f:
            words = line.split()
            if words[-1] == "kB":
                out[words[0].rstrip(":")] = int(words[1]) * 1024
    return out


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Bench:
    def __init__(self, args, home):
        self.args, self.home = args, home
        self.sets = [f"cluster.nodes=[{{host: localhost, ranks: {args.ranks}}}]", f"roles.decode.ep={args.ranks}", "log.counters=true",
                     "roles.decode.speculation=off", "roles.decode.rebalance=off", *args.set]  # steps of one row a sequence, calls alone
        if args.model:
            self.sets.append(f"model.path={os.path.abspath(args.model)}")
        self.n = 0

    def start(self, lines):
        self.n += 1
        self.logs = f"{self.home}/log{self.n}"
        self.began = time.monotonic()
        return Run(self.args.dilaunch, f"{SOURCE}/launch/topologies/ep64.yaml", lines, ["--log-dir", self.logs], self.sets)

    def ready(self, run):
        run.until(lambda r: b"processes are ready" in r.err, 300)
        return time.monotonic() - self.began

    def at_rest(self):
        """Start, memory and processor time at rest."""
        run = self.start([request(i, 4) for i in range(max(64, self.args.ranks))])
        try:
            fcntl.fcntl(run.p.stdout.fileno(), F_SETPIPE_SZ, 4096)
            # Only stderr is read: answers fill the pipe, and the gateway waits.
            while b"processes are ready" not in run.err:
                block = os.read(run.p.stderr.fileno(), 65536)
                if not block:
                    raise SystemExit(run.err.decode())
                run.err += block
            start_s = time.monotonic() - self.began
            pids = run.processes()
            pids["dilaunch"] = run.p.pid
            before, calm = sum(map(cpu_ns, pids.values())), 0
            for _ in range(240):  # until it is calm
                time.sleep(0.25)
                now = sum(map(cpu_ns, pids.values()))
                calm = calm + 1 if now - before < 10e6 else 0
                before = now
                if calm >= 4:
                    break
            ranks = [p for name, p in pids.items() if name.startswith("rank")]
            if len(ranks) != self.args.ranks:
                raise SystemExit(f"{len(ranks)} of {self.args.ranks} ranks live")
            maps = [rollup(p) for p in ranks]
            own = sorted(m["Private_Clean"] + m["Private_Dirty"] for m in maps)
            first = {name: cpu_ns(p) for name, p in pids.items()}
            t = time.monotonic()
            time.sleep(self.args.idle_s)
            took = time.monotonic() - t
            used = {name: cpu_ns(p) - first[name] for name, p in pids.items()}
            busiest = max(used, key=used.get)
            return {
                "start_to_ready_s": {"seconds": round(start_s, 2), "target": 20},
                "calm": calm >= 4,
                "private_MiB_per_rank": {"median": round(own[len(own) // 2] / 2**20, 2), "max": round(own[-1] / 2**20, 2), "target": 40},
                "shared_MiB_per_rank": round(sum(m["Shared_Clean"] + m["Shared_Dirty"] for m in maps) / len(maps) / 2**20, 2),
                "pss_MiB_per_rank": round(sum(m["Pss"] for m in maps) / len(maps) / 2**20, 2),
                "threads_per_rank": threads(ranks[0]),
                "descriptors_per_rank": descriptors(ranks[0]),
                "idle_percent_of_a_core": {"all": round(100e-9 * sum(used.values()) / took, 3), "busiest": [busiest, round(100e-9 * used[busiest] / took, 3)], "seconds": round(took, 1), "target": 2},
            }
        finally:
            run.remove()

    def totals(self):
        """Sums of the ranks' counters at their end."""
        out = {}
        for name in os.listdir(self.logs):
            if not name.startswith("rank_"):
                continue
            with open(f"{self.logs}/{name}") as f:
                text = f.read()
            for key, value in re.findall(r"(di_[a-z_]+)=([0-9.e+]+)", text):
                out[key] = out.get(key, 0) + float(value)
        return out

    def steps(self, sequences):
        """Costs of one token of each of `sequences`, by the difference of a long and a short run."""
        short, long = 8, 8 + self.args.tokens

        def children_s():
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime + used.ru_stime
        seen = []
        for tokens in (short, long):
            cpu = children_s()
            run = self.start([request(i, tokens) for i in range(sequences)])
            try:
                code, answers, last = run.finish(600)
                if code != 0 or len(answers) != sequences:
                    raise SystemExit(f"exit code {code}: {last}")
            finally:
                run.remove()
            seen.append((children_s() - cpu, self.totals()))
        (cpu_a, a), (cpu_b, b) = seen
        tokens = (long - short) * sequences
        step_ms = sorted(r["timings"]["decode_ms"] / (r["output_tokens"] - 1) for r in answers)

        def more(key):
            return b.get(key, 0) - a.get(key, 0)
        remote = more("di_expert_shard_remote_calls_total")
        least = 2 * remote
        return {
            "sequences": sequences,
            "step_ms": {"median": round(step_ms[len(step_ms) // 2], 2), "max": round(step_ms[-1], 2)},
            "cpu_ms_per_token": round(1000 * (cpu_b - cpu_a) / tokens, 2),
            "mails_per_token": round(more("di_bus_mails_sent_total") / tokens, 2),
            "frames_per_token": round(more("di_bus_frames_sent_total") / tokens, 2),
            "least_mails_per_token": round(least / tokens, 2) if least else None,
            "frames_over_least": round(more("di_bus_frames_sent_total") / least, 3) if least else None,
            "calls_per_token": round(more("di_expert_shard_calls_total") / tokens, 2),
            "socket_bytes_per_token": round(more("di_bus_sent_bytes_total") / tokens),
            "segment_bytes_per_token": round(more("di_bus_segment_sent_bytes_total") / tokens),
            "segment_mails_per_token": round(more("di_bus_segment_mails_sent_total") / tokens, 2),
            "segment_full": more("di_bus_segment_full_total"),
        }


def missed(out):
    """Says which targets were missed; the exit code."""
    rest = out.get("at_rest")
    seen = [] if rest is None else [("start_to_ready_s", "seconds"), ("private_MiB_per_rank", "max"), ("idle_percent_of_a_core", "all")]
    bad = [f"{key}: {rest[key][value]}, target {rest[key]['target']}" for key, value in seen if rest[key][value] > rest[key]["target"]]
    bad += [f"{s['sequences']} sequences: {s['frames_over_least']} x the least frames, target 1.25" for s in out.get("steps", []) if (s["frames_over_least"] or 0) > 1.25]
    print("\n".join(bad), file=sys.stderr)
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dilaunch")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--model", help="checkpoint; without: a tiny synthetic one")
    parser.add_argument("--tokens", type=int, default=32, help="steps that are measured")
    parser.add_argument("--idle-s", type=float, default=10)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--only", choices=["rest", "steps"])
    parser.add_argument("--check", action="store_true", help="exit code 1 if a target is missed")
    parser.add_argument("--out")
    args = parser.parse_args()
    home = tempfile.mkdtemp(prefix="di-ep64-")
    try:
        if not args.model:
            args.model = home + "/tiny"
            subprocess.run([args.dilaunch, "checkpoint", "make", "--preset", "tiny", "--seed", "1", "--out", args.model], check=True, capture_output=True)
        bench = Bench(args, home)
        commit = subprocess.run(["git", "-C", SOURCE, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        with open("/proc/cpuinfo") as f:
            cpu = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown")
        out = {"bench": "ep64", "commit": commit, "machine": f"{cpu}, {os.cpu_count()} cores", "ranks": args.ranks, "model": "tiny, seed 1" if args.model.startswith(home) else os.path.basename(args.model), "sets": args.set, "load_at_start": open("/proc/loadavg").read().split()[0]}
        if args.only != "steps":
            out["at_rest"] = bench.at_rest()
        if args.only != "rest":
            out["steps"] = [bench.steps(n) for n in (1, args.ranks)]
        out["load_at_end"] = open("/proc/loadavg").read().split()[0]
        text = json.dumps(out, indent=1)
        print(text)
        if args.out:
            with open(args.out, "w") as f:
                f.write(text + "\n")
        return missed(out) if args.check else 0
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
