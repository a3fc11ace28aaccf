"""The way that is left to a member that cannot write its Lease: the round's store.

The API server may refuse its token, or be out of its reach, while its peers are well. So it says there that
it cannot write, and why; later that it has left the round, and of which failure. The leader passes that on in
its own Lease; for a leader that cannot write, the members after it do.

Words are appended to a log: a counter, and a key for each word. Nobody has to be there before, so agents of
other versions need not know of it.
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

MAX_WORDS = 256
"""Words that are read at once."""
COUNT_KEY = "elasticjob/cutoff/count"
WORD_KEY = "elasticjob/cutoff/word/"


class Relay:
    """One agent's part in one round. ``publish`` writes a relay report into its Lease, None removes it."""

    def __init__(self, m: Membership, publish: Callable[[str | None], None]) -> None:
        self._membership = m
        self._publish = publish
        self._lock = threading.Lock()
        self._own = self._said = CutOff(m.group_rank, "")
        self._saying = False
        self._cut_off: dict[int, CutOff] = {}
        self._published: RelayReport | None = None
        self._read = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="elasticjob-relay", daemon=True)

    def begin(self) -> None:
        """Listen, if this is one of those that pass on."""
        if self._membership.size > 1 and self._membership.group_rank < RELAYING_RANKS:
            self._thread.start()

    def stop(self) -> bool:
        """Another round is there, or none will be. Returns whether something stands published."""
        self._stop.set()
        return self._published is not None

    # -- for this agent ------------------------------------------------------------------------------------

    def trouble(self, why: str) -> None:
        """Writes of this agent's Lease have failed for a while, for this reason; "": they succeed again."""
        with self._lock:
            if bool(why) != bool(self._own.why):
                self._own = replace(self._own, why=why)
        self._say()

    def leave(self, failure: FailureReport | None) -> None:
        """This agent has left the round."""
        with self._lock:
            self._own = replace(self._own, left=True, failure=failure)
        self._say()

    def _say(self) -> None:
        """Tell the others what they do not know, from a thread of its own: a store may block for ever."""
        with self._lock:
            news = self._own != self._said and bool(self._own.why or self._said.why)
            if not news or self._saying or self._stop.is_set() or self._membership.size == 1:
                return
            self._saying = True
        threading.Thread(target=self._append, name="elasticjob-cutoff", daemon=True).start()

    def _append(self) -> None:
        own = self._own
        try:
            m = self._membership
            store = cast(KeyValueStore, PrefixStore(m.prefix, connect(m.leader_endpoint)))
            number = store.add(COUNT_KEY, 1)
            store.set(f"{WORD_KEY}{number}", own.dump())
            # That waits for no answer: a connection that is closed at once may take it along.
            store.get(f"{WORD_KEY}{number}")
        except Exception as error:  # noqa: BLE001 - the next write that fails is the next occasion
            logger.debug("cannot tell the others that this agent cannot write: %s", error)
            with self._lock:
                self._saying = False
            return
        if own.why:
            logger.warning(
                "this pod cannot write its Lease (%s); the other members have been told%s",
                own.why,
                ", and that it has left the round" if own.left else "",
            )
        with self._lock:
            self._said, self._saying = own, False
        self._say()  # what has changed meanwhile

    # -- for the others ------------------------------------------------------------------------------------

    def _listen(self) -> None:
        period = self._membership.limits.heartbeat_period
        changed = threading.Condition()
        connection = self._open(changed)
        call: StoreCall[list[bytes]] | None = None
        while not self._stop.wait(period):
            try:
                if call is None:
                    call = connection.submit(self._new_words)
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

    def _new_words(self, store: KeyValueStore) -> list[bytes]:
        count = store.add(COUNT_KEY, 0)
        words: list[bytes] = []
        while self._read < count and len(words) < MAX_WORDS:
            key = f"{WORD_KEY}{self._read + 1}"
            if not store.check([key]):
                break  # it is being said
            words.append(store.get(key))
            self._read += 1
        return words

    def _take(self, words: list[bytes]) -> None:
        for word in words:
            try:
                one = CutOff.parse(word[: MAX_WORD_BYTES + 1].decode("utf-8", "replace"))
            except RecordError as error:
                logger.debug("relay: %s", error)
                continue
            if one.group_rank >= self._membership.size:
                continue
            if one.why:
                # In an outage of the API server all members say so.
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
        """The leader speaks for the others; they for it and each other, while it is cut off itself."""
        own = self._membership.group_rank
        others = [one for rank, one in self._cut_off.items() if rank != own]
        if own != 0 and 0 not in self._cut_off:
            others = []
        report = RelayReport.of(self._membership.nonce, others) if others else None
        if report != self._published and not self._stop.is_set():
            self._published = report
            self._publish(report.dump() if report is not None else None)
