"""``should_stop`` and ``stop_here`` in a script, and how a script ends that is asked to stop: workers are
processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from devcluster.wait import wait_for
from elasticjob import should_stop, stop_here
from elasticjob.checkpoint.records import MARKER
from elasticjob.drain.board import StopBoard
from elasticjob.worker.progress import PROGRESS_DIR_ENV
from elasticjob.worker.stopping import ASKED_FILE, HOLD, map_word

LOOP = """
import os, signal, sys, time
from elasticjob import should_stop, stop_here
from elasticjob.worker import stopping

def main():
    step = 0
    while True:
        step += 1
        if should_stop(step):
            print(step, flush=True)
            {then}

def fails():
    stopping.finished(fails)
    raise OSError("the disk is full")

def takes_its_time():
    time.sleep(0.2)
    stopping.finished(takes_its_time)
    print("saved", flush=True)

{run}
"""


def worker(folder: Path, then: str, run: str = "main()") -> subprocess.Popen[str]:
    """A process of its own that calls should_stop; what it does then is ``then``. ``run`` is its last
    line."""
    environment = {**os.environ, "LOCAL_RANK": "0", PROGRESS_DIR_ENV: str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", LOOP.format(then=then, run=run)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.parametrize("then", ["stop_here()", "break"])
def test_a_script_waits_for_its_end_by_stop_here_or_by_leaving_its_loop(tmp_path: Path, then: str) -> None:
    """One that ended with 0 would count as a success."""
    board = StopBoard(str(tmp_path), 1)
    process = worker(tmp_path, then)
    try:
        wait_for(board.take_part, 60, "it takes part")
        board.ask(HOLD)
        time.sleep(0.1)
        step = board.first_possible_step()
        assert step is not None
        board.ask(step + 1)
        wait_for(lambda: board.stopped_at() is not None, 30, "it has stopped")
        assert board.stopped_at() == step
        assert process.stdout is not None
        assert process.stdout.readline() == f"{step}\n"
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_script_that_fails_while_it_stops_has_failed(tmp_path: Path) -> None:
    board = StopBoard(str(tmp_path), 1)
    process = worker(tmp_path, "raise ValueError('the disk is full')")
    try:
        wait_for(board.take_part, 60, "it takes part")
        board.ask(1)  # every step is beyond this one
        assert process.wait(30) == 1
    finally:
        process.kill()
        process.wait()


def end_of(folder: Path, then: str, run: str = "main()") -> tuple[int | None, str]:
    """How a worker ends that is asked to stop, and what it has printed after its step; None: it waits
    there."""
    board = StopBoard(str(folder), 1)
    process = worker(folder, then, run)
    try:
        wait_for(board.take_part, 200, "it takes part")
        board.ask(1)  # every step is beyond this one
        wait_for(lambda: process.poll() is not None or board.stopped_at() is not None, 60, "it ends or waits")
        code = process.poll()
    finally:
        process.kill()
    said, _ = process.communicate()
    return code, said.partition("\n")[2].strip()


TRACED = """
def debugger(frame, event, found):
    return debugger
sys.settrace(debugger)
sys._getframe().f_trace = debugger
"""


@pytest.mark.parametrize(
    ("then", "run", "code"),
    [
        *(("sys.exit(3)", "main()", 3), ("sys.exit('cannot save')", "main()", 1)),
        *(
            ("raise SystemExit(3)", "main()", 3),
            ("return 3", "sys.exit(main())", 3),
            ("exit(3)", "main()", 3),
        ),
        ("sys.exit(3)", "try:\n  main()\nfinally:\n  print('cleaned up')", 3),
        *(("return", "main()", None), ("return 0", "sys.exit(main())", None), ("sys.exit()", "main()", None)),
        ("return", "raise SystemExit(main())", None),
        *(("sys.exit(3)", f"{TRACED}main()", 3), ("return", f"{TRACED}main()", None)),
        ("sys.exit(3)", "try:\n  main()\nexcept SystemExit:\n  pass", None),
        ("sys.exit(3)", "try:\n  main()\nexcept SystemExit:\n  sys.exit(0)", None),
    ],
)
def test_the_exit_code_of_a_script_says_whether_it_has_stopped_well(
    tmp_path: Path, then: str, run: str, code: int | None
) -> None:
    """One that waited there with a code other than 0 would pass for a clean stop, and its failed save for a
    checkpoint."""
    assert end_of(tmp_path, then, run)[0] == code


@pytest.mark.parametrize("then", ["stop_here()", "return"])
def test_what_a_save_has_begun_is_finished_before_a_worker_says_that_it_has_stopped(
    tmp_path: Path, then: str
) -> None:
    assert end_of(tmp_path, f"stopping.finish_first(takes_its_time); {then}") == (None, "saved")


@pytest.mark.parametrize("then", ["stop_here()", "return"])
def test_a_save_that_fails_is_no_clean_stop(tmp_path: Path, then: str) -> None:
    assert end_of(tmp_path, f"stopping.finish_first(fails); {then}")[0] == 1


SAVES = """
import torch
from elasticjob.checkpoint import Checkpoints
checkpoints = Checkpoints({folder!r})
complete = Checkpoints._complete
def slow(*args):
    time.sleep(0.5)
    {does}
