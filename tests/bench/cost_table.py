#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what the parts of a step cost on this machine, and real runs to check a simulation against: the table of `dichaos sim --device cost`.

Phases (attention, experts, dispatch, combine, sample) are fitted to the spans of traced runs at EP 1, where nobody competes for a core. What is left
of a group's processor time at EP 8 is shared out over its mails. Rates of decoding and times to the first token at EP 8 and 16 are stored beside.

    tests/bench/cost_table.py --dilaunch build/launch/dilaunch > doc/measured/step_cost.json
"""
import argparse
import json
import os
import platform
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "launch/models/demo"


def lines(count, prompt, output, seed):
    rng = random.Random(seed)
    return [{"id": f"r{i}", "prompt_ids": [rng.randrange(3, 1900) for _ in range(prompt)], "max_tokens": output, "ignore_eos": True, "temperature": 0,
             "seed": i, "prefix": "off", "token_times": True} for i in range(count)]


class Measured:
    def __init__(self, answers, err, cpu_s, trace):
        self.answers, self.err, self.cpu_s, self.trace = answers, err, cpu_s, trace

    def counters(self):
        total = {}
        for name, value in re.findall(r"(di_\w+)=(\d+)", self.err):
            total[name] = total.get(name, 0) + int(value)
        return total

    def decode_rate(self):
        """[tokens/s] while all sequences decode: from the last first token to the first last one."""
        times = [a["timings"]["token_ms"] for a in self.answers]
        begin, end = max(t[0] for t in times), min(t[-1] for t in times)
        count = sum(sum(begin < x <= end for x in t) for t in times)
        return 1000 * count / (end - begin) if end > begin else 0

    def first_token_ms(self):
        return statistics.median(a["timings"]["first_token_ms"] for a in self.answers)


def run(dilaunch, work, ranks, traced=False):
    with tempfile.TemporaryDirectory() as scratch:
        prompts = Path(scratch) / "p.jsonl"
        prompts.write_text("".join(json.dumps(x) + "\n" for x in work))
        command = [dilaunch, "run", "--topology", str(ROOT / "launch/topologies/local1.yaml"), "--prompts", str(prompts), "--log-level", "info"]
        for s in (f"cluster.nodes=[{{host: localhost, ranks: {ranks}}}]", f"roles.decode.ep={ranks}", "log.counters=true"):
            command += ["--set", s]
        rings = Path(scratch) / "t.rings"
        if traced:
            command += ["--trace", str(rings), "--trace-spans", "500000"]
        os.mkdir(scratch + "/rt", 0o700)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, env={**os.environ, "XDG_RUNTIME_DIR": scratch + "/rt"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-2000:])
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        spans = [json.loads(x) for x in rings.read_text().splitlines()] if traced else []
        return Measured([json.loads(x) for x in done.stdout.splitlines()], done.stderr, cpu, spans)


def spans_of(measured):
    """[(kind, begin_ns, us, rows, layer)] of rank 0 in order of their begin."""
    kinds, found = measured.trace[0]["kinds"], []
    for part in measured.trace[1:]:
        if part["process"] == "/rank/0":
            found += [(kinds[e[0]], e[2], (e[3] - e[2]) / 1e3, e[5], e[6]) for e in part["events"]]
    return sorted(found, key=lambda s: s[1])


def least_squares(rows, values):
    """Coefficients by normal equations, relative errors equal in weight, none below zero: what would be is left out."""
    names = list(range(len(rows[0])))
    while True:
        x = [[row[n] / v for n in names] for row, v in zip(rows, values)]
        n = len(names)
        a = [[sum(r[i] * r[j] for r in x) for j in range(n)] + [sum(r[i] for r in x)] for i in range(n)]
        for i in range(n):
            pivot = max(range(i, n), key=lambda k: abs(a[k][i]))
            a[i], a[pivot] = a[pivot], a[i]
            for k in range(n):
                if k != i and a[i][i]:
                    f = a[k][i] / a[i][i]
                    a[k] = [p - f * q for p, q in zip(a[k], a[i])]
        solved = [a[i][n] / a[i][i] if a[i][i] else 0 for i in range(n)]
        if min(solved) >= 0:
            return [solved[names.index(i)] if i in names else 0.0 for i in range(len(rows[0]))]
        names.remove(names[solved.index(min(solved))])


def fit(groups):
    """groups: {features: [us]}; medians are fitted."""
    rows = [list(k) for k in groups]
    return least_squares(rows, [statistics.median(v) for v in groups.values()])


def phases(dilaunch):
    """Costs [us] at EP 1. One sequence at a time gives the context of every step; several give rows."""
    attention, experts, dispatch, combine, head, sample = {}, {}, {}, {}, {}, {}
    for prompt, count, output in ((32, 1, 40), (500, 1, 40), (1500, 1, 40), (3000, 1, 40), (32, 8, 60), (32, 24, 60)):
        context, step_rows = 0, 0
        for kind, _, us, rows, layer in spans_of(run(dilaunch, lines(count, prompt, output, prompt), 1, True)):
            if kind == "attention" and layer == -1 and step_rows in (1, count):  # logits of rows that draw
                head.setdefault((1, step_rows), []).append(us)
            if rows == 0 or (count > 1 and kind == "attention" and rows != count):
                continue
            if kind == "attention":
                step_rows = rows
                at = context if count == 1 else prompt + output // 2
                attention.setdefault((1, rows, round(rows * (at + rows / 2) / 64) * 64), []).append(us)
                context += rows if count == 1 and layer == 7 else 0
            elif kind == "experts":
                experts.setdefault((1, rows), []).append(us)
            elif kind in ("dispatch", "combine"):
                (dispatch if kind == "dispatch" else combine).setdefault((1, rows), []).append(us)
            elif kind == "sample":
                sample.setdefault((1, rows), []).append(us)
    names = {"attention": ("layer", "row", "row_position"), "experts": ("call", "entry"), "dispatch": ("layer", "row"), "combine": ("call", "row"), "head": ("step", "row"), "sample": ("step", "row")}
    fitted = {n: fit(g) for n, g in (("attention", attention), ("experts", experts), ("dispatch", dispatch), ("combine", combine), ("head", head), ("sample", sample))}
    return {n: {k: round(v, 6) for k, v in zip(names[n], c)} for n, c in fitted.items()}


def cell(dilaunch, ranks, each, prompt, output, times=3):
    work = lines(ranks * each, prompt, output, 7)
    best = max((run(dilaunch, work, ranks) for _ in range(times)), key=Measured.decode_rate)
    return {"ranks": ranks, "sequences_per_rank": each, "prompt_tokens": prompt, "output_tokens": output, "tokens_per_s": round(best.decode_rate(), 1),
            "tokens_per_s_per_rank": round(best.decode_rate() / ranks, 2), "first_token_ms": round(best.first_token_ms(), 1)}


def mail_cost(dilaunch, table, ranks):
    """[us] of processor time per mail: what a longer run costs more, without its phases, over its further mails."""
    short, long = (min((run(dilaunch, lines(ranks * 2, 32, n, 5), ranks) for _ in range(3)), key=lambda m: m.cpu_s) for n in (8, 72))
    more = {k: v - short.counters().get(k, 0) for k, v in long.counters().items()}
    tokens, layers = 64 * 2 * ranks, 8
    steps = tokens / 2
    t = table
    computed = steps * layers * (t["attention"]["layer"] + 2 * t["attention"]["row"] + 2 * 68 * t["attention"]["row_position"] + t["dispatch"]["layer"] + 2 * t["dispatch"]["row"])
    calls = more["di_expert_shard_calls_total"]
    computed += calls * (t["experts"]["call"] + t["combine"]["call"]) + tokens * layers * (4 * t["experts"]["entry"] + t["combine"]["row"])
    computed += steps * (t["sample"]["step"] + t["head"]["step"]) + tokens * (t["sample"]["row"] + t["head"]["row"])
    mails = more["di_shell_mails_total"]
    # A mail within a process costs about a microsecond; half of what is counted here crosses (calls and answers both do, work_due does not).
    return {"us_per_mail": round((1e6 * (long.cpu_s - short.cpu_s) - computed) / mails, 2), "us_per_wake": 20.0, "us_per_local_mail": 1.0, "latency_us": 20.0, "mails_per_token": round(mails / tokens, 1), "calls_per_token": round(calls / tokens, 2),
            "cpu_us_per_token": round(1e6 * (long.cpu_s - short.cpu_s) / tokens), "phases_us_per_token": round(computed / tokens)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dilaunch", required=True)
    options = parser.parse_args()
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    config = json.loads((MODEL / "config.json").read_text())["text_config"]
    table = phases(options.dilaunch)
    mail = mail_cost(options.dilaunch, table, 8)
    runs = [cell(options.dilaunch, ranks, each, prompt, 48) for ranks in (8, 16) for each, prompt in ((2, 32), (8, 32), (2, 400))]
    runs += [{**cell(options.dilaunch, ranks, 4, 100, 48), "held_out": True} for ranks in (8, 16)]
    print(json.dumps({"table": "costs of a step", "commit": commit, "machine": platform.machine(), "cores": os.cpu_count(), "unit": "us",
                      "model": {"layers": config["num_hidden_layers"], "experts": config["n_routed_experts"], "experts_per_token": config["num_experts_per_tok"], "hidden": config["hidden_size"]},
                      **table, "mail": mail, "runs": runs}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
