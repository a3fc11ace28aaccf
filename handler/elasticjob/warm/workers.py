"""Warm workers: interpreters that have imported torch wait beside the workers, and torch's next start is
handed to them (docs/internals/warm-workers.md).

torch starts each worker by ``SubprocessHandler._popen``, which is replaced while warm workers are on. It
returns the ``Popen`` of a child of torchrun like any other, with a pid, signals and an exit code of its own.
If an interpreter can't be used, or anything here fails, torch's own function starts the worker.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.distributed.elastic.agent.server.api import ElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.utils import macros

from elasticjob.contract.text import counted
from elasticjob.warm import early_start
from elasticjob.warm.boot.page import COLD, MODULE, READY, SCRIPT, UNUSABLE
from elasticjob.warm.container_memory import private_bytes, read_memory
from elasticjob.warm.early_start import script_text
from elasticjob.warm.eligibility import Start, Starts, can_be_left_out, imports, mismatch, refusal
from elasticjob.warm.interpreter import WarmInterpreter, works
from elasticjob.warm.interpreter_count import SIZE, Memory, count, used_by_training
from elasticjob.workers.failures import oom_kills

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 30.0
"""How long after a start the next interpreters are made, if no first step is reported before."""
POLL_SECONDS = 0.2
"""How often the thread checks everything. Memory, too: a save may copy gigabytes within a second."""
HOOK = "_popen"
"""The function of torch's SubprocessHandler that starts a worker."""


