"""The agent's part of memory checkpoints: when its memory opens, who gets the copies, and when it stops.

At the beginning of a round the members meet in the round's store (``memory_meeting``). This takes a thread of
its own: neither rendezvous nor workers wait for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable

from torch.distributed import TCPStore

from elasticjob.agent.memory_meeting import Meeting
from elasticjob.agent.settings import Settings
from elasticjob.contract.names import MEMORY_AGENT_ENV
from elasticjob.core.participant import Membership
from elasticjob.memory.decide import Place, mebibytes
from elasticjob.memory.membership import Members
from elasticjob.memory.service import Service
from elasticjob.store.connect import connect
from elasticjob.store.connection import KeyValueStore, StoreConnection
from elasticjob.store.errors import CannotConnect, Unreachable
from elasticjob.warm.container_memory import read_memory
from elasticjob.warm.interpreter_count import KEEP_FREE, SIZE, Memory
from elasticjob.warm.workers import WarmWorkers
from elasticjob.workers.failures import oom_kills

logger = logging.getLogger(__name__)

TRIES, RETRY_SECONDS = 5, 0.5
WAY_SECONDS = 5.0
"""How long warm interpreters may take to give their memory back."""
NO_COPIES = "round %d: its memory checkpoints have no copies: %s"


class AgentMemory:
    """Memory checkpoints of one agent, from its first round to its last. ``changed`` is that of the agent."""

    def __init__(
        self,
        settings: Settings,
        changed: threading.Condition,
        warm: WarmWorkers | None = None,
        read: Callable[[], Memory | None] = read_memory,
        kills: Callable[[], int | None] = oom_kills,
    ) -> None:
        self._settings = settings
        self._changed = changed
        self._warm = warm
        self._read = read
        self._kills = kills
        self._killed = kills()
        self._off = ""
        self._service: Service | None = None
        self._meeting: StoreConnection | None = None
        self.where = ""
        """What the workers of the present round have in their environment."""

    def begin(self, m: Membership) -> None:
        """The round is established: its workers learn where they save. What is held already stays."""
        os.environ.pop(MEMORY_AGENT_ENV, None)
        if self._service is None:
            network = self._settings.copies > 0
            self._service = Service(self._settings.memory, self._gate, self._make_way, network=network)
            if self._off:
                self._service.keeper.switch_off(self._off)
        self._check_kills()
        self.where = self._service.begin(m.job_uid, m.number)
        os.environ[MEMORY_AGENT_ENV] = self.where

    def meet(self, m: Membership) -> None:
        """Meet the other members, in a thread."""
        service, key = self._service, self.where.rpartition(":")[2]
        if service is None:
            return

        def alone(error: Exception) -> None:
            """Training goes on without copies."""
            level = logging.DEBUG if connection.closed else logging.WARNING
            logger.log(level, NO_COPIES, m.number, error)
            service.keeper.meet(key, Members(secrets.token_hex(16), "", "", str(error)))

        def opened() -> TCPStore:
            try:
                return _connected(m.leader_endpoint)
            except Exception as error:
                alone(error)
                raise

        def work(store: KeyValueStore) -> None:
            try:
                place = Place(self._settings.node, self._settings.zone)
                members = Meeting(store, connection, m, service.port).held(place)
                service.keeper.meet(key, members)
                if members.alone:
                    logger.warning(NO_COPIES, m.number, members.alone)
            except Exception as error:  # noqa: BLE001
                alone(error)
            connection.close()

        connection = self._meeting = StoreConnection(opened, m.prefix, self._changed)
        connection.submit(work)

    def leave(self) -> None:
        """The agent leaves the round. What it holds stays."""
        meeting, self._meeting = self._meeting, None
        if meeting is not None:
            meeting.close()

    def all_stay(self, number: int) -> None:
        """The round of this number drains, and memory alone is enough for its last step."""
        if self._service is not None:
            self._service.keeper.all_stay(number)

    def out_of_memory(self, whose: str) -> None:
        """A container of the job was out of memory: training needs all of it from now on. Calling it again is
        harmless."""
        self._off = self._off or f"{whose} was out of memory"
        if self._service is not None:
            self._service.keeper.switch_off(self._off)

    def close(self) -> None:
        """Free all memory."""
        self.leave()
        os.environ.pop(MEMORY_AGENT_ENV, None)
        if self._service is not None:
            self._service.close()

    # -- memory ------------------------------------------------------------------------------------------

    def _gate(self, size: int) -> str:
        idle = len(self._warm.idle_pids()) if self._warm is not None else 0
        return too_little(self._read(), size, idle * SIZE)

    def _make_way(self, size: int) -> None:
        """End interpreters that wait, one after the other, until there is room for ``size`` bytes without
        what they use."""
        until = time.monotonic() + WAY_SECONDS
        while self._warm is not None and too_little(self._read(), size, 0) and time.monotonic() < until:
            if not self._warm.end_one("a memory checkpoint needs what it uses"):
                return
            time.sleep(0.02)

    def _check_kills(self) -> None:
        """After an OOM kill in this container nothing is held any more: the next workers need the memory."""
        kills = self._kills()
        if self._service is not None and kills is not None and kills > (self._killed or 0):
            self._service.keeper.switch_off(
                "a process of this container was killed because its memory was used up"
            )
            self._service.keeper.let_go()
        self._killed = kills


def _connected(endpoint: str) -> TCPStore:
    """Connect to the leader's store, which has just answered. Raises CannotConnect or Unreachable."""
    for _ in range(TRIES):
        with contextlib.suppress(CannotConnect, Unreachable):
            return connect(endpoint)
        time.sleep(RETRY_SECONDS)
    return connect(endpoint)


def too_little(memory: Memory | None, size: int, spare: int) -> str:
    """Why ``size`` bytes more would leave the container too little memory; "" if not, or if its memory is not
    known. ``spare``: bytes of warm interpreters, which are ended first."""
    if memory is None:
        return ""
    reserve = round(memory.limit * KEEP_FREE)
    if memory.available + spare - size >= reserve:
        return ""
    return (
        f"{mebibytes(memory.available + spare)} of {mebibytes(memory.limit)} of memory are free, a save "
        f"needs {mebibytes(size)}, and {KEEP_FREE:.0%} of the limit is left free"
    )
