# SPDX-License-Identifier: Apache-2.0
"""What operators see of a serving run: metrics that promtool takes and that count exactly over restarts, the dashboard's names, orders over
HTTP, the live page in a headless Chromium, traces.

operate_test.py <dilaunch> <source folder> [--keep-picture]    the last one writes doc/images/live.png anew
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from browser import Browser
from cluster_run import needed
from served import Served, chat_body, expect, until

dilaunch, source = (os.path.abspath(p) for p in sys.argv[1:3])
local2, local4 = (f"{source}/launch/topologies/local{n}.yaml" for n in (2, 4))
SERIES = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$')


def metrics(up, port, target="/metrics"):
    """{(name, labels): value} of a page that promtool has nothing to say about."""
    status, headers, text = up.ask("GET", target, port=port)
    expect(status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4"), f"{status} {headers} {text[:300]}")
    plain = text.replace("vllm:", "vllm_")  # that colon is all that promtool dislikes of these names
    lint = subprocess.run(["promtool", "check", "metrics"], input=plain, capture_output=True, text=True, timeout=60)
    expect(lint.returncode == 0 and not lint.stderr, f"promtool: {lint.stdout}{lint.stderr}")
    all = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels, value = SERIES.match(line).groups()
            expect((name, labels) not in all, f"twice: {line}")
            all[name, labels or ""] = float(value)
    return all


def total(page, name, part=""):
    return sum(v for (n, labels), v in page.items() if n == name and part in labels)


def counts_exactly(up):
    """Each request once, with its tokens, its end and its times; refused ones too."""
    before = metrics(up, up.ports[0])
    for n in range(3):
        status, _, body = up.chat(f"Story {n}.", max_tokens=8, ignore_eos=True)
        expect(status == 200, f"{status}: {body}")
    stream = up.chat_stream("Another.", max_tokens=12, ignore_eos=True)
    stream.rest()
    stream.close()
    gone = up.chat_stream("Too long.", max_tokens=900, ignore_eos=True)
    gone.next()
    gone.close()  # this client leaves
    up.ask("POST", "/v1/chat/completions", "{")
    up.ask("GET", "/no/such/route")
    now = until(lambda: (lambda m: m if total(m, "di_requests_aborted_total") > total(before, "di_requests_aborted_total") else None)(metrics(up, up.ports[0])))
    grown = lambda name, part="": total(now, name, part) - total(before, name, part)
    expect(grown("di_request_success_total", 'finished_reason="length"') == 4, "ends by length")
    expect(grown("di_requests_aborted_total") == 1, "aborted")
    expect(grown("di_e2e_request_latency_seconds_count") == 5, "requests")
    expect(grown("di_time_to_first_token_seconds_count") == 5, "first tokens")
    expect(grown("di_request_prompt_tokens_count") == 5, "prompts")
    tokens = grown("di_generation_tokens_total")
    expect(tokens >= 3 * 8 + 12 + 1, f"{tokens} tokens")
    expect(grown("di_inter_token_latency_seconds_count") == tokens - 5, "between tokens")
    expect(grown("di_http_requests_total", 'route="chat",status="200"') == 5 - grown("di_http_requests_total", 'status="499"'), f"answers: {now}")
    expect(grown("di_http_requests_total", 'status="400"') == 1 and grown("di_http_requests_total", 'status="404"') == 1, "refusals")
    expect(total(now, "di_gateway_requests") == 0, "nothing is open")
    expect(total(now, "vllm:generation_tokens_total") == total(now, "di_generation_tokens_total"), "vLLM's names")


def kills_and_shows(up):
    """Orders over HTTP; a death shows in status, metrics and the feed."""
    feed = up.stream("/events", port=up.admin_port)
    deaths = total(metrics(up, up.admin_port), "di_rank_deaths_total")
    status, _, body = up.ask("POST", "/admin/kill", {"rank": 2}, port=up.admin_port)
    expect(status == 200 and body["ok"], f"{status}: {body}")
    seen = []
    end = time.monotonic() + 30
    while not any("rank 2 died" in e for e in seen):
        expect(time.monotonic() < end, "no word of the death")
        event = feed.next()
        expect(event is not None, "the feed ended")
        if event.name == "log":
            seen.append(event.data)
    feed.close()
    until(lambda: total(metrics(up, up.admin_port), "di_rank_deaths_total") == deaths + 1)
    s = until(lambda: (lambda s: s if s["members"] == 4 else None)(up.ask("GET", "/admin/status", port=up.admin_port).json()))
    expect(next(r for r in s["ranks"] if r["rank"] == 2)["deaths"] >= 1, f"{s}")
    for path, body, wanted in (("/admin/kill", {"rank": 77}, 404), ("/admin/drain", {"rank": 77}, 404), ("/admin/scale", {"ranks": 99}, 400), ("/admin/kill", {}, 400), ("/admin/x", {}, 404)):
        got = up.ask("POST", path, body, port=up.admin_port)
        expect(got.status == wanted and got.json()["ok"] is False, f"{path} {body}: {got.status} {got.body}")
    got = up.ask("POST", "/admin/kill", {"rank": 1}, headers={"Origin": "http://evil.example"}, port=up.admin_port)
    expect(got.status == 403, f"{got.status} {got.body}")


TIMES = ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
         "request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens", "request_generation_tokens",
         "request_params_n", "request_params_max_tokens")
BOTH = (*(f"{n}_{part}" for n in TIMES for part in ("bucket", "sum", "count")), "prompt_tokens_total", "generation_tokens_total", "request_success_total", "admission_rejections_total")
VLLM = {  # by page
    "gateway": (*BOTH, "time_per_output_token_seconds_bucket", "prefix_cache_queries_total", "prefix_cache_hits_total", "gpu_prefix_cache_queries_total", "gpu_prefix_cache_hits_total"),
    "cluster": ("num_requests_running", "num_requests_waiting", "num_requests_swapped", "kv_cache_usage_perc", "gpu_cache_usage_perc", "cache_config_info", "num_preemptions_total",
                "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_per_pos_total")}
OURS = {
    "gateway": (*BOTH, "process_start_time_seconds", "cached_tokens_total", "requests_aborted_total", "gateway_requests", "requests_known_total", "streams_resumed_total",
                "http_requests_total", "http_requests_in_flight", "http_request_duration_seconds_bucket", "http_received_bytes_total", "http_sent_bytes_total", "http_connections_total",
                "http_connections_open", "http_refused_total", "http_timeouts_total", "http_clients_left_total", "http_streams_open", "http_slow_clients_total"),
    "cluster": ("control_up", "view_epoch", "ranks", "ranks_wanted", "rank_deaths_total", "rank_restarts_total", "sequences_running", "sequences_waiting", "requests_queued",
                "prompt_rows_pending", "kv_cache_usage_ratio", "kv_tokens", "rank_balance_ratio", "journal_open_requests", "journal_tokens_total", "journal_unwritten_records",
                "journal_file_bytes", "journal_failing", "telemetry_processes")}


def every_name(up):
    """All names of doc/operations.md and, with gateway.compat_metrics, those of vLLM that stand for something here; the names of 5c that do not are in the table there."""
    with open(f"{source}/doc/operations.md") as f:
        doc = f.read()
    for kind, port in (("gateway", up.ports[0]), ("cluster", up.admin_port)):
        there = {n for n, _ in metrics(up, port)}
        wanted = {"di_" + n for n in OURS[kind]} | {"vllm:" + n for n in VLLM[kind]}
        expect(wanted <= there, f"{kind}: no {sorted(wanted - there)}")
        strange = {n for n in there if n.startswith("vllm:")} - wanted - {"vllm:time_per_output_token_seconds_" + p for p in ("sum", "count")}
        expect(not strange, f"{kind}: names that no list has: {strange}")
    for name in ("corrupted_requests", "lora_requests_info", "iteration_tokens_total", "request_max_num_generation_tokens", "external_prefix_cache_", "engine_startup_time", "num_requests_swapped"):
        expect(name in doc, f"doc/operations.md does not say what stands for {name}")


def names_of_dashboard(up):
    """Every metric that the dashboard asks for is there."""
    with open(f"{source}/doc/grafana/di.json") as f:
        board = json.load(f)
    asked = [t["expr"] for p in board["panels"] for t in p.get("targets", [])]
    expect(len(asked) > 30, "panels")
    names = {n for e in asked for n in re.findall(r"\bdi_[a-z0-9_]+", e)}
    there = {n for port in (up.ports[0], up.admin_port) for n, _ in metrics(up, port)}
    # What no request has needed yet has no series; these come with the first draft, plan or move.
    absent = {n for n in names if n not in there and n not in ("di_rank_drafts_accepted_total", "di_rank_drafts_verified_total", "di_rebalancer_moe_lb", "di_rebalancer_moves_total")}
    expect(not absent, f"the dashboard asks for {absent}")


def survives_control(up):
    """The listener lives on and says that control is away; counters of gateways do not fall."""
    before = metrics(up, up.ports[0])
    os.kill(up.processes()["control"], signal.SIGKILL)
    health = []
    until(lambda: health.append(up.ask("GET", "/health", port=up.admin_port)) or health[-1].json()["control"] == "up" or None)
    expect(all(h.status == 200 for h in health), f"{[h.body for h in health]}")
    expect(any(h.json()["control"] == "restarting" for h in health), "it never said that control is away")
    until(lambda: up.ask("GET", "/admin/status", port=up.admin_port).status == 200 or None)
    until(lambda: total(metrics(up, up.admin_port), "di_control_up") == 1 or None)
    now = metrics(up, up.ports[0])
    for key, value in before.items():
        if key[0].endswith(("_total", "_count", "_bucket", "_sum")):
            expect(now[key] >= value, f"{key} fell from {value} to {now[key]}")


def traces(home):
    """A client's trace id stands at every span of its request, in the picture of rings that a running group gives away."""
    up, trace_id = Served(dilaunch, local2, args=("--trace-spans", "4096")), "4bf92f3577b34da6a3ce929d0e0e4736"
    try:
        status, _, body = up.ask("POST", "/v1/chat/completions", chat_body("hi", max_tokens=8, ignore_eos=True),
                                 headers={"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"})
        expect(status == 200, f"{status}: {body}")
        up.chat("Somebody else.")
        rings, picture = home + "/run.rings", home + "/run.json"
        status, headers, text = up.ask("GET", "/admin/trace", port=up.admin_port)
        expect(status == 200, f"{status}: {text}")
        with open(rings, "w") as f:
            f.write(text if isinstance(text, str) else json.dumps(text))
        done = subprocess.run([dilaunch, "trace", rings, "--out", picture], capture_output=True, text=True, timeout=60)
        expect(done.returncode == 0, done.stderr)
        with open(picture) as f:
            events = json.load(f)["traceEvents"]
        processes = {e["args"]["name"] for e in events if e["name"] == "process_name"}
        expect(processes == {"control", "gateway/0", "rank/0", "rank/1"}, f"{processes}")
        ours = [e for e in events if e["ph"] == "X" and e["args"].get("trace_id") == trace_id]
        expect({"submit", "record", "admit", "assign", "take", "prefill", "accept", "release", "finish"} <= {e["name"] for e in ours}, f"{ours}")
        expect(len({e["args"]["request"] for e in ours}) == 1, "one request")
        up.until_said("http_request", f"trace={trace_id}")
    finally:
        up.remove()


