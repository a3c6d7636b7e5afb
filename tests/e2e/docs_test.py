# SPDX-License-Identifier: Apache-2.0
"""The examples of doc/serving.md do what stands below them: every `sh` block runs, and the lines of the `text` block behind it come in that order (… stands for anything).
Of README.md: the `sh` block that has a `text` block, and the lines for the official Python clients.

docs_test.py <dilaunch> <source folder> <folder for the virtual environment>
"""
import os
import re
import subprocess
import sys

import client_venv
from cluster_run import needed
from served import Served, expect

dilaunch, source, venv = sys.argv[1:4]
client_venv.enter(venv)


def examples(text):
    """[(line, commands, expected lines)]"""
    found = []
    for m in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        if m[1] == "sh":
            found.append((text[: m.start()].count("\n") + 1, m[2], []))
        elif m[1] == "text" and found:
            found[-1][2].extend(m[2].splitlines())
    return found


def in_order(wanted, output):
    """The first wanted line that does not come after those before it."""
    at = 0
    for line in wanted:
        match = re.compile(".*?".join(re.escape(part) for part in line.split("…"))).search(output, at)
        if not match:
            return line
        at = match.end()
    return None


def run(s, where, command, script):
    """What the command prints for a script that speaks to the ports of the documents."""
    script = script.replace("localhost:8000", f"localhost:{s.ports[0]}").replace("127.0.0.1:9000", f"127.0.0.1:{s.admin_port}")
    env = dict(os.environ, no_proxy="*", PATH=f"{os.path.dirname(os.path.abspath(dilaunch))}:{os.environ['PATH']}")
    r = subprocess.run([*command, "-c", script], capture_output=True, text=True, timeout=120, env=env)
    expect(r.returncode == 0, f"{where}: exit code {r.returncode}\n{r.stderr}\n{r.stdout[-1500:]}")
    return r.stdout


def follow(s, name, blocks):
    for line, commands, wanted in blocks:
        where = f"{name}:{line}"
        printed = run(s, where, ["bash", "-euo", "pipefail"], commands)
        missing = in_order(wanted, printed)
        expect(missing is None, f"{where}: {missing!r} does not come in\n{printed[-3000:]}")
        expect(wanted, f"{where}: nothing is expected of it")
        print(f"{where}: ok", flush=True)


def main():
    needed(curl="curl")
    with open(f"{source}/doc/serving.md") as f:
        blocks = examples(f.read())
    expect(len(blocks) >= 10, f"{len(blocks)} examples")
    with open(f"{source}/README.md") as f:
        text = f.read()
    front = [b for b in examples(text) if b[2]]
    clients = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    expect(len(front) == 1 and len(clients) == 1, f"README.md: {len(front)} examples, {len(clients)} for Python")
    with Served(dilaunch, f"{source}/launch/topologies/local2.yaml") as s:
        follow(s, "README.md", front)
        printed = run(s, "README.md", [sys.executable], clients[0])
        expect(len(printed.splitlines()) >= 2 and printed.strip(), f"README.md, Python: {printed!r}")
        print("README.md, Python: ok", flush=True)
        follow(s, "doc/serving.md", blocks)
        said = run(s, "dilaunch chat", ["bash", "-euo", "pipefail"], "echo What is 2 plus 3? | dilaunch chat --url http://localhost:8000 --no-thinking --temperature 0 --max-tokens 8 --stats 2>&1")
        expect("5" in said.splitlines()[0] and "tokens" in said, f"dilaunch chat: {said!r}")
        print("dilaunch chat: ok", flush=True)


main()
