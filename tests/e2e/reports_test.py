# SPDX-License-Identifier: Apache-2.0
"""Public bug reports about inference servers (doc/serving.md has the table): what was sent, and the right behaviour, on a gateway and real ranks.
Scripted answers are forced ids: the ranks emit them. Reports about connections, load and deaths are in abuse_test.py and reports_life_test.py.

reports_test.py <dilaunch> <source folder> [NAME...]
"""
import json
import sys

from served import Served, expect, text_of

dilaunch, source = sys.argv[1:3]
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
TOOL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "bash", "description": "Runs a command", "parameters": TOOL}}]
CALL = '\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="bash">\n<｜DSML｜ parameter name="command" string="true">{}</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>'


def asking(text="Tell a story.", **more):
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "thinking": {"type": "disabled"}, "max_tokens": 40, "seed": 7, **more}


def good(s, path, body, **more):
    a = s.post(path, body, **more)
    expect(a.status == 200, f"{path} {str(body)[:300]}: {a.status} {a.body[:600]}")
    return a.json()


def refused(s, path, body, *words, status=400, **more):
    """The refusal, which is JSON of a bounded size; and the server lives."""
    a = s.post(path, body, **more)
    expect(a.status == status, f"{path} {str(body)[:300]}: {a.status} {a.body[:600]}")
    expect(a.headers["content-type"].startswith("application/json"), a.headers)
    expect(len(a.body) <= 4096, f"an error of {len(a.body)} bytes")
    e = json.loads(a.body.decode("utf-8"))["error"]
    expect(isinstance(e["message"], str) and e["message"], e)
    for w in words:
        expect(w in json.dumps(e), f"{w!r} is not in {e}")
    return e


def lives(s):
    expect(good(s, CHAT, asking(max_tokens=2))["choices"], "it serves no more")


def events_of(s, path, body, **more):
    st = s.stream(path, {**body, "stream": True}, **more)
    expect(st.status == 200, f"{path}: {st.status} {st.response.read()[:600] if st.status != 200 else ''}")
    events = list(st)
    st.close()
    return events


def r01_malformed_json(s):
    for body, at in (('{"model":"m",x}', "byte 1"), ("{", "byte"), ("", ""), ("[1]", ""), ('{"model": "demo"} trailing', "byte")):
        for path in (CHAT, COMPLETIONS, RESPONSES):
            refused(s, path, body, at)


def r02_text_that_is_none(s):
    for bad in (b'"\\ud83d"', b'"\\udc00x"', b'"\xff\xfe"', b'"a\x00b"', b'"\xc0\xaf"', b'"\xed\xa0\x80"'):
        body = b'{"model":"demo","max_tokens":2,"messages":[{"role":"user","content":' + bad + b"}]}"
        a = s.post(CHAT, body)
        expect(a.status == 400, f"{bad}: {a.status} {a.body}")
        a.body.decode("utf-8")
        a.json()
    good(s, CHAT, asking("a\x00b", max_tokens=2))  # escaped it is a character as others


def r03_many_invalid_items(s):
    refused(s, RESPONSES, {"model": "demo", "input": [{"type": "message", "role": "nobody", "content": "x" * 100} for _ in range(12000)]})
    refused(s, CHAT, {"model": "demo", "messages": [{"role": "nobody", "content": "x" * 100} for _ in range(12000)]})
    refused(s, CHAT, asking(tools=[{"type": "y" * 500} for _ in range(1000)]))


def r04_response_formats_that_are_none(s):
    recursive = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    for wrong in ({"type": "json_schema"}, {"type": "not-a-type"}, {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "not-a-type"}}},
                  {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": recursive}}, "json", 7):
        refused(s, CHAT, asking("Answer in json.", response_format=wrong))
    lives(s)


def r05_r06_schemas_fail_closed(s):
    for schema in ({"type": "object", "properties": {"a": "bar"}}, {"type": "object", "properties": {"a": {"type": "string", "pattern": "([a-z"}}}):
        refused(s, CHAT, asking("json", response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}), "unsupported_parameter")
        refused(s, RESPONSES, {"model": "demo", "input": "json", "text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": schema}}}, "unsupported_parameter")
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    refused(s, CHAT, {**asking(), "messages": [{"role": "user", "content": image}]}, "unsupported_content")
    lives(s)


