# SPDX-License-Identifier: Apache-2.0
"""The official Python clients of OpenAI and Anthropic, unmodified, against a gateway and real ranks: chat, responses, messages; whole and streamed;
tools, thinking, cancelling, errors. What the demo model cannot be made to say, the ranks emit as forced ids.

clients_test.py <dilaunch> <source folder> <folder for the virtual environment> [NAME...]
"""
import asyncio
import json
import sys

import client_venv

dilaunch, source, venv = sys.argv[1:4]
client_venv.enter(venv)

import anthropic  # noqa: E402
import openai  # noqa: E402

from served import Served, expect  # noqa: E402

OFF = {"thinking": {"type": "disabled"}}
ASK = [{"role": "user", "content": "What is the capital of Chile?"}]
PARAMETERS = {"type": "object", "properties": {"location": {"type": "string"}, "days": {"type": "integer"}}, "required": ["location"]}
CALL = ('\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="location" string="true">Bei "jing" 2>&1</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="days" string="false">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>')
ARGUMENTS = {"location": 'Bei "jing" 2>&1', "days": 3}


def says(text, **more):
    """Fields that no SDK knows: the ranks emit this text."""
    return {"di_forced_text": text, **more}


def same(got, wanted):
    expect(got == wanted, f"{got!r}, wanted {wanted!r}")


def refused(kind, call, *words):
    try:
        answer = call()
    except kind as e:
        for w in words:
            expect(w in str(e), f"{w!r} is not in {e}")
        return e
    raise AssertionError(f"no {kind.__name__} but {answer!r}"[:600])


# OpenAI: chat

