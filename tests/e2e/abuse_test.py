# SPDX-License-Identifier: Apache-2.0
"""Bytes that are no polite requests, on a gateway and real ranks: each is refused or served, in bounded time and memory, and others are served all the while.
From public bug reports and the list of what is worth fuzzing (doc/serving.md has the table).

abuse_test.py <dilaunch> <source folder> [NAME...]
"""
import json
import socket
import sys
import time

from served import Served, expect

dilaunch, source = sys.argv[1:3]
CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"


def asking(text="Hi.", **more):
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "thinking": {"type": "disabled"}, "max_tokens": 3, **more}


def status_of(s, body, path=CHAT, **more):
    a = s.post(path, body, **more)
    expect(a.status != 500 and len(a.body) < (1 << 20), f"{str(body)[:200]}: {a.status} {a.body[:400]}")
    a.json()
    return a.status


def lives(s):
    expect(status_of(s, asking()) == 200, "it serves no more")


class Raw:
    """A connection on which anything can be said."""

    def __init__(self, s, seconds=20):
        self.socket = socket.create_connection(("localhost", s.ports[0]), timeout=seconds)
        self.got = b""

    def say(self, data):
        self.socket.sendall(data)
        return self

    def until(self, mark):
        while mark not in self.got:
            block = self.socket.recv(65536)
            if not block:
                return self.got
            self.got += block
        return self.got

    def rest(self):
        """All until the server closes."""
        try:
            while block := self.socket.recv(65536):
                self.got += block
        except ConnectionError:
            pass
        return self.got

    def status(self):
        self.until(b"\r\n")
        return int(self.got.split()[1]) if self.got else None

    def answer(self):
        """One whole answer with a Content-Length. @return (status, body)"""
        self.until(b"\r\n\r\n")
        head, _, body = self.got.partition(b"\r\n\r\n")
        length = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")][0]
        while len(body) < length:
            block = self.socket.recv(65536)
            expect(block, f"cut: {self.got[:300]}")
            body += block
        self.got = body[length:]
        return int(head.split()[1]), body[:length]


