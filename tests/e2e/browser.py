# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for tests, spoken to over its debugging socket: the standard library is enough."""
import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request


class Browser:
    """One page, with a profile of its own; it resolves no name but those of this machine."""

    def __init__(self, width=1360, height=1180):
        self.home = tempfile.mkdtemp(prefix="di-browser-")
        self.p = subprocess.Popen([shutil.which("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                                   "--no-first-run", "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
                                   "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", f"--window-size={width},{height}",
                                   f"--user-data-dir={self.home}", "about:blank"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = self.until(self._port, 60)
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30))
        where = next(p for p in pages if p["type"] == "page")["webSocketDebuggerUrl"]
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {where.split(str(port), 1)[1]} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.file = self.socket.makefile("rb")
        while self.file.readline().strip():
            pass
        self.number, self.events = 0, []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def _port(self):
        try:
            with open(self.home + "/DevToolsActivePort") as f:
                return int(f.readline())
        except (OSError, ValueError):
            return None

    @staticmethod
    def until(done, seconds):
        end = time.monotonic() + seconds
        while not (got := done()):
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds} s")
            time.sleep(0.05)
        return got

    def _receive(self):
        text = b""
        while True:
            first, length = self.file.read(2)
            length &= 127
            if length == 126:
                length = struct.unpack(">H", self.file.read(2))[0]
            elif length == 127:
                length = struct.unpack(">Q", self.file.read(8))[0]
            text += self.file.read(length)
            if first & 128:
                return json.loads(text)

    def call(self, method, **params):
        """The result of one command; what happens meanwhile is kept in `events`."""
        self.number += 1
        data = json.dumps({"id": self.number, "method": method, "params": params}).encode()
        mask = os.urandom(4)
        size = bytes([128 | len(data)]) if len(data) < 126 else bytes([254]) + struct.pack(">H", len(data))
        self.socket.sendall(b"\x81" + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))
        while True:
            m = self._receive()
            if m.get("id") == self.number:
                if "error" in m:
                    raise AssertionError(f"{method}: {m['error']}")
                return m["result"]
            self.events.append(m)

    def open(self, url):
        self.call("Page.navigate", url=url)

    def ask(self, script):
        """The value of an expression on the page."""
        r = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in r:
            raise AssertionError(f"{script}: {r['exceptionDetails']}")
        return r["result"].get("value")

    def wait_for(self, script, seconds=60):
        return self.until(lambda: self.ask(script), seconds)

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def asked(self):
        """URLs that the page asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def complaints(self):
        """What scripts threw and what the browser refused."""
        return [e for e in self.events if e.get("method") == "Runtime.exceptionThrown" or (e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] == "error")]

    def close(self):
        self.p.terminate()
        try:
            self.p.wait(20)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        shutil.rmtree(self.home, ignore_errors=True)
