# SPDX-License-Identifier: Apache-2.0
"""Goal: `dilaunch plan` tells the memory of a rank within 10 % of what the kernel counts.
Method: fill the KV room of a rank on the demo model; touch all experts of four ranks on the `small` synthetic model, whose
experts are larger than what the kernel maps around a fault; compare with /proc/<pid>/smaps.
Usage: memory_test.py DILAUNCH SOURCE_DIR"""
import json
import subprocess
import sys
import tempfile
import unittest

from cluster_run import Run

DILAUNCH, SOURCE = sys.argv[1:3]
LOCAL1 = f"{SOURCE}/launch/topologies/local1.yaml"


def plan(sets):
    command = [DILAUNCH, "plan", "--json", LOCAL1]
    for s in sets:
        command += ["--set", s]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["ranks"]


def resident(pid):
    """[bytes] (mapped weights, private memory elsewhere)"""
    weights = own = 0
    weight_file = False
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                weight_file = words[-1].endswith(".safetensors")
            elif weight_file and words[0] == "Rss:":
                weights += int(words[1]) * 1024
            elif not weight_file and words[0] in ("Private_Clean:", "Private_Dirty:"):
                own += int(words[1]) * 1024
    return weights, own


def near(case, planned, seen, what):
    print(f"{what}: planned {planned / 2**20:.1f} MiB, resident {seen / 2**20:.1f} MiB, {100 * (planned / seen - 1):+.1f} %")
    case.assertLess(abs(planned - seen), 0.1 * seen, what)


class MemoryTest(unittest.TestCase):
    def test_of_a_rank_with_full_room(self):
        # Without a prefix cache the second round of prompts takes as long as the first: time to look.
        sets = ["roles.decode.max_sequences=4", "roles.decode.threads=1", "kv.prefix=off"]
        ids = [[(7 * i + 31 * k) % 2000 + 3 for i in range(3900)] for k in range(4)]
        first = [{"id": f"first{k}", "prompt_ids": p, "max_tokens": 2, "temperature": 1, "seed": k, "ignore_eos": True} for k, p in enumerate(ids)]
        run = Run(DILAUNCH, LOCAL1, [{"id": k, "prompt_ids": p, "max_tokens": 190, "temperature": 1, "seed": k, "ignore_eos": True} for k, p in enumerate(ids)] + first, sets=sets)
        self.addCleanup(run.remove)
        run.until(lambda r: r.out.count(b"\n") >= 4, 200)
        weights, own = resident(run.processes()["rank 0"])
        rank = plan(sets)[0]
        near(self, rank["shared_bytes"], weights, "demo, shared")
        near(self, rank["private_bytes"], own, "demo, private")

    def test_of_four_ranks_with_large_experts(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        subprocess.run([DILAUNCH, "checkpoint", "make", "--preset", "small", "--seed", "1", "--out", folder.name + "/m"], check=True, capture_output=True)
        sets = ["cluster.nodes[0].ranks=4", "roles.decode.ep=4", f"model.path={folder.name}/m"]
        short = [{"id": i, "prompt_ids": [(7 * j * (i + 1) + 31 * i) % 900 + 3 for j in range(300)], "max_tokens": 2, "ignore_eos": True, "temperature": 1, "seed": i} for i in range(8)]
        long = [{"id": 9, "prompt_ids": [5, 6, 7], "max_tokens": 3000, "ignore_eos": True, "temperature": 1, "seed": 9}]
        run = Run(DILAUNCH, LOCAL1, short + long, sets=sets)
        self.addCleanup(run.remove)
        run.until(lambda r: r.out.count(b"\n") >= 8, 200)
        pids = run.processes()
        for rank in plan(sets):
            near(self, rank["shared_bytes"], resident(pids[f"rank {rank['rank']}"])[0], f"small, rank {rank['rank']}, shared")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=0, warnings="ignore")
