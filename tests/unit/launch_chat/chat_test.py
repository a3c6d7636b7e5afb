#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""chat_test.py DILAUNCH: `dilaunch chat` against a fake server that sends its event stream one byte at a time.

Report 31: a client behind a gateway with 1-byte reads must show the same text. Also: pipe, message, terminal with two turns, Ctrl-C,
errors before and inside a stream, a stream that breaks off, https with and without a trusted certificate.
"""
import json
import os
import pty
import select
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

DILAUNCH = sys.argv[1]


def event(**delta):
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, ensure_ascii=False) + "\r\n\r\n"


DONE = 'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}\n\ndata: [DONE]\n\n'
USUAL = ": keep-alive\n\n" + event(role="assistant", content="") + event(reasoning_content="let me ") + event(reasoning_content="see") + \
    event(content="Grüß ") + event(content="dich 😀") + DONE
SHOWN = "[thinking]\nlet me see\n[/thinking]\nGrüß dich 😀\n"


class Server:
    """Answers each connection with a script; keeps what was asked, and whether the client left first."""

    def __init__(self, tls=None):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.tls, self.script, self.bodies, self.left = tls, None, [], threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls:
                client = self.tls.wrap_socket(client, server_side=True)
            data = b""
            while b"\r\n\r\n" not in data:
                data += client.recv(65536)
            head, body = data.split(b"\r\n\r\n", 1)
            size = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0)
            while len(body) < size:
                body += client.recv(65536)
            if head.startswith(b"GET /v1/models "):
                text = '{"object":"list","data":[{"id":"tiny"}]}'
                client.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
                return
            assert head.startswith(b"POST /v1/chat/completions "), head
            self.bodies.append(json.loads(body))
            self.script(self, client)
        except OSError:
            pass
        finally:
            client.close()

    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"


def stream(text, whole=True):
    def script(_, client):
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for byte in text.encode():  # one byte a chunk, one byte a write
            for piece in (b"1\r\n", bytes([byte]), b"\r\n"):
                client.sendall(piece)
        if whole:
            client.sendall(b"0\r\n\r\n")
    return script


def endless(server, client):
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + event(content="on and on").encode())
    client.settimeout(30)
    if client.recv(1) == b"":
        server.left.set()


def refuse(_, client):
    text = '{"error":{"message":"n is too large","type":"invalid_request_error"}}'
    client.sendall(f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())


def chat(server, *arguments, say=None, env=None):
    how = {"input": say} if say is not None else {"stdin": subprocess.DEVNULL}
    done = subprocess.run([DILAUNCH, "chat", "--url", server.url(), *arguments], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **(env or {})}, **how)
    return done.returncode, done.stdout, done.stderr


def equal(got, wanted):
    assert got == wanted, f"\n got {got!r}\nwant {wanted!r}"


def test_pipe_and_message():
    s = Server()
    s.script = stream(USUAL)
    equal(chat(s, say="hello\nthere\n"), (0, SHOWN, ""))
    equal(s.bodies[-1]["messages"], [{"role": "user", "content": "hello\nthere"}])
    equal(s.bodies[-1]["model"], "tiny")
    code, out, err = chat(s, "--model", "x", "--system", "be kind", "--no-thinking", "--hide-reasoning", "--stats", "hi")
    equal((code, out), (0, "Grüß dich 😀\n"))
    assert "5 prompt tokens (4 cached), 7 tokens" in err, err
    equal(s.bodies[-1]["messages"][0], {"role": "system", "content": "be kind"})
    equal(s.bodies[-1]["thinking"], {"type": "disabled"})


def test_errors():
    s = Server()
    s.script = refuse
    equal(chat(s, "hi"), (3, "", "dilaunch chat: HTTP 400: n is too large\n"))
    s.script = stream(event(content="so far") + 'data: {"error":{"message":"rank lost"}}\n\n')
    equal(chat(s, "hi"), (3, "so far\n", "dilaunch chat: rank lost\n"))
    s.script = stream(event(content="so far"), whole=False)
    code, out, err = chat(s, "hi")
    equal((code, out), (3, "so far\n"))
    assert "ended inside the answer" in err, err
    s.script = stream(event(content="so far"))
    assert "broke off" in chat(s, "hi")[2]
    equal(chat(s, say="")[0], 2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = subprocess.run([DILAUNCH, "chat", "--url", f"http://127.0.0.1:{port}", "hi"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "refused" in done.stderr, done
    done = subprocess.run([DILAUNCH, "chat", "--url", "http://x:y", "hi"], capture_output=True, text=True, timeout=60)
    equal(done.returncode, 2)


def read_until(fd, wanted, seconds=30):
    text, end = b"", time.monotonic() + seconds
    while wanted.encode() not in text:
        assert time.monotonic() < end, f"no {wanted!r} in {text!r}"
        if select.select([fd], [], [], 1)[0]:
            text += os.read(fd, 65536)
    return text.decode()


def test_terminal():
    s = Server()
    s.script = stream(USUAL)
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(DILAUNCH, [DILAUNCH, "chat", "--url", s.url() + "/v1"])
    prompt = "> \x1b[0m"
    read_until(fd, prompt)
    os.write(fd, b"hello\n")
    text = read_until(fd, "dich 😀\r\n\x1b[1m" + prompt)
    assert "\x1b[2mlet me see\x1b[0m\r\nGrüß" in text, text
    s.script = endless
    os.write(fd, b"and now?\n")
    read_until(fd, "on and on")
    os.write(fd, b"\x03")  # Ctrl-C
    read_until(fd, "[cancelled]\r\n\x1b[1m" + prompt)
    assert s.left.wait(10), "the server still sends"
    equal([m["role"] for m in s.bodies[-1]["messages"]], ["user", "assistant", "user"])
    equal(s.bodies[-1]["messages"][1]["content"], "Grüß dich 😀")
    os.write(fd, b"\x03")  # at the prompt: nothing but a new line
    read_until(fd, prompt)
    os.write(fd, b"/reset\n")
    read_until(fd, "anew.\r\n\x1b[1m" + prompt)
    s.script = stream(USUAL)
    os.write(fd, b"again\n")
    read_until(fd, "dich 😀\r\n\x1b[1m" + prompt)
    equal(len(s.bodies[-1]["messages"]), 1)
    os.write(fd, b"\x04")  # Ctrl-D
    equal(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
    os.close(fd)


def test_interrupt_with_a_pipe():
    s = Server()
    s.script = endless
    with subprocess.Popen([DILAUNCH, "chat", "--url", s.url(), "hi"], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL) as p:
        equal(p.stdout.read(len("on and on")), "on and on")
        p.send_signal(signal.SIGINT)
        equal(p.wait(10), 130)
    assert s.left.wait(10), "the server still sends"


def test_tls():
    with tempfile.TemporaryDirectory() as folder:
        cert, key = folder + "/cert.pem", folder + "/key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=di",
                        "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        s = Server(context)
        s.script = stream(USUAL)
        code, out, err = chat(s, "hi")
        equal((code, out), (3, ""))
        assert "--insecure" in err, err
        equal(chat(s, "--insecure", "hi"), (0, SHOWN, ""))
        equal(chat(s, "hi", env={"SSL_CERT_FILE": cert}), (0, SHOWN, ""))


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok", name, flush=True)