def post(body, *headers, path=CHAT, length=None):
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    if length is not False:
        lines.append(f"Content-Length: {len(data) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def memory_mib(s):
    """[MiB] that the gateway had resident at most."""
    with open(f"/proc/{s.processes()['gateway 0']}/status") as f:
        return int(next(line for line in f if line.startswith("VmHWM")).split()[1]) / 1024


# --- lengths and bodies -------------------------------------------------------------------------

def r09_bodies_that_lie_or_are_huge(s):
    before = memory_mib(s)
    r = Raw(s).say(post(b"{", length=100 << 20))
    expect(r.status() == 413, r.got[:200])
    chunked = Raw(s).say(post(b"", "Transfer-Encoding: chunked", length=False))
    try:
        for _ in range(256):
            chunked.say(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
    except OSError:
        pass
    expect(b"413" in chunked.rest()[:40] or chunked.got == b"", chunked.got[:100])
    lying = Raw(s).say(post(b'{"model":', length=1000))
    lying.socket.shutdown(socket.SHUT_WR)
    expect(b" 200 " not in lying.rest()[:40], lying.got[:100])
    for length in ("-1", "x", "1e3", "99999999999999999999999"):
        r = Raw(s).say(post(b"{}", length=length))
        expect(r.status() in (400, 413), (length, r.got[:100]))
    two = Raw(s).say(post(b"{}", "Content-Length: 1"))
    expect(two.status() == 400, two.got[:100])
    both = Raw(s).say(post(b"0\r\n\r\n", "Transfer-Encoding: chunked"))
    expect(both.status() == 400, both.got[:100])
    expect(memory_mib(s) < before + 150, f"{before} -> {memory_mib(s)} MiB")
    lives(s)


def deep_json(s):
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        body = '{"model":"demo","messages":' + opened * 100_000 + "1" + closed * 100_000 + "}"
        expect(status_of(s, body) == 400, "too deep")
        expect(status_of(s, '{"model":"demo","input":' + opened * 100_000, path=RESPONSES) == 400, "too deep and cut")
    expect(status_of(s, {**asking(), "metadata": json.loads("[" * 30 + "]" * 30)}) in (200, 400), "deep, but not too")
    lives(s)


def odd_values(s):
    base = '{"model":"demo","messages":[{"role":"user","content":"x"}],"max_tokens":2'
    for more in (',"temperature":NaN', ',"temperature":Infinity', ',"temperature":1e400', ',"temperature":-1', ',"temperature":"1"', ',"top_p":2', ',"max_tokens":' + "9" * 400, ',"seed":-1e300',
                 ',"n":1.5', ',"logit_bias":{"x":1}', ',"logit_bias":{"1":1e9}', ',"stream":"yes"', ',"stop":{}', ',"stop":[1]', ',"tools":{}', ',"messages":null', ',"presence_penalty":99'):
        expect(status_of(s, base + more + "}") == 400, more)
    expect(status_of(s, '{"model":"demo","model":"demo","messages":[]}') == 400, "the same key twice, and no messages")
    for messages in ([], None, [{}], [[]], [None], "x", [{"role": "user"}], [{"role": "user", "content": 7}], [{"role": 1, "content": "x"}]):
        expect(status_of(s, {**asking(), "messages": messages}) == 400, messages)
    for messages in ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "And so"}], [{"role": "assistant", "content": "x"}], [{"role": "tool", "tool_call_id": "nobody", "content": "x"}],
                     [{"role": "user", "content": ""}], [{"role": "system", "content": "x"}]):
        expect(status_of(s, {**asking(), "messages": messages}) in (200, 400), messages)
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object"}}} for i in range(10_000)]
    expect(status_of(s, asking(tools=tools)) == 400, "10,000 tools")
    lives(s)


