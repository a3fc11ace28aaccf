"""``make sandbox``: a newcomer's first commands in it, in the words of the quickstart, and its clean end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from devcluster.wait import wait_for
from tests import docs_commands
from tests.docs_commands import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.slow]

FOLDER = ROOT / "build" / "sandbox"
START_SECONDS, END_SECONDS = 500.0, 90.0
"""Generous: the machine may be busy."""


def words(document: str, name: str, environment: dict[str, str]) -> str:
    """What the commands of a document print."""
    return docs_commands.run(ROOT / document, name, environment, timeout=600)


@dataclass
class Sandbox:
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self, program: str) -> None:
        """Kill the process that has this argument, and wait until the sandbox says that another runs."""
        here = psutil.process_iter(["pid", "cmdline"])
        family = {child.pid for child in psutil.Process(self.process.pid).children(recursive=True)}
        [one] = [p for p in here if p.pid in family and program in (p.info["cmdline"] or [])[1:]]
        one.kill()
        again = f"{'the operator' if 'operator' in program else 'apiserver'} runs again"
        wait_for(lambda: again in self.log.read_text(), START_SECONDS, again)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """One that is up, in the folder that the page names."""
    with (tmp_path / "sandbox.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.sandbox"], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while "the sandbox is up" not in (tmp_path / "sandbox.log").read_text():
            assert process.poll() is None, (tmp_path / "sandbox.log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "sandbox.log").read_text()
            time.sleep(0.2)
        yield Sandbox(process, tmp_path / "sandbox.log")
    finally:
        process.terminate()
        process.wait(END_SECONDS)
        print((tmp_path / "sandbox.log").read_text())


@pytest.mark.timeout(1300)
def test_the_quickstarts_first_commands(sandbox: Sandbox) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
    said = words("docs/use/quickstart.md", "sandbox", environment)
    print(said)
    assert "FAILED" not in said, "doctor finds an installation"
    assert "mine is Training: round 1 with 2 members" in said
    assert "rank 1 (mine-1-0 on node-" in said, "stacks"
    assert "in main" in said
    assert re.search(r"Round 1 ended: mine-0-0 \(group rank 0\) was (lost: its pod was )?deleted", said), (
        "drill"
    )
    assert "mine: deleted" in said
    sandbox.kill("kube-apiserver")
    sandbox.kill("elasticjob_operator")
    doctor = ["sh", "-c", ". build/sandbox/env; elasticjob doctor"]
    told = subprocess.run(doctor, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert re.search(r"ok +operator +\S+ leads", told.stdout), told.stdout + told.stderr
    another = subprocess.run(
        [sys.executable, "-m", "examples.sandbox"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert another.returncode == 1
    assert "another sandbox runs" in another.stderr
    started = psutil.Process(sandbox.process.pid).children(recursive=True)
    assert len(started) > 5
    sandbox.process.send_signal(signal.SIGINT)
    assert sandbox.process.wait(END_SECONDS) == 0
    _, alive = psutil.wait_procs(started, timeout=END_SECONDS)
    assert alive == []
    assert not FOLDER.exists()
