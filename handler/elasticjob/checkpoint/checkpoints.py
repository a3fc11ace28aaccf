"""``Checkpoints``, by which the ranks of a training run use its folder together."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from elasticjob.checkpoint import directory, liveness, records
from elasticjob.checkpoint.beats import Beats
from elasticjob.checkpoint.directory import Directory
from elasticjob.checkpoint.errors import (
    CheckpointError,
    DamagedError,
    LostRankError,
    NotSharedError,
    StaleRoundError,
)
from elasticjob.checkpoint.records import File, Marker, Name, Token
from elasticjob.checkpoint.shards import Reader, Writer, checksum
from elasticjob.checkpoint.share import SharePlanner
from elasticjob.checkpoint.state import check, entries
from elasticjob.checkpoint.storage import open_storage
from elasticjob.checkpoint.trust import Planner
from elasticjob.worker import fenced, stopping
from elasticjob.worker.script_log import ScriptLog

log = ScriptLog("elasticjob.checkpoint")

WAIT_SECONDS = 600
"""How long the ranks wait for each other by default."""

T = TypeVar("T")


class Checkpoints:
    """The checkpoints of a training run, in a folder that all ranks share or at an address that fsspec knows.

    Every rank makes one, after ``init_process_group``, and all ranks call its methods together, in the same
    order. Making it begins the round in this folder: from then on no checkpoint that an earlier round adds
    counts. ``keep`` is how many complete checkpoints remain (1 or more; with 2 there is one to fall back on).
    ``verify=False`` compares sizes and no checksums when it resumes, which saves reading the files once more.
    What other jobs have completed in the folder remains, unless ``keep_other_jobs`` is False. ``timeout``, in
    seconds, is how long ranks wait for one that is lost or slow. ``weights_only=True`` loads no entry of the
    state that could run code.

    Raises StaleRoundError if a later round has begun in the folder, or another job uses it (which takes 20
    seconds to find out if that job did not end properly), NoSpaceError if the disk is full, ValueError for
    ``keep`` below 1, ModuleNotFoundError if what opens the address is not installed, LostRankError as all
    methods do, and what the storage raises.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep: int = 2,
        verify: bool = True,
        keep_other_jobs: bool = True,
        timeout: float = WAIT_SECONDS,
        weights_only: bool = False,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, expected 1 or more: the number of checkpoints that remain")
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout}, expected more than 0: seconds to wait for other ranks")
        self._storage, self._path = open_storage(path)
        self._verify = verify
        self._timeout = timeout
        self._weights_only = weights_only
        # Collectives of a save run in a thread, so they need a group of their own; gloo, as the state is on
        # the host then.
        self._group: dist.ProcessGroup | None = None
        if dist.is_initialized():
            self._group = self._new_group()
        self._rank = dist.get_rank() if self._group else 0
        self._world_size = dist.get_world_size() if self._group else 1
        self._planner = SharePlanner()
        self._saving = ThreadPoolExecutor(1, thread_name_prefix="elasticjob-save")
        self._pending: tuple[Name, Future[Any]] | None = None
        self._good: Name | None = None
        self._last_step = -1
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
        try:
            self._token = self._agreed(partial(self._begin, int(number) if number else None))
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
        candidates: list[tuple[Name, Marker | str]] = self._agreed(self._directory.candidates)
        damaged: dict[Name, str] = {}
        for name, marker in candidates:
            problem = marker if isinstance(marker, str) else self._damage(name, marker)
            if problem or isinstance(marker, str):
                damaged[name] = problem
                self._say(logging.WARNING, f"passed over {self._folder(name)}: {problem}")
                continue
            self._agreed(partial(self._directory.forget, frozenset(damaged)))
            reader = Reader(self._storage, self._folder(name))
            self._load(state, reader)
            self._good, self._last_step = name, name.step
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
        """Begin to save ``state`` as of ``step``; returns when each rank has copied the share that it will
        write, and a thread does the rest.

        Waits first until the previous save is complete, and raises what ``wait`` raises. A step that was
        saved or resumed last is not saved again. Raises ValueError for a lower one.
        """
        check(state)
        self.wait()
        if step == self._last_step:
            return
        if step < max(self._last_step, 0):
            raise ValueError(
                f"step is {step}, expected more than {self._last_step}, the step of the last checkpoint"
            )
        name = Name(self._token, step)
        writer = Writer(
            self._storage,
            self._folder(name),
            partial(self._agreed, partial(self._directory.make_room, name, self._good)),
            partial(self._complete, name),
        )
        self._planner.begin()
        future = self._saving.submit(
            dcp.save,
            entries(state),
            storage_writer=writer,
            planner=self._planner,
            process_group=self._group,
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
            self._together(future.result)
        except BaseException as error:
            self._planner.forget()
            if isinstance(error, CheckpointException):
                raise self._failure(name, error) from error
            raise
        finally:
            self._planner.end()
        self._good, self._last_step = name, last_step

    def close(self) -> None:
        """Wait for the last save, and let another job use the folder at once, unless ``should_stop`` has
        returned True: then this job continues. Call it before ``destroy_process_group``. Raises what ``wait``
        raises."""
        gives_up = False
        try:
            self.wait()
            gives_up = not stopping.is_stopping()
        finally:
            self._end(gives_up=gives_up)

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
        if self._beats is not None:
            self._beats.stop(gives_up=gives_up)

    def _folder(self, name: Name) -> str:
        return self._directory.folder(name)

    def _say(self, level: int, message: str) -> None:
        if self._rank == 0:
            log.log(level, message)

    # Rank 0 decides for all ranks: a listing may differ between nodes and moments.

    def _agreed(self, decide_on_rank_0: Callable[[], T]) -> T:
        """Call this on rank 0, and return or raise the same on all ranks."""
        outcome: list[Any] = [None, None]
        if self._rank == 0:
            try:
                outcome[0] = decide_on_rank_0()
            except Exception as error:  # noqa: BLE001  # goes to all ranks
                outcome[1] = error
        if self._group:
            self._together(partial(dist.broadcast_object_list, outcome, src=0, group=self._group))
        if outcome[1] is not None:
            raise outcome[1]
        result: T = outcome[0]
        return result

    def _together(self, collective: Callable[[], T]) -> T:
        """Call ``collective``. Raises LostRankError if the process group raises."""
        try:
            return collective()
        except (CheckpointError, CheckpointException):
            raise
        except RuntimeError as error:
            if self._group is None:
                raise
            raise self._lost(error) from error

    def _new_group(self) -> dist.ProcessGroup:
        """Make a group in a thread: if a rank has gone, gloo tries five times to connect, for ``timeout``
        each.

        Raises LostRankError.
        """
        made: Future[dist.ProcessGroup] = Future()

        def make() -> None:
            try:
                group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout))
                made.set_result(cast(dist.ProcessGroup, group))
            except BaseException as error:  # noqa: BLE001  # goes to the caller
                made.set_exception(error)

        threading.Thread(target=make, name="elasticjob-group", daemon=True).start()
        try:
            return made.result(self._timeout)
        except FutureTimeoutError:
            raise self._lost("no connection to it can be made") from None
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError | str) -> LostRankError:
        return LostRankError(
            f"rank {dist.get_rank()} waits for the others up to {self._timeout:g} s: one of them was lost, "
            f"took longer, or cannot be reached; the process group says: {error}"
        )

    def _load(self, state: dict[str, Any], reader: Reader) -> None:
        planner = Planner(self._weights_only)
        try:
            self._together(
                partial(dcp.load, state, storage_reader=reader, planner=planner, process_group=self._group)
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
            found = self._agreed(clean_up)
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
            self._together(partial(dist.all_gather_object, everywhere, found, group=self._group))
        for finding in everywhere:
            if isinstance(finding, Exception):
                raise finding
        return next((str(finding) for finding in everywhere if finding), "")

    def _complete(self, name: Name, files: Mapping[str, File]) -> None:
        """Complete a save; called on rank 0 when all ranks have written."""
        self._directory.complete(name, Marker(files, self._world_size))
