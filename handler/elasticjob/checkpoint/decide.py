"""Which checkpoint counts, and which may go: pure decisions over what a folder holds.

A checkpoint is a folder, ``checkpoint-g0001-r000007-s00000120``: generation, round, step. Generation and
round are the fencing token of its writers. The round comes from ``ELASTICJOB_ROUND``, which only grows
while a job lives; the generation counts the jobs that have used the folder, so that a job that is deleted and
applied again, whose rounds start at 1, stands above its predecessor.

A checkpoint is complete when it has a *marker*, written last, with the size and checksum of its files.
A round begins by a *claim*, ``round-g0001-r000008.json``, with the checkpoints that were complete at that
moment. Of earlier rounds only those count from then on: what a member of an earlier round completes later is
void, whatever it believes. That needs no lock and no conditional write, only a store where a small file
appears in one piece and is seen by the next reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

MARKER = "complete.json"
"""The file that makes a checkpoint complete."""


class CheckpointError(RuntimeError):
    """What this package raises about checkpoints."""


class StaleRoundError(CheckpointError):
    """A later round, or a later job, uses the folder: this process is a leftover and must not write."""


class DamagedError(CheckpointError):
    """No checkpoint of the folder can be read."""


class NotSharedError(CheckpointError):
    """The ranks do not see the same files."""


class Token(NamedTuple):
    """A fencing token: later writers compare higher."""

    generation: int
    round: int


class Name(NamedTuple):
    """The name of a checkpoint; a greater one is newer."""

    token: Token
    step: int

    def __str__(self) -> str:
        return f"checkpoint-g{self.token.generation:04d}-r{self.token.round:06d}-s{self.step:08d}"


_NAME = re.compile(r"checkpoint-g(\d{4,})-r(\d{6,})-s(\d{8,})")
_CLAIM = re.compile(r"round-g(\d{4,})-r(\d{6,})\.json")


def parse_name(text: str) -> Name | None:
    """The checkpoint that a folder of this name holds, or None if it holds none."""
    if match := _NAME.fullmatch(text):
        generation, round_number, step = map(int, match.groups())
        return Name(Token(generation, round_number), step)
    return None


@dataclass(frozen=True)
class Claim:
    """That a round has begun. ``complete`` is None until it has looked which checkpoints are complete."""

    token: Token
    job: str
    complete: frozenset[Name] | None = None

    @property
    def file(self) -> str:
        return f"round-g{self.token.generation:04d}-r{self.token.round:06d}.json"

    def to_json(self) -> bytes:
        seen = None if self.complete is None else sorted(map(str, self.complete))
        return json.dumps({"job": self.job, "complete": seen}, indent=2).encode() + b"\n"


def is_claim(file: str) -> bool:
    """Whether a file of this name is a claim."""
    return _CLAIM.fullmatch(file) is not None


def parse_claim(file: str, content: bytes) -> Claim:
    """Raises CheckpointError if the content is not that of a claim."""
    match = _CLAIM.fullmatch(file)
    try:
        if match is None:
            raise ValueError("its name is not that of a claim")
        fields = json.loads(content)
        names = None if fields["complete"] is None else [parse_name(text) for text in fields["complete"]]
        if names is not None and None in names:
            raise ValueError("it lists a folder that is no checkpoint")
        known = None if names is None else frozenset(name for name in names if name)
        return Claim(Token(int(match[1]), int(match[2])), str(fields["job"]), known)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file} does not say which round has begun ({error!r}). Remove it if no job uses the folder; "
            "then every complete checkpoint counts."
        ) from None


class File(NamedTuple):
    """What a file must be: its size in bytes and the CRC-32 of its content."""

    size: int
    crc32: int


@dataclass(frozen=True)
class Marker:
    """What is in a complete checkpoint."""

    files: Mapping[str, File]
    world_size: int

    def to_json(self) -> bytes:
        fields = {
            "worldSize": self.world_size,
            "files": {name: list(self.files[name]) for name in self.files},
        }
        return json.dumps(fields, indent=1).encode() + b"\n"

    def damage(self, sizes: Mapping[str, int]) -> str:
        """What the folder's files, by size, show to be wrong; empty if nothing."""
        for file, expected in sorted(self.files.items()):
            if file not in sizes:
                return f"{file} is missing"
            if sizes[file] != expected.size:
                return f"{file} has {sizes[file]:,} bytes, expected {expected.size:,}"
        return ""


def parse_marker(content: bytes) -> Marker | str:
    """The marker, or what is wrong with it."""
    try:
        fields: dict[str, Any] = json.loads(content)
        files = {str(name): File(int(size), int(crc)) for name, (size, crc) in fields["files"].items()}
        return Marker(files, int(fields["worldSize"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MARKER} cannot be read: {error!r}"


def begin(claims: Iterable[Claim], found: Iterable[Name], job: str, round_number: int | None) -> Token:
    """The token of round ``round_number`` of ``job``, given the claims and checkpoints of the folder.

    Without a number, outside of an ElasticJob, each start stands above all before it.
    Raises StaleRoundError if a later round of the job has begun here, or a later job.
    """
    claims = list(claims)
    highest = max(
        (claim.token.generation for claim in claims),
        default=max((name.token.generation for name in found), default=0),
    )
    if round_number is None:
        return Token(highest + 1, 0)
    mine = [claim.token for claim in claims if claim.job == job]
    if not mine:
        return Token(highest + 1, round_number)
    newest = max(mine)
    if newest.generation < highest:
        raise StaleRoundError(
            f"this process belongs to round {round_number} of job {job or '(no id)'}, and another job has "
            "begun to use the folder since. Stop one of them, or give it a folder of its own."
        )
    if newest.round > round_number:
        raise StaleRoundError(
            f"round {newest.round} of job {job or '(no id)'} has begun here, and this process belongs to "
            f"round {round_number}, which is over. If that is another job with the same id, give this one a "
            "folder of its own."
        )
    return Token(newest.generation, round_number)


def superseded_by(claims: Iterable[Claim], token: Token) -> Claim | None:
    """The claim of a later round than ``token``, if there is one: its holder must not complete anything."""
    return max(
        (claim for claim in claims if claim.token > token), key=lambda claim: claim.token, default=None
    )


def counting(complete: Iterable[Name], claims: Iterable[Claim], token: Token) -> list[Name]:
    """The complete checkpoints that count for the round of ``token``, newest first."""
    known = [claim for claim in claims if claim.complete is not None and claim.token <= token]
    last = max(known, key=lambda claim: claim.token, default=None)
    return sorted(
        (
            name
            for name in complete
            if name.token <= token
            and (last is None or name.token >= last.token or name in (last.complete or ()))
        ),
        reverse=True,
    )


def surplus(found: Iterable[Name], counts: Collection[Name], written: Name, keep: int) -> list[Name]:
    """What may go once ``written`` is complete: all below it except the ``keep`` newest that count."""
    kept = set(sorted(counts, reverse=True)[:keep]) | {written}
    return sorted(name for name in found if name < written and name not in kept)


def surplus_claims(claims: Iterable[Claim], mine: Claim) -> list[Claim]:
    """Claims that nothing depends on any more; the last of each earlier job marks its leftovers."""
    claims = list(claims)
    last: dict[int, Token] = {}
    for claim in claims:
        last[claim.token.generation] = max(claim.token, last.get(claim.token.generation, claim.token))
    return [
        claim for claim in claims if claim.token < mine.token and claim.token != last[claim.token.generation]
    ]
