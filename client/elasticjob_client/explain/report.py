"""What ``elasticjob report`` draws: bars over time, from the status and the pods that are there. Pure.

The status has the last twenty rounds, and not who was a member of the earlier ones; so pods are shown by
their own times, slot by slot, as long as they are there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from elasticjob.contract.text import counted, node_words
from elasticjob_client.explain.status import JobStatus, status
from elasticjob_client.explain.steps import state_words, with_steps
from elasticjob_client.explain.times import duration, milliseconds
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob, LostTime, Round

_LOST = "Lost"
"""The state of a member that was lost."""
_OF_PODS = ("infrastructure", "preemption")
"""Accounts of what befalls pods."""
_WAS_LOST = "pod that was lost"
_OF_A_SLOT = re.compile(r"(\d+)-\d+")
"""The end of the name of a pod that the operator made: slot and attempt."""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A bar from ``begin`` to ``end`` in the row ``label``; ``kind`` chooses the colour, ``text`` explains.

    ``waits_until``: when the first step of a round came; the round's end if none came.
    """

    row: str
    begin: datetime
    end: datetime
    kind: str
    label: str
    text: str
    waits_until: datetime | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """All that is drawn. ``progress``: times and steps."""

    status: JobStatus
    begin: datetime
    end: datetime
    bars: list[Bar]
    progress: list[tuple[datetime, int]]
    lost: list[LostTime]
    active_seconds: int
    nodes: list[tuple[str, int]]


def report(job: ElasticJob, pods: Sequence[Pod], now: datetime) -> Report:
    """Put it together. Raises ValueError if no round has begun."""
    rounds = with_steps(job.status.round_history) if job.status else []
    history = [r for r in reversed(rounds) if r.start_time]
    if not history:
        raise ValueError(f"{job.name} has had no round: there is nothing to draw yet")
    assert job.status
    last = job.status.completion_time or (_end(job, history[-1], now) if job.ended else now)
    ends = [None, *(one.end.time if one.end else None for one in history)]
    bars = [_round(job, one, before, now) for one, before in zip(history, ends, strict=False)]
    bars += _standstill(job, history[-1], last)
    lost = _lost_members(job)
    bars += [_pod(pod, last, lost.get(pod.name)) for pod in pods if pod.started]
    bars += _gone(job, history, {**_charged(job), **_last_lost(job), **lost}, {pod.name for pod in pods})
    summary = status(job, pods, now)
    lost_time = job.status.progress.lost_by_cause if job.status.progress else []
    return Report(
        status=summary,
        begin=min(bar.begin for bar in bars),
        end=max(bar.end for bar in bars),
        bars=bars,
        progress=_progress(job, history, now),
        lost=sorted(lost_time, key=lambda one: -one.milliseconds),
        active_seconds=summary.active_seconds or 0,
        nodes=_nodes(job),
    )


def _end(job: ElasticJob, one: Round, now: datetime) -> datetime:
    if one.end and one.end.time:
        return one.end.time
    return (job.status.completion_time if job.status else None) or now


def _standstill(job: ElasticJob, last: Round, end: datetime) -> list[Bar]:
    """The time since the last round of a job that has not ended."""
    if job.ended or not last.end or not last.end.time or last.end.time >= end:
        return []
    training = job.condition("Training")
    why = f": {training.reason}: {training.message}" if training else ""
    return [
        Bar(
            row="rounds",
            begin=last.end.time,
            end=end,
            kind="no round",
            label=job.state or "no round",
            text=f"no round for {duration((end - last.end.time).total_seconds())}{why}",
        )
    ]


class _Loss(NamedTuple):
    """When and how a pod was lost; ``round`` is the one that it was a member of."""

    time: datetime
    message: str
    round: int | None


def _charged(job: ElasticJob) -> dict[str, _Loss]:
    """Pods whose own loss was charged, and not that of their workers, by name."""
    assert job.status
    return {
        charge.pod_name: _Loss(charge.time, charge.message or charge.cause, charge.round)
        for account in job.status.accounts
        for charge in account.charges
        if charge.pod_name and charge.time and account.name in _OF_PODS
    }


def _lost_members(job: ElasticJob) -> dict[str, _Loss]:
    """Those that were lost with the last round, by the names of their pods."""
    assert job.status
    last = max(job.status.round_history, key=lambda one: one.number)
    if not last.end or not last.end.time:
        return {}
    lost = (one for one in job.status.participants if one.state == _LOST)
    return {one.pod_name: _Loss(last.end.time, one.message or last.end.message, last.number) for one in lost}


