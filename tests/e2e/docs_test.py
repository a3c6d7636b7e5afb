# SPDX-License-Identifier: Apache-2.0
"""The examples of doc/serving.md do what stands below them: every `sh` block runs, and the lines of the `text` block behind it come in that order (… stands for anything).

docs_test.py <dilaunch> <source folder>
"""
import os
import re
import subprocess
import sys

from cluster_run import needed
from served import Served, expect

dilaunch, source = sys.argv[1:3]


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


def main():
    needed(curl="curl")
    with open(f"{source}/doc/serving.md") as f:
        blocks = examples(f.read())
    expect(len(blocks) >= 10, f"{len(blocks)} examples")
    with Served(dilaunch, f"{source}/launch/topologies/local2.yaml") as s:
        for line, commands, wanted in blocks:
            script = commands.replace("localhost:8000", f"localhost:{s.ports[0]}").replace("127.0.0.1:9000", f"127.0.0.1:{s.admin_port}")
            r = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=120, env=dict(os.environ, no_proxy="*"))
            where = f"doc/serving.md:{line}"
            expect(r.returncode == 0, f"{where}: exit code {r.returncode}\n{r.stderr}\n{r.stdout[-1500:]}")
            missing = in_order(wanted, r.stdout)
            expect(missing is None, f"{where}: {missing!r} does not come in\n{r.stdout[-3000:]}")
            expect(wanted, f"{where}: nothing is expected of it")
            print(f"{where}: ok", flush=True)


main()
