"""What is counted of a decision: from the status before a pass and the status that it has written. Pure.

Only the operator that has written a status counts it, and so each thing is counted once.
"""

from __future__ import annotations

from collections.abc import Iterator

from elasticjob.contract.state_source import Source
from elasticjob_operator.metrics import families as f
from elasticjob_operator.metrics.families import Metric, Sample
from elasticjob_operator.plan.state.evidence import ACCOUNTS, CAUSES, NEVER_CHARGED, SCALING
from elasticjob_operator.plan.state.restart_accounts import Charge
from elasticjob_operator.plan.state.status import JobStatus, Progress, RoundHistory

STARTED = "Started"
NONE = "none"
"""The account of what is charged to none."""
FAILURES = (
    *(f"{account.capitalize()}RestartsExhausted" for account in ACCOUNTS if account != SCALING),
    *("FailureRule", "NoProgress", "NeverJoined", "MembersDisagree"),
    *("MemberLostAfterSuccess", "DeadlineExceeded", "IdleDeadlineExceeded"),
)
ENDS = (("Complete", "Succeeded"), *(("Failed", reason) for reason in FAILURES))
"""How a job may end: outcome and reason."""
SOURCES = tuple(str(source) for source in Source)
OTHER = "other"
"""Takes the place of a word that this operator does not know: the status of a job may have been edited."""


def from_the_start() -> Iterator[Sample]:
    """Series that are there with 0 before anything happens: a rate sees only an increase."""
    yield Sample(f.ROUNDS, (STARTED, NONE), 0)
    yield Sample(f.LOST, (STARTED,), 0)
    yield Sample(f.TRAINING, (), 0)
    yield Sample(f.REPEATED, (), 0)
    yield Sample(f.REDONE, (), 0)
    for source in SOURCES:
        yield Sample(f.RESUMES, (source,), 0)
    for end in ENDS:
        yield Sample(f.FINISHED, end, 0)
    for cause, account in CAUSES.items():
        yield Sample(f.ROUNDS, (cause, account), 0)
        yield Sample(f.LOST, (cause,), 0)
        if cause not in NEVER_CHARGED and account != SCALING:
            yield Sample(f.CHARGES, (cause, account), 0)


def counted(before: JobStatus, after: JobStatus) -> Iterator[Sample]:
    """What has happened between two statuses of one job."""
    if after is before:
        return
    yield from _rounds(before, after)
    yield from _charges(before, after)
    yield from _progress(before.progress or Progress(), after.progress)
    if after.finished and not before.finished:
        for outcome in ("Complete", "Failed"):
            condition = after.condition(outcome)
            if condition is not None and condition.status == "True":
                yield Sample(f.FINISHED, (outcome, condition.reason), 1)


def _rounds(before: JobStatus, after: JobStatus) -> Iterator[Sample]:
    """Rounds that are new; and of those known, what was measured since."""
    known = {entry.number: entry for entry in before.round_history}
    for entry in after.round_history:
        yield from _resumed(known.get(entry.number), entry)
    first = before.current_round.number
    for entry in after.round_history:
        old = known.get(entry.number)
        following = next((e for e in after.round_history if e.number == entry.number - 1), None)
        why = following.end if following is not None else None
        account = _account(why.account if why is not None else "")
        if old is None and entry.number > first:
            yield Sample(f.ROUNDS, (_cause(entry.cause), account), 1)
            if why is not None and why.detect_milliseconds is not None:
                yield Sample(f.DETECTION, (account,), why.detect_milliseconds / 1000)
        for metric, then, now in (
            (f.RENDEZVOUS, old and old.rendezvous_milliseconds, entry.rendezvous_milliseconds),
            (f.FIRST_STEP, old and old.first_step_milliseconds, entry.first_step_milliseconds),
        ):
            if then is None and now is not None:
                yield Sample(metric, (account,), now / 1000)


def _resumed(old: RoundHistory | None, now: RoundHistory) -> Iterator[Sample]:
    """Where the state of a round came from, once it is known."""
    if now.resumed is None or (old is not None and old.resumed is not None):
        return
    source = now.resumed.source
    yield Sample(f.RESUMES, (source if source in SOURCES else OTHER,), 1)
    if now.resumed.redone_steps:
        yield Sample(f.REDONE, (), now.resumed.redone_steps)


def _charges(before: JobStatus, after: JobStatus) -> Iterator[Sample]:
    """Charges that are new. One that better evidence has moved, to another account or round, was counted
    already: ``restarts`` does not grow by it."""
    known = {_key(charge) for account in before.accounts for charge in account.charges}
    new = [
        (charge.time, _cause(charge.cause), _account(account.name))
        for account in after.accounts
        for charge in account.charges
        if charge.counts and _key(charge) not in known
    ]
    for _time, cause, account_name in sorted(new)[: max(0, after.restarts - before.restarts)]:
        yield Sample(f.CHARGES, (cause, account_name), 1)


def _key(charge: Charge) -> tuple[int | None, str]:
    return charge.round, charge.pod_name


def _cause(cause: str) -> str:
    return cause if cause in CAUSES or cause == STARTED else OTHER


def _account(name: str) -> str:
    return name if name in ACCOUNTS else NONE


def _progress(before: Progress, after: Progress | None) -> Iterator[Sample]:
    """Time in steps, how much of it had to be repeated, and what was lost."""
    if after is None:
        return
    trained = after.trained_milliseconds - before.trained_milliseconds
    if after.round == before.round:
        training, repeated = trained + after.training_milliseconds - before.training_milliseconds, 0
    else:  # a round's first report: what the rounds before it had gained is less by what is repeated
        training, repeated = after.training_milliseconds, -trained
    yield from _seconds(f.TRAINING, (), training)
    yield from _seconds(f.REPEATED, (), repeated)
    yield from _lost(before, after)


def _lost(before: Progress, after: Progress) -> Iterator[Sample]:
    """What was lost since. Time that a better explanation has moved to another cause was counted already: the
    sum does not grow by it."""
    lost = {entry.cause: entry.milliseconds for entry in before.lost_by_cause}
    left = sum(entry.milliseconds for entry in after.lost_by_cause) - sum(lost.values())
    for entry in after.lost_by_cause:
        more = min(left, entry.milliseconds - lost.get(entry.cause, 0))
        yield from _seconds(f.LOST, (_cause(entry.cause),), more)
        left -= max(0, more)


def _seconds(metric: Metric, labels: tuple[str, ...], milliseconds: int) -> Iterator[Sample]:
    if milliseconds > 0:
        yield Sample(metric, labels, milliseconds / 1000)
