#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/data/sampling/choices.json: what an independent sampler picks from 10,000 made-up rows.

usage: make_sampling_golden.py > tests/golden/data/sampling/choices.json

Rows and parameters come from Philox words, so that the C++ test (sampler_golden_test.cpp) makes the same ones without
a file. This twin uses the platform's exp and log and Python's big integers; scores that are closer than their error
would be a fair difference, but none of the rows holds such a pair.
"""
import fractions
import json
import math

ROWS, CHUNK = 10000, 100
NONE = float("-inf")


def philox(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def words(row, stream, count):
    out = []
    for quad in range((count + 3) // 4):
        out += philox((quad, row, 0x100 + stream, 0), (0x5EED, 0))
    return out[:count]


def make_row(row):
    p = words(row, 0, 16)
    vocab = 8 + p[0] % 700
    logits = []
    for word in words(row, 1, vocab):
        if word & 0x3F == 0:
            logits.append(NONE)
        elif p[2] % 3 == 0:
            logits.append(float((word >> 28) - 8))
        else:
            logits.append(((word >> 16) - 32768) * 2.0 ** -(10 + p[1] % 4))
    spike = p[3] % vocab
    logits[spike] = 3.0
    return logits, {
        "temperature": [0.0, 0.3, 0.7, 1.0, 1.5][p[4] % 5],
        "top_p": [1.0, 1.0, 0.95, 0.9, 0.5, 0.1][p[5] % 6],
        "top_k": [0, 0, 1, 5, 40, 100][p[6] % 6],
        "min_p": [0.0, 0.0, 0.05, 0.2][p[7] % 4],
        "repetition": [1.0, 1.0, 1.1, 1.3][p[8] % 4],
        "frequency": [0.0, 0.0, 0.5, -0.25][p[9] % 4],
        "presence": [0.0, 0.0, 0.75][p[10] % 3],
        "seed": (p[11], p[12]),
        "choice": p[13] % 4,
        "position": p[14],
        "bias": {spike: -1.5} if p[2] % 2 else {},
        "prompt": [(p[15] + k * 7) % vocab for k in range(3)],
        "output": [(p[15] + k * 5) % vocab for k in range(4)],
    }


def pick(logits, a):
    scores = list(logits)
    for i, bias in a["bias"].items():
        scores[i] += bias
    for i in set(a["prompt"] + a["output"]):
        scores[i] = scores[i] / a["repetition"] if scores[i] > 0 else scores[i] * a["repetition"]
    for i in set(a["output"]):
        scores[i] -= a["frequency"] * a["output"].count(i)
        scores[i] -= a["presence"]
    order = sorted((i for i in range(len(scores)) if scores[i] != NONE), key=lambda i: (-scores[i], i))
    if a["temperature"] < 1e-5:
        return order[0]
    scaled = [s / a["temperature"] for s in scores]
    highest = scaled[order[0]]
    if a["min_p"] > 0:
        order = [i for i in order if scaled[i] >= highest + math.log(a["min_p"])]
    if a["top_k"] > 0:
        order = order[: a["top_k"]]
    if a["top_p"] < 1:
        mass = [math.floor(math.exp(max(scaled[i] - highest, -700)) * 2**40) for i in order]
        target = math.ceil(fractions.Fraction(a["top_p"]) * sum(mass))
        total = kept = 0
        while total < target:
            total += mass[kept]
            kept += 1
        order = order[:kept]

    def score(i):
        word = philox((i >> 2, a["position"], 0, a["choice"]), a["seed"])[i & 3]
        return scaled[i] - math.log(-math.log((word + 0.5) / 2**32))

    return min(order, key=lambda i: (-score(i), i))


def main():
    hashes, value = [], 0
    for row in range(ROWS):
        if row % CHUNK == 0:
            value = 0xCBF29CE484222325
        value = ((value ^ pick(*make_row(row))) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        if row % CHUNK == CHUNK - 1:
            hashes.append("%016x" % value)
    print(json.dumps({"rows": ROWS, "chunk": CHUNK, "ids_fnv": hashes}, indent=0))


main()
