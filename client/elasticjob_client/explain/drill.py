"""A failure made on purpose: which pods it takes, and what it cost. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from elasticjob.contract.text import counted
from elasticjob_client.digits import whole
from elasticjob_client.explain.steps import redone
from elasticjob_client.explain.times import milliseconds
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob, Round

_ACCOUNT = "preemption"
"""The account to which a deleted pod is charged."""


class Cost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What it cost. Times count from the end of the round that was hit."""

    name: str
    killed: list[str]
    ended: Round
    following: Round
    steps_redone: int | None = None
    sentences: list[str] = []


def target(kill: str) -> tuple[str, str]:
    """Kind and value: of ``rank:R``, ``node:NAME`` or ``operator``. Raises ValueError for anything else."""
    kind, _, value = kill.partition(":")
    if kill == "operator" or (kind == "node" and value) or (kind == "rank" and whole(value) is not None):
        return kind, value
    raise ValueError(f"{kill!r} cannot be killed: expected rank:R, node:NAME or operator")


def victims(job: ElasticJob, pods: Sequence[Pod], kill: str) -> list[Pod]:
    """The pods that ``rank:R`` or ``node:NAME`` takes.

    Raises ValueError if there is none, if no round runs, or if the loss would end the job.
    """
    kind, value = target(kill)
    must_train(job)
    if kind == "rank":
        names = {p.pod_name for p in job.members if p.group_rank == whole(value)}
        expected = f"a group rank from 0 to {len(job.members) - 1}"
    else:
        names = {p.pod_name for p in job.members if p.node_name == value}
        expected = f"one of {', '.join(sorted({p.node_name for p in job.members}))}"
    found = [pod for pod in pods if pod.name in names and not pod.deleting]
    if not found:
        raise ValueError(f"no member of {job.name} is {kind} {value}: expected {expected}")
    account = next((a for a in job.status.accounts if a.name == _ACCOUNT), None) if job.status else None
    if account and account.max_restarts is not None and account.used >= account.max_restarts:
        raise ValueError(
            f"a drill would end {job.name}: {account.used} of {account.max_restarts} restarts of the account "
            f"{_ACCOUNT} are used; raise spec.failurePolicy.{_ACCOUNT}.maxRestarts first"
        )
    return found


def must_train(job: ElasticJob) -> None:
    """Raises ValueError if no round runs."""
    training = job.condition("Training")
    if training is None or training.status != "True":
        raise ValueError(
            f"{job.name} does not train ({job.state or 'no status'}): a drill needs a round that runs"
        )


def _after(job: ElasticJob, number: int) -> list[Round]:
    """The rounds after this one, oldest first."""
    history = job.status.round_history if job.status else []
    return sorted((one for one in history if one.number > number), key=lambda one: one.number)


def hit(job: ElasticJob, number: int, killed: Sequence[Pod]) -> Round | None:
    """The round that the kill has ended, which is not this one if that ended a moment before; None as long as
    none has. ``number``: the round that ran before the kill."""
    ended = [one for one in _after(job, number - 1) if one.end]
    for one in ended:
        if one.end and any(_names(one.end.message, pod.name) for pod in killed):
            return one
    left = {pod.name for pod in killed} & {member.pod_name for member in job.members}
    return ended[0] if ended and not left else None


def _names(text: str, pod: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(pod)}(?![\w-])", text) is not None


def _met(job: ElasticJob, number: int) -> Round | None:
    """The first round after this one whose members have met: one may end before that."""
    return next((one for one in _after(job, number) if one.rendezvous_milliseconds is not None), None)


def _trained(job: ElasticJob, ended: Round) -> Round | None:
    """The first round after it that trained: that made a step, if the job reports steps."""
    if ended.last_step is None:
        return _met(job, ended.number)
    stepped = (one for one in _after(job, ended.number) if one.first_step_milliseconds is not None)
    return next(stepped, _met(job, ended.number) if job.ended else None)


def recovered(job: ElasticJob, number: int, killed: Sequence[Pod]) -> bool:
    """Whether the job trains again after the round that these pods' end has ended."""
    ended = hit(job, number, killed)
    return ended is not None and _trained(job, ended) is not None


