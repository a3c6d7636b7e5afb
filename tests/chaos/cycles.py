#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills a rank, waits until its replacement is a member, kills the next one: many times, under load. Every answer must be the undisturbed one, and
nothing may pile up: processes, sockets, shared memory, descriptors. Also where the pauses of doc/failure.md come from. Prints one JSON object;
exit code 1 if anything was wrong.

    tests/chaos/cycles.py --dilaunch build/launch/dilaunch --cycles 200 --ranks 8 --seed 1
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time

import chaos_run
from chaos_run import ChaosRun, moved, pauses, requests, summary, undisturbed, without_times

BUDGET = ["supervisor.restart.max=100000", "supervisor.restart.window=1s", "supervisor.restart.backoff=50ms", "supervisor.restart.backoff_max=100ms"]


def again(lines, times):
    return [{**line, "id": f"{line['id']}.{i}"} for i in range(times) for line in lines]


class Audit:
    def __init__(self):
        self.cycles, self.answers, self.different, self.failed, self.problems = 0, 0, 0, 0, []
        self.survivor, self.victim, self.rejoin_ms, self.gone_ms, self.moved, self.descriptors = [], [], [], [], 0, []

    def wrong(self):
        return bool(self.different or self.failed or self.problems)


def one_run(options, rng, lines, wanted, audit, limit):
    run = ChaosRun(options.dilaunch, lines, options.ranks, window=8 * options.ranks, sets=[*BUDGET, f"supervisor.on_rank_loss={options.mode}"])
    began_cycles = audit.cycles
    try:
        run.ready().answered(1)
        before = run.descriptors()
        done = 0
        while audit.cycles < limit and run.out.count(b"\n") < len(lines) - 16 * options.ranks:
            run.for_ms(rng.uniform(20, 400))
            victim = f"rank {rng.randrange(options.ranks)}"
            at = time.monotonic()
            run.strike([victim], signal.SIGSTOP if rng.random() < options.stops else signal.SIGKILL)
            run.until(lambda r: r.states("fenced") + r.states("waiting") > 0 and r.states("member") > done, 60)
            done = run.states("member")
            audit.rejoin_ms.append(round(1000 * (time.monotonic() - at)))
            audit.cycles += 1
        after = run.descriptors()
        code, answers, last = run.finish(300)
        if code != 0:
            audit.problems.append(f"exit code {code}: {last}")
        audit.failed += sum("error" in a for a in answers)
        for a, text in zip(answers, without_times([{**a, "id": a["id"].split(".")[0]} for a in answers])):
            audit.answers += 1
            if text != wanted[a["id"].split(".")[0]]:
                audit.different += 1
                if audit.different < 3:
                    audit.problems.append({"got": text, "want": wanted[a["id"].split(".")[0]]})
        began = run.began()
        for fault in run.faults:
            gaps = pauses(answers, (fault.at - began) * 1000, fault.names)
            audit.survivor += gaps["survivor"]
            audit.victim += gaps["victim"]
        audit.moved += moved(answers)
        audit.descriptors.append({"run": len(audit.descriptors), "cycles": audit.cycles - began_cycles, "before": {k: before.get(k) for k in ("dilaunch", "control")},
                                  "after": {k: after.get(k) for k in ("dilaunch", "control")}})
        # an old and a new life of a rank at once, and no more
        audit.problems += [f"descriptors of {k} pile up: {before[k]} to {after[k]}" for k in ("dilaunch", "control") if after[k] > before[k] + 36]
        audit.problems += [f"left: {x}" for x in run.leftovers() + run.still_there()]
    except AssertionError as failure:
        audit.problems.append(f"{run.faults[-1:]}: {str(failure)[-4000:]}")
    finally:
        run.remove()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dilaunch", required=True)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", default="shrink", choices=("shrink", "restart", "restart_smaller"))
    parser.add_argument("--stops", type=float, default=0, help="share of SIGSTOP instead of SIGKILL")
    parser.add_argument("--requests", type=int, default=200, help="different ones; they come again and again")
    options = parser.parse_args()
    rng, audit, start = random.Random(options.seed), Audit(), time.monotonic()
    base = requests(options.requests, options.seed)
    wanted = undisturbed(options.dilaunch, base)
    while audit.cycles < options.cycles and not audit.wrong():
        one_run(options, rng, again(base, 8), wanted, audit, options.cycles)
    commit = subprocess.run(["git", "-C", str(chaos_run.SOURCE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(json.dumps({"what": "kill and rejoin under load", "commit": commit, "cores": os.cpu_count(), "ranks": options.ranks, "mode": options.mode, "seed": options.seed,
                      "minutes": round((time.monotonic() - start) / 60, 1), "cycles": audit.cycles, "answers": audit.answers, "moved_to_another_rank": audit.moved,
                      "failed": audit.failed, "different": audit.different, "survivors_pause_ms": summary(audit.survivor), "victims_pause_ms": summary(audit.victim),
                      "rejoin_ms": summary(audit.rejoin_ms), "descriptors": audit.descriptors[:20], "problems": audit.problems[:5]}, indent=1))
    return 1 if audit.wrong() or audit.cycles < options.cycles else 0


if __name__ == "__main__":
    sys.exit(main())
