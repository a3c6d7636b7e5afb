#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The example actor as a shared object named in a topology, in a running local4: it hears live steps, dies past its budget, is started
again, and takes the run down with exit code 3 when its restarts are used up. Arguments: dilaunch, token_meter.so, source folder."""
import json
import re
import subprocess
import sys
import tempfile

DILAUNCH, PLUGIN, SOURCE = sys.argv[1:4]
DEADLINE_S = 100


def run(folder, actor, plugin=PLUGIN):
    topology = f"{folder}/local4.yaml"
    with open(topology, "w") as f:
        f.write(f"""apiVersion: di/v1
name: local4
model: {{path: {SOURCE}/launch/models/demo}}
cluster: {{nodes: [{{host: localhost, ranks: 4}}]}}
roles: {{decode: {{ep: 4}}}}
plugins: [{plugin}]
actors:
  - {actor}
""")
    prompts = f"{folder}/prompts.jsonl"
    with open(prompts, "w") as f:
        for i in range(2):
            f.write(json.dumps({"id": i, "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "ignore_eos": True}) + "\n")
    return subprocess.run([DILAUNCH, "run", "--topology", topology, "--prompts", prompts], capture_output=True, text=True,
                          timeout=DEADLINE_S, stdin=subprocess.DEVNULL)


def check(what, fine, got):
    if not fine:
        sys.exit(f"FAILED: {what}\nexit code {got.returncode}\nstdout: {got.stdout}\nstderr: {got.stderr}")
    print(f"ok: {what}")


def meter(tokens_max, restarts):
    return (f"{{kind: token_meter, at: /cluster/meter, listen: [step_finished], config: {{tokens_max: {tokens_max}}}, "
            f"restart: {{max: {restarts}, window_ms: 10000}}}}")


with tempfile.TemporaryDirectory(prefix="di-plugin-") as home:
    got = run(home, meter(1000000, 0))
    check("a plugin within its budget is not noticed", got.returncode == 0 and "actor_ended" not in got.stderr, got)
    undisturbed = [json.loads(line)["ids"] for line in got.stdout.splitlines()]
    check("both prompts are answered", len(undisturbed) == 2 and all(len(ids) == 24 for ids in undisturbed), got)

    got = run(home, meter(15, 1000))
    deaths = re.findall(r'actor_ended actor=/cluster/meter reason="limit_exceeded: tokens_max=15"', got.stderr)
    lives = [int(n) for n in re.findall(r"actor_restarted actor=/cluster/meter life=(\d+)", got.stderr)]
    check("it hears live steps and fails past its budget", len(deaths) >= 2, got)
    check("it is restarted with rising lives", len(lives) >= 2 and lives == list(range(2, 2 + len(lives))), got)
    check("the run does not care", got.returncode == 0 and [json.loads(line)["ids"] for line in got.stdout.splitlines()] == undisturbed, got)

    got = run(home, meter(15, 0))
    last = got.stderr.rstrip().splitlines()[-1]
    check("used-up restarts end the run with code 3 and the reason last",
          got.returncode == 3 and "/cluster/meter: no restart left of 0" in last and "tokens_max=15" in last, got)

    got = run(home, meter("many", 1))
    check("a wrong config is located before anything runs",
          got.returncode != 0 and re.search(r"local4\.yaml:8:\d+: config of token_meter at /cluster/meter: tokens_max: 'many' is no whole", got.stderr), got)

    got = run(home, "{kind: token_metre, at: /cluster/meter}")
    check("an unknown kind names the known ones", got.returncode != 0 and "unknown actor kind 'token_metre'; known are token_meter" in got.stderr, got)

    got = run(home, meter(1, 1), plugin=PLUGIN.replace("token_meter.so", "plugin_wrong_abi.so"))
    check("another ABI version is refused by name", got.returncode != 0 and "built against kit ABI version 999" in got.stderr, got)
