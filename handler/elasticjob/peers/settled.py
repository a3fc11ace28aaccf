"""What stands in the round Lease: the record for all, and the rest for the next coordinator. One object, so
that one write publishes both."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

from elasticjob.contract.fields import MAX_ROUND, RecordError
from elasticjob.contract.limits import Limits
from elasticjob.contract.round_record import Phase, RoundRecord
from elasticjob.peers.records import MOST_FORMER, KeptOut, RunState
from elasticjob.peers.run import Run
from elasticjob.rounds.state import RoundState

FORMING_RENEW, RUNNING_RENEW = 2, 5
"""Seconds between two renewals of the round Lease, and of the Leases of those that wait, while a participant
waits for the coordinator, or it for the report that its round is established. Otherwise it renews nothing."""

PHASES = {Phase.ACTIVE.value: 1, Phase.BROKEN.value: 2, Phase.CLOSED.value: 3}


@dataclass(frozen=True)
class Settled:
    """A run as its round Lease has it. It only goes forward: of one run ``order`` never decreases (P2)."""

    run: str
    minimum: int
    maximum: int
    limits: Limits = Limits()
    state: RoundState = field(default_factory=RoundState)
    endpoint: str = ""
    message: str = ""
    outcome: str = ""
    early_ends: int = 0
    best_step: int = 0
    unsure: bool = False
    former: tuple[tuple[str, str], ...] = ()
    unfinished: tuple[tuple[str, int], ...] = ()
    kept_out: tuple[KeptOut, ...] = ()
    left_out: bool = False

    @staticmethod
    def first(run: Run, limits: Limits) -> Settled:
        """Before the first round."""
        return Settled(run.id, run.minimum, run.maximum, limits)

    @property
    def order(self) -> tuple[int, int]:
        """(number, phase)."""
        return (self.state.number, PHASES[self.state.phase])

    @property
    def closed(self) -> bool:
        """Whether the run is over."""
        return self.state.phase == Phase.CLOSED.value

    def record(self, waiting: str = "") -> RoundRecord:
        """What all participants read."""
        r = self.state
        return RoundRecord(
            self.run,
            r.number,
            r.phase,
            r.nonce,
            tuple(m.id for m in r.members),
            self.endpoint,
            r.cause,
            self.message,
            waiting,
            outcome=self.outcome,
            wait_renew_period_seconds=RUNNING_RENEW if r.active else FORMING_RENEW,
            limits=self.limits,
        )

    def rest(self) -> RunState:
        """What the next coordinator reads."""
        r = self.state
        return RunState(
            number=r.number,
            nonce=r.nonce,
            members=r.members,
            minimum=self.minimum,
            maximum=self.maximum,
            start=r.start,
            established=r.established,
            establish_failures=r.establish_failures,
            unarrived=r.unarrived,
            ineligible_leaders=r.ineligible_leaders,
            unreachable_reports=r.unreachable_reports,
            early_ends=self.early_ends,
            best_step=self.best_step,
            unsure=self.unsure,
            former=self.former,
            unfinished=self.unfinished,
            kept_out=self.kept_out,
            left_out=self.left_out,
        )

    @staticmethod
    def parse(record_text: str, rest_text: str) -> Settled:
        """Read both annotations. Raises RecordError: they are untrusted, as all in a Lease is."""
        record, rest = RoundRecord.parse(record_text), RunState.parse(rest_text)
        if (record.number, record.nonce) != (rest.number, rest.nonce):
            raise RecordError("run state: it is of another round than the record beside it")
        if tuple(m.id for m in rest.members) != record.member_ids:
            raise RecordError("run state: its members are not those of the record beside it")
        if record.phase not in PHASES:
            raise RecordError(
                f"round record: phase {record.phase[:40]!r} is not one of a run without operator"
            )
        if rest.minimum > rest.maximum:
            raise RecordError("run state: minimum is greater than maximum")
        state = RoundState(
            number=record.number,
            phase=record.phase,
            nonce=record.nonce,
            members=rest.members,
            cause=record.cause,
            start=rest.start,
            established=rest.established,
            establish_failures=rest.establish_failures,
            unarrived=rest.unarrived,
            ineligible_leaders=rest.ineligible_leaders,
            unreachable_reports=rest.unreachable_reports,
        )
        return Settled(
            record.job_uid,
            rest.minimum,
            rest.maximum,
            record.limits,
            state,
            record.leader_endpoint,
            record.message,
            record.outcome,
            rest.early_ends,
            rest.best_step,
            rest.unsure,
            rest.former,
            rest.unfinished,
            rest.kept_out,
            rest.left_out,
        )


def following(run: Settled, before: Settled) -> Settled:
    """This run in the place of another one of its name. What that one was not sure of, this one is not: an
    even earlier one may train."""
    run = come_back(run, dict(before.unfinished).get(run.run, 0))
    ended = ((before.run, before.outcome),) if before.closed else ()
    former = dict((*run.former, *before.former, *ended))
    stopped = ((before.run, before.state.number),) if before.state.number else ()
    unfinished = dict((*run.unfinished, *before.unfinished, *stopped))
    for one in (run.run, *former):
        unfinished.pop(one, None)
    return replace(
        run,
        former=tuple(former.items())[-MOST_FORMER:],
        unfinished=tuple(unfinished.items())[-MOST_FORMER:],
        unsure=run.unsure or (before.unsure and not before.closed and not before.state.members),
    )


def come_back(run: Settled, last: int) -> Settled:
    """This run, which another one had followed after round ``last`` (0: none had): it may not know how far it
    had come (P2)."""
    if last <= run.state.number:
        return run
    return begun_after(replace(run, state=RoundState(), left_out=False), last)


def number_of(record_text: str, rest_text: str) -> int:
    """The round's number, as far as one of the annotations can be read where the two are not."""
    found = 0
    kinds: tuple[tuple[type[RoundRecord | RunState], str], ...]
    kinds = ((RoundRecord, record_text), (RunState, rest_text))
    for record, text in kinds:
        with contextlib.suppress(RecordError):
            found = max(found, record.parse(text).number)
    return found


def begun_after(first: Settled, number: int) -> Settled:
    """A run of which no more is known than that there was this round: a number that it can't have had comes
    next, and no round is formed before all that live have announced themselves again."""
    if not number:
        return first
    return replace(first, state=replace(first.state, number=_after(number)), unsure=True)


def made_again(last: Settled, sure: bool) -> Settled:
    """What to write where the round Lease was deleted or set back. A running round goes on (P4). If another
    may have published rounds that are not known here (not ``sure``), their numbers are left out once this one
    is over, and none is formed before their possible members have shown that they are in none."""
    return last if sure or last.closed else replace(last, unsure=True, left_out=False)


def leave_out(over: Settled, seen: int) -> Settled:
    """Leave out the numbers of rounds that there may have been. ``seen`` is the highest that a participant
    has seen: members of a round have announced themselves when they had seen the one before."""
    if not over.unsure or over.left_out:
        return over
    state = replace(over.state, number=_after(max(over.state.number, seen)), members=())
    return replace(over, state=state, left_out=True)


def _after(number: int) -> int:
    """The number that follows this one, as far as it can be read."""
    return min(number + 1, MAX_ROUND)
