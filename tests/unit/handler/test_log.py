"""Where the agent's own log goes, in a torchrun that has set up no logging, or in which somebody has."""

from __future__ import annotations

import subprocess
import sys

import pytest

OURS, THEIRS, HIDDEN = " elasticjob I hello\n", "INFO:elasticjob.agent.create:hello\n", ""


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("", OURS),
        ("logging.info('torch 2.4 says this before it asks for the handler')", OURS),
        ("logging.basicConfig(level=logging.INFO)", THEIRS),
        ("logging.basicConfig(format='mine: %(message)s')", HIDDEN),
        ("logging.getLogger('elasticjob').addHandler(logging.NullHandler())", HIDDEN),
    ],
)
def test_the_log_is_set_up_unless_somebody_has_done_so(before: str, said: str) -> None:
    code = f"import logging; {before}\nfrom elasticjob.agent import create; create._log_to_stderr()\n"
    code += "create.logger.info('hello')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.endswith(said)
    assert done.stderr.count("\n") == said.count("\n")
