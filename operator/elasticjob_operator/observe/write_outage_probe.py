"""Tries whether Leases can be written after a request has failed, to distinguish one tenant's trouble from an
outage.

A probe is a dry-run patch of a round Lease that changes nothing. It takes the same way through the API
server, its admission and etcd as a participant's renewal, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from elasticjob.contract.names import round_lease
from elasticjob_operator.observe.client import DRY_RUN, MERGE_PATCH, Api
from elasticjob_operator.observe.errors import ApiError, NotLeading, Unavailable
from elasticjob_operator.observe.seen_lease import SeenLease
from elasticjob_operator.observe.store import Store

_AT_ONCE = 8
"""Dry runs under way; some may hang, each in another namespace."""
_EACH_TIME = 2
_ROUND_ENDING = round_lease("")


class WriteOutageProbe:
    """Begins a few dry runs whenever it is asked to and it is uncertain whether writes succeed."""

    def __init__(self, api: Api, leases: Store[SeenLease], clock: Callable[[], float]) -> None:
        self._api = api
        self._leases = leases
        self._clock = clock
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._probed: dict[str, None] = {}
        """Namespaces, the last one last: each has its turn."""

    def begin(self) -> None:
        """Try Leases of the namespaces where it is uncertain; if it is for the API server, of any."""
        server, uncertain = self._api.write_outages.to_be_probed()
        if not server and not uncertain:
            self._probed.clear()
            return
        some: dict[str, SeenLease] = {}
        for lease in self._leases.all():
            if lease.name.endswith(_ROUND_ENDING) and (server or lease.namespace in uncertain):
                some.setdefault(lease.namespace, lease)
        turn = {name: place for place, name in enumerate(self._probed)}
        free = sorted((n for n in some if n not in self._under_way), key=lambda name: turn.get(name, -1))
        for namespace in free[: min(_EACH_TIME, _AT_ONCE - len(self._under_way))]:
            self._probed.pop(namespace, None)
            self._probed[namespace] = None
            task = asyncio.get_running_loop().create_task(self._probe(some[namespace]))
            self._under_way[namespace] = task
            task.add_done_callback(lambda _, name=namespace: self._under_way.pop(name, None))  # type: ignore[misc]

    async def aclose(self) -> None:
        """End those under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe(self, lease: SeenLease) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{lease.namespace}/leases/{lease.name}"
        try:
            await self._api.patch(path, {"metadata": {"uid": lease.uid}}, MERGE_PATCH, DRY_RUN)
        except (Unavailable, NotLeading):
            return  # the client has taken note of the former
        except ApiError:
            pass  # refused, and so judged
        self._api.write_outages.got_through(path, self._clock(), stored=False)
