"""Which checkpoint counts, and which may be removed: pure decisions on what a folder holds.

A checkpoint is a folder, ``checkpoint-g0001-r000007-s00000120``: generation, round, step. Generation and
round are the fencing token of its writers. The round comes from ``ELASTICJOB_ROUND``, which only grows
while a job lives; the generation counts the jobs that have used the folder, so that a job that is deleted and
applied again, whose rounds start at 1, stands above its predecessor. It stands above every claim and every
checkpoint that is there, so that no checkpoint of another job has the token of a round that begins.

A checkpoint is complete when it has a *marker*, written last, with the size and checksum of its files.
A round begins by a *claim*, ``round-g0001-r000008-5f1c9a30.json``, with the checkpoints that were complete at
that moment. From then on only those count of earlier rounds: a checkpoint that a member of an earlier round
completes later does not. That needs no lock and no conditional write, only a store where a small file appears
in one piece and is seen by the next reader.

The claim of the highest token says which job *holds* the folder. Its rank 0 renews it. Another job may begin
when the claim says that it was given up (``ended``, which does not say that the job has ended), when its
process has ended and was on the newcomer's machine, in the same PID namespace, or when the newcomer has
watched it for a while and it was not renewed. Two jobs that begin at the same moment take the same
generation; at least one sees the other's claim, and withdraws.
"""

from __future__ import annotations

import json
import re
import uuid
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

MARKER = "complete.json"
"""The file that makes a checkpoint complete."""


class CheckpointError(RuntimeError):
    """The base of this package's errors about checkpoints."""


class StaleRoundError(CheckpointError):
    """A later round, or another job, holds the folder: this process must not write."""


class DamagedError(CheckpointError):
    """No checkpoint of the folder can be read."""


class NotSharedError(CheckpointError):
    """The ranks do not see the same files."""


class NoSpaceError(CheckpointError):
    """The disk, or the quota, is full."""


class LostRankError(CheckpointError):
    """A collective of all ranks has failed: a rank was lost, took too long, or cannot be reached."""


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


def begin(claims: Iterable[Claim], found: Iterable[Name], me: Holder, round_number: int | None) -> Token:
    """The token of round ``round_number`` of ``me``, given the claims and checkpoints of the folder.

    A job stays in its generation until another job has used the folder; then it takes a new one. Without a
    number, outside of an ElasticJob, each start stands above all before it.
    Raises StaleRoundError if a later round of the job has begun here.
    """
    claims = list(claims)
    highest = max(
        (*(claim.token.generation for claim in claims), *(name.token.generation for name in found)), default=0
    )
    if round_number is None:
        return Token(highest + 1, 0)
    mine = [claim for claim in claims if claim.holder.job == me.job]
    newest = max(mine, key=lambda claim: claim.token.round, default=None)
    if newest and newest.token.round > round_number:
        raise StaleRoundError(
            f"{newest.round} has begun here, and this process belongs to round {round_number}, which is over."
            " If that is another job with the same id, give this one a directory of its own."
        )
    owned = any(claim.token.generation == highest and claim.complete is not None for claim in mine)
    return Token(highest if owned else highest + 1, round_number)


def rival(claims: Iterable[Claim], token: Token, me: Holder) -> Claim | None:
    """The claim of the last user of the folder, if that is another job or run and has not ended."""
    claims = list(claims)
    if any(claim.token.generation >= token.generation for claim in claims):
        return None  # this job's own generation, or a contender's
    owner = max(
        claims,
        key=lambda claim: (claim.token.generation, claim.complete is not None, claim.token.round),
        default=None,
    )
    rounds = (
        claim
        for claim in claims
        if owner
        and claim.token.generation == owner.token.generation
        and claim.holder.owner == owner.holder.owner
    )
    last = max(rounds, key=lambda claim: claim.token, default=None)  # it may have no list yet
    if last is None or last.ended:
        return None
    if me.job or last.holder.job:
        return None if me.job == last.holder.job else last
    same = (me.run and me.run == last.holder.run) or (me.process and me.process == last.holder.process)
    return None if same else last


