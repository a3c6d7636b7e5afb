# SPDX-License-Identifier: Apache-2.0
"""A gateway, real ranks and a client of the standard library: streams equal whole answers, return to them, stop them.

serve_test.py <dilaunch> <source folder>
"""
import http.client
import json
import os
import signal
import sys

from served import Served, expect, text_of

dilaunch, source = sys.argv[1:3]
chat, completions, messages = "/v1/chat/completions", "/v1/completions", "/v1/messages"


def ask_chat(**more):
    return {"model": "demo", "messages": [{"role": "user", "content": "Tell a story."}], "thinking": {"type": "disabled"}, "max_tokens": 40, "seed": 7, **more}


def whole(s, path, body, status=200, **more):
    a = s.post(path, body, **more)
    expect(a.status == status, f"{path}: {a.status} {a.body[:600]}")
    return a.json()


def streamed(s, path, body, **more):
    st = s.stream(path, {**body, "stream": True}, **more)
    if st.status != 200:
        raise AssertionError(f"{path}: {st.status} {st.response.read()[:600]}")
    expect(st.headers["content-type"].startswith("text/event-stream"), st.headers)
    events = list(st)
    st.close()
    return events


def same_whole_and_streamed(s):
    body = ask_chat()
    one = whole(s, chat, body)
    events = streamed(s, chat, {**body, "stream_options": {"include_usage": True}})
    expect(text_of(events) == one["choices"][0]["message"]["content"], f"{one} {[e.data for e in events]}")
    expect(events[-1].data == "[DONE]", events[-1].data)
    expect(events[-2].json()["usage"] == one["usage"], (events[-2].data, one["usage"]))
    expect(events[-2].json()["choices"] == [], events[-2].data)
    expect(one["usage"]["completion_tokens"] <= 40, one["usage"])
    expect(one["seed"] == 7 and one["system_fingerprint"].startswith("fp_"), one)
    for path in ("/chat/completions", "/beta/chat/completions"):
        again = whole(s, path, body)
        expect(again["choices"] == one["choices"], (again, one))


def scripted_answers(s):
    """The real ranks emit what the request forces; the parser takes it apart."""
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"location": {"type": "string"}}}}}]
    call = ('I think.</think>Let me see.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="get_weather">\n'
            '<｜DSML｜ parameter name="location" string="true">Bei"jing</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>')
    body = {"model": "demo", "messages": [{"role": "user", "content": "Weather?"}], "tools": tools, "di_forced_text": call, "max_tokens": 400}
    one = whole(s, chat, body)["choices"][0]
    expect(one["finish_reason"] == "tool_calls", one)
    m = one["message"]
    expect((m["reasoning_content"], m["content"]) == ("I think.", "Let me see."), m)
    expect(json.loads(m["tool_calls"][0]["function"]["arguments"]) == {"location": 'Bei"jing'}, m)
    events = streamed(s, chat, body)
    expect(text_of(events) == "Let me see." and text_of(events, field="reasoning_content") == "I think.", [e.data for e in events])
    joined = "".join(c["function"].get("arguments", "") for e in events[:-1] for d in e.json()["choices"] for c in d["delta"].get("tool_calls", []))
    expect(joined == m["tool_calls"][0]["function"]["arguments"], joined)

    claude = {"model": "claude-opus-4-1", "max_tokens": 400, "messages": [{"role": "user", "content": "Weather?"}],
              "tools": [{"name": "get_weather", "input_schema": tools[0]["function"]["parameters"]}], "di_forced_text": call}
    answer = whole(s, messages, claude)
    expect([b["type"] for b in answer["content"]] == ["thinking", "text", "tool_use"], answer)
    expect(answer["stop_reason"] == "tool_use" and answer["content"][2]["input"] == {"location": 'Bei"jing'}, answer)
    names = [e.name for e in streamed(s, messages, claude)]
    expect(names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], names)


def stop_strings(s):
    body = ask_chat(di_forced_text="My own fox END never seen", stop=["fox END"])
    one = whole(s, chat, body)["choices"][0]
    expect(one["message"]["content"] == "My own " and one["finish_reason"] == "stop", one)
    expect(text_of(streamed(s, chat, body)) == "My own ", "a stop string leaked")
    legacy = {"model": "demo", "prompt": "x", "max_tokens": 40, "di_forced_text": "My own fox END never seen", "stop": "fox END"}
    expect(whole(s, completions, legacy)["choices"][0]["text"] == "My own ", "completions")
    s.until("the ranks drop what was stopped", lambda: open_requests(s) == 0)


