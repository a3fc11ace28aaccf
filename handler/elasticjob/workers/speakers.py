"""Which process speaks for each of an agent's workers, by the files that processes have in the round's
folder.

Each process that reports steps, or calls ``should_stop``, has a file of its own there, named after itself
(``elasticjob.worker.progress.own_name``). It belongs to the worker that it is, or from which it descends, as
the agent lists its workers: LOCAL_RANK would be wrong where a script changes it (all workers may have 0). A
script may also train in children, one after the other: of the processes of one worker, the first that still
lives speaks, and when it has ended, the next.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from elasticjob.workers import processes
from elasticjob.workers.torch_agent import AgentWorker

MOST_PARENTS = 64


@dataclass
class Speaker:
    """A process with a file. ``worker`` is its worker's local rank, None while that is unknown."""

    name: str
    pid: int
    parent: int
    session: int
    born: int
    order: tuple[int, int]
    worker: int | None = None

    def alive(self) -> bool:
        """Whether the process still runs; True where that can't be known."""
        if self.pid <= 0:
            return True
        now = processes.find(self.pid)
        return now is not None and now.alive and now.born == self.born


class SpeakerFiles(NamedTuple):
    """The paths of the files, by what their processes do."""

    speaking: list[str]
    """They speak for a worker; those of the agent's workers come first."""
    ranks: list[int | None]
    """The local rank of each one that speaks; None if it is unknown."""
    silent: list[str]
    """They live, but another process speaks for their worker."""
    ended: list[str]
    """They have ended: these files may be removed."""


class Speakers:
    """The files that end with ``suffix``. ``workers`` lists the agent's workers; it is empty while they are
    unknown, and then ``scan`` takes each process for a worker."""

    def __init__(
        self, folder: str, suffix: str, workers: Callable[[], Sequence[AgentWorker]] = tuple
    ) -> None:
        self.folder = folder
        self._suffix = suffix
        self._workers = workers
        self._known: dict[str, Speaker] = {}
        self._scans = 0
        self._lock = threading.Lock()

    def scan(self) -> SpeakerFiles:
        """Read the folder. Raises OSError."""
        with self._lock:
            return self._scan()

    def _scan(self) -> SpeakerFiles:
        self._read_names()
        by_worker: dict[object, list[Speaker]] = {}
        for one in sorted(self._known.values(), key=lambda one: one.order):
            key: object = one.name if one.worker is None else one.worker
            by_worker.setdefault(key, []).append(one)
        files = SpeakerFiles([], [], [], [])
        for key in sorted(by_worker, key=lambda key: (not isinstance(key, int), str(key))):
            found = by_worker[key]
            first = found[0]
            if len(found) > 1:
                living = [one for one in found if one.alive()]
                first = living[0] if living else found[-1]
                for one in found:
                    if one is not first:
                        (files.silent if one in living else files.ended).append(self._path(one))
            files.speaking.append(self._path(first))
            files.ranks.append(first.worker)
        return files

    def workers(self) -> set[int]:
        """Local ranks of the agent's workers that have a file, or had one that was not forgotten. Raises
        OSError."""
        with self._lock:
            self._read_names()
            return {one.worker for one in self._known.values() if one.worker is not None}

    def forget(self, paths: Sequence[str]) -> None:
        """Remove the files of processes that have ended and speak no more. Never raises."""
        with self._lock:
            for path in paths:
                self._known.pop(os.path.basename(path), None)
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _path(self, one: Speaker) -> str:
        return os.path.join(self.folder, one.name)

    def _read_names(self) -> None:
        with os.scandir(self.folder) as entries:
            made = {entry.name: entry for entry in entries}
        self._scans += 1
        for name, entry in made.items():
            words = _words(name, self._suffix)
            if words is None or name in self._known:
                continue
            pid, parent, session = words if len(words) == 3 else (0, 0, 0)
            now = processes.find(pid) if pid else None
            born = -1 if now is None else now.born
            # Of those that come into sight together, the file that was made first.
            order = self._scans, entry.stat().st_ctime_ns
            self._known[name] = Speaker(name, pid, parent, session, born, order)
        workers = self._workers()
        for one in self._known.values():
            if one.worker is None and workers:
                one.worker = _worker_of(one, workers)


def _words(name: str, suffix: str) -> list[int] | None:
    """The numbers in the name of such a file, None for another one."""
    if not name.endswith(suffix):
        return None
    words = name[: len(name) - len(suffix)].split(".")
    return [int(word[:18]) for word in words] if all(map(_is_number, words)) else None


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal()


def _worker_of(one: Speaker, workers: Sequence[AgentWorker]) -> int | None:
    by_pid = {worker.pid: worker.local_rank for worker in workers}
    for pid in (one.pid, one.session, one.parent):
        if pid in by_pid:
            return by_pid[pid]
    above = processes.find(one.pid)
    for _ in range(MOST_PARENTS):
        if above is None:
            return None
        for pid in (above.pid, above.session):
            if pid in by_pid:
                return by_pid[pid]
        above = processes.find(above.parent)
    return None


def all_say(speakers: Speakers, workers: int | None) -> bool:
    """Whether each of the agent's ``workers`` has a file; False if their number is unknown."""
    try:
        return bool(workers) and len(speakers.workers()) == workers
    except OSError:  # the folder is gone, or there are no descriptors left
        return False