def contenders(claims: Iterable[Claim], mine: Claim) -> list[Claim]:
    """The claims of other owners that begin in the same generation."""
    return [
        claim
        for claim in claims
        if claim.token.generation == mine.token.generation and claim.holder.owner != mine.holder.owner
    ]


def superseded_by(claims: Iterable[Claim], mine: Claim) -> Claim | None:
    """The claim of a later round than ``mine``, if there is one: its holder must not complete anything.

    Another job's claim in the same generation is about to be withdrawn.
    """
    return max(
        (
            claim
            for claim in claims
            if claim.token > mine.token
            and (claim.token.generation > mine.token.generation or claim.holder.owner == mine.holder.owner)
        ),
        key=lambda claim: claim.token,
        default=None,
    )


def own(claims: Iterable[Claim], me: Holder) -> frozenset[int]:
    """The generations in which ``me`` has written."""
    return frozenset(
        claim.token.generation
        for claim in claims
        if claim.holder.job == me.job and claim.complete is not None
    )


def _last_list(claims: Iterable[Claim], token: Token) -> Claim | None:
    known = [claim for claim in claims if claim.complete is not None and claim.token <= token]
    return max(known, key=lambda claim: claim.token, default=None)


def counting(complete: Iterable[Name], claims: Iterable[Claim], token: Token) -> list[Name]:
    """The complete checkpoints that count for the round of ``token``, newest first."""
    last = _last_list(claims, token)
    return sorted(
        (
            name
            for name in complete
            if name.token <= token
            and (last is None or name.token >= last.token or name in (last.complete or ()))
        ),
        reverse=True,
    )


def own_first(names: Iterable[Name], mine: Collection[int]) -> list[Name]:
    """The checkpoints in the order in which to resume from them: those of other jobs come last."""
    return sorted(names, key=lambda name: (name.token.generation in mine, name), reverse=True)


def never_counts(
    found: Iterable[Name],
    complete: Collection[Name],
    claims: Iterable[Claim],
    token: Token,
    mine: Collection[int],
) -> list[Name]:
    """The checkpoints from which no round from ``token`` on can ever resume: those that were half-written
    when the last round began, and those that ``mine``, the job's own generations, have completed too late.

    Any process may remove them at any time: a later claim can only exclude more.
    """
    last = _last_list(claims, token)
    if last is None:
        return []
    return sorted(
        name
        for name in found
        if name.token < last.token
        and name not in (last.complete or ())
        and (name not in complete or name.token.generation in mine)
    )


def surplus(counts: Iterable[Name], mine: Collection[int], newest: Name, keep: int) -> list[Name]:
    """The checkpoints that count and may be removed, if ``newest`` is known to be good: all older ones of
    ``mine``, the job's own generations, except the ``keep`` newest."""
    counts = sorted((name for name in counts if name.token.generation in mine), reverse=True)
    kept = {*counts[:keep], newest}
    return sorted(name for name in counts if name < newest and name not in kept)


def surplus_claims(claims: Iterable[Claim], mine: Claim, found: Iterable[Name]) -> list[Claim]:
    """The claims that nothing depends on. As long as an earlier generation has checkpoints, its last claim
    says whose they are."""
    claims = list(claims)
    generations = {name.token.generation for name in found}
    last: dict[int, Claim] = {}
    for claim in sorted(claims, key=lambda claim: (claim.complete is not None, claim.token)):
        if claim.token.generation in generations and claim.token.generation < mine.token.generation:
            last[claim.token.generation] = claim
    withdrawn = contenders(claims, mine)
    return [
        claim
        for claim in claims
        if claim.file != mine.file
        and (claim.token < mine.token or claim in withdrawn)
        and claim != last.get(claim.token.generation)
    ]