def several_choices(s):
    body = ask_chat(n=3, temperature=1.0, ignore_eos=True, max_tokens=12)
    one = whole(s, chat, body)
    texts = [c["message"]["content"] for c in one["choices"]]
    expect(len(set(texts)) == 3, texts)
    expect([c["message"]["content"] for c in whole(s, chat, body)["choices"]] == texts, "the same seed gives the same choices")
    events = streamed(s, chat, body)
    expect([text_of(events, i) for i in range(3)] == texts, "streamed choices differ")
    expect(one["usage"]["completion_tokens"] == 36, one["usage"])


def log_probabilities(s):
    body = ask_chat(logprobs=True, top_logprobs=3, ignore_eos=True, max_tokens=8)
    entries = whole(s, chat, body)["choices"][0]["logprobs"]["content"]
    expect(len(entries) == 8 and all(len(e["top_logprobs"]) == 3 for e in entries), entries)
    expect(all(e["logprob"] < 0 for e in entries), entries)
    events = streamed(s, chat, body)
    chunked = [x for e in events[:-1] for c in e.json()["choices"] if c.get("logprobs") for x in c["logprobs"]["content"]]
    expect(chunked == entries, (chunked, entries))
    legacy = whole(s, completions, {"model": "demo", "prompt": "One two", "max_tokens": 5, "logprobs": 2, "ignore_eos": True, "seed": 3})
    expect(len(legacy["choices"][0]["logprobs"]["tokens"]) == 5, legacy)


def once_with_a_key(s):
    key = {"Idempotency-Key": "story-1"}
    body = ask_chat(seed=None)
    first, again = whole(s, chat, body, headers=key), whole(s, chat, body, headers=key)
    expect(first == again, (first, again))
    expect(whole(s, chat, body)["id"] != first["id"], "no key, no memory")
    expect(whole(s, chat, ask_chat(max_tokens=3), status=422, headers=key)["error"]["code"] == "idempotency_key_reused", "another body")


def back_to_a_stream(s):
    body = ask_chat(max_tokens=120, ignore_eos=True)
    want = streamed(s, chat, body)
    for cut in (1, 2, 17, 60):
        key = {"Idempotency-Key": f"return-{cut}"}
        st = s.stream(chat, {**body, "stream": True}, headers=key)
        seen = [e for _, e in zip(range(cut), st)]
        st.close()
        rest = streamed(s, chat, body, headers={"Last-Event-ID": seen[-1].id})
        got = [e.data.replace(seen[0].json()["id"], "ID") if e.data != "[DONE]" else e.data for e in seen + rest]
        expect(text_of(seen + rest) == text_of(want), f"cut at {cut}: {got}")
        expect(len(seen + rest) == len(want), f"cut at {cut}: {len(seen)} and {len(rest)} events of {len(want)}")
    expect(whole(s, chat, body, status=400, headers={"Last-Event-ID": "x"}), "an id of nothing")


def back_at_another_gateway(s):
    """A gateway that dies costs a reconnect, with a key or without; not a token."""
    body = ask_chat(max_tokens=300, ignore_eos=True)
    want = streamed(s, chat, body, gateway=1)
    victim = s.processes()["gateway 0"]
    first = s.stream(chat, {**body, "stream": True}, gateway=0)
    seen = [e for _, e in zip(range(40), first)]
    os.kill(victim, signal.SIGKILL)
    try:
        seen += list(first)
    except (OSError, http.client.HTTPException):
        pass  # the connection broke, as it must
    first.close()
    expect(len(seen) < len(want), "it was over before the gateway died")
    rest = streamed(s, chat, body, headers={"Last-Event-ID": seen[-1].id}, gateway=1)
    expect(text_of(seen + rest) == text_of(want) and len(seen + rest) == len(want), f"{len(seen)} and {len(rest)} events of {len(want)}")
    s.until("the gateway is back", lambda: ready(s, 0))


