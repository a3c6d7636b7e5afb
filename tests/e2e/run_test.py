# SPDX-License-Identifier: Apache-2.0
"""Goal: `dilaunch run` reports what is wrong, survives nothing silently, and leaves nothing behind.
Usage: run_test.py DILAUNCH SOURCE_DIR"""
import json
import os
import select
import signal
import subprocess
import sys
import time
import unittest

from cluster_run import Run, alive, chat, without_times

DILAUNCH, SOURCE = sys.argv[1:3]
LOCAL1, LOCAL2, LOCAL4, TWO_NODES = (f"{SOURCE}/launch/topologies/{n}.yaml" for n in ("local1", "local2", "local4", "two_nodes"))

HEN = {"id": "hen", "prompt": chat("What sound does a hen make"), "special_tokens": True, "max_tokens": 24, "temperature": 0, "seed": 1}
# Never ends on its own within a test: the context is 4096.
LONG = [{"id": f"long{i}", "prompt": "a b c", "max_tokens": 4000, "ignore_eos": True, "temperature": 1.5, "seed": i} for i in range(8)]


def command(*args, text=None):
    return subprocess.run([DILAUNCH, *args], input=text, capture_output=True, text=True, timeout=60)


class CommandTest(unittest.TestCase):
    def test_has_help_version_and_suggestions(self):
        self.assertEqual(command("--version").stdout, "dilaunch 0.1.0\n")
        self.assertIn("validate", command("--help").stdout)
        wrong = command("plna")
        self.assertEqual((wrong.returncode, wrong.stderr), (2, "dilaunch: no command plna; did you mean plan?\n"))
        self.assertEqual(command("run").returncode, 2)
        up = command("--topology", "/nowhere.yaml")  # serves, if there is such a file
        self.assertEqual((up.returncode, up.stderr), (2, "/nowhere.yaml: No such file or directory\n"))

    def test_prints_the_protocol_and_the_topology_document(self):
        self.assertEqual(command("--print-protocol").stdout, open(f"{SOURCE}/doc/protocol.md").read())
        self.assertEqual(command("explain", "--markdown").stdout, open(f"{SOURCE}/doc/topology.md").read())
        self.assertIn("1 to 1024", command("explain", "cluster.nodes[0].ranks").stdout)
        self.assertEqual(command("explain", "cluster.node").returncode, 2)

    def test_validates_and_plans(self):
        good = command("validate", "--topology", LOCAL4)
        self.assertEqual(good.returncode, 0, good.stderr)
        bad = command("validate", LOCAL4, "--set", "roles.decode.ep=3", "--set", "kv.rom=1")
        self.assertEqual(bad.returncode, 2)
        self.assertEqual(bad.stderr.splitlines()[-1], "--set kv.rom=1: unknown key kv.rom; did you mean kv.room?")
        plan = json.loads(command("plan", LOCAL4, "--json").stdout)
        self.assertEqual([r["rank"] for r in plan["ranks"]], [0, 1, 2, 3])
        missing = command("plan", LOCAL4, "--set", "model.path=/nowhere")
        self.assertEqual(missing.returncode, 2)
        self.assertIn("--set model.path=/nowhere: model.path: /nowhere", missing.stderr)

    def test_finds_bad_arguments_before_anything_starts(self):
        for args, text in (
            (("--prompts", "/nowhere.jsonl"), "--prompts /nowhere.jsonl: No such file or directory"),
            (("--prompts", "/tmp"), "--prompts /tmp: is a folder"),
            (("--prompts", "/dev/null", "--output", "/nowhere/x"), "--output /nowhere/x: No such file or directory"),
            (("--prompts", "/dev/null", "--set", "cluster.launcher=agent", "--set", "cluster.nodes[1].ranks=1", "--set", "roles.decode.ep=3"), "--token-file"),
        ):
            done = command("run", "--topology", LOCAL2, *args)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)


