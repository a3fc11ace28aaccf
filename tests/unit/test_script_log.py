"""What the script's own parts say is seen without any set-up, and as the script wants it otherwise."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

CHECKPOINTS = """
import sys
from elasticjob.checkpoint import Checkpoints

with Checkpoints(sys.argv[1]) as checkpoints:
    state = {"value": 1}
    if not checkpoints.resume(state):
        checkpoints.save(1000, state)
"""


def printed(code: str, *arguments: str) -> str:
    """What a script has written to stderr."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=240, check=True).stderr


def test_a_script_that_configures_no_logging_shows_saves_and_resumes(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    assert "elasticjob.checkpoint: saved " in printed(CHECKPOINTS, folder)
    again = printed(CHECKPOINTS, folder)
    assert "elasticjob.checkpoint: resumed from " in again
    assert "step 1000" in again


@pytest.mark.parametrize(
    ("set_up", "seen"),
    [
        ("", "elasticjob.test: 1 of 2\n"),
        ("logging.basicConfig(level=logging.WARNING)", ""),
        ("logging.basicConfig(level=logging.INFO, format='%(message)s')", "1 of 2\n"),
        ("logging.getLogger('elasticjob').addHandler(logging.NullHandler())", ""),
    ],
)
def test_a_script_that_configures_logging_decides_alone(set_up: str, seen: str) -> None:
    code = "import logging\nfrom elasticjob.worker.script_log import ScriptLog\n"
    says = "\nlog = ScriptLog('elasticjob.test')\nlog.debug('hidden')\nlog.info('%d of %d', 1, 2)"
    assert printed(code + set_up + says) == seen


def test_warnings_go_where_they_always_go(caplog: pytest.LogCaptureFixture) -> None:
    from elasticjob.worker.script_log import ScriptLog

    ScriptLog("elasticjob.test").warning("passed over")
    assert caplog.record_tuples == [("elasticjob.test", logging.WARNING, "passed over")]
