# SPDX-License-Identifier: Apache-2.0
"""Goal: many rank processes on one small host give the bytes of one rank alone; what is compared can fail.
Method: `ep64`: 8 requests on the topology of 64 ranks. `ep16`: a short mixed workload on 16 ranks, off and with everything on, and on 2 ranks that share prefixes.
Usage: smoke_test.py DILAUNCH SOURCE_DIR ep64|ep16"""
import sys
import unittest

import matrix
import workload

DILAUNCH, SOURCE, KIND = sys.argv[1:4]
MODEL = f"{SOURCE}/launch/models/demo"
SEED, LIMIT_S = 4, 200
matrix.FORCED = "forced:4"  # the runs are short
PLAIN = {"speculation": "off", "prefix": "off", "rebalance": "off"}
ALL_ON = {"speculation": "varlen", "prefix": "exact", "rebalance": "forced"}
EP16 = [PLAIN, {**PLAIN, "speculation": "fixed:5"}, ALL_ON]


class SmokeTest(unittest.TestCase):
    def answers(self, cell, lines, *args):
        topology, sets = matrix.topology_of(cell, MODEL)
        got, facts, problems = matrix.answer_all(DILAUNCH, topology, sets, lines, LIMIT_S, args)
        print(f"{cell}: {matrix.brief(facts)}")
        self.assertEqual(problems + matrix.idle(cell, facts["counters"], () if cell["ep"] == "2" else ("prefix",)), [])
        self.assertEqual([a.get("error") for a in got], [None] * len(lines))
        self.assertEqual(facts["counters"].get("rank_drafts_verified", 0) > 0, cell["speculation"] != "off")
        return got

    def equal(self, cells, count, longest):
        """Each cell answers as one rank does that serves one request after the other."""
        lines = workload.make(count, SEED, MODEL, longest)
        served = workload.without(workload.make(count, SEED, MODEL, longest, matrix.serving_fields(DILAUNCH, MODEL)), "speculation")
        alone = self.answers({"ep": "1", **PLAIN}, lines, "--window", "1")
        for cell in cells:
            # So few requests find a prefix only one after the other, on few ranks.
            args = ("--window", "4") if cell["ep"] == "2" else ()
            with self.subTest(**cell):
                self.assertEqual(matrix.compare(lines, alone, self.answers(cell, served, *args))[:3], [])

    def test_compares_to_the_last_bit(self):
        matrix.self_test()

    @unittest.skipUnless(KIND == "ep64", "the other test")
    def test_64_ranks_give_the_bytes_of_one(self):
        self.equal([{"ep": "64", **PLAIN}, {"ep": "64", **ALL_ON}], 8, 300)

    @unittest.skipUnless(KIND == "ep16", "the other test")
    def test_16_ranks_with_everything_on_give_the_bytes_of_one(self):
        self.equal([*({"ep": "16", **cell} for cell in EP16), {"ep": "2", **ALL_ON}], 24, 700)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=0, warnings="ignore")
