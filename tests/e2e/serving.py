# SPDX-License-Identifier: Apache-2.0
"""Starts `dilaunch up` for tests, on free ports, and speaks HTTP with it."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.parse

from cluster_run import Run


class Up(Run):
    """One serving run. `http_port` and `admin_port` are known once `wait_ready()` returned (`sets` may fix them)."""

    def __init__(self, dilaunch, topology, args=(), sets=(), ready=True, runtime=None):
        self.dilaunch = dilaunch
        self.url = self.admin = None
        super().__init__(dilaunch, topology, (), args, ("cluster.ports.http=0", "cluster.ports.admin=0", *sets), verb="up")
        if ready:
            self.wait_ready()

    def wait_ready(self, seconds=60):
        """Waits for the line on standard output that says where it serves."""
        self.until(lambda r: b"\n" in r.out, seconds)
        line = self.out.decode()
        self.urls = re.findall(r"https?://[^ ]+", line.split("(", 1)[0])
        self.url = self.urls[0]
        self.admin = re.search(r"operators: ([^;]+);", line).group(1)
        self.http_port = urllib.parse.urlsplit(self.url).port
        self.admin_port = urllib.parse.urlsplit(self.admin).port

    def ask(self, method, path, body=None, headers=None, port=None, seconds=60):
        """(status, headers, parsed body or text) of one request on a connection of its own."""
        c = http.client.HTTPConnection("127.0.0.1", port or self.http_port, timeout=seconds)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            c.request(method, path, data, {"content-type": "application/json", **(headers or {})})
            r = c.getresponse()
            text = r.read().decode()
            try:
                return r.status, dict((k.lower(), v) for k, v in r.getheaders()), json.loads(text)
            except ValueError:
                return r.status, dict((k.lower(), v) for k, v in r.getheaders()), text
        finally:
            c.close()

    def chat(self, text="Tell a story.", **fields):
        return self.ask("POST", "/v1/chat/completions", chat_body(text, **fields))

    def say(self, *words, code=0):
        """Output of another `dilaunch` command about this run."""
        r = subprocess.run([self.dilaunch, *words], env=dict(os.environ, XDG_RUNTIME_DIR=self.runtime), capture_output=True, text=True, timeout=120)
        if r.returncode != code:
            raise AssertionError(f"{words}: exit code {r.returncode}, {r.stdout}{r.stderr}")
        return (r.stdout + r.stderr).strip()

    def end(self, number=signal.SIGTERM, seconds=60):
        """(exit code, last line of stderr) after a signal; 0: none is sent."""
        if number:
            self.p.send_signal(number)
        out, err = self.p.communicate(timeout=seconds)
        self.out += out
        self.err += err
        lines = self.err.decode().strip().splitlines()
        return self.p.returncode, lines[-1] if lines else ""


def chat_body(text, **fields):
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 16, "temperature": 0, "thinking": {"type": "disabled"}, **fields}


class Stream:
    """A server-sent stream, event by event. `events`: [(id, name, data text)]"""

    def __init__(self, up, path="/v1/chat/completions", body=None, headers=None, port=None, method="POST"):
        self.socket = socket.create_connection(("127.0.0.1", port or up.http_port), timeout=60)
        data = b"" if body is None else json.dumps(dict(body, stream=True)).encode()
        head = {"host": "localhost", "content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        self.socket.sendall(f"{method} {path} HTTP/1.1\r\n".encode() + "".join(f"{k}: {v}\r\n" for k, v in head.items()).encode() + b"\r\n" + data)
        self.response = http.client.HTTPResponse(self.socket)
        self.response.begin()
        self.events, self.rest = [], b""

    def next(self):
        """The next event's data, or None at the end of the stream."""
        name = number = None
        data = []
        while True:
            line = self.response.readline()
            if not line:
                return None
            line = line.rstrip(b"\r\n").decode()
            if line.startswith("data: "):
                data.append(line[6:])
            elif line.startswith("event: "):
                name = line[7:]
            elif line.startswith("id: "):
                number = line[4:]
            elif not line and data:
                self.events.append((number, name, "\n".join(data)))
                return self.events[-1][2]

    def rest_of_it(self):
        while self.next() is not None:
            pass
        return self.events

    def text(self):
        """What a chat stream said so far."""
        out = ""
        for _, _, data in self.events:
            if data != "[DONE]":
                for c in json.loads(data).get("choices", []):
                    out += c["delta"].get("content") or ""
        return out

    def close(self):
        self.response.close()
        self.socket.close()


def until(done, seconds=30, every=0.05):
    """Asks done() until it says something true, and returns that."""
    end = time.monotonic() + seconds
    while not (got := done()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {done}")
        time.sleep(every)
    return got
