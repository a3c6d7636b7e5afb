# SPDX-License-Identifier: Apache-2.0
"""What a gateway refuses, how it says so, and that it goes on for the others: keys, bounds, slow readers, silence.

serve_limits_test.py <dilaunch> <source folder>
"""
import json
import os
import signal
import socket
import sys
import tempfile
import threading

from served import Served, Stream, expect, text_of

dilaunch, source = sys.argv[1:3]
chat = "/v1/chat/completions"
local1 = f"{source}/launch/topologies/local1.yaml"
names = "gateway.model_names=[demo]"


def ask_chat(**more):
    return {"model": "demo", "messages": [{"role": "user", "content": "Tell a story."}], "thinking": {"type": "disabled"}, "max_tokens": 40, "seed": 7, **more}


long_one = ask_chat(max_tokens=2000, ignore_eos=True, stream=True)


def refused(answer, status, code=None):
    expect(answer.status == status, f"{answer.status} {answer.body[:400]}")
    error = answer.json()["error"]
    expect(code is None or error["code"] == code, error)
    expect(len(answer.body) < 4096, "an error echoes the request")
    return error


def keys_and_their_bounds(s, keys_file):
    alice, bob = {"Authorization": "Bearer sk-alice-1"}, {"x-api-key": "sk-bob-0001"}
    refused(s.post(chat, ask_chat()), 401, "missing_api_key")
    refused(s.post(chat, ask_chat(), headers={"Authorization": "Bearer sk-none"}), 401, "invalid_api_key")
    expect(s.ask("GET", "/readyz").status == 200, "probes need no key")
    held = [s.stream(chat, long_one, headers=alice) for _ in range(2)]
    for st in held:
        next(iter(st))
    full = s.post(chat, ask_chat(), headers=alice)
    refused(full, 429, "rate_limit_exceeded")
    expect(int(full.headers["retry-after"]) >= 1, "a time to come back")
    expect(s.post(chat, ask_chat(max_tokens=3), headers=bob).status == 200, "bob is held back by alice")
    for st in held:
        st.close()
    s.until("alice has room again", lambda: s.post(chat, ask_chat(max_tokens=3), headers=alice).status == 200)
    refused(s.post(chat, ask_chat(n=3), headers=bob), 400)
    spent = s.post(chat, ask_chat(max_tokens=60, ignore_eos=True), headers={"x-api-key": "sk-carol-1"})
    expect(spent.status == 200, spent.body)
    refused(s.post(chat, ask_chat(), headers={"x-api-key": "sk-carol-1"}), 429, "tokens_exceeded")

    with open(keys_file, "w") as f:
        f.write("keys:\n  - {key: sk-dave-01, tenant: dave}\n")
    s.p.send_signal(signal.SIGHUP)
    s.until("the new key works", lambda: s.post(chat, ask_chat(max_tokens=2), headers={"x-api-key": "sk-dave-01"}).status == 200)
    refused(s.post(chat, ask_chat(), headers=alice), 401, "invalid_api_key")


def a_full_gateway(s):
    held = [s.stream(chat, long_one) for _ in range(4)]
    for st in held:
        next(iter(st))
    full = s.post(chat, ask_chat())
    refused(full, 503, "overloaded")
    expect(int(full.headers["retry-after"]) >= 1, "a time to come back")
    for st in held:
        st.close()
    s.until("there is room again", lambda: s.post(chat, ask_chat(max_tokens=2)).status == 200)


def bodies_that_are_too_much(s):
    for body in (ask_chat(n=10**6), ask_chat(max_tokens=10**9), ask_chat(stop=["x"] * 100_000), ask_chat(stop=["x" * 100_000]), ask_chat(temperature="hot"),
                 {**ask_chat(), "messages": []}, ask_chat(logit_bias={"99999999": 1}), ask_chat(top_logprobs=99, logprobs=True)):
        refused(s.post(chat, body), 400)
    for text in ("[" * 100_000, '{"a":' * 100_000, '{"model": "demo", "messages": [{"role": "user", "content": "\\ud83d"}]}', "", "null", "[]", "NaN"):
        refused(s.post(chat, text), 400)
    c = s.connect()
    c.putrequest("POST", chat)
    c.putheader("Content-Length", str(100 << 20))
    c.putheader("Expect", "100-continue")
    c.endheaders()
    r = c.getresponse()
    expect(r.status == 413 and json.loads(r.read())["error"]["code"] == "request_too_large", r.status)
    c.close()
    refused(s.post(chat, ask_chat(), headers={"Content-Encoding": "gzip"}), 415)
    refused(s.post(chat, ask_chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}})), 400)


