# SPDX-License-Identifier: Apache-2.0
"""Real processes without actors: how runs start, end and clean up. Usage: cluster_test.py FAKE_LAUNCH SOURCE_DIR"""
import glob
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

FAKE, SOURCE = sys.argv[1], sys.argv[2]
LOCAL4 = f"{SOURCE}/launch/topologies/local4.yaml"
TWO_NODES = f"{SOURCE}/launch/topologies/two_nodes.yaml"


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Run:
    """A started run; reads stderr line by line with deadlines."""

    def __init__(self, act, topology=LOCAL4, sets=()):
        self.home = tempfile.mkdtemp(prefix="dit")
        self.token = self.home + ".token"
        env = dict(os.environ, DI_FAKE=act, XDG_RUNTIME_DIR=self.home, DI_TOKEN=self.token)
        self.p = subprocess.Popen([FAKE, "run", topology, *sets], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.act = act
        self.text = ""
        self.pids = {}

    def until(self, done, seconds=30):
        end = time.monotonic() + seconds
        while not done(self):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.p.stderr], [], [], left)[0]:
                raise AssertionError(f"waited {seconds} s; so far:\n{self.text}")
            block = os.read(self.p.stderr.fileno(), 65536).decode()
            if not block:
                raise AssertionError(f"ended early:\n{self.text}")
            self.text += block
            for name, pid in re.findall(r"\[(.+?)\] pid (\d+)", self.text):
                self.pids[name] = int(pid)

    def all_started(self, ranks=4):
        self.until(lambda r: len(r.pids) == ranks + 1)

    def finish(self, seconds=30):
        out, err = self.p.communicate(timeout=seconds)
        self.text += err.decode()
        for name, pid in re.findall(r"\[(.+?)\] pid (\d+)", self.text):
            self.pids[name] = int(pid)
        return self.p.returncode, out.decode(), self.text.strip().splitlines()[-1] if self.text.strip() else ""

    def leftovers(self):
        return [p for p in self.pids.values() if alive(p)] + glob.glob(self.home + "/*")


