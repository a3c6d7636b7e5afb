# SPDX-License-Identifier: Apache-2.0
"""Goal: the answers of `dilaunch run` are the same bytes at every EP size, in one node process and in two.
Method: 20 prompts, greedy and sampled, at EP 1 to 8 over ipc, and as two node processes over loopback tcp with CURVE.
Usage: equality_test.py DILAUNCH SOURCE_DIR one|two"""
import sys
import unittest

import matrix
from cluster_run import Run, chat, without_times

DILAUNCH, SOURCE, KIND = sys.argv[1:4]

PROMPTS = [
    {"prompt": chat("What sound does a hen make"), "max_tokens": 24, "temperature": 0},
    {"prompt": chat("二加五等于几？"), "max_tokens": 24, "temperature": 0},
    {"prompt": chat("What is 17 plus 26"), "max_tokens": 24, "temperature": 0},
    {"prompt": chat("Sort these numbers: 9 4 7 1"), "max_tokens": 32, "temperature": 0, "logprobs": 3},
    {"prompt": chat("Tell me a story about a fox named Ruby"), "max_tokens": 96, "temperature": 0},
    {"prompt": chat("Tell me a story about a fox named Ruby"), "max_tokens": 96, "temperature": 1.0, "seed": 11},
    {"prompt": chat("Tell me a story about a boat"), "max_tokens": 64, "temperature": 1.3, "seed": 12, "top_p": 0.9},
    {"prompt": chat("Tell me a story about a boat"), "max_tokens": 48, "temperature": 0.9, "seed": 13, "top_k": 20, "n": 3},
    {"prompt": chat("Name a day after Monday"), "max_tokens": 24, "temperature": 0.7, "seed": 14, "min_p": 0.05},
    {"prompt": chat("Which month comes after May"), "max_tokens": 24, "temperature": 1.5, "seed": 15, "logprobs": 2},
    {"prompt": chat("Count from 3 to 9"), "max_tokens": 40, "temperature": 0, "stop": ["7"]},
    {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 1.0, "seed": 16, "frequency_penalty": 0.5},
    {"prompt": "The quick brown fox", "max_tokens": 40, "temperature": 1.0, "seed": 17, "presence_penalty": 0.8},
    {"prompt_ids": [0, 35, 1428, 824], "max_tokens": 16, "temperature": 0},
    {"prompt_ids": list(range(100, 400)), "max_tokens": 16, "temperature": 0},
    {"prompt_ids": [(7 * i) % 2000 + 3 for i in range(700)], "max_tokens": 24, "temperature": 0.8, "seed": 18},
    {"prompt": chat("Write JSON with name and age of Tom who is 9"), "max_tokens": 48, "temperature": 0},
    {"prompt": chat("Hello"), "max_tokens": 60, "temperature": 0, "ignore_eos": True},
    {"prompt": chat("Hello"), "max_tokens": 30, "temperature": 2.0, "seed": 19, "min_tokens": 20},
    {"prompt": chat("Who are you"), "max_tokens": 40, "temperature": 0, "logit_bias": {"1": -5}},
]
LINES = [{"id": f"p{i}", "seed": 100 + i, **({"special_tokens": True} if "prompt" in p else {}), **p} for i, p in enumerate(PROMPTS)]


def sets(ranks, nodes):
    if nodes == 1:
        return [f"cluster.nodes=[{{host: localhost, ranks: {ranks}}}]", f"roles.decode.ep={ranks}"]
    first = (ranks + 1) // 2
    return [f"cluster.nodes[0].ranks={first}", f"cluster.nodes[1].ranks={ranks - first}", f"roles.decode.ep={ranks}"]


def answer(case, ranks, nodes):
    topology = f"{SOURCE}/launch/topologies/{'local1' if nodes == 1 else 'two_nodes'}.yaml"
    run = Run(DILAUNCH, topology, LINES, sets=sets(ranks, nodes))
    try:
        code, answers, last = run.finish(180)
        case.assertEqual(code, 0, run.err.decode())
        case.assertEqual([a["id"] for a in answers], [line["id"] for line in LINES])
        case.assertEqual(run.leftovers(), [])
        return without_times(answers)
    finally:
        run.remove()


class EqualityTest(unittest.TestCase):
    def test_gives_the_same_bytes_at_every_size(self):
        wanted = answer(self, 1, 1)
        for ranks in (2, 3, 4, 5, 7, 8):
            with self.subTest(ranks=ranks):
                self.assertEqual(answer(self, ranks, 1 if KIND == "one" else 2), wanted)

    def test_gives_the_same_bytes_with_and_without_shared_memory(self):
        topology = f"{SOURCE}/launch/topologies/local4.yaml"
        if KIND != "one":
            topology = f"{SOURCE}/launch/topologies/two_nodes.yaml"
        wanted = None
        for extra in (["cluster.shared_memory=off"], [], ["cluster.segment_size=64KiB"]):
            run = Run(DILAUNCH, topology, LINES, args=["--log-level", "info"], sets=[*extra, "log.counters=true"])
            self.addCleanup(run.remove)
            code, answers, last = run.finish(180)
            self.assertEqual(code, 0, run.err.decode())
            self.assertEqual(run.leftovers(), [])
            self.assertEqual([a["id"] for a in answers], [line["id"] for line in LINES])
            wanted = wanted or without_times(answers)
            self.assertEqual(without_times(answers), wanted)
            counted = matrix.counters(run.err.decode())
            self.assertEqual(counted.get("bus_segment_mails_sent", 0) > 0, extra != ["cluster.shared_memory=off"], counted)
            self.assertEqual(counted.get("bus_segment_refused", 0), 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=0, warnings="ignore")