def chat_whole_and_streamed(s, o, a):
    fields = {"model": "demo", "messages": ASK, "seed": 5, "temperature": 0, "max_tokens": 24, "extra_body": OFF}
    one = o.chat.completions.create(**fields)
    same(one.choices[0].message.content, "The capital of Chile is Santiago.")
    same((one.choices[0].finish_reason, one.object, one.model), ("stop", "chat.completion", "demo"))
    expect(one.system_fingerprint.startswith("fp_") and one.id.startswith("chatcmpl-"), one)
    same(one.usage.total_tokens, one.usage.prompt_tokens + one.usage.completion_tokens)
    chunks = list(o.chat.completions.create(stream=True, stream_options={"include_usage": True}, **fields))
    same("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), one.choices[0].message.content)
    same(chunks[0].choices[0].delta.role, "assistant")
    same([c.usage for c in chunks[:-1]], [None] * (len(chunks) - 1))
    same(chunks[-1].usage.completion_tokens, one.usage.completion_tokens)
    same([c.choices[0].finish_reason for c in chunks if c.choices][-1], "stop")
    expect(len(chunks) > 4, "it did not stream")


def chat_helpers_of_the_client(s, o, a):
    with o.chat.completions.stream(model="demo", messages=ASK, max_tokens=24, seed=5, temperature=0, extra_body=OFF) as stream:
        kinds = [e.type for e in stream]
        last = stream.get_final_completion()
    same(last.choices[0].message.content, "The capital of Chile is Santiago.")
    expect("content.delta" in kinds and "content.done" in kinds, kinds)


def chat_thinking(s, o, a):
    text = "First I count.\nThen I add.</think>It is seven."
    body = {"model": "demo", "messages": ASK, "reasoning_effort": "high", "max_tokens": 100}
    one = o.chat.completions.create(**body, extra_body=says(text)).choices[0].message
    same((one.reasoning_content, one.content), ("First I count.\nThen I add.", "It is seven."))
    deltas = [c.choices[0].delta for c in o.chat.completions.create(stream=True, **body, extra_body=says(text)) if c.choices]
    same("".join(getattr(d, "reasoning_content", None) or "" for d in deltas), "First I count.\nThen I add.")
    same("".join(d.content or "" for d in deltas), "It is seven.")


def chat_tools(s, o, a):
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": PARAMETERS}}]
    body = {"model": "demo", "messages": [{"role": "user", "content": "Weather?"}], "tools": tools, "max_tokens": 200}
    one = o.chat.completions.create(**body, extra_body=says("Let me see." + CALL, **OFF)).choices[0]
    same((one.finish_reason, one.message.content), ("tool_calls", "Let me see."))
    call = one.message.tool_calls[0]
    same((call.type, call.function.name, json.loads(call.function.arguments)), ("function", "get_weather", ARGUMENTS))
    name, arguments, ids = "", "", []
    for c in o.chat.completions.create(stream=True, **body, extra_body=says("Let me see." + CALL, **OFF)):
        for d in (c.choices[0].delta.tool_calls or [] if c.choices else []):
            ids += [d.id] if d.id else []
            name += d.function.name or ""
            arguments += d.function.arguments or ""
    same((len(ids), name, json.loads(arguments)), (1, "get_weather", ARGUMENTS))
    body["messages"] += [one.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    after = o.chat.completions.create(**body, extra_body=says("It is sunny.", **OFF)).choices[0]
    same((after.finish_reason, after.message.content, after.message.tool_calls), ("stop", "It is sunny.", None))


def chat_choices_and_logprobs(s, o, a):
    one = o.chat.completions.create(model="demo", messages=ASK, n=3, seed=1, temperature=1.0, max_tokens=8, logprobs=True, top_logprobs=2, extra_body=OFF)
    again = o.chat.completions.create(model="demo", messages=ASK, n=3, seed=1, temperature=1.0, max_tokens=8, logprobs=True, top_logprobs=2, extra_body=OFF)
    same([c.index for c in one.choices], [0, 1, 2])
    same([c.model_dump() for c in again.choices], [c.model_dump() for c in one.choices])
    for c in one.choices:
        same("".join(t.token for t in c.logprobs.content if t.bytes is not None)[:len(c.message.content)], c.message.content)
        expect(all(t.logprob <= 0 and len(t.top_logprobs) == 2 for t in c.logprobs.content), c.logprobs)


def legacy_completions(s, o, a):
    one = o.completions.create(model="demo", prompt="The capital of Chile is", max_tokens=8, temperature=0, stop=["."])
    same(one.object, "text_completion")
    chunks = list(o.completions.create(model="demo", prompt="The capital of Chile is", max_tokens=8, temperature=0, stop=["."], stream=True))
    same("".join(c.choices[0].text for c in chunks if c.choices), one.choices[0].text)
    expect("." not in one.choices[0].text, one)


# OpenAI: responses

def responses_whole_and_streamed(s, o, a):
    fields = {"model": "demo", "input": "What is the capital of Chile?", "reasoning": {"effort": "none"}, "temperature": 0, "max_output_tokens": 24}
    one = o.responses.create(**fields)
    same((one.status, one.output_text), ("completed", "The capital of Chile is Santiago."))
    events = list(o.responses.create(stream=True, **fields))
    same([e.sequence_number for e in events], list(range(len(events))))
    same([events[0].type, events[1].type, events[-1].type], ["response.created", "response.in_progress", "response.completed"])
    same("".join(e.delta for e in events if e.type == "response.output_text.delta"), one.output_text)
    same(events[-1].response.output_text, one.output_text)
    with o.responses.stream(**fields) as stream:
        for _ in stream:
            pass
        same(stream.get_final_response().output_text, one.output_text)


def responses_kept(s, o, a):
    one = o.responses.create(model="demo", input="My name is Noah.", reasoning={"effort": "none"}, max_output_tokens=8, extra_body=says("Hello."))
    same(o.responses.retrieve(one.id).output_text, "Hello.")
    same([i.content[0].text for i in o.responses.input_items.list(one.id)], ["My name is Noah."])
    two = o.responses.create(model="demo", input="And now?", previous_response_id=one.id, reasoning={"effort": "none"}, max_output_tokens=8, extra_body=says("Bye."))
    expect(two.previous_response_id == one.id and two.usage.input_tokens > one.usage.input_tokens, two)
    o.responses.delete(one.id)
    refused(openai.NotFoundError, lambda: o.responses.retrieve(one.id))
    refused(openai.BadRequestError, lambda: o.responses.create(model="demo", input="x", previous_response_id=one.id), one.id)


def responses_tools_and_reasoning(s, o, a):
    tools = [{"type": "function", "name": "get_weather", "description": "Weather", "parameters": PARAMETERS}]
    fields = {"model": "demo", "input": "Weather?", "tools": tools, "max_output_tokens": 200, "extra_body": says("I think.</think>Let me see." + CALL)}
    one = o.responses.create(**fields)
    same([i.type for i in one.output], ["reasoning", "message", "function_call"])
    same(json.loads(one.output[2].arguments), ARGUMENTS)
    events = list(o.responses.create(stream=True, **fields))
    done = [e for e in events if e.type == "response.function_call_arguments.done"]
    same([json.loads(e.arguments) for e in done], [ARGUMENTS])
    final = events[-1].response
    same([i.type for i in final.output], [i.type for i in one.output])
    added = [e.item.id for e in events if e.type == "response.output_item.added"]
    same(added, [i.id for i in final.output])


def responses_cancelled(s, o, a):
    one = o.responses.create(model="demo", input="Tell a story.", background=True, max_output_tokens=3000, extra_body={"ignore_eos": True})
    expect(one.status in ("queued", "in_progress"), one.status)
    same(o.responses.cancel(one.id).status, "cancelled")
    same(o.responses.retrieve(one.id).status, "cancelled")


# Anthropic

def messages_whole_and_streamed(s, o, a):
    fields = {"model": "demo", "max_tokens": 24, "messages": ASK, "extra_body": dict(OFF, temperature=0)}
    one = a.messages.create(**fields)
    same((one.type, one.role, one.stop_reason), ("message", "assistant", "end_turn"))
    same([b.type for b in one.content], ["text"])
    same(one.content[0].text, "The capital of Chile is Santiago.")
    with a.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    same((text, final.content[0].text), (one.content[0].text,) * 2)
    same(final.usage.output_tokens, one.usage.output_tokens)
    kinds = [e.type for e in a.messages.create(stream=True, **fields)]
    same([kinds[0], kinds[1], kinds[-2], kinds[-1]], ["message_start", "content_block_start", "message_delta", "message_stop"])
    same(a.messages.count_tokens(model="demo", messages=ASK, extra_body=OFF).input_tokens, one.usage.input_tokens)


def messages_thinking_and_tools(s, o, a):
    tools = [{"name": "get_weather", "description": "Weather", "input_schema": PARAMETERS}]
    fields = {"model": "demo", "max_tokens": 200, "messages": [{"role": "user", "content": "Weather?"}], "tools": tools,
              "extra_body": says("I think.</think>Let me see." + CALL, thinking={"type": "enabled", "budget_tokens": 1024})}
    one = a.messages.create(**fields)
    same([b.type for b in one.content], ["thinking", "text", "tool_use"])
    same((one.content[0].thinking, one.content[1].text, one.content[2].input, one.stop_reason), ("I think.", "Let me see.", ARGUMENTS, "tool_use"))
    with a.messages.stream(**fields) as stream:
        final = stream.get_final_message()
    drawn = {"signature", "id"}
    same([b.model_dump(exclude=drawn) for b in final.content], [b.model_dump(exclude=drawn) for b in one.content])
    more = fields["messages"] + [{"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in one.content]},
                                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": one.content[2].id, "content": "sunny"}]}]
    after = a.messages.create(model="demo", max_tokens=60, messages=more, tools=tools, extra_body=says("Good.</think>It is sunny."))
    same(after.content[-1].text, "It is sunny.")


def one_call_where_asked_to(s, o, a):
    """A second call is neither told nor waited for."""
    both = says("I think.</think>Let me see." + CALL.replace("</｜DSML｜ calls>", "") + CALL.split("calls>\n", 1)[1])
    function = {"name": "get_weather", "description": "Weather", "parameters": PARAMETERS}
    body = {"model": "demo", "messages": [{"role": "user", "content": "Weather?"}], "tools": [{"type": "function", "function": function}], "max_tokens": 400, "extra_body": both}
    two = o.chat.completions.create(**body)
    one = o.chat.completions.create(parallel_tool_calls=False, **body)
    same([len(x.choices[0].message.tool_calls) for x in (two, one)], [2, 1])
    same((one.choices[0].finish_reason, json.loads(one.choices[0].message.tool_calls[0].function.arguments)), ("tool_calls", ARGUMENTS))
    expect(one.usage.completion_tokens < two.usage.completion_tokens - 20, (one.usage, two.usage))
    deltas = [c.choices[0].delta for c in o.chat.completions.create(stream=True, parallel_tool_calls=False, **body) if c.choices]
    same([d.index for x in deltas for d in x.tool_calls or [] if d.id], [0])
    same(json.loads("".join(d.function.arguments or "" for x in deltas for d in x.tool_calls or [])), ARGUMENTS)
    response = o.responses.create(model="demo", input="Weather?", tools=[{"type": "function", **function}], max_output_tokens=400, parallel_tool_calls=False, extra_body=both)
    same(([i.type for i in response.output], response.status, response.parallel_tool_calls), (["reasoning", "message", "function_call"], "completed", False))
    message = a.messages.create(model="demo", max_tokens=400, messages=body["messages"], tools=[{"name": "get_weather", "input_schema": PARAMETERS}],
                                tool_choice={"type": "auto", "disable_parallel_tool_use": True}, extra_body=both)
    same(([b.type for b in message.content], message.stop_reason), (["thinking", "text", "tool_use"], "tool_use"))


def messages_of_other_names(s, o, a):
    """Agents ask for models of their own names, and below /anthropic."""
    b = anthropic.Anthropic(base_url=str(a.base_url).rstrip("/") + "/anthropic", api_key="none", max_retries=0, timeout=60)
    one = b.messages.create(model="claude-opus-4-1", max_tokens=60, messages=ASK, stop_sequences=["fox"], extra_body=says("My own fox", **OFF))
    same((one.content[0].text, one.stop_reason, one.stop_sequence), ("My own ", "stop_sequence", "fox"))
    same(openai.OpenAI(base_url=str(a.base_url), api_key="none", max_retries=0).models.list().data[0].id, "demo")


# Both

def errors_are_typed(s, o, a):
    refused(openai.NotFoundError, lambda: o.chat.completions.create(model="nobody", messages=ASK), "nobody")
    refused(anthropic.NotFoundError, lambda: a.messages.create(model="nobody", max_tokens=5, messages=ASK), "nobody")
    e = refused(openai.BadRequestError, lambda: o.chat.completions.create(model="demo", messages=[{"role": "user", "content": "word " * 9000}]), "4096")
    same(e.code, "context_length_exceeded")
    refused(anthropic.BadRequestError, lambda: a.messages.create(model="demo", max_tokens=5, messages=[{"role": "user", "content": "word " * 9000}]), "4096")
    refused(openai.BadRequestError, lambda: o.chat.completions.create(model="demo", messages=ASK, temperature=9), "temperature")
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {}}}}
    refused(openai.BadRequestError, lambda: o.chat.completions.create(model="demo", messages=ASK, response_format=schema), "json_schema")


def models_are_listed(s, o, a):
    expect("demo" in [m.id for m in o.models.list()], "openai")
    expect("demo" in [m.id for m in a.models.list()], "anthropic")
    same(o.models.retrieve("demo").id, "demo")
    refused(openai.NotFoundError, lambda: o.models.retrieve("nobody"))


def a_client_that_leaves_cancels(s, o, a):
    before = s.metrics()
    aborted = next(k for k in before if "finished_reason=\"abort\"" in k and k.startswith("di_"))
    stream = o.chat.completions.create(model="demo", messages=ASK, max_tokens=3000, stream=True, extra_body=dict(OFF, ignore_eos=True))
    next(iter(stream))
    stream.close()
    s.until("the answer counts as left", lambda: s.metrics()[aborted] == before[aborted] + 1)
    with a.messages.stream(model="demo", max_tokens=3000, messages=ASK, extra_body=dict(OFF, ignore_eos=True)) as m:
        next(iter(m))
    s.until("the second too", lambda: s.metrics()[aborted] == before[aborted] + 2)


def many_at_once(s, o, a):
    """32 streams of the asynchronous client at once, each as alone."""
    async def all_of_them():
        client = openai.AsyncOpenAI(base_url=o.base_url, api_key="none", max_retries=0)

        async def one(i):
            text = ""
            async for c in await client.chat.completions.create(model="demo", messages=ASK, seed=i % 4, max_tokens=16, stream=True, extra_body=OFF):
                text += c.choices[0].delta.content or "" if c.choices else ""
            return text
        return await asyncio.gather(*(one(i) for i in range(32)))
    texts = asyncio.run(all_of_them())
    for i, text in enumerate(texts):
        same(text, texts[i % 4])


CASES = [chat_whole_and_streamed, chat_helpers_of_the_client, chat_thinking, chat_tools, chat_choices_and_logprobs, legacy_completions,
         responses_whole_and_streamed, responses_kept, responses_tools_and_reasoning, responses_cancelled,
         messages_whole_and_streamed, messages_thinking_and_tools, one_call_where_asked_to, messages_of_other_names, errors_are_typed, models_are_listed, a_client_that_leaves_cancels, many_at_once]


def main():
    wanted, failed = sys.argv[4:], []
    with Served(dilaunch, source + "/launch/topologies/local4.yaml") as s:
        url = f"http://localhost:{s.ports[0]}"
        o = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)
        a = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
        print(f"openai {openai.__version__}, anthropic {anthropic.__version__}")
        for case in CASES:
            if wanted and case.__name__ not in wanted:
                continue
            try:
                case(s, o, a)
                print(f"ok      {case.__name__}")
            except Exception as e:  # the next case is worth running
                failed.append(case.__name__)
                print(f"FAILED  {case.__name__}: {type(e).__name__}: {e}")
        if failed:
            raise AssertionError(f"{len(failed)} cases failed: {', '.join(failed)}")


main()