class ClusterTest(unittest.TestCase):
    def clean(self, run):
        self.assertEqual(run.leftovers(), [])

    def test_gives_the_control_process_s_answer_and_code(self):
        for act, code in (("control=print", 0), ("control=exit5", 5)):
            run = Run(act)
            got, out, _ = run.finish()
            self.assertEqual(got, code)
            self.assertEqual(out, "answer\n" if code == 0 else "")
            self.clean(run)

    def formed(self, act, topology=LOCAL4, sets=()):
        run = Run(act, topology, sets)
        run.until(lambda r: "all 5 processes are ready" in r.text)
        run.all_started()
        return run

    def test_tells_control_of_a_dead_rank_and_ends_when_control_gives_up(self):
        for topology, node in (LOCAL4, 0), (TWO_NODES, 1):
            run = self.formed("control=quit:nobody is left", topology)
            began = time.monotonic()
            os.kill(run.pids["rank 3"], signal.SIGKILL)
            code, _, last = run.finish()
            self.assertLess(time.monotonic() - began, 2.0)
            self.assertEqual((code, last), (3, "dilaunch: control: nobody is left (exit code 3)"))
            lost = run.text.find(f"heard rank_lost node {node} rank 3")
            exited = run.text.find(f"heard rank_exited node {node} rank 3 signal 9")
            self.assertTrue(0 < lost < exited, run.text)
            self.assertRegex(run.text, r"rank 3 \(pid \d+\): killed by signal 9 \(Killed\)")
            self.clean(run)

    def test_starts_a_dead_rank_again_when_control_says_so(self):
        for topology in (LOCAL4, TWO_NODES):
            run = self.formed("control=keep:4", topology)
            pids = dict(run.pids)
            for life in range(2, 6):
                os.kill(run.pids["rank 3"], signal.SIGKILL)
                if life < 5:
                    run.until(lambda r: f"rank 3 starts again, life {life} of it" in r.text and len(re.findall(r"\[rank 3\] pid", r.text)) == life)
            code, _, last = run.finish()
            self.assertEqual(code, 0, last)
            self.assertEqual(run.pids["rank 0"], pids["rank 0"])
            self.assertNotEqual(run.pids["rank 3"], pids["rank 3"])
            self.clean(run)

    def test_says_again_that_a_life_is_gone_when_control_wants_it_dead(self):
        """A control process that was away when a rank ended would fence it for ever."""
        for topology in (LOCAL4, TWO_NODES):
            run = self.formed("control=fence", topology)
            os.kill(run.pids["rank 3"], signal.SIGKILL)
            run.until(lambda r: "rank 3 signal 9: rank 3: this life is gone" in r.text)
            self.assertEqual(run.text.count("heard rank_lost"), 1)
            run.p.send_signal(signal.SIGTERM)
            run.p.send_signal(signal.SIGTERM)
            run.finish()
            self.clean(run)

    def test_leaves_nothing_behind_after_many_lives(self):
        """A rank dies and comes back 40 times: the launcher holds as many descriptors and threads as after the first."""
        run = self.formed("control=keep:40")
        held = []
        for life in range(2, 42):
            os.kill(run.pids["rank 3"], signal.SIGKILL)
            if life == 41:
                break
            run.until(lambda r: len(re.findall(r"\[rank 3\] pid", r.text)) == life)
            if life in (2, 3, 39, 40):
                held.append([len(os.listdir(f"/proc/{run.p.pid}/{what}")) for what in ("fd", "task")])
                held[-1].append(len(glob.glob(run.home + "/di-*/*.sock")))
        code, _, last = run.finish()
        self.assertEqual(code, 0, last)
        self.assertEqual(held[-1], held[0], held)
        self.clean(run)

    def test_starts_control_again_and_tells_the_ranks_that_live(self):
        run = self.formed("control=tell", TWO_NODES)
        os.kill(run.pids["rank 1"], signal.SIGKILL)
        run.until(lambda r: "rank 1 signal 9" in r.text)
        for life in range(2, 5):
            os.kill(run.pids["control"], signal.SIGKILL)
            run.until(lambda r: f"recovering lives {life - 1} ranks 0 2 3" in r.text)
        os.kill(run.pids["control"], signal.SIGKILL)
        code, _, last = run.finish()
        self.assertEqual(code, 3)
        self.assertRegex(last, r"control \(pid \d+\): killed by signal 9 .*; it was the 4th time in 10 min")
        self.clean(run)

    def test_a_stopped_control_process_is_killed_and_started_again(self):
        run = self.formed("control=tell")
        os.kill(run.pids["control"], signal.SIGSTOP)
        run.until(lambda r: "recovering lives 1 ranks 0 1 2 3" in r.text)
        self.assertRegex(run.text, r"control was stopped by a signal for \d{4} ms: killed")
        run.p.send_signal(signal.SIGINT)
        run.p.send_signal(signal.SIGINT)
        run.finish()
        self.clean(run)

    def test_a_short_pause_of_the_control_process_is_no_death(self):
        run = self.formed("control=tell")
        os.kill(run.pids["control"], signal.SIGSTOP)
        time.sleep(0.3)  # the pause itself
        os.kill(run.pids["control"], signal.SIGCONT)
        os.kill(run.pids["rank 3"], signal.SIGKILL)
        run.until(lambda r: "heard rank_exited node 0 rank 3" in r.text)
        self.assertNotIn("was stopped", run.text)
        run.p.send_signal(signal.SIGINT)
        run.p.send_signal(signal.SIGINT)
        run.finish()
        self.clean(run)

    def test_nobody_who_reads_standard_error_holds_up_a_run(self):
        for topology, noisy in (LOCAL4, "rank 1"), (TWO_NODES, "rank 3"):
            run = self.formed(f"{noisy}=noise,control=quit:nobody is left", topology)
            os.kill(run.pids["rank 2"], signal.SIGKILL)
            self.assertEqual(run.p.wait(30), 3)  # its pipe is full all the time
            run.finish()
            self.clean(run)

    def test_a_lost_node_is_the_loss_of_its_ranks(self):
        for number in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(number=number):
                self.lose_node(number)

    def lose_node(self, number):
        run = self.formed("control=tell", TWO_NODES)
        os.kill(self.node_of(run), number)
        run.until(lambda r: "rank 3 signal 9" in r.text)
        self.assertEqual("silent for longer than its lease" in run.text, number == signal.SIGSTOP)
        self.assertIn("heard node_lost node 1", run.text)
        for rank in (2, 3):
            self.assertIn(f"heard rank_lost node 1 rank {rank}", run.text)
        self.assertTrue(alive(run.pids["rank 0"]) and alive(run.pids["rank 1"]))
        run.until(lambda r: "heard node_there node 1" in r.text)  # started again
        self.assertFalse(alive(run.pids["rank 2"]) or alive(run.pids["rank 3"]))
        self.assertEqual(run.text.count("heard node_lost"), 1)
        run.p.send_signal(signal.SIGTERM)
        run.p.send_signal(signal.SIGTERM)
        run.finish()
        self.clean(run)

    def node_of(self, run):
        pids = subprocess.run(["pgrep", "-P", str(run.p.pid)], capture_output=True, text=True).stdout.split()
        node = [int(p) for p in pids if b"node\0--index" in open(f"/proc/{p}/cmdline", "rb").read()]
        self.assertEqual(len(node), 1)
        return node[0]

    def test_ends_within_2_s_although_a_rank_ignores_signals(self):
        run = self.formed("rank 0=stubborn,control=quit:it is over")
        began = time.monotonic()
        os.kill(run.pids["rank 2"], signal.SIGKILL)
        code, _, last = run.finish()
        self.assertLess(time.monotonic() - began, 2.0)
        self.assertEqual(code, 3)
        self.assertIn("it is over", last)
        self.clean(run)

    def test_repeats_what_a_failing_process_said(self):
        run = Run("rank 1=fail:no such model")
        code, _, last = run.finish()
        self.assertEqual((code, last), (3, "dilaunch: rank 1: no such model (exit code 3)"))
        self.clean(run)

    def test_reports_a_crash_and_an_unexpected_end(self):
        run = Run("rank 0=mute,rank 1=segv")
        code, _, last = run.finish()
        self.assertEqual(code, 3)
        self.assertIn("killed by signal 11", last)
        run = Run("rank 0=mute,rank 2=exit0")
        code, _, last = run.finish()
        self.assertEqual(code, 3)
        self.assertRegex(last, r"rank 2 \(pid \d+\): exit code 0")

    def test_gives_up_when_a_process_is_not_ready_in_time(self):
        run = Run("rank 3=mute", sets=["cluster.start_timeout=2s"])
        code, _, last = run.finish()
        self.assertEqual((code, last), (3, "dilaunch: not ready within 2s (cluster.start_timeout): rank 3"))
        self.clean(run)

    def test_leaves_no_orphan_when_the_node_process_is_killed(self):
        for topology in (LOCAL4, TWO_NODES):
            run = Run("", topology)
            run.all_started()
            run.p.kill()
            run.p.wait()
            end = time.monotonic() + 20
            while any(alive(p) for p in run.pids.values()):
                self.assertLess(time.monotonic(), end, "orphans live")
                select.select([], [], [], 0.01)
            # What it could not remove, the next run removes.
            self.assertNotEqual(glob.glob(run.home + "/di-*"), [])
            env = dict(os.environ, DI_FAKE="control=print", XDG_RUNTIME_DIR=run.home)
            subprocess.run([FAKE, "run", LOCAL4], env=env, check=True, capture_output=True, timeout=60)
            self.assertEqual(glob.glob(run.home + "/*"), [])

    def test_stops_at_once_before_it_is_ready(self):
        run = Run("rank 3=deaf")
        run.all_started()
        run.p.send_signal(signal.SIGTERM)
        code, _, last = run.finish(20)
        self.assertEqual((code, last), (3, "dilaunch: stopped by signal 15 before all processes were ready"))
        self.clean(run)

    def test_drains_at_the_first_signal_and_aborts_at_the_second(self):
        run = Run("control=stubborn")
        run.all_started()
        run.until(lambda r: "all 5 processes are ready" in r.text)
        run.p.send_signal(signal.SIGINT)
        run.until(lambda r: "a second signal aborts" in r.text)
        run.p.send_signal(signal.SIGINT)
        code, _, last = run.finish(20)
        self.assertEqual((code, last), (3, "dilaunch: aborted by signal 2"))
        self.clean(run)

    def test_ends_when_a_node_process_is_killed(self):
        run = Run("rank 0=deaf", TWO_NODES)  # before all are ready
        run.all_started()
        os.kill(self.node_of(run), signal.SIGKILL)
        code, _, last = run.finish(20)
        self.assertEqual(code, 3)
        self.assertIn("node process 1", last)
        self.clean(run)

    def test_starts_nodes_through_ssh(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = folder + "/ssh"
            with open(fake, "w") as f:
                f.write('#!/bin/sh\necho "$@" >>"$0.log"\nshift 3\nexec sh -c "$*"\n')
            os.chmod(fake, 0o755)
            run = Run("control=print", TWO_NODES, ["cluster.launcher=ssh", f"cluster.ssh.command=[{fake}, -o, BatchMode=yes]"])
            code, out, last = run.finish()
            self.assertEqual((code, out), (0, "answer\n"), last)
            self.assertRegex(open(fake + ".log").read(), r"^-o BatchMode=yes localhost exec '/.*fake_launch' node --index 1\n$")
            self.clean(run)

    def test_goes_on_without_a_node_that_cannot_start_again(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = folder + "/ssh"
            refusal = json.dumps({"report": "failed", "name": "", "text": "no room here", "code": 0, "signal": 0, "host": "", "cores": 0})
            with open(fake, "w") as f:
                f.write(f"#!/bin/sh\n[ -e $0.again ] && echo '{refusal}' && exit 3\ntouch $0.again\nshift 1\nexec sh -c \"$*\"\n")
            os.chmod(fake, 0o755)
            run = self.formed("control=tell", TWO_NODES, ["cluster.launcher=ssh", f"cluster.ssh.command=[{fake}]"])
            os.kill(self.node_of(run), signal.SIGKILL)
            run.until(lambda r: "no room here" in r.text and r.text.count("heard node_lost") == 2)
            self.assertTrue(alive(run.pids["rank 0"]) and alive(run.pids["control"]))
            run.p.send_signal(signal.SIGTERM)
            run.p.send_signal(signal.SIGTERM)
            run.finish()

    def test_says_what_ssh_said_when_it_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = folder + "/ssh"
            with open(fake, "w") as f:
                f.write('#!/bin/sh\necho "ssh: connect to host localhost port 22: Connection refused" >&2\nexit 255\n')
            os.chmod(fake, 0o755)
            run = Run("", TWO_NODES, ["cluster.launcher=ssh", f"cluster.ssh.command=[{fake}]"])
            code, _, last = run.finish()
            self.assertEqual(code, 3)
            self.assertRegex(last, r"node process 1 \(pid \d+\): exit code 255; its last line: ssh: connect to host localhost port 22: Connection refused \(host localhost\)")
            self.clean(run)

    def test_reports_a_program_that_cannot_start(self):
        run = Run("", TWO_NODES, ["cluster.launcher=ssh", "cluster.ssh.command=[/nowhere/ssh]"])
        code, _, last = run.finish()
        self.assertEqual(code, 3)
        self.assertIn("cannot start /nowhere/ssh: No such file or directory", last)
        self.clean(run)

    def test_keeps_keys_out_of_command_lines(self):
        run = Run("", TWO_NODES)
        run.all_started()
        for pid in run.pids.values():
            line = open(f"/proc/{pid}/cmdline").read().split("\0")
            self.assertIn("child", line)
            self.assertTrue(all(len(word) < 40 or "/" in word for word in line), line)
        run.p.send_signal(signal.SIGTERM)
        run.p.send_signal(signal.SIGTERM)
        run.finish()
        self.clean(run)

    def agent(self, run, **variables):
        env = dict(os.environ, DI_FAKE=run.act, XDG_RUNTIME_DIR=run.home, **variables)
        return subprocess.Popen([FAKE, "agent", run.token], env=env, stderr=subprocess.PIPE, text=True)

    def test_takes_agents_as_nodes(self):
        run = Run("control=quit:over", TWO_NODES, ["cluster.launcher=agent"])
        agent = self.agent(run)  # it may come before the token does
        run.all_started()
        self.assertEqual(os.stat(run.token).st_mode & 0o777, 0o600)
        run.until(lambda r: "all 5 processes are ready" in r.text)
        os.kill(run.pids["rank 3"], signal.SIGKILL)
        code, _, last = run.finish()
        self.assertEqual(code, 3)
        self.assertIn("control: over", last)
        _, err = agent.communicate(timeout=30)
        self.assertEqual((agent.returncode, err), (0, ""))
        self.assertFalse(os.path.exists(run.token))
        self.clean(run)

    def test_takes_agents_under_slurm(self):
        run = Run("", TWO_NODES, ["cluster.launcher=agent", "cluster.nodes[1].host=node17", "cluster.nodes[1].address=127.0.0.1", "cluster.nodes[0].address=127.0.0.1"])
        wrong = self.agent(run, SLURM_NODEID="7", SLURMD_NODENAME="node17")
        _, err = wrong.communicate(timeout=30)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("there is no node 7; the cluster has nodes 0 to 1", err)
        stranger = self.agent(run)
        _, err = stranger.communicate(timeout=30)
        self.assertEqual(stranger.returncode, 3)
        self.assertIn("no free node of the cluster is on host", err)
        agent = self.agent(run, SLURM_NODEID="1", SLURMD_NODENAME="node17")
        run.until(lambda r: "all 5 processes are ready" in r.text)
        self.assertIn("node 1 is there: host", run.text)
        run.p.send_signal(signal.SIGTERM)
        run.finish()
        agent.communicate(timeout=30)
        self.assertEqual(agent.returncode, 0)
        self.clean(run)

    def test_tells_of_a_killed_agent_and_ends_agents_when_the_launcher_is(self):
        run = Run("control=quit:over", TWO_NODES, ["cluster.launcher=agent"])
        agent = self.agent(run)
        run.until(lambda r: "all 5 processes are ready" in r.text)
        agent.kill()
        agent.communicate()
        code, _, last = run.finish(30)
        self.assertEqual(code, 3)
        self.assertIn("control: over", last)
        self.assertIn("heard rank_lost node 1", run.text)
        self.clean(run)
        run = Run("", TWO_NODES, ["cluster.launcher=agent"])
        agent = self.agent(run)
        run.all_started()
        run.p.kill()
        run.p.wait()
        agent.communicate(timeout=30)
        self.assertEqual(agent.returncode, 3)
        self.assertFalse([p for p in run.pids.values() if alive(p)])

    def test_takes_another_agent_in_the_place_of_one_that_was_lost(self):
        run = Run("control=tell", TWO_NODES, ["cluster.launcher=agent"])
        agents = []
        for lives in (1, 2, 3):
            agents.append(self.agent(run))
            run.until(lambda r: "all 5 processes are ready" in r.text and r.text.count("heard node_there node 1") == lives - 1)
            if lives < 3:
                agents[-1].kill()
                run.until(lambda r: r.text.count("heard node_lost node 1") == lives)
        run.p.send_signal(signal.SIGTERM)
        run.p.send_signal(signal.SIGTERM)
        run.finish()
        for agent in agents:
            agent.communicate(timeout=30)
        self.clean(run)

    def test_refuses_a_token_that_others_can_read_and_one_with_foreign_keys(self):
        run = Run("", TWO_NODES, ["cluster.launcher=agent"])
        run.until(lambda r: "waiting for 1 agents" in r.text)
        os.chmod(run.token, 0o644)
        agent = self.agent(run)
        _, err = agent.communicate(timeout=30)
        self.assertEqual(agent.returncode, 2)
        self.assertIn("has mode 644: others may read it", err)
        os.chmod(run.token, 0o600)
        other = Run("", TWO_NODES, ["cluster.launcher=agent"])
        other.until(lambda r: "waiting for 1 agents" in r.text)
        mine, theirs = json.load(open(run.token)), json.load(open(other.token))
        mine["public"], mine["secret"] = theirs["public"], theirs["secret"]
        with open(run.token, "w") as f:
            json.dump(mine, f)
        agent = self.agent(run)
        _, err = agent.communicate(timeout=30)
        self.assertEqual(agent.returncode, 3)
        self.assertRegex(err, "deadline_exceeded|peer_lost")
        for r in (run, other):
            r.p.send_signal(signal.SIGTERM)
            r.finish()
            self.clean(r)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=0, warnings="ignore")