def r04b_constraints_are_not_dropped_in_silence(s):
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": TOOL}}]
    a = s.post("/v1/chat/completions", asking(tools=tools, tool_choice="required", parallel_tool_calls=True, max_tokens=4, chat_template_kwargs={"thinking": False}))
    said = a.headers["x-di-warnings"] or ""
    expect(a.status == 200 and all(w in said for w in ("tools[0].strict", "tool_choice", "chat_template_kwargs")), (a.status, said, a.body[:300]))
    line = s.until("a line of the log", lambda: [l for l in s.log().splitlines() if "request_warnings" in l and a.headers["x-request-id"] in l], 10)[0]
    expect("tools[0].strict" in line and "chat_template_kwargs" in line, line)


def r07_prompts_beyond_the_context(s):
    long = "word " * 20000
    for stream in (False, True):
        e = refused(s, CHAT, asking(long, stream=stream), "context_length_exceeded")
        expect(sum(part.isdigit() for part in e["message"].replace(",", " ").replace(".", " ").split()) >= 2, e)
        refused(s, RESPONSES, {"model": "demo", "input": long, "stream": stream}, "context_length_exceeded")
        refused(s, COMPLETIONS, {"model": "demo", "prompt": long, "stream": stream}, "context_length_exceeded")
    lives(s)


def r09_numbers_out_of_bounds(s):
    for field, value in (("n", 1000000), ("max_tokens", 10**9), ("stop", [str(i) for i in range(100000)]), ("n", 0), ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 10**40), ("top_logprobs", 10**6)):
        more = {"logprobs": True} if field == "top_logprobs" else {}
        e = refused(s, CHAT, asking(**{field: value}, **more))
        expect(e["code"] != "model_not_found", e)
    lives(s)


def r10_more_than_the_context_leaves(s):
    model = s.ask("GET", "/v1/models").json()["data"][0]
    most = model["max_model_len"]
    refused(s, CHAT, asking("word " * 300, max_tokens=most - 10), "context_length_exceeded", str(most), str(most - 10))


EMOJI = "Grüße 👩‍👩‍👧‍👦 你好，世界 🇩🇪 𝔘𝔫𝔦 café"


def r11_characters_split_over_tokens(s):
    body = asking(di_forced_text=EMOJI, max_tokens=200)
    one = good(s, CHAT, body)["choices"][0]["message"]["content"]
    expect(one == EMOJI, one)
    events = events_of(s, CHAT, body)
    expect(text_of(events) == EMOJI and not any("\ufffd" in e.data for e in events), text_of(events))
    legacy = {"model": "demo", "prompt": "x", "max_tokens": 200, "di_forced_text": EMOJI}
    got = "".join(e.json()["choices"][0]["text"] for e in events_of(s, COMPLETIONS, legacy) if e.data != "[DONE]" and e.json()["choices"])
    expect(got == EMOJI == good(s, COMPLETIONS, legacy)["choices"][0]["text"], got)
    ids = good(s, "/tokenize", {"prompt": "ab 👩", "add_special_tokens": False})["tokens"]
    cut = asking(di_forced_ids=ids[:-1], max_tokens=len(ids) - 1, ignore_eos=True)
    whole, parts = good(s, CHAT, cut)["choices"][0]["message"]["content"], [e.json() for e in events_of(s, CHAT, cut) if e.data != "[DONE]"]
    shown = [c["delta"].get("content") or "" for p in parts for c in p["choices"]]
    expect("".join(shown) == whole and whole.startswith("ab"), (whole, shown))
    expect(sum("\ufffd" in piece for piece in shown) <= 1, shown)  # an incomplete tail comes once, at the end


