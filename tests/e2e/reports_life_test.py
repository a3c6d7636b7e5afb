# SPDX-License-Identifier: Apache-2.0
"""Public bug reports about clients that leave, processes that die and several gateways (doc/serving.md has the table), with real processes.

reports_life_test.py <dilaunch> <source folder> [NAME...]
"""
import json
import os
import signal
import subprocess
import sys
import time

from cluster_run import alive
from served import Served, expect, text_of

dilaunch, source = sys.argv[1:3]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
NAMED = "gateway.model_names=[demo]"


def serving(ranks=1, *sets, **more):
    return Served(dilaunch, f"{source}/launch/topologies/local{ranks}.yaml", sets=(NAMED, *sets), **more)


def asking(text="Tell a story.", **more):
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "thinking": {"type": "disabled"}, "max_tokens": 40, "seed": 7, **more}


def good(s, path, body, **more):
    a = s.post(path, body, **more)
    expect(a.status == 200, f"{path}: {a.status} {a.body[:600]}")
    return a.json()


def load(s):
    return s.ask("GET", "/load").json()["server_load"]


def aborted(s):
    return sum(v for k, v in s.metrics().items() if k.startswith("di_request_success_total") and "abort" in k)


def begun(s, path, body):
    """A request on its way; nobody reads its answer yet."""
    c = s.connect()
    c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return c


def r14_clients_that_leave():
    with serving() as s:
        long = dict(max_tokens=3000, ignore_eos=True)
        bodies = {CHAT: asking(**long), RESPONSES: {"model": "demo", "input": "Tell a story.", "max_output_tokens": 3000, "ignore_eos": True},
                  MESSAGES: {"model": "claude-x", "messages": asking()["messages"], "max_tokens": 3000, "ignore_eos": True}}
        took = {}
        for path, body in bodies.items():
            for phase in ("stream", "whole", "prefill", "queue"):
                if phase == "prefill":
                    body = json.loads(json.dumps(body).replace("Tell a story.", "word " * 900))
                ahead = [begun(s, CHAT, asking(**long)) for _ in range(40)] if phase == "queue" else []
                s.until("those ahead are open", lambda: load(s) >= len(ahead))
                before = aborted(s)
                c = begun(s, path, {**body, "stream": phase == "stream"})
                if phase == "stream":
                    c.getresponse().readline()
                s.until(f"{path} {phase}: it is open", lambda: load(s) > len(ahead))
                c.close()
                left = time.monotonic()
                s.until(f"{path} {phase}: it is let go", lambda: load(s) == len(ahead) and aborted(s) > before)
                took[f"{path} {phase}"] = round(1000 * (time.monotonic() - left))
                for a in ahead:
                    a.close()
                s.until("nothing is open", lambda: load(s) == 0)
            good(s, CHAT, asking(max_tokens=4))
        print(json.dumps({"let_go_ms": took}))
        status = lambda: json.loads(subprocess.run([dilaunch, "status", "--json"], env=s.env, capture_output=True, text=True, timeout=60).stdout)
        s.until("the cluster has let go of all of them", lambda: status()["requests"]["open"] == 0)
        expect("http_request" in s.log() and "status=499" in s.log(), "no line about a client that left")


def r26_storms_of_aborts():
    with serving(2) as s:
        want, slowest = good(s, CHAT, asking(max_tokens=60)), 0
        for _ in range(5):
            storm = [begun(s, CHAT, asking(f"Story {i}.", max_tokens=3000, ignore_eos=True, stream=i % 2 == 0)) for i in range(60)]
            s.until("some are open", lambda: load(s) > 20)
            for c in storm:
                c.close()
            began = time.monotonic()
            s.until("all are let go", lambda: load(s) == 0, 2)
            slowest = max(slowest, time.monotonic() - began)
            expect(good(s, CHAT, asking(max_tokens=60))["choices"] == want["choices"], "another answer after a storm")
            expect(time.monotonic() - began < 20, "nothing is served after a storm")
        print(json.dumps({"let_go_ms": round(1000 * slowest)}))


def r16_r17_speculation():
    body = asking(logprobs=True, top_logprobs=3, max_tokens=48, ignore_eos=True, temperature=0.8)
    mode = asking("Answer in json.", response_format={"type": "json_object"}, max_tokens=60)
    answers = []
    for speculation in ("off", "fixed:2"):
        with serving(1, f"roles.decode.speculation={speculation}") as s:
            answers.append((good(s, CHAT, body)["choices"], good(s, CHAT, mode)["choices"], text_of(list(s.stream(CHAT, {**body, "stream": True})))))
            if speculation != "off":
                s.until("drafts were verified", lambda: "\ndi_rank_drafts_verified_total " in s.ask("GET", "/metrics", port=s.admin_port).body.decode())
    expect(answers[0] == answers[1], "drafts changed an answer or its log probabilities")
    entries = answers[1][0][0]["logprobs"]["content"]
    expect(len(entries) == 48 and any(e["logprob"] < -1e-6 for e in entries), entries[:3])
    expect(answers[0][2] == answers[0][0][0]["message"]["content"], "the stream differs from the whole answer")


