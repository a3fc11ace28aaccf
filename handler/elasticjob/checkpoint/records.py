"""What the names and files of a folder of checkpoints say. Pure.

A checkpoint is a folder, ``checkpoint-g0001-r000007-s00000120``: generation, round, step. Generation and
round are the fencing token of its writers. The round comes from ``ELASTICJOB_ROUND``, which only grows
while a job lives; the generation counts the jobs that have used the folder (``ownership``).

A checkpoint is complete when it has a *marker*, written last, with the size and checksum of its files.
A round begins by a *claim*, ``round-g0001-r000008-5f1c9a30.json``, with the checkpoints that were complete at
that moment (``selection``).
"""

from __future__ import annotations

import json
import re
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from elasticjob.checkpoint.errors import CheckpointError

MARKER = "complete.json"
"""The file that makes a checkpoint complete."""


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
_CLAIM = re.compile(r"round-g(\d{4,})-r(\d{6,})(?:-([0-9a-f]{8}))?\.json")
_UNFINISHED = re.compile(r"round-g(\d{4,})-r(\d{6,})(?:-([0-9a-f]{8}))?\.json\.[0-9a-f]+\.tmp")


def parse_name(text: str) -> Name | None:
    """The name of the checkpoint in a folder of this name; None if that is not a checkpoint."""
    if match := _NAME.fullmatch(text):
        generation, round_number, step = map(int, match.groups())
        return Name(Token(generation, round_number), step)
    return None


@dataclass(frozen=True)
class Holder:
    """The owner of a claim, and the process that writes it."""

    job: str
    """The id of an ElasticJob; "" without one: all starts under plain torchrun count as one job."""
    owner: str
    """8 hexadecimal digits, by which the claims of two that begin at the same moment differ. All rounds of an
    ElasticJob have the same; each start under plain torchrun has its own."""
    run: str = ""
    """torchrun's run id, "" if the user has not set it."""
    pod: str = ""
    """The pod of rank 0, in messages."""
    process: str = ""
    """The name by which ``liveness.lives`` finds the process."""

    def __str__(self) -> str:
        what = f"job {self.job}" if self.job else "a run without an ElasticJob"
        return what + (f" (rank 0 in {self.pod})" if self.pod else "")


def holder_of(job: str | None, run: str, pod: str, process: str) -> Holder:
    """The holder for this process. ``job``: None without an ElasticJob."""
    if job is None:
        return Holder("", uuid.uuid4().hex[:8], "" if run == "none" else run, pod, process)
    return Holder(job or "(no id)", f"{zlib.crc32(job.encode()):08x}", "", pod, process)


@dataclass(frozen=True)
class Claim:
    """The file that says that a round has begun."""

    token: Token
    holder: Holder
    complete: frozenset[Name] | None = None
    """The checkpoints that count for this round; None until it has listed them."""
    beat: int = 0
    """It grows while rank 0 lives."""
    ended: bool = False
    """The job has given the folder up, for now."""

    @property
    def file(self) -> str:
        owner = f"-{self.holder.owner}" if self.holder.owner else ""
        return f"round-g{self.token.generation:04d}-r{self.token.round:06d}{owner}.json"

    @property
    def round(self) -> str:
        """The round and its holder, in a message."""
        return f"round {self.token.round} of {self.holder}" if self.holder.job else str(self.holder)

    def to_json(self) -> bytes:
        seen = None if self.complete is None else sorted(map(str, self.complete))
        fields = {"job": self.holder.job, "run": self.holder.run, "pod": self.holder.pod}
        fields |= {"process": self.holder.process}
        return (
            json.dumps(
                {**fields, "beat": self.beat, "ended": self.ended, "complete": seen}, indent=2
            ).encode()
            + b"\n"
        )


def is_claim(file: str) -> bool:
    """Whether a file of this name is a claim."""
    return _CLAIM.fullmatch(file) is not None


def is_unfinished_claim(file: str, token: Token, owner: str) -> bool:
    """Whether a file of this name is a half-written claim of an earlier round than ``token``, or of another
    ``owner`` that has begun at the same moment. If that process lives, it writes the claim again."""
    match = _UNFINISHED.fullmatch(file)
    if match is None:
        return False
    found = Token(int(match[1]), int(match[2]))
    return found < token or (found == token and match[3] != owner)


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
        run, pod, process = (str(fields.get(key, "")) for key in ("run", "pod", "process"))
        return Claim(
            Token(int(match[1]), int(match[2])),
            Holder(str(fields["job"]), match[3] or "", run, pod, process),
            known,
            int(fields.get("beat", 0)),
            bool(fields.get("ended", False)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file} does not say which round has begun ({error!r}). Remove it if no job uses the folder. "
            "The next start then stands above all checkpoints that are there, and those that no other claim "
            "excludes count."
        ) from None


class File(NamedTuple):
    """The size of a file in bytes, and the CRC-32 of its content."""

    size: int
    crc32: int


@dataclass(frozen=True)
class Marker:
    """The files of a complete checkpoint, and how many ranks wrote it."""

    files: Mapping[str, File]
    world_size: int

    def to_json(self) -> bytes:
        fields = {
            "worldSize": self.world_size,
            "files": {name: list(self.files[name]) for name in self.files},
        }
        return json.dumps(fields, indent=1).encode() + b"\n"

    def damage(self, sizes: Mapping[str, int]) -> str:
        """What is wrong with the folder, given the ``sizes`` of its files; "" if nothing."""
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
