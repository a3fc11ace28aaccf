"""What a command imports before it says something: modules are counted, since times depend on the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.unit.client.server import Server

SLOW = {"asyncio", "httpx2", "lightkube", "msgspec", "rich", "torch", "yaml"}
PROGRAM = """\
import json, sys
from elasticjob_client.cli.main import main
try:
    main()
except SystemExit as ended:
    if ended.code:
        raise
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def imported(code: str, *words: str, **environment: str) -> set[str]:
    """The modules that a fresh interpreter has at its end."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return set(found)


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("run", "--help"),
        ("logs", "--help"),
        ("top", "--help"),
        ("doctor", "--help"),
        ("report", "--help"),
        ("convert", "--help"),
        ("completion", "bash"),
    ],
    ids=" ".join,
)
def test_help_needs_click_alone(words: tuple[str, ...]) -> None:
    found = imported(PROGRAM, *words)
    assert "click" in found
    assert not found & SLOW


def test_completion_of_a_command_needs_click_alone() -> None:
    asked = {"_ELASTICJOB_COMPLETE": "bash_complete", "COMP_WORDS": "elasticjob st", "COMP_CWORD": "1"}
    assert not imported(PROGRAM, **asked) & SLOW


def test_the_package_imports_a_name_when_it_is_used() -> None:
    tell = "import json, sys, elasticjob_client{}; print('.')"
    tell += "; print(json.dumps([*sys.modules]), file=sys.stderr)"
    assert not imported(tell.format("")) & SLOW
    assert not imported(tell.format("; elasticjob_client.NotFound")) & SLOW
    assert "lightkube" in imported(tell.format("; elasticjob_client.Jobs"))


def test_completion_of_a_name_needs_no_terminal(server: Server) -> None:
    asked = {"_ELASTICJOB_COMPLETE": "bash_complete", "COMP_WORDS": "elasticjob status m", "COMP_CWORD": "2"}
    found = imported(PROGRAM, **asked, KUBECONFIG=str(server.kubeconfig))
    assert server.asked
    assert not found & {"rich", "torch"}
