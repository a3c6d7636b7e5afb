#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who may include whom (doc/architecture.md, table of folders). Prints file:line of each offence; exit code 1 if any."""
import re
import subprocess
import sys
from pathlib import Path

# folder prefix -> folders it may include, and words that no include of it may contain. The longest prefix counts.
# What chaos needs of launch to drive real processes: readers of YAML, a loop, a child. Nothing of the cluster itself.
HARNESS = ["launch/yaml_tree.hpp", "launch/units.hpp", "launch/poll_loop.hpp", "launch/process.hpp"]
CAF, ZMQ, SPD, MSGPACK = "caf/", "zmq", "spdlog", "msgpack"
RULES = {
    "kernels": (["kernels"], [CAF, ZMQ, SPD, MSGPACK]),
    "messaging/base": (["messaging/base"], [CAF, ZMQ, MSGPACK]),
    "messaging/proto": (["messaging/base", "messaging/proto"], [CAF, ZMQ, SPD, MSGPACK]),
    "messaging/wire": (["messaging/base", "messaging/proto", "messaging/wire"], [CAF, ZMQ, SPD]),
    "messaging/http": (["messaging/base", "messaging/http"], [CAF, ZMQ, SPD, MSGPACK]),
    "messaging/bus": (["messaging"], [SPD, MSGPACK]),
    "engine/core": (["engine/core", "engine/moe", "engine/kv", "engine/sampling", "engine/text", "messaging/base", "messaging/proto"], [CAF, ZMQ, SPD, MSGPACK]),
    "engine/moe": (["engine/moe", "messaging/base", "messaging/proto"], [CAF, ZMQ, SPD, MSGPACK]),
    "engine/kv": (["engine/kv", "messaging/base", "messaging/proto"], [CAF, ZMQ, SPD, MSGPACK]),
    "engine/sampling": (["engine/sampling", "messaging/base"], [CAF, ZMQ, SPD, MSGPACK]),
    "engine/text": (["engine/text", "messaging/base"], [CAF, ZMQ, SPD, MSGPACK]),
    "engine/chat": (["engine/chat", "engine/text", "messaging/base", "messaging/proto/sampling.hpp"], [CAF, ZMQ, SPD, MSGPACK]),
    "engine/model": (["engine/model", "engine/moe", "engine/kv", "kernels/kernels.hpp", "messaging/base", "messaging/proto"], [CAF, ZMQ, SPD, MSGPACK]),
    "actors": (["actors", "engine", "messaging"], []),
    "launch": (["launch", "actors", "engine", "messaging", "kernels/kernels.hpp"], [CAF, ZMQ]),
    "chaos": (["chaos", "actors", "engine", "messaging", "kernels", "launch/topology.hpp", "launch/plan.hpp"] + HARNESS, []),
    "tests": (["tests", "chaos", "launch", "actors", "engine", "messaging", "kernels"], []),
}
# Files that need more than their folder may have; each with its reason. The list may only shrink.
EXCEPTIONS = {
    "messaging/base/log.cpp": "the one place that sees spdlog",
    "actors/rank.cpp": "owns the device stream of its process",
    "actors/expert_shard.cpp": "owns the device stream of its process",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
OWN = ("kernels/", "messaging/", "engine/", "actors/", "launch/", "chaos/", "tests/")


def offences(root: Path):
    files = subprocess.run(["git", "ls-files", "*.hpp", "*.cpp", "*.cu", "*.cuh", "*.inc"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        prefix = max((p for p in RULES if name.startswith(p + "/")), key=len, default=None)
        if prefix is None:
            yield name, 0, "is in no folder of the rules"
            continue
        allowed, banned = RULES[prefix]
        for number, line in enumerate((root / name).read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match.group(1)
            if target.startswith(OWN):
                fits = any(target == a or target.startswith(a.rstrip("/") + "/") for a in allowed)
                if not fits and not (name in EXCEPTIONS and target == "kernels/kernels.hpp"):
                    yield name, number, f"{prefix} must not include {target}"
            elif any(word in target for word in banned) and name not in EXCEPTIONS:
                yield name, number, f"{prefix} must not see {target}"
            elif target == "caf/all.hpp":
                yield name, number, "caf/all.hpp costs two seconds a file; include what is used"


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    found = list(offences(root))
    for name, number, text in found:
        print(f"{name}:{number}: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
