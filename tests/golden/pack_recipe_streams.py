#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs the stream vectors of golden/recipe without loss: what events and final objects share becomes templates.

Usage: pack_recipe_streams.py SOURCE_FOLDER DESTINATION_FOLDER
The first line of a packed file is {"templates": [...]}. A packed object is [template, value, ...]: each {"$": 0}
in the template stands for the next value, in the order of the text. streams_golden_test.cpp unpacks it."""
import json
import pathlib
import sys

# Leaves that differ from event to event; all others stay in the template.
VARIABLE = {
    "content", "reasoning_content", "arguments", "delta", "text", "partial_json", "thinking", "name",
    "sequence_number", "output_index", "index", "item_id", "id", "prompt_tokens", "completion_tokens", "total_tokens",
    "cached_tokens", "reasoning_tokens", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens", "input_tokens",
    "output_tokens", "cache_read_input_tokens", "finish_reason", "call_id", "phase", "status", "encrypted_content",
}


class Packer:
    def __init__(self):
        self.index = {}
        self.templates = []

    def _split(self, value, key, values):
        if isinstance(value, dict):
            return {k: self._split(v, k, values) for k, v in value.items()}
        if isinstance(value, list):
            return [self._split(v, None, values) for v in value]
        if key in VARIABLE:
            values.append(value)
            return {"$": 0}
        return value

    def pack(self, value):
        values = []
        template = self._split(value, None, values)
        text = json.dumps(template)
        if text not in self.index:
            self.index[text] = len(self.templates)
            self.templates.append(template)
        return [self.index[text]] + values


def unpack(packed, templates):
    values = iter(packed[1:])

    def fill(node):
        if isinstance(node, dict):
            return next(values) if list(node) == ["$"] else {k: fill(v) for k, v in node.items()}
        return [fill(v) for v in node] if isinstance(node, list) else node

    return fill(templates[packed[0]])


def pack_file(source, destination):
    packer = Packer()
    rows = []
    for line in source.read_text(encoding="utf-8").split("\n"):
        if not line:
            continue
        row = json.loads(line)
        row["final"] = packer.pack(row["final"])
        for split in row.get("finals", {}):
            row["finals"][split] = packer.pack(row["finals"][split])
        for run in row["runs"]:
            run["events"] = [[packer.pack(event) for event in push] for push in run["events"]]
        rows.append((line, row))
    for line, row in rows:  # nothing is lost
        original = json.loads(line)
        assert json.dumps(unpack(row["final"], packer.templates)) == json.dumps(original["final"])
        for run, old in zip(row["runs"], original["runs"]):
            events = [[unpack(event, packer.templates) for event in push] for push in run["events"]]
            assert json.dumps(events) == json.dumps(old["events"])
    with destination.open("w", encoding="utf-8") as out:
        for item in [{"templates": packer.templates}] + [row for _, row in rows]:
            out.write(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    source, destination = map(pathlib.Path, sys.argv[1:])
    for family in ("chat", "responses", "messages"):
        name = f"streams_{family}.jsonl"
        pack_file(source / name, destination / name)


if __name__ == "__main__":
    main()
