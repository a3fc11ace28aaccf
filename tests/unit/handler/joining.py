"""The words of these tests: a call of ``next_rendezvous``, and rounds that are published for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousInfo

from elasticjob.contract import names
from elasticjob.contract.records import MemberList, RoundRecord
from elasticjob.handler import K8sRendezvousHandler
from tests.unit.memory_api import Leases

Start = Callable[..., K8sRendezvousHandler]


class Joining:
    """A call of ``next_rendezvous`` in a thread of its own; ``result`` re-raises what it raised."""

    def __init__(self, handler: K8sRendezvousHandler) -> None:
        self._handler = handler
        self._info: RendezvousInfo | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._info = self._handler.next_rendezvous()
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
