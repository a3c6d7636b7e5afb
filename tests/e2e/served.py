# SPDX-License-Identifier: Apache-2.0
"""Starts `dilaunch up` for tests and speaks HTTP to it with the standard library alone."""
import http.client
import json
import os
import re
import select
import signal
import subprocess
import time
import urllib.parse

from cluster_run import Home


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def until(done, seconds=30, what="", every=0.02):
    """Asks done() until it says something true, and returns that."""
    end = time.monotonic() + seconds
    while not (got := done()):
        expect(time.monotonic() < end, f"waited {seconds} s: {what or done}")
        time.sleep(every)
    return got


class Event:
    """One server-sent event."""

    def __init__(self):
        self.id, self.name, self.data = None, None, None

    def json(self):
        return json.loads(self.data)


class Stream:
    """The events of one answer, one after the other, as they come; `events` are those that came."""

    def __init__(self, connection, response):
        self.connection, self.response, self.status, self.headers = connection, response, response.status, response.headers
        self.comments, self.events = 0, []

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
                    self.events.append(now)
                    yield now
                now = Event()

    def next(self):
        """The next event, or None at the end of the stream."""
        return next(iter(self), None)

    def rest(self):
        """All events, once the stream has ended."""
        for _ in self:
            pass
        return self.events

    def close(self):
        """As a client that dies: no more is read, the socket goes."""
        self.response.close()
        self.connection.close()


class Answer:
    """Of one request; unpacks to (status, headers, parsed body or text)."""

    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    def json(self):
        return json.loads(self.body)

    def __iter__(self):
        try:
            shown = self.json()
        except ValueError:
            shown = self.body.decode()
        return iter((self.status, self.headers, shown))


class Served(Home):
    """One `dilaunch up` on free ports, with test hooks. As a context manager it ends politely and must leave nothing behind."""

    def __init__(self, dilaunch, topology, sets=(), seconds=60, args=(), ready=True, env=None):
        super().__init__()
        self.env.update(env or {})
        self.dilaunch, self.ports, self.admin_port = dilaunch, [], None
        command = [dilaunch, "up", "--topology", topology, *args]
        for s in ("cluster.ports.http=0", "cluster.ports.admin=0", "gateway.test_hooks=true", *sets):
            command += ["--set", s]
        with open(self.home + "/stderr", "wb") as err:
            self.start(command, err)
        if ready:
            self.wait_ready(seconds)

    def wait_ready(self, seconds=60):
        """Waits for the line on standard output that says where it serves."""
        end, line = time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            ready = select.select([self.p.stdout], [], [], max(end - time.monotonic(), 0))[0]
            block = os.read(self.p.stdout.fileno(), 65536) if ready else b""
            if not block:
                said = self.log()
                self.discard()
                raise AssertionError(f"it does not serve\nstderr: {said}")
            line += block
        self.line = line.decode()
        self.urls = re.findall(r"https?://[^ ]+", self.line.split("(", 1)[0])
        self.admin = re.search(r"operators: ([^;]+);", self.line).group(1)
        self.url = self.urls[0]
        self.ports = [urllib.parse.urlsplit(u).port for u in self.urls]
        self.admin_port = urllib.parse.urlsplit(self.admin).port

    def log(self):
        with open(self.home + "/stderr", errors="replace") as f:
            return f.read()

    def until_said(self, *words, seconds=10):
        """Waits for one line of the log with all these words."""
        until(lambda: any(all(w in line for w in words) for line in self.log().splitlines()), seconds, words)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(self.log()[-20000:])
            return self.discard()
        if self.p.poll() is None:
            code = self.end_politely()
            expect(code == 0, f"exit code {code}: {self.log()[-4000:]}")
        self.remove()

    def end_politely(self):
        """Exit code after a SIGTERM. Nothing is open any more: it ends at once."""
        self.p.send_signal(signal.SIGTERM)
        return self.p.wait(20)

    def end(self, number=signal.SIGTERM, seconds=60):
        """(exit code, last line of stderr) after a signal; 0: none is sent."""
        if number:
            self.p.send_signal(number)
        self.p.wait(seconds)
        lines = self.log().strip().splitlines()
        return self.p.returncode, lines[-1] if lines else ""

    def say(self, *words):
        """Output of another `dilaunch` command about this run."""
        r = subprocess.run([self.dilaunch, *words], env=self.env, capture_output=True, text=True, timeout=60)
        expect(r.returncode == 0, f"{words}: exit code {r.returncode}, {r.stdout}{r.stderr}")
        return (r.stdout + r.stderr).strip()

    def connect(self, gateway=0, seconds=60, port=None):
        return http.client.HTTPConnection("localhost", port or self.ports[gateway], timeout=seconds)

    def ask(self, method, path, body=None, headers=None, gateway=0, port=None):
        """One request on a connection of its own."""
        c = self.connect(gateway, port=port)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            return Answer(c.getresponse())
        finally:
            c.close()

    def post(self, path, body, headers=None, gateway=0):
        return self.ask("POST", path, body, headers, gateway)

    def chat(self, text="Tell a story.", **fields):
        return self.post("/v1/chat/completions", chat_body(text, **fields))

    def stream(self, path, body=None, headers=None, gateway=0, port=None):
        """With a body it is posted as it is: `stream` must stand in it."""
        c = self.connect(gateway, port=port)
        c.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        return Stream(c, c.getresponse())

    def chat_stream(self, text="Tell a story.", **fields):
        return self.stream("/v1/chat/completions", chat_body(text, stream=True, **fields))

    def metrics(self):
        """{'name{labels}': value} of the public listener."""
        found = {}
        for line in self.ask("GET", "/metrics").body.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found

    def until(self, what, done, seconds=20):
        return until(done, seconds, what)


def chat_body(text, **fields):
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 16, "temperature": 0, "thinking": {"type": "disabled"}, **fields}


def text_of(events, choice=0, field="content"):
    """Joined deltas of one choice of a chat stream."""
    out = ""
    for e in events:
        if e.data != "[DONE]":
            for c in e.json().get("choices", []):
                if c["index"] == choice:
                    out += c["delta"].get(field) or ""
    return out
