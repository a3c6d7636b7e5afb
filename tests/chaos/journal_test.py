# SPDX-License-Identifier: Apache-2.0
"""The journal of real runs: an interrupted batch is finished with the bytes of an undisturbed one, and a full disk loses nothing.

    journal_test.py DILAUNCH SOURCE [TEST...]
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
import workload  # noqa: E402
from cluster_run import without_times  # noqa: E402

DILAUNCH, SOURCE = sys.argv[1], sys.argv[2]
MODEL = f"{SOURCE}/launch/models/demo"
REQUESTS, FEW, RANKS = 64, 24, 4


class Batch:
    """A batch with its files in one folder."""

    def __init__(self, lines):
        self.home = tempfile.mkdtemp(prefix="di-journal-")
        os.mkdir(self.home + "/r", 0o700)
        os.mkdir(self.home + "/faults")
        self.prompts, self.output, self.journal = (f"{self.home}/{n}" for n in ("prompts.jsonl", "answers.jsonl", "journal"))
        Path(self.prompts).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        self.p = None

    def start(self, *args, prompts=None, output=True, env=(), ranks=RANKS, topology="local4"):
        command = [DILAUNCH, "run", "--topology", f"{SOURCE}/launch/topologies/{topology}.yaml", "--prompts", prompts or self.prompts, "--window", "8", *args,
                   "--set", f"cluster.nodes=[{{host: localhost, ranks: {ranks}}}]", "--set", f"roles.decode.ep={ranks}"]
        if output:
            command += ["--output", self.output]
        self.p = subprocess.Popen(command, env=dict(os.environ, XDG_RUNTIME_DIR=self.home + "/r", **dict(env)), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.log = []
        stream, self.p.stderr = self.p.stderr, None  # communicate() leaves it alone
        self.reader = threading.Thread(target=self.read_log, args=(stream, self.log), daemon=True)
        self.reader.start()
        return self

    @staticmethod
    def read_log(stream, log):
        with stream:
            for line in stream:
                log.append(line.decode(errors="replace"))

    @property
    def err(self):
        return "".join(self.log)

    def end(self, seconds=180):
        self.out = self.p.communicate(timeout=seconds)[0].decode()
        self.reader.join(20)
        return self.p.returncode

    def says(self, event, seconds=60):
        """Until the log has this event."""
        end = time.monotonic() + seconds
        while not any(f" {event} " in line for line in list(self.log)):
            if time.monotonic() > end or self.p.poll() is not None:
                raise AssertionError(f"no {event}\n{self.err[-4000:]}")
            time.sleep(0.005)
        return self

    def lines(self):
        return Path(self.output).read_bytes().count(b"\n") if os.path.exists(self.output) else 0

    def answered(self, count, seconds=120):
        """Until so many lines are in the output."""
        end = time.monotonic() + seconds
        while self.lines() < count:
            if time.monotonic() > end or self.p.poll() is not None:
                self.p.kill()
                self.end()
                raise AssertionError(f"{self.lines()} lines, wanted {count}\n{self.err[-4000:]}")
            try:
                self.p.wait(0.01)
            except subprocess.TimeoutExpired:
                pass
        return self

    def answers(self):
        return [json.loads(line) for line in Path(self.output).read_text().splitlines()]

    def rules(self, text):
        Path(self.home + "/faults/new").write_text(text)
        os.rename(self.home + "/faults/new", self.home + "/faults/rules")

    def remove(self):
        if self.p and self.p.poll() is None:
            self.p.kill()
            self.p.communicate()
        shutil.rmtree(self.home, ignore_errors=True)


class JournalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = workload.make(REQUESTS, 5, MODEL, 300, ("speculation", "prefix", "priority"), 0.1)
        cls.requests = [dict(line) for line in made]
        cls.known = {}

    def wanted(self, count=REQUESTS):
        """The answers to the first lines, made when a test first needs them."""
        if count not in self.known:
            self.known[count] = self.undisturbed(self.requests[:count])
        return self.known[count]

    @classmethod
    def undisturbed(cls, lines):
        batch = Batch(workload.plain(lines))
        try:
            if batch.start("--quiet", ranks=1, topology="local1").end() != 0:
                raise AssertionError(batch.err[-2000:])
            return without_times(batch.answers())
        finally:
            batch.remove()

    def batch(self, lines=None):
        made = Batch(lines or self.requests)
        self.addCleanup(made.remove)
        return made

    def kill_launcher(self, b):
        os.kill(b.p.pid, signal.SIGKILL)
        b.end()
        end = time.monotonic() + 20  # its children end with it
        while any(b.home.encode() in Path(p).read_bytes() for p in self.environments()) and time.monotonic() < end:
            time.sleep(0.02)

    @staticmethod
    def environments():
        for pid in os.listdir("/proc"):
            path = f"/proc/{pid}/environ"
            if pid.isdigit() and os.access(path, os.R_OK):
                try:
                    Path(path).read_bytes()
                    yield path
                except OSError:
                    continue

    def test_resume(self):
        """kill -9 of the launcher, twice, at any moment; then the rest with another number of ranks."""
        b = self.batch()
        b.start("--journal", b.journal).answered(5)
        self.kill_launcher(b)
        with open(b.output, "ab") as f:
            f.write(b'{"id": "torn')
        before = b.lines()
        b.start("--resume", b.journal).answered(before + 1)
        self.kill_launcher(b)
        self.assertLess(b.lines(), REQUESTS)
        self.assertEqual(b.start("--resume", b.journal, ranks=3).end(), 0, b.err[-4000:])
        self.assertEqual(without_times(b.answers()), self.wanted())
        self.assertIn("journal_recovered", b.err)
        self.assertEqual(b.start("--resume", b.journal).end(), 0)  # nothing is left to do
        self.assertEqual(without_times(b.answers()), self.wanted())

    def test_resume_draws_the_same_seeds(self):
        lines = [{k: v for k, v in line.items() if k != "seed"} for line in self.requests]
        b = self.batch(lines)
        b.start("--journal", b.journal).answered(4)
        self.kill_launcher(b)
        self.assertEqual(b.start("--resume", b.journal).end(), 0, b.err[-4000:])
        given = [{**line, "seed": a["seed"]} for line, a in zip(lines, b.answers())]
        self.assertEqual(len({a["seed"] for a in b.answers()}), REQUESTS)
        self.assertEqual(without_times(b.answers()), self.undisturbed(given))

    def test_resume_prints_all_again(self):
        b = self.batch()
        b.start("--journal", b.journal, output=False)
        seen = b"".join(b.p.stdout.readline() for _ in range(6))
        self.assertEqual(seen.count(b"\n"), 6)
        self.kill_launcher(b)
        self.assertEqual(b.start("--resume", b.journal + "/" + os.listdir(b.journal)[0], output=False).end(), 0, b.err[-4000:])
        self.assertEqual(without_times([json.loads(line) for line in b.out.splitlines()]), self.wanted())

    def test_resume_refuses_what_does_not_fit(self):
        b = self.batch()
        b.start("--journal", b.journal).answered(3)
        self.kill_launcher(b)
        other = self.batch(self.requests[:-1])
        for args, words in [({"prompts": other.prompts}, "another prompts file"), ({}, "prefill=compact")]:
            sets = ["--set", "roles.decode.prefill=compact"] if not args else []
            self.assertEqual(b.start("--resume", b.journal, *sets, **args).end(), 2, b.err[-2000:])
            self.assertIn(words, b.err)
        self.assertEqual(b.start("--journal", b.journal).end(), 2)
        self.assertIn("--resume goes on with that one", b.err)
        self.assertEqual(b.start("--resume", b.home).end(), 2)
        self.assertIn("there is no journal", b.err)
        Path(b.output).write_text("")
        self.assertEqual(b.start("--resume", b.journal).end(), 2, b.err[-2000:])
        self.assertIn("more had been written", b.err)

    def test_disk_full(self):
        """Nothing is lost or shown too early while the journal's disk is full, and nothing fails."""
        for policy in ("pause", "memory"):
            with self.subTest(policy=policy):
                b = self.batch()
                b.start("--set", f"journal.on_error={policy}", env={"DI_FAULTS": b.home + "/faults"}).answered(4)
                b.rules("point process=/control name=journal.write.short probability=1 skip=0 times=1000000\n")
                b.says("journal_write_failed")
                full = b.lines()
                self.assertLess(full, REQUESTS - 8, "the disk was full too late")
                if policy == "pause":
                    time.sleep(0.5)  # what was on disk before may still come: at most a line
                    self.assertLessEqual(b.lines() - full, 1)
                else:
                    b.answered(full + 8)  # while the disk is as full as before
                b.rules("")
                self.assertEqual(b.end(), 0, b.err[-4000:])
                self.assertEqual(without_times(b.answers()), self.wanted())

    def kill_control(self, b):
        for path in self.environments():
            if b.home.encode() in Path(path).read_bytes() and b"child\0control" in Path(path).with_name("cmdline").read_bytes():
                os.kill(int(path.split("/")[2]), signal.SIGKILL)

    def test_disk_full_control_killed(self):
        """The disk takes nothing from the start, so a control process that comes back finds no journal."""
        for policy in ("pause", "memory"):
            with self.subTest(policy=policy):
                b = self.batch(self.requests[:FEW])
                b.rules("point process=/control name=journal.write.enospc probability=1 skip=0 times=1000000\n")
                b.start("--set", f"journal.on_error={policy}", env={"DI_FAULTS": b.home + "/faults"})
                b.says("view_committed").says("journal_write_failed")
                if policy == "memory":
                    b.answered(3)
                else:
                    self.assertEqual(b.lines(), 0)
                self.kill_control(b)
                b.rules("")
                self.assertEqual(b.end(), 0, b.err[-4000:])
                self.assertIn("journal_missing", b.err)
                self.assertEqual(without_times(b.answers()), self.wanted(FEW))

    def test_disk_full_then_control_killed(self):
        """The disk takes no more after a while: what comes back finds an old journal, and ranks that have settled what is open in it."""
        for policy in ("pause", "memory"):
            with self.subTest(policy=policy):
                b = self.batch(self.requests[:FEW])
                b.start("--set", f"journal.on_error={policy}", env={"DI_FAULTS": b.home + "/faults"}).answered(1)
                b.rules("point process=/control name=journal.write.enospc probability=1 skip=0 times=1000000\n")
                b.says("journal_write_failed")
                full = b.lines()
                self.assertLess(full, FEW - 8, "the disk was full too late")
                if policy == "memory":
                    b.answered(full + 6)
                else:
                    self.assertLessEqual(b.lines() - full, 1)
                self.kill_control(b)
                b.rules("")
                self.assertEqual(b.end(), 0, b.err[-4000:])
                self.assertIn("journal_recovered", b.err)
                self.assertEqual(without_times(b.answers()), self.wanted(FEW))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *(f"JournalTest.{t}" for t in sys.argv[3:])], verbosity=2)