def r12_stop_strings_over_borders(s):
    for text, want in (("My own fox jumps", "My "), ("own own fox", "own "), ("My own f", "My own f"), ("own foown fox", "own fo")):
        body = asking(di_forced_text=text, stop=["own fox"])
        one = good(s, CHAT, body)["choices"][0]
        expect((one["message"]["content"], one["finish_reason"]) == (want, "stop"), (text, one))
        expect(text_of(events_of(s, CHAT, body)) == want, text)
        legacy = {"model": "demo", "prompt": "x", "max_tokens": 40, "di_forced_text": text, "stop": ["own fox"]}
        expect(good(s, COMPLETIONS, legacy)["choices"][0]["text"] == want, text)
        got = "".join(e.json()["choices"][0]["text"] for e in events_of(s, COMPLETIONS, legacy) if e.data != "[DONE]" and e.json()["choices"])
        expect(got == want, (text, got))
    thinking = asking(di_forced_text="my own fox</think>Say own fox now", stop=["own fox"], thinking={"type": "enabled"}, max_tokens=80)
    m = good(s, CHAT, thinking)["choices"][0]["message"]
    expect((m["reasoning_content"], m["content"]) == ("my own fox", "Say "), m)
    mode = asking("Say it in json.", di_forced_text='{"a": "own fox"}', stop=["own fox"], response_format={"type": "json_object"}, max_tokens=80)
    expect("own fox" not in good(s, CHAT, mode)["choices"][0]["message"]["content"], "JSON mode")


def r13_the_last_flush_is_parsed(s):
    for text in ("Half a marker </thi", "Half a block \n\n<｜DSML｜", "Half a stop own fo"):
        body = asking(di_forced_text=text, stop=["own fox"], tools=CHAT_TOOLS, max_tokens=80)
        one = good(s, CHAT, body)["choices"][0]["message"]["content"]
        expect(text_of(events_of(s, CHAT, body)) == (one or ""), (text, one))
        if "DSML" not in text:
            expect(one == text, one)
    body = asking(di_forced_text="Well." + CALL.format("ls") + " own fox", stop=["own fox"], tools=CHAT_TOOLS, max_tokens=200)
    one = good(s, CHAT, body)["choices"][0]
    expect(one["finish_reason"] == "tool_calls" and one["message"]["content"] == "Well.", one)


def r15_choices_of_one_seed(s):
    body = asking(n=4, seed=1, temperature=1.0, ignore_eos=True, max_tokens=12)
    texts = [c["message"]["content"] for c in good(s, CHAT, body)["choices"]]
    expect(len(set(texts)) == 4, texts)
    expect([c["message"]["content"] for c in good(s, CHAT, body)["choices"]] == texts, "other texts for the same seed")
    free = asking(n=4, seed=1, temperature=1.0, max_tokens=30)
    events = events_of(s, CHAT, free)
    ends = {c["index"]: c["finish_reason"] for e in events[:-1] for c in e.json()["choices"] if c["finish_reason"]}
    expect(sorted(ends) == [0, 1, 2, 3] and events[-1].data == "[DONE]", ends)


def r16_log_probabilities(s):
    body = asking(logprobs=True, top_logprobs=2, max_tokens=16, ignore_eos=True)
    choice = good(s, CHAT, body)["choices"][0]
    entries = choice["logprobs"]["content"]
    expect(len(entries) == 16 and any(e["logprob"] != 0.0 for e in entries) and all(e["logprob"] <= 0.0 for e in entries), entries)
    expect(b"".join(bytes(e["bytes"]) for e in entries).decode(errors="replace").startswith(choice["message"]["content"][:1]), entries)


COMMANDS = ("make 2>&1", "echo '<a href=\"x\">' && cat <<EOF\n1 < 2\nEOF", "printf '</｜DSML'", "echo \"{\\\"a\\\": [1]}\"", "", "👩‍👩‍👧 ls")


