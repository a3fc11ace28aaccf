"""``elasticjob stacks``: from what pods answer to what is said, with a kubectl of the test's."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from elasticjob_client.explain import stacks as explain_stacks
from elasticjob_client.explain.stacks import Answer, stacks
from elasticjob_operator.act.injection import HANDLER_DIR
from tests.unit.client.conftest import core_pod
from tests.unit.client.made import after_a_loss
from tests.unit.client.server import PODS, Server

Run = Callable[..., Result]
KUBECTL = """\
#!/usr/bin/env python3
import json, sys
words = sys.argv[1:]
pod = words[words.index("exec") + 1]
assert "--namespace=research" in words and words[words.index("-c") + 1] == "train", words
print("a line of the image's own")
first = 0 if pod == "mnist-0-0" else 8
for local in range(8):
    stack = f'Stack (most recent call first):\\n  File "train.py", line {local} in step'
    print(json.dumps({"rank": first + local, "localRank": local, "pid": 20 + local, "stack": stack}))
"""
OLD = "#!/bin/sh\necho '/usr/bin/python: No module named elasticjob.stacks' >&2; exit 1\n"


@pytest.fixture
def kubectl(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a program in kubectl's place."""
    server.answers[PODS]["items"] = [core_pod("mnist-1-1", "c"), core_pod("mnist-0-0", "a")]

    def put(text: str) -> None:
        program = tmp_path / "bin" / "kubectl"
        program.parent.mkdir()
        program.write_text(text)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return put


def test_stacks_of_all_pods_are_shown_by_rank(run: Run, kubectl: Callable[[str], None]) -> None:
    kubectl(KUBECTL)
    shown = run("stacks", "mnist").stdout.splitlines()
    assert shown[:2] == ["rank 0 (mnist-0-0 on a, pid 20)", '  File "train.py", line 0 in step']
    assert shown[-2] == "rank 15 (mnist-1-1 on c, pid 27)"
    found = json.loads(run("stacks", "mnist", "--rank", "1", "-o", "json").stdout)
    assert (found["round"], [one["rank"] for one in found["stacks"]]) == (2, list(range(8, 16)))
    assert "missing" not in found


def test_a_rank_that_is_not_there_is_named(run: Run, kubectl: Callable[[str], None]) -> None:
    kubectl(KUBECTL)
    result = run("stacks", "mnist", "--rank", "7")
    assert "no pod of mnist with group rank 7 runs: expected 0 to 1" in str(result.exception)


def test_an_older_handler_is_named(run: Run, kubectl: Callable[[str], None]) -> None:
    kubectl(OLD)
    result = run("stacks", "mnist")
    assert result.exit_code == 1
    assert "mnist-0-0: its handler cannot tell stacks" in str(result.exception)
    assert not result.stderr, "main prints the error: once"


def test_a_job_without_members_has_no_stacks(server: Server, run: Run) -> None:
    server.answers[PODS]["items"] = []
    result = run("stacks", "mnist")
    assert "no member of mnist runs (Training): there are stacks while it trains" in str(result.exception)


def test_workers_that_cannot_be_asked_are_counted() -> None:
    line = '{"rank": 8, "localRank": 0, "pid": 1, "stack": "", "error": "it has ended"}\n'
    answers = {
        "mnist-0-0": Answer(exit_code=0, output=""),
        "mnist-1-1": Answer(exit_code=0, output=line),
    }
    found = stacks(after_a_loss(), answers, [])
    assert [one.error for one in found.stacks] == ["it has ended"]
    assert [line.split(" workers")[0] for line in found.missing] == ["mnist-0-0: 0 of 8", "mnist-1-1: 1 of 8"]


def test_the_command_is_run_by_the_python_that_is_there(tmp_path: Path) -> None:
    assert explain_stacks.HANDLER_FOLDER == HANDLER_DIR
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH: $*"\n')
    python.chmod(0o755)
    env = {"PATH": str(tmp_path), "PYTHONPATH": "/own"}
    done = subprocess.run(
        ["/bin/sh", *explain_stacks.COMMAND[1:]], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{HANDLER_DIR}:/own: -m elasticjob.stacks\n"
    none = subprocess.run(
        ["/bin/sh", *explain_stacks.COMMAND[1:]], env={"PATH": "/none"}, capture_output=True, text=True
    )
    assert (none.returncode, none.stderr) == (127, "no python is in PATH\n")
