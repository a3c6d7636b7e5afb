# SPDX-License-Identifier: Apache-2.0
"""Runs a test with the official client packages: makes a virtual environment below the build folder once, then starts the test again in it."""
import fcntl
import os
import subprocess
import sys

PACKAGES = ("openai>=3.51,<4", "anthropic>=2.10,<3")


def enter(folder):
    """Returns only inside the environment; before that it replaces this process."""
    if os.path.realpath(sys.prefix) == os.path.realpath(folder):
        return
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    done = folder + ".done"
    with open(folder + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(done) or open(done).read().split() != [p.replace(" ", "") for p in PACKAGES]:
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([folder + "/bin/pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
            with open(done, "w") as f:
                f.write("\n".join(PACKAGES))
    os.execv(folder + "/bin/python", [folder + "/bin/python", *sys.argv])
