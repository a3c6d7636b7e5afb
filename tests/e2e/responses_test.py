# SPDX-License-Identifier: Apache-2.0
"""Responses on a gateway and real ranks: streams as clients read them, kept ones shown, continued, paged, cancelled, deleted; of another tenant nothing.

responses_test.py <dilaunch> <source folder> [NAME...]
"""
import http.client
import json
import os
import re
import signal
import sys
import tempfile
import time

from served import Served, expect

dilaunch, source = sys.argv[1:3]
PATH = "/v1/responses"
TOOL = {"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
CALL = 'Because.</think>Let me see.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="bash">\n<｜DSML｜ parameter name="command" string="true">ls 2>&1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>'
ALICE, BOB = {"Authorization": "Bearer sk-alice-key"}, {"Authorization": "Bearer sk-bobs-key"}


def asking(text="Tell a story.", **more):
    return {"model": "demo", "input": text, "reasoning": {"effort": "none"}, "max_output_tokens": 40, "seed": 7, **more}


def make(s, body, who=ALICE, status=200, path=PATH):
    a = s.post(path, body, headers=who)
    expect(a.status == status, f"{path} {str(body)[:300]}: {a.status} {a.body[:800]}")
    return a.json()


def show(s, path, who=ALICE, status=200, method="GET"):
    a = s.ask(method, f"{PATH}/{path}", headers=who)
    expect(a.status == status, f"{method} {path}: {a.status} {a.body[:800]}")
    return a.json()


def text_of(response):
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def read(stream):
    expect(stream.status == 200, f"{stream.status}")
    events = list(stream)
    stream.close()
    return events


def streamed(s, body, who=ALICE):
    return read(s.stream(PATH, {**body, "stream": True}, headers=who))


def again(s, path, who=ALICE, headers=None):
    return s.stream(f"{PATH}/{path}", headers={**who, **(headers or {})})


def whole_and_sound(events):
    """Every rule of section 1b of a stream of Responses. @return the final response"""
    data = [e.json() for e in events]
    expect([d["sequence_number"] for d in data] == list(range(len(data))), [d["sequence_number"] for d in data])
    expect(all(e.name == d["type"] for e, d in zip(events, data)), "event: and type differ")
    expect([d["type"] for d in data[:2]] == ["response.created", "response.in_progress"], [d["type"] for d in data[:3]])
    final = data[-1]["response"]
    expect(data[-1]["type"] in ("response.completed", "response.incomplete", "response.failed"), data[-1]["type"])
    expect(len({d["response"]["id"] for d in data if "response" in d}) == 1, "ids of the response")
    text, done, added = {}, {}, {}
    for d in data:
        kind = d["type"].removeprefix("response.")
        if kind == "output_item.added":
            added[d["output_index"]] = d["item"]["id"]
        elif kind == "output_item.done":
            done[d["output_index"]] = d["item"]
        elif "output_index" in d:
            expect(d["item_id"] == added[d["output_index"]] and d["output_index"] not in done, d)
        if kind in ("output_text.delta", "reasoning_text.delta", "function_call_arguments.delta"):
            text[d["output_index"]] = text.get(d["output_index"], "") + d["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            expect(text[d["output_index"]] == d["text"], d)
        elif kind == "function_call_arguments.done":
            expect(text[d["output_index"]] == d["arguments"], d)
    expect(sorted(done) == sorted(added), f"items {sorted(added)} were added, {sorted(done)} are done")
    expect([done[i] for i in sorted(done)] == final["output"], (done, final["output"]))
    return final


def plain(response):
    """Without what differs from one generation to the next."""
    ids = response["id"].removeprefix("resp_")
    text = json.dumps({k: v for k, v in response.items() if k not in ("created_at", "completed_at")}).replace(ids, "ID")
    return json.loads(re.sub(r"call_\w+", "CALL", text))


def streams_and_wholes_are_equal(s):
    for body in (asking(), asking(tools=[TOOL], di_forced_text=CALL, reasoning={"effort": "high"}, max_output_tokens=400), asking(max_output_tokens=3)):
        one, final = make(s, body), whole_and_sound(streamed(s, body))
        expect(one["object"] == "response" and one["store"] is True, one)
        a, b = plain(one), plain(final)
        a["usage"]["input_tokens_details"] = b["usage"]["input_tokens_details"] = None
        expect(a == b, (a, b))
        expect({**show(s, one["id"]), "completed_at": None} == {**one, "completed_at": None}, (show(s, one["id"]), one))
    expect([i["type"] for i in make(s, asking(tools=[TOOL], di_forced_text=CALL, reasoning={"effort": "high"}, max_output_tokens=400))["output"]] == ["reasoning", "message", "function_call"], "items")
    expect(make(s, asking(max_output_tokens=3, ignore_eos=True))["incomplete_details"] == {"reason": "max_output_tokens"}, "incomplete")


def not_kept(s):
    r = make(s, asking(store=False))
    expect(r["store"] is False, r)
    show(s, r["id"], status=404)
    e = make(s, asking(previous_response_id=r["id"]), status=400)["error"]
    expect(e["code"] == "previous_response_not_found" and e["param"] == "previous_response_id", e)


def conversations(s):
    first = make(s, asking("My name is Ann.", instructions="Answer in French.", di_forced_text="Bonjour Ann"))
    body = asking("And my name?", previous_response_id=first["id"], di_forced_text="Ann")
    second = make(s, body)
    expect(second["previous_response_id"] == first["id"] and second["instructions"] is None, second)
    by_hand = asking([{"role": "user", "content": "My name is Ann."}, *first["output"], {"role": "user", "content": "And my name?"}])
    expect(make(s, by_hand)["usage"]["input_tokens"] == second["usage"]["input_tokens"], "another prompt than the conversation by hand")
    third = make(s, asking("Thanks.", previous_response_id=second["id"], di_forced_text="Bye"))
    items = show(s, third["id"] + "/input_items?order=asc")["data"]
    said = [(i["role"], i["content"][0]["text"]) for i in items]
    expect(said == [("user", "My name is Ann."), ("assistant", "Bonjour Ann"), ("user", "And my name?"), ("assistant", "Ann"), ("user", "Thanks.")], said)
    call = make(s, asking("List files.", tools=[TOOL], di_forced_text=CALL, reasoning={"effort": "high"}, max_output_tokens=400))
    call_id = [i["call_id"] for i in call["output"] if i["type"] == "function_call"][0]
    answer = make(s, asking([{"type": "function_call_output", "call_id": call_id, "output": "a.txt"}], tools=[TOOL], previous_response_id=call["id"], di_forced_text="One file."))
    expect(text_of(answer) == "One file.", answer)
    e = make(s, asking([{"role": "nobody", "content": "x"}], previous_response_id=first["id"]), status=400)["error"]
    expect("input[2]" not in json.dumps(e), e)


def pages(s):
    r = make(s, asking([{"role": "user", "content": f"word {i}"} for i in range(7)], max_output_tokens=2))
    for order in ("asc", "desc"):
        seen, after = [], ""
        while True:
            page = show(s, f"{r['id']}/input_items?limit=3&order={order}{after}")
            seen += [i["content"][0]["text"] for i in page["data"]]
            expect(page["object"] == "list" and page["last_id"] == page["data"][-1]["id"], page)
            if not page["has_more"]:
                break
            after = "&after=" + page["last_id"]
        want = [f"word {i}" for i in range(7)]
        expect(seen == (want if order == "asc" else want[::-1]), seen)
    for wrong in ("limit=0", "limit=x", "order=up", "after=none"):
        show(s, f"{r['id']}/input_items?{wrong}", status=400)


def back_to_a_stream(s):
    body = asking(max_output_tokens=60, ignore_eos=True)
    events = streamed(s, body)
    name = events[0].json()["response"]["id"]
    for seen in (0, 1, 5, len(events) - 2):
        rest = read(again(s, f"{name}?stream=true&starting_after={seen}"))
        expect([e.data for e in rest] == [e.data for e in events[seen + 1:]], (seen, [e.data for e in rest][:3], events[seen + 1].data))
        expect([e.data for e in read(again(s, name, headers={"Last-Event-ID": events[seen].id}))] == [e.data for e in events[seen + 1:]], "Last-Event-ID")
    expect([e.data for e in read(again(s, f"{name}?stream=true"))] == [e.data for e in events], "all of it")
    for wrong in ("stream=maybe", "stream=true&starting_after=x", "starting_after=3"):
        show(s, f"{name}?{wrong}", status=400)


def open_in_cluster(s):
    return json.loads(s.say("status", "--json"))["requests"]["open"]


def in_the_background(s):
    body = asking(max_output_tokens=600, ignore_eos=True, background=True)
    r = make(s, body)
    expect(r["status"] in ("queued", "in_progress") and r["background"] is True and r["output"] == [], r)
    seen = read(again(s, f"{r['id']}?stream=true"))
    final = whole_and_sound(seen)
    done = s.until("it is complete", lambda: (now := show(s, r["id"]))["status"] not in ("queued", "in_progress") and now)
    expect(plain(done) == plain(final) and done["status"] == "incomplete", (done["status"], final["status"]))
    st = s.stream(PATH, {**body, "stream": True}, headers=ALICE)
    first = [e for _, e in zip(range(5), st)]
    st.close()  # it goes on without its client
    name = first[0].json()["response"]["id"]
    rest = read(again(s, f"{name}?stream=true&starting_after=4"))
    whole_and_sound(first + rest)
    r = make(s, asking(max_output_tokens=3000, ignore_eos=True, background=True))
    cancelled = show(s, r["id"] + "/cancel", method="POST")
    expect(cancelled["status"] == "cancelled", cancelled)
    s.until("it stays so", lambda: show(s, r["id"])["status"] == "cancelled")
    expect(show(s, r["id"] + "/cancel", method="POST")["status"] == "cancelled", "a second time")
    s.until("no request is open", lambda: open_in_cluster(s) == 0)
    plain_one = make(s, asking(max_output_tokens=2))
    show(s, plain_one["id"] + "/cancel", method="POST", status=400)
    expect(make(s, asking(background=True, store=False), status=400)["error"]["param"] == "background", "background without store")


def gone_when_deleted(s):
    r = make(s, asking(max_output_tokens=2))
    expect(show(s, r["id"], method="DELETE") == {"id": r["id"], "object": "response", "deleted": True}, "what DELETE says")
    for path, method in ((r["id"], "GET"), (r["id"], "DELETE"), (r["id"] + "/input_items", "GET"), (r["id"] + "/cancel", "POST")):
        show(s, path, method=method, status=404)
    long = make(s, asking(max_output_tokens=3000, ignore_eos=True, background=True))
    s.until("it is at work", lambda: open_in_cluster(s) == 1)
    show(s, long["id"], method="DELETE")
    s.until("deleting it ends it", lambda: open_in_cluster(s) == 0)


def of_another_tenant_nothing(s):
    r = make(s, asking(max_output_tokens=2))
    for path, method in ((r["id"], "GET"), (r["id"], "DELETE"), (r["id"] + "/input_items", "GET"), (r["id"] + "/cancel", "POST"), (f"{r['id']}?stream=true", "GET")):
        expect("error" in show(s, path, who=BOB, method=method, status=404), path)
    make(s, asking(previous_response_id=r["id"]), who=BOB, status=400)
    show(s, r["id"])
    guess = r["id"][:-1] + ("0" if r["id"][-1] != "0" else "1")
    for name in (guess, "resp_1", "x", "resp_" + "0" * 32, r["id"].replace("resp_", "chatcmpl-")):
        show(s, name, status=404)
    expect(s.ask("GET", f"{PATH}/{r['id']}").status == 401, "without a key")


def kept_over_deaths(s):
    """A stored response is the same after a gateway and control died; one in the background goes on with the same bytes."""
    r = make(s, asking("My name is Ann.", di_forced_text="Hello Ann"))
    body = asking(max_output_tokens=1500, ignore_eos=True, background=True)
    want = None
    for victim in (None, "gateway 0", "control"):
        name = make(s, body)["id"]
        if victim:
            s.until("it is at work", lambda: show(s, name)["output"])
            os.kill(s.processes()[victim], signal.SIGKILL)
        done = s.until("it is complete", lambda: (now := patient(s, name))["status"] == "incomplete" and now, 60)
        want = want or text_of(done)
        expect(len(want) > 500 and text_of(done) == want, f"other text after the death of {victim}")
        expect(patient(s, r["id"]) == r, f"another response after the death of {victim}")
        after = make(s, asking("And my name?", previous_response_id=r["id"], max_output_tokens=4))
        expect(after["usage"]["input_tokens"] > r["usage"]["input_tokens"], after)


def a_stream_outlives_its_gateway(s):
    body = asking(max_output_tokens=900, ignore_eos=True)
    want = text_of(whole_and_sound(streamed(s, body)))
    victim = s.processes()["gateway 0"]
    st = s.stream(PATH, {**body, "stream": True}, headers=ALICE)
    first = [e for _, e in zip(range(40), st)]
    os.kill(victim, signal.SIGKILL)
    try:
        first += list(st)  # what was on the way
    except (OSError, ValueError, http.client.HTTPException):
        pass
    expect(first[-1].json()["type"] == "response.output_text.delta", f"it was over before the gateway died: {first[-1].data[:200]}")
    name, number = first[0].json()["response"]["id"], first[-1].json()["sequence_number"]
    patient(s, name)
    final = whole_and_sound(first + read(again(s, f"{name}?stream=true&starting_after={number}")))
    expect(text_of(final) == want, "other text than undisturbed")
    expect(plain(patient(s, name)) == plain(final), "another response than its stream told")


def a_watched_one_is_cancelled(s):
    r = make(s, asking(max_output_tokens=3000, ignore_eos=True, background=True))
    st = again(s, f"{r['id']}?stream=true")
    seen = [e for _, e in zip(range(8), st)]
    show(s, r["id"] + "/cancel", method="POST")
    seen += list(st)
    st.close()
    final = whole_and_sound(seen)
    expect(final["status"] == "cancelled" and plain(final) == plain(show(s, r["id"])), final["status"])


def patient(s, path):
    """GET that waits while a process is away."""
    end = time.monotonic() + 30
    while True:
        try:
            a = s.ask("GET", f"{PATH}/{path}", headers=ALICE)
            if a.status < 500:
                expect(a.status == 200, f"{path}: {a.status} {a.body[:400]}")
                return a.json()
        except OSError:
            pass
        expect(time.monotonic() < end, f"{path} is not shown for 30 s")
        time.sleep(0.05)


def once_with_a_key(s):
    for more in ({}, {"background": True}):
        body, who = asking(seed=None, **more), {**ALICE, "Idempotency-Key": f"once-{len(more)}"}
        first, again_ = make(s, body, who=who), make(s, body, who=who)
        expect(first["id"] == again_["id"], (first["id"], again_["id"]))
        expect(make(s, asking("Other.", seed=None, **more), who=who, status=422)["error"]["code"] == "idempotency_key_reused", "another body")


def small_things(s):
    a = s.post(PATH, asking(truncation="auto", max_tool_calls=2, metadata={"k": "v"}, nonsense=1), headers=ALICE)
    expect(a.status == 200 and a.json()["metadata"] == {"k": "v"}, a.body[:400])
    said = a.headers["x-di-warnings"]
    expect("truncation" in said and "max_tool_calls" in said and "nonsense" in said, said)
    counted = make(s, {"model": "demo", "input": "Tell a story.", "reasoning": {"effort": "none"}}, path=PATH + "/input_tokens")
    expect(counted == {"object": "response.input_tokens", "input_tokens": a.json()["usage"]["input_tokens"]}, counted)
    large = make(s, asking([{"type": "of_the_future", "data": "x" * 1_500_000}, {"role": "user", "content": "Hi"}]))
    expect(large["store"] is False, "kept though it is too large")
    show(s, large["id"], status=404)
    expect(make(s, asking(metadata={"k": "x" * 10**6}), status=400)["error"]["param"] == "metadata", "large metadata")


def what_is_kept_is_bounded():
    """A time to live, and bytes: the oldest go first."""
    with Served(dilaunch, f"{source}/launch/topologies/local1.yaml", sets=("gateway.model_names=[demo]", "gateway.stored_ttl=3s")) as s:
        r = make(s, asking(max_output_tokens=2), who={})
        show(s, r["id"], who={})
        s.until("it is gone", lambda: s.ask("GET", f"{PATH}/{r['id']}").status == 404)
    with Served(dilaunch, f"{source}/launch/topologies/local1.yaml", sets=("gateway.model_names=[demo]", "gateway.limits.stored_bytes=1MiB")) as s:
        names = [make(s, asking([{"type": "of_the_future", "data": "x" * 200_000}, {"role": "user", "content": "Hi"}], max_output_tokens=2), who={})["id"] for _ in range(8)]
        s.until("the oldest is gone", lambda: s.ask("GET", f"{PATH}/{names[0]}").status == 404)
        found = [s.ask("GET", f"{PATH}/{n}").status for n in names]
        expect(found[-1] == 200 and found == sorted(found, reverse=True), found)


def refusals(s):
    for more, field in (({"store": 1}, "store"), ({"conversation": "c"}, "conversation"), ({"previous_response_id": {}}, "previous_response_id"), ({"prompt": {"id": "x"}}, "prompt")):
        expect(make(s, asking(**more), status=400)["error"]["param"] == field, more)
    for name in ("resp_1", "x"):
        expect(make(s, asking(previous_response_id=name), status=400)["error"]["code"] == "previous_response_not_found", name)


def main():
    home = tempfile.mkdtemp(prefix="di-responses-")
    keys = home + "/keys.yaml"
    with open(keys, "w") as f:
        f.write("keys:\n  - {key: sk-alice-key, tenant: alice}\n  - {key: sk-bobs-key, tenant: bob}\n")
    tests = (streams_and_wholes_are_equal, not_kept, conversations, pages, back_to_a_stream, in_the_background, gone_when_deleted, of_another_tenant_nothing, once_with_a_key, small_things,
             refusals, a_watched_one_is_cancelled, kept_over_deaths, a_stream_outlives_its_gateway)
    wrong = []
    with Served(dilaunch, f"{source}/launch/topologies/local1.yaml", sets=("gateway.model_names=[demo]", f"gateway.keys_file={keys}")) as s:
        for test in tests:
            if sys.argv[3:] and test.__name__ not in sys.argv[3:]:
                continue
            try:
                test(s)
                print(f"{test.__name__}: ok", flush=True)
            except (AssertionError, KeyError, TypeError, IndexError, ValueError, OSError) as e:
                wrong.append(test.__name__)
                print(f"{test.__name__}: WRONG: {type(e).__name__}: {str(e)[:1500]}", flush=True)
    if not sys.argv[3:] or what_is_kept_is_bounded.__name__ in sys.argv[3:]:
        try:
            what_is_kept_is_bounded()
            print("what_is_kept_is_bounded: ok")
        except (AssertionError, KeyError, TypeError, IndexError, ValueError, OSError) as e:
            wrong.append(f"what_is_kept_is_bounded: {str(e)[:1500]}")
    os.remove(keys)
    os.rmdir(home)
    sys.exit(f"wrong: {wrong}" if wrong else 0)


main()
