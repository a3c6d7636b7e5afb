# SPDX-License-Identifier: Apache-2.0
"""Faults on a running `dilaunch run`: when to strike and whom, and what the answers and the log say about it afterwards."""
import datetime
import json
import os
import random
import re
import select
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
import workload  # noqa: E402
from cluster_run import Run, alive, without_times  # noqa: E402

SOURCE = Path(__file__).resolve().parents[2]
MODEL = f"{SOURCE}/launch/models/demo"
LOG_LINE = re.compile(r"^\[(?P<process>[^\]]+)\] (?P<time>\d{4}-\d\d-\d\dT[0-9:.]+)Z (?P<level>\w+) (?P<actor>\S+) (?P<event>\S+) ?(?P<rest>.*)$")


def requests(count, seed, longest=600, growing=0.1):
    """A mixed load whose answers carry the time of each token."""
    fields = ("speculation", "prefix", "priority")
    return [{**line, "token_times": True} for line in workload.make(count, seed, MODEL, longest, fields, growing)]


def size(ranks, nodes=1):
    if nodes == 1:
        return [f"cluster.nodes=[{{host: localhost, ranks: {ranks}}}]", f"roles.decode.ep={ranks}"]
    first = (ranks + 1) // 2
    return [f"cluster.nodes[0].ranks={first}", f"cluster.nodes[1].ranks={ranks - first}", f"roles.decode.ep={ranks}"]


def undisturbed(dilaunch, lines):
    """The answers of one process without any fault, without their times: {id: answer}."""
    run = Run(dilaunch, f"{SOURCE}/launch/topologies/local1.yaml", workload.plain(lines))
    try:
        code, answers, last = run.finish(300)
        if code != 0:
            raise AssertionError(f"the undisturbed run ended with {code}: {last}")
        return {a["id"]: text for a, text in zip(answers, without_times(answers))}
    finally:
        run.remove()


class Fault:
    def __init__(self, names, number):
        self.at, self.names, self.signal = time.time(), names, signal.Signals(number).name

    def __repr__(self):
        return f"{self.signal} of {', '.join(self.names)} at {self.at:.3f}"


class ChaosRun(Run):
    """A run that gets hurt. Everything of its log is kept in `err`; `faults` says what was done when."""

    def __init__(self, dilaunch, lines, ranks, nodes=1, window=0, sets=(), args=(), level="info"):
        self.lines, self.ranks, self.faults, self.killed = lines, ranks, [], []
        topology = f"{SOURCE}/launch/topologies/{'local1' if nodes == 1 else 'two_nodes'}.yaml"
        more = ["--log-level", level] + (["--window", str(window)] if window else [])
        super().__init__(dilaunch, topology, lines, [*more, *args], [*size(ranks, nodes), *sets])

    def ready(self, seconds=60):
        self.until(lambda r: b"processes are ready" in r.err, seconds)
        return self

    def answered(self, count, seconds=120):
        """Until so many answers are written: then the group is in the middle of the others."""
        self.until(lambda r: r.out.count(b"\n") >= count, seconds)
        return self

    def for_ms(self, ms):
        """Lets it run for a while, and reads what it says."""
        end = time.monotonic() + ms / 1000
        while (left := end - time.monotonic()) > 0:
            for stream in select.select([self.p.stdout, self.p.stderr], [], [], left)[0]:
                block = os.read(stream.fileno(), 65536)
                if not block:
                    return self
                if stream is self.p.stdout:
                    self.out += block
                else:
                    self.err += block
        return self

    def strike(self, names, number=signal.SIGKILL):
        """Sends a signal to processes by their names, as close together as possible. The group must be at work."""
        pids = self.processes()
        missing = [n for n in names if n not in pids]
        if missing:
            raise AssertionError(f"no process {missing}; there are {sorted(pids)}")
        self.faults.append(Fault(names, number))
        for name in names:
            os.kill(pids[name], number)
        if number == signal.SIGKILL:
            self.killed += [pids[n] for n in names]
        return {n: pids[n] for n in names}

    def busiest(self, ms=150):
        """The rank that computed most in the last moments: it holds most of the requests."""
        def used():
            found = {}
            for name, pid in self.processes().items():
                if name.startswith("rank"):
                    with open(f"/proc/{pid}/schedstat") as f:
                        found[name] = int(f.read().split()[0])
                    for task in os.listdir(f"/proc/{pid}/task"):
                        with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                            found[name] += int(f.read().split()[0])
            return found
        before = used()
        self.for_ms(ms)
        after = used()
        return max(after, key=lambda n: after[n] - before.get(n, 0))

    def replaced(self, name, old_pid, seconds=60):
        """Until another process has this name."""
        end = time.monotonic() + seconds
        while self.processes().get(name, old_pid) == old_pid:
            if time.monotonic() > end:
                raise AssertionError(f"no new process {name} within {seconds} s\nstderr: {self.err.decode()}")
            if self.p.poll() is not None:
                raise AssertionError(f"ended without a new process {name}\nstderr: {self.err.decode()}")
            self.for_ms(20)
        return self.processes()[name]

    def states(self, state):
        """How often KEEPER said that a rank is in this state (doc/operations.md)."""
        return self.err.count(f" state={state} ".encode())

    def rejoined(self, times=1, seconds=60):
        """Until so many replacements are members."""
        self.until(lambda r: r.states("member") >= times, seconds)
        return self

    def order(self, *words, seconds=60):
        """An operator's command to this run while its output is read. @return (exit code, what it said)"""
        folder = [f for f in os.listdir(self.runtime) if f.startswith("di-")]
        command = [self.p.args[0], *words, "--run", f"{self.runtime}/{folder[0]}"]
        order = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ, XDG_RUNTIME_DIR=self.runtime))
        end = time.monotonic() + seconds
        while order.poll() is None:
            if time.monotonic() > end:
                order.kill()
                raise AssertionError(f"{words}: no answer within {seconds} s\nstderr: {self.err.decode()[-6000:]}")
            self.for_ms(20)
        return order.returncode, order.stdout.read().decode()

    def descriptors(self):
        """{process: open descriptors} of this run."""
        found = {}
        for name, pid in {**self.processes(), "dilaunch": self.p.pid}.items():
            try:
                found[name] = len(os.listdir(f"/proc/{pid}/fd"))
            except OSError:
                continue
        return found

    def events(self):
        """[(time, process, event, rest)] of the log."""
        found = []
        for line in self.err.decode(errors="replace").splitlines():
            if m := LOG_LINE.match(line):
                at = datetime.datetime.fromisoformat(m["time"]).replace(tzinfo=datetime.timezone.utc).timestamp()
                found.append((at, m["process"], m["event"], m["rest"]))
        return found

    def saw(self, event):
        return [e for e in self.events() if e[2] == event]

    def lost(self):
        """The ranks that were lost or hung."""
        return {m[1] for e in self.saw("member_lost") + self.saw("member_stuck") if (m := re.search(r"rank=(\d+)", e[3]))}

    def views(self):
        """[{rank: life}] of each view that was committed, in order; what control says again after its own restart counts once."""
        found = {}
        for _, _, _, rest in self.saw("view_committed"):
            lives = dict(pair.split(":") for pair in re.search(r"lives=(\S*)", rest)[1].split(",") if pair)
            found.setdefault(int(re.search(r"view=(\d+)", rest)[1]), lives)
            if int(re.search(r"members=(\d+)", rest)[1]) != len(lives):
                raise AssertionError(f"members and lives differ: {rest}")
        return [found[view] for view in sorted(found)]

    def began(self):
        """When the batch began: the zero of all token times."""
        for at, _, event, rest in self.events():
            if event == "batch_finished":
                return at - int(re.search(r"elapsed_us=(\d+)", rest)[1]) / 1e6
        return None


