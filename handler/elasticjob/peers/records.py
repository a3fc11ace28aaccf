"""What stands in the annotations of a run's Leases beside the records that an operator's job has, too."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from elasticjob.contract.fields import MAX_ID, MAX_INT32, MAX_ROUND, Fields, RecordError
from elasticjob.contract.participant_record import MAX_ANNOUNCED_ID
from elasticjob.contract.record import FLAG, Codec, Nonce, Record, number, omitted, optional_number, token
from elasticjob.contract.text import are_tokens
from elasticjob.peers.run import MAX_PEERS
from elasticjob.rounds.reports import MAX_REPORTS
from elasticjob.rounds.state import Member, UnreachableReport

MAX_STATE_BYTES = 150_000
"""All annotations of an object share 256 KiB."""
MAX_NAME = 253
"""Characters of an object's name."""
MAX_STATE = 32
"""Characters of a member's state."""
MOST_FORMER = 8
"""How many runs that are over a later one of their name remembers, so that their late pods do not train
again; and how many that are not, so that one whose pods come back uses no number twice."""
MAX_DIGITS = 16
"""Of a round's number."""


@dataclass(frozen=True)
class PeerRecord(Record, what="peer record"):
    """What does not change while a participant's process runs."""

    run: Annotated[str, token(MAX_ID)]
    slot: Annotated[int | None, optional_number(0, MAX_INT32)] = None
    """The index of its pod; None: it has none."""
    minimum: Annotated[int, number(1, MAX_PEERS)] = 1
    maximum: Annotated[int, number(1, MAX_PEERS)] = 1
    """Its ``--nnodes``. Those of the first coordinator count."""
    pod: Annotated[str, omitted(token(MAX_NAME))] = ""
    """The name of its pod, and of its Lease; empty: an earlier version wrote it."""

    def is_copied_to(self, lease: str) -> bool:
        """Whether a user has copied it to the Lease of this name: no pod is behind that."""
        return self.pod not in ("", lease)


@dataclass(frozen=True)
class KeptOut:
    """The pod with this UID could not reach its round, for the ``times``-th time in a row. ``due``: it may be
    in the next one. ``waited`` is how many seconds rounds without it have trained, those that are over."""

    key: str
    times: int = 1
    due: bool = False
    waited: int = 0


def _rows(found: Fields, key: str, longest: tuple[int, ...], most: int) -> list[tuple[str, ...]]:
    """A list of lists of printable words, of at most these lengths."""
    value: Any = found.fields.get(key, [])
    good = isinstance(value, list) and len(value) <= most
    good = good and all(isinstance(row, list) and len(row) == len(longest) for row in value)
    if not good or not all(map(are_tokens, zip(*value, strict=True), longest)):
        raise RecordError(f"{found.what}: {key} is not a list of at most {most} rows of {len(longest)} words")
    return [tuple(row) for row in value]


