# SPDX-License-Identifier: Apache-2.0
"""The official openai and anthropic packages, unmodified, against real ranks. Exit code 77 if they cannot be installed here.

clients_test.py <dilaunch> <source folder> <build folder>
"""
import os
import subprocess
import sys

dilaunch, source, build = sys.argv[1:4]
here = os.path.dirname(os.path.abspath(__file__))


def environment():
    """Python of a virtual environment with the packages, made once for each list of them."""
    wanted = open(f"{here}/clients_requirements.txt").read()
    home = f"{build}/clients_venv"
    mark = f"{home}/installed"
    if not os.path.exists(mark) or open(mark).read() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        made = subprocess.run([f"{home}/bin/pip", "install", "--quiet", "--disable-pip-version-check", "-r", f"{here}/clients_requirements.txt"])
        if made.returncode:
            print("skipped: pip cannot install the packages here")
            sys.exit(77)
        with open(mark, "w") as f:
            f.write(wanted)
    return f"{home}/bin/python"


if os.environ.get("DI_CLIENTS_VENV") != "1":
    python = environment()
    os.execve(python, [python, *sys.argv], dict(os.environ, DI_CLIENTS_VENV="1"))

import anthropic  # noqa: E402
import openai  # noqa: E402
from served import Served, expect  # noqa: E402

call = ('I think.</think>Let me see.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="get_weather">\n'
        '<｜DSML｜ parameter name="location" string="true">Beijing</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>')
schema = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
tools = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a place.", "parameters": schema}}]
quiet = {"thinking": {"type": "disabled"}}
hi = [{"role": "user", "content": "Hi"}]


def chat(c):
    model = c.models.list().data[0].id
    expect(c.models.retrieve(model).id == model, "one model")
    whole = c.chat.completions.create(model=model, messages=hi, max_tokens=30, seed=1, extra_body=quiet)
    text, usage = "", None
    for chunk in c.chat.completions.create(model=model, messages=hi, max_tokens=30, seed=1, stream=True, stream_options={"include_usage": True}, extra_body=quiet):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    expect(text == whole.choices[0].message.content and text, (text, whole))
    expect(usage == whole.usage, (usage, whole.usage))
    expect(whole.system_fingerprint.startswith("fp_"), whole)
    tale = [{"role": "user", "content": "Tell a story."}]
    many = c.chat.completions.create(model=model, messages=tale, max_tokens=8, n=3, seed=2, logprobs=True, top_logprobs=2, extra_body={**quiet, "ignore_eos": True})
    expect(len({x.message.content for x in many.choices}) > 1 and all(len(x.logprobs.content) == 8 for x in many.choices), many)


