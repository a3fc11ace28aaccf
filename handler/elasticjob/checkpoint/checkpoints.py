"""``Checkpoints``, by which the ranks of a training run use its folder together."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from elasticjob.checkpoint import directory, liveness, records
from elasticjob.checkpoint.beats import Beats
from elasticjob.checkpoint.directory import Directory
from elasticjob.checkpoint.errors import (
    CheckpointError,
    DamagedError,
    NotSharedError,
    StaleRoundError,
)
from elasticjob.checkpoint.memory import MemoryTier, name_of, open_memory
from elasticjob.checkpoint.ranks import Ranks
from elasticjob.checkpoint.records import File, Marker, Name, Token
from elasticjob.checkpoint.shards import Reader, Writer, checksum
from elasticjob.checkpoint.share import SharePlanner
from elasticjob.checkpoint.state import check, entries, load, trained
from elasticjob.checkpoint.storage import open_storage
from elasticjob.checkpoint.trust import Planner
from elasticjob.contract.text import counted
from elasticjob.memory.decide import Candidate
from elasticjob.memory.pieces import Save
from elasticjob.worker import fenced, progress, stopping
from elasticjob.worker.resumed import Resumed, Source, say_resumed
from elasticjob.worker.script_log import ScriptLog

log = ScriptLog("elasticjob.checkpoint")

WAIT_SECONDS = 600
"""How long the ranks wait for each other by default."""

COPIES_SECONDS = 10.0
"""How long a worker that stops for a planned change waits for the copies of what it has saved last."""


class _Loaded(NamedTuple):
    """What ``resume`` has loaded."""

    step: int
    source: Source
    pieces_from_peers: int = 0
    save: Save | None = None
    """The save in memory, if it was one."""


class Checkpoints:
    """The checkpoints of a training run, in a folder that all ranks share or at an address that fsspec knows.

    Every rank makes one, after ``init_process_group``, and all ranks call its methods together, in the same
    order. Making it begins the round in this folder: from then on no checkpoint that an earlier round adds
    counts. ``keep`` is how many complete checkpoints remain (1 or more; with 2 there is one to fall back on).
    ``verify=False`` compares sizes and no checksums when it resumes, which saves reading the files once more.
    What other jobs have completed in the folder remains, unless ``keep_other_jobs`` is False. ``timeout``, in
    seconds, is how long ranks wait for one that is lost or slow. ``weights_only=True`` loads no entry of the
    state that could run code.

    ``save`` saves to the folder each ``every`` steps, and each ``memory_every`` steps to the memory of the
    job's agents, if the job has memory for that (docs/use/memory-checkpoints.md).

    Raises StaleRoundError if a later round has begun in the folder, or another job uses it (which takes 20
    seconds to find out if that job did not end properly), NoSpaceError if the disk is full, ValueError for
    ``keep`` or ``every`` below 1, for an ``every`` that is no multiple of ``memory_every``, and without a
    ``path``, ModuleNotFoundError if what opens the address is not installed, LostRankError as all methods do,
    and what the storage raises.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every: int = 1,
        memory_every: int | None = None,
        keep: int = 2,
        verify: bool = True,
        keep_other_jobs: bool = True,
        timeout: float = WAIT_SECONDS,
        weights_only: bool = False,
    ) -> None:
        _check_settings(path, every, memory_every, keep, timeout)
        progress.be_ready()
        self._every, self._memory_every = every, memory_every
        self._storage, self._path = open_storage(path)
        self._verify = verify
        self._weights_only = weights_only
        self._ranks = Ranks(timeout)
        self._planner = SharePlanner()
        self._saving = ThreadPoolExecutor(1, thread_name_prefix="elasticjob-save")
        self._pending: tuple[Name, Future[Any]] | None = None
        self._good: Name | None = None
        self._last_step = self._given = -1
        """The last steps that went to the folder and to memory, or were resumed from there."""
        self._reached = self._newest = 0
        """The step that the state is known to have come to; the newest in the folder when it was resumed."""
        number = os.environ.get("ELASTICJOB_ROUND")
        run = os.environ.get("TORCHELASTIC_RUN_ID", "")
        me = records.holder_of(
            run if number else None,
            run,
            os.environ.get("ELASTICJOB_POD_NAME") or os.uname().nodename,
            liveness.this_process(),
        )
        self._directory = Directory(self._storage, self._path, me, keep=keep, keep_other_jobs=keep_other_jobs)
        self._beats: Beats | None = None
        self._memory: MemoryTier | None = None
        try:
            self._token = self._ranks.agreed(partial(self._begin, int(number) if number else None))
            if memory_every is not None:
                self._memory = open_memory(self._ranks, timeout, self._token, self._path)
        except BaseException:
            self._end(gives_up=False)
            raise
        fenced.say()

    def resume(self, state: dict[str, Any]) -> int:
        """Load the newest complete checkpoint into ``state``; returns its step, or 0 without a checkpoint.

        ``state`` is what ``save`` will get. Entries with ``state_dict`` and ``load_state_dict`` (TrainState,
        a scheduler) are loaded in place, other values are replaced in the dictionary. A damaged one is
        passed over, with a warning that names it, and no longer counts.

        Raises DamagedError if there are complete checkpoints and all are damaged, NotSharedError if a rank
        does not see the files that rank 0 sees, OSError if a file cannot be read, UntrustedError if a file
        would run code, and what DCP raises if the checkpoint does not fit ``state``.
        """
        check(state)
        self.wait()
        began = time.monotonic()
        loaded = self._load_newest(state)
        if self._memory is not None:
            self._memory.resumed(loaded.save)
        if self._ranks.rank == 0:
            milliseconds = round((time.monotonic() - began) * 1000)
            say_resumed(Resumed(loaded.step, loaded.source, milliseconds, loaded.pieces_from_peers))
        self._reached, self._given = loaded.step, -1 if loaded.save is None else loaded.step
        return loaded.step

    def _load_newest(self, state: dict[str, Any]) -> _Loaded:
        """Try what there is, the newest first; at the same step memory comes before the folder."""
        in_memory = self._memory.candidates() if self._memory is not None else []
        stored: list[tuple[Name, Marker | str]] = self._ranks.agreed(self._directory.candidates)
        self._newest = next((name.step for name, marker in stored if isinstance(marker, Marker)), 0)
        damaged: dict[Name, str] = {}
        for one in _newest_first(in_memory, stored):
            if isinstance(one, Candidate):
                loaded = self._load_from_memory(state, one, dict(stored), damaged)
            else:
                loaded = self._load_from_folder(state, *one, damaged)
            if loaded is not None:
                return loaded
        if damaged:
            listed = "; ".join(f"{name}: {problem}" for name, problem in damaged.items())
            raise DamagedError(
                f"every complete checkpoint in {self._path} is damaged ({listed}). Remove them to start from "
                "scratch, or use another folder."
            )
        return _Loaded(0, Source.NOTHING)

    def _load_from_memory(
        self,
        state: dict[str, Any],
        candidate: Candidate,
        stored: Mapping[Name, Marker | str],
        damaged: Mapping[Name, str],
    ) -> _Loaded | None:
        """None if a piece cannot be read: another checkpoint is tried, as if this one had never been.
        ``damaged``: newer ones of those ``stored`` in the folder, which no longer count."""
        assert self._memory is not None
        save = candidate.save
        found = self._memory.load(state, candidate, Planner(self._weights_only, trained(state)))
        if isinstance(found, str):
            self._say(logging.WARNING, f"passed over what is in memory of {save}: {found}")
            return None
        self._ranks.agreed(partial(self._directory.forget, frozenset(damaged)))
        name = Name(self._token, save.step)
        if isinstance(stored.get(name), Marker) and name not in damaged:
            self._good, self._last_step = name, save.step  # what is complete must not be written over
        else:
            self._last_step = save.step - 1  # it may be saved to the folder yet
        self._say(
            logging.INFO,
            f"resumed from memory: step {save.step}, saved by {counted(save.world, 'rank')}, "
            f"loaded by {self._ranks.size}",
        )
        return _Loaded(save.step, Source.PEER if found else Source.MEMORY, found, save)

    def _load_from_folder(
        self, state: dict[str, Any], name: Name, marker: Marker | str, damaged: dict[Name, str]
    ) -> _Loaded | None:
        """None if it is ``damaged``."""
        problem = marker if isinstance(marker, str) else self._damage(name, marker)
        if problem or isinstance(marker, str):
            damaged[name] = problem
            self._say(logging.WARNING, f"passed over {self._folder(name)}: {problem}")
            return None
        self._ranks.agreed(partial(self._directory.forget, frozenset(damaged)))
        self._load(state, Reader(self._storage, self._folder(name)))
        self._good, self._last_step = name, name.step
        self._say(
            logging.INFO,
            f"resumed from {self._folder(name)}: step {name.step}, "
            f"saved by {counted(marker.world_size, 'rank')}, loaded by {self._ranks.size}",
        )
        return _Loaded(name.step, Source.STORAGE)

    def save(self, step: int, state: Mapping[str, Any], *, now: bool = False) -> None:
        """Begin to save ``state`` as of ``step``; returns when each rank has copied the share that it will
        write, and a thread does the rest.

        A step that is a multiple of ``every`` is saved to the folder, and any step if it is to be saved
        ``now``. To memory goes each multiple of ``memory_every``. When ``should_stop`` has returned True the
        step goes to the folder and, if it need not wait for copies, to memory; to memory alone if all pods
        stay, because the job grows.

        A save to the folder waits first until the previous one is complete, and raises what ``wait`` raises.
        A step that was saved there or resumed from there last is not saved again. Raises ValueError for a
        lower one, and for one below the last that went to memory, TypeError for a step that is no whole
        number.
        """
        check(state)
        step = progress.whole(step, "Checkpoints.save")
        stops = stopping.is_stopping()
        to_folder = now or step % self._every == 0
        if to_folder or stops:
            self.wait()
        if step < max(self._last_step, 0):
            raise ValueError(
                f"step is {step}, expected more than {self._last_step}, the step of the last checkpoint"
            )
        if step < self._given:
            raise ValueError(
                f"step is {step}, expected {self._given} or more, the last step that went to memory: the "
                "greatest one is resumed, so a script that goes back to an earlier state has to count on"
            )
        self._reached = step
        if step == self._last_step:
            return  # also not to memory, where it could take the room of what another folder has there
        memory, memory_every = self._memory, self._memory_every or self._every
        if stops and not to_folder:
            to_folder = memory is None or not memory.all_stay()
        if to_folder:
            self._store(step, state)  # first: a drain does not wait for copies that do not help it
        if memory is None or memory.off or not (stops or step % memory_every == 0):
            return
        alone = stops and not to_folder
        if alone:
            memory.await_copies(COPIES_SECONDS)  # a step that training stops after must not be skipped
        self._given = step
        memory.save(step, entries(state))
        if alone and not memory.is_enough(step, COPIES_SECONDS):
            self._store(step, state)

    def _store(self, step: int, state: Mapping[str, Any]) -> None:
        """Begin to save to the folder."""
        name = Name(self._token, step)
        writer = Writer(
            self._storage,
            self._folder(name),
            partial(self._ranks.agreed, partial(self._directory.make_room, name, self._good)),
            partial(self._complete, name),
        )
        self._planner.begin()
        future = self._saving.submit(
            dcp.save,
            entries(state),
            storage_writer=writer,
            planner=self._planner,
            process_group=self._ranks.group,
        )
        self._pending = (name, future)
        self._planner.copy(future)
        stopping.finish_first(self.wait)
        self._last_step = step

    def wait(self) -> None:
        """Wait until the last save is complete.

        Raises StaleRoundError if a later round has begun in the folder: nothing was completed then. Raises
        NotSharedError if rank 0 does not see what the others wrote, NoSpaceError if the disk is full,
        LostRankError if a rank is lost, and what the storage raised. The previous checkpoint remains.
        """
        if self._pending is None:
            return
        (name, future), self._pending = self._pending, None
        last_step, self._last_step = self._last_step, name.step - 1  # so that it may be tried again
        stopping.finished(self.wait)
        try:
            self._ranks.together(future.result)
        except BaseException as error:
            self._planner.forget()
            if isinstance(error, CheckpointException):
                raise self._failure(name, error) from error
            raise
        finally:
            self._planner.end()
        self._good, self._last_step = name, last_step
        if self._memory is not None:
            self._memory.stored(name.step)

    def close(self) -> None:
        """Wait for the last save, and let another job use the folder at once, unless ``should_stop`` has
        returned True: then this job continues. Call it before ``destroy_process_group``. Raises what ``wait``
        raises. A warning says if the folder does not have the last step that ``save`` has got, or ``resume``
        has found."""
        gives_up = False
        try:
            self.wait()
            gives_up = not stopping.is_stopping()
            if gives_up:
                self._warn_if_behind()
        finally:
            self._end(gives_up=gives_up)

    def _warn_if_behind(self) -> None:
        """It is too late to save: what the state is now, after the script's last call, is not known."""
        newest = self._newest if self._good is None else self._good.step
        if newest < self._reached:
            there = f"whose newest checkpoint is of step {newest}" if newest else "which has no checkpoint"
            self._say(
                logging.WARNING,
                f"step {self._reached} is not in {self._path}, {there}: if the job ends now, it is lost. "
                "Save the last step after the loop, by save(step, state, now=True)",
            )

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._end(gives_up=False)  # a worker that fails ends the round, not the job

    def _begin(self, number: int | None) -> Token:
        """Begin the round; called on rank 0."""
        token = self._directory.begin(number).token
        self._beats = Beats(self._directory)
        self._beats.start()
        self._directory.tidy()
        return token

    def _end(self, *, gives_up: bool) -> None:
        self._saving.shutdown(wait=False)
        if self._memory is not None:
            self._memory.close()
        if self._beats is not None:
            self._beats.stop(gives_up=gives_up)

    def _folder(self, name: Name) -> str:
        return self._directory.folder(name)

    def _say(self, level: int, message: str) -> None:
        if self._ranks.rank == 0:
            log.log(level, message)

    def _load(self, state: dict[str, Any], reader: Reader) -> None:
        planner = Planner(self._weights_only, trained(state))
        try:
            self._ranks.together(
                partial(load, state, storage_reader=reader, planner=planner, process_group=self._ranks.group)
            )
        except CheckpointException as error:
            if reader.untrusted is not None:
                raise reader.untrusted from None
            for rank, (failure, _) in error.failures.items():
                if isinstance(failure, CheckpointError):
                    raise failure from error
                # Torch 2.15 replaces what is raised while it reads the index, and says this.
                if isinstance(failure, OSError) or "metadata read failed" in str(failure):
                    number = getattr(failure, "errno", errno.EIO)
                    raise OSError(number, f"rank {rank} cannot read {reader.path}: {failure}") from error
            raise

    def _failure(self, name: Name, error: CheckpointException) -> CheckpointError:
        """The error to raise when all ranks know that the save has failed."""
        failures = [failure for failure, _ in error.failures.values()]
        known = [failure for failure in failures if isinstance(failure, CheckpointError)]
        if stale := next((failure for failure in known if isinstance(failure, StaleRoundError)), None):
            return stale  # the later round judges what is there
        full = next((failure for failure in failures if directory.is_full(failure)), None)

        def clean_up() -> CheckpointError | None:
            self._directory.stop_if_superseded()
            found = self._directory.no_space(self._folder(name), full) if full else None
            self._directory.failed(name)
            return found

        try:
            found = self._ranks.agreed(clean_up)
        except (CheckpointError, OSError) as said:
            if isinstance(said, CheckpointError):
                return said
            return known[0] if known else CheckpointError(f"{error}; then {said}")
        if known:
            return known[0]
        return found or CheckpointError(f"{self._folder(name)} was not completed: {error}")

    def _damage(self, name: Name, marker: Marker) -> str:
        """What is wrong with the content of the files, "" if nothing; each rank reads its share."""
        folder = self._folder(name)
        rank = f"rank {self._ranks.rank} on {os.uname().nodename}"
        share = sorted(marker.files)[self._ranks.rank :: self._ranks.size] if self._verify else []
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
        everywhere = self._ranks.everywhere(found)
        for finding in everywhere:
            if isinstance(finding, Exception):
                raise finding
        return next((str(finding) for finding in everywhere if finding), "")

    def _complete(self, name: Name, files: Mapping[str, File]) -> None:
        """Complete a save; called on rank 0 when all ranks have written."""
        self._directory.complete(name, Marker(files, self._ranks.size))
        if self._memory is not None and self._good is None:
            self._directory.thin(name)  # this round has read none of the folder, and may save no other