class RunTest(unittest.TestCase):
    def start(self, topology, lines, *args, sets=()):
        run = Run(DILAUNCH, topology, lines, args, sets)
        self.addCleanup(run.remove)
        return run

    def test_answers_all_but_the_bad_lines_and_ends_with_5(self):
        run = self.start(LOCAL2, [HEN, "{not json", {"id": "x", "prompt": "a", "max_tokens": "many"}, {"id": "far", "prompt_ids": [5] * 5000}, {**HEN, "id": "again"}])
        code, answers, _ = run.finish()
        self.assertEqual(code, 5)
        self.assertEqual([a.get("id") for a in answers], ["hen", None, "x", "far", "again"])
        self.assertEqual(answers[1]["line"], 2)
        for number in (2, 3, 4):
            self.assertIn(f"dilaunch: {run.prompts} line {number}: ", run.err.decode())
        self.assertEqual(answers[0]["text"], "A hen clucks.")
        self.assertEqual(answers[4]["text"], "A hen clucks.")
        for a, word in ((answers[1], "line 2"), (answers[2], "max_tokens"), (answers[3], "context")):
            self.assertIn(word, json.dumps(a))
        self.assertEqual(run.leftovers(), [])

    def test_reads_stdin_and_writes_a_file(self):
        run = self.start(LOCAL1, [HEN])
        run.finish()
        out = run.home + "/out.jsonl"
        done = command("run", "--topology", LOCAL1, "--prompts", "-", "--output", out, "--quiet", "--log-dir", run.home + "/log", text=json.dumps(HEN))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual(without_times([json.loads(open(out).read())]), without_times([json.loads(run.out)]))
        self.assertEqual(sorted(os.listdir(run.home + "/log")), ["control.log", "dilaunch.log", "rank_0.log"])

    def test_uses_the_tokenizer_that_the_topology_names(self):
        line = [{"id": 1, "prompt": "The third month of the year", "max_tokens": 1, "temperature": 0}]
        counts = []
        for sets in ((), (f"model.tokenizer={SOURCE}/tests/golden/data/tokenizer/tiny/tokenizer.json",)):
            code, answers, err = self.start(LOCAL1, line, sets=sets).finish()
            self.assertEqual(code, 0, err)
            counts.append(answers[0]["prompt_tokens"])
        self.assertLess(counts[0], counts[1])  # the other one has fewer merges of these words

    def test_works_with_64_ranks(self):
        run = self.start(f"{SOURCE}/launch/topologies/ep64.yaml", [HEN], "--quiet", sets=["roles.decode.max_sequences=1"])
        code, answers, last = run.finish(200)
        self.assertEqual((code, [a["text"] for a in answers]), (0, ["A hen clucks."]), last)
        self.assertEqual(run.leftovers(), [])

    def test_ends_with_3_and_the_reason_when_output_cannot_be_written(self):
        run = self.start(LOCAL1, [HEN])
        run.finish()
        for redirect, reason in ((">/dev/full", "No space left on device"), ("--output /dev/full", "No space left on device"), (">&-", "standard output is closed")):
            done = subprocess.run(["sh", "-c", f'exec "$@" {redirect}', "sh", DILAUNCH, "run", LOCAL1, "--prompts", run.prompts, "--quiet"], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 3, redirect)
            self.assertIn(reason, done.stderr.splitlines()[-1])

    def test_ends_quietly_when_the_reader_has_gone(self):
        run = self.start(LOCAL1, [HEN, {**LONG[0], "max_tokens": 200}, LONG[1]], "--quiet")
        run.until(lambda r: b"clucks" in r.out)
        run.p.stdout.close()
        self.assertEqual(run.p.wait(100), 0)  # at the second line, not the third
        self.assertEqual(run.p.stderr.read(), b"")
        self.assertEqual(run.leftovers(), [])

    def test_takes_devices_and_warns_of_nothing_to_do(self):
        run = self.start(LOCAL1, [HEN])
        run.finish()
        pipe = command("run", LOCAL1, "--prompts", "/dev/stdin", "--output", "-", "--quiet", text=json.dumps(HEN))
        self.assertEqual(without_times([json.loads(pipe.stdout)]), without_times([json.loads(run.out)]))
        empty = command("run", LOCAL1, "--prompts", "/dev/null", "--quiet")
        self.assertEqual((empty.returncode, empty.stdout, empty.stderr), (0, "", "dilaunch: no prompts in /dev/null\n"))
        same = command("run", LOCAL1, "--prompts", run.prompts, "--output", run.prompts)
        self.assertEqual(same.returncode, 2)
        self.assertIn("is the same file", same.stderr)
        self.assertEqual(json.loads(open(run.prompts).read()), HEN)

    def test_leaves_no_orphan_when_dilaunch_is_killed(self):
        for topology in (LOCAL4, TWO_NODES):
            run = self.start(topology, [HEN, *LONG])
            run.until(lambda r: b"clucks" in r.out)
            pids = run.processes()
            self.assertGreaterEqual(len(pids), 5)
            run.p.kill()
            run.p.communicate()
            end = time.monotonic() + 5
            while any(alive(p) for p in pids.values()):
                self.assertLess(time.monotonic(), end, "orphans live")
                select.select([], [], [], 0.01)

    def test_stops_before_it_is_ready(self):
        run = self.start(LOCAL4, [HEN])
        run.p.send_signal(signal.SIGTERM)  # wherever it is
        code, _, _ = run.finish(20)
        self.assertIn(code, (3, -signal.SIGTERM))
        self.assertEqual(run.leftovers(), [])

    def test_finishes_running_requests_after_the_first_signal(self):
        # More than the gateway submits at a time (1,024).
        lines = [HEN] + [{"id": i, "prompt": "a b c", "max_tokens": 10, "ignore_eos": True, "temperature": 1, "seed": i} for i in range(1500)]
        run = self.start(LOCAL2, lines)
        run.until(lambda r: b"clucks" in r.out)
        pids = run.processes()
        run.p.send_signal(signal.SIGTERM)
        code, answers, last = run.finish(100)
        self.assertEqual(code, 5, last)
        self.assertEqual([a["id"] for a in answers], [line["id"] for line in lines])
        self.assertEqual(answers[1]["output_tokens"], 10)
        self.assertIn("the run was stopped before this request began", json.dumps(answers[-1]))
        self.assertEqual(run.leftovers(pids.values()), [])

    def test_aborts_at_the_second_signal_and_writes_what_is_done(self):
        run = self.start(LOCAL2, [HEN, *LONG])
        run.until(lambda r: b"clucks" in r.out)
        pids = run.processes()
        run.p.send_signal(signal.SIGTERM)
        run.until(lambda r: b"a second signal aborts" in r.err)
        run.p.send_signal(signal.SIGTERM)
        began = time.monotonic()
        code, answers, last = run.finish(20)
        self.assertLess(time.monotonic() - began, 2.0)
        self.assertEqual((code, last), (3, "dilaunch: aborted by signal 15; 8 of 9 prompts unanswered"))
        self.assertEqual([a["id"] for a in answers], ["hen"] + [line["id"] for line in LONG])
        self.assertEqual(run.leftovers(pids.values()), [])

    def test_gives_running_requests_only_the_drain_timeout(self):
        run = self.start(LOCAL2, [HEN, *LONG], sets=["supervisor.drain_timeout=200ms"])
        run.until(lambda r: b"clucks" in r.out)
        run.p.send_signal(signal.SIGINT)
        code, _, last = run.finish(20)
        self.assertEqual((code, last), (3, "dilaunch: requests still ran 200ms after the first signal; 8 of 9 prompts unanswered"))

    def test_starts_nodes_through_ssh(self):
        run = self.start(LOCAL1, [HEN])
        run.finish()
        fake = run.home + "/ssh"
        with open(fake, "w") as f:
            f.write('#!/bin/sh\nshift 1\nexec sh -c "$*"\n')
        os.chmod(fake, 0o755)
        far = self.start(TWO_NODES, [HEN], sets=["cluster.launcher=ssh", f"cluster.ssh.command=[{fake}]"])
        code, answers, last = far.finish()
        self.assertEqual(code, 0, last)
        self.assertEqual(without_times(answers), without_times([json.loads(run.out)]))
        self.assertEqual(far.leftovers(), [])

    def test_takes_an_agent_as_a_node(self):
        token = f"/tmp/di-e2e-{os.getpid()}.token"
        run = self.start(TWO_NODES, [HEN], "--token-file", token, sets=["cluster.launcher=agent"])
        agent = subprocess.Popen([DILAUNCH, "agent", "--token-file", token], env=dict(os.environ, XDG_RUNTIME_DIR=run.runtime), stderr=subprocess.PIPE)
        code, answers, last = run.finish()
        self.assertEqual((code, [a["text"] for a in answers]), (0, ["A hen clucks."]), last)
        agent.communicate(timeout=20)
        self.assertEqual(agent.returncode, 0)
        self.assertFalse(os.path.exists(token))
        self.assertEqual(run.leftovers(), [])

    def test_shares_no_memory_and_no_local_sockets_between_nodes(self):
        """Each rank writes one segment, mapped by ranks of its own node only."""
        run = self.start(TWO_NODES, [HEN, *LONG])
        run.until(lambda r: b"clucks" in r.out)
        pids = run.processes()
        writers, readers = {}, {}
        for name, pid in pids.items():
            with open(f"/proc/{pid}/maps") as f:
                for line in f:
                    words = line.split()
                    if words[1][3] == "s" and "di-send" in line:
                        (writers if words[1][1] == "w" else readers).setdefault(words[4], []).append(name)
        segments = {i for i, names in writers.items()}
        self.assertEqual(sorted(names for names in writers.values()), [[f"rank {r}"] for r in range(4)])
        for inode in segments:
            nodes = {name in ("rank 0", "rank 1") for name in writers[inode] + readers.get(inode, [])}
            self.assertEqual(len(nodes), 1, (writers[inode], readers.get(inode)))
        sockets = [f for _, _, files in os.walk(run.runtime) for f in files if f.endswith(".sock")]
        self.assertEqual(sockets, ["admin.sock"])  # of dilaunch itself
        run.p.send_signal(signal.SIGINT)
        run.until(lambda r: b"a second signal aborts" in r.err)
        run.p.send_signal(signal.SIGINT)
        run.finish(20)
        self.assertEqual(run.leftovers(pids.values()), [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=0, warnings="ignore")
