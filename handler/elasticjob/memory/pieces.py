"""The names of pieces and of the saves that they belong to. Pure.

A piece never changes once it has its name: a rank saves a step once after it has opened its checkpoints, and
a round has one number of ranks. So pieces of the same name are equal, wherever they are held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Save(NamedTuple):
    """One save of all ranks. A greater one is newer: round and opening come before the step, so nothing that
    an earlier round has saved is newer than what a later one has."""

    generation: int
    """How many jobs have used the folder of checkpoints, as in ``elasticjob.checkpoint.records.Token``."""
    round: int
    opening: int
    """A script may open its checkpoints again in the same round, or resume in them again, and save the same
    step of another state: then this number is greater. In each round it begins at the time."""
    step: int
    world: int
    """The number of ranks, and of pieces."""

    def __str__(self) -> str:
        return f"step {self.step} of round {self.round}"


class PieceName(NamedTuple):
    """The piece of one rank."""

    job: str
    """The job's UID."""
    folder: str
    """Which folder of checkpoints it belongs to."""
    save: Save
    rank: int

    def __str__(self) -> str:
        return f"rank {self.rank}'s piece of {self.save} (world size {self.save.world})"

    def fields(self) -> list[str | int]:
        """It as JSON has it."""
        return [self.job, self.folder, *self.save, self.rank]


def parse(fields: Any) -> PieceName:
    """The name from its fields. Raises ValueError if they are something else."""
    if not isinstance(fields, Sequence) or len(fields) != 8:
        raise ValueError(f"{fields!r:.200} is no name of a piece: expected 8 fields")
    job, folder, *numbers = fields
    if not (isinstance(job, str) and isinstance(folder, str)):
        raise ValueError(f"{fields!r:.200} is no name of a piece: expected job and folder as text")
    if not all(type(number) is int and 0 <= number < 2**53 for number in numbers):
        raise ValueError(f"{fields!r:.200} is no name of a piece: expected whole numbers from 0 on")
    save, rank = Save(*numbers[:5]), numbers[5]
    if rank >= save.world:
        raise ValueError(f"{fields!r:.200} is no name of a piece: expected a rank below {save.world}")
    return PieceName(job, folder, save, rank)


@dataclass(frozen=True)
class Held:
    """A piece that an agent holds."""

    name: PieceName
    size: int
    """In bytes."""
    crc32: int
    own: bool
    """Whether a worker of this agent has saved it; otherwise it is a copy for another agent."""


@dataclass(frozen=True)
class Inventory:
    """What one agent holds, as it says to each of its workers."""

    agent: str
    """Different for each agent."""
    address: str
    """``host:port`` at which members of the round get pieces; "" if it gives none away."""
    held: tuple[Held, ...]
