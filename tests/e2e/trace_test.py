# SPDX-License-Identifier: Apache-2.0
"""Goal: `dilaunch run --trace` and `dilaunch trace` give one valid picture of a run: every process, spans that nest, arrows by request;
tracing changes no byte of the answers.
Usage: trace_test.py DILAUNCH SOURCE_DIR"""
import collections
import json
import os
import subprocess
import sys
import tempfile
import unittest

from cluster_run import Run, chat, without_times

DILAUNCH, SOURCE = sys.argv[1:3]
LOCAL4 = f"{SOURCE}/launch/topologies/local4.yaml"
LINES = [{"id": f"p{i}", "prompt": chat(text), "special_tokens": True, "max_tokens": 12, "temperature": i % 2, "seed": i}
         for i, text in enumerate(["What sound does a hen make", "Count from 3 to 9", "Who are you", "Hello", "Tell me a story about a fox", "Name a day"])]
STEP = {"step", "attention", "dispatch", "wait", "experts", "combine", "draft", "verify", "sample", "commit", "prefill"}
STATIONS = ["submit", "record", "admit", "assign", "take", "prefill", "commit", "accept", "release"]


def command(*args):
    return subprocess.run([DILAUNCH, *args], capture_output=True, text=True, timeout=60)


def check_picture(case, picture):
    """Tracks are named, spans of a lane nest, every arrow has a begin, an end and spans to stand on."""
    events = picture["traceEvents"]
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    lanes, starts = collections.defaultdict(list), set()
    for e in events:
        if e["ph"] == "X":
            begin, length = round(e["ts"] * 1000), round(e["dur"] * 1000)
            lanes[e["pid"], e["tid"]].append((begin, begin + length))
            starts.add((e["pid"], e["tid"], e["ts"]))
    case.assertLessEqual(set(lanes), set(tracks))
    for spans in lanes.values():
        spans.sort(key=lambda s: (s[0], -s[1]))
        open_ends = []
        for begin, end in spans:
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            case.assertTrue(not open_ends or end <= open_ends[-1], (begin, end))
            open_ends.append(end)
    flows = collections.defaultdict(list)
    for e in events:
        if e["ph"] in "stf":
            case.assertIn((e["pid"], e["tid"], e["ts"]), starts)
            flows[e["id"]].append((e["ts"], e["ph"]))
    for steps in flows.values():
        order = "".join(phase for _, phase in steps)
        case.assertRegex(order, "^st*f$")
        case.assertEqual(steps, sorted(steps, key=lambda s: s[0]))
    return flows


