#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A seeded mixed workload for `dilaunch run`: prompts of 1 to 3,000 tokens, shared prefixes, every kind of sampling.

The same seed, count and model give the same requests. What a request says about how it is served (speculation, priority, deadline)
never changes its answer; `plain()` leaves these fields out, for reference runs and for builds that do not know them.

    workload.py --requests 200 --seed 1 --model launch/models/demo > prompts.jsonl
"""
import argparse
import json
import random
import sys
from pathlib import Path

PAGE_TOKENS = 128  # of a KV page: prefixes are shared by whole pages
SERVING_FIELDS = ("speculation", "prefix", "priority", "deadline_ms")
PROMPT_FIELDS = ("prompt", "prompt_ids", "special_tokens")
NOISE = "noise"  # how the ids of requests begin that are there for the others to suffer from
QUESTIONS = (
    "What is {a} plus {b}", "What is {b} minus {a}?", "Count from {c} to {d}", "Sort these numbers: {b} {a} {d} {c}", "Name a day after Monday",
    "Which month comes after May", "What sound does a hen make", "What is a young snake called?", "Who are you?", "Hi there!",
    "Tell me a story about a boat", "Tell me a story about a fox named Ruby", "Give me JSON with name and age: Sam is {a} years old.",
    "Is {a} more than {b}?", "二加五等于几？", "Remember the word red.", "How many legs does a spider have?",
)
WORDS = "What is Which are How many days Sort these numbers Count from Tell me story about silver key 12 47 plus minus red blue".split()
BEGIN, USER, ASSISTANT, END = "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜></think>", "<｜end▁of▁sentence｜>"


def question(rng):
    a, b, c = rng.randrange(10, 50), rng.randrange(50, 99), rng.randrange(1, 9)
    return rng.choice(QUESTIONS).format(a=a, b=b, c=c, d=c + rng.randrange(3, 9))


def talk(rng, turns):
    """A conversation of some turns, open for the next question; a turn takes about 25 tokens."""
    said = (f"{USER}{question(rng)}{ASSISTANT}{rng.choice(('Yes.', 'It is ' + str(rng.randrange(99)) + '.', 'I do not know.'))}{END}" for _ in range(turns))
    return BEGIN + "".join(said)


class Families:
    """Prefixes that many requests share: whole pages, a few tokens more or less, conversations, and prompts that are a prefix themselves."""

    def __init__(self, rng, vocabulary, talks, longest):
        self.rng, self.vocabulary, self.longest = rng, vocabulary, longest
        lengths = [PAGE_TOKENS, PAGE_TOKENS + 1, 2 * PAGE_TOKENS - 1, 3 * PAGE_TOKENS, 3 * PAGE_TOKENS + 57, 8 * PAGE_TOKENS, 11 * PAGE_TOKENS + 3]
        self.ids = [self.some(n) for n in lengths if n + 60 <= longest]
        self.talks = [talk(rng, turns) for turns in (4, 9, 20, 40)] if talks else []

    def some(self, count):
        return [self.rng.randrange(3, self.vocabulary) for _ in range(count)]

    def prompt(self):
        rng = self.rng
        if self.talks and rng.random() < 0.6:
            return {"prompt": rng.choices(self.talks, (4, 3, 2, 1))[0] + f"{USER}{question(rng)}{ASSISTANT}", "special_tokens": True}
        base = rng.choices(self.ids, [8, 6, 6, 4, 4, 1, 1][: len(self.ids)])[0]
        if rng.random() < 0.15:  # shorter than what the others share
            base = base[: rng.randrange(1, len(base))]
        return {"prompt_ids": base + self.some(rng.choice((0, 0, 1, 2, 13, 40)))}


def lone_prompt(rng, families, talks):
    kind = rng.random()
    if talks and kind < 0.5:
        return {"prompt": f"{BEGIN}{USER}{question(rng)}{ASSISTANT}", "special_tokens": True}
    if talks and kind < 0.65:
        return {"prompt": " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 60)))}
    if kind < 0.92:
        lengths = [n for n in (1, 1, 2, 3, 5, 17, 63, 64, 65, 127, 128, 129, 200, 255, 256, 300, 511) if n <= families.longest]
        return {"prompt_ids": families.some(rng.choice(lengths))}
    return {"prompt_ids": families.some(min(families.longest, rng.randrange(700, 3001)))}


def sampling(rng, vocabulary, talks):
    line = {"max_tokens": rng.choice((1, 2, 5, 8, 16, 24, 24, 32, 48, 64)), "seed": rng.randrange(1 << 62)}
    line["temperature"] = rng.choice((0, 0, 0, 0.3, 0.7, 1.0, 1.0, 1.5))
    if line["temperature"]:
        line.update(rng.choice(({}, {}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"top_p": 0.8, "top_k": 50}, {"min_p": 0.02, "top_p": 0.95, "top_k": 100})))
    extras = [{"logprobs": 0}, {"logprobs": 3}, {"ignore_eos": True}, {"ignore_eos": True, "max_tokens": 100}, {"frequency_penalty": 0.5}, {"presence_penalty": 0.8, "repetition_penalty": 1.1},
              {"frequency_penalty": -0.4}, {"min_tokens": rng.randrange(1, 1 + min(line["max_tokens"], 30))}, {"logit_bias": {"1": -5, str(rng.randrange(3, vocabulary)): 4}},
              {"stop_token_ids": [rng.randrange(3, vocabulary) for _ in range(40)]}, {"n": rng.choice((2, 2, 3))}]
    if talks:
        extras += [{"stop": ["the", "\n"]}, {"stop": "is", "include_stop_str_in_output": True}, {"stop": ["s.", "7", " a "]}]
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        line.update(rng.choice(extras))
    return line


def serving(rng):
    """Fields that may change when and how a request runs, never its answer."""
    line = {}
    if rng.random() < 0.4:
        line["speculation"] = rng.choice(("off", "fixed:1", "fixed:2", "fixed:3", "fixed:5", "varlen"))
    if rng.random() < 0.1:
        line["prefix"] = "off"
    if rng.random() < 0.3:
        line["priority"] = rng.choice((-1, 1, 2))
    if rng.random() < 0.2:
        line["deadline_ms"] = 3_600_000
    return line


def grow(line, rng):
    for key in ("stop", "stop_token_ids", "include_stop_str_in_output", "n"):
        line.pop(key, None)
    line.update(max_tokens=rng.randrange(140, 300), ignore_eos=True)


def make(count, seed, model, longest=3000, serving_fields=(), growing=0):
    """[count] prompt lines. Of `serving_fields` those are set that the build knows; the other fields do not depend on them.
    @param longest  [tokens] of the longest prompt; less if the context of the model leaves less
    @param growing  share of requests that grow by one or two pages after their start, so that a tight pool preempts"""
    with open(Path(model) / "config.json") as f:
        config = json.load(f)
    config = config.get("text_config", config)
    talks = (Path(model) / "tokenizer.json").exists()
    vocabulary = min(config["vocab_size"], 2000) - 8  # the last ones of a vocabulary have jobs
    longest = min(longest, config["max_position_embeddings"] - 64)
    rng, server_rng, grower_rng = (random.Random(seed + i) for i in (0, 1, 3))
    families = Families(rng, vocabulary, talks and longest >= 1500, longest)
    lines = []
    for i in range(count):
        kind = rng.random()
        if kind < 0.08 and lines:  # the same prompt again
            again = rng.choice(lines)
            prompt = {k: again[k] for k in PROMPT_FIELDS if k in again}
        elif kind < 0.5:
            prompt = families.prompt()
        else:
            prompt = lone_prompt(rng, families, talks)
        served = serving(server_rng)
        if len(prompt.get("prompt_ids", prompt.get("prompt"))) > 100 and rng.random() < 0.15:
            prompt = {**prompt, "prefill": "compact"}  # changes the answer, the same way everywhere
        lines.append({"id": f"r{i}", **prompt, **sampling(rng, vocabulary, talks), **{k: v for k, v in served.items() if k in serving_fields}})
        if grower_rng.random() < growing:
            grow(lines[-1], grower_rng)
    if count >= 50:  # one of exactly the longest length, somewhere in the middle
        lines[count // 2] = {"id": f"r{count // 2}", "prompt_ids": families.some(longest), "max_tokens": 24, "temperature": 0, "seed": seed}
    return lines


def with_noise(lines, seed):
    """The lines and, among them, some with the same prompts whose own answers may depend on what was cached when: `bounded` reuse of a
    prefix is an approximation, but what it leaves behind must not change the others."""
    rng, mixed = random.Random(seed + 2), []
    for line in lines:
        mixed.append(line)
        if rng.random() < 0.08:
            like = rng.choice(lines)
            mixed.append({"id": f"{NOISE}{len(mixed)}", **{k: like[k] for k in PROMPT_FIELDS if k in like}, "prefix": "bounded", "max_tokens": 12, "seed": 1})
    return mixed


def without(lines, *fields):
    return [{k: v for k, v in line.items() if k not in fields} for line in lines]


def plain(lines):
    return without(lines, *SERVING_FIELDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=int, default=3000, help="tokens of the longest prompt")
    parser.add_argument("--model", default=str(Path(__file__).resolve().parents[2] / "launch/models/demo"))
    options = parser.parse_args()
    for line in make(options.requests, options.seed, options.model, options.longest):
        print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(main())
