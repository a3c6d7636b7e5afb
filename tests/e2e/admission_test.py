# SPDX-License-Identifier: Apache-2.0
"""Goal: quotas, priorities and deadlines of `dilaunch run` end in typed errors for the lines they concern and touch no other.
Usage: admission_test.py DILAUNCH SOURCE_DIR"""
import sys
import unittest

from cluster_run import Run, chat, without_times

DILAUNCH, SOURCE = sys.argv[1:3]
LOCAL2 = f"{SOURCE}/launch/topologies/local2.yaml"
HEN = {"id": "hen", "prompt": chat("What sound does a hen make"), "special_tokens": True, "max_tokens": 16, "temperature": 0, "seed": 1}
# Takes seconds: the context is 4096.
LONG = {"prompt": "a b c", "max_tokens": 4000, "ignore_eos": True, "temperature": 1.5, "seed": 3}


class AdmissionTest(unittest.TestCase):
    def run_lines(self, lines, sets=(), args=()):
        run = Run(DILAUNCH, LOCAL2, lines, args=["--quiet", *args], sets=sets)
        self.addCleanup(run.remove)
        code, answers, _ = run.finish()
        self.assertEqual(run.leftovers(), [])
        return code, answers

    def test_ends_a_request_at_its_deadline_and_keeps_what_it_said(self):
        wanted = self.run_lines([HEN])[1]
        code, answers = self.run_lines([LONG | {"id": "late", "deadline_ms": 400, "n": 2}, HEN, HEN | {"id": "calm", "deadline_ms": 60_000}])
        self.assertEqual(code, 5)
        for choice in answers[0]["choices"]:
            self.assertEqual(choice["error"]["code"], "deadline_exceeded")
            self.assertRegex(choice["error"]["message"], "was not done within 400 ms")
            self.assertLess(len(choice["ids"]), 4000)
            self.assertGreater(choice["timings"]["total_ms"], 390)
            self.assertLess(choice["timings"]["total_ms"], 5_000)
        self.assertEqual(without_times(answers[1:2]), without_times(wanted))
        self.assertEqual(answers[2]["finish_reason"], answers[1]["finish_reason"])

    def test_ends_requests_that_wait_for_a_rank(self):
        lines = [LONG | {"id": i, "max_tokens": 1500, "seed": i} for i in range(2)] + [HEN | {"id": f"w{i}", "deadline_ms": 5} for i in range(8)]
        code, answers = self.run_lines(lines, sets=["roles.decode.max_sequences=1"])
        self.assertEqual(code, 5)
        self.assertEqual([a["finish_reason"] for a in answers[:2]], ["length", "length"])
        ended = [a["error"]["code"] for a in answers[2:] if "error" in a]
        self.assertGreater(len(ended), 0)
        self.assertEqual(set(ended), {"deadline_exceeded"})

    def test_refuses_what_passes_a_quota(self):
        lines = [LONG | {"id": "first", "max_tokens": 200, "tenant": "acme", "n": 2}, HEN | {"id": "second", "tenant": "acme"}, HEN | {"id": "other", "tenant": "zeta", "priority": 10}]
        code, answers = self.run_lines(lines, sets=["scheduler.tenant_choices=2"])
        self.assertEqual(code, 5)
        self.assertEqual(answers[1]["error"]["code"], "limit_exceeded")
        self.assertIn("tenant 'acme': 2 choices open", answers[1]["error"]["message"])
        self.assertNotIn("error", answers[0])
        self.assertNotIn("error", answers[2])

    def test_refuses_lines_with_wrong_values(self):
        code, answers = self.run_lines([HEN, HEN | {"priority": 11}, HEN | {"deadline_ms": -1}, HEN | {"tenant": ""}])
        self.assertEqual(code, 5)
        self.assertEqual([a.get("error", {}).get("message", "") for a in answers[1:]],
                         ["line 2: priority: 11 lies outside [-10, 10]", "line 3: deadline_ms: -1 lies outside [1, 2592000000]", "line 4: tenant: 0 bytes; 1 to 64"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=0, warnings="ignore")
