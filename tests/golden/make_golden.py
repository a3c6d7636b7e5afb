#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies the golden vectors that the tests need out of the reference's folder, and cuts the long
capture down to what only it can show: selections with candidate dropping, router ids, cached rows.

    make_golden.py REFERENCE_FOLDER [OUT_FOLDER]
"""
import json
import re
import shutil
import struct
import sys
from pathlib import Path

WHOLE = ["manifest.json", "tiny.logits.safetensors", "tiny.layers.len40.safetensors"]
CUT = "tiny.layers.len150.safetensors"
# Index sources with their inputs and what follows from them; router inputs of three layers.
KEEP = re.compile(
    r"(dec[0-2]\.)?("
    r"L[1346]\.(attn_in|sel|candidates|main_kv|index_k|window_kv|attn_out)|"
    r"L[047]\.(ffn_in|router_ids|router_weights|ffn_out))"
)
# Draft passes: one capture layer by layer per prompt with the taps before it, and what the passes of
# all prompts gave. The rows of the 16 best logits say nothing that the stored whole rows do not.
DRAFTS = ["tiny.layers.len40.safetensors", "tiny.layers.len150.safetensors"]
DRAFT_KEEP = re.compile(r"draft\..*(?<!attn_rows)|tap|main_x|dec[0-2]\.L[67]\.X_in")
PASSES = "tiny.dspark.safetensors"
PASSES_DROP = re.compile(r".*(top16_(ids|logits)|logsumexp)")


def read(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return header, data[8 + length :]


def write(path, header, data):
    """Tensors follow each other, wide elements first, so that all stay aligned."""
    width = {"F32": 4, "I32": 4, "BF16": 2}
    names = sorted(header, key=lambda n: (-width.get(header[n]["dtype"], 1), n))
    out, body = {"__metadata__": {"format": "pt"}}, bytearray()
    for name in names:
        begin, end = header[name]["data_offsets"]
        out[name] = dict(header[name], data_offsets=[len(body), len(body) + end - begin])
        body += data[begin:end]
    text = json.dumps(out, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    source = Path(sys.argv[1])
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent / "data" / "model"
    target.mkdir(parents=True, exist_ok=True)
    for name in WHOLE:
        header_only = name.endswith(".json")
        if header_only:
            shutil.copyfile(source / name, target / name)
            continue
        header, data = read(source / name)
        kept = {n: t for n, t in header.items() if not n.startswith("draft.")}
        write(target / name, kept, data)
    header, data = read(source / CUT)
    write(target / CUT, {n: t for n, t in header.items() if KEEP.fullmatch(n)}, data)
    for name in DRAFTS:
        header, data = read(source / name)
        kept = {n: t for n, t in header.items() if DRAFT_KEEP.fullmatch(n)}
        write(target / name.replace("layers", "drafts"), kept, data)
    header, data = read(source / PASSES)
    kept = {n: t for n, t in header.items() if not PASSES_DROP.fullmatch(n)}
    write(target / PASSES, kept, data)


if __name__ == "__main__":
    main()
