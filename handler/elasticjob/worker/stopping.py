"""``should_stop`` and ``stop_here``: the script leaves a round that is to end at a step that all ranks share.

Two files in ``$ELASTICJOB_PROGRESS_DIR`` are mapped into memory, each a single number of 64 bits, aligned, so
that it is stored and loaded in one piece. The agent writes ``asked``: 0 while nothing is asked, ``HOLD``
while the members agree on a step, then that step plus 1. The worker, or the process to which it leaves
training (``elasticjob.workers.speakers``), writes ``<own_name>.stop``: the step of its last call, and whether
it continued from there, is held there, or has stopped.

A worker stores its step before it reads ``asked``. So if it continues from a step after the agent has asked
for a hold, the agent knows that step a moment later (``elasticjob.drain.agreement``). This module is imported
with the package, hence by every worker and by torchrun: it is light.
"""

from __future__ import annotations

import atexit
import mmap
import os
import sys
import time

from elasticjob.worker.progress import (
    MAX_STEP,
    PROGRESS_DIR_ENV,
    create,
    own_name,
    report_progress,
    whole,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # type checkers take it for True; the import of typing would take a millisecond
    from collections.abc import Callable
    from typing import Any, NoReturn

    from elasticjob.worker.script_end import ScriptEnd

    SharedInt = memoryview[int] | list[int]

ASKED_FILE = "asked"
STOP_SUFFIX = ".stop"
WORD_BYTES = 8
NOTHING_ASKED, HOLD = 0, -1
GOES_ON, HELD, STOPPED = 1, 2, 3
"""The state of a worker at its step, in the two low bits of its number."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.0005, 0.02
"""Seconds between two reads of ``asked`` by a worker that is held."""


def should_stop(step: int) -> bool:
    """Whether to save a checkpoint after this ``step`` and leave by ``stop_here``; True at the same step on
    all ranks.

    Call it on every rank after each step (or on every rank after each hundredth), with a number that grows;
    it reports the step, too, as ``report_progress`` does. While nothing is asked a call costs about a
    microsecond: no collective, no system call. While the ranks agree on a step it waits, mostly for less
    than a second. Outside an ElasticJob it is always False. Raises TypeError if ``step`` is not a whole
    number.
    """
    global _link
    if type(step) is not int:
        step = whole(step, "should_stop")
    report_progress(step)
    if _link is None:
        _link = _open()
    if not 0 <= step < MAX_STEP:
        return False
    _link.mine[0] = step << 2 | GOES_ON
    return bool(_link.asked[0]) and _link.must_stop(step)


def stop_here() -> NoReturn:
    """Wait until torchrun ends this process; call it when the checkpoint is saved that ``should_stop`` has
    asked for.

    It first waits until the saves of ``elasticjob.checkpoint`` are complete, and raises what they raise. A
    script that leaves its loop and ends with exit code 0 waits at its end, too. Raises RuntimeError if
    ``should_stop`` has not returned True."""
    if _link is None or not _link.stopping:
        raise RuntimeError(
            "stop_here: should_stop has not returned True in this process, so nothing would end its wait; "
            "call it only after should_stop(step) is True"
        )
    _link.stop()


def is_stopping() -> bool:
    """Whether ``should_stop`` has returned True in this process, so that the next round follows."""
    return _link is not None and _link.stopping


def finish_first(work: Callable[[], None]) -> None:
    """Let ``stop_here`` call ``work`` before it says that the worker has stopped: it waits for what would be
    cut off, a save in another thread, or raises. ``finished`` takes it back."""
    _to_finish[work] = None


def finished(work: Callable[[], None]) -> None:
    """Take ``work`` back: nothing is left that could be cut off."""
    _to_finish.pop(work, None)


class Link:
    """The two numbers of one worker. Without a folder they are not shared, and nothing is ever asked."""

    def __init__(self, mine: SharedInt, asked: SharedInt) -> None:
        self.mine = mine
        self.asked = asked
        self.stopping = False
        self._end: ScriptEnd | None = None
        self._parent = os.getppid()
        self._step = 0

    def must_stop(self, step: int) -> bool:
        """Something is asked: wait while the members agree, then return whether ``step`` is the agreed one or
        later."""
        self.mine[0] = step << 2 | HELD
        pause = SHORTEST_PAUSE
        while self.asked[0] == HOLD and os.getppid() == self._parent:
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, 1.5 * pause)
        stop = self.asked[0]
        if stop > 0 and step >= stop - 1:
            self._step = step
            if not self.stopping:
                from elasticjob.worker.script_end import ScriptEnd

                self.stopping = True
                self._end = ScriptEnd()
                atexit.register(self._at_exit)
            return True
        self.mine[0] = step << 2 | GOES_ON
        return False

    def stop(self) -> NoReturn:
        """Say that this worker has stopped, and wait for its end. Raises what the saves raise."""
        for work in list(_to_finish):
            work()
        _end_at_sigterm()
        sys.stdout.flush()
        self.mine[0] = self._step << 2 | STOPPED
        while os.getppid() == self._parent:
            time.sleep(LONGEST_PAUSE)
        raise SystemExit("torchrun has ended; this worker had stopped for a planned change")

    def _at_exit(self) -> None:
        """The script has left its loop and ends. Exit code 0 would count as success, so wait in that case;
        another one is a failure, and so is a save that fails now."""
        if self._end is None or not self._end.is_good() or self.mine[0] & 3 == STOPPED:
            return
        try:
            self.stop()
        except Exception:  # noqa: BLE001  # Python would end with 0 in any case
            import traceback

            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)


def _end_at_sigterm() -> None:
    """Let SIGTERM end this process: the script's own handler may only set a flag, which would no longer be
    read."""
    import signal
    import threading

    before: Any = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        return

    def end(number: int, frame: Any) -> None:
        if callable(before):
            before(number, frame)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


_link: Link | None = None
_to_finish: dict[Callable[[], None], None] = {}


def _open() -> Link:
    folder = os.environ.get(PROGRESS_DIR_ENV, "")
    if not folder:
        return Link([0], [0])
    try:
        asked = map_word(os.path.join(folder, ASKED_FILE), os.O_RDWR)
        own = os.path.join(folder, own_name() + STOP_SUFFIX)
        os.close(create(own))
        return Link(map_word(own, os.O_RDWR | os.O_CREAT), asked)
    except (OSError, ValueError):
        return Link([0], [0])


def map_word(path: str, flags: int) -> memoryview[int]:
    """Map a file of one number; a new file holds 0. Raises OSError and ValueError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        if flags & os.O_CREAT:
            os.write(descriptor, bytes(WORD_BYTES))
        return memoryview(mmap.mmap(descriptor, WORD_BYTES)).cast("q")
    finally:
        os.close(descriptor)


def _forked() -> None:
    """A process that was forked shares the mapping: its steps go into a file of its own."""
    global _link
    _to_finish.clear()
    if _link is not None:
        atexit.unregister(_link._at_exit)
        _link = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
