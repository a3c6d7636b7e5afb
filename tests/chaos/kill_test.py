# SPDX-License-Identifier: Apache-2.0
"""Goal: a rank process that dies or hangs in the middle of a step, under load, costs no request and changes no byte.
Method: a mixed load (chat, sampled, n > 1, stop strings, drafts, prompts up to 600 tokens) at EP 4 and 8; a seeded rank gets a signal at a seeded
moment; all answers must equal those of one undisturbed process; nothing may be left behind.
Usage: kill_test.py DILAUNCH SOURCE_DIR KIND [SEEDS]; KIND: a name of a test below without test_. Times are told, not judged."""
import json
import re
import signal
import sys
import time
import unittest

from chaos_run import ChaosRun, check, moment, moved, requests, told, undisturbed

DILAUNCH, SOURCE, KIND = sys.argv[1:4]
SEEDS = [int(s) for s in sys.argv[4].split(",")] if len(sys.argv) > 4 else [1]
HASTY = ["supervisor.drain_timeout=1s"]  # requests that take longer are handed over
REQUESTS = {4: 150, 8: 150, 64: 160}


class KillTest(unittest.TestCase):
    wanted_of = {}

    def load(self, seed, count):
        lines = requests(count, seed)
        key = (seed, count)
        if key not in self.wanted_of:
            self.wanted_of[key] = undisturbed(DILAUNCH, lines)
        return lines, self.wanted_of[key]

    def start(self, lines, ranks, **options):
        run = ChaosRun(DILAUNCH, lines, ranks, **options)
        self.addCleanup(run.remove)
        return run.ready()

    def one_kill(self, ranks, mode, seed, wait_ms, number=signal.SIGKILL, **options):
        lines, wanted = self.load(seed, REQUESTS[ranks])
        run = self.start(lines, ranks, sets=[f"supervisor.on_rank_loss={mode}"], window=8 * ranks, **options)
        victim = f"rank {int(moment(seed * 31 + ranks, 0, ranks))}"
        run.answered(1).for_ms(wait_ms)
        old = run.strike([victim], number)
        if number != signal.SIGKILL:
            run.killed += old.values()
        return run, wanted

    def at_work(self, seed, hurt, seconds=180, lost=1, then=None, **more):
        """What `hurt(wait_ms)` strikes, once so long after the first answer, must have been at work: so many ranks were lost, and requests moved.
        A signal that came too late for that proves nothing: it comes again at an earlier moment, a few times. `then(run)`: what the log must say."""
        for again in range(4):
            run, wanted = hurt(moment(seed + 1000 * again, 0, 2000 / (1 + again)))
            answers = check(self, run, wanted, seconds)
            if len(run.lost()) >= lost and moved(answers) > 0:
                if then:
                    then(run)
                return self.tell(run, answers, seed=seed, again=again, **more)
        self.fail(f"{run.faults}: nothing was at work at four moments: {len(run.lost())} of {lost} lost, {moved(answers)} requests moved")

    def tell(self, run, answers, **more):
        print(json.dumps({"kind": KIND, "ranks": run.ranks, **more, **told(run, answers)}), flush=True)

    def went(self, mode, run):
        """The views are those of this way to deal with a loss: shrink goes on without the rank, restart waits for it, restart_smaller starts
        all others anew."""
        views = run.views()
        self.assertGreaterEqual(len(views), 2, "no view was committed after the loss")
        first, second = views[:2]
        kept = {r for r, life in second.items() if first.get(r) == life}
        lost = {f.names[0].split()[1] for f in run.faults}
        if mode == "shrink":
            self.assertEqual((set(second), kept), (set(first) - lost, set(first) - lost))
        elif mode == "restart":
            self.assertEqual((set(second), kept), (set(first), set(first) - lost))
            self.assertEqual({len(v) for v in views}, {run.ranks})
        else:
            self.assertEqual((len(second), kept), (run.ranks - 1, set()))

    def modes(self, mode):
        for ranks in (4, 8):
            for seed in SEEDS:
                with self.subTest(ranks=ranks, seed=seed):
                    self.at_work(seed, lambda ms: self.one_kill(ranks, mode, seed, ms), then=lambda run: self.went(mode, run), mode=mode)

    def test_nothing(self):
        """The same without a fault: what the others compare must hold by itself."""
        for ranks in (4, 8):
            lines, wanted = self.load(SEEDS[0], REQUESTS[ranks])
            check(self, self.start(lines, ranks, window=8 * ranks), wanted)

    def test_shrink(self):
        self.modes("shrink")

    def test_restart(self):
        self.modes("restart")

    def test_restart_smaller(self):
        self.modes("restart_smaller")

    def test_stop(self):
        """A rank that is stopped holds the others up; it is expelled and killed."""
        for seed in SEEDS:
            with self.subTest(seed=seed):
                self.at_work(seed, lambda ms: self.one_kill(8, "shrink", seed, ms, signal.SIGSTOP))

    def loaded(self, seed, wait_ms, ranks=8, **options):
        lines, wanted = self.load(seed, REQUESTS[ranks])
        return self.start(lines, ranks, window=8 * ranks, **options).answered(1).for_ms(wait_ms), wanted

    def pair(self, seed):
        first = int(moment(seed + 2, 0, 8))
        return [f"rank {first}", f"rank {(first + 1 + int(moment(seed + 3, 0, 7))) % 8}"]

    def test_two_at_once(self):
        def hurt(wait_ms):
            run, wanted = self.loaded(seed, wait_ms)
            run.strike(self.pair(seed))
            return run, wanted
        for seed in SEEDS:
            with self.subTest(seed=seed):
                self.at_work(seed, hurt, lost=2)

    def test_second_during_recovery(self):
        """The second dies 1 to 60 ms after the first: while the view, the placement or the requests of the first are on their way."""
        def hurt(wait_ms):
            run, wanted = self.loaded(seed, wait_ms)
            first, second = self.pair(seed)
            run.strike([first])
            run.for_ms(moment(seed + 4, 1, 60))
            run.strike([second])
            return run, wanted
        for seed in SEEDS:
            with self.subTest(seed=seed):
                self.at_work(seed, hurt, lost=2)

    def test_busiest(self):
        def hurt(wait_ms):
            run, wanted = self.loaded(seed, wait_ms)
            run.strike([run.busiest()])
            return run, wanted
        for seed in SEEDS:
            with self.subTest(seed=seed):
                self.at_work(seed, hurt)

    def test_rejoin(self):
        """A killed rank is back in the group, under load, and dies once more."""
        for seed in SEEDS:
            with self.subTest(seed=seed):
                lines, wanted = self.load(seed, 4 * REQUESTS[8])
                run = self.start(lines, 8, window=64)
                run.until(lambda r: b"batch_began" in r.err)  # the work must outlast two returns
                run.for_ms(200)
                victim = f"rank {int(moment(seed, 0, 8))}"
                run.strike([victim])
                run.rejoined(1, 30)
                first = run.faults[0]
                run.for_ms(300)
                run.strike([victim])
                run.rejoined(2, 30)
                run.faults = [first]
                self.tell(run, check(self, run, wanted, 300), seed=seed)

    def without_node(self, run):
        """Some view is without the ranks of node 1."""
        self.assertIn({"0", "1"}, [set(view) for view in run.views()[1:]])

    def node(self, number):
        def hurt(wait_ms):
            run, wanted = self.loaded(seed, wait_ms, 4, nodes=2)
            gone = [p for n, p in run.processes().items() if n in ("rank 2", "rank 3", "node 1")]
            run.strike(["node 1"], number)
            run.killed += gone
            return run, wanted
        for seed in SEEDS:
            with self.subTest(seed=seed):
                self.at_work(seed, hurt, lost=2, then=self.without_node)

    def test_node(self):
        """One of two node processes dies, and its ranks with it."""
        self.node(signal.SIGKILL)

    def test_node_stop(self):
        """A node process is stopped: it counts as lost when its lease is over, and is killed with its ranks."""
        self.node(signal.SIGSTOP)

    def test_control(self):
        """Control comes back from its journal, with requests open in it, while the ranks live on."""
        for seed in SEEDS:
            with self.subTest(seed=seed):
                lines, wanted = self.load(seed, REQUESTS[4])
                run = self.start(lines, 4, window=32).answered(1).for_ms(moment(seed, 0, 1000))
                run.strike(["control"])
                answers = check(self, run, wanted)
                found = run.saw("journal_recovered")
                self.assertEqual(len(found), 1, "control did not come back from its journal")
                self.assertGreater(int(re.search(r"requests=(\d+)", found[0][3])[1]), 0, found)
                self.assertEqual(run.lost(), set())
                self.tell(run, answers, seed=seed)

    def ordered(self, ranks, orders, count=None, **options):
        """Orders of an operator under load, one after the other: each is carried out, and no answer notices."""
        for seed in SEEDS:
            with self.subTest(seed=seed):
                lines, wanted = self.load(seed, count or REQUESTS[ranks])
                run = self.start(lines, ranks, window=8 * ranks, **options).answered(1)
                began = time.monotonic()
                for words in orders:
                    code, said = run.order(*words)
                    self.assertEqual(code, 0, f"{words}: {said}\n{run.err.decode()[-4000:]}")
                took = round(1000 * (time.monotonic() - began))
                self.assertIsNone(run.p.poll(), "the load ended before the orders did")
                answers = check(self, run, wanted)
                print(json.dumps({"kind": KIND, "ranks": ranks, "seed": seed, "orders_ms": took, "moved": moved(answers)}), flush=True)

    def test_scale(self):
        self.ordered(8, (("scale", "decode=5"), ("scale", "decode=8")), 300, sets=HASTY)

    def test_drain(self):
        self.ordered(4, (("drain", "rank", "2"), ("rejoin", "rank", "2")), 300)

    def test_upgrade(self):
        """All ranks are restarted one after the other."""
        self.ordered(4, (("upgrade",),), 300, sets=HASTY)

    def test_ep64(self):
        for seed in SEEDS:
            with self.subTest(seed=seed):
                self.at_work(seed, lambda ms: self.one_kill(64, "shrink", seed, ms), seconds=300)


if __name__ == "__main__":
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromNames([f"KillTest.test_{KIND}"], sys.modules[__name__]))
    sys.exit(not unittest.TextTestRunner(verbosity=0, warnings="ignore").run(suite).wasSuccessful())