def slow_readers(s):
    """One who reads nothing does not hold the others, and still gets every byte."""
    body = {**long_one, "max_tokens": 1500}
    c = s.connect()
    c.connect()
    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.request("POST", chat, json.dumps(body), {"Content-Type": "application/json"})
    slow = Stream(c, c.getresponse())
    expect(s.post(chat, ask_chat()).status == 200, "another waits for the slow reader")
    s.until("its generation is over, or its tokens wait", lambda: any(v > 0 for k, v in s.metrics().items() if "slow" in k), 120)
    whole = s.post(chat, {**body, "stream": False}).json()["choices"][0]["message"]["content"]
    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # it was slow for long enough
    events = list(slow)
    slow.close()
    expect(events[-1].data == "[DONE]" and text_of(events) == whole, f"{len(events)} events")


def comments_in_silence(s):
    streams = [s.stream(chat, {**long_one, "max_tokens": 1500}) for _ in range(2)]
    texts = [text_of(list(st)) for st in streams]
    expect(texts[0] == texts[1], "comments are no content")
    expect(sum(st.comments for st in streams) > 0, "no comment")


def many_at_once(s):
    """Many clients with the same question get the same answer."""
    answers, body = [], ask_chat(max_tokens=15, ignore_eos=True)

    def one():
        answers.append(s.post(chat, body).json()["choices"])
    threads = [threading.Thread(target=one) for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    expect(len(answers) == 12 and all(a == answers[0] for a in answers), answers)


def a_full_disk():
    """New requests are told to come back; an open stream pauses, and goes on with the same bytes when the disk takes them again."""
    with tempfile.TemporaryDirectory() as faults:
        def rules(text):
            with open(faults + "/new", "w") as f:
                f.write(text)
            os.rename(faults + "/new", faults + "/rules")
        with Served(dilaunch, local1, sets=(names,), env={"DI_FAULTS": faults}) as s:
            body = {**long_one, "max_tokens": 300}
            want = text_of(list(s.stream(chat, body)))
            st = s.stream(chat, body)
            first = [e for _, e in zip(range(5), st)]
            rules("point process=/control name=journal.write.enospc probability=1 skip=0 times=1000000\n")
            s.until_said("journal_write_failed")
            no = s.post(chat, ask_chat())
            refused(no, 503, "overloaded")
            expect(int(no.headers["retry-after"]) >= 1, "a time to come back")
            expect(s.ask("GET", "/livez").status == 200, "the gateway lives")
            written = counted(s)
            expect(written < 290, f"the stream was nearly over: {written} tokens")
            no = s.post(chat, ask_chat())
            refused(no, 503, "overloaded")
            expect(counted(s) == written, "tokens were shown that are not on disk")
            rules("")
            rest = list(st)
            expect(rest[-1].data == "[DONE]" and text_of(first + rest) == want, "other text than undisturbed")
            s.until("it serves again", lambda: s.post(chat, ask_chat(max_tokens=3)).status == 200)


def few_tokens(s):
    """gateway.limits.max_tokens is 20."""
    for path, body, field in ((chat, ask_chat(ignore_eos=True), "max_tokens"), ("/v1/responses", {"model": "demo", "input": "Tell.", "ignore_eos": True}, "max_output_tokens")):
        body.pop(field, None)
        usage = s.post(path, body).json()["usage"]
        expect(20 in (usage.get("completion_tokens"), usage.get("output_tokens")), (path, usage))
        expect("20" in refused(s.post(path, {**body, field: 21}), 400)["message"], path)
        expect(s.post(path, {**body, field: 20}).status == 200, path)
    a = s.post("/v1/messages", {**ask_chat(ignore_eos=True, max_tokens=30), "model": "claude-x"})
    expect(a.json()["usage"]["output_tokens"] == 20 and "max_tokens" in a.headers["x-di-warnings"], (a.body, a.headers))


def counted(s):
    """Tokens that this gateway got for the request that is open."""
    return sum(v for k, v in s.metrics().items() if k.startswith("di_generation_tokens_total")) - 300


def main():
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys.yaml")
        with open(keys, "w") as f:
            f.write("keys:\n  - {key: sk-alice-1, tenant: alice, requests: 2}\n  - {key: sk-bob-0001, tenant: bob, choices: 2}\n"
                    "  - {key: sk-carol-1, tenant: carol, tokens_per_minute: 30}\n")
        with Served(dilaunch, local1, sets=(names, f"gateway.keys_file={keys}")) as s:
            keys_and_their_bounds(s, keys)
            print("keys_and_their_bounds: ok", flush=True)
    a_full_disk()
    print("a_full_disk: ok", flush=True)
    with Served(dilaunch, local1, sets=(names, "gateway.limits.max_tokens=20")) as s:
        few_tokens(s)
        print("few_tokens: ok", flush=True)
    with Served(dilaunch, local1, sets=(names, "gateway.limits.queue=4")) as s:
        a_full_gateway(s)
        print("a_full_gateway: ok", flush=True)
    with Served(dilaunch, local1, sets=(names, "gateway.keep_alive=1ms", "gateway.client_buffer=16KiB", "gateway.timeouts.write=280s")) as s:
        for test in (bodies_that_are_too_much, slow_readers, comments_in_silence, many_at_once):
            test(s)
            print(f"{test.__name__}: ok", flush=True)


main()