def r18_calls_with_any_text(s):
    for command in COMMANDS:
        body = asking(di_forced_text="I run it.</think>Now:" + CALL.format(command), tools=CHAT_TOOLS, thinking={"type": "enabled"}, max_tokens=400)
        m = good(s, CHAT, body)["choices"][0]["message"]
        expect(json.loads(m["tool_calls"][0]["function"]["arguments"]) == {"command": command}, (command, m))
        expect("DSML" not in m["content"] and m["reasoning_content"] == "I run it.", m)
        events = events_of(s, CHAT, body)
        expect(text_of(events) == m["content"], "streamed content")
        calls = [d["function"].get("arguments", "") for e in events[:-1] for c in e.json()["choices"] for d in c["delta"].get("tool_calls", [])]
        expect("".join(calls) == m["tool_calls"][0]["function"]["arguments"], (command, calls))
        item = [o for o in good(s, RESPONSES, {"model": "demo", "input": "x", "tools": [{"type": "function", "name": "bash", "parameters": TOOL}], "di_forced_text": body["di_forced_text"], "max_output_tokens": 400})["output"] if o["type"] == "function_call"][0]
        expect(json.loads(item["arguments"]) == {"command": command}, item)


def r19_tools_that_must_not_be_used(s):
    bare = good(s, CHAT, asking(max_tokens=2))["usage"]["prompt_tokens"]
    none = good(s, CHAT, asking(max_tokens=2, tools=CHAT_TOOLS, tool_choice="none"))["usage"]["prompt_tokens"]
    given = good(s, CHAT, asking(max_tokens=2, tools=CHAT_TOOLS))["usage"]["prompt_tokens"]
    expect(bare == none < given, (bare, none, given))


def r20_spellings_of_special_tokens(s):
    for word in ("<｜deepseek_image｜>", "<｜Assistant｜></think>", "<｜end▁of▁sentence｜>", "<｜User｜>", "｜DSML｜"):
        ids = good(s, "/tokenize", {"model": "demo", "messages": [{"role": "user", "content": word}], "thinking": {"type": "disabled"}})["tokens"]
        plain = good(s, "/tokenize", {"model": "demo", "messages": [{"role": "user", "content": "a"}], "thinking": {"type": "disabled"}})["tokens"]
        special = [i for i in ids if good(s, "/detokenize", {"tokens": [i]})["prompt"] == word]
        expect(not special or plain.count(special[0]) == ids.count(special[0]), (word, ids))
        good(s, CHAT, {**asking(max_tokens=2), "messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word}, {"role": "user", "content": "and now?"}]})


def r20b_effort(s):
    def line(**more):
        body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], **more}
        return good(s, "/detokenize", {"tokens": good(s, "/tokenize", body)["tokens"]})["prompt"]
    for more, number in (({}, 75), ({"reasoning_effort": "low"}, 50), ({"reasoning_effort": "high"}, 75), ({"reasoning_effort": "max"}, 100)):
        expect(f"Reasoning Effort: {number} " in line(**more), (more, line(**more)[:200]))
    expect("Reasoning Effort" not in line(thinking={"type": "disabled"}), "effort where thinking is off")
    refused(s, CHAT, {**asking(), "thinking": {"type": "enabled"}, "reasoning_effort": "huge"})


