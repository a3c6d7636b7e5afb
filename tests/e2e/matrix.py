#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every completion of a mixed workload must be the same bytes whatever the cluster does: any group size, speculation, prefix cache, moving experts.

The reference: each request alone, on one rank, nothing switched on. Then all requests together, for every cell of the matrix
{ep} x {speculation} x {prefix} x {rebalance}. Compared: token ids, text, finish reason, logprobs to the last bit; after every run no
process, socket folder or shared memory of it may be left. Prints one line a cell on stderr and one JSON object on stdout (or --output,
rewritten after every cell); exit code 1 on any difference, 2 if the build lacks a cell that was asked for by name.

    tests/e2e/matrix.py --dilaunch build-release/launch/dilaunch
    tests/e2e/matrix.py --dilaunch D --requests 60 --cells "ep=16 speculation=off,varlen rebalance=forced"
    tests/e2e/matrix.py --dilaunch D --cells "ep=1,4 room=tight" --growing 0.3
    tests/e2e/matrix.py --dilaunch D --self-test
"""
import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import workload
from cluster_run import Run

ROOT = Path(__file__).resolve().parents[2]
AXES = {
    "ep": ("1", "4", "7", "16", "64"),
    "speculation": ("off", "fixed:5", "varlen"),
    "prefix": ("off", "exact"),
    "rebalance": ("off", "forced"),
}
MORE_AXES = {
    "room": ("full", "tight"),  # tight: the pages of one full context for all sequences of a rank
    "nodes": ("1", "2"),  # 2: two node processes, TCP with CURVE between them
}
KEYS = {"speculation": "roles.decode.speculation", "prefix": "kv.prefix", "rebalance": "roles.decode.rebalance"}
FORCED = "forced:8"  # a random placement every so many steps
# Of an answer; says how it was served.
NOT_COMPARED = ("timings",)


def say(text):
    print(text, file=sys.stderr, flush=True)


def cells(chosen):
    """[{"ep": "1", "speculation": "off", ...}] of the words `axis=value,value`; the four axes that are not named have all their values."""
    wanted = dict(AXES)
    for word in chosen.split():
        axis, _, values = word.partition("=")
        if axis not in AXES | MORE_AXES:
            raise SystemExit(f"matrix.py: no axis {axis}; there are {' '.join(AXES | MORE_AXES)}")
        wanted[axis] = tuple(values.split(","))
    return [dict(zip(wanted, values)) for values in itertools.product(*wanted.values())]


def redundant_experts(experts, ranks):
    """At least one copy to move, and the same number of slots on every rank."""
    return 0 if ranks == 1 else ranks * ((experts + ranks) // ranks) - experts


def validate(dilaunch, topology, sets):
    """What `dilaunch validate` complains of; empty if it does not."""
    command = [dilaunch, "validate", "--topology", topology]
    for s in sets:
        command += ["--set", s]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def topology_of(cell, model, more=()):
    """(topology file, values of --set)"""
    ranks = int(cell["ep"])
    with open(Path(model) / "config.json") as f:
        config = json.load(f)
    experts = config.get("text_config", config)["n_routed_experts"]
    name, nodes = "ep64" if ranks == 64 else "local1", [ranks]
    if cell.get("nodes") == "2":
        name, nodes = "two_nodes", [(ranks + 1) // 2, ranks // 2]
    sets = [f"model.path={Path(model).resolve()}", *(f"cluster.nodes[{i}].ranks={n}" for i, n in enumerate(nodes)), f"roles.decode.ep={ranks}",
            f"roles.decode.redundant_experts={redundant_experts(experts, ranks)}", "cluster.start_timeout=200s", "log.counters=true"]
    for axis, key in KEYS.items():
        value = FORCED if cell[axis] == "forced" else cell[axis]
        sets.append(f"{key}={value}")
    return f"{ROOT}/launch/topologies/{name}.yaml", sets + list(more)


def with_room(dilaunch, cell, topology, sets):
    """The sets and, in a tight cell, a kv.room of what the fixed parts and one full context take, as the refusal of less tells it."""
    if cell.get("room") != "tight":
        return sets
    told = validate(dilaunch, topology, sets + ["kv.room=65536B"])
    return sets + [f"kv.room={re.search('([0-9]+) bytes are needed', told)[1]}B"]


def unsupported(dilaunch, cell, model, more):
    """Why this build cannot run the cell, or nothing."""
    return validate(dilaunch, *topology_of(cell, model, more)).rpartition("\n")[2]


def serving_fields(dilaunch, model):
    """Those request fields of the workload that this build knows: a refused line names its unknown key."""
    found = []
    for field in workload.SERVING_FIELDS:
        value = {"speculation": "off", "prefix": "off", "priority": 1, "deadline_ms": 3_600_000}[field]
        topology, sets = topology_of({"ep": "1", "speculation": "off", "prefix": "off", "rebalance": "off"}, model)
        run = Run(dilaunch, topology, [{"prompt_ids": [5], "max_tokens": 1, field: value}], sets=sets)
        try:
            code, answers, _ = run.finish(60)
            if code == 0 and "error" not in answers[0]:
                found.append(field)
        finally:
            run.remove()
    return tuple(found)


def difference(want, got, at=""):
    """The first place where two answers differ: (path, wanted, found), or nothing. Numbers count to the last bit."""
    if type(want) is not type(got):
        return at, want, got
    if isinstance(want, dict):
        for key in list(want) + [k for k in got if k not in want]:
            if key in NOT_COMPARED:
                continue
            if key not in got or key not in want:
                return f"{at}.{key}", want.get(key, "absent"), got.get(key, "absent")
            if found := difference(want[key], got[key], f"{at}.{key}"):
                return found
        return None
    if isinstance(want, list):
        for i, (w, g) in enumerate(zip(want, got)):
            if found := difference(w, g, f"{at}[{i}]"):
                return found
        return None if len(want) == len(got) else (f"{at} (its length)", len(want), len(got))
    return None if repr(want) == repr(got) else (at, want, got)


def ids_around(at, want, got):
    """The tokens before and behind a difference within the ids of an answer with one choice."""
    hit = re.match(r"\.(?:ids|logprobs)\[(\d+)\]", at)
    first = max(0, int(hit[1]) - 8) if hit else 0
    return {name: {"from": first, "ids": a["ids"][first : first + 16]} for name, a in (("want_ids", want), ("got_ids", got)) if a and "ids" in a}


def compare(lines, want, got):
    """[{"id", "at", "want", "got", "request"}] of the answers that differ, are missing or too many."""
    problems, by_id = [], {}
    for answer in got:
        if answer.get("id") in by_id:
            problems.append({"id": answer["id"], "at": "answered twice"})
        by_id[answer.get("id")] = answer
    for line, expected in zip(lines, want):
        answer = by_id.pop(line["id"], None)
        found = ("", "an answer", "none") if answer is None else difference(expected, answer)
        if found:
            told = dict(line)
            if len(told.get("prompt_ids", ())) > 12:
                told["prompt_ids"] = f"{len(line['prompt_ids'])} ids"
            problems.append({"id": line["id"], "at": found[0], "want": found[1], "got": found[2], "request": told, **ids_around(found[0], expected, answer)})
    for i, answer in by_id.items():
        if not str(i).startswith(workload.NOISE):
            problems.append({"id": i, "at": "nobody asked"})
        elif "error" in answer:
            problems.append({"id": i, "at": ".error", "want": "absent", "got": answer["error"]})
    return problems


COUNTERS = re.compile(r'\[(control|rank \d+)\] \S+ info \S+ process_counters counters="([^"]*)"')


def counters(text):
    """{counter: sum over all processes} of the last log lines of a run, without the prefix and suffix that all have."""
    total = {}
    for hit in COUNTERS.finditer(text):
        for pair in hit[2].split():
            name, _, number = pair.partition("=")
            name = name.removeprefix("di_").removesuffix("_total")
            total[name] = total.get(name, 0) + float(number)
    return {k: int(v) if v == int(v) else v for k, v in sorted(total.items())}


# Counters that must have moved where something is on, or the cell shows nothing; and counters that never may.
AT_WORK = {
    ("speculation", "fixed:5"): "rank_drafts_accepted", ("speculation", "varlen"): "rank_drafts_accepted",
    ("prefix", "exact"): "rank_prefix_exact_tokens", ("rebalance", "forced"): "expert_shard_slots_released", ("room", "tight"): "rank_preemptions",
}
NEVER = ("rank_draft_passes_failed", "rank_steps_failed", "rank_answers_malformed", "rank_attempts_refused", "rank_requests_refused", "expert_shard_calls_failed",
         "bus_segment_refused", "bus_segment_overwritten", "bus_sequence_gaps", "rebalancer_plans_failed", "rebalancer_loads_refused", "scheduler_requests_refused", "supervisor_restarts", "membership_members_lost")


def idle(cell, counted, but=()):
    """Problems of a run whose features did not do what they are there for, or failed where nobody saw it.
    @param but  axes that may have had no occasion"""
    found = [{"at": f"{axis}={value} did nothing", "got": f"{name} is {counted.get(name, 0)}"} for (axis, value), name in AT_WORK.items()
             if cell.get(axis) == value and not counted.get(name) and axis not in but and not (cell["ep"] == "1" and axis == "rebalance")]
    if int(cell["ep"]) > 1 and cell.get("nodes") != "2" and not counted.get("bus_segment_mails_sent"):
        found.append({"at": "shared memory did nothing", "got": "bus_segment_mails_sent is 0"})
    return found + [{"at": "counter", "got": f"{name} is {counted[name]}"} for name in NEVER if counted.get(name)]


def brief(facts):
    return " ".join(f"{k}={v}" for k, v in {**facts, **facts["counters"]}.items() if k != "counters" and not k.startswith(("bus", "shell", "topic", "journal", "gateway")))


def window_of(cell):
    """Options of dilaunch: a prefix is found by those that come once another request has left it, and many ranks take 200 requests at once."""
    ranks = int(cell["ep"])
    return ("--window", str(ranks * 3 // 4)) if cell["prefix"] == "exact" and ranks > 4 else ()


def answer_all(dilaunch, topology, sets, lines, seconds, args=()):
    """(answers, facts, problems) of one run."""
    run = Run(dilaunch, topology, lines, args=("--log-level", "info", *args), sets=sets)
    began, problems, answers, code = time.monotonic(), [], [], None
    try:
        try:
            code, answers, last = run.finish(seconds)
            if code != 0:
                problems.append({"at": f"exit code {code}", "got": last, "stderr": run.err.decode()[-3000:]})
        except subprocess.TimeoutExpired as late:
            out, err = (late.output or b"").decode(), (late.stderr or b"").decode()
            loud = [line for line in err.splitlines() if " warn " in line or " error " in line or "peer_lost" in line]
            problems.append({"at": f"not done after {seconds} s", "got": f"{out.count(chr(10))} of {len(lines)} answers", "stderr": loud[:20] + err.splitlines()[-5:],
                             "processes": {name: Path(f"/proc/{pid}/wchan").read_text() for name, pid in run.processes().items()}})
            run.p.kill()
            run.p.communicate()
        except ValueError as broken:
            problems.append({"at": "an answer is no JSON", "got": str(broken)})
        wall = time.monotonic() - began
        counted = counters(run.err.decode())
        problems += [{"at": "left over", "got": str(what)} for what in run.leftovers(run.still_there())]
    finally:
        run.remove()
    if not isinstance(code, int):
        answers = []
    tokens = sum(a.get("output_tokens", 0) for a in answers)
    facts = {"prompt_tokens": sum(a.get("prompt_tokens", 0) for a in answers), "tokens": tokens, "wall_s": round(wall, 2), "tokens_per_s": round(tokens / wall, 1)}
    return answers, {**facts, "counters": counted}, problems


def fine(cell):
    return cell.get("different") == 0 and not cell["problems"]


def run_matrix(options, chosen, report, save):
    make = lambda fields: workload.make(options.requests, options.seed, options.model, options.longest, fields, options.growing)
    lines = make(())
    fields = serving_fields(options.dilaunch, options.model)
    served = make(fields)
    assert workload.plain(served) == lines
    noisy = workload.with_noise(served, options.seed) if "prefix" in fields else served
    alone = {"ep": "1", "speculation": "off", "prefix": "off", "rebalance": "off"}
    topology, sets = topology_of(alone, options.model)
    want, facts, problems = answer_all(options.dilaunch, topology, sets, lines, options.limit, ("--window", "1"))
    same = options.before if all(options.before.get(k) == v for k, v in {**report, "requests": len(lines)}.items() if k != "date") else {}
    report.update(requests=len(lines), request_fields=fields, reference={**facts, "problems": problems}, cells=[c for c in same.get("cells", ()) if fine(c)])
    say(f"reference: {len(want)} answers, {facts['tokens']} tokens, {facts['wall_s']} s{', PROBLEMS' if problems else ''}")
    failed = [a for a in want if "error" in a]
    if problems or len(want) != len(lines) or failed:
        report["reference"]["failed"] = failed[:3]
        return False
    if options.corrupt:
        victim = next(a for a in reversed(want) if a.get("ids"))
        victim["ids"][-1] ^= 1
    good = True
    for cell in chosen:
        name = " ".join(f"{k}={v}" for k, v in cell.items())
        if any(cell.items() <= c.items() for c in report["cells"]):
            continue
        if why := unsupported(options.dilaunch, cell, options.model, options.set):
            report["cells"].append({**cell, "skipped": why})
            say(f"{name}: skipped: {why}")
        else:
            topology, sets = topology_of(cell, options.model, options.set)
            sets = with_room(options.dilaunch, cell, topology, sets)
            asked = noisy if cell["prefix"] == "exact" else served
            if cell["speculation"] != "off":
                asked = workload.without(asked, "speculation")  # what drafts, the topology made it; with off requests choose for themselves
            got, facts, problems = answer_all(options.dilaunch, topology, sets, asked, options.limit, window_of(cell))
            wrong = compare(lines, want, got)
            problems += idle(cell, facts["counters"])
            good = good and not wrong and not problems
            report["cells"].append({**cell, "requests": len(lines), "answers": len(got), "different": len(wrong), **facts, "problems": problems[:10], "first_differences": wrong[:3]})
            say(f"{name}: {len(got)} answers, {len(wrong)} differ, {brief(facts)}{', ' + str(problems[:2]) if problems else ''}")
            for d in wrong[:1]:
                say("  " + json.dumps(d, ensure_ascii=False)[:2000])
        save()
        if options.stop and not good:
            break
    return good


def self_test():
    """compare() must find every kind of damage."""
    lines = [{"id": "a"}, {"id": "b"}]
    logprob = {"id": 5, "logprob": -0.1, "top": []}
    want = [{"id": "a", "text": "x", "ids": [5], "finish_reason": "stop", "logprobs": [logprob], "timings": {"total_ms": 1}}, {"id": "b", "choices": [{"index": 0, "ids": [7, 8]}]}]
    copy = lambda: json.loads(json.dumps(want))
    assert compare(lines, want, copy()) == []
    same = copy()
    same[0]["timings"]["total_ms"] = 2
    assert compare(lines, want, same) == []
    damages = {
        ".ids[0]": lambda a: a[0]["ids"].__setitem__(0, 6), ".text": lambda a: a[0].update(text="y"), ".finish_reason": lambda a: a[0].update(finish_reason="length"),
        ".logprobs[0].logprob": lambda a: a[0]["logprobs"][0].update(logprob=-0.10000000000000002), ".choices[0].ids (its length)": lambda a: a[1]["choices"][0]["ids"].pop(),
        ".stop": lambda a: a[0].update(stop="x"), "": lambda a: a.pop(0),
    }
    for at, damage in damages.items():
        broken = copy()
        damage(broken)
        found = compare(lines, want, broken)
        assert [f["at"] for f in found] == [at], (at, found)
    assert [f["at"] for f in compare(lines, want, copy() + [{"id": "c"}])] == ["nobody asked"]
    busy = {"rank_drafts_accepted": 5, "expert_shard_slots_released": 2, "bus_segment_mails_sent": 9}
    cell = {"ep": "4", "speculation": "varlen", "prefix": "off", "rebalance": "forced"}
    assert idle(cell, busy) == [] and len(idle(cell, {})) == 3 and len(idle(cell, {**busy, "rank_steps_failed": 1})) == 1
    assert len(cells("")) == 60 and len(cells("ep=1,4 rebalance=off")) == 12
    assert [redundant_experts(32, n) for n in (1, 4, 7, 16, 64)] == [0, 4, 3, 16, 32]


def commit_of(folder):
    git = lambda *args: subprocess.run(["git", "-C", folder, *args], capture_output=True, text=True).stdout.strip()
    return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dilaunch", required=True)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=int, default=3000, help="tokens of the longest prompt")
    parser.add_argument("--growing", type=float, default=0, help="share of requests with long answers; with room=tight they preempt each other")
    parser.add_argument("--model", default=str(ROOT / "launch/models/demo"))
    parser.add_argument("--cells", default="", help='"axis=value,value ...": ' + "; ".join(f"{k}: {' '.join(v)}" for k, v in (AXES | MORE_AXES).items()))
    parser.add_argument("--set", action="append", default=[], help="for every cell, not for the reference")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one run")
    parser.add_argument("--commit", default="", help="of the build; default: of this folder")
    parser.add_argument("--output", default="", help="file for the report")
    parser.add_argument("--resume", action="store_true", help="keep the good cells of --output if it is of the same commit, seed and model")
    parser.add_argument("--stop", action="store_true", help="at the first problem")
    parser.add_argument("--corrupt", action="store_true", help="change one token of the reference: must fail")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    self_test()
    if options.self_test:  # one difference in every cell, and exit code 1
        options.corrupt, options.requests, options.cells, options.longest = True, 12, "ep=1,2 speculation=off prefix=off rebalance=off", 200
    report = {"matrix": "dilaunch run", "commit": options.commit or commit_of(ROOT), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "seed": options.seed,
              "model": os.path.basename(options.model), "cores": os.cpu_count(), "set": options.set}
    options.before = json.loads(Path(options.output).read_text()) if options.resume and os.path.exists(options.output) else {}
    began = time.monotonic()

    def save():
        report["seconds"] = round(time.monotonic() - began, 1)
        text = json.dumps(report, ensure_ascii=False, indent=1)
        if options.output:
            Path(options.output).write_text(text + "\n")
        return text

    good = run_matrix(options, cells(options.cells), report, save)
    report["good"] = good
    text = save()
    if not options.output:
        print(text)
    if options.self_test:
        found = [c.get("different") for c in report["cells"]]
        say(f"self-test: {found} differences found, one in each cell was made")
        return 0 if not good and found == [1, 1] else 1
    if good and options.cells and any("skipped" in c for c in report["cells"]):
        return 2
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
