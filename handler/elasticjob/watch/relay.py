"""A member that cannot write its Lease reports through the round's store, and its peers pass that on.

The API server may refuse its token, or be out of its reach, while its peers are well. So it stores why it
cannot write, and later that it has left the round, and with which failure. The leader passes that on in its
own Lease; for a leader that cannot write, the members after it do.

Messages are appended to a log: a counter, and a key for each message. No key has to exist before, so agents
of other versions are not disturbed. A message may be counted and never come: its writer's connection breaks
in between, for example because the agent closes the round that it has left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from torch.distributed import PrefixStore

from elasticjob.contract.fields import RecordError
from elasticjob.contract.relay import MAX_WORD_BYTES, RELAYING_RANKS, CutOff, RelayReport
from elasticjob.contract.reports import FailureReport
from elasticjob.core.participant import Membership
from elasticjob.store.connect import connect
from elasticjob.store.connection import KeyValueStore, StoreCall, StoreConnection
from elasticjob.store.errors import CannotConnect, StoreGone

logger = logging.getLogger(__name__)

MAX_MESSAGES = 256
"""How many messages are read at once."""
MAX_MISSING = 32
"""How many messages that are counted and have not come are looked for."""
COUNT_KEY = "elasticjob/cutoff/count"
MESSAGE_KEY = "elasticjob/cutoff/word/"


class Relay:
    """One agent's part in one round. ``publish`` writes a relay report into its Lease, None removes it."""

    def __init__(self, m: Membership, publish: Callable[[str | None], None]) -> None:
        self._membership = m
        self._publish = publish
        self._lock = threading.Lock()
        self._own = self._stored = CutOff(m.group_rank, "")
        self._storing = False
        self._cut_off: dict[int, CutOff] = {}
        self._published: RelayReport | None = None
        self._counted = 0
        self._missing: list[int] = []
        """Messages that are counted and have not come."""
        self._newest: dict[int, int] = {}
        """By rank: the number of its newest message."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="elasticjob-relay", daemon=True)

    def begin(self) -> None:
        """Start to listen, if this is one of the members that pass on."""
        if self._membership.size > 1 and self._membership.group_rank < RELAYING_RANKS:
            self._thread.start()

    def stop(self) -> bool:
        """Stop listening: the round is over. Returns whether a report is still published."""
        self._stop.set()
        return self._published is not None

    # -- for this agent ------------------------------------------------------------------------------------

    def trouble(self, why: str) -> None:
        """Writes of this agent's Lease fail for this reason; "" if they succeed again."""
        with self._lock:
            if bool(why) != bool(self._own.why):
                self._own = replace(self._own, why=why)
        self._store_news()

    def leave(self, failure: FailureReport | None) -> None:
        """This agent has left the round."""
        with self._lock:
            self._own = replace(self._own, left=True, failure=failure)
        self._store_news()

    def _store_news(self) -> None:
        """Store what the others do not know yet, from a thread of its own: a store may block for ever."""
        with self._lock:
            news = self._own != self._stored and bool(self._own.why or self._stored.why)
            if not news or self._storing or self._stop.is_set() or self._membership.size == 1:
                return
            self._storing = True
        threading.Thread(target=self._append, name="elasticjob-cutoff", daemon=True).start()

    def _append(self) -> None:
        own = self._own
        try:
            m = self._membership
            store = cast(KeyValueStore, PrefixStore(m.prefix, connect(m.leader_endpoint)))
            number = store.add(COUNT_KEY, 1)
            store.set(f"{MESSAGE_KEY}{number}", own.dump())
            # ``set`` waits for no answer: a connection that is closed at once may lose it.
            store.get(f"{MESSAGE_KEY}{number}")
        except Exception as error:  # noqa: BLE001 - the next write that fails is the next occasion
            logger.debug("cannot tell the others that this agent cannot write: %s", error)
            with self._lock:
                self._storing = False
            return
        if own.why:
            logger.warning(
                "this pod cannot write its Lease (%s); the other members have been told%s",
                own.why,
                ", and that it has left the round" if own.left else "",
            )
        with self._lock:
            self._stored, self._storing = own, False
        self._store_news()  # what has changed meanwhile

    # -- for the others ------------------------------------------------------------------------------------

    def _listen(self) -> None:
        period = self._membership.limits.heartbeat_period
        changed = threading.Condition()
        connection = self._open(changed)
        call: StoreCall[list[tuple[int, bytes]]] | None = None
        while not self._stop.wait(period):
            try:
                if call is None:
                    call = connection.submit(self._new_messages)
                with changed:
                    if not call.done:
                        changed.wait(period)
                if not call.done:
                    continue
                done, call = call, None
                self._take(done.result())
            except (StoreGone, CannotConnect) as error:
                logger.debug("relay: %s; reconnecting", error)
                connection.close()
                connection = self._open(changed)
            except Exception:
                logger.debug("relay failed; retrying", exc_info=True)
        connection.close()

    def _open(self, changed: threading.Condition) -> StoreConnection:
        m = self._membership
        return StoreConnection(lambda: connect(m.leader_endpoint), m.prefix, changed)

    def _new_messages(self, store: KeyValueStore) -> list[tuple[int, bytes]]:
        counted = min(store.add(COUNT_KEY, 0), self._counted + MAX_MESSAGES)
        messages: list[tuple[int, bytes]] = []
        missing: list[int] = []
        for number in (*self._missing, *range(self._counted + 1, counted + 1)):
            key = f"{MESSAGE_KEY}{number}"
            if store.check([key]):
                messages.append((number, store.get(key)))
            else:
                missing.append(number)
        # Only now: an error of the connection loses none of them.
        self._counted, self._missing = counted, missing[-MAX_MISSING:]
        return messages

    def _take(self, messages: list[tuple[int, bytes]]) -> None:
        for number, message in messages:
            try:
                one = CutOff.parse(message[: MAX_WORD_BYTES + 1].decode("utf-8", "replace"))
            except RecordError as error:
                logger.debug("relay: %s", error)
                continue
            if one.group_rank >= self._membership.size or number < self._newest.get(one.group_rank, 0):
                continue
            self._newest[one.group_rank] = number
            if one.why:
                # In an outage of the API server all members report this.
                logger.log(
                    logging.WARNING if one.left else logging.DEBUG,
                    "round %d: group rank %d cannot write its Lease (%s)%s",
                    self._membership.number,
                    one.group_rank,
                    one.why,
                    " and has left the round" if one.left else "",
                )
                self._cut_off[one.group_rank] = one
            else:
                self._cut_off.pop(one.group_rank, None)
        self._pass_on()

    def _pass_on(self) -> None:
        """Publish for the others: the leader for all, the other members only while the leader is cut off."""
        own = self._membership.group_rank
        others = [one for rank, one in self._cut_off.items() if rank != own]
        if own != 0 and 0 not in self._cut_off:
            others = []
        report = RelayReport.of(self._membership.nonce, others) if others else None
        if report != self._published and not self._stop.is_set():
            self._published = report
            self._publish(report.dump() if report is not None else None)
