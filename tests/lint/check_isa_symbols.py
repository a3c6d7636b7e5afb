#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that objects compiled for one instruction set define no symbol another object could share.

check_isa_symbols.py NAMESPACE OBJECT...  prints each weak symbol outside di::kernels::NAMESPACE; exit code 1 if any. A linker
may take such a symbol from any object: code for AVX-512 would then run on machines without it.
"""
import re
import subprocess
import sys

HARMLESS = re.compile(r"^DW\.ref\.")  # exception personality reference, data


def main() -> int:
    namespace, objects = sys.argv[1], sys.argv[2:]
    found = []
    for name in objects:
        lines = subprocess.run(["nm", "--defined-only", "-C", name], capture_output=True, text=True, check=True).stdout.splitlines()
        for line in lines:
            match = re.match(r"^[0-9a-f]+ ([WVu]) (.*)$", line)
            if match and f"di::kernels::{namespace}::" not in match[2] and not HARMLESS.match(match[2]):
                found.append(f"{name}: {match[2]}")
    print("\n".join(found))
    return 1 if found or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
