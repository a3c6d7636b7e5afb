#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planning of expert placements here and in NumPy, turn by turn, on one thread each.

usage: eplb_compare.py BENCH_PROGRAM [--rounds N] [--out doc/measured/eplb.json]

Needs `pip install numpy` (in a virtual environment). Two peers of our own: the published algorithm (replicate the hottest per copy,
pack the heaviest on the lightest), vectorised over layers, and the greedy that minimises the sum over bins of the fullest rank, as
DeepInfer places. Loads: lognormal per expert (sigma 1), Poisson per bin, fixed seed. moe_lb is the sum over bins and layers of the fullest rank's rows
over that of the mean; copies of an expert share its rows evenly. Times count the time on a core (the machine may be shared); wall
time stands beside them.
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
import numpy as np  # noqa: E402  (reads the environment when loaded)

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANKS = 64


def make_loads(layers, experts, bins):
    random = np.random.default_rng(7)
    mean = random.lognormal(0, 1, (layers, experts)) * 200
    return random.poisson(mean, (bins, layers, experts)).astype(np.float32)


def replicate(rows, slots):
    """[layers, slots] expert of each copy, and [layers, experts] how many."""
    layers, experts = rows.shape
    every = np.arange(layers)
    copies = np.ones((layers, experts), np.float32)
    owner = np.empty((layers, slots), np.int64)
    owner[:, :experts] = np.arange(experts)
    for i in range(experts, slots):
        hottest = (rows / copies).argmax(1)
        owner[:, i] = hottest
        copies[every, hottest] += 1
    return owner, copies


def published(loads, slots):
    rows = loads.sum(0)
    layers = rows.shape[0]
    every = np.arange(layers)
    owner, copies = replicate(rows, RANKS * slots)
    weight = np.take_along_axis(rows / copies, owner, 1)
    order = np.argsort(-weight, 1, kind="stable")
    full = np.zeros((layers, RANKS), np.float32)
    used = np.zeros((layers, RANKS), np.int64)
    out = np.empty((layers, RANKS, slots), np.int64)
    for i in range(RANKS * slots):
        item = order[:, i]
        rank = np.where(used < slots, full, np.inf).argmin(1)
        out[every, rank, used[every, rank]] = owner[every, item]
        full[every, rank] += weight[every, item]
        used[every, rank] += 1
    return out


def sum_of_peaks(loads, slots):
    """Copies as above; each goes where the sum over bins of the fullest rank grows least."""
    rows = loads.sum(0)
    bins, layers, _ = loads.shape
    every = np.arange(layers)
    owner, copies = replicate(rows, RANKS * slots)
    weight = np.take_along_axis(rows / copies, owner, 1)
    order = np.argsort(-weight, 1, kind="stable")
    share = loads / copies
    full = np.zeros((bins, layers, RANKS), np.float32)
    used = np.zeros((layers, RANKS), np.int64)
    out = np.empty((layers, RANKS, slots), np.int64)
    for i in range(RANKS * slots):
        expert = owner[every, order[:, i]]
        mine = share[:, every, expert]
        peak = full.max(2)
        cost = np.maximum(peak[:, :, None], full + mine[:, :, None]).sum(0)
        rank = np.where(used < slots, cost, np.inf).argmin(1)
        out[every, rank, used[every, rank]] = expert
        full[:, every, rank] += mine
        used[every, rank] += 1
    return out


def moe_lb(loads, placed):
    layers, ranks, _ = placed.shape
    peak = mean = 0.0
    for layer in range(layers):
        flat = placed[layer]
        copies = np.bincount(flat.ravel(), minlength=loads.shape[2])
        share = loads[:, layer] / copies
        rank = share[:, flat].sum(2)
        peak += rank.max(1).sum()
        mean += rank.mean(1).sum()
    return round(float(peak / mean), 5)


def timed(function):
    begin, cpu = time.perf_counter(), time.process_time()
    result = function()
    return (time.perf_counter() - begin, time.process_time() - cpu), result


def shown(times):
    wall, cpu = zip(*times)
    return {"cpu_ms": {"median": round(statistics.median(cpu) * 1e3, 3), "best": round(min(cpu) * 1e3, 3), "worst": round(max(cpu) * 1e3, 3)},
            "wall_ms_median": round(statistics.median(wall) * 1e3, 3)}


def compare(program, layers, experts, slots, bins, rounds):
    loads = make_loads(layers, experts, bins)
    lines = ["fresh", f"moves {RANKS * 4}", "published"]
    times = {k: [] for k in lines + ["numpy_published", "numpy_sum_of_peaks"]}
    lb, moves = {}, {}
    with tempfile.NamedTemporaryFile() as file:
        file.write(loads.tobytes())
        file.flush()
        ours = subprocess.Popen([program, file.name, *map(str, (layers, experts, slots, RANKS, bins))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for turn in range(rounds + 1):  # the first turn warms up
            for line in lines:
                ours.stdin.write(line + "\n")
                ours.stdin.flush()
                answer = json.loads(ours.stdout.readline())
                lb[line], moves[line] = answer["moe_lb"], answer["moves"]
                if turn > 0:
                    times[line].append((answer["seconds"], answer["cpu_seconds"]))
            for name, function in (("numpy_published", published), ("numpy_sum_of_peaks", sum_of_peaks)):
                if name == "numpy_sum_of_peaks" and turn > 3:
                    continue  # slow
                took, placed = timed(lambda: function(loads, slots))
                lb[name] = moe_lb(loads, placed)
                if turn > 0:
                    times[name].append(took)
        ours.stdin.close()
        if ours.wait() != 0:
            raise SystemExit("the program failed")
    if abs(lb["published"] - lb["numpy_published"]) > 2e-3:
        raise SystemExit(f"the two published versions differ: {lb}")
    contiguous = np.tile(np.arange(RANKS * slots) % experts, (layers, 1)).reshape(layers, RANKS, slots)
    best = {k: min(t[1] for t in v) for k, v in times.items()}
    return {"layers": layers, "experts": experts, "slots": RANKS * slots, "ranks": RANKS, "bins": bins, "moe_lb_contiguous": moe_lb(loads, contiguous),
            "runs": {k: {"moe_lb": lb[k], **({"moves": moves[k]} if moves.get(k) else {}), **shown(v)} for k, v in times.items()},
            "numpy_published_over_ours": round(best["numpy_published"] / best["fresh"], 1)}


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out")
    args = parser.parse_args()
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    report = {"benchmark": "planning where experts live, one thread", "commit": commit, "date": datetime.date.today().isoformat(),
              "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "load_1min": round(os.getloadavg()[0], 2)}, "numpy": np.__version__, "rounds": args.rounds,
              "cases": [compare(args.program, *case, args.rounds) for case in ((58, 256, 5, 1), (40, 384, 7, 1), (58, 256, 5, 4), (40, 384, 7, 4))]}
    text = json.dumps(report, indent=1) + "\n"
    print(text, end="")
    if args.out:
        pathlib.Path(args.out).write_text(text, encoding="utf-8")


main()