class WarmWorkers:
    """The interpreters of one agent, by local rank. ``more``: the modules that they import beside torch.

    torchrun's main thread calls ``arm`` and ``begin``; a thread of this class makes the interpreters.
    """

    def __init__(self, more: Sequence[str] = (), memory: Callable[[], Memory | None] = read_memory) -> None:
        self._more = more
        self._memory = memory
        self._changed = threading.Condition()
        self._idle: dict[int, WarmInterpreter] = {}
        self._started: dict[int, WarmInterpreter] = {}
        self._last: dict[int, Start] = {}
        self._wanted: dict[int, Start] = {}
        self._due = 0.0
        self._first_step: Callable[[], bool] = bool
        self._starts = Starts()
        self._tell: Callable[[Starts], None] = _nothing
        self._together = False
        self._works: bool | None = None
        self._given_up = ""
        self._size = SIZE
        self._before: Memory | None = None
        self._highest = 0
        self._oom_kills = oom_kills()
        self._said: set[str] = set()
        self._left_out: set[str] = set()
        self._ready_said = 0
        self._stop = False
        self._thread: threading.Thread | None = None
        self._torchs: Callable[..., subprocess.Popen[bytes]] | None = None
        self._ours: Callable[..., subprocess.Popen[bytes]] | None = None
        self.counts: Counter[str] = Counter()
        """How many workers were started ``warm``, and ``cold``."""

    # -- torchrun's main thread --------------------------------------------------------------------------

    def install(self) -> None:
        """Let torch start workers by this, unless it starts them in a way that is not known here."""
        if sys.platform != "linux":
            self._give_up("warm workers need Linux")
            return
        try:
            from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import (
                SubprocessHandler,
            )

            torchs = SubprocessHandler._popen
            names = torchs.__code__.co_varnames[: torchs.__code__.co_argcount]
        except (ImportError, AttributeError) as error:
            self._give_up(f"this torch starts its workers in a way that is not known here: {error}")
            return
        if names != ("self", "args", "env"):
            self._give_up(f"this torch starts its workers in a way that is not known here: _popen{names}")
            return

        def popen(handler: Any, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
            process = self._take(handler, args, env)
            return torchs(handler, args, env) if process is None else process

        self._torchs, self._ours = torchs, popen
        setattr(SubprocessHandler, HOOK, popen)

    def arm(self, agent: ElasticAgent | None) -> None:
        """No worker runs here: make interpreters for all workers at once."""
        starts = self._last or _expected(agent)
        early = {} if self._last or self._given_up else early_start.take(starts, self._more)
        with self._changed:
            self._idle.update(early)
            self._works = self._works or bool(early) or None
            self._wanted, self._together, self._due = dict(starts), True, 0.0
            self._wake()

    def begin(
        self, first_step: Callable[[], bool], tell: Callable[[Starts], None], *, leads: bool = False
    ) -> None:
        """Workers are about to start: make the next interpreters after their first step, one by one.

        ``tell`` gets this round's ``Starts`` with each change; it must neither raise nor wait. ``leads``:
        this agent leads the round; ``all_prepared`` is called when the interpreters of all members are ready.
        """
        with self._changed:
            self._starts, self._tell = Starts(preparing=leads and not self._given_up), tell
            self._wanted, self._together = {}, False
            self._due, self._first_step = time.monotonic() + AGAIN_SECONDS, first_step
            if self._starts.preparing:
                self._tell(self._starts)
            self._wake()

    def prepared(self) -> bool:
        """Whether all interpreters that will be made for the next round are ready."""
        with self._changed:
            return self._given_up != "" or not (self._due or self._importing())

    def all_prepared(self) -> None:
        """The interpreters of all members are ready for the next round."""
        self._count(lambda starts: replace(starts, preparing=False))

    def warming(self) -> bool:
        """Whether more interpreters will soon be ready than are now."""
        with self._changed:
            return not (self._given_up or self._stop) and self._importing()

    def _importing(self) -> bool:
        missing = any(rank not in self._idle for rank in self._wanted)
        return missing or any(one.state()[0] != READY for one in self._idle.values())

    def idle_pids(self) -> frozenset[int]:
        """The processes that have not become workers."""
        with self._changed:
            return frozenset(one.process.pid for one in self._idle.values())

    def close(self) -> None:
        """End the interpreters that wait, and give torch its own function back."""
        with self._changed:
            self._stop = True
            idle, self._idle = list(self._idle.values()), {}
            self._changed.notify_all()
        for one in idle:
            one.end()
        early_start.end()
        if self._ours is not None:
            from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import (
                SubprocessHandler,
            )

            if SubprocessHandler._popen is self._ours:
                setattr(SubprocessHandler, HOOK, self._torchs)
            self._ours = None
        if self.counts:
            logger.info("workers started warm: %d, cold: %d", self.counts["warm"], self.counts["cold"])

    def _take(
        self, handler: Any, args: tuple[str, ...], env: dict[str, str]
    ) -> subprocess.Popen[bytes] | None:
        """Make an interpreter that waits the worker; None if torch has to start it."""
        rank = getattr(handler, "local_rank_id", None)
        try:
            rank = int(env["LOCAL_RANK"]) if rank is None else rank
            wanted = Start(tuple(args), dict(env), os.getcwd())
            with self._changed:
                self._last[rank] = wanted
                self._wanted.pop(rank, None)
                one = self._idle.pop(rank, None)
            why = self._given_up or _why_not(one, wanted)
            if one is not None and not why:
                ready = not one.importing()
                process = one.become(wanted, *(_descriptor(handler, n) for n in ("stdout", "stderr")))
                self._started[rank] = one
                self.counts["warm"] += 1
                self._count(Starts.with_warm)
                logger.info(
                    "worker %d starts warm (pid %d)%s",
                    rank,
                    process.pid,
                    "" if ready else ", still importing",
                )
                return process
            if one is not None:
                one.end()
        except SignalException:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            logger.debug("a warm start failed", exc_info=True)
        self.counts["cold"] += 1
        self._count(lambda starts: starts.with_cold(why))
        logger.info("worker %s starts cold: %s", rank, why)
        return None

    def _count(self, change: Callable[[Starts], Starts]) -> None:
        with self._changed:
            self._starts = change(self._starts)
            self._tell(self._starts)

    # -- the thread --------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._thread is None and not self._stop:
            self._thread = threading.Thread(target=self._run, name="elasticjob-warm", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            try:
                with self._changed:
                    if self._stop or self._given_up:
                        return
                    self._check(time.monotonic())
                    self._changed.wait(POLL_SECONDS)
            except Exception as error:
                self._give_up(f"{type(error).__name__}: {error}")
                logger.debug("no more warm workers", exc_info=True)

    def _check(self, now: float) -> None:
        """Check the interpreters and memory, and make what is missing; called with the lock."""
        ready = 0
        for rank, one in list(self._idle.items()):
            state, text = one.state()
            if state == UNUSABLE:
                self._drop(rank)
                self._give_up(text)
                return
            if state == MODULE:
                self._drop(rank)
                if not self._leave_out(text):
                    return
                continue
            if one.process.poll() is not None:
                del self._idle[rank]
                self._wanted.pop(rank, None)
                self._say(f"an interpreter that waited has ended with {one.process.returncode}")
            elif state == READY:
                ready += 1
                self._size = max(SIZE, private_bytes(one.process.pid) or 0)
        if ready != self._ready_said and ready in (0, len(self._wanted)):
            self._ready_said = ready
            if ready:
                logger.info("warm workers: ready, %s", counted(ready, "interpreter"))
        self._check_memory()
        if self._due and (now >= self._due or self._first_step()):
            self._due = 0.0
            self._wanted = dict(self._last)
            self._read_results()
        if self._due or self._given_up:
            return
        missing = [rank for rank in sorted(self._wanted) if rank not in self._idle]
        if missing and (self._together or not any(one.importing() for one in self._idle.values())):
            self._make(missing)

    def _check_memory(self) -> None:
        """End interpreters if training needs their memory, and remember the most that it has used."""
        kills = oom_kills()
        if kills is not None and self._oom_kills is not None and kills > self._oom_kills:
            self._give_up("a process of this container was killed because its memory was used up")
            return
        memory, before, idle = self._memory(), self._before, len(self._idle)
        if memory is None:
            return
        self._before = memory
        importing = any(one.importing() for one in self._idle.values())
        comparable = before is not None and before.limit == memory.limit and not importing
        growth = memory.used - before.used if before is not None and comparable else 0
        found = count(memory, idle, idle, self._size, self._highest, growth)
        self._highest = max(self._highest, used_by_training(memory, idle, self._size))
        for rank in sorted(self._idle)[found.number :]:
            self._do_without(rank, f"memory is short: {found.why}")

    def end_one(self, why: str) -> bool:
        """End one of the interpreters that wait; False if there is none."""
        with self._changed:
            if not self._idle:
                return False
            self._do_without(max(self._idle), f"an interpreter that waited is ended: {why}")
            return True

    def _do_without(self, rank: int, why: str) -> None:
        """End the one of this rank for its memory, and make no other in its place in this round."""
        self._drop(rank)
        self._wanted.pop(rank, None)
        self._before = None  # the next difference does not show what training uses
        self._say(why)

    def out_of_memory(self, whose: str) -> None:
        """A container of the job was out of memory: training needs all of it from now on. Calling it again is
        harmless."""
        with self._changed:
            if not (self._given_up or self._stop):
                self._give_up(f"{whose} was out of memory")

    def _make(self, missing: Sequence[int]) -> None:
        found = count(self._memory(), len(self._wanted), len(self._idle), self._size, self._highest)
        if found.why:
            self._say(f"{found.number} of {len(self._wanted)} workers can be warm: {found.why}")
        room = max(0, found.number - len(self._idle))
        for rank in missing[: room if self._together else min(1, room)]:
            start = self._wanted[rank]
            why = refusal(start.args, sys.executable)
            if why:
                self._give_up(why)
                return
            if self._works is None:
                self._works = works(sys.executable, start.env)
            if not self._works:
                self._give_up("this Python does not run what PYTHONPATH names at its start")
                return
            more = [name for name in self._more if name not in self._left_out]
            self._idle[rank] = WarmInterpreter(start, imports(script_text(start), more))
        if self._together or not room:
            self._wanted = {rank: start for rank, start in self._wanted.items() if rank in self._idle}

    def _leave_out(self, text: str) -> bool:
        """A module cannot be imported: leave it out of the next interpreters. False if that is not
        possible."""
        name = text.partition(":")[0]
        if not can_be_left_out(name, self._more):
            self._give_up(f"cannot import {text}")
            return False
        if name not in self._left_out:
            logger.warning(
                "warm workers: cannot import %s; it is left out. Correct spec.warmWorkers.imports, or "
                "warm_imports of --rdzv-conf",
                text,
            )
        self._left_out.add(name)
        return True

    def _read_results(self) -> None:
        """Count as cold the workers that were to start warm and did not."""
        for rank, one in self._started.items():
            state, text = one.state()
            if state in (COLD, SCRIPT):
                self.counts["warm"] -= 1
                self.counts["cold"] += 1
                self._starts = self._starts.turned_cold(text)
                self._tell(self._starts)
                logger.info("worker %d started cold after all: %s", rank, text)
            if state == SCRIPT:
                self._give_up(text)
        self._started.clear()

    def _drop(self, rank: int) -> None:
        self._idle.pop(rank).end()

    def _say(self, text: str) -> None:
        if text not in self._said:
            logger.info("warm workers: %s", text)
        self._said.add(text)

    def _give_up(self, why: str) -> None:
        """Start all workers cold from now on."""
        if not self._given_up:
            self._given_up = why
            logger.warning("no more warm workers: %s", why)
        for rank in list(self._idle):
            self._drop(rank)


def _nothing(_starts: Starts) -> None:
    """No round."""


def _why_not(one: WarmInterpreter | None, wanted: Start) -> str:
    if one is None:
        return "no warm interpreter was ready"
    state, text = one.state()
    if state == UNUSABLE:
        return text
    if state == MODULE:
        return f"cannot import {text}"
    if one.process.poll() is not None:
        return f"the interpreter that waited has ended with {one.process.returncode}"
    return mismatch(one.start, wanted)


def _expected(agent: ElasticAgent | None) -> Mapping[int, Start]:
    """The starts that torch will make, by local rank, if that can be known before the first one."""
    if agent is None:
        return {}
    spec = agent.get_worker_group().spec
    if not isinstance(spec.entrypoint, str):
        return {}
    return {
        rank: Start(
            (spec.entrypoint, *(str(one) for one in macros.substitute(list(spec.args), str(rank)))),
            dict(os.environ),
            os.getcwd(),
        )
        for rank in range(spec.local_world_size)
    }


def _descriptor(handler: Any, name: str) -> int:
    file = getattr(handler, f"_{name}")
    return {"stdout": 1, "stderr": 2}[name] if file is None else int(file.fileno())
