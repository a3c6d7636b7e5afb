#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lint scripts themselves: each planted offence in a scratch checkout is found, with its file and line."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


def run(script: str, name: str, text: str) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        for command in (["git", "init", "-q"], ["git", "add", "-A"]):
            subprocess.run(command, cwd=root, check=True)
        done = subprocess.run([sys.executable, HERE / script, root], capture_output=True, text=True)
        return done.returncode, done.stdout


class includes(unittest.TestCase):
    def refuses(self, name, include):
        code, out = run("check_includes.py", name, SPDX + f"#include {include}\n")
        self.assertEqual(code, 1, out)
        self.assertIn(f"{name}:2:", out)

    def test_kernels_know_nothing_else(self):
        self.refuses("kernels/x.cpp", '"messaging/base/error.hpp"')

    def test_engine_knows_no_caf(self):
        self.refuses("engine/core/x.cpp", "<caf/actor.hpp>")

    def test_core_and_model_do_not_know_each_other(self):
        self.refuses("engine/core/x.cpp", '"engine/model/step.hpp"')
        self.refuses("engine/model/x.cpp", '"engine/core/rank_core.hpp"')

    def test_actors_do_not_see_launch(self):
        self.refuses("actors/x.cpp", '"launch/plan.hpp"')

    def test_the_allowed_direction_passes(self):
        code, out = run("check_includes.py", "actors/x.cpp", SPDX + '#include "engine/core/rank_core.hpp"\n')
        self.assertEqual((code, out), (0, ""))


class style(unittest.TestCase):
    def refuses(self, name, text, line):
        code, out = run("check_style.py", name, text)
        self.assertEqual(code, 1, out)
        self.assertIn(f"{name}:{line}:", out)

    def test_a_foreign_top_level_entry_is_found(self):
        self.refuses("scripts/x.sh", "# SPDX-License-Identifier: Apache-2.0\n", 1)

    def test_a_missing_licence_line_is_found(self):
        self.refuses("engine/x.cpp", "int x;\n", 1)

    def test_banned_words_are_found(self):
        self.refuses("engine/x.cpp", SPDX + "using name" + "space di;\n", 2)
        self.refuses("tests/x.cpp", SPDX + "// TO" + "DO later\n", 2)
        self.refuses("engine/x.cpp", SPDX + "std::th" + "read t;\n", 2)

    def test_long_files_are_found(self):
        self.refuses("engine/x.cpp", SPDX + "int x;\n" * 450, 451)


if __name__ == "__main__":
    unittest.main()
