"""Rounds of ranks that train and save into one folder: each rank is a process, what it does is a ``Plan``."""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.e2e import checkpoint_ranks
from tests.e2e.checkpoint_ranks import Plan

DEADLINE_SECONDS = 600
WRAPPER = "fsdp" if checkpoint_ranks.HAS_FSDP2 else "ddp"

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.e2e.checkpoint_ranks", "s3fs"])


@dataclass
class Round:
    """The processes of one round."""

    processes: list[BaseProcess]
    results: Any

    def outcomes(self, killed: int | None = None) -> list[dict[str, Any]]:
        """What each rank says, in the end; a killed one nothing, and others need not end."""
        found: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(found) < len(self.processes) - (killed is not None):
            try:
                rank, outcome = self.results.get(timeout=0.2)
                found[rank] = outcome
            except queue.Empty:
                if killed is not None and not self.processes[killed].is_alive():
                    break
                assert time.monotonic() < deadline, f"only ranks {sorted(found)} have ended"
        return [found[rank] for rank in sorted(found)]

    def survivors(self, number: int, seconds: float = DEADLINE_SECONDS) -> list[dict[str, Any]]:
        """What as many ranks say."""
        return [self.results.get(timeout=seconds)[1] for _ in range(number)]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@dataclass(frozen=True)
class Run:
    """A folder, and the rounds that train in it."""

    directory: Path
    folder: str
    environment: dict[str, str]

    @contextmanager
    def round(self, ranks: int, number: int | None, until: int, **options: Any) -> Iterator[Round]:
        options.setdefault("wrapper", WRAPPER)
        plan = Plan(self.folder, number, until, environment=self.environment, **options)
        results = context.Queue()
        meeting = str(self.directory / f"meeting-{time.monotonic_ns()}")
        processes: list[BaseProcess] = [
            context.Process(
                target=checkpoint_ranks.run, args=(rank, ranks, meeting, plan, results), daemon=True
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        started = Round(processes, results)
        try:
            yield started
        finally:
            started.kill()

    def train(self, ranks: int, number: int | None, until: int, **options: Any) -> list[dict[str, Any]]:
        """A round in which all goes well."""
        with self.round(ranks, number, until, **options) as going:
            outcomes = going.outcomes()
        assert [outcome["error"] for outcome in outcomes] == [""] * ranks, outcomes
        assert len({outcome["resumed"] for outcome in outcomes}) == 1
        return outcomes

    def fail(self, ranks: int, number: int | None, until: int, **options: Any) -> str:
        """The error that every rank of a round ends with."""
        with self.round(ranks, number, until, **options) as going:
            (error,) = {outcome["error"] for outcome in going.outcomes()}
        return str(error)

    def names(self) -> list[str]:
        """The checkpoints, complete ones and others, without their generation."""
        found = sorted(Path(self.folder).glob("checkpoint-*"))
        return [path.name[17:] + ("" if (path / "complete.json").exists() else " half") for path in found]

    def shard(self, name: str) -> Path:
        (folder,) = Path(self.folder).glob(f"checkpoint-*-{name}")
        return max(folder.glob("*.distcp"), key=lambda path: path.stat().st_size)
