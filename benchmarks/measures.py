"""The measurements with one process per participant.

Each starts a new session of a backend and takes fresh participants through it. Seconds are from the last
participant's call of `next_rendezvous` to the last participant's return; after a kill, from the kill.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from benchmarks.backends import Backend, Seat, Session
from benchmarks.crew import Answers, Crew, Participant, collect, in_time_for
from benchmarks.participant import Call, CallOnNotice
from benchmarks.processor_time import ProcessorTime
from benchmarks.results import HANDLER, JOB_DIED, OK, TIMEOUT, Outcome
from benchmarks.zygote import Zygote

JOIN_TIMEOUT_SECONDS = 120.0
REFORM_TIMEOUT_SECONDS = 150.0
_Session = TypeVar("_Session", bound=Session)


@contextlib.contextmanager
def first_round(
    zygote: Zygote, opened: AbstractContextManager[_Session], n: int
) -> Iterator[tuple[_Session, Crew, list[Participant], Outcome]]:
    """A session with its crew and N participants, and the outcome of their first call."""
    with tempfile.TemporaryDirectory() as logs, opened as session, Crew(zygote, Path(logs)) as crew:
        participants = start_crew(crew, [session.seat(index) for index in range(n)])
        yield session, crew, participants, call_together(participants, n)


def join_and_rejoin(
    zygote: Zygote, backend: Backend, n: int, *, rejoin: bool = True
) -> tuple[Outcome, Outcome | None]:
    """The first call of N fresh participants, and their second after a completed round.

    A re-join that could not be tried because the join failed counts as failed in the same way.
    """
    with first_round(zygote, backend.session(n, n), n) as (session, _, participants, first):
        if not rejoin:
            return first, None
        if first.outcome != OK:
            return first, first
        session.settled()
        shared = {name: [pid] for name, pid in session.processes().items()}
        used = ProcessorTime({HANDLER: [one.pid for one in participants], **shared})
        since = time.time()
        second = call_together(participants, n)
        if second.outcome != OK:
            return first, second
        count = session.requests(since)
        requests = None if count is None else count / n
        return first, dataclasses.replace(second, requests=requests, processor=used.milliseconds(n))


def replace(zygote: Zygote, backend: Backend, n: int, *, standby: bool = False) -> Outcome:
    """kill -9 of one of N where N are needed; a replacement is ready.

    It calls at the moment of the kill or, as a `standby`, has called before.
    """
    with first_round(zygote, backend.session(n, n, extra=1), n) as (session, crew, participants, first):
        if first.outcome != OK:
            return first
        (replacement,) = crew.start([session.seat(n)])
        if standby:
            replacement.tell(Call(time.monotonic()))
        session.settled()
        return _kill_last(session, participants, n, replacement, call=not standby)


def shrink(zygote: Zygote, backend: Backend, n: int) -> Outcome:
    """kill -9 of one of N where N - 1 suffice and no replacement is in sight."""
    with first_round(zygote, backend.session(n, n - 1), n) as (session, _, participants, first):
        if first.outcome != OK:
            return first
        session.settled()
        return _kill_last(session, participants, n - 1)


def start_crew(crew: Crew, seats: Sequence[Seat]) -> list[Participant]:
    """Participant 0 first: it may be the host of the others' store."""
    return crew.start(seats[:1]) + crew.start(seats[1:])


def call_together(participants: Sequence[Participant], world_size: int) -> Outcome:
    """All call at the same moment; until the last has returned."""
    at = in_time_for(participants)
    for participant in participants:
        participant.tell(Call(at))
    answers = collect(participants, JOIN_TIMEOUT_SECONDS)
    called = max((answer.called for answer in answers.returned), default=0.0)
    return judge(answers, called, world_size)


def _kill_last(
    session: Session,
    participants: Sequence[Participant],
    world_size: int,
    replacement: Participant | None = None,
    *,
    call: bool = False,
) -> Outcome:
    """Kill the last participant and wait for the survivors' next round, and the replacement's."""
    *survivors, victim = participants
    at = tell_survivors(session, participants, survivors)
    if replacement is not None and call:
        replacement.tell(Call(at))
    time.sleep(max(0.0, at - time.monotonic()))
    killed = time.monotonic()
    victim.kill()
    session.lost(len(survivors))
    everybody = survivors if replacement is None else [*survivors, replacement]
    return judge(collect(everybody, REFORM_TIMEOUT_SECONDS), killed, world_size)


def tell_survivors(
    session: Session, participants: Sequence[Participant], survivors: Sequence[Participant]
) -> float:
    """These call when they notice a loss, or at the moment of the kill, which is returned (monotonic)."""
    at = in_time_for(participants)
    for survivor in survivors:
        survivor.tell(CallOnNotice() if session.notices else Call(at))
    return at


def judge(answers: Answers, since: float, world_size: int) -> Outcome:
    """Seconds to the last return, if all are in one round of this size."""
    if answers.raised:
        return Outcome(None, JOB_DIED, answers.raised[0].error)
    if answers.missing:
        return Outcome(None, TIMEOUT, f"{answers.missing} of {world_size} did not return")
    ranks = sorted(answer.rank for answer in answers.returned)
    sizes = {answer.world_size for answer in answers.returned}
    if ranks != list(range(world_size)) or sizes != {world_size}:
        return Outcome(None, JOB_DIED, f"no common round: ranks {ranks}, world sizes {sorted(sizes)}")
    return Outcome(max(answer.returned for answer in answers.returned) - since)
