"""The resolver of the agent's process, told in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

LOOK_UP = """
import os, socket
from elasticjob.agent.resolver import shorten_lookups
told = shorten_lookups("attempts:0")
try:
    socket.getnameinfo(("10.99.88.77", 1), 0)
    found = "looked up"
except OSError:
    found = "gave up"
print(told, found, os.environ.get("RES_OPTIONS"))
"""


def run(**env: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", LOOK_UP], env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    return answer.stdout.strip()


def test_the_resolver_is_told_and_the_workers_environment_is_left_alone() -> None:
    assert run() == "True gave up None"


def test_what_the_user_has_set_stays() -> None:
    assert run(RES_OPTIONS="timeout:2").endswith("timeout:2")
    assert run(RES_OPTIONS="timeout:2").startswith("False")
