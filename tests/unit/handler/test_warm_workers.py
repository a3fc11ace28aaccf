"""Warm workers under a real torchrun; only the API server is played."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from devcluster.wait import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm workers are for Linux")

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
# TORCHDYNAMO: a word that has the interpreters import torch alone, which takes half as long.
import json, os, signal, sys, time
import elasticjob
number, rank = int(os.environ["ELASTICJOB_ROUND"]), os.environ["RANK"]
with open(f"seen-{number}-{rank}", "w") as file:
    json.dump([os.getpid(), "torch" in sys.modules, sys.argv, os.getppid()], file)
import torch
print(f"round {number} rank {rank} of {os.environ['WORLD_SIZE']}")
elasticjob.report_progress(number)
while not os.path.exists(f"go-{number}"):
    time.sleep(0.02)
if number == 1 and rank == "0":
    os.kill(os.getpid(), signal.SIGKILL)
if number == 2 and rank == "1":
    raise ValueError("again")
"""
SECONDS = 200.0


class Torchrun:
    """A torchrun with two workers in a folder of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        (folder / "train.py").write_text(SCRIPT)
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(ROOT / "tests/unit/handler/scripts/warm_torchrun.py"),
                    *options,
                    "--nproc-per-node=2",
                    "--max-restarts=5",
                    "--monitor-interval=0.1",
                    "train.py",
                    "--lr=1",
                ],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )

    def text(self) -> str:
        return self.log.read_text()

    def until(self, pattern: str, count: int = 1) -> None:
        def found() -> bool | None:
            assert self.process.poll() is None or self.matches(pattern) >= count, self.text()
            return self.matches(pattern) >= count or None

        wait_for(found, SECONDS, lambda: f"{pattern} in {self.text()}")

    def matches(self, pattern: str) -> int:
        return len(re.findall(pattern, self.text()))

    def ready(self, number: int) -> list[int]:
        """Wait until this many interpreters wait; their pids."""

        def found() -> list[int] | None:
            ours = [child for child in psutil.Process(self.process.pid).children() if idle(child)]
            return [child.pid for child in ours] if len(ours) == number else None

        return wait_for(found, SECONDS, f"{number} interpreters wait")

    def go(self, number: int) -> None:
        (self.folder / f"go-{number}").touch()


def idle(process: psutil.Process) -> bool:
    try:
        score = Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip()
        libraries = "libtorch_python" in Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return False
    return score == "1000" and libraries


@pytest.mark.timeout(600)
def test_the_next_round_s_workers_are_warm_and_torch_sees_no_difference(tmp_path: Path) -> None:
    torchrun = Torchrun(tmp_path, "--rdzv-conf=warm=on")
    try:
        torchrun.until(r"round 1 rank \d of 2", 2)
        ready = torchrun.ready(2)
        torchrun.go(1)
        torchrun.until(r"round 2 rank \d of 2", 2)
        for rank in (0, 1):
            pid, imported, argv, parent = json.loads((tmp_path / f"seen-2-{rank}").read_text())
            assert pid in ready
            assert (imported, argv, parent) == (False, ["train.py", "--lr=1"], torchrun.process.pid)
        torchrun.ready(2)
        torchrun.go(2)
        torchrun.until(r"round 3 rank \d of 2", 2)
        last = torchrun.ready(2)
        torchrun.go(3)
        assert torchrun.process.wait(SECONDS) == 0, torchrun.text()
        assert not [pid for pid in last if psutil.pid_exists(pid)], "they end with torchrun"
        text = torchrun.text()
        assert "a local worker failed: killed by SIGKILL" in text
        assert 'raise ValueError("again")' in text
        assert "warm/boot" not in text
        found = re.search(r"workers started warm: (\d), cold: (\d)", text)
        assert found is not None, text
        assert int(found[1]) >= 4
        assert int(found[1]) + int(found[2]) == 6
    finally:
        end(torchrun)


def end(torchrun: Torchrun) -> None:
    """Kill it and its workers."""
    for number in (1, 2, 3):
        torchrun.go(number)
    try:
        found = psutil.Process(torchrun.process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        found = []
    torchrun.process.kill()
    torchrun.process.wait()
    for one in found:
        if one.is_running():
            one.kill()