Checkpoints._complete = slow
main()
"""


def test_a_worker_has_not_stopped_while_its_checkpoint_is_being_saved(tmp_path: Path) -> None:
    """``save`` returns when the state is copied. torchrun would end the thread that writes it."""
    (tmp_path / "steps").mkdir()
    then = "checkpoints.save(step, {'a': torch.ones(3)}); stop_here()"
    run = SAVES.format(folder=str(tmp_path / "saved"), does="complete(*args)")
    assert end_of(tmp_path / "steps", then, run)[0] is None
    assert list((tmp_path / "saved").glob(f"*/{MARKER}"))


def test_a_worker_whose_checkpoint_cannot_be_saved_has_failed(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    then = "checkpoints.save(step, {'a': torch.ones(3)}); stop_here()"
    run = SAVES.format(folder=str(tmp_path / "saved"), does="raise OSError('the disk is full')")
    assert end_of(tmp_path / "steps", then, run)[0] == 1


@pytest.mark.parametrize("handler", ["lambda *_: print('asked')", "signal.SIG_IGN"])
def test_a_worker_that_has_stopped_ends_when_it_is_told_to(tmp_path: Path, handler: str) -> None:
    """Also where the script's own handler of SIGTERM only sets a flag: nobody would look at it any more, and
    all would wait until the worker is killed."""
    board = StopBoard(str(tmp_path), 1)
    process = worker(tmp_path, "stop_here()", f"signal.signal(signal.SIGTERM, {handler}); main()")
    try:
        wait_for(board.take_part, 60, "it takes part")
        board.ask(1)
        wait_for(lambda: board.stopped_at() is not None, 30, "it has stopped")
        process.terminate()
        assert process.wait(30) != 0
    finally:
        process.kill()
        process.wait()


def test_outside_of_a_job_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROGRESS_DIR_ENV, raising=False)
    monkeypatch.setattr("elasticjob.worker.stopping._link", None)
    assert not any(should_stop(step) for step in (0, 1, 5, -1, 2**60))
    with pytest.raises(RuntimeError, match="should_stop has not returned True"):
        stop_here()
    with pytest.raises(TypeError, match=r"should_stop: step is 1\.5"):
        should_stop(1.5)  # type: ignore[arg-type]


def test_without_a_number_of_workers_none_takes_part(tmp_path: Path) -> None:
    assert not StopBoard(str(tmp_path), None).take_part()
    assert not StopBoard("", 1).take_part()


SANDBOXED = """
import ctypes, os, platform, struct, time
from itertools import count
from elasticjob import should_stop

def forbid_system_calls():
    write = {{"x86_64": 1, "aarch64": 64}}[platform.machine()]
    # Load the number of the call; is it write? Then allow it, else kill the process.
    words = (0x20, 0, 0, 0), (0x15, 0, 1, write), (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x80000000)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *word) for word in words))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(words), ctypes.addressof(code)))
    libc = ctypes.CDLL(None)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
        os.write(1, b"no seccomp, ")

steps = count()
for _ in range(1000):
    should_stop(next(steps))
os.closerange(2, 1000)
os.close(0)
forbid_system_calls()
for _ in range(10000):
    {call}
os.write(1, b"called")
os.getppid()
os.write(1, b", and not killed")
"""
"""The kernel kills this process at any system call but write, once they are forbidden; the only file that it
has is a pipe to the test, which sees all that is written."""
KILLED = -31
"""SIGSYS: by the filter."""


def sandboxed(folder: Path, call: str) -> tuple[int, str]:
    """The exit code and the output of a worker that makes these calls."""
    folder.mkdir()
    map_word(str(folder / ASKED_FILE), os.O_RDWR | os.O_CREAT)
    done = subprocess.run(
        [sys.executable, "-c", SANDBOXED.format(call=call)],
        env={**os.environ, PROGRESS_DIR_ENV: str(folder), "LOCAL_RANK": "0"},
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is of Linux")
def test_a_call_makes_no_system_call_while_nothing_is_asked(tmp_path: Path) -> None:
    if sandboxed(tmp_path / "clock", "time.monotonic_ns()") != (KILLED, "called"):
        pytest.skip("no seccomp here, or the clock itself needs a system call")
    code, said = sandboxed(tmp_path / "calls", "should_stop(next(steps))")
    assert said == "called", "10,000 calls were made"
    assert code == KILLED, "and the system call after them was the first"