def history(arguments, **more):
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    return {"model": "demo", "max_tokens": 2, "tools": CHAT_TOOLS, "messages": [
        {"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call], **more},
        {"role": "tool", "tool_call_id": "c1", "content": "done"}, {"role": "user", "content": "and?"}]}


def r21_arguments_of_history(s):
    def shown(arguments):
        body = {k: v for k, v in history(arguments).items() if k != "max_tokens"}
        return good(s, "/detokenize", {"tokens": good(s, "/tokenize", body)["tokens"]})["prompt"].split("invoke name=")[-1]
    text = shown('{"command": "ls"}')
    expect('name="command" string="true">ls<' in text and text == shown({"command": "ls"}), text)
    double = shown(json.dumps('{"command": "ls"}'))  # a JSON string is no object: as the reference has it
    expect('name="arguments" string="true">"{' in double, double)
    for broken in ('{"command": ', "[1, 2]"):
        expect('name="arguments" string="true">' + broken in shown(broken), shown(broken))
    nested = shown('{"arguments": {"command": "ls"}}')
    expect(nested.count("arguments") == 1 and 'name="arguments" string="false">{"command": "ls"}<' in nested, nested)
    for arguments in ('{"command": "ls"}', {"command": "ls"}, '{"command": ', "[1, 2]", "", '{"arguments": {"command": "ls"}}'):
        good(s, CHAT, history(arguments))


def r22_tool_turns_without_reasoning(s):
    good(s, CHAT, history('{"command": "ls"}'))
    good(s, CHAT, history('{"command": "ls"}', reasoning_content="because"))


def r23_messages_stream(s):
    body = {"model": "claude-x", "max_tokens": 400, "messages": [{"role": "user", "content": "hello " * 100}], "thinking": {"type": "enabled", "budget_tokens": 1024},
            "tools": [{"name": "bash", "input_schema": TOOL}], "di_forced_text": "Because.</think>So:" + CALL.format("ls")}
    for _ in range(2):  # the second may find its prompt cached
        events = [e.json() for e in events_of(s, MESSAGES, body)]
        start = events[0]["message"]["usage"]
        read = start["input_tokens"] + start.get("cache_read_input_tokens", 0) + start.get("cache_creation_input_tokens", 0)
        counted = good(s, MESSAGES + "/count_tokens", {k: v for k, v in body.items() if not k.startswith("di_")})["input_tokens"]
        expect(start["input_tokens"] > 0 and read == counted, (start, counted))
        open_block, kinds = None, []
        for e in events:
            if e["type"] == "content_block_start":
                expect(open_block is None, "two blocks are open")
                open_block = e["index"]
                kinds.append(e["content_block"]["type"])
            elif e["type"] == "content_block_delta":
                expect(e["index"] == open_block, "a delta of a block that is not open")
            elif e["type"] == "content_block_stop":
                expect(e["index"] == open_block, "the end of another block")
                open_block = None
        expect(kinds == ["thinking", "text", "tool_use"] and open_block is None, kinds)
        expect(any(e["type"] == "content_block_delta" and e["delta"]["type"] == "thinking_delta" for e in events), "no thinking_delta")


def r25_usage_in_streams(s):
    for options, wanted in (({}, 0), ({"stream_options": {}}, 0), ({"stream_options": {"include_usage": False}}, 0), ({"stream_options": {"include_usage": True}}, 1)):
        chunks = [e.json() for e in events_of(s, CHAT, asking(max_tokens=6, **options)) if e.data != "[DONE]"]
        full = [c for c in chunks if c.get("usage")]
        expect(len(full) == wanted, (options, full))
        if wanted:
            expect(chunks[-1] is full[0] and full[0]["choices"] == [], full)
    refused(s, CHAT, asking(stream_options=7, stream=True))


def main():
    tests = [(n, f) for n, f in sorted(globals().items()) if n[0] == "r" and n[1:3].isdigit()]
    wrong = []
    with Served(dilaunch, f"{source}/launch/topologies/local1.yaml", sets=("gateway.model_names=[demo]",)) as s:
        for name, test in tests:
            if sys.argv[3:] and name not in sys.argv[3:]:
                continue
            try:
                test(s)
                print(f"{name}: ok", flush=True)
            except (AssertionError, KeyError, TypeError, IndexError, ValueError, OSError) as e:
                wrong.append(name)
                print(f"{name}: WRONG: {type(e).__name__}: {str(e)[:1500]}", flush=True)
    sys.exit(f"wrong: {wrong}" if wrong else 0)


main()
