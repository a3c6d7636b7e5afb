# SPDX-License-Identifier: Apache-2.0
"""Kills what serves clients, through HTTP: a rank, the control process, a gateway. Whole answers, and streams without a key, keep their bytes
(streams with one: survival_streams_test.py).

survival_test.py <dilaunch> <source folder>
"""
import http.client
import os
import signal
import sys
import threading
import time

from served import Served, expect, text_of

dilaunch, source = sys.argv[1:3]
chat = "/v1/chat/completions"


def ask_chat(i, **more):
    return {"model": "demo", "messages": [{"role": "user", "content": f"Tell story {i}."}], "thinking": {"type": "disabled"}, "max_tokens": 250, "seed": i, "ignore_eos": True, **more}


def content(answer):
    expect(answer.status == 200, answer.body[:400])
    return answer.json()["choices"][0]["message"]["content"]


def all_well(s):
    return s.ask("GET", "/readyz").status == 200 and s.ask("GET", "/readyz").json()["ranks_ready"] == 4


def whole_answers_survive(s, victim, want):
    answers = [None] * len(want)

    def one(i):
        answers[i] = s.post(chat, ask_chat(i))
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(want))]
    pid = s.processes()[victim]
    for t in threads:
        t.start()
    s.until("all are open", lambda: s.ask("GET", "/load").json()["server_load"] == len(want))
    os.kill(pid, signal.SIGKILL)
    expect(any(t.is_alive() for t in threads), "all had ended before the blow")
    for t in threads:
        t.join(90)
    expect([content(a) for a in answers] == want, f"{victim}: answers differ")
    s.until(f"all is well after {victim}", lambda: all_well(s), 90)


def a_gateway_costs_a_reconnect(s, want):
    streams = [s.stream(chat, ask_chat(i, stream=True)) for i in range(len(want))]
    seen = [[e for _, e in zip(range(15 + 7 * i), st)] for i, st in enumerate(streams)]
    os.kill(s.processes()["gateway 0"], signal.SIGKILL)
    for i, st in enumerate(streams):
        try:
            seen[i] += list(st)
        except (OSError, http.client.HTTPException):
            pass  # the connection broke, as it must
        st.close()
        end = time.monotonic() + 60
        while seen[i][-1].data != "[DONE]":
            expect(time.monotonic() < end, f"gateway: stream {i} does not go on")
            try:
                seen[i] += list(s.stream(chat, ask_chat(i, stream=True), headers={"Last-Event-ID": seen[i][-1].id}))
            except (OSError, http.client.HTTPException):
                continue  # the next life of the gateway is not there yet: the backlog takes us
        expect(text_of(seen[i]) == want[i], f"gateway: stream {i} differs")
    s.until("all is well after the gateway", lambda: all_well(s), 90)


def main():
    with Served(dilaunch, f"{source}/launch/topologies/local4.yaml", sets=("gateway.model_names=[demo]",)) as s:
        want = [content(s.post(chat, ask_chat(i))) for i in range(4)]
        whole_answers_survive(s, "control", want)
        whole_answers_survive(s, "rank 2", want)
        print("whole answers survive: ok", flush=True)
        a_gateway_costs_a_reconnect(s, want)
        print("a gateway costs a reconnect: ok", flush=True)


main()
