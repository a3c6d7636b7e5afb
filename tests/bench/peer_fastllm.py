#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our steps against fastllm (package ftllm 1.9.0) on the same checkpoint, one after the other in turns.

    python -m venv V && V/bin/pip install ftllm==1.9.0 numpy transformers tokenizers pillow
    V/bin/python tests/bench/peer_fastllm.py --bench build/tests/bench/engine_bench \\
        --model build/test_models/small --tokenizer launch/models/demo/tokenizer.json [--threads 1] [--peer-threads 1]

Each round runs every test once here and once there, so that a busy machine hits both alike. Prints one
JSON object per test with both medians and their ratio. Only the package's C interface is used.
Rates are of wall time, and per second of processor time for machines that are never idle (the peer's
caller thread spins, which counts). others_pct is the share of all cores that other processes took meanwhile.
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def link_checkpoint(model, tokenizer, work):
    """The peer wants its own engram_meta.json and a tokenizer beside the weights."""
    for name in os.listdir(model):
        if name.endswith(".safetensors") or name in ("config.json", "model.safetensors.index.json"):
            os.symlink(os.path.abspath(os.path.join(model, name)), os.path.join(work, name))
    with open(os.path.join(model, "config.json")) as f:
        text = json.load(f)["text_config"]
    with open(os.path.join(model, "engram_meta.json")) as f:
        multipliers = json.load(f)["multipliers"]
    vocab, classes = text["vocab_size"], text["engram_compressed_vocab_size"]
    meta = {
        "token_map": [i * classes // vocab for i in range(vocab)],
        "compressed_vocab_size": classes,
        "pad_token_id": text["engram_pad_token_id"],
        "engram_layer_ids": text["engram_layer_ids"],
        "multipliers": [[str(m) for m in row] for row in multipliers],
    }
    with open(os.path.join(work, "engram_meta.json"), "w") as f:
        json.dump(meta, f)
    os.symlink(os.path.abspath(tokenizer), os.path.join(work, "tokenizer.json"))
    with open(os.path.join(work, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast"}, f)
    return vocab


class Peer:
    def __init__(self, work, vocab, threads, context):
        from ftllm import llm
        from ftllm.util import make_normal_llm_model, make_normal_parser

        args = make_normal_parser("peer").parse_args(
            ["--path", work, "--device", "cpu", "--moe_device", "cpu", "--dtype", "auto",
             "-t", str(threads), "--max_batch", "32"])
        if args.tokens <= 0:
            args.tokens = 65536
        self.model = make_normal_llm_model(args)
        self.lib, self.vocab, self.context, self.state = llm.fastllm_lib, vocab, context, 12345

    def token(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return 3 + (self.state >> 33) % (self.vocab - 16)

    def generate(self, n_prompt, n_out, batch):
        """(time to the first token, tokens after all had one, their time)"""
        handles, start = [], time.perf_counter()
        for _ in range(batch):
            ids = [self.token() for _ in range(n_prompt)]
            handles.append(self.lib.launch_response_llm_model(
                self.model.model, len(ids), (ctypes.c_int * len(ids))(*ids), ctypes.c_int(n_out),
                ctypes.c_int(n_out), ctypes.c_bool(False), ctypes.c_float(1), ctypes.c_int(1),
                ctypes.c_float(1), ctypes.c_float(1), ctypes.c_bool(False), ctypes.c_int(0), None))
        first, stamps, ended = {}, [], set()
        while len(ended) < batch:
            idle = True
            for i, handle in enumerate(handles):
                if i in ended or not self.lib.can_fetch_response_llm_model(self.model.model, handle):
                    continue
                idle = False
                token = self.lib.fetch_response_llm_model(self.model.model, handle)
                if token < 0:
                    ended.add(i)
                    continue
                stamps.append(time.perf_counter())
                first.setdefault(i, stamps[-1])
            if idle:
                time.sleep(0.0002)
        begun = max(first.values())
        return first[0] - start, sum(s > begun for s in stamps), stamps[-1] - begun

    def rate(self, test):
        if test[0] == "p":
            n = int(test[1:])
            return n / self.generate(n, 1, 1)[0]
        steps, batch = map(int, test[1:].split("b"))
        _, tokens, seconds = self.generate(self.context, steps + 1, batch)
        return tokens / seconds


class Ours:
    def __init__(self, bench, model, threads, context):
        self.process = subprocess.Popen(
            [bench, "--model", model, "--threads", str(threads), "--runs", "1", "--context",
             str(context), "--interactive"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()

    def run(self, test):
        self.process.stdin.write(test + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def busy_seconds():
    with open("/proc/stat") as f:
        fields = f.readline().split()
    return sum(int(fields[i]) for i in (1, 2, 3, 6, 7, 8)) / os.sysconf("SC_CLK_TCK")


def own_seconds(process):
    with open(f"/proc/{process.pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    mine = os.times()
    return mine.user + mine.system + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer-threads", type=int, default=1)
    parser.add_argument("--tests", default="d64b1,p512,d16b8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--context", type=int, default=64)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        vocab = link_checkpoint(args.model, args.tokenizer, work)
        peer = Peer(work, vocab, args.peer_threads, args.context)
        ours = Ours(args.bench, args.model, args.threads, args.context)
        peer.generate(16, 4, 1)
        ours.run("d4b1")
        tests = args.tests.split(",")
        rates = {t: ([], [], [], [], []) for t in tests}
        for _ in range(args.rounds):
            for test in tests:
                busy, own, wall = busy_seconds(), own_seconds(ours.process), time.perf_counter()
                result = ours.run(test)
                cpu = os.times()
                cpu = cpu.user + cpu.system
                start = time.perf_counter()
                there = peer.rate(test)
                used = os.times()
                rates[test][0].append(result["tok_s_wall"])
                rates[test][1].append(there)
                rates[test][4].append(result["tok_s"])
                rates[test][3].append((used.user + used.system - cpu) / (time.perf_counter() - start))
                wall = time.perf_counter() - wall
                others = busy_seconds() - busy - (own_seconds(ours.process) - own)
                rates[test][2].append(100 * max(0.0, others) / wall / os.cpu_count())
        for test in tests:
            here, there, others, cores, own = rates[test]
            print(json.dumps({
                "test": test, "threads": args.threads, "peer_threads": args.peer_threads,
                "ours_tok_s": round(statistics.median(here), 2),
                "peer_tok_s": round(statistics.median(there), 2),
                "ratio": round(statistics.median(a / b for a, b in zip(here, there)), 2),
                "ours_max": round(max(here), 2), "peer_max": round(max(there), 2),
                "ours_tok_s_per_cpu_s": round(statistics.median(own), 2) if args.threads == 1 else None,
                "peer_tok_s_per_cpu_s": round(statistics.median(b / c for b, c in zip(there, cores)), 2),
                "rounds": args.rounds, "others_pct": round(statistics.median(others), 1),
                "peer_cores_used": round(statistics.median(cores), 2)}), flush=True)
        ours.process.stdin.close()
        ours.process.wait()
    sys.stdout.flush()
    os._exit(0)  # the peer's threads do not end by themselves


if __name__ == "__main__":
    main()
