"""Ends what the workers of a round have left behind, before those of the next are started.

torch ends the process group of a worker that still runs, and nothing of one that has ended by itself: its
children live on. They hold the memory of GPUs, so the next round fails, and the one after it. A process
is ended if it is known to descend from one of the round's workers:

- what is in a worker's session or process group (torch starts each worker in a session of its own);
- what was seen below a worker while it ran;
- what has the round's own folder and torch's run id in the environment with which it was started: these two
  together only workers have, and what they start;
- what descends from one of these.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from elasticjob.contract.names import PROGRESS_DIR_ENV
from elasticjob.contract.text import counted
from elasticjob.workers import processes
from elasticjob.workers.processes import Process
from elasticjob.workers.torch_agent import AgentWorker

logger = logging.getLogger(__name__)

TERM_SECONDS = 1.0
"""Seconds from SIGTERM to SIGKILL."""
GONE_SECONDS = 5.0
"""How long the next workers wait until what was killed is gone: a GPU's memory is given back then."""
POLL_SECONDS = 0.02
MOST_NAMED = 10
RUN_ID = b"TORCHELASTIC_RUN_ID="


def left_behind(
    seen: Mapping[int, Process],
    workers: Sequence[AgentWorker],
    descended: Collection[tuple[int, int]],
    spared: Collection[int],
) -> list[Process]:
    """Which of the processes that are ``seen`` now, by pid, the workers have left behind; not the workers.

    ``descended`` are pid and birth of processes that are known to descend from them. A worker that still runs
    has left nothing behind. Those that are ``spared``, and what they have started, are not among them.

    Where another process has a worker's pid by now, the session and the process group of that number are its
    own: the kernel gives no process a number that is still the one of a session or a process group.
    """
    same = {one.pid for one in workers if one.pid in seen and seen[one.pid].born == one.born}
    gone = {one.pid for one in workers if one.pid not in seen}
    leaders = gone | {pid for pid in same if not seen[pid].alive}
    found: dict[int, Process] = {}
    below: dict[int, list[Process]] = {}
    new: list[Process] = []
    for one in seen.values():
        below.setdefault(one.parent, []).append(one)
        if one.session in leaders or one.group in leaders or (one.pid, one.born) in descended:
            new.append(one)
    kept = same | set(spared)
    while new:
        one = new.pop()
        if one.pid in found or one.pid in kept:
            continue
        found[one.pid] = one
        new += below.get(one.pid, [])
        if one.session == one.pid:
            new += [other for other in seen.values() if other.session == one.pid]
    return sorted((one for one in found.values() if one.alive), key=lambda one: one.pid)


class Leftovers:
    """The descendants of one round's workers. ``folder`` is the round's own, where they report steps."""

    def __init__(self, folder: str) -> None:
        self._mark = os.fsencode(f"{PROGRESS_DIR_ENV}={folder}") if folder else b""
        self._lock = threading.Lock()
        self._descended: dict[int, int] = {}
        """Their births, by pid."""

    def remember(self, workers: Sequence[AgentWorker]) -> None:
        """Remember the processes below the workers, as they are now. Raises OSError."""
        roots = [one.pid for one in workers if _runs(processes.find(one.pid), one)]
        with self._lock:
            known = dict(self._descended)
        alive = {
            pid: born for pid, born in known.items() if (one := processes.find(pid)) and one.born == born
        }
        found = processes.descendants([*roots, *alive])
        with self._lock:
            self._descended = {**alive, **{one.pid: one.born for one in found}}

    def find(self, workers: Sequence[AgentWorker], spared: Collection[int]) -> list[Process]:
        """The processes that they have left behind. Raises OSError."""
        if not workers:
            return []
        seen = processes.table()
        with self._lock:
            descended = set(self._descended.items())
        descended |= self._marked(seen, min(one.born for one in workers))
        return left_behind(seen, workers, descended, {*spared, *_ancestors(seen, os.getpid())})

    def _marked(self, seen: Mapping[int, Process], since: int) -> set[tuple[int, int]]:
        """Processes that were started with the environment of a worker of this round: pid and birth."""
        own_has_it = "TORCHELASTIC_RUN_ID" in os.environ
        if not self._mark or own_has_it:
            return set()
        found = set()
        for one in seen.values():
            if one.born >= since and one.alive:
                entries = processes.read(one.pid, "environ").split(b"\0")
                if self._mark in entries and any(entry.startswith(RUN_ID) for entry in entries):
                    found.add((one.pid, one.born))
        return found


class Ending:
    """Ends processes, with all that they start meanwhile: SIGTERM at once, SIGKILL after ``TERM_SECONDS``."""

    def __init__(self, number: int, found: Sequence[Process]) -> None:
        self._known = {one.pid: one for one in found}
        self._thread = threading.Thread(target=self._run, name="elasticjob-leftovers", daemon=True)
        logger.warning(
            "round %d: its workers left %s behind, to be ended before the next ones start: %s",
            number,
            counted(len(found), "process"),
            _named(found),
        )
        self._signal(signal.SIGTERM)
        self._thread.start()

    def join(self) -> None:
        """Wait until they are gone; not for ever, if SIGKILL does not end them."""
        self._thread.join(TERM_SECONDS + 2 * GONE_SECONDS)

    def _run(self) -> None:
        try:
            if self._gone_within(TERM_SECONDS):
                return
            if not self._gone_within(GONE_SECONDS, kill=True):
                logger.warning("killed, but still there: %s", _named(self._living()))
        except Exception:
            logger.warning("what the workers have left behind may still be there", exc_info=True)

    def _gone_within(self, seconds: float, kill: bool = False) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            if kill:
                self._signal(signal.SIGKILL)
            if not self._living():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        for one in self._living():
            processes.send(one.pid, one.born, number)
            processes.send(one.pid, one.born, signal.SIGCONT)

    def _living(self) -> list[Process]:
        """The processes that still live, and what they have started since. Reaps those that torchrun has
        inherited."""
        living = []
        for one in list(self._known.values()):
            now = processes.find(one.pid)
            if now is None or now.born != one.born:
                continue
            if now.alive:
                living.append(now)
            elif now.parent == os.getpid():
                with contextlib.suppress(OSError):
                    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOHANG)
        for one in processes.descendants([one.pid for one in living]):
            if one.alive and one.pid not in self._known:
                self._known[one.pid] = one
                living.append(one)
        return living


def _runs(now: Process | None, worker: AgentWorker) -> bool:
    return now is not None and now.born == worker.born and now.alive


def _ancestors(seen: Mapping[int, Process], pid: int) -> Iterable[int]:
    while pid in seen:
        yield pid
        pid = seen[pid].parent


def _named(found: Sequence[Process]) -> str:
    """Pid and name of each. A process chooses its name: what does not print is left out of it."""
    names = [
        f"{one.pid} ({''.join(letter for letter in one.name if letter.isprintable())})"
        for one in found[:MOST_NAMED]
    ]
    more = len(found) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
