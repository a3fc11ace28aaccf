"""Reads and writes the claims of a directory: which rounds have begun there. All I/O is that of a
``Storage``."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial

from elasticjob.checkpoint import liveness, ownership, records, retention
from elasticjob.checkpoint.errors import CheckpointError, StaleRoundError
from elasticjob.checkpoint.records import Claim, Holder, Name, Token
from elasticjob.checkpoint.storage import Storage
from elasticjob.worker.script_log import ScriptLog

log = ScriptLog("elasticjob.checkpoint")

BEAT_SECONDS = 5
"""How often rank 0 renews its claim."""
WATCH_SECONDS = 20
"""How long a newcomer watches whether another job's claim is renewed. It compares no two clocks."""
UNREADABLE_SECONDS = 1
"""How long a claim that can't be read may still be being written."""


class Claims:
    """The claims in the directory ``path``, for one process of one round.

    ``pause`` and ``clock`` are in seconds; tests replace them, and ``lock``.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        me: Holder,
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._storage = storage
        self._path = path
        self._me = me
        self._pause = pause
        self._clock = clock
        self._lock = lock or threading.Lock()  # around changes of the claim: one thread renews it
        self._token = Token(0, 0)
        """The token of the claim that this process writes, or is about to write."""
        self._mine: Claim | None = None

    @property
    def mine(self) -> Claim:
        """The claim of this round, once it has begun."""
        assert self._mine is not None
        return self._mine

    @property
    def taken(self) -> bool:
        """Whether this round has a claim."""
        return self._mine is not None

    def read(self) -> list[Claim]:
        """All claims. Raises CheckpointError if one can't be read."""
        claims: list[Claim] = []
        for file in filter(records.is_claim, self._storage.names(self._path)):
            if self._mine is not None and file == self._mine.file:
                claims.append(self._mine)  # another thread may be writing it
                continue
            with suppress(FileNotFoundError):  # removed since
                claims.append(self._read(file))
        return claims

    def _read(self, file: str) -> Claim:
        """Read a claim. Not every storage writes a file in one piece: one that can't be read may be
        half-written."""
        deadline = self._clock() + UNREADABLE_SECONDS
        while True:
            content = self._storage.read(self._storage.join(self._path, file))
            try:
                return records.parse_claim(file, content)
            except CheckpointError:
                if self._clock() >= deadline:
                    raise
            self._pause(0.1)

    def take(
        self,
        found: Callable[[], Iterable[Name]],
        round_number: int | None,
        with_room: Callable[[Callable[[], None]], None],
    ) -> None:
        """Write this round's claim, without a list. ``found`` returns the checkpoints that are there;
        ``with_room`` calls what writes the claim, and makes room for it.

        Raises StaleRoundError if a later round has begun or another job uses the directory.
        """
        while True:
            claims = self.read()
            token = ownership.begin(claims, found(), self._me, round_number)
            rival = ownership.rival(claims, token, self._me)
            self._wait_for_the_end_of(rival)
            now = self.read()
            last = ownership.rival(now, token, self._me)
            if _files(now) != _files(claims) or (last and rival and last.file != rival.file):
                continue  # another has begun meanwhile
            self._token, claim = token, Claim(token, self._me)
            if not any(other.file == claim.file for other in claims):
                with_room(partial(self._put, claim))
            now = self.read()
            if any(other.token.generation == token.generation for other in claims):
                break  # this job's generation: who begins here withdraws
            if not _files(now) - _files(claims) - {claim.file}:
                break  # otherwise one may not have seen this claim
            log.warning(f"another job begins in {self._path} at the same moment: trying again")
            self._storage.remove(self._storage.join(self._path, claim.file))
            self._pause(random.uniform(0.5, 3))
        self._mine = claim
        self.stop_if_superseded()

    def list_complete(self, complete: Collection[Name]) -> None:
        """Put into the claim the complete checkpoints that count."""
        with self._lock:
            claim = replace(self.mine, complete=frozenset(complete))
            self._put(claim)
            self._mine = claim

    def beat(self) -> bool:
        """Renew the claim; False if it need not be renewed again."""
        with self._lock:
            if self.mine.ended or not self._holds():
                return False
            self._mine = replace(self.mine, beat=self.mine.beat + 1)
            self._put(self._mine)
        return True

    def end(self) -> None:
        """Let another job begin at once."""
        with self._lock:
            if not self.mine.ended and self._holds():
                self._mine = replace(self.mine, ended=True)
                self._put(self._mine)

    def stop_if_superseded(self) -> None:
        """Raises StaleRoundError if a later round or another job has begun, or the claim has been removed."""
        claims = self.read()
        if later := ownership.superseded_by(claims, self.mine):
            raise self.stale(later)
        if self._is_gone(claims):
            raise StaleRoundError(
                f"{self.mine.file} has been removed from {self._path}, so {self.mine.round} does not hold "
                "the directory any more, and what it saves does not count"
            )

    def stale(self, later: Claim) -> StaleRoundError:
        """The error to raise because of a later claim."""
        advice = (
            ""
            if later.holder.owner == self._me.owner
            else (". Give each job a directory of its own; when that job has ended, this one may go on")
        )
        return StaleRoundError(
            f"{later.round} has begun in {self._path}: this process belongs to {self.mine.round}, and what "
            f"it saves does not count{advice}"
        )

    def sweep(self) -> None:
        """Remove half-written claims that killed processes have left, up to this round's."""
        for file in self._storage.names(self._path):
            if records.is_unfinished_claim(file, self._token, self._me.owner):
                self._storage.remove(self._storage.join(self._path, file))

    def remove_surplus(self, claims: Iterable[Claim], found: Iterable[Name]) -> None:
        """Remove the claims that nothing depends on, now that this round's has a list."""
        if self.mine.complete is not None:
            for claim in retention.surplus_claims(claims, self.mine, found):
                self._storage.remove(self._storage.join(self._path, claim.file))

    def _put(self, claim: Claim) -> None:
        path, content = self._storage.join(self._path, claim.file), claim.to_json()
        try:
            self._storage.put(path, content)
        except FileNotFoundError:  # a later round may have swept the unfinished file
            self._storage.put(path, content)

    def _wait_for_the_end_of(self, rival: Claim | None) -> None:
        """Raises StaleRoundError if another job renews its claim, or its process lives on this machine."""
        if rival is None:
            return
        alive = liveness.lives(rival.holder.process)
        if alive is None:
            log.warning(
                f"{self._path} was last used by {rival.round}, which has not said that it has ended: "
                f"watching its claim {rival.file} for {WATCH_SECONDS} s"
            )
            alive = self._is_renewed(rival)
        if alive:
            again = ", or before the next round of that job does" if rival.holder.job else ""
            raise StaleRoundError(
                f"{self._path} is in use by {rival.round}: it renews {rival.file}, or its process lives. "
                f"This process belongs to {self._me}. Give each job a directory of its own, or end that one "
                "first: its checkpoints remain. To take the directory from it by force, remove that file and "
                f"begin at once, before it is written again{again}: what that process saves does not count "
                "then."
            )

    def _is_renewed(self, rival: Claim) -> bool:
        deadline = self._clock() + WATCH_SECONDS
        while self._clock() < deadline:
            self._pause(1)
            now = next((claim for claim in self.read() if claim.file == rival.file), None)
            if now is None or now.ended:
                return False
            if now.beat != rival.beat or now.complete != rival.complete:
                return True
        return False

    def _holds(self) -> bool:
        claims = self.read()
        return not ownership.superseded_by(claims, self.mine) and not self._is_gone(claims)

    def _is_gone(self, claims: Iterable[Claim]) -> bool:
        """Whether the claim of this round was removed; a listing that lags does not prove it."""
        if any(claim.file == self.mine.file for claim in claims):
            return False
        try:
            self._storage.read(self._storage.join(self._path, self.mine.file))
        except FileNotFoundError:
            return True
        return False


def _files(claims: Iterable[Claim]) -> set[str]:
    return {claim.file for claim in claims}
