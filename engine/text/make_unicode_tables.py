#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode_ranges.inc from a JSON file of inclusive hexadecimal ranges per class.

Usage: make_unicode_tables.py CLASSES.json > engine/text/unicode_ranges.inc
The input has {"classes": {"L": "41-5A 61-7A AA ...", "M": ..., "N": ..., "P": ..., "S": ..., "space": ...}}.
Each output line is a row {class bit name, first, last} for the array in unicode_classes.cpp.
"""
import json
import sys

NAMES = [("L", "letter"), ("M", "mark"), ("N", "number"), ("P", "punctuation"), ("S", "symbol"), ("space", "space")]


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        classes = json.load(file)["classes"]
    print("// SPDX-License-Identifier: Apache-2.0")
    print("// Made by make_unicode_tables.py: general categories of Unicode 16.0 and White_Space. Do not edit.")
    print("// clang-format off")
    for key, name in NAMES:
        line = ""
        for item in classes[key].split():
            first, _, last = item.partition("-")
            cell = "{%s,0x%s,0x%s}," % (name, first, last or first)
            if len(line) + len(cell) > 118:
                print(line)
                line = ""
            line += cell
        print(line)
    print("// clang-format on")


main()