def streams(answers):
    """(id, attempts, token times [ms], [(first token, rank that served from it on)]) of each choice."""
    for a in answers:
        for c in a.get("choices", [a]):
            times = c.get("timings", a.get("timings", {}))
            if times.get("token_ms"):
                yield a["id"], times.get("attempts", a.get("timings", {}).get("attempts", 1)), times["token_ms"], times.get("ranks", [])


def hit(ranks, tokens_before, names, attempts):
    """Whether one of these processes served the stream when it had so many tokens."""
    lost = {int(n.split()[1]) for n in names if n.startswith("rank ")}
    if not lost or not ranks:
        return attempts > 1
    return [rank for first, rank in ranks if first < tokens_before][-1] in lost


def pauses(answers, fault_ms, names):
    """{"survivor": [ms], "victim": [ms]}: of each stream that was open at the fault, the longest gap from it on minus its median gap before."""
    found = {"survivor": [], "victim": []}
    for _, attempts, times, ranks in streams(answers):
        before = [t for t in times if t <= fault_ms]
        after = [t for t in times if t > fault_ms]
        if len(before) < 3 or not after:
            continue
        usual = statistics.median(b - a for a, b in zip(before, before[1:]))
        # for a second: the pause need not begin with the fault
        near = [before[-1]] + [t for t in after if t <= fault_ms + 1000 or t == after[0]]
        gap = max(b - a for a, b in zip(near, near[1:]))
        found["victim" if hit(ranks, len(before), names, attempts) else "survivor"].append(round(gap - usual, 1))
    return found


def moved(answers):
    """Choices that more than one rank worked on."""
    return sum(attempts > 1 for _, attempts, _, _ in streams(answers))


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def summary(values):
    return {"count": len(values), "p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "max": max(values, default=None)}


def check(case, run, wanted, seconds=180):
    """Ends the run and asserts what every fault must leave true: exit code 0, the bytes of the undisturbed run, nothing left behind.
    @return answers"""
    code, answers, last = run.finish(seconds)
    log = run.err.decode(errors="replace")
    case.assertEqual(code, 0, f"{run.faults}: exit code {code}: {last}\n{log[-6000:]}")
    case.assertEqual([a["id"] for a in answers], [line["id"] for line in run.lines], run.faults)
    failed = [(a["id"], a["error"]) for a in answers if "error" in a]
    case.assertEqual(failed, [], f"{run.faults}: failed requests\n{log[-6000:]}")
    different = [(a["id"], text, wanted[a["id"]]) for a, text in zip(answers, without_times(answers)) if text != wanted[a["id"]]]
    if different:
        name, got, want = different[0]
        case.fail(f"{run.faults}: {len(different)} of {len(answers)} answers differ, first {name} (attempts {[a['timings'].get('attempts') for a in answers if a['id'] == name]}):\n got {got}\nwant {want}")
    case.assertEqual(run.leftovers(run.killed), [], run.faults)
    case.assertEqual(run.still_there(), [], run.faults)
    return answers


def told(run, answers):
    """What one fault cost, for people."""
    began = run.began()
    if began is None or not run.faults:
        return {}
    gaps = pauses(answers, (run.faults[0].at - began) * 1000, run.faults[0].names)
    return {"fault": repr(run.faults[0]), "fault_ms": round((run.faults[0].at - began) * 1000), "end_ms": round(max((t[-1] for _, _, t, _ in streams(answers)), default=0)),
            "survivors_ms": summary(gaps["survivor"]), "victims_ms": summary(gaps["victim"]), "moved": moved(answers)}


def moment(seed, low, high):
    """A number between the two, by the seed alone."""
    return random.Random(seed).uniform(low, high)
