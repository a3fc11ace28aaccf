"""The words of these tests: a call of ``next_rendezvous``, and rounds that are published for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch.distributed.elastic.agent.server.api import ElasticAgent
from torch.distributed.elastic.rendezvous import RendezvousInfo

from elasticjob.agent.handler import K8sRendezvousHandler
from elasticjob.contract import names
from elasticjob.contract.round_record import MemberList, RoundRecord
from tests.unit.memory_api import Leases

Start = Callable[..., K8sRendezvousHandler]


class ListedAgent(ElasticAgent):
    """An agent of torch's kind, whose workers the test starts."""

    def __init__(self) -> None:
        self._workers: list[Any] = []

    def run(self, role: str = "default") -> Any:
        """It does not run: the test does."""
        raise NotImplementedError(role)

    def get_worker_group(self, role: str = "default") -> Any:
        """What the handler asks of it."""
        del role
        return SimpleNamespace(spec=SimpleNamespace(local_world_size=1), workers=self._workers)

    def join(self, handler: K8sRendezvousHandler) -> RendezvousInfo:
        """Call the handler as torch's agent does."""
        return handler.next_rendezvous()

    def start(self, *pids: int) -> None:
        """These are its workers from now on."""
        self._workers = [
            SimpleNamespace(local_rank=n, global_rank=n + 2, id=pid) for n, pid in enumerate(pids)
        ]


class Joining:
    """A call of ``next_rendezvous`` in a thread of its own; ``result`` re-raises what it raised."""

    def __init__(self, handler: K8sRendezvousHandler, agent: ListedAgent | None = None) -> None:
        self._join = handler.next_rendezvous if agent is None else partial(agent.join, handler)
        self._info: RendezvousInfo | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._info = self._join()
        except BaseException as error:  # noqa: BLE001 - SystemExit is one of the answers
            self._error = error

    def result(self, seconds: float = 30.0) -> RendezvousInfo:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "next_rendezvous has not returned"
        if self._error is not None:
            raise self._error
        assert self._info is not None
        return self._info

    def waits(self) -> bool:
        return self._thread.is_alive()


def form(leases: Leases, number: int, *pods: str, **fields: Any) -> RoundRecord:
    """Publish a round of the participants that these pods have announced."""
    records = [leases.announced(pod) for pod in pods]
    record = RoundRecord(
        "uid", number, "Active", f"n{number}", tuple(r.id for r in records), records[0].endpoint, **fields
    )
    leases.publish(record)
    return record


def two(leases: Leases, start: Start) -> tuple[list[K8sRendezvousHandler], list[RendezvousInfo], RoundRecord]:
    handlers = [start("a"), start("b")]
    joining = [Joining(handler) for handler in handlers]
    record = form(leases, 1, "a", "b")
    return handlers, [one.result() for one in joining], record


def form_large(leases: Leases, number: int, *pods: str) -> RoundRecord:
    """Publish a round as if it were a large one: its members' list stands in a Lease of its own."""
    records = [leases.announced(pod) for pod in pods]
    members = MemberList("uid", number, f"n{number}", tuple(r.id for r in records))
    leases.put(names.members_lease("job"), {names.MEMBERS_ANNOTATION: members.dump()})
    record = RoundRecord(
        "uid",
        number,
        "Active",
        f"n{number}",
        leader_endpoint=records[0].endpoint,
        size=len(pods),
        leader_id=records[0].id,
    )
    leases.publish(record)
    return record