def r29_no_orphans():
    def gone(pids, seconds):
        end = time.monotonic() + seconds
        while left := [n for n, p in pids.items() if alive(p)]:
            expect(time.monotonic() < end, f"{left} live on after {seconds} s")
            time.sleep(0.02)

    with serving(2) as s:
        pids = s.processes()
        expect({"control", "gateway 0", "rank 0", "rank 1"} <= set(pids), pids)
        held = begun(s, CHAT, asking(max_tokens=3000, ignore_eos=True))
        s.until("it is at work", lambda: load(s) > 0)
        s.p.kill()
        s.p.wait(10)
        gone(pids, 2)
        held.close()
    for wait_ms in (0, 30, 100, 300):  # while it starts
        s = serving(2, ready=False)
        time.sleep(wait_ms / 1000)
        pids = s.processes()
        s.p.send_signal(signal.SIGTERM)
        s.p.wait(20)
        gone(pids, 2)
        s.remove()


def r30_a_worker_that_hangs():
    with serving(2) as s:
        body = asking(max_tokens=300, ignore_eos=True)
        began = time.monotonic()
        want = good(s, CHAT, body)["choices"][0]["message"]["content"]
        usual = time.monotonic() - began
        victim = s.processes()["rank 1"]
        st = s.stream(CHAT, {**body, "stream": True})
        first = [e for _, e in zip(range(20), st)]
        os.kill(victim, signal.SIGSTOP)
        hung = time.monotonic()
        rest = list(st)
        took = time.monotonic() - hung
        expect(took > 0.25, f"it was over before the rank was stopped: {took} s")  # supervisor.stuck_after
        expect(rest[-1].data == "[DONE]" and text_of(first + rest) == want, "other text than undisturbed")
        expect(good(s, CHAT, body)["choices"][0]["message"]["content"] == want, "the next one differs")
        s.until("the stopped process is gone", lambda: not alive(victim), 10)
        s.until("it is ready", lambda: s.ask("GET", "/readyz").status == 200, 20)
        print(json.dumps({"usual_ms": round(1000 * usual), "hung_ms": round(1000 * took)}))
    with serving(1) as s:  # the only one: nobody could serve
        victim = s.processes()["rank 0"]
        os.kill(victim, signal.SIGSTOP)
        hung = time.monotonic()
        s.until("readiness says so", lambda: s.ask("GET", "/readyz").status == 503, 5)
        told = time.monotonic() - hung
        expect(s.ask("GET", "/livez").status == 200, "the gateway itself lives")
        s.until("it is ready again", lambda: s.ask("GET", "/readyz").status == 200, 30)
        expect(not alive(victim), "the stopped process is gone")
        good(s, CHAT, asking(max_tokens=3))
        print(json.dumps({"unready_after_ms": round(1000 * told), "back_after_ms": round(1000 * (time.monotonic() - hung))}))


def r32_counters_of_several_gateways():
    with serving(1, "roles.gateway.replicas=4", "gateway.share_port=false") as s:
        expect(len(s.ports) == 4, s.ports)

        def page(g):
            a = s.ask("GET", "/metrics", gateway=g)
            expect(a.status == 200, f"metrics of gateway {g}: {a.status}")
            return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in a.body.decode().splitlines() if line and not line.startswith("#")}

        def answered(p):
            return sum(v for k, v in p.items() if k.startswith("di_http_requests_total") and "chat" in k)

        def started(p):
            return next(v for k, v in p.items() if k.startswith("di_process_start_time_seconds"))

        for g in range(4):
            for _ in range(g + 1):
                good(s, CHAT, asking(max_tokens=2), gateway=g)
        before = [page(g) for g in range(4)]
        expect([answered(p) for p in before] == [1, 2, 3, 4], [answered(p) for p in before])
        every = s.ask("GET", "/metrics/gateways", port=s.admin_port).body.decode().splitlines()
        tokens = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in every if line.startswith("di_generation_tokens_total{")}
        expect(len(tokens) == 4 and sum(tokens.values()) == 2 * (1 + 2 + 3 + 4), tokens)
        old = s.processes()["gateway 2"]
        os.kill(old, signal.SIGKILL)
        good(s, CHAT, asking(max_tokens=2), gateway=2)  # waits in the backlog of the next life
        after = [page(g) for g in range(4)]
        for g in (0, 1, 3):
            counters = [k for k in before[g] if k.split("{")[0].endswith("_total")]
            expect(counters and all(after[g][k] >= before[g][k] for k in counters), f"a counter of gateway {g} fell")
            expect(answered(after[g]) == answered(before[g]), f"gateway {g} counts what others did")
        expect(answered(after[2]) == 1, f"a new process counts from 0: {answered(after[2])}")
        expect(started(after[2]) > started(before[2]), "the same process")


def main():
    tests = [(n, f) for n, f in sorted(globals().items()) if n[0] == "r" and n[1:3].isdigit()]
    wrong = []
    for name, test in tests:
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        try:
            test()
            print(f"{name}: ok", flush=True)
        except (AssertionError, KeyError, TypeError, IndexError, ValueError, OSError) as e:
            wrong.append(name)
            print(f"{name}: WRONG: {type(e).__name__}: {str(e)[:1500]}", flush=True)
    sys.exit(f"wrong: {wrong}" if wrong else 0)


main()
