#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encoding speed of this repository's tokenizer and of Hugging Face `tokenizers`, turn by turn, on one thread each.

usage: tokenizer_compare.py BENCH_PROGRAM TOKENIZER.json [--rounds N] [--out doc/measured/tokenizer.json]

Needs `pip install tokenizers` (in a virtual environment). English text: the licence texts of the system and the
language reference that every Python carries. Mixed text: tests/golden/data/tokenizer/encode.jsonl. Both sides get the
same documents and must give the same ids. `encode` of the peer also makes offsets and spellings; `encode_fast` is its
variant without them. Speeds count the time on a core (the machine may be shared); wall time stands beside them.
"""
import argparse
import datetime
import glob
import hashlib
import json
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers  # noqa: E402  (reads the environment when loaded)

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEPARATOR = "\x1e"


def english_documents():
    import pydoc_data.topics

    texts = []
    for path in sorted(glob.glob("/usr/share/common-licenses/*")):
        if not os.path.islink(path):
            texts.append(pathlib.Path(path).read_text(encoding="utf-8", errors="replace"))
    texts += [pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics)]
    return [t.replace(SEPARATOR, " ") for t in texts if t]


def mixed_documents():
    with open(ROOT / "tests/golden/data/tokenizer/encode.jsonl", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    return [t for t in texts if t and SEPARATOR not in t]


def fnv(all_ids):
    value = 0xCBF29CE484222325
    for ids in all_ids:
        for i in ids:
            value = ((value ^ i) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return "%016x" % value


def timed(function):
    begin, cpu = time.perf_counter(), time.process_time()
    result = function()
    return (time.perf_counter() - begin, time.process_time() - cpu), result


def compare(program, tokenizer_file, documents, rounds):
    peer = tokenizers.Tokenizer.from_file(tokenizer_file)
    size = sum(len(d.encode("utf-8")) for d in documents)
    times = {"ours": [], "peer_encode": [], "peer_encode_fast": []}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", suffix=".txt") as file:
        file.write(SEPARATOR.join(documents))
        file.flush()
        ours = subprocess.Popen([program, tokenizer_file, file.name, "0"], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for turn in range(rounds + 1):  # the first turn warms up
            ours.stdin.write("\n")
            ours.stdin.flush()
            answer = json.loads(ours.stdout.readline())
            full, encoded = timed(lambda: [peer.encode(d, add_special_tokens=False) for d in documents])
            # One call per document like the others, so that no batch is spread over threads.
            fast, _ = timed(lambda: [peer.encode_batch_fast([d], add_special_tokens=False) for d in documents])
            if fnv(e.ids for e in encoded) != answer["ids_fnv"] or answer["bytes"] != size:
                raise SystemExit("the two sides differ")
            if turn > 0:
                times["ours"].append((answer["seconds"], answer["cpu_seconds"]))
                times["peer_encode"].append(full)
                times["peer_encode_fast"].append(fast)
        ours.stdin.close()
        ours.wait()
    def speed(clock, pick):
        return {k: round(size / pick(t[clock] for t in v) / 1e6, 2) for k, v in times.items()}

    def ratio(peer_name):
        return round(statistics.median(p[1] / o[1] for p, o in zip(times[peer_name], times["ours"])), 2)

    return {"documents": len(documents), "bytes": size, "tokens": answer["tokens"],
            "sha256": hashlib.sha256(SEPARATOR.join(documents).encode("utf-8")).hexdigest(),
            "mb_per_cpu_second": {"median": speed(1, statistics.median), "best": speed(1, min), "worst": speed(1, max)},
            "mb_per_wall_second": {"median": speed(0, statistics.median)},
            "ours_over_peer": {"encode": ratio("peer_encode"), "encode_fast": ratio("peer_encode_fast")}}


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("tokenizer")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out")
    args = parser.parse_args()
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    report = {
        "benchmark": "tokenizer encode, one thread, megabytes (10^6 bytes) of UTF-8",
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "load_1min": round(os.getloadavg()[0], 2)},
        "peer": "Hugging Face tokenizers " + tokenizers.__version__,
        "rounds": args.rounds,
        "english": compare(args.program, args.tokenizer, english_documents(), args.rounds),
        "mixed": compare(args.program, args.tokenizer, mixed_documents(), args.rounds),
    }
    text = json.dumps(report, indent=2) + "\n"
    print(text, end="")
    if args.out:
        pathlib.Path(args.out).write_text(text, encoding="utf-8")


main()
