"""A worker is asked where it is: real processes, as torch starts workers, and the program that asks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob.worker.progress import PROGRESS_DIR_ENV
from elasticjob.worker.stack_signal import FOLDER_PREFIX, SIGNAL

WAITS = """\
import os, sys, threading, time
import elasticjob
{before}
def step_of_mine():
    sys.stdout.write("here\\n")
    sys.stdout.flush()
    {act}
step_of_mine()
"""
IN_C = "(lock := threading.Lock()).acquire() and lock.acquire()"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a worker that says "here" and then waits."""
    started: list[subprocess.Popen[str]] = []

    def one(rank: int, act: str = IN_C, before: str = "", **env: str) -> subprocess.Popen[str]:
        given = {"RANK": str(rank), "LOCAL_RANK": str(rank), PROGRESS_DIR_ENV: str(tmp_path), **env}
        process = subprocess.Popen(
            [sys.executable, "-c", WAITS.format(act=act, before=before)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **given},
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        return process

    yield one
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ask(*of: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """What the program prints of these workers; others of this machine are left out."""
    done = subprocess.run([sys.executable, "-m", "elasticjob.stacks"], capture_output=True, check=True)
    pids = {process.pid for process in of}
    return [one for line in done.stdout.splitlines() if (one := json.loads(line))["pid"] in pids]


def test_each_worker_tells_its_stack_as_often_as_it_is_asked_and_goes_on(start: Start) -> None:
    # Ranks that no worker of another test on this machine has: of one rank, the oldest process answers.
    workers = [start(70_002), start(70_001, "time.sleep(1000)")]
    for _ in range(3):
        found = ask(*workers)
        assert [one["rank"] for one in found] == [70_001, 70_002]
        for one in found:
            lines = one["stack"].splitlines()
            assert lines[0] == "Stack (most recent call first):"
            assert lines[1].endswith("in step_of_mine")
            assert len(lines) == 3, "each answer is new, and whole"
    assert [worker.poll() for worker in workers] == [None, None]


def test_a_busy_worker_tells_its_stack(start: Start) -> None:
    (found,) = ask(worker := start(70_003, "while True: pass"))
    assert "step_of_mine" in found["stack"]
    assert worker.poll() is None


def test_processes_that_a_worker_has_started_are_not_asked(start: Start) -> None:
    forks = "pid = os.fork()\nif pid == 0:\n    time.sleep(1000)\n"
    worker = start(70_004, before=forks)
    (found,) = ask(worker)
    assert found["pid"] == worker.pid
    later = start(70_004)
    assert [one["pid"] for one in ask(worker, later)] == [worker.pid], "it came later, with the same rank"


def test_a_stopped_worker_is_named_with_its_state(start: Start) -> None:
    worker = start(70_005)
    worker.send_signal(signal.SIGSTOP)
    (found,) = ask(worker)
    assert found["stack"] == ""
    assert found["error"].startswith("it has not answered within 3 s (state T")
    worker.send_signal(signal.SIGCONT)
    (found,) = ask(worker)
    assert found["stack"].count("step_of_mine") == 1
    assert worker.poll() is None


@pytest.mark.parametrize(
    ("before", "env"),
    [
        ("", {PROGRESS_DIR_ENV: ""}),
        (f"import signal\nsignal.signal({SIGNAL}, signal.SIG_DFL)", {}),
        ("os.closerange(3, 100)", {}),
    ],
    ids=["outside of a job", "takes the signal back", "closes the file"],
)
def test_who_cannot_be_asked_is_left_alone(start: Start, before: str, env: dict[str, str]) -> None:
    worker = start(70_006, before=before, **env)
    assert ask(worker) == []
    assert worker.poll() is None


def test_a_script_that_has_the_signal_keeps_it(start: Start) -> None:
    own = f"import signal\nsignal.signal({SIGNAL}, lambda *_: os._exit(3))\n"
    late = "os.environ.update(RANK='70008', LOCAL_RANK='0')\nelasticjob.report_progress(1)"
    worker = start(70_008, "time.sleep(1000)", own + late, RANK="", LOCAL_RANK="")
    assert ask(worker) == []
    worker.send_signal(SIGNAL)
    assert worker.wait(timeout=60) == 3


def test_a_worker_that_has_its_rank_late_is_ready_with_its_first_step(start: Start) -> None:
    late = "os.environ.update(RANK='70009', LOCAL_RANK='0')\nelasticjob.report_progress(1)"
    (found,) = ask(start(70_009, before=late, RANK="", LOCAL_RANK=""))
    assert found["rank"] == 70_009


LISTS = """\
import sys, types
from elasticjob.workers.worker_list import write_list
folder, pid, rank = sys.argv[1:]
write_list(folder, [types.SimpleNamespace(pid=int(pid), rank=int(rank), local_rank=0)])
"""


@pytest.mark.root
def test_an_agent_of_another_pid_namespace_says_nothing_of_the_processes_here(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods of one node share /dev/shm where they have hostIPC, and each counts its processes from 1."""
    worker = start(70_010)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ranks = []
    for namespace, rank in ((["unshare", "--pid", "--fork"], 70_011), ([], 70_012)):
        folder = tmp_path / f"{FOLDER_PREFIX}{rank}"
        folder.mkdir()
        list_it = [sys.executable, "-c", LISTS, str(folder), str(worker.pid), str(rank)]
        subprocess.run([*namespace, *list_it], check=True)
        (found,) = ask(worker)
        ranks.append(found["rank"])
    assert ranks == [70_010, 70_012]
