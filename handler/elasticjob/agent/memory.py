"""The agent's part of memory checkpoints: when its memory opens, who gets the copies, and when it stops.

At the beginning of a round the members meet in the round's store: each says at which port it takes pieces and
on which node it is; the leader chooses a token and the shift by which copies go. This takes a thread of its
own: neither rendezvous nor workers wait for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable

from torch.distributed import TCPStore

from elasticjob.agent.settings import Settings
from elasticjob.contract.endpoint import format_endpoint, parse_endpoint
from elasticjob.contract.names import MEMORY_AGENT_ENV
from elasticjob.core.participant import Membership
from elasticjob.memory.decide import Place, choose_shift, mebibytes
from elasticjob.memory.keeper import Members
from elasticjob.memory.service import Service
from elasticjob.rounds.causes import Cause
from elasticjob.store.connect import connect
from elasticjob.store.connection import KeyValueStore, StoreConnection
from elasticjob.store.errors import CannotConnect, Unreachable
from elasticjob.warm.container_memory import read_memory
from elasticjob.warm.interpreter_count import KEEP_FREE, SIZE, Memory
from elasticjob.warm.workers import WarmWorkers
from elasticjob.watch.heartbeats import ENDPOINT_KEY
from elasticjob.workers.failures import oom_kills

logger = logging.getLogger(__name__)

MEMBER_KEY = "elasticjob/memory/"
"""With a group rank: where that member takes pieces, and where it runs."""
PLAN_KEY = "elasticjob/memory/plan"
"""The token and the shift."""
TRIES, RETRY_SECONDS = 5, 0.5


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
            self._service = Service(self._settings.memory, self._gate, network=self._settings.copies > 0)
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
            logger.log(level, "round %d: its memory checkpoints have no copies: %s", m.number, error)
            service.keeper.meet(key, Members(secrets.token_hex(16), ""))

        def opened() -> TCPStore:
            try:
                return _connected(m.leader_endpoint)
            except Exception as error:
                alone(error)
                raise

        def work(store: KeyValueStore) -> None:
            try:
                service.keeper.meet(key, self._met(store, connection, m, service.port))
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

    def drains(self, number: int, cause: str) -> None:
        """The round of this number drains for this cause."""
        if self._service is not None and cause == Cause.SCALED_UP:
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

    # -- the members of a round --------------------------------------------------------------------------

    def _met(self, store: KeyValueStore, connection: StoreConnection, m: Membership, port: int) -> Members:
        """Meet the others in the round's store, in the connection's thread."""
        me = {"port": port, "node": self._settings.node, "zone": self._settings.zone}
        store.set(f"{MEMBER_KEY}{m.group_rank}", json.dumps(me))
        if m.group_rank == 0:
            keys = [f"{MEMBER_KEY}{rank}" for rank in range(m.size)]
            connection.wait_for(store, keys, own=True)
            said = [json.loads(text) for text in store.multi_get(keys)]
            store.set(PLAN_KEY, json.dumps(self._plan(m, said)))
        connection.wait_for(store, [PLAN_KEY], own=m.group_rank == 0)
        plan = json.loads(store.get(PLAN_KEY))
        partner = (m.group_rank + int(plan["shift"])) % m.size
        mine = self._address(store, m.group_rank) if port else ""
        return Members(
            str(plan["token"]),
            mine,
            self._address(store, partner) if port and partner != m.group_rank else "",
        )

    @staticmethod
    def _plan(m: Membership, said: list[dict[str, object]]) -> dict[str, object]:
        places = [Place(str(one["node"]), str(one["zone"])) for one in said]
        found = choose_shift(places)
        if found.together and all(one["port"] for one in said):
            logger.warning(
                "round %d: %d of %d members have the copies of their memory checkpoints on their own node",
                m.number,
                found.together,
                m.size,
            )
        return {"token": secrets.token_hex(16), "shift": found.shift}

    @staticmethod
    def _address(store: KeyValueStore, rank: int) -> str:
        """Where a member takes pieces; "" if it takes none."""
        here, said = store.multi_get([f"{ENDPOINT_KEY}{rank}", f"{MEMBER_KEY}{rank}"])
        port = int(json.loads(said)["port"])
        return format_endpoint(parse_endpoint(here.decode())[0], port) if port else ""

    # -- memory ------------------------------------------------------------------------------------------

    def _gate(self, size: int) -> str:
        idle = len(self._warm.idle_pids()) if self._warm is not None else 0
        return too_little(self._read(), size, idle * SIZE)

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
