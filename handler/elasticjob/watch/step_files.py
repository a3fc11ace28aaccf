"""The directory in which an agent's workers store their steps; a new one for each round.

It is in memory (/dev/shm) if possible: a memory-mapped file on a disk can block its writer while a page is
written back, and the writer is the training. A live agent holds a lock on its directory. What a killed agent
has left behind is removed by the next one on the same file system.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from elasticjob.contract.names import PROGRESS_DIR_ENV
from elasticjob.core.progress import Steps
from elasticjob.worker.progress import LAYOUT, MAX_STEP
from elasticjob.worker.stack_signal import FOLDER_PREFIX
from elasticjob.workers.speakers import Speakers
from elasticjob.workers.torch_agent import AgentWorker

logger = logging.getLogger(__name__)

PREFIX = FOLDER_PREFIX
READS = 3
"""How often to read a file whose writer changes it meanwhile; after that the last good value is kept."""


class StepFiles:
    """One agent's folders, one after the other."""

    def __init__(self) -> None:
        self._held: list[tuple[str, int]] = []
        """Folder and its lock. A list, because taking the last is one step: ``shutdown`` may come from a
        signal handler, while a rendezvous renews the folder."""
        self._warned = self._cleaned = False

    def renew(self) -> StepReader:
        """Make the folder of a new round and name it in the environment that workers inherit."""
        self.remove()
        last_error = ""
        for parent in ("/dev/shm", tempfile.gettempdir):
            try:
                where = parent if isinstance(parent, str) else parent()
                if not self._cleaned:
                    _remove_abandoned(Path(where))
                folder, lock = _make(where)
            except OSError as error:
                last_error = str(error)
            else:
                self._held.append((folder, lock))
                self._cleaned = True
                os.environ[PROGRESS_DIR_ENV] = folder
                return StepReader(folder)
        if not self._warned:
            self._warned = True
            logger.warning(
                "cannot create a directory for the workers' steps; progress will not be reported: %s",
                last_error,
            )
        return StepReader("")

    def remove(self) -> None:
        """Remove the folder; what workers still write is lost."""
        while self._held:
            try:
                folder, lock = self._held.pop()
            except IndexError:  # by another thread, or by a signal handler: it removes it
                return
            try:
                shutil.rmtree(folder, ignore_errors=True)
            finally:  # a signal handler of torch's raises: the next agent finds the folder without a lock
                if os.environ.get(PROGRESS_DIR_ENV) == folder:
                    os.environ.pop(PROGRESS_DIR_ENV, None)
                os.close(lock)


class StepReader:
    """The steps of one round's workers on this agent. An empty ``folder`` has no steps."""

    def __init__(self, folder: str, workers: Callable[[], Sequence[AgentWorker]] = tuple) -> None:
        self.folder = folder
        self._speakers = Speakers(folder, "", workers)
        self._steps: Steps | None = None
        self._lock = threading.Lock()

    def follow(self, workers: Callable[[], Sequence[AgentWorker]]) -> None:
        """These are the round's workers."""
        self._speakers = Speakers(self.folder, "", workers)

    def read(self) -> Steps | None:
        """The earliest first report of all workers, and the highest step of those that speak for them now;
        None before the first. The step is lower than before where a process that has ended was further."""
        if not self.folder:
            return None
        with self._lock:
            return self._read()

    def _read(self) -> Steps | None:
        try:
            files = self._speakers.scan()
        except OSError:  # the folder is gone, or there are no descriptors left
            return self._steps
        self._steps = merge(
            self._steps, _read_files(files.speaking), _read_files([*files.silent, *files.ended])
        )
        self._speakers.forget(files.ended)
        return self._steps


def merge(known: Steps | None, speaking: Sequence[Steps], others: Sequence[Steps]) -> Steps | None:
    """Merge what was ``known`` with what is read now. ``others`` count only for when they have reported."""
    if not speaking:
        return known
    everything = [*([known] if known else []), *speaking, *others]
    first = min(everything, key=lambda one: one.first_at)
    last = max(speaking, key=lambda one: (one.step, -one.at))
    moved_at = max(max(one.at, one.moved_at) for one in everything)
    return Steps(first.first_step, first.first_at, last.step, last.at, moved_at)


def _read_files(paths: Sequence[str]) -> list[Steps]:
    return [steps for path in paths if (steps := read_file(path)) is not None]


def read_file(path: str) -> Steps | None:
    """A worker's last report; None if there is none yet, or it is only half written."""
    for _ in range(READS):
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read(LAYOUT.size)
        except OSError:
            return None
        if len(data) < LAYOUT.size:
            return None
        first_step, first_at, step, at, check = LAYOUT.unpack(data)
        if check == ~(first_step ^ first_at) ^ step ^ at and 0 <= first_step <= step < MAX_STEP:
            return Steps(first_step, first_at / 1e9, step, at / 1e9)
    return None


def _make(parent: str) -> tuple[str, int]:
    """A new folder, and the lock on it. Raises OSError."""
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    try:
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, lock


def _remove_abandoned(parent: Path) -> None:
    """Remove folders whose agents have gone, so that their locks are free."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # another user's, or gone
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(lock)
