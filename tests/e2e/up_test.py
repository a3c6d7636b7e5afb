# SPDX-License-Identifier: Apache-2.0
"""`dilaunch up` with real processes: start and its states, drain, abort, deaths of gateway and control, reload, orders, refusals before anything starts.

up_test.py <dilaunch> <source folder>
"""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from cluster_run import needed, segments
from served import Served, chat_body, expect, text_of, until

dilaunch, source = (os.path.abspath(p) for p in sys.argv[1:3])
local2 = f"{source}/launch/topologies/local2.yaml"
long_story = dict(max_tokens=400, ignore_eos=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def nothing_left(up, pids):
    left = until(lambda: not up.still_there() or None, 10) and up.leftovers(pids)
    expect(not left, f"left behind: {left}")


def refused(args, *said):
    shared = segments()
    r = subprocess.run([dilaunch, "up", *args], capture_output=True, text=True, timeout=60)
    expect(r.returncode == 2, f"{args}: exit code {r.returncode}: {r.stderr}")
    for words in said:
        expect(words in r.stderr, f"{args}: {r.stderr}")
    expect(segments() == shared, "shared memory of a run that did not start")


def refuses_before_it_starts(home):
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]
    free = ("--set", "cluster.ports.admin=0")
    refused((local2, "--set", f"cluster.ports.http={port}", *free), f"--set cluster.ports.http={port}: cluster.ports.http:", str(port))
    refused((local2, "--set", "cluster.ports.http=0", "--set", f"cluster.ports.admin={port}"), f"--set cluster.ports.admin={port}: cluster.ports.admin:")
    taken.close()
    refused((local2, "--set", "gateway.bind=no.such.host.invalid", "--set", "cluster.ports.http=0", *free), "gateway.bind")
    keys = home + "/keys.yaml"
    with open(keys, "w") as f:
        f.write("keys:\n  - {tenant: alice}\n")
    refused((local2, "--set", f"gateway.keys_file={keys}", "--set", "cluster.ports.http=0", *free), "gateway.keys_file", "keys.yaml:2")
    refused((local2, "--set", "gateway.keys_file=/nowhere/keys", "--set", "cluster.ports.http=0", *free), "gateway.keys_file", "/nowhere/keys")
    refused((local2, "--set", "gateway.tls.cert=/nowhere/c", "--set", "gateway.tls.key=/nowhere/k", "--set", "cluster.ports.http=0", *free), "gateway.tls")
    refused((local2, "--set", "gateway.threads=0"), "gateway.threads: 0 is outside 1 to 64")
    two = f"{source}/launch/topologies/two_nodes.yaml"
    refused((two, "--set", "cluster.ports.base=65525"), "with 1 gateways 14 ports are needed from 65525 on, up to 65538")
    refused((two, "--set", "cluster.ports.base=7990"), "--set cluster.ports.base=7990: cluster.ports.http: ports 7990 to 8003 are those between nodes")
    refused(("/nowhere.yaml",), "/nowhere.yaml")


def shows_its_start_and_drains(say=lambda up: up.p.send_signal(signal.SIGTERM)):
    """503 with a reason until it serves; then a drain lets an open stream end and refuses others."""
    port = free_port()
    up = Served(dilaunch, local2, sets=(f"cluster.ports.http={port}",), ready=False)
    up.ports = [port]
    states = []

    def serves():
        try:
            status, headers, body = up.ask("GET", "/health")
        except ConnectionError:
            return None  # not bound yet
        states.append((status, body))
        expect(status in (200, 503) and isinstance(body, dict), f"{status} {body}")
        if status == 503:
            expect(body["why"] and headers["retry-after"], f"{headers} {body}")
        return status == 200

    until(serves, 60, every=0.01)
    up.wait_ready()
    expect(up.ports == [port], "the port that was asked for")
    progress = [s["progress"] for _, s in states]
    expect(progress == sorted(progress) and progress[-1] == 1.0, f"progress {progress}")
    expect(any(code == 503 and not s["started"] for code, s in states), "no state before it served was seen")
    pids = list(up.processes().values())
    expect(set(up.processes()) == {"control", "rank 0", "rank 1", "gateway 0"}, str(up.processes()))

    stream = up.chat_stream("Tell a story.", **long_story)
    for _ in range(4):
        stream.next()
    say(up)
    until(lambda: up.ask("GET", "/health").status == 503)
    expect(up.ask("GET", "/live").status == 200, "alive while it drains")
    status, headers, body = up.chat("Another one.")
    expect(status == 503 and "retry-after" in headers, f"a new request while it drains: {status} {body}")
    events = stream.rest()
    expect(events[-1].data == "[DONE]" and len(events) > 200, f"{len(events)} events, the last {events[-1]}")
    code, last = up.end(0)
    expect(code == 0, f"exit code {code}: {last}")
    expect("gateway_drained gateway=0" in up.log() and "gateway_lost" not in up.log(), up.log())
    nothing_left(up, pids)
    up.remove()
    return text_of(stream.events)


