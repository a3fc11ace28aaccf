"""Rank 0's work in the directory of a training run: begin a round, complete checkpoints, make room.

All I/O is that of a ``Storage``, so that tests can stop, fail and interleave it at each call. ``ownership``,
``selection`` and ``retention`` say why it is safe in this order.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager

from elasticjob.checkpoint import ownership, records, retention, selection
from elasticjob.checkpoint.claims import Claims
from elasticjob.checkpoint.errors import CheckpointError, NoSpaceError, NotSharedError
from elasticjob.checkpoint.records import MARKER, Claim, Holder, Marker, Name
from elasticjob.checkpoint.storage import Storage
from elasticjob.worker.script_log import ScriptLog

log = ScriptLog("elasticjob.checkpoint")

VISIBLE_SECONDS = 90
"""How long rank 0 waits until it sees the other ranks' files: NFS keeps listings for up to a minute."""
RESERVE = "reserve"
RESERVE_BYTES = 64 << 10
"""The size of a file that is removed to make room for a claim when the disk is full."""


def is_full(error: BaseException) -> bool:
    """Whether this is an error of a full disk or quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class Directory:
    """The directory, for one process of one round.

    ``keep`` complete checkpoints remain of this job, and all of other jobs, unless ``keep_other_jobs`` is
    False. ``pause`` and ``clock`` are in seconds; tests replace them, and ``lock``.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        me: Holder,
        *,
        keep: int,
        keep_other_jobs: bool = True,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._storage = storage
        self._path = path
        self._me = me
        self._keep = keep
        self._keep_other_jobs = keep_other_jobs
        self._pause = pause
        self._clock = clock
        self._claims = Claims(storage, path, me, pause=pause, clock=clock, lock=lock)
        self._doomed: set[Name] = set()
        """Saves that have failed, and checkpoints that are only half removed, as far as this process
        knows."""
        self._uncertain: Name | None = None
        """A checkpoint whose save has failed, although its marker may be there or may yet appear."""

    @property
    def claim(self) -> Claim:
        """The claim of this round, once it has begun."""
        return self._claims.mine

    def folder(self, name: Name) -> str:
        return self._storage.join(self._path, str(name))

    def begin(self, round_number: int | None) -> Claim:
        """Claim the directory for this round, then list the complete checkpoints in the claim.

        The order matters: a stale member that did not see this claim has completed and kept what is listed
        now, so it removes nothing that this round would resume from. After this, call ``beat`` every
        ``BEAT_SECONDS``, and ``tidy`` before anything is written.

        Raises StaleRoundError if a later round has begun or another job uses the directory, NoSpaceError if
        it is full, and what the storage raises.
        """
        self._storage.make_folder(self._path)
        self._claims.take(self._found, round_number, self._with_room)
        counts = selection.counting(self._completed(), self._claims.read(), self.claim.token)
        self._with_room(lambda: self._claims.list_complete(counts))
        return self.claim

    def tidy(self) -> None:
        """Remove what can never count, and set room aside for the next claim. This may take minutes, in which
        the claim must be renewed."""
        try:
            self._sweep()
            self._clear()
        except OSError as error:
            log.warning(f"{self._path}: what does not count could not be removed: {error}")
        self._keep_reserve()

    def candidates(self) -> list[tuple[Name, Marker | str]]:
        """The complete checkpoints that count, in the order in which to try them, each with its marker or
        what is wrong. Raises StaleRoundError if a later round has begun, which removes what it does not keep.
        """
        found, complete = self._found(), self._completed()
        claims = self._claims.read()
        counts = selection.counting(complete, claims, self.claim.token)
        for name in sorted(found, reverse=True):
            if name not in complete:
                log.warning(f"passed over {self.folder(name)}: half-written, it has no {MARKER}")
            elif name not in counts:
                log.warning(f"passed over {self.folder(name)}: completed after a later round had begun")
        candidates: list[tuple[Name, Marker | str]] = []
        for name in selection.own_first(counts, ownership.own(claims, self._me)):
            folder = self.folder(name)
            try:
                marker = records.parse_marker(self._storage.read(self._storage.join(folder, MARKER)))
            except FileNotFoundError:
                continue  # an earlier round removes what it does not keep
            if isinstance(marker, Marker):
                marker = marker.damage(self._storage.sizes(folder)) or marker
            candidates.append((name, marker))
        self.stop_if_superseded()  # when all is read: what was not there may have been removed meanwhile
        return candidates

    def forget(self, damaged: Collection[Name]) -> None:
        """Take damaged checkpoints out of the claim, so that they no longer count."""
        if damaged:
            counts = (self.claim.complete or frozenset()) - frozenset(damaged)
            self._with_room(lambda: self._claims.list_complete(counts))

    def make_room(self, name: Name, good: Name | None) -> None:
        """Make room for ``name``, before it is written: remove what does not count, and what is beyond
        ``keep``.

        ``good`` is the checkpoint that was last resumed from or saved. Without it no complete one is removed:
        the newer ones may be damaged. Raises StaleRoundError, and CheckpointError if ``name`` may be
        complete.
        """
        self.stop_if_superseded()
        if name == self._uncertain:
            raise CheckpointError(
                f"{self.folder(name)} may be complete, although its save has failed, so it is not written "
                "over: save a later step"
            )
        self._doomed.discard(name)
        with self._said_if_not_removed():
            self._clear()
            if good is not None:
                self._thin(good)

    def thin(self, good: Name) -> None:
        """Remove what is beyond ``keep``. ``good``: as of ``make_room``."""
        with self._said_if_not_removed():
            self._thin(good)

    def complete(self, name: Name, marker: Marker) -> None:
        """Complete a save, when all ranks have written. When this returns, the checkpoint counts.

        Raises StaleRoundError if a later round has begun, and does not count it; NotSharedError if the
        ranks' files are not seen here; what the storage raises.
        """
        folder = self.folder(name)
        deadline = self._clock() + VISIBLE_SECONDS
        while damage := marker.damage(self._storage.sizes(folder)):
            self.stop_if_superseded()  # a later round has removed what was half-written
            if self._clock() > deadline:
                raise NotSharedError(
                    f"{folder}: the other ranks have written, but rank 0 on {os.uname().nodename} finds that "
                    f"{damage}. All ranks must share {self._path}."
                )
            self._pause(1)
        self.stop_if_superseded()
        path = self._storage.join(folder, MARKER)
        self._settle(name)
        try:
            self._storage.put(path, marker.to_json())
        except OSError as error:
            # A store may have done it and lost its answer, or do it yet: a later round may count on it then.
            if not self._is_there(path, marker.to_json()):
                if is_full(error):
                    self._settle(None)
                raise
            log.warning(f"{path} was written, although {error}")
        later = ownership.superseded_by(self._claims.read(), self.claim)
        if later and name not in (later.complete or ()):
            raise self._claims.stale(later)  # it has not seen it, or cannot say yet
        log.info(f"saved {folder}")
        self._uncertain = None
        try:
            self._clear()
            self._thin(name)
            self._keep_reserve()
        except Exception as error:  # noqa: BLE001  # the next save tries again
            log.warning(f"{self._path}: older checkpoints could not be removed: {error}")

    def failed(self, name: Name) -> None:
        """A save has failed on all ranks: remove what they have written. It stays if it has a marker, or may
        yet get one: then a later round may count on it."""
        try:
            if name == self._uncertain or self._is_there(self._storage.join(self.folder(name), MARKER)):
                return
            self._doomed.add(name)
            self._remove(name)
            self._keep_reserve()
        except OSError as error:
            log.warning(f"{self.folder(name)} could not be removed: {error}")

    def beat(self) -> bool:
        """Renew the claim; False if it need not be renewed again."""
        return self._claims.beat()

    def end(self) -> None:
        """Let another job begin at once."""
        self._claims.end()

    def stop_if_superseded(self) -> None:
        """Raises StaleRoundError if a later round or another job has begun, or the claim has been removed."""
        self._claims.stop_if_superseded()

    def no_space(self, folder: str, error: BaseException) -> NoSpaceError:
        """The error for a full disk, with what the directory holds."""
        return NoSpaceError(f"{folder} was not written: {error}. {self._holdings()}")

    # Making room. Checkpoints are read before claims; see ``begin``.

    def _settle(self, name: Name | None) -> None:
        """From now on the marker of ``name`` may appear, and that of an earlier checkpoint no longer."""
        if self._uncertain and self._uncertain != name:
            self._doomed.add(self._uncertain)
        self._uncertain = name

    def _clear(self) -> None:
        """Remove what can never count: half-written checkpoints, late ones, claims that nothing depends on.

        Before this round has claimed the directory, that is what the last claim excludes.
        """
        found, complete = self._found(), self._completed()
        claims = self._claims.read()
        token = max((claim.token for claim in claims), default=records.Token(0, 0))
        if self._claims.taken:
            if ownership.superseded_by(claims, self.claim):
                return
            token = self.claim.token
            self._claims.remove_surplus(claims, found)
        self._doomed -= {*complete}
        never = retention.never_counts(found, complete, claims, token, self._removable(claims, found))
        for name in sorted({*never, *(self._doomed & {*found})}):
            why = "completed after a later round had begun, or damaged"
            if name not in complete:
                if self._is_there(self._storage.join(self.folder(name), MARKER)):
                    continue  # a listing that lags
                why = f"half-written, it has no {MARKER}"
            log.warning(f"removing {self.folder(name)}: {why}")
            self._remove(name)

    def _sweep(self) -> None:
        """Remove half-written files that killed processes have left of claims, and of the reserve."""
        self._claims.sweep()
        for file in self._storage.names(self._path):
            if file.startswith(f"{RESERVE}.") and file.endswith(".tmp"):
                self._storage.remove(self._storage.join(self._path, file))

    @contextlib.contextmanager
    def _said_if_not_removed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            log.warning(f"{self._path}: what is not kept could not be removed: {error}")

    def _thin(self, good: Name) -> None:
        """Remove what is beyond ``keep``."""
        found, complete = self._found(), self._completed()
        claims = self._claims.read()
        if ownership.superseded_by(claims, self.claim):
            return
        counts = selection.counting(complete, claims, self.claim.token)
        for name in retention.surplus(counts, self._removable(claims, found), good, self._keep):
            self._doomed.add(name)
            self._remove(name)

    def _removable(self, claims: Iterable[Claim], found: Iterable[Name]) -> frozenset[int]:
        if not self._keep_other_jobs:
            return frozenset(name.token.generation for name in found)
        return ownership.own(claims, self._me)

    def _remove(self, name: Name) -> None:
        # The marker first: what is half removed must not look complete.
        self._storage.remove(self._storage.join(self.folder(name), MARKER))
        self._storage.remove(self.folder(name))
        self._doomed.discard(name)

    def _keep_reserve(self) -> None:
        try:
            if self._storage.space(self._path) and RESERVE not in self._storage.names(self._path):
                self._storage.put(self._storage.join(self._path, RESERVE), os.urandom(RESERVE_BYTES))
        except OSError as error:
            log.warning(f"{self._path}: no room could be set aside for the next round's claim: {error}")

    def _with_room(self, write: Callable[[], None]) -> None:
        """Write a claim. On a full disk remove the reserve first, then what can never count."""
        ways: list[Callable[[], None]] = [
            lambda: self._storage.remove(self._storage.join(self._path, RESERVE)),
            self._sweep,
            self._clear,
        ]
        while True:
            try:
                return write()
            except OSError as error:
                if not is_full(error):
                    raise
                if not ways:
                    raise self.no_space(f"a claim in {self._path}", error) from error
                ways.pop(0)()

    def _holdings(self) -> str:
        """What the directory holds, in a sentence."""
        try:
            complete, claims = self._completed(), self._claims.read()
            mine = ownership.own(claims, self._me)
            kinds: dict[str, list[int]] = {}
            for name in self._found():
                kind = "complete, of this job" if name.token.generation in mine else "complete, of other jobs"
                if name not in complete:
                    kind = "half-written"
                size = sum(self._storage.sizes(self.folder(name)).values())
                kinds.setdefault(kind, []).append(size)
            held = "; ".join(
                f"{len(sizes)} {kind} ({megabytes(sum(sizes))})" for kind, sizes in sorted(kinds.items())
            )
            space = self._storage.space(self._path)
            free = f"{megabytes(space[0])} of {megabytes(space[1])} are free. " if space else ""
            advice = (
                f"This job needs room for {self._keep + 1} (keep={self._keep}, and one while it is saved)"
            )
            if any("other jobs" in kind for kind in kinds):
                advice += "; those of other jobs are yours to remove, or keep_other_jobs=False does it"
            return f"{free}Checkpoints in {self._path}: {held or 'none'}. {advice}."
        except Exception as error:  # noqa: BLE001  # the full disk is what has to be said
            return f"What {self._path} holds could not be read: {error}."

    # Reading.

    def _is_there(self, path: str, content: bytes | None = None) -> bool:
        try:
            found = self._storage.read(path)
        except FileNotFoundError:
            return False
        return content is None or found == content

    def _found(self) -> list[Name]:
        """The checkpoints, complete or not."""
        names = self._storage.names(self._path)
        return [name for text in names if (name := records.parse_name(text))]

    def _completed(self) -> list[Name]:
        return [name for name in self._found() if MARKER in self._storage.sizes(self.folder(name))]


def megabytes(size: int) -> str:
    """A size in a message."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
