#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks layout, file sizes, SPDX lines and banned words. Prints file:line of each offence; exit code 1 if any."""
import re
import subprocess
import sys
from pathlib import Path

TOP = {"CMakeLists.txt", "LICENSE", "README.md", "actors", "engine", "kernels", "messaging", "launch", "tests", "chaos", "doc"}
LINES_MAX = 450
# Longer files with the length they may have; the list may only shrink. Each says why one file is right.
LONG = {}
CODE = (".cpp", ".hpp", ".cu", ".cuh")
BANNED = [
    (re.compile(r"\bTODO\b(?!\s*\(#\d+\))"), "TODO without an issue number"),
    (re.compile(r"\bFIXME\b|\bXXX\b"), "mark of unfinished work"),
    (re.compile(r"\busing namespace (?!std::(literals|chrono_literals|string_view_literals))"), "using namespace"),
    (re.compile(r"\bcaf::infinite\b"), "request without a deadline"),
    (re.compile(r"-ffast-math|__builtin_assume_aligned_fast|_mm\w*_(rsqrt|rcp)\w*"), "breaks the bit contract"),
    (re.compile(r"\bsleep_for\b|\busleep\b|\bsleep_until\b"), "sleep: wait on a condition with a deadline"),
]
# Threads exist only where the design names them: bus, HTTP loops, process code, kernel pools, the checkpoint writer; and the
# journal's writer, whose disk may make it wait.
THREAD = re.compile(r"\bstd::j?thread\b(?!::)")
THREADS_ALLOWED = ("messaging/bus/", "messaging/http/", "launch/", "kernels/", "tests/", "engine/model/synthetic", "actors/journal_file")


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    files = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
    found = []
    for name in files:
        top = name.split("/")[0]
        if top not in TOP and not top.startswith("."):
            found.append(f"{name}:1: top-level entry outside the fixed layout")
        if not name.endswith(CODE + (".py", ".sh")):
            continue
        lines = (root / name).read_text(encoding="utf-8").splitlines()
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
            found.append(f"{name}:1: no SPDX line")
        if len(lines) > LONG.get(name, LINES_MAX):
            found.append(f"{name}:{len(lines)}: more than {LONG.get(name, LINES_MAX)} lines; two things want two files")
        if not name.endswith(CODE):
            continue
        for number, line in enumerate(lines, 1):
            for pattern, why in BANNED:
                if pattern.search(line):
                    found.append(f"{name}:{number}: {why}")
            if THREAD.search(line) and not name.startswith(THREADS_ALLOWED):
                found.append(f"{name}:{number}: std::thread outside the places the design names")
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