def cost(job: ElasticJob, number: int, killed: Sequence[Pod]) -> Cost:
    """What the loss has cost a job that has recovered."""
    ended = hit(job, number, killed)
    assert ended
    assert ended.end
    met, trained = _met(job, ended.number), _trained(job, ended)
    assert met
    assert trained
    again = redone(ended, trained)
    noticed = ended.end.detect_milliseconds
    lines = [
        f"Round {ended.number} ended: {ended.end.message}",
        *([f"Noticed after {milliseconds(noticed)}."] if noticed is not None else []),
        f"Round {met.number}: {counted(met.members, 'member')} (before: {ended.members}) had met after "
        f"{milliseconds(met.rendezvous_milliseconds)}.",
        *_first_step(job, ended, met, trained),
    ]
    if again is not None:
        lines.append(f"{counted(again, 'step')} {'was' if again == 1 else 'were'} trained again.")
    elif ended.last_step is not None and trained.first_step is not None:
        lines.append(
            f"How many steps were trained again is not known: step {ended.last_step} was the last to be "
            f"reported, and training resumed from {trained.first_step}."
        )
    else:
        lines.append("Steps are not reported: elasticjob.report_progress(step) would tell what was redone.")
    lines.append(
        f"Counted under {ended.end.account} ({ended.end.cause})." if ended.end.account else "Not counted."
    )
    return Cost(
        name=job.name,
        killed=[pod.name for pod in killed],
        ended=ended,
        following=trained,
        steps_redone=again,
        sentences=lines,
    )


def _first_step(job: ElasticJob, ended: Round, met: Round, trained: Round) -> list[str]:
    """When it came, counted from the end of the round that was hit."""
    if trained.first_step_milliseconds is None:
        return []
    if trained.number == met.number:
        return [f"The first step came after {milliseconds(trained.first_step_milliseconds)}."]
    before = next((one for one in reversed(_after(job, ended.number)) if one.number < trained.number), ended)
    after = ""
    if before.end and before.end.time and ended.end and ended.end.time:
        between = (before.end.time - ended.end.time).total_seconds() * 1000
        after = f" after {milliseconds(int(between) + trained.first_step_milliseconds)}"
    return [f"Round {trained.number}, with {counted(trained.members, 'member')}, made the first step{after}."]


class Takeover(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What the loss of the leading operator cost a job: nothing, if ``round_went_on``. Seconds count from the
    kill; they are as exact as the looks at the cluster, one a second."""

    name: str
    killed: list[str]
    leader: str
    led_after_seconds: float
    round_went_on: bool
    sentences: list[str] = []


def pod_of(holder: str) -> str:
    """The pod of an operator that holds the Lease: its identity is the pod's name with a unique suffix."""
    return holder.rpartition("_")[0] or holder


def goes_on(before: ElasticJob, now: ElasticJob) -> bool:
    """Whether the job has shown since then that it trains: a step, if it reports steps, or another round."""
    if now.status is None or before.status is None:
        return False
    step, later = (one.progress.step if one.progress else None for one in (before.status, now.status))
    moved = step is None or (later is not None and later > step)
    return moved or now.status.current_round.number != before.status.current_round.number


def takeover(before: ElasticJob, after: ElasticJob, holder: str, successor: str, seconds: float) -> Takeover:
    """What is said when another operator leads."""
    assert before.status
    assert after.status
    number, then = before.status.current_round.number, after.status.current_round.number
    lines = [f"{pod_of(successor)} led after {seconds:.0f} s; {pod_of(holder)} was killed."]
    if number == then:
        lines.append(f"Round {number} went on: nothing was restarted, and nothing is charged.")
        steps = [one.progress.step if one.progress else None for one in (before.status, after.status)]
        if steps[0] is not None:
            lines.append(f"Steps went on from {steps[0]} to {steps[1]}.")
        else:
            lines.append(
                "Steps are not reported: elasticjob.report_progress(step) would tell how they went on."
            )
    else:
        lines.append(
            f"Meanwhile round {number} ended: `elasticjob why {after.name} --round {number}` tells why."
        )
    return Takeover(
        name=after.name,
        killed=[pod_of(holder)],
        leader=pod_of(successor),
        led_after_seconds=round(seconds, 1),
        round_went_on=number == then,
        sentences=lines,
    )
