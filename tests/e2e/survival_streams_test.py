# SPDX-License-Identifier: Apache-2.0
"""Clients of a gateway do not notice that a rank, the control process or a gateway dies while their streams run: every event has the bytes of an
undisturbed stream, none is missing, none comes twice; only a client whose gateway died has to come back.

survival_streams_test.py <dilaunch> <source folder> [NAME...]
"""
import json
import os
import signal
import sys
import threading

from served import Served, expect

dilaunch, source = sys.argv[1:3]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TOKENS = 160


def bodies():
    """One request per client: three protocols, thinking and not, drawn tokens, logprobs."""
    out = []
    for i in range(9):
        say = f"Tell a story about the number {i}."
        more = {"model": "demo", "seed": 100 + i, "temperature": 0.9, "ignore_eos": True, "stream": True}
        if i % 3 == 0:
            out.append((CHAT, {**more, "messages": [{"role": "user", "content": say}], "max_tokens": TOKENS, "logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}}))
        elif i % 3 == 1:
            out.append((MESSAGES, {**more, "messages": [{"role": "user", "content": say}], "max_tokens": TOKENS, "thinking": {"type": "disabled"}}))
        else:
            out.append((RESPONSES, {**more, "input": say, "max_output_tokens": TOKENS}))
    return out


def shown(events):
    """What must be equal: all of an event but ids, times and what was cached; those are drawn per request."""
    drawn = {"id", "item_id", "created", "created_at", "completed_at", "signature", "cached_tokens", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens",
             "cache_read_input_tokens", "input_tokens", "call_id", "encrypted_content"}

    def strip(v):
        if isinstance(v, dict):
            return {k: strip(x) for k, x in v.items() if k not in drawn}
        return [strip(x) for x in v] if isinstance(v, list) else v
    return [(e.name, e.data if e.data == "[DONE]" else strip(e.json())) for e in events]


class Client(threading.Thread):
    """Reads one stream; comes back with Last-Event-ID, at the next gateway, if it breaks off."""

    def __init__(self, served, path, body, key, gateway):
        super().__init__()
        self.s, self.path, self.body, self.key, self.gateway = served, path, body, key, gateway
        self.events, self.error, self.returns, self.begun = [], None, 0, threading.Event()

    def run(self):
        try:
            while not self.read((self.gateway + self.returns) % len(self.s.ports)):
                self.returns += 1
                expect(self.returns < 200, "it came back too often")
        except Exception as e:  # reported by the test's thread
            self.error = e
        self.begun.set()

    def read(self, gateway):
        """@return the stream ended as it should"""
        headers = {"Idempotency-Key": self.key}
        if self.events:
            headers["Last-Event-ID"] = self.events[-1].id
        try:
            stream = self.s.stream(self.path, self.body, headers, gateway)
            if stream.status != 200:
                what = stream.response.read()[:400]
                expect(stream.status == 503, f"{stream.status} {what}")  # its gateway is not there yet
                return False
            for e in stream:
                expect(e.name != "error" and "error" not in json.loads("{}" if e.data == "[DONE]" else e.data), e.data)
                self.events.append(e)
                if len(self.events) == 12:
                    self.begun.set()
            stream.close()
        except OSError:
            return False
        last = self.events[-1]
        return last.data == "[DONE]" or last.name in ("message_stop", "response.completed", "response.incomplete")


def streams(s, label, hurt=None):
    clients = [Client(s, path, body, f"{label}-{i}", i) for i, (path, body) in enumerate(bodies())]
    for c in clients:
        c.start()
    for c in clients:
        c.begun.wait(60)
    if hurt:
        hurt()
        expect(any(c.is_alive() for c in clients), "all streams had ended before anything was hurt")
    for c in clients:
        c.join(120)
        expect(not c.is_alive(), f"client {c.key} still waits after {len(c.events)} events\n{s.log()[-4000:]}")
        if c.error:
            raise c.error
    return clients


def check(name, plain, hurt, returns):
    for a, b in zip(plain, hurt):
        x, y = shown(a.events), shown(b.events)
        first = next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))
        expect(x == y, f"{name}: {b.path} differs from event {first} of {len(x)} and {len(y)}: {x[first:first + 2]} {y[first:first + 2]}")
        ids = [e.id for e in b.events if e.id]
        expect(len(set(ids)) == len(ids), f"{name}: an event came twice")
    came_back = sum(c.returns > 0 for c in hurt)
    expect(returns(came_back), f"{name}: {came_back} clients had to come back")
    print(f"ok      {name}: {sum(len(c.events) for c in hurt)} events of {len(hurt)} streams equal, {came_back} came back")


def kill(s, name):
    os.kill(s.processes()[name], signal.SIGKILL)


def busiest(s):
    """The rank that serves most."""
    status = json.loads(s.say("status", "--json"))
    return max(status["ranks"], key=lambda r: r.get("requests") or 0)["rank"]


def main():
    wanted = sys.argv[3:]
    sets = ("roles.gateway.replicas=2", "gateway.share_port=false", "supervisor.rejoin=auto")
    with Served(dilaunch, source + "/launch/topologies/local4.yaml", sets) as s:
        plain = streams(s, "plain")
        cases = {
            "rank": (lambda: kill(s, f"rank {busiest(s)}"), lambda n: n == 0),
            "two_ranks": (lambda: (kill(s, "rank 0"), kill(s, "rank 3")), lambda n: n == 0),
            "control": (lambda: kill(s, "control"), lambda n: n == 0),
            "gateway": (lambda: kill(s, "gateway 0"), lambda n: n > 0),
            "gateway_and_control": (lambda: (kill(s, "gateway 1"), kill(s, "control")), lambda n: n > 0),
        }
        for name, (hurt, returns) in cases.items():
            if wanted and name not in wanted:
                continue
            s.until("all four ranks serve", lambda: sum(r["state"] == "member" for r in json.loads(s.say("status", "--json"))["ranks"]) == 4, 60)
            check(name, plain, streams(s, name, hurt), returns)


main()