def ready(s, gateway):
    try:
        return s.ask("GET", "/readyz", gateway=gateway).status == 200
    except OSError:
        return False


def open_requests(s):
    return s.ask("GET", "/load").json()["server_load"]


def leaving_cancels(s):
    def aborted():
        return sum(v for k, v in s.metrics().items() if k.startswith("di_requests_aborted_total"))
    before = aborted()
    long = ask_chat(max_tokens=1500, ignore_eos=True)
    st = s.stream(chat, {**long, "stream": True})
    next(iter(st))
    st.close()
    c = s.connect()
    c.request("POST", chat, json.dumps(long), {"Content-Type": "application/json"})
    s.until("it is open", lambda: open_requests(s) > 0)
    c.close()
    s.until("nothing is open", lambda: open_requests(s) == 0)
    s.until("both count as aborted", lambda: aborted() == before + 2)
    expect(whole(s, chat, ask_chat(max_tokens=4)), "the next one is served")


def refusals(s):
    long = "word " * 20000
    e = whole(s, chat, {**ask_chat(), "messages": [{"role": "user", "content": long}]}, status=400)["error"]
    expect(e["code"] == "context_length_exceeded" and any(c.isdigit() for c in e["message"]), e)
    expect(whole(s, chat, {**ask_chat(), "model": "gpt-4"}, status=404)["error"]["code"] == "model_not_found", "model")
    expect(whole(s, chat, '{"model": "demo", x}', status=400)["error"]["type"] == "invalid_request_error", "no JSON")
    expect(whole(s, chat, b'{"model": "\xff"}', status=400)["error"]["type"] == "invalid_request_error", "no UTF-8")
    expect(whole(s, messages, "{", status=400)["type"] == "error", "the dialect of Anthropic")
    expect(whole(s, "/v1/embeddings", {}, status=404)["error"], "no such route")
    expect(s.ask("GET", chat).status == 405, "GET")
    late = s.post(chat, ask_chat(max_tokens=1500, ignore_eos=True), headers={"x-di-deadline-ms": "50"})
    expect(late.status == 504, f"{late.status} {late.body}")


def small_routes(s):
    expect(s.ask("GET", "/readyz").status == 200, "ready")
    model = s.ask("GET", "/v1/models").json()["data"][0]
    expect(s.ask("GET", f"/v1/models/{model['id']}").json()["max_model_len"] == model["max_model_len"], model)
    counted = whole(s, messages + "/count_tokens", {"model": "claude-x", "messages": [{"role": "user", "content": "Hi"}]})["input_tokens"]
    asked = whole(s, messages, {"model": "claude-x", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]})
    expect(asked["usage"]["input_tokens"] + asked["usage"].get("cache_read_input_tokens", 0) == counted, asked)
    ids = whole(s, "/tokenize", {"prompt": "Hello <think>", "add_special_tokens": False})["tokens"]
    expect(whole(s, "/detokenize", {"tokens": ids})["prompt"] == "Hello <think>", ids)
    fim = whole(s, "/beta/completions", {"model": "demo", "prompt": "def f(", "suffix": "return 1", "max_tokens": 4})
    expect(fim["object"] == "text_completion", fim)
    many = whole(s, completions, {"model": "demo", "prompt": ["a", "b"], "n": 2, "max_tokens": 3, "echo": True, "seed": 1})
    expect([c["text"][0] for c in many["choices"]] == ["a", "a", "b", "b"], many)
    best = whole(s, completions, {"model": "demo", "prompt": "a", "best_of": 3, "max_tokens": 3})
    expect(len(best["choices"]) == 1, best)


def main():
    with Served(dilaunch, f"{source}/launch/topologies/local1.yaml", sets=("gateway.model_names=[demo]",)) as s:
        for test in (same_whole_and_streamed, small_routes, scripted_answers, stop_strings, several_choices, log_probabilities, once_with_a_key, back_to_a_stream,
                     leaving_cancels, refusals):
            test(s)
            print(f"{test.__name__}: ok", flush=True)
    two = ("gateway.model_names=[demo]", "roles.gateway.replicas=2", "gateway.share_port=false")
    with Served(dilaunch, f"{source}/launch/topologies/local2.yaml", sets=two) as s:
        back_at_another_gateway(s)
        print("back_at_another_gateway: ok", flush=True)


main()