def live_page(up, picture):
    """The page shows ranks, a death, heat and events, with nothing from elsewhere."""
    stop, home = threading.Event(), tempfile.mkdtemp(prefix="di-page-")

    def load(n):
        while not stop.is_set():
            try:
                up.chat(f"Tell story {n}.", max_tokens=200, ignore_eos=True)
            except (ConnectionError, OSError, TimeoutError):
                pass
    workers, browser = [threading.Thread(target=load, args=(n,)) for n in range(8)], Browser(height=800)
    try:
        for w in workers:
            w.start()
        until(lambda: total(metrics(up, up.admin_port), "di_rebalancer_loads_total") > 0 or None, 90)
        browser.open(f"http://127.0.0.1:{up.admin_port}/ui")
        browser.wait_for("document.querySelectorAll('.rank').length === 4")
        up.ask("POST", "/admin/kill", {"rank": 3}, port=up.admin_port)
        browser.wait_for("[...document.querySelectorAll('#log li[data-kind=death]')].some(e => e.textContent.includes('rank 3 died'))")
        browser.wait_for("document.querySelector('[data-rank=\"3\"]').dataset.deaths > 0")
        browser.wait_for("document.querySelector('.heat canvas').dataset.cells > 0")
        browser.wait_for("parseFloat(document.querySelector('[data-tile=tokens_s] strong').textContent) > 0")
        browser.wait_for("document.getElementById('control').textContent === 'control up'")
        browser.wait_for("document.querySelector('[data-rank=\"3\"]').dataset.state === 'member'")
        expect(browser.ask("document.getElementById('topology').textContent") == "local4", "its name")
        shot = home + "/live.png"
        browser.picture(shot)
        with open(shot, "rb") as f:
            expect(f.read(8).startswith(b"\x89PNG") and os.path.getsize(shot) > 20_000, "a picture")
        told = browser.ask("document.querySelectorAll('#log li[data-kind=control]').length")
        os.kill(up.processes()["control"], signal.SIGKILL)
        browser.wait_for(f"document.querySelectorAll('#log li[data-kind=control]').length > {told}")
        here = f"http://127.0.0.1:{up.admin_port}/"
        expect(all(u.startswith(here) for u in browser.asked()), f"asked elsewhere: {browser.asked()}")
        expect(not browser.complaints(), f"{browser.complaints()}")
        if picture:
            os.makedirs(os.path.dirname(picture), exist_ok=True)
            shutil.copy(shot, picture)
    finally:
        stop.set()
        for w in workers:
            w.join()
        browser.close()
        shutil.rmtree(home, ignore_errors=True)


def main():
    needed(promtool="prometheus", chromium="chromium")
    home = tempfile.mkdtemp(prefix="di-operate-")
    up = Served(dilaunch, local4, sets=("gateway.compat_metrics=true",))
    try:
        for part in (counts_exactly, every_name, names_of_dashboard, kills_and_shows, survives_control):
            began = time.monotonic()
            part(up)
            print(f"{part.__name__}: {time.monotonic() - began:.1f} s", flush=True)
        live_page(up, f"{source}/doc/images/live.png" if "--keep-picture" in sys.argv else None)
        print("live_page", flush=True)
        up.end()
    finally:
        up.remove()
    traces(home)
    print("traces", flush=True)
    shutil.rmtree(home, ignore_errors=True)


main()
