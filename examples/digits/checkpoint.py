"""Checkpoints that a process of an earlier round can't spoil.

A process that lost touch may go on for a while after the others have formed a new round. So a
checkpoint's file name starts with a fencing token, and the file with the highest (token, step) counts:
a stale process writes only below that, and it never touches a file of a later token.

The token is (generation, round). The round comes from ``ELASTICJOB_ROUND``, which only grows while a
job lives. The generation counts the jobs that have used the directory: an ElasticJob that was deleted
and applied again starts at round 1, and its checkpoints must count above those of its predecessor.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

KEEP = 2
"""Files that remain: the newest, and one before it in case the newest can't be read."""

_NAME = re.compile(r"checkpoint-g(\d+)-r(\d+)-s(\d+)\.pt")


class Token(NamedTuple):
    """A fencing token: later writers compare higher."""

    generation: int
    round: int


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A checkpoint file; the greatest is the one to resume from."""

    token: Token
    step: int
    path: Path

    def load(self) -> dict[str, Any]:
        """The state that was saved, on the CPU."""
        state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        return state


class StaleRoundError(RuntimeError):
    """A later round of the same job has written checkpoints here: this process is a leftover."""


def checkpoints(directory: Path) -> list[Checkpoint]:
    """All checkpoints in ``directory``, oldest first. Half-written files are not among them."""
    found = []
    for path in directory.glob("checkpoint-*.pt"):
        if match := _NAME.fullmatch(path.name):
            generation, round_number, step = map(int, match.groups())
            found.append(Checkpoint(Token(generation, round_number), step, path))
    return sorted(found)


def claim(newest: Checkpoint | None, job: str, round_number: int) -> Token:
    """The token for round ``round_number`` of ``job``, given the newest checkpoint in the directory.

    Raises StaleRoundError if that checkpoint was written by a later round of the same job.
    """
    if newest is None:
        return Token(1, round_number)
    if newest.load()["job"] != job:
        return Token(newest.token.generation + 1, round_number)
    if newest.token.round > round_number:
        raise StaleRoundError(
            f"{newest.path} was written in round {newest.token.round} of job {job}, and this process "
            f"belongs to round {round_number}, which is over. If that is another job with the same id, "
            "give this one a checkpoint directory of its own."
        )
    return Token(newest.token.generation, round_number)


def save(directory: Path, token: Token, step: int, job: str, state: dict[str, Any]) -> Path:
    """Write ``state`` so that it is either there in full or not at all, then remove older files."""
    path = directory / f"checkpoint-g{token.generation:04d}-r{token.round:06d}-s{step:08d}.pt"
    unfinished = path.with_suffix(f".tmp-{os.getpid()}")
    with unfinished.open("wb") as file:
        torch.save({**state, "job": job, "round": token.round, "step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    written = Checkpoint(token, step, path)
    for older in [item for item in checkpoints(directory) if item <= written][:-KEEP]:
        older.path.unlink(missing_ok=True)
    return path
