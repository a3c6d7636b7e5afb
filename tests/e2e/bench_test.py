# SPDX-License-Identifier: Apache-2.0
"""Goal: `dilaunch bench` measures a real cluster and prints JSON; wrong arguments are refused before anything starts.
Usage: bench_test.py DILAUNCH SOURCE_DIR"""
import json
import subprocess
import sys
import unittest

DILAUNCH, SOURCE = sys.argv[1:3]
LOCAL2 = f"{SOURCE}/launch/topologies/local2.yaml"


def bench(*args):
    return subprocess.run([DILAUNCH, "bench", "--topology", LOCAL2, *args], capture_output=True, text=True, timeout=120)


class BenchTest(unittest.TestCase):
    def test_measures_with_and_without_speculation(self):
        done = bench("--rounds", "2", "--batch", "1,3", "--output-tokens", "8", "--speculation", "fixed:3")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["ranks"], 2)
        self.assertEqual([(c["batch"], c["speculation"], c["tokens"]) for c in report["cases"]], [(1, "off", 16), (1, "fixed:3", 16), (3, "off", 48), (3, "fixed:3", 48)])
        for case in report["cases"]:
            self.assertEqual(len(case["tokens_per_s_of_rounds"]), 2)
            self.assertGreater(min(case["tokens_per_s_of_rounds"]), 0)
            self.assertGreater(case["first_token_ms"]["p50"], 0)
            self.assertGreaterEqual(case["first_token_ms"]["p99"], case["first_token_ms"]["p50"])
            self.assertGreaterEqual(case["inter_token_ms"]["p99"], case["inter_token_ms"]["p50"])
        self.assertEqual([g["batch"] for g in report["gain"]], [1, 3])

    def test_refuses_what_it_cannot_measure(self):
        for args in (["--batch", "0"], ["--batch", "x"], ["--rounds", "0"], ["--output-tokens", "1"], ["--set", "kv.rom=1GiB"], ["--speculation", "sometimes"]):
            with self.subTest(args):
                done = bench(*args)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(done.stdout, "")
                self.assertNotEqual(done.stderr, "")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=0, warnings="ignore")