def aborts_at_the_second_signal():
    up = Served(dilaunch, local2)
    pids = list(up.processes().values())
    stream = up.chat_stream("Tell a story.", **dict(long_story, max_tokens=3000))
    stream.next()
    up.p.send_signal(signal.SIGTERM)
    until(lambda: up.ask("GET", "/health").status == 503)
    up.p.send_signal(signal.SIGTERM)
    code, last = up.end(0, 20)
    expect(code == 3 and "aborted by signal 15" in last, f"{code}: {last}")
    nothing_left(up, pids)
    up.remove()


def survives_its_gateway(log_dir):
    up = Served(dilaunch, local2, args=("--log-dir", log_dir))
    stream = up.chat_stream("Tell a story.", **long_story)
    stream.next()
    before = up.processes()
    os.kill(before["gateway 0"], signal.SIGKILL)
    try:
        broken = stream.rest()
        expect(broken[-1].data != "[DONE]", "a stream of a killed gateway ended as if it were whole")
    except (OSError, http.client.HTTPException):
        pass
    status, _, body = up.chat("What is 2 plus 3?")  # waits in the backlog until the next life accepts
    expect(status == 200 and body["choices"], f"{status} {body}")
    after = up.processes()
    expect(after["gateway 0"] != before["gateway 0"] and after["control"] == before["control"], f"{before} {after}")
    s = json.loads(up.say("status", "--json"))
    expect(s["gateways"][0]["starts"] == 2 and s["gateways"][0]["state"] == "serving", f"{s['gateways']}")
    until(lambda: json.loads(up.say("status", "--json"))["requests"]["open"] == 0, 60)  # the killed one's stream goes on for a client that comes back, to its end
    return up


def keeps_a_stream_while_control_dies(up, whole):
    stream = up.chat_stream("Tell a story.", **long_story)
    for _ in range(20):
        stream.next()
    control = up.processes()["control"]
    os.kill(control, signal.SIGKILL)
    status, _, body = up.chat("What is 2 plus 3?")  # waits for the next life of control
    expect(status == 200, f"a request while control is away: {status} {body}")
    stream.rest()
    expect(stream.events[-1].data == "[DONE]", f"the last event: {stream.events[-1]}")
    expect(text_of(stream.events) == whole, "other text than undisturbed")
    expect(up.processes()["control"] != control, "control was not killed?")
    until(lambda: up.ask("GET", "/health").status == 200)
    expect(up.chat("What is 2 plus 3?").status == 200, "no answer after control came back")


def tells_operators(up):
    table = up.say("status")
    expect(up.url in table and up.admin in table and re.search("view [0-9]+: 2 of 2 ranks", table), table)
    top = up.say("top", "--rounds", "2", "--every", "0.2")
    expect(top.count(": 2 of 2 ranks") == 2 and top.count(" tokens/s, ") == 1, top)
    expect("gateway_listens" in up.say("logs", "--role", "gateway", "-n", "0"), "logs of gateways")
    expect("gateway_listens" not in up.say("logs", "--rank", "0", "-n", "0"), "logs of a rank")
    lines = up.say("logs", "--grep", "rank_loaded", "-n", "0").splitlines()
    expect(len(lines) == 2 and all(re.match(r"\[rank [01]\] ", line) for line in lines), str(lines))
    expect("no answer" not in up.say("reload"), "reload")


