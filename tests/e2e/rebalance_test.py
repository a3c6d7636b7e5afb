# SPDX-License-Identifier: Apache-2.0
"""Goal: answers are the same bytes while experts move between processes, and moving by load makes ranks more even.
Method: 24 prompts at EP 4, experts at rest, placed at random every two steps, and moved by load; the counters say what moved.
Usage: rebalance_test.py DILAUNCH SOURCE_DIR"""
import re
import sys
import unittest

from cluster_run import Run, chat, without_times

DILAUNCH, SOURCE = sys.argv[1:3]
WORDS = ["hen", "fox", "boat", "river", "moon", "lamp", "bread", "stone"]
LINES = [{"id": f"p{i}", "seed": 300 + i, "special_tokens": True, "prompt": chat(f"Tell me a story about a {WORDS[i % 8]}"), "max_tokens": 40 + i,
          "temperature": [0, 0.8, 1.2][i % 3], "ignore_eos": True} for i in range(24)]


def run(case, *sets):
    """(answers without times, counters of control and ranks added up)"""
    r = Run(DILAUNCH, f"{SOURCE}/launch/topologies/local4.yaml", LINES, sets=["log.counters=true", "roles.decode.redundant_experts=8", *sets])
    try:
        code, answers, last = r.finish(180)
        case.assertEqual(code, 0, r.err.decode())
        case.assertEqual(r.leftovers(), [])
        counters = {}
        for all in re.findall(r'process_counters counters="([^"]*)"', r.err.decode()):
            for name, value in (pair.split("=") for pair in all.split()):
                counters[name] = counters.get(name, 0) + float(value)
        return without_times(answers), counters
    finally:
        r.remove()


class RebalanceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wanted, counters = run(cls(), "roles.decode.rebalance=off")
        assert "di_rebalancer_moves_total" not in counters, counters

    def test_gives_the_same_bytes_while_experts_are_placed_at_random(self):
        got, counters = run(self, "roles.decode.rebalance=forced:2")
        self.assertEqual(got, self.wanted)
        print({k: v for k, v in counters.items() if "rebalancer" in k or "slots" in k}, file=sys.stderr)
        self.assertGreater(counters["di_rebalancer_plans_total"], 5)
        self.assertGreater(counters["di_expert_shard_slots_loaded_total"], 200)
        self.assertGreater(counters["di_expert_shard_slots_released_total"], 200)
        self.assertEqual(counters.get("di_rank_calls_moved_total", 0), 0, "a slot was freed before all had switched")

    def test_gives_the_same_bytes_and_more_even_ranks_when_experts_move_by_load(self):
        got, counters = run(self, "roles.decode.rebalance=auto", "roles.decode.rebalance_window=8", "roles.decode.rebalance_interval=16")
        self.assertEqual(got, self.wanted)
        print({k: v for k, v in counters.items() if "rebalancer" in k or "slots" in k}, file=sys.stderr)
        self.assertGreater(counters["di_rebalancer_plans_total"], 0)
        self.assertLess(counters["di_rebalancer_plan_moe_lb_after"], counters["di_rebalancer_plan_moe_lb_before"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=0, warnings="ignore")
