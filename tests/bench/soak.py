#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Soak: `dilaunch run` again and again with random group sizes, batches, budgets and sampling, for a given time.

Every completion must equal the one of the same request run alone at EP 1; after each run no process, socket folder or shared memory of it
may be left. Deterministic for a seed but for the number of rounds that fit. Prints one JSON object; exit code 1 on any difference.

    tests/bench/soak.py --dilaunch build-release/launch/dilaunch --minutes 30 --seed 1
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS = "What is Which are How many days Sort these numbers Count from Tell me story about silver key 12 47 plus minus red blue".split()


def requests(rng: random.Random, count: int) -> list[dict]:
    """Prompts of 1 to about 400 tokens; greedy and sampled; some with stop strings, several choices, penalties, logprobs."""
    chats = [json.loads(line) for line in open(ROOT / "launch/models/quickstart.jsonl")]
    made = []
    for i in range(count):
        kind = rng.random()
        if kind < 0.4:
            line = dict(rng.choice(chats))
        elif kind < 0.6:
            line = {"prompt_ids": [rng.randrange(3, 1900) for _ in range(rng.choice([1, 2, 5, 17, 64, 130, 400]))]}
        else:
            line = {"prompt": " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 60)))}
        line.update(id=f"r{i}", max_tokens=rng.randrange(1, 33), seed=rng.randrange(1 << 62), ignore_eos=rng.random() < 0.3)
        line["temperature"] = rng.choice([0, 0, 0.7, 1.0, 1.5])
        if line["temperature"]:
            line.update(rng.choice([{}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"top_p": 0.8, "top_k": 50}]))
        line.update(rng.choice([{}, {}, {"stop": ["the", "\n"]}, {"n": 2}, {"logprobs": 3}, {"frequency_penalty": 0.5, "repetition_penalty": 1.1}]))
        made.append(line)
    return made


def topology(folder: Path, ranks: int, rng: random.Random) -> Path:
    path = folder / f"ep{ranks}.yaml"
    redundant = rng.choice([0, 0, 1, ranks]) if ranks > 1 else 0
    path.write_text(f"apiVersion: di/v1\nname: soak{ranks}\nmodel: {{path: {ROOT / 'launch/models/demo'}}}\n"
                    f"cluster: {{nodes: [{{host: localhost, ranks: {ranks}}}]}}\nroles: {{decode: {{ep: {ranks}, redundant_experts: {redundant}}}}}\n")
    return path


def untimed(value):
    """The answer without its timings, which alone may differ."""
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if k != "timings"}
    return [untimed(v) for v in value] if isinstance(value, list) else value


def run(dilaunch: str, topo: Path, lines: list[dict], folder: Path, run_dir: Path) -> dict:
    prompts, output = folder / "prompts.jsonl", folder / "answers.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    env = {**os.environ, "XDG_RUNTIME_DIR": str(run_dir)}
    done = subprocess.run([dilaunch, "run", "--topology", topo, "--prompts", prompts, "--output", output, "--log-level", "warn"],
                          capture_output=True, text=True, timeout=600, env=env)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode} on {topo.read_text()}\n{done.stderr[-3000:]}")
    return {d["id"]: untimed(d) for d in map(json.loads, open(output))}


def left_over(run_dir: Path) -> list[str]:
    found = [str(p) for p in run_dir.iterdir()]
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"XDG_RUNTIME_DIR={run_dir}".encode() in (entry / "environ").read_bytes():
                found.append(f"process {entry.name}")
        except OSError:
            continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dilaunch", required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=24, help="per round")
    options = parser.parse_args()
    began, rounds, compared, tokens, problems = time.monotonic(), 0, 0, 0, []
    sizes: dict[int, int] = {}
    while time.monotonic() - began < options.minutes * 60 and not problems:
        rng = random.Random(options.seed * 1_000_003 + rounds)
        with tempfile.TemporaryDirectory() as scratch:
            folder, run_dir = Path(scratch), Path(scratch) / "rt"
            run_dir.mkdir(mode=0o700)
            lines = requests(rng, options.requests)
            try:
                alone = {}
                for line in rng.sample(lines, 3):  # the same request by itself
                    alone.update(run(options.dilaunch, topology(folder, 1, rng), [line], folder, run_dir))
                want = run(options.dilaunch, topology(folder, 1, rng), lines, folder, run_dir)
                ranks = rng.choice([2, 3, 4, 5, 7, 8])
                got = run(options.dilaunch, topology(folder, ranks, rng), lines, folder, run_dir)
            except (RuntimeError, subprocess.TimeoutExpired) as failure:
                problems.append({"round": rounds, "what": str(failure)})
                break
            sizes[ranks] = sizes.get(ranks, 0) + 1
            for key, answer in got.items():
                compared += 1
                tokens += answer.get("output_tokens", 0)
                if answer != want[key] or (key in alone and alone[key] != answer):
                    problems.append({"round": rounds, "ranks": ranks, "id": key, "got": answer, "want": want[key]})
            problems += [{"round": rounds, "left": what} for what in left_over(run_dir)]
        rounds += 1
    print(json.dumps({"soak": "dilaunch run", "minutes": round((time.monotonic() - began) / 60, 1), "seed": options.seed, "rounds": rounds,
                      "completions_compared": compared, "tokens": tokens, "rounds_per_ep": dict(sorted(sizes.items())),
                      "different_or_left_over": len(problems), "problems": problems[:5]}, indent=1))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