def goes_down(up):
    pids = list(up.processes().values())
    up.say("down")
    code, last = up.end(0)
    expect(code == 0, f"exit code {code}: {last}")
    nothing_left(up, pids)
    up.remove()


def reads_keys_again(home):
    keys = home + "/reload.yaml"
    topology = home + "/topology.yaml"

    def write_keys(text):
        with open(keys + ".new", "w") as f:
            f.write(text)
        os.rename(keys + ".new", keys)

    def write_topology(more=""):
        with open(topology, "w") as f:
            f.write(f"apiVersion: di/v1\nname: served\nmodel: {{path: {source}/launch/models/demo}}\ncluster: {{nodes: [{{host: localhost, ranks: 1}}]}}\ngateway: {{keys_file: reload.yaml{more}}}\n")

    write_keys("keys:\n  - {key: sk-first-key, tenant: a}\n")
    write_topology()
    up = Served(dilaunch, topology)

    def status_of(key, n=1):
        return up.ask("POST", "/v1/chat/completions", chat_body("Hi.", max_tokens=1, n=n), {"authorization": f"Bearer {key}"}).status

    expect(status_of("sk-first-key") == 200 and status_of("sk-second-key") == 401, "the keys of the start")
    write_keys("keys:\n  - {key: sk-second-key, tenant: a}\n")
    up.p.send_signal(signal.SIGHUP)
    until(lambda: status_of("sk-second-key") == 200, 10)
    expect(status_of("sk-first-key") == 401, "a key that is gone")
    write_keys("keys: [nonsense")
    up.p.send_signal(signal.SIGHUP)
    up.until_said("reload:", "reload.yaml")
    expect(status_of("sk-second-key") == 200, "a wrong file changed the keys")
    write_keys("keys:\n  - {key: sk-second-key, tenant: a}\n")
    expect(status_of("sk-second-key", 2) == 200, "two choices")
    write_topology(", limits: {choices: 1}")
    up.p.send_signal(signal.SIGHUP)
    until(lambda: status_of("sk-second-key", 2) == 400, 10)
    write_topology(", limits: {choices: many}")
    up.p.send_signal(signal.SIGHUP)
    up.until_said("gateway.limits.choices")
    expect(status_of("sk-second-key", 1) == 200 and status_of("sk-second-key", 2) == 400, "a wrong topology changed the limits")
    code, last = up.end()
    expect(code == 0, f"{code}: {last}")
    up.remove()


def serves_with_several_gateways(share):
    up = Served(dilaunch, local2, sets=("roles.gateway.replicas=2", f"gateway.share_port={share}"))
    s = json.loads(up.say("status", "--json"))
    ports = [g["port"] for g in s["gateways"]]
    expect(len(ports) == 2 and (ports[0] == ports[1]) == (share == "true"), f"{ports}")
    expect(len(up.urls) == (1 if share == "true" else 2), f"{up.urls}")
    for port in ports:
        status, _, body = up.ask("POST", "/v1/chat/completions", chat_body("What is 2 plus 3?"), port=port)
        expect(status == 200, f"port {port}: {status} {body}")
    if share == "true":  # the other one goes on while one is away
        os.kill(up.processes()["gateway 1"], signal.SIGKILL)
        for _ in range(5):
            expect(up.chat("What is 2 plus 3?").status == 200, "while a gateway is away")
    code, last = up.end()
    expect(code == 0, f"{code}: {last}")
    up.remove()


def cuts_off_what_outlasts_the_drain():
    up = Served(dilaunch, local2, sets=("supervisor.drain_timeout=300ms",))
    stream = up.chat_stream("Tell a story.", max_tokens=3000, ignore_eos=True)
    stream.next()
    began = time.monotonic()
    code, last = up.end()
    expect(code == 0 and time.monotonic() - began < 8, f"{code} after {time.monotonic() - began} s: {last}")
    expect("cut off" in up.log(), up.log())
    up.remove()


def ends_while_it_starts():
    up = Served(dilaunch, local2, ready=False)
    until(lambda: "control" in up.processes(), 20, every=0.005)
    code, last = up.end()
    expect(code == 0 and ("stopped by signal 15 while it started" in last or not last.startswith("dilaunch:")), f"{code}: {last}")
    expect(not up.leftovers(), f"left behind: {up.leftovers()}")
    up.remove()