def read_time(found: Fields, key: str, text: str) -> datetime:
    """A time with its zone. Raises RecordError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = datetime.min
    if time.tzinfo is None:
        raise RecordError(f"{found.what}: {key} is {text[:80]!r}, expected a time with its zone")
    return time


def _read_members(found: Fields, key: str, _: object) -> tuple[Member, ...]:
    rows = _rows(found, key, (MAX_ANNOUNCED_ID, MAX_NAME, MAX_ID, MAX_STATE), MAX_PEERS)
    return tuple(Member(id, name, pod, rank, state) for rank, (id, name, pod, state) in enumerate(rows))


def _read_reports(found: Fields, key: str, _: object) -> tuple[UnreachableReport, ...]:
    rows = _rows(found, key, (MAX_NAME, 40), MAX_REPORTS)
    return tuple(UnreachableReport(name, read_time(found, key, time)) for name, time in rows)


def _read_names(found: Fields, key: str, _: object) -> tuple[str, ...]:
    return tuple(name for (name,) in _rows(found, key, (MAX_NAME,), MAX_PEERS))


def _read_former(found: Fields, key: str, _: object) -> tuple[tuple[str, str], ...]:
    return tuple((run, outcome) for run, outcome in _rows(found, key, (MAX_ID, MAX_STATE), MOST_FORMER))


def _read_unfinished(found: Fields, key: str, _: object) -> tuple[tuple[str, int], ...]:
    rows = _rows(found, key, (MAX_ID, MAX_DIGITS), MOST_FORMER)
    if not all(number.isdecimal() and int(number) <= MAX_ROUND for _, number in rows):
        raise RecordError(f"{found.what}: {key} is not a list of ids, each with the number of a round")
    return tuple((run, int(number)) for run, number in rows)


def _read_kept_out(found: Fields, key: str, _: object) -> tuple[KeptOut, ...]:
    rows = _rows(found, key, (MAX_ID, 4, 4, 4), MAX_PEERS)
    numbers = all(times.isdecimal() and waited.isdecimal() for _, times, _, waited in rows)
    if not numbers or any(due not in ("due", "out") for _, _, due, _ in rows):
        raise RecordError(
            f"{found.what}: {key} is not a list of UIDs, each with a number, due or out, and seconds"
        )
    return tuple(KeptOut(pod, int(times), due == "due", int(waited)) for pod, times, due, waited in rows)


def _read_optional_time(found: Fields, key: str, _: object) -> datetime | None:
    text = found.string(key, "")
    return read_time(found, key, text) if text else None


_MEMBERS = Codec(_read_members, lambda members: [[m.id, m.name, m.key, m.state] for m in members])
_REPORTS = Codec(_read_reports, lambda reports: [[r.name, r.time.isoformat()] for r in reports], omitted=True)
_NAMES = Codec(_read_names, lambda names: [[name] for name in names], omitted=True)
_FORMER = Codec(_read_former, lambda runs: [list(run) for run in runs], omitted=True)
_UNFINISHED = Codec(_read_unfinished, lambda runs: [[run, str(number)] for run, number in runs], omitted=True)
_KEPT_OUT = Codec(
    _read_kept_out,
    lambda kept: [
        [one.key, str(min(one.times, 9999)), "due" if one.due else "out", str(min(one.waited, 9999))]
        for one in kept
    ],
    omitted=True,
)
_TIME = Codec(_read_optional_time, lambda time: time.isoformat() if time else "", omitted=True)


@dataclass(frozen=True)
class RunState(Record, what="run state", most_bytes=MAX_STATE_BYTES):
    """What a coordinator needs beside the record of the round, in the same object: nothing can be half
    published."""

    number: Annotated[int, number(0, MAX_ROUND, key="round")]
    """That of the record, as is ``nonce``: both are written together."""
    nonce: Nonce = ""
    members: Annotated[tuple[Member, ...], _MEMBERS] = ()
    minimum: Annotated[int, number(1, MAX_PEERS)] = 1
    maximum: Annotated[int, number(1, MAX_PEERS)] = 1
    start: Annotated[datetime | None, _TIME] = None
    established: Annotated[datetime | None, _TIME] = None
    establish_failures: Annotated[int, number(0, MAX_INT32)] = 0
    unarrived: Annotated[tuple[str, ...], _NAMES] = ()
    ineligible_leaders: Annotated[tuple[str, ...], _NAMES] = ()
    unreachable_reports: Annotated[tuple[UnreachableReport, ...], _REPORTS] = ()
    early_ends: Annotated[int, number(0, MAX_INT32)] = 0
    """How many rounds in a row have ended early."""
    best_step: Annotated[int, number(0)] = 0
    """The highest step that a round has reported."""
    unsure: Annotated[bool, omitted(FLAG)] = False
    """The Lease was made again by a participant that may not have seen its last record."""
    left_out: Annotated[bool, omitted(FLAG)] = False
    """The numbers of rounds that may not be known are left out: ``round`` is higher than all of them."""
    kept_out: Annotated[tuple[KeptOut, ...], _KEPT_OUT] = ()
    """Pods that could not reach their round, while the others can do without them."""
    former: Annotated[tuple[tuple[str, str], ...], _FORMER] = ()
    """The last runs of this name that were closed, oldest first: id and outcome."""
    unfinished: Annotated[tuple[tuple[str, int], ...], _UNFINISHED] = ()
    """The last runs of this name that others have followed before they were closed, oldest first: id and the
    number of the last round."""