class TraceTest(unittest.TestCase):
    def trace(self, name, lines=LINES, args=()):
        run = Run(DILAUNCH, LOCAL4, lines, args=["--trace", name, "--quiet", *args])
        self.addCleanup(run.remove)
        code, answers, _ = run.finish()
        self.assertEqual(code, 0, run.err.decode())
        self.assertEqual(run.leftovers(), [])
        return answers

    def test_draws_into_what_is_no_file_and_never_over_its_input(self):
        with tempfile.TemporaryDirectory() as home:
            self.trace(home + "/run.rings", LINES[:1])
            with open(home + "/run.rings", "rb") as f:
                rings = f.read()
            os.symlink("run.rings", home + "/link")
            for out in ("run.rings", "link"):
                done = subprocess.run([DILAUNCH, "trace", home + "/run.rings", "--out", f"{home}/{out}"], capture_output=True, timeout=60)
                self.assertEqual(done.returncode, 2)
                self.assertIn(b"is one of the traces to be read", done.stderr)
            with open(home + "/run.rings", "rb") as f:
                self.assertEqual(f.read(), rings)
            os.mkfifo(home + "/pipe")
            reader = subprocess.Popen(["cat", home + "/pipe"], stdout=subprocess.PIPE)
            done = subprocess.run([DILAUNCH, "trace", home + "/run.rings", "--out", home + "/pipe"], capture_output=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(json.loads(reader.communicate(timeout=60)[0])["traceEvents"])
            self.assertEqual(sorted(os.listdir(home)), ["link", "pipe", "run.rings"])

    def test_shows_all_ranks_and_the_way_of_every_request(self):
        with tempfile.TemporaryDirectory() as home:
            answers = self.trace(home + "/run.json")
            self.assertEqual(os.listdir(home), ["run.json"])
            with open(home + "/run.json") as f:
                picture = json.load(f)
            flows = check_picture(self, picture)
            self.assertEqual(len(flows), len(LINES))
            names = {e["args"]["name"] for e in picture["traceEvents"] if e["name"] == "process_name"}
            self.assertEqual(names, {"control", "rank/0", "rank/1", "rank/2", "rank/3"})
            kinds = collections.defaultdict(set)
            for e in picture["traceEvents"]:
                if e["ph"] == "X":
                    kinds[e["pid"]].add(e["name"])
            for rank in range(4):
                self.assertEqual(kinds[1000 + rank] - {"draft", "verify"}, STEP - {"draft", "verify"} | {"take"})
            self.assertLessEqual(set(STATIONS) - {"take", "prefill", "commit"}, kinds[1])
            by_request = collections.defaultdict(list)
            for e in picture["traceEvents"]:
                if e["ph"] == "X" and "request" in e["args"]:
                    by_request[e["args"]["request"]].append((e["ts"], e["name"]))
            self.assertEqual(len(by_request), len(LINES))
            for spans in by_request.values():
                first = {}
                for at, name in sorted(spans):
                    first.setdefault(name, at)
                order = [first[name] for name in STATIONS]
                self.assertEqual(order, sorted(order))
            released = sum(e["args"].get("rows", 0) for e in picture["traceEvents"] if e["ph"] == "X" and e["name"] == "release")
            self.assertGreaterEqual(released, sum(a["output_tokens"] for a in answers))
        run = Run(DILAUNCH, LOCAL4, LINES, args=["--quiet"])
        self.addCleanup(run.remove)
        self.assertEqual(without_times(run.finish()[1]), without_times(answers))

    def test_shows_drafts_where_there_are_any(self):
        with tempfile.TemporaryDirectory() as home:
            self.trace(home + "/run.json", args=["--speculation", "fixed:5"])
            with open(home + "/run.json") as f:
                picture = json.load(f)
            check_picture(self, picture)
            verified = [e["args"] for e in picture["traceEvents"] if e["ph"] == "X" and e["name"] == "verify"]
            self.assertGreater(sum(a.get("accepted", 0) for a in verified), 0)
            self.assertTrue(all(a.get("accepted", 0) < a["rows"] for a in verified))
            self.assertTrue(any(e["ph"] == "X" and e["name"] == "draft" for e in picture["traceEvents"]))

    def test_merges_files_of_rings_and_counts_what_was_overwritten(self):
        with tempfile.TemporaryDirectory() as home:
            self.trace(home + "/a.rings", args=["--trace-spans", "64"])
            self.trace(home + "/b.rings", LINES[:2])
            done = command("trace", home + "/a.rings", home + "/b.rings", "--out", home + "/both.json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("of 5 processes", done.stderr)
            self.assertIn("older spans overwritten", done.stderr)
            with open(home + "/both.json") as f:
                check_picture(self, json.load(f))
            shown = command("trace", home + "/b.rings", "-o", "-")
            self.assertNotIn("overwritten", shown.stderr)
            self.assertEqual(len(check_picture(self, json.loads(shown.stdout))), 2)

    def test_refuses_what_is_no_trace(self):
        with tempfile.TemporaryDirectory() as home:
            self.assertEqual(command("trace").returncode, 2)
            self.assertEqual(command("trace", home + "/none", "-o", home + "/x").stderr, f"dilaunch trace: {home}/none: No such file or directory\n")
            with open(home + "/text", "w") as f:
                f.write("hello\n")
            wrong = command("trace", home + "/text", "-o", home + "/x")
            self.assertEqual(wrong.returncode, 2)
            self.assertIn(f"{home}/text:1: ", wrong.stderr)
            open(home + "/empty", "w").close()
            self.assertIn("is empty", command("trace", home + "/empty", "-o", home + "/x").stderr)
            self.assertIn("is empty", command("trace", home + "/empty", home + "/text", "-o", home + "/x").stderr)
            self.assertEqual(sorted(os.listdir(home)), ["empty", "text"])
            for args in (["--trace", home + "/no/folder.json"], ["--trace", home + "/t.json", "--trace-spans", "0"], ["--trace", home + "/text", "--output", home + "/text"]):
                run = Run(DILAUNCH, LOCAL4, LINES[:1], args=args)
                self.addCleanup(run.remove)
                self.assertEqual(run.finish()[0], 2, args)
            with open(home + "/text") as f:
                self.assertEqual(f.read(), "hello\n")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=0, warnings="ignore")