def ends_with_its_launcher():
    """Nothing outlives a launcher that is killed; the next one gets the port and removes what was left."""
    port = free_port()
    up = Served(dilaunch, local2, sets=(f"cluster.ports.http={port}",))
    pids = list(up.processes().values())
    stream = up.chat_stream("Tell a story.", **long_story)
    stream.next()
    up.p.kill()
    up.p.wait()
    until(lambda: not up.still_there(), 10)
    r = subprocess.run([dilaunch, "up", local2, "--background", "--set", f"cluster.ports.http={port}", "--set", "cluster.ports.admin=0"], env=up.env, capture_output=True, text=True, timeout=60)
    expect(r.returncode == 0 and f":{port} " in r.stdout, f"{r}")
    up.say("down")
    nothing_left(up, pids)
    up.remove()


def takes_a_stopped_gateway_for_a_dead_one():
    up = Served(dilaunch, local2)
    stopped = up.processes()["gateway 0"]
    os.kill(stopped, signal.SIGSTOP)
    expect(up.chat("What is 2 plus 3?").status == 200, "an answer of the next life")
    expect(up.processes()["gateway 0"] != stopped, "it was not killed")
    up.until_said("gateway 0 was stopped by a signal")
    expect(up.end()[0] == 0, "its end")
    up.remove()


def starts_a_gateway_again_and_again():
    """What kills a gateway may come from a client: it never costs the ranks."""
    up = Served(dilaunch, local2)
    ranks = {k: v for k, v in up.processes().items() if k.startswith("rank")}
    for n in range(7):
        os.kill(up.processes()["gateway 0"], signal.SIGKILL)
        until(lambda: (lambda g: g["state"] == "serving" and g["starts"] == n + 2)(json.loads(up.say("status", "--json"))["gateways"][0]), 20)
    up.until_said("it was the 7th time in 10 min: starting it again in 1", seconds=5)
    expect({k: v for k, v in up.processes().items() if k.startswith("rank")} == ranks, "ranks were touched")
    expect(up.chat("What is 2 plus 3?").status == 200, "an answer")
    code, last = up.end()
    expect(code == 0, f"{code}: {last}")
    up.remove()


