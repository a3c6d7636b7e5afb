# SPDX-License-Identifier: Apache-2.0
"""Starts `dilaunch run` for tests: waits with deadlines, knows its processes, finds what it left behind."""
import atexit
import glob
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def chat(text):
    return f"<｜begin▁of▁sentence｜><｜User｜>{text}<｜Assistant｜></think>"


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def segments():
    """Shared memory of the machine that is ours by name."""
    return set(glob.glob("/dev/shm/di-*"))


def needed(**packages):
    """Fails with words if a program is missing: needed(promtool="prometheus")."""
    missing = [f"{program} (package {package} of launch/packages.txt)" for program, package in packages.items() if not shutil.which(program)]
    if missing:
        raise AssertionError(f"this test needs {', '.join(missing)}")


class Home:
    """One launcher with a folder and a runtime folder of its own; nothing of it outlives the test."""

    def __init__(self):
        self.home = tempfile.mkdtemp(prefix="di-e2e-")
        self.runtime = self.home + "/r"
        os.mkdir(self.runtime, 0o700)
        self.env = dict(os.environ, XDG_RUNTIME_DIR=self.runtime)
        self.shared = segments()
        self.p = None
        atexit.register(self.discard)

    def start(self, command, stderr):
        self.p = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr)

    def processes(self):
        """{"rank 0": pid, ...} of this run, over all its node processes."""
        found, parents = {}, {self.p.pid}
        for _ in range(3):
            for path in glob.glob("/proc/[0-9]*/stat"):
                try:
                    with open(path) as f:
                        pid, rest = f.read().split(" (", 1)
                    with open(f"/proc/{pid}/cmdline") as f:
                        words = f.read().split("\0")
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if int(rest.rsplit(") ", 1)[1].split()[1]) in parents:
                    parents.add(int(pid))
                    if len(words) > 3 and words[1] == "child":
                        found["control" if words[2] == "control" else f"{words[2]} {words[3]}"] = int(pid)
                    elif len(words) > 1 and words[1] == "node":
                        found["node " + words[3]] = int(pid)
        return found

    def still_there(self):
        """Pids of all that runs in the environment of this run, whoever their parent is now."""
        mark, found = f"XDG_RUNTIME_DIR={self.runtime}\0".encode(), []
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(path, "rb") as f:
                    if mark in f.read():
                        found.append(int(path.split("/")[2]))
            except OSError:
                continue
        return found

    def leftovers(self, pids=()):
        return [p for p in pids if alive(p)] + glob.glob(self.runtime + "/*") + sorted(segments() - self.shared)

    def discard(self):
        """Kills what runs and deletes the folder, whatever is left."""
        if self.p is not None and self.p.poll() is None:
            self.p.kill()
            self.p.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def remove(self):
        """The same, but no process may be left, and no file or shared memory of a launcher that ended by itself."""
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()
        end = time.monotonic() + 20
        while (left := self.still_there()) and time.monotonic() < end:
            time.sleep(0.02)
        if self.p.returncode >= 0:
            left += self.leftovers()
        self.discard()
        if left:
            raise AssertionError(f"left behind: {left}")


class Run(Home):
    """One run. `lines` are requests (or raw text); stdout are the answers."""

    def __init__(self, dilaunch, topology, lines, args=(), sets=()):
        super().__init__()
        self.prompts = self.home + "/prompts.jsonl"
        with open(self.prompts, "w") as f:
            for line in lines:
                f.write((line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n")
        command = [dilaunch, "run", "--topology", topology, "--prompts", self.prompts, *args]
        for s in sets:
            command += ["--set", s]
        self.start(command, subprocess.PIPE)
        self.out, self.err = b"", b""

    def until(self, done, seconds=60):
        """Reads stdout and stderr until done(self)."""
        end = time.monotonic() + seconds
        while not done(self):
            left = end - time.monotonic()
            ready = select.select([self.p.stdout, self.p.stderr], [], [], max(left, 0))[0]
            if not ready:
                raise AssertionError(f"waited {seconds} s\nstdout: {self.out.decode()}\nstderr: {self.err.decode()}")
            for stream in ready:
                block = os.read(stream.fileno(), 65536)
                if not block and stream is self.p.stdout:
                    raise AssertionError(f"ended early\nstdout: {self.out.decode()}\nstderr: {self.err.decode()}")
                if stream is self.p.stdout:
                    self.out += block
                else:
                    self.err += block

    def finish(self, seconds=120):
        """(exit code, answers as parsed lines, last line of stderr)"""
        out, err = self.p.communicate(timeout=seconds)
        self.out += out
        self.err += err
        text = self.err.decode().strip()
        return self.p.returncode, [json.loads(line) for line in self.out.decode().splitlines()], text.splitlines()[-1] if text else ""


def without_times(answers):
    """What must be the same bytes whatever the cluster: all but the timings."""
    return [json.dumps({k: v for k, v in a.items() if k != "timings"} | {"choices": [{k: v for k, v in c.items() if k != "timings"} for c in a.get("choices", [])]}, ensure_ascii=False, sort_keys=True) for a in answers]