def _last_lost(job: ElasticJob) -> dict[str, _Loss]:
    """The pod of the last root failure, if that befell the pod: the charge for a round names no pod."""
    assert job.status
    failure = job.status.last_failure
    ends = {one.number: one.end for one in job.status.round_history}
    end = ends.get(failure.round) if failure and failure.round is not None else None
    if not (failure and failure.time and end and end.account in _OF_PODS):
        return {}
    return {failure.pod_name: _Loss(failure.time, failure.message, failure.round)}


def _gone(job: ElasticJob, history: Sequence[Round], lost: Mapping[str, _Loss], there: Set[str]) -> list[Bar]:
    """Pods that were lost and whose objects are gone: from the beginning of their round, since no more is
    known."""
    starts = {one.number: one.start_time for one in history}
    found = []
    for name, loss in lost.items():
        slot = _OF_A_SLOT.fullmatch(name.removeprefix(f"{job.name}-"))
        begin = starts.get(loss.round) if loss.round is not None else None
        if name in there or slot is None:
            continue
        begin = min(begin or loss.time, loss.time)
        text = f"{name}; was lost: {loss.message}"
        row = f"slot {slot[1]}"
        found.append(Bar(row=row, begin=begin, end=loss.time, kind=_WAS_LOST, label=name, text=text))
    return found


def _first_step(one: Round, before: datetime | None) -> datetime | None:
    """When it came; ``before`` is the end of the round before it."""
    since = before or one.start_time
    if since is None or one.first_step_milliseconds is None:
        return None
    return since + timedelta(milliseconds=one.first_step_milliseconds)


def _round(job: ElasticJob, one: Round, before: datetime | None, now: datetime) -> Bar:
    assert one.start_time
    end = max(_end(job, one, now), one.start_time)
    first = _first_step(one, before) or (end if one.first_step is None else one.start_time)
    facts = [
        f"round {one.number}: formed for {one.cause}, {counted(one.members, 'member')}",
        f"lasted {duration((end - one.start_time).total_seconds())}",
        f"rendezvous after {milliseconds(one.rendezvous_milliseconds)}",
        f"first step after {milliseconds(one.first_step_milliseconds)}",
    ]
    if one.first_step is not None:
        facts.append(f"steps {one.first_step} to {one.last_step}")
    if one.resumed is not None:
        facts.append(state_words(one.resumed))
    if one.end:
        facts.append(f"ended by {one.end.cause}: {one.end.message}")
    return Bar(
        row="rounds",
        begin=one.start_time,
        end=end,
        kind=one.cause,
        label=str(one.number),
        text="; ".join(facts),
        waits_until=min(max(first, one.start_time), end),
    )


def _pod(pod: Pod, last: datetime, loss: _Loss | None) -> Bar:
    assert pod.started
    end = max(pod.ended or last, pod.started)
    kind = "pod" if pod.exit_code in (None, 0) else "pod that failed"
    how = f"ended with exit code {pod.exit_code}" if pod.exit_code is not None else "runs"
    if loss and pod.exit_code is None:
        kind, how, end = _WAS_LOST, f"was lost: {loss.message}", max(loss.time, pod.started)
    return Bar(
        row="-" if pod.slot is None else f"slot {pod.slot}",
        begin=pod.started,
        end=end,
        kind=kind,
        label=pod.name,
        text=f"{pod.name} on {node_words(pod.node)}; {how}",
    )


def _progress(job: ElasticJob, history: Sequence[Round], now: datetime) -> list[tuple[datetime, int]]:
    """The first and last step of each round, as they were reported. A round that has not ended may be ahead
    of its last report, by which its line ends."""
    points = []
    before: datetime | None = None
    for one in history:
        if one.start_time and one.first_step is not None and one.last_step is not None:
            first = _first_step(one, before) or before or one.start_time
            last = _end(job, one, now)
            if not one.end and job.status and job.status.progress and job.status.progress.last_report_time:
                last = job.status.progress.last_report_time
            points += [(min(first, last), one.first_step), (last, one.last_step)]
        before = one.end.time if one.end else None
    return points


def _nodes(job: ElasticJob) -> list[tuple[str, int]]:
    """Charges by node, the most first, as far as the status lists them."""
    assert job.status
    charged = {
        (charge.node_name, account.name, charge.time, charge.round, charge.pod_name)
        for account in job.status.accounts
        for charge in account.charges
        if charge.node_name
    }
    return Counter(name for name, *_ in sorted(charged, key=str)).most_common()
