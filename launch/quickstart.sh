#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian 12 to answers: installs, builds, and asks the embedded demo model a dozen things on four ranks.
# Usage: launch/quickstart.sh [topology.yaml]      (default: launch/topologies/local4.yaml). A second run takes seconds.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

topology=${1:-$di_root/launch/topologies/local4.yaml}
prompts=$di_root/launch/models/quickstart.jsonl
out=$di_root/out
[ -f "$topology" ] || di_die "no topology file '$topology'"

di_setup
di_say "building (the first time takes some minutes)"
di_build release dilaunch >"$di_root/build-release.log" 2>&1 || { tail -30 "$di_root/build-release.log" >&2; di_die "the build failed; the whole log is build-release.log"; }

mkdir -p "$out"
di_say "dilaunch run --topology ${topology#"$di_root"/} --prompts ${prompts#"$di_root"/}"
"$di_root/build-release/launch/dilaunch" run --topology "$topology" --prompts "$prompts" --output "$out/quickstart.jsonl" --log-dir "$out/log"

python3 - "$prompts" "$out/quickstart.jsonl" <<'PY'
import json, sys
asked = [json.loads(line) for line in open(sys.argv[1]) if line.strip()]
given = {d["id"]: d for d in map(json.loads, open(sys.argv[2]))}
print()
for q in asked:
    text = q["prompt"].split("<｜User｜>")[-1].split("<｜Assistant｜>")[0]
    d = given[q["id"]]
    answer = d["choices"][0]["text"] if "choices" in d else d["text"]
    print(f"  Q  {text}\n  A  {answer.strip()}\n")
PY
cat <<TEXT
The answers are in out/quickstart.jsonl, the logs of every process in out/log/.

Try next:
  build-release/launch/dilaunch up --topology launch/topologies/local4.yaml         serve it: http://localhost:8000
  build-release/launch/dilaunch chat --url http://localhost:8000                    and talk to it, in another terminal
  build-release/launch/dilaunch plan --topology launch/topologies/local4.yaml       who runs where, memory per rank
  build-release/launch/dilaunch run --topology launch/topologies/local8.yaml --prompts launch/models/quickstart.jsonl
  build-release/launch/dilaunch explain roles.decode.ep                             what a topology key means
  tests/run.sh                                                                      all tests
TEXT
