"""Which processes dump their stacks, and which do not: real processes, as torch starts workers."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from devcluster.wait import wait_for
from elasticjob.workers import processes, stack_dump
from elasticjob.workers.stack_dump import StackDump
from elasticjob.workers.torch_agent import AgentWorker

STUCK = """
import sys, threading
def {name}():
    global forever, ready
    forever, ready = threading.Lock(), threading.Event()
    forever.acquire()
    threading.Thread(target=lambda: (ready.set(), forever.acquire()), name="helper").start()
    ready.wait()
    sys.stdout.write("here\\n")
    sys.stdout.flush()
    forever.acquire()
{name}()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process that says "here" and then hangs; its stderr is in tmp_path/log."""
    started: list[subprocess.Popen[str]] = []

    def one(
        name: str = "hangs", command: Sequence[str] = (), leads: bool = True, dumps: bool = True, **env: str
    ) -> subprocess.Popen[str]:
        with (tmp_path / "log").open("a") as stderr:
            process = subprocess.Popen(
                command or [sys.executable, "-c", STUCK.format(name=name)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONFAULTHANDLER": "1" if dumps else "", **env},
                start_new_session=leads,
            )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def dump(monkeypatch: pytest.MonkeyPatch) -> StackDump:
    monkeypatch.setattr(stack_dump, "FREEZE_SECONDS", 0.0)
    return StackDump()


def listed(*started: subprocess.Popen[str]) -> list[AgentWorker]:
    """As torch's agent lists its workers."""
    found = []
    for local_rank, process in enumerate(started):
        one = processes.find(process.pid)
        assert one is not None
        found.append(AgentWorker(local_rank, local_rank + 4, process.pid, one.born))
    return found


def state(process: subprocess.Popen[str]) -> str:
    """As in /proc: T is stopped."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_dumps_come_one_after_the_other_with_all_threads(
    dump: StackDump, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [start(f"hangs_{rank}", RANK="0", LOCAL_RANK="0") for rank in range(2)]
    dump.freeze(7, listed(*workers), lambda: True)
    wait_for(lambda: [state(one) for one in workers] == ["T", "T"], 60, "they stand still")
    dump.dump()
    assert [one.wait(60) for one in workers] == [-6, -6]
    text = (tmp_path / "log").read_text()
    parts = text.split("Fatal Python error: Aborted")
    assert len(parts) == 3
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    for rank in range(2):
        (line,) = [line for line in said if f"pid {workers[rank].pid}" in line]
        where = f"(local rank {rank}, pid {workers[rank].pid}) is in {tmp_path / 'log'}"
        assert line == f"round 7 hung; the stack of rank {rank + 4} {where}"
        part = parts[said.index(line) + 1]
        assert f"hangs_{rank}" in part
        assert f"hangs_{1 - rank}" not in part
        assert "<lambda>" in part, "the other thread, too"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"dumps": False}, id="Python without faulthandler"),
        pytest.param(
            {"command": ["sh", "-c", "echo here; sleep 1000 & wait"]}, id="a shell around the worker"
        ),
        pytest.param({"leads": False}, id="a function, in torchrun's process group"),
    ],
)
def test_who_would_not_dump_is_left_alone(dump: StackDump, start: Start, options: dict[str, object]) -> None:
    other = start(**options)
    worker, uploader = start(), start()
    dump.freeze(1, listed(other, worker), lambda: True)
    assert state(other) != "T"
    assert state(uploader) != "T", "it is not in the agent's list"
    dump.dump()
    assert worker.wait(60) == -6
    assert other.poll() is None
    assert uploader.poll() is None
    if options.get("command"):
        os.killpg(other.pid, 9)


def test_a_round_that_has_gone_meanwhile_is_left_alone(dump: StackDump, start: Start) -> None:
    worker = start()
    dump.freeze(1, listed(worker), lambda: False)
    dump.dump()
    assert worker.poll() is None
    assert state(worker) != "T"


def test_each_round_is_dumped_once(dump: StackDump, start: Start) -> None:
    first = start()
    dump.freeze(1, listed(first), lambda: True)
    dump.dump()
    assert first.wait(60) == -6
    second = start()
    dump.freeze(1, listed(second), lambda: True)
    dump.dump()
    assert second.poll() is None
    dump.freeze(2, [], lambda: True)
    dump.freeze(2, listed(second), lambda: True)
    dump.dump()
    assert second.wait(60) == -6


def test_nobody_stays_stopped_when_the_dump_is_broken_off(
    dump: StackDump, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's signal handlers raise wherever the main thread is; then it stops the workers with SIGTERM."""

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt(seconds)

    worker = start()
    dump.freeze(1, listed(worker), lambda: True)
    with monkeypatch.context() as patch:
        patch.setattr("time.sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dump.dump()
    wait_for(lambda: state(worker) != "T", 60, "it goes on")
    worker.terminate()
    assert worker.wait(60) == -15


def test_there_is_no_core_file(start: Start) -> None:
    """Nor where the kernel hands cores to a program: it takes a limit of 1 for none, and 0 for no limit."""
    worker = start()
    hard = resource.prlimit(worker.pid, resource.RLIMIT_CORE)[1]
    assert stack_dump._forbid_core(worker.pid)
    soft = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    assert resource.prlimit(worker.pid, resource.RLIMIT_CORE) == (soft, hard)
