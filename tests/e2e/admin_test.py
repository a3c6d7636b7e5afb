# SPDX-License-Identifier: Apache-2.0
"""Orders to a run that is under way: status, scale, drain, rejoin, kill, upgrade. Nothing is lost and every answer keeps its bytes.

admin_test.py <dilaunch> <source folder>
"""
import json
import os
import stat
import subprocess
import sys
import time

from cluster_run import Run, chat, without_times

dilaunch, source = sys.argv[1:3]
local4 = f"{source}/launch/topologies/local4.yaml"
lines = [{"id": str(i), "prompt": chat(f"Tell story {i}."), "special_tokens": True, "max_tokens": 90, "seed": i, "ignore_eos": True} for i in range(800)]


def expect(condition, what, run=None):
    if not condition:
        raise AssertionError(what if run is None else f"{what}\nstderr: {run.err.decode()}")


class Operator:
    def __init__(self, runtime):
        self.env = dict(os.environ, XDG_RUNTIME_DIR=runtime)

    def say(self, *words, code=0):
        r = subprocess.run([dilaunch, *words], env=self.env, capture_output=True, text=True, timeout=120)
        expect(r.returncode == code, f"{words}: exit code {r.returncode}, {r.stdout}{r.stderr}")
        return (r.stdout + r.stderr).strip()

    def status(self):
        return json.loads(self.say("status", "--json"))

    def until(self, done, seconds=30):
        end = time.monotonic() + seconds
        while not done(s := self.status()):
            expect(time.monotonic() < end, f"waited {seconds} s: {s}")
            time.sleep(0.1)
        return s


def state_of(status, rank):
    return next(r for r in status["ranks"] if r["rank"] == rank)


def wrong_orders(op):
    """Each is refused with words that say what is right; nothing changes."""
    for words, said in (
        (("scale", "decode=9"), "9 ranks: the topology allows 1 to 4"),
        (("scale", "decode=0"), "N is a number from 1 to 4096"),
        (("scale", "prefill=2"), "write decode=N"),
        (("drain", "rank", "77"), "no rank 77 in the topology; there are 4"),
        (("drain", "rank", "x"), "write `dilaunch drain rank R`"),
        (("kill", "rank", "-1"), "write `dilaunch kill rank R`"),
        (("rejoin", "rank", "2"), "rank 2 is in the group (view 1)"),
        (("status", "--run", "1"), "no run of this user has this process id"),
        (("status", "--run", "/nowhere"), "no run listens at /nowhere"),
    ):
        answer = op.say(*words, code=2)
        expect(said in answer, f"{words}: {answer}")
    expect(op.status()["view"] == 1, "a refused order changed the view")


def orders():
    calm = Run(dilaunch, f"{source}/launch/topologies/local1.yaml", lines)
    run = None
    try:
        code, answers, last = calm.finish(250)
        expect(code == 0, f"the undisturbed run ended with {code}: {last}")
        wanted = without_times(answers)
        op = Operator(calm.runtime)
        expect("no run of this user" in op.say("status", code=2), "status without a run")
        run = Run(dilaunch, local4, lines, ["--log-level", "warn"], ["supervisor.drain_timeout=500ms", "supervisor.restart.backoff=200ms"])
        op = Operator(run.runtime)
        run.until(lambda r: b"processes are ready" in r.err)
        first = op.until(lambda s: s["members"] == 4 and "requests" in s)
        expect(first["view"] == 1 and first["requests"]["open"] > 0, f"{first}")
        expect("view 1: 4 of 4 ranks" in op.say("status"), "the table")
        socket = [f"{d}/admin.sock" for d, _, files in os.walk(run.runtime) if "admin.sock" in files]
        expect(len(socket) == 1 and stat.S_IMODE(os.stat(socket[0]).st_mode) == 0o600, f"{socket}")
        wrong_orders(op)
        expect(op.say("scale", "decode=3") == "done: 3 ranks in view 2", "scale down")
        expect(state_of(op.status(), 3)["state"] == "absent", "the highest rank leaves")
        expect(op.say("scale", "decode=4") == "done: 4 ranks in view 3", "scale up")
        expect(op.say("drain", "rank", "0") == "done: 3 ranks in view 4", "drain")
        s = op.status()
        expect(state_of(s, 0)["state"] == "absent" and s["wanted"] == 3, f"{s}")
        expect(op.say("rejoin", "rank=0", "--run", str(run.p.pid)) == "done: 4 ranks in view 5", "rejoin")
        lives = {r["rank"]: r["life"] for r in op.status()["ranks"]}
        op.say("kill", "rank", "1")
        s = op.until(lambda s: state_of(s, 1)["life"] != lives[1] and s["members"] == 4)
        expect(s["view"] == 7 and state_of(s, 1)["deaths"] == 1, f"{s}")
        lives = {r["rank"]: r["life"] for r in s["ranks"]}
        expect(op.say("upgrade") == "done: 4 ranks in view 15", "upgrade")
        s = op.status()
        expect(all(state_of(s, r)["life"] != lives[r] for r in range(4)), "every rank is new")
        expect(s["requests"]["open"] > 0, "the orders came under load")
        code, answers, last = run.finish(250)
        expect(code == 0, f"the run ended with {code}: {last}", run)
        expect(without_times(answers) == wanted, "bytes differ from the undisturbed run", run)
        expect(run.leftovers() == [], f"left behind: {run.leftovers()}")
    finally:
        calm.remove()
        if run:
            run.remove()


def two_runs():
    """With two runs of one user an order needs --run, and says which there are."""
    home = Run(dilaunch, f"{source}/launch/topologies/local1.yaml", lines)
    second = None
    try:
        home.until(lambda r: b"processes are ready" in r.err)
        second = subprocess.Popen([dilaunch, "run", "--topology", f"{source}/launch/topologies/local1.yaml", "--prompts", home.prompts], env=Operator(home.runtime).env,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        op = Operator(home.runtime)
        end = time.monotonic() + 30
        while "2 runs are under way" not in (said := op.say("drain", "rank", "0", code=2)):
            expect(time.monotonic() < end, f"no word of the second run: {said}")
            time.sleep(0.1)
        expect(f"process {home.p.pid}, local1" in said and f"process {second.pid}, local1" in said, said)
        expect("at least 1 must stay" in op.say("upgrade", "--run", str(home.p.pid), code=2), "one rank cannot be upgraded")
    finally:
        if second:
            second.kill()
            second.wait()
        home.remove()


orders()
two_runs()
