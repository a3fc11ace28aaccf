"""One agent's keeper with its sockets and threads."""

from __future__ import annotations

from collections.abc import Callable

from elasticjob.memory.client import where
from elasticjob.memory.copies import Copies
from elasticjob.memory.fetching import no_way
from elasticjob.memory.keeper import Keeper
from elasticjob.memory.serving import ForMembers, ForWorkers


class Service:
    """``limit``, ``gate`` and ``make_way`` are those of the ``Keeper``. ``network``: whether members send
    each other copies, and pieces when they resume; without, no port is opened."""

    def __init__(
        self,
        limit: int,
        gate: Callable[[int], str],
        make_way: Callable[[int], None] = no_way,
        *,
        network: bool,
    ) -> None:
        self.keeper = Keeper(limit, gate, make_way)
        self._workers = ForWorkers(self.keeper, network=network)
        self._members = ForMembers(self.keeper) if network else None
        self._copies = Copies(self.keeper)
        self._copies.start()

    @property
    def port(self) -> int:
        """Where other members reach it; 0 if they do not."""
        return self._members.port if self._members is not None else 0

    def begin(self, job: str, number: int) -> str:
        """The agent has entered a round. Returns what ``ELASTICJOB_MEMORY_AGENT`` says to its workers."""
        key = self.keeper.begin(job, number)
        self._copies.cut()
        if self._members is not None:
            self._members.cut()
        return where(self._workers.address, key)

    def close(self) -> None:
        """Free all memory, and end the threads."""
        self.keeper.close()
        self._copies.cut()
        self._workers.close()
        if self._members is not None:
            self._members.close()