def chat_tools(c):
    asked = dict(model="demo", messages=hi, tools=tools, max_tokens=200, extra_body={"di_forced_text": call})
    m = c.chat.completions.create(**asked).choices[0]
    expect(m.finish_reason == "tool_calls" and m.message.reasoning_content == "I think." and m.message.content == "Let me see.", m)
    expect(m.message.tool_calls[0].function.arguments == '{"location": "Beijing"}', m)
    with c.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        last = stream.get_final_completion().choices[0]
    expect(last.message.tool_calls[0].function.arguments == '{"location": "Beijing"}' and last.message.content == "Let me see.", last)
    history = [*hi, {"role": "assistant", "content": "Let me see.", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"location": "Beijing"}'}}]},
               {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"}]
    after = c.chat.completions.create(model="demo", messages=history, tools=tools, max_tokens=100, extra_body={"di_forced_text": "Good.</think>It is warm."})
    expect(after.choices[0].message.content == "It is warm.", after)


def completions(c):
    r = c.completions.create(model="demo", prompt="Once", max_tokens=10, logprobs=2, n=2, seed=1)
    expect(len(r.choices) == 2 and len(r.choices[0].logprobs.tokens) == r.usage.completion_tokens - len(r.choices[1].logprobs.tokens), r)
    text = "".join(x.choices[0].text for x in c.completions.create(model="demo", prompt="Once", max_tokens=10, seed=1, stream=True))
    expect(text == c.completions.create(model="demo", prompt="Once", max_tokens=10, seed=1).choices[0].text, text)


def responses(c):
    first = c.responses.create(model="demo", input="Hi", max_output_tokens=100, extra_body={"di_forced_text": "Greet.</think>Hello!"})
    expect(first.status == "completed" and first.output_text == "Hello!", first)
    expect(c.responses.retrieve(first.id).output_text == "Hello!", "stored")
    second = c.responses.create(model="demo", input="And now?", previous_response_id=first.id, max_output_tokens=100, extra_body={"di_forced_text": "More.</think>Bye."})
    expect(second.output_text == "Bye." and second.usage.input_tokens > first.usage.input_tokens, second)
    flat = [{"type": "function", "name": "get_weather", "parameters": schema, "strict": False}]
    with c.responses.stream(model="demo", input="Hi", tools=flat, max_output_tokens=200, extra_body={"di_forced_text": call}) as stream:
        numbers = [event.sequence_number for event in stream]
        last = stream.get_final_response()
    expect(numbers == list(range(len(numbers))), numbers)
    expect([o.type for o in last.output] == ["reasoning", "message", "function_call"], last)
    expect(c.responses.input_items.list(first.id).data[0].content[0].text == "Hi", "input items")
    c.responses.delete(first.id)
    try:
        c.responses.retrieve(first.id)
        raise AssertionError("it is still there")
    except openai.NotFoundError:
        pass


def openai_errors(c):
    for kind, status, code, body in ((openai.NotFoundError, 404, "model_not_found", {"model": "nope"}), (openai.BadRequestError, 400, "invalid_request_error", {"model": "demo", "max_tokens": 10**9}),
                                     (openai.BadRequestError, 400, "context_length_exceeded", {"model": "demo", "max_tokens": 4096})):
        try:
            c.chat.completions.create(messages=hi, **body)
            raise AssertionError(f"{body} was taken")
        except kind as e:
            expect(e.status_code == status and e.code == code and e.request_id, (e, e.code))
    stream = c.chat.completions.create(model="demo", messages=hi, max_tokens=2000, stream=True, extra_body={**quiet, "ignore_eos": True})
    next(iter(stream))
    stream.close()


def messages(a):
    asked = dict(model="claude-opus-4-1", max_tokens=300, messages=hi)
    plain = a.messages.create(**asked, thinking={"type": "disabled"}, extra_body={"seed": 3})
    expect(plain.content[0].type == "text" and plain.stop_reason in ("end_turn", "max_tokens"), plain)
    counted = a.messages.count_tokens(model="claude-opus-4-1", messages=hi, thinking={"type": "disabled"}).input_tokens
    expect(plain.usage.input_tokens + plain.usage.cache_read_input_tokens == counted, (plain.usage, counted))
    with a.messages.stream(**asked, thinking={"type": "enabled", "budget_tokens": 1024}, tools=[{"name": "get_weather", "input_schema": schema}], extra_body={"di_forced_text": call}) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_message()
    expect([b.type for b in last.content] == ["thinking", "text", "tool_use"] and last.stop_reason == "tool_use", last)
    expect(last.content[0].thinking == "I think." and last.content[2].input == {"location": "Beijing"}, last)
    expect(kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds)
    stopped = a.messages.create(**asked, thinking={"type": "disabled"}, stop_sequences=["fox"], extra_body={"di_forced_text": "My own fox"})
    expect(stopped.content[0].text == "My own " and stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "fox", stopped)
    try:
        a.messages.create(model="gpt-4", max_tokens=3, messages=hi)
        raise AssertionError("gpt-4 was taken")
    except anthropic.NotFoundError as e:
        expect(e.request_id and e.body["error"]["type"] == "not_found_error", e)


def main():
    with Served(dilaunch, f"{source}/launch/topologies/local1.yaml", sets=("gateway.model_names=[demo]",)) as s:
        base = f"http://localhost:{s.ports[0]}"
        for root in ("/v1", ""):
            c = openai.OpenAI(base_url=base + root, api_key="none", max_retries=0, timeout=60)
            chat(c)
        for test in (chat_tools, completions, responses, openai_errors):
            test(c)
            print(f"{test.__name__}: ok", flush=True)
        for root in ("", "/anthropic"):
            messages(anthropic.Anthropic(base_url=base + root, api_key="none", max_retries=0, timeout=60))
        print("messages: ok", flush=True)
        s.until("nothing is open", lambda: s.ask("GET", "/load").json()["server_load"] == 0)


main()