def addresses_in_images(s):
    """Nobody inside is asked for an image: no connection is made."""
    trap = socket.socket()
    trap.bind(("127.0.0.1", 0))
    trap.listen()
    trap.settimeout(0.5)
    port = trap.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}/x.png", f"http://localhost:{port}/", "http://169.254.169.254/latest/meta-data", "file:///etc/passwd", f"http://[::1]:{port}/", "gopher://x"):
        content = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": url}}]
        expect(status_of(s, {**asking(), "messages": [{"role": "user", "content": content}]}) in (200, 400), url)
        expect(status_of(s, {"model": "demo", "max_output_tokens": 2, "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}, path=RESPONSES) == 400, url)
    try:
        trap.accept()
        raise AssertionError("an address inside was asked for an image")
    except TimeoutError:
        pass
    finally:
        trap.close()


# --- framing ------------------------------------------------------------------------------------

def large_headers(s):
    r = Raw(s).say(post(asking(), "X-Large: " + "a" * 65536))
    expect(r.status() in (400, 431), r.got[:100])
    many = Raw(s).say(post(asking(), *[f"X-{i}: {i}" for i in range(5000)]))
    expect(many.status() in (400, 431), many.got[:100])
    expect(Raw(s).say(b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: x\r\n\r\n").status() in (400, 414, 431), "a long path")
    lives(s)


def slow_senders(s):
    """gateway.timeouts.header is 1 s here: who takes longer is sent away, and nobody waits for him."""
    slow = [Raw(s).say(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\n") for _ in range(20)]
    began = time.monotonic()
    lives(s)
    expect(time.monotonic() - began < 10, "others waited")
    for r in slow:
        expect(b" 408 " in r.rest()[:40], r.got[:60])
    late = Raw(s).say(post(b'{"model":', length=500))
    expect(b" 408 " in late.rest()[:40], late.got[:60])
    lives(s)


def r31_byte_by_byte(s):
    r = Raw(s)
    r.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in post(asking()):
        r.say(bytes([byte]))
    status, body = r.answer()
    expect(status == 200 and json.loads(body)["choices"], body[:200])


def pipelined(s):
    r = Raw(s).say(post(asking("one", max_tokens=1)) + b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" + post(asking("two", max_tokens=1)))
    kinds = [json.loads(body)["object"] for status, body in (r.answer() for _ in range(3)) if status == 200]
    expect(kinds == ["chat.completion", "list", "chat.completion"], kinds)


def chunked_with_trailers(s):
    data = json.dumps(asking()).encode()
    parts = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(p), p) for p in (data[:7], data[7:8], data[8:]))
    r = Raw(s).say(post(b"", "Transfer-Encoding: chunked", "Trailer: X-Sum", length=False) + parts + b"0\r\nX-Sum: 7\r\nAuthorization: x\r\n\r\n")
    expect(r.answer()[0] == 200, "chunks with trailers")
    for broken in (b"zz\r\n", b"5\r\nabc\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n", b"-1\r\n"):
        r = Raw(s).say(post(b"", "Transfer-Encoding: chunked", length=False) + broken)
        r.socket.shutdown(socket.SHUT_WR)
        expect(b" 200 " not in r.rest()[:40], (broken, r.got[:100]))
    lives(s)


def expects_100(s):
    data = json.dumps(asking()).encode()
    r = Raw(s).say(post(b"", "Expect: 100-continue", length=len(data)))
    expect(b" 100 " in r.until(b"\r\n\r\n"), r.got)
    r.got = b""
    expect(r.say(data).answer()[0] == 200, "after 100")
    refused = Raw(s).say(post(b"", "Expect: 100-continue", length=1 << 30))
    expect(refused.status() in (413, 417), refused.got[:100])
    nowhere = Raw(s).say(post(b"", "Expect: 100-continue", path="/nowhere", length=10))
    expect(nowhere.status() == 404, nowhere.got[:100])


def other_protocols(s):
    for hello in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), b"SSH-2.0-x\r\n", b"\x00" * 500, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n"):
        r = Raw(s).say(hello)
        r.socket.shutdown(socket.SHUT_WR)
        expect(b" 200 " not in r.rest()[:40], (hello[:20], r.got[:100]))
    lives(s)


def no_html(s):
    for method, path in (("GET", "/"), ("GET", "/v1/x"), ("PUT", CHAT), ("POST", "/v1/embeddings"), ("BREW", "/pot"), ("GET", "/%00"), ("GET", "/../../etc/passwd"), ("POST", "/v1/responses/x/y/z")):
        a = s.ask(method, path, {} if method == "POST" else None)
        expect(a.status in (400, 404, 405, 501) and a.headers["content-type"].startswith("application/json"), f"{method} {path}: {a.status} {a.headers}")
        expect("message" in a.json()["error"], a.body)


def main():
    tests = (r09_bodies_that_lie_or_are_huge, deep_json, odd_values, addresses_in_images, large_headers, slow_senders, r31_byte_by_byte, pipelined, chunked_with_trailers, expects_100, other_protocols, no_html)
    wrong = []
    sets = ("gateway.model_names=[demo]", "gateway.timeouts.header=1s", "gateway.timeouts.body=2s")
    with Served(dilaunch, f"{source}/launch/topologies/local1.yaml", sets=sets) as s:
        for test in tests:
            if sys.argv[3:] and test.__name__ not in sys.argv[3:]:
                continue
            try:
                test(s)
                print(f"{test.__name__}: ok", flush=True)
            except (AssertionError, KeyError, TypeError, IndexError, ValueError, OSError) as e:
                wrong.append(test.__name__)
                print(f"{test.__name__}: WRONG: {type(e).__name__}: {str(e)[:1500]}", flush=True)
    sys.exit(f"wrong: {wrong}" if wrong else 0)


main()