def speaks_tls(home):
    import ssl
    import urllib.request

    cert, key = home + "/cert.pem", home + "/key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    up = Served(dilaunch, local2, sets=(f"gateway.tls.cert={cert}", f"gateway.tls.key={key}"))
    expect(up.url.startswith("https://localhost:"), up.url)
    trusted = ssl.create_default_context(cafile=cert)
    with urllib.request.urlopen(up.url + "/health", context=trusted, timeout=20) as r:
        expect(r.status == 200, "health over TLS")
    ask = urllib.request.Request(up.url + "/v1/chat/completions", json.dumps(chat_body("What is 2 plus 3?")).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(ask, context=trusted, timeout=20) as r:
        expect(json.load(r)["choices"], "a chat over TLS")
    with open(key, "w") as f:
        f.write("broken")
    up.p.send_signal(signal.SIGHUP)
    up.until_said("reload:", "key.pem")
    with urllib.request.urlopen(up.url + "/health", context=trusted, timeout=20) as r:
        expect(r.status == 200, "the old certificate goes on")
    expect(up.end()[0] == 0, "its end")
    up.remove()
    refused((local2, "--set", f"gateway.tls.cert={cert}", "--set", f"gateway.tls.key={key}", "--set", "cluster.ports.http=0", "--set", "cluster.ports.admin=0"), "gateway.tls")


def keeps_responses_over_runs(home):
    journal = home + "/journal"
    up = Served(dilaunch, local2, args=("--journal", journal))
    status, _, made = up.ask("POST", "/v1/responses", {"model": "demo", "input": "What is 2 plus 3?", "temperature": 0, "max_output_tokens": 24})
    expect(status == 200, f"{status} {made}")
    second = subprocess.run([dilaunch, "up", local2, "--journal", journal, "--set", "cluster.ports.http=0", "--set", "cluster.ports.admin=0"], capture_output=True, text=True, timeout=60)
    expect(second.returncode in (2, 3) and journal in second.stderr, f"a second run at the same journal: {second}")
    expect(up.end()[0] == 0, "its end")
    up.remove()
    up = Served(dilaunch, local2, args=("--journal", journal))
    status, _, kept = up.ask("GET", f"/v1/responses/{made['id']}")
    expect(status == 200 and kept["output"] == made["output"], f"{status} {kept}\nwas {made}")
    expect(up.chat("What is 2 plus 3?").status == 200, "a request after the second start")
    expect(up.end()[0] == 0, "its end")
    up.remove()
    batch = subprocess.run([dilaunch, "run", local2, "--prompts", "/dev/null", "--resume", journal], capture_output=True, text=True, timeout=60)
    expect(batch.returncode == 2 and "another prompts file" in batch.stderr, f"a batch at the journal of a server: {batch}")


def serves_two_nodes():
    up = Served(dilaunch, f"{source}/launch/topologies/two_nodes.yaml", sets=("cluster.launcher=local", "cluster.ports.base=0"))
    expect({k.split()[0] for k in up.processes()} == {"control", "rank", "gateway", "node"}, f"{up.processes()}")
    expect(up.chat("What is 2 plus 3?").status == 200, "an answer")
    pids = list(up.processes().values())
    code, last = up.end()
    expect(code == 0, f"{code}: {last}")
    nothing_left(up, pids)
    up.remove()


def takes_options_without_its_name():
    """`dilaunch --topology X` is `up`, with all of its options."""
    for words in (("--topology", local2, "--set", "gateway.threads=0"), ("--set", "gateway.threads=0", f"--topology={local2}")):
        r = subprocess.run([dilaunch, *words], capture_output=True, text=True, timeout=60)
        expect(r.returncode == 2 and "gateway.threads: 0 is outside 1 to 64" in r.stderr, f"{words}: {r}")
    r = subprocess.run([dilaunch, "--topology", local2, "--nonsense"], capture_output=True, text=True, timeout=60)
    expect(r.returncode == 2 and "--nonsense" in r.stderr, f"{r}")


def goes_to_the_background(home):
    runtime = home + "/background"
    os.mkdir(runtime, 0o700)
    env = dict(os.environ, XDG_RUNTIME_DIR=runtime)

    def call(*words):
        return subprocess.run([dilaunch, *words], env=env, capture_output=True, text=True, timeout=60)

    r = call("up", local2, "--background", "--set", "cluster.ports.http=0", "--set", "cluster.ports.admin=0")
    expect(r.returncode == 0 and r.stdout.startswith("serving http://localhost:"), f"{r}")
    expect(json.loads(call("status", "--json").stdout)["state"] == "serving", "its state")
    r = call("down")
    expect(r.returncode == 0 and r.stdout.startswith("ended: process"), f"{r}")
    expect(call("status").returncode == 2, "it still runs")
    r = call("up", local2, "--background", "--set", "gateway.threads=0")
    expect(r.returncode == 2 and "gateway.threads" in r.stderr, f"{r}")


def main():
    needed(openssl="openssl")
    home = tempfile.mkdtemp(prefix="di-up-")
    only = sys.argv[3:]

    def wanted(name):
        return not only or name in only

    if wanted("refuse"):
        refuses_before_it_starts(home)
        takes_options_without_its_name()
    if wanted("drain") or wanted("lives"):
        whole = shows_its_start_and_drains()
    if wanted("abort"):
        aborts_at_the_second_signal()
    if wanted("lives"):
        up = survives_its_gateway(home + "/log")
        keeps_a_stream_while_control_dies(up, whole)
        tells_operators(up)
        goes_down(up)
    if wanted("reload"):
        reads_keys_again(home)
    if wanted("several"):
        serves_with_several_gateways("true")
        serves_with_several_gateways("false")
    if wanted("ends"):
        cuts_off_what_outlasts_the_drain()
        ends_while_it_starts()
        ends_with_its_launcher()
    if wanted("again"):
        starts_a_gateway_again_and_again()
        takes_a_stopped_gateway_for_a_dead_one()
    if wanted("tls"):
        speaks_tls(home)
    if wanted("journal"):
        keeps_responses_over_runs(home)
    if wanted("nodes"):
        serves_two_nodes()
    if wanted("background"):
        goes_to_the_background(home)
    shutil.rmtree(home)
    print("ok")


main()
