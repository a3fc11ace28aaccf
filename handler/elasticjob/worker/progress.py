"""``report_progress``: the worker says at each step how far training has come.

The step goes into a file of 40 bytes that is mapped into memory, in ``$ELASTICJOB_PROGRESS_DIR``; the agent
reads it once a second (``elasticjob.watch.step_files``). A call is a few stores to memory: no system call, no
lock, no network. This module is imported with the package, hence by every worker and by torchrun: it is
light.

The file is named after the process. The agent knows which of its workers that is, or from which it descends;
LOCAL_RANK does not tell, because scripts change it.

The file has five 64-bit numbers: the step and the time of the first report, those of the last, and a check
over the four. The times are nanoseconds of the system's monotonic clock, which worker and agent share: the
agent looks once a second and still knows when a step was reached. The numbers are stored one after the
other, so a reader may meet some of the old and some of the new ones: the check shows that.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from operator import index

from elasticjob.worker.stack_signal import answer_stacks

LAYOUT = struct.Struct("=5q")
MAX_STEP = 2**53
"""Steps are below this, which every reader of JSON keeps exactly."""
PROGRESS_DIR_ENV = "ELASTICJOB_PROGRESS_DIR"
"""Equal to that in ``elasticjob.contract.names``, which is slower to import; a test compares them."""


def report_progress(step: int) -> None:
    """Say that training has come to ``step``, a number that grows; call it at each step, on any or all ranks.

    A call costs 0.4 us, one that does nothing 0.1 us (docs/reference/backend.md has the command that measures
    it). It does nothing outside an ElasticJob, and for a step that is negative or not above the last one of
    this process. A worker may leave training to processes that it starts, one after the other: then these
    report. Raises TypeError if ``step`` is not a whole number, and nothing else: a report that fails does not
    disturb training.
    """
    global _file
    if type(step) is not int:
        step = whole(step, "report_progress")
    if _file is None:
        _file = _open()
    if _file.highest < step < MAX_STEP:
        _file.write(step)


class StepFile:
    """The file of one process. Without a ``path``, or if the file can't be made, steps are dropped."""

    def __init__(self, path: str) -> None:
        self.highest = MAX_STEP
        self._numbers: memoryview[int] | None = None
        self._salt = 0
        if not path:
            return
        try:
            descriptor = create(path)
            try:
                # Written, not only made longer: a store to a page without a block behind it may be a SIGBUS.
                os.write(descriptor, bytes(LAYOUT.size))
                self._numbers = memoryview(mmap.mmap(descriptor, LAYOUT.size)).cast("q")
            finally:
                os.close(descriptor)
        except (OSError, ValueError):
            return
        self.highest = -1

    def write(self, step: int) -> None:
        """Store a step above the highest so far."""
        numbers, now = self._numbers, time.monotonic_ns()
        if numbers is None:
            return
        if self.highest < 0:
            numbers[0], numbers[1] = step, now
            self._salt = ~(step ^ now)
        self.highest = step
        numbers[2] = step
        numbers[3] = now
        numbers[4] = self._salt ^ step ^ now


def create(path: str) -> int:
    """Make a file and open it. If it exists, it is left of a process that had this one's pid, or of a program
    that has called ``exec``. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, 0o644)


_file: StepFile | None = None


def be_ready() -> None:
    """Answer the signal for stacks, in a worker of a job. A warm worker may have imported this module before
    it had a rank, so what a script calls first calls this again."""
    if os.environ.get(PROGRESS_DIR_ENV):
        answer_stacks()


def _open() -> StepFile:
    be_ready()
    folder = os.environ.get(PROGRESS_DIR_ENV, "")
    return StepFile(os.path.join(folder, own_name()) if folder else "")


def own_name() -> str:
    """The name by which the agent knows this process: its pid, that of its parent, and its session."""
    return f"{os.getpid()}.{os.getppid()}.{os.getsid(0)}"


def whole(step: object, caller: str) -> int:
    """A step that is not an int: numpy's integers and tensors of one integer are accepted, too. Raises
    TypeError in the name of ``caller``."""
    try:
        return index(step)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise TypeError(
        f"{caller}: step is {step!r:.80} ({type(step).__name__}), expected a whole number: the count "
        "of training steps so far"
    )


def _forked() -> None:
    """A process that was forked shares the mapping: its steps go into a file of its own."""
    global _file
    _file = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
be_ready()