def _check_settings(path: object, every: int, memory_every: int | None, keep: int, timeout: float) -> None:
    """Raises ValueError, which says what was expected."""
    if path is None:
        raise ValueError(
            "path is None, expected a folder that all pods share or an address such as s3://bucket/run: what "
            "is only in memory is lost when the job is suspended, or when two pods are lost at once"
        )
    if keep < 1:
        raise ValueError(f"keep is {keep}, expected 1 or more: the number of checkpoints that remain")
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout}, expected more than 0: seconds to wait for other ranks")
    if every < 1:
        raise ValueError(f"every is {every}, expected 1 or more: the steps from one save to the next")
    if memory_every is not None and (memory_every < 1 or every % memory_every):
        raise ValueError(
            f"memory_every is {memory_every} and every is {every}, expected 1 or more, and every to be a "
            "multiple of it: what is saved to the folder is saved to memory, too"
        )


def _newest_first(
    in_memory: Sequence[Candidate], stored: Sequence[tuple[Name, Marker | str]]
) -> list[Candidate | tuple[Name, Marker | str]]:
    """Both in one order. Each is in order already; what other jobs have stored stays last."""
    order: list[Candidate | tuple[Name, Marker | str]] = []
    rest = list(stored)
    for candidate in in_memory:
        while rest and rest[0][0] > name_of(candidate):
            order.append(rest.pop(0))
        order.append(candidate)
    return [*order, *rest]
