"""``Checkpoints``: the folder of a training run, as its ranks use it together."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from elasticjob import stopping
from elasticjob.checkpoint import decide
from elasticjob.checkpoint.decide import (
    MARKER,
    CheckpointError,
    Claim,
    DamagedError,
    File,
    Marker,
    Name,
    NotSharedError,
    StaleRoundError,
)
from elasticjob.checkpoint.shards import Reader, Writer, checksum
from elasticjob.checkpoint.state import check, copied
from elasticjob.checkpoint.storage import open_storage

log = logging.getLogger("elasticjob.checkpoint")

VISIBLE_SECONDS = 90
"""How long rank 0 waits until it sees the other ranks' files: NFS keeps listings for up to a minute."""

T = TypeVar("T")


class Checkpoints:
    """The checkpoints of a training run, in a folder that all ranks share or at an address that fsspec knows.

    Every rank makes one, after ``init_process_group``, and all ranks call its methods together, in the same
    order. Making it begins the round in this folder: from then on no earlier round can add a checkpoint that
    counts. ``keep`` is how many complete checkpoints remain (1 or more; with 2 there is one to fall back on).
    ``verify=False`` compares sizes and no checksums when it resumes, which saves reading the files once more.

    Raises StaleRoundError if a later round has begun in the folder, ValueError for ``keep`` below 1,
    ModuleNotFoundError if what opens the address is not installed, and what the storage raises.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep: int = 2, verify: bool = True) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, expected 1 or more: the number of checkpoints that remain")
        self._storage, self._path = open_storage(path)
        self._keep = keep
        self._verify = verify
        # Collectives of a save run in a thread, so they need a group of their own; gloo, as the state is on
        # the host then.
        self._group: dist.ProcessGroup | None = None
        if dist.is_initialized():
            self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
        self._rank = dist.get_rank() if self._group else 0
        self._world_size = dist.get_world_size() if self._group else 1
        self._pending: tuple[Name, Future[Any]] | None = None
        self._last_step = -1
        self._claim: Claim = self._agreed(self._begin)

    def resume(self, state: dict[str, Any]) -> int:
        """Load the newest complete checkpoint into ``state``; returns its step, or 0 if there is none.

        ``state`` is what ``save`` will get. Entries with ``state_dict`` and ``load_state_dict`` (TrainState,
        a scheduler) are loaded in place, other values are replaced in the dictionary. A damaged one is
        passed over, with a warning that names it, and does not count any more.

        Raises DamagedError if there are complete checkpoints and all are damaged, NotSharedError if a rank
        does not see the files that rank 0 sees, OSError if a file cannot be read, and what DCP raises if the
        checkpoint does not fit ``state``.
        """
        check(state)
        self.wait()
        candidates: list[tuple[Name, Marker | str]] = self._agreed(self._candidates)
        damaged: dict[Name, str] = {}
        for name, marker in candidates:
            problem = marker if isinstance(marker, str) else self._damage(name, marker)
            if problem or isinstance(marker, str):
                damaged[name] = problem
                self._say(logging.WARNING, f"passed over {self._folder(name)}: {problem}")
                continue
            self._agreed(partial(self._forget, frozenset(damaged)))
            dcp.load(
                state, storage_reader=Reader(self._storage, self._folder(name)), process_group=self._group
            )
            self._last_step = name.step
            self._say(
                logging.INFO,
                f"resumed from {self._folder(name)}: step {name.step}, saved by {marker.world_size} ranks, "
                f"loaded by {self._world_size}",
            )
            return name.step
        if damaged:
            listed = "; ".join(f"{name}: {problem}" for name, problem in damaged.items())
            raise DamagedError(
                f"every complete checkpoint in {self._path} is damaged ({listed}). Remove them to start from "
                "scratch, or use another folder."
            )
        return 0

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Begin to save ``state`` as of ``step``; returns when it is copied, and a thread does the rest.

        Waits for the save before, if that is still under way, and raises what ``wait`` would of it. A step
        that was saved or resumed last is not saved again. Raises ValueError for a lower one.
        """
        check(state)
        self.wait()
        if step == self._last_step:
            return
        if step < max(self._last_step, 0):
            raise ValueError(
                f"step is {step}, expected more than {self._last_step}, the step of the last checkpoint"
            )
        name = Name(self._claim.token, step)
        writer = Writer(self._storage, self._folder(name), partial(self._complete, name))
        future = dcp.async_save(copied(state), storage_writer=writer, process_group=self._group)
        self._pending = (name, cast("Future[Any]", future))
        stopping.finish_first(self.wait)
        self._last_step = step

    def wait(self) -> None:
        """Wait until the last save is complete.

        Raises StaleRoundError if a later round has begun in the folder: nothing was completed then. Raises
        NotSharedError if rank 0 does not see what the others wrote, and what the storage raised.
        """
        if self._pending is None:
            return
        (name, future), self._pending = self._pending, None
        stopping.finished(self.wait)
        try:
            future.result()
        except CheckpointException as error:
            self._last_step = name.step - 1  # so that it may be tried again
            for failure, _ in error.failures.values():
                if isinstance(failure, CheckpointError):
                    raise failure from None
            self._stop_if_superseded(self._claim)
            raise CheckpointError(f"{self._folder(name)} was not completed: {error}") from error

    def close(self) -> None:
        """Wait for the last save. Call it before ``destroy_process_group``."""
        self.wait()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def _folder(self, name: Name) -> str:
        return self._storage.join(self._path, str(name))

    def _say(self, level: int, message: str) -> None:
        if self._rank == 0:
            log.log(level, message)

    # Rank 0 looks and decides, and all follow: a listing may differ between nodes and moments.

    def _agreed(self, decide_on_rank_0: Callable[[], T]) -> T:
        """What rank 0 returns, or raises, on all ranks."""
        outcome: list[Any] = [None, None]
        if self._rank == 0:
            try:
                outcome[0] = decide_on_rank_0()
            except Exception as error:  # noqa: BLE001  # goes to all ranks
                outcome[1] = error
        if self._group:
            dist.broadcast_object_list(outcome, src=0, group=self._group)
        if outcome[1] is not None:
            raise outcome[1]
        result: T = outcome[0]
        return result

    def _begin(self) -> Claim:
        """Claim the folder for this round, then look what is complete, and put that into the claim.

        In this order: a stale member that saw no claim of ours when it last looked has completed, and kept,
        what we see now; so it can remove nothing that we would resume from.
        """
        self._storage.make_folder(self._path)
        job = os.environ.get("TORCHELASTIC_RUN_ID", "")
        number = os.environ.get("ELASTICJOB_ROUND")
        token = decide.begin(self._claims(), self._found(), job, int(number) if number else None)
        claim = Claim(token, job)
        if not any(other.token == token for other in self._claims()):
            self._put(claim)
        counts = decide.counting(self._completed(), self._claims(), token)
        claim = replace(claim, complete=frozenset(counts))
        self._stop_if_superseded(claim)
        self._put(claim)
        return claim

    def _candidates(self) -> list[tuple[Name, Marker | str]]:
        """The complete checkpoints that count, newest first, each with its marker or what is wrong."""
        found, complete = self._found(), self._completed()
        self._stop_if_superseded(self._claim)
        counts = decide.counting(complete, self._claims(), self._claim.token)
        for name in sorted(found, reverse=True):
            if name not in complete:
                log.warning(f"passed over {self._folder(name)}: half-written, it has no {MARKER}")
            elif name not in counts:
                log.warning(f"passed over {self._folder(name)}: completed after a later round had begun")
        candidates: list[tuple[Name, Marker | str]] = []
        for name in counts:
            folder = self._folder(name)
            marker = decide.parse_marker(self._storage.read(self._storage.join(folder, MARKER)))
            if isinstance(marker, Marker):
                marker = marker.damage(self._storage.sizes(folder)) or marker
            candidates.append((name, marker))
        return candidates

    def _forget(self, damaged: frozenset[Name]) -> None:
        if damaged:
            self._claim = replace(self._claim, complete=(self._claim.complete or frozenset()) - damaged)
            self._put(self._claim)

    def _damage(self, name: Name, marker: Marker) -> str:
        """What is wrong with the content of the files, of which each rank reads its share."""
        folder = self._folder(name)
        rank = f"rank {self._rank} on {os.uname().nodename}"
        share = sorted(marker.files)[self._rank :: self._world_size] if self._verify else []
        found: Exception | str = ""
        try:
            for file in share:
                read, expected = (
                    checksum(self._storage, self._storage.join(folder, file)),
                    marker.files[file].crc32,
                )
                if read != expected:
                    found = f"{file} has the checksum {read:08x}, expected {expected:08x}"
                    break
        except FileNotFoundError as error:
            found = NotSharedError(
                f"{rank} does not see what rank 0 sees: {error}. All ranks must share the folder."
            )
        except OSError as error:
            found = OSError(f"{rank} cannot read {folder}: {error}")
        everywhere: list[Any] = [found] * self._world_size
        if self._group:
            dist.all_gather_object(everywhere, found, group=self._group)
        for finding in everywhere:
            if isinstance(finding, Exception):
                raise finding
        return next((str(finding) for finding in everywhere if finding), "")

    def _complete(self, name: Name, files: Mapping[str, File]) -> None:
        """The end of a save, on rank 0, when all ranks have written."""
        folder = self._folder(name)
        marker = Marker(files, self._world_size)
        deadline = time.monotonic() + VISIBLE_SECONDS
        while damage := marker.damage(self._storage.sizes(folder)):
            self._stop_if_superseded(self._claim)  # a later round has removed what was half-written
            if time.monotonic() > deadline:
                raise NotSharedError(
                    f"{folder}: the other ranks have written, but rank 0 on {os.uname().nodename} finds that "
                    f"{damage}. All ranks must share {self._path}."
                )
            time.sleep(1)
        self._stop_if_superseded(self._claim)
        self._storage.put(self._storage.join(folder, MARKER), marker.to_json())
        log.info(f"saved {folder}")
        try:
            self._tidy(name)
        except Exception as error:  # noqa: BLE001  # the next save tries again
            log.warning(f"{self._path}: older checkpoints could not be removed: {error}")

    def _tidy(self, written: Name) -> None:
        """Remove what is not kept. The claims are read after the checkpoints: see ``_begin``."""
        found, complete = self._found(), self._completed()
        claims = self._claims()
        if decide.superseded_by(claims, written.token):
            return
        counts = decide.counting(complete, claims, written.token)
        for name in decide.surplus(found, counts, written, self._keep):
            # The marker first: what is half removed must not look complete.
            self._storage.remove(self._storage.join(self._folder(name), MARKER))
            self._storage.remove(self._folder(name))
        for claim in decide.surplus_claims(claims, self._claim):
            self._storage.remove(self._storage.join(self._path, claim.file))

    def _stop_if_superseded(self, claim: Claim) -> None:
        if later := decide.superseded_by(self._claims(), claim.token):
            raise StaleRoundError(
                f"round {later.token.round} of job {later.job or '(no id)'} has begun in {self._path}: this "
                f"process belongs to round {claim.token.round} of job {claim.job or '(no id)'}, and what it "
                "saves does not count"
            )

    def _found(self) -> list[Name]:
        return [name for text in self._storage.names(self._path) if (name := decide.parse_name(text))]

    def _completed(self) -> list[Name]:
        return [name for name in self._found() if MARKER in self._storage.names(self._folder(name))]

    def _claims(self) -> list[Claim]:
        claims = []
        for file in filter(decide.is_claim, self._storage.names(self._path)):
            try:
                claims.append(
                    decide.parse_claim(file, self._storage.read(self._storage.join(self._path, file)))
                )
            except FileNotFoundError:
                continue  # removed since
        return claims

    def _put(self, claim: Claim) -> None:
        self._storage.put(self._storage.join(self._path, claim.file), claim.to_json())
