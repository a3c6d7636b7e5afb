# SPDX-License-Identifier: Apache-2.0
"""Starts `dilaunch up` for tests and speaks HTTP to it with the standard library alone."""
import glob
import http.client
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


class Event:
    """One server-sent event."""

    def __init__(self):
        self.id, self.name, self.data = None, None, None

    def json(self):
        return json.loads(self.data)


class Stream:
    """The events of one answer, one after the other, as they come."""

    def __init__(self, connection, response):
        self.connection, self.response, self.status, self.headers = connection, response, response.status, response.headers
        self.comments = 0

    def __iter__(self):
        now = Event()
        while line := self.response.readline():
            line = line.decode().rstrip("\n")
            if line.startswith(":"):
                self.comments += 1
            elif line.startswith("id: "):
                now.id = line[4:]
            elif line.startswith("event: "):
                now.name = line[7:]
            elif line.startswith("data: "):
                now.data = line[6:] if now.data is None else now.data + "\n" + line[6:]
            elif not line:
                if now.data is not None:
                    yield now
                now = Event()

    def close(self):
        """As a client that dies: no more is read, the socket goes."""
        self.response.close()
        self.connection.close()


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    def json(self):
        return json.loads(self.body)


class Served:
    """One `dilaunch up` on free ports, with test hooks; a context manager that ends it."""

    def __init__(self, dilaunch, topology, sets=(), seconds=60, args=()):
        self.home = tempfile.mkdtemp(prefix="di-serve-")
        self.runtime = self.home + "/r"
        os.mkdir(self.runtime, 0o700)
        self.dilaunch, self.env = dilaunch, dict(os.environ, XDG_RUNTIME_DIR=self.runtime)
        command = [dilaunch, "up", "--topology", topology, *args]
        for s in ("cluster.ports.http=0", "cluster.ports.admin=0", "gateway.test_hooks=true", *sets):
            command += ["--set", s]
        self.err = open(self.home + "/stderr", "w+b")
        self.p = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.err)
        self.line = self._first_line(seconds)
        ports = [int(p) for p in re.findall(r"https?://[^ :]+:(\d+)", self.line)]
        expect(len(ports) >= 2, f"no ports in {self.line!r}")
        self.ports, self.admin_port = ports[:-1], ports[-1]

    def _first_line(self, seconds):
        end, line = time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            ready = select.select([self.p.stdout], [], [], max(end - time.monotonic(), 0))[0]
            block = os.read(self.p.stdout.fileno(), 65536) if ready else b""
            if not block:
                self.p.kill()
                raise AssertionError(f"it does not serve\nstderr: {self.log()}")
            line += block
        return line.decode()

    def log(self):
        with open(self.home + "/stderr", errors="replace") as f:
            return f.read()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
            try:
                self.p.wait(20)
            except subprocess.TimeoutExpired:
                self.p.send_signal(signal.SIGTERM)
                try:
                    self.p.wait(20)
                except subprocess.TimeoutExpired:
                    self.p.kill()
        if kind is not None:
            print(self.log()[-20000:])
        self.p.stdout.close()
        self.err.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def processes(self):
        """{"gateway 0": pid, "rank 0": pid, "control": pid} of its children."""
        found = {}
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(path) as f:
                    pid, rest = f.read().split(" (", 1)
                with open(f"/proc/{pid}/cmdline") as f:
                    words = f.read().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(rest.rsplit(") ", 1)[1].split()[1]) == self.p.pid and len(words) > 3 and words[1] == "child":
                found["control" if words[2] == "control" else f"{words[2]} {words[3]}"] = int(pid)
        return found

    def say(self, *words):
        """Output of another `dilaunch` command about this run."""
        r = subprocess.run([self.dilaunch, *words], env=self.env, capture_output=True, text=True, timeout=60)
        expect(r.returncode == 0, f"{words}: exit code {r.returncode}, {r.stdout}{r.stderr}")
        return r.stdout

    def connect(self, gateway=0, seconds=60):
        return http.client.HTTPConnection("localhost", self.ports[gateway], timeout=seconds)

    def ask(self, method, path, body=None, headers=None, gateway=0):
        c = self.connect(gateway)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            return Answer(c.getresponse())
        finally:
            c.close()

    def post(self, path, body, headers=None, gateway=0):
        return self.ask("POST", path, body, headers, gateway)

    def stream(self, path, body, headers=None, gateway=0):
        c = self.connect(gateway)
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        return Stream(c, c.getresponse())

    def metrics(self):
        """{'name{labels}': value} of the public listener."""
        found = {}
        for line in self.ask("GET", "/metrics").body.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found

    def until(self, what, done, seconds=20):
        end = time.monotonic() + seconds
        while not (found := done()):
            expect(time.monotonic() < end, f"waited {seconds} s: {what}")
            time.sleep(0.02)
        return found


def text_of(events, choice=0, field="content"):
    """Joined deltas of one choice of a chat stream."""
    out = ""
    for e in events:
        if e.data != "[DONE]":
            for c in e.json().get("choices", []):
                if c["index"] == choice:
                    out += c["delta"].get(field) or ""
    return out
