"""How the members of a round learn where to send the copies of their memory checkpoints.

In the round's store each says where it takes pieces and on which node it is. The leader waits for all, for a
limited time: a silent member must not keep the others from copying among themselves. Then it says which
members take part, their token, and the shift by which copies go.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from elasticjob.contract.endpoint import format_endpoint, parse_endpoint
from elasticjob.core.participant import Membership
from elasticjob.memory.decide import Place, choose_shift, in_order
from elasticjob.memory.membership import Members
from elasticjob.store.connection import KeyValueStore, StoreConnection
from elasticjob.watch.heartbeats import ENDPOINT_KEY

logger = logging.getLogger(__name__)

MEMBER_KEY = "elasticjob/memory/"
"""With a group rank: where that member takes pieces, and where it runs."""
PLAN_KEY = "elasticjob/memory/plan"
"""The token, the ranks of the members that take part, in the order in which copies go, and the shift among
them."""
MEMBERS_SECONDS = 20.0
"""How long the leader waits for the others."""
PLAN_SECONDS = 28.0
"""How long the others wait for the leader. Their workers wait for 30 s when they resume."""


class Meeting:
    """The meeting of one member. ``port``: where it takes pieces; 0 if it takes none."""

    def __init__(self, store: KeyValueStore, connection: StoreConnection, m: Membership, port: int) -> None:
        self._store = store
        self._connection = connection
        self._m = m
        self._port = port

    def held(self, place: Place) -> Members:
        """Meet the others, in the connection's thread. Raises TimeoutError if the leader does not say where
        copies go, and what the store raises."""
        me = {"port": self._port, "node": place.node, "zone": place.zone}
        self._store.set(f"{MEMBER_KEY}{self._m.group_rank}", json.dumps(me))
        if self._m.group_rank == 0:
            self._store.set(PLAN_KEY, json.dumps(self._plan(self._said())))
        else:
            self._await_plan()
        plan = json.loads(self._store.get(PLAN_KEY))
        mine = self._address(self._m.group_rank) if self._port else ""
        rank, alone = partner(plan, self._m.group_rank, self._m.size)
        theirs = self._address(rank) if self._port and rank != self._m.group_rank else ""
        if self._port and rank != self._m.group_rank and not theirs:
            alone = f"the member of group rank {rank} takes no copies"
        return Members(str(plan["token"]), mine, theirs, alone if self._port else "")

    def _said(self) -> dict[int, dict[str, Any]]:
        """What the members have said, by rank: all of them, or those that have said it in time."""
        keys = {rank: f"{MEMBER_KEY}{rank}" for rank in range(self._m.size)}
        with suppress(TimeoutError):
            self._connection.wait_for(self._store, keys.values(), own=True, seconds=MEMBERS_SECONDS)
        there = [rank for rank, key in keys.items() if self._store.check([key])]
        said = self._store.multi_get([keys[rank] for rank in there])
        return {rank: json.loads(text) for rank, text in zip(there, said, strict=True)}

    def _plan(self, said: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        missing = sorted(set(range(self._m.size)) - set(said))
        if missing:
            logger.warning(
                "round %d: the memory checkpoints of %d of %d members have no copies, because these members "
                "have not said within %g s where they take them: group ranks %s",
                self._m.number,
                len(missing),
                self._m.size,
                MEMBERS_SECONDS,
                ", ".join(map(str, missing)),
            )
        places = {rank: Place(str(one["node"]), str(one["zone"])) for rank, one in said.items()}
        ranks = in_order(places)
        found = choose_shift([places[rank] for rank in ranks])
        if found.together and all(one["port"] for one in said.values()):
            logger.warning(
                "round %d: %d of %d members have the copies of their memory checkpoints on their own node",
                self._m.number,
                found.together,
                self._m.size,
            )
        return {"token": secrets.token_hex(16), "ranks": ranks, "shift": found.shift}

    def _await_plan(self) -> None:
        try:
            self._store.wait([PLAN_KEY], timedelta(seconds=PLAN_SECONDS))
        except RuntimeError as error:
            raise TimeoutError(f"the leader has not said where copies go: {error}") from error

    def _address(self, rank: int) -> str:
        """Where a member takes pieces; "" if it takes none."""
        here, said = self._store.multi_get([f"{ENDPOINT_KEY}{rank}", f"{MEMBER_KEY}{rank}"])
        port = int(json.loads(said)["port"])
        return format_endpoint(parse_endpoint(here.decode())[0], port) if port else ""


def partner(plan: Mapping[str, Any], rank: int, size: int) -> tuple[int, str]:
    """The group rank to which this one sends its copies; its own if it sends them to no other, and then why:
    "" if there is no other member."""
    ranks = [int(one) for one in plan["ranks"]]
    if rank not in ranks:
        return rank, "this member has said too late where it takes copies"
    if len(ranks) == 1:
        return rank, "no other member has said where it takes copies" if size > 1 else ""
    return ranks[(ranks.index(rank) + int(plan["shift"])) % len(ranks)], ""
