"""Back-off: rounds and pods that make no progress are retried with growing pauses (I14).

Rounds: one ends early if it has neither lasted a minute nor reached a step that no earlier round had
reached. Between such rounds there are pauses of 1, 2, 4 ... 60 s. The first early end has no pause: one
loss soon after a start is no series. A planned change neither counts nor pauses.

Pods of a slot: one ends early if it has not joined, or if its round has not lasted a minute (steps are the
job's, and say nothing about one slot). The same holds if it is deleted before it joins, or is given up as
a member, for example because it cannot reach the leader. Between such pods there are the same pauses; the
first early end of a member has none.

Newcomers: if the pods of a slot keep ending early as members, each of them stops all others, no matter
what ends them. So the next one is on probation before a round is ended for it, or formed with it although
there are enough members without it. A member that is taken away from its first round counts, too, but
causes no pause: its replacement is created at once. A member of the round before does not count: a drain
takes each pod once. Nor does one that a suspension takes. A round is also not ended again at once for
newcomers that were gone when the next one was formed, or after larger rounds that ended early. This covers
newcomers without a slot, and pods that others create: for them the status counts how many rounds in a row
have lost a newcomer. Everything that counts is in the status.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

from elasticjob.contract.names import pod_name
from elasticjob.contract.text import counted
from elasticjob.core.pauses import exponential
from elasticjob.rounds.causes import PLANNED, Cause
from elasticjob.rounds.state import MemberState
from elasticjob_operator.plan.losses import pod_ends
from elasticjob_operator.plan.state.evidence import NEVER_CHARGED, PREEMPTION, SCALING
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import Pod
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import ParticipantStatus, SlotBackoff

HEALTHY_SECONDS = 60.0
"""A round that has lasted this long since it was established is healthy, and so is each of its members."""

MAX_BACKOFF_SECONDS = 60.0

PROBATION_FACTOR = 10
"""A newcomer waits this multiple of its slot's pause until a round is ended for it: that costs all others a
restart, and waiting costs one pod that stands by."""

FORGET_AFTER = timedelta(hours=1)
"""A slot has no back-off after this time without another early end."""

MAX_SLOT_BACKOFFS = 100
"""Slots listed, those that fail most. Where there are more, the others wait as long as half of these do."""


def backoff_seconds(count: int) -> float:
    """The pause after this many early ends in a row."""
    return exponential(1.0, MAX_BACKOFF_SECONDS, count) if count > 0 else 0.0


def early_end_streak(p: Pass) -> int:
    """How many rounds in a row have ended early, with the one that has just ended."""
    r = p.round
    if not r.number or r.next_cause.cause in NEVER_CHARGED or was_healthy(p) or _made_progress(p):
        return 0
    return r.early_end_streak + (not _ended_by_plan(p))


def round_backoff_left(p: Pass) -> float:
    """Seconds until the next round may be published."""
    ended = p.round.next_cause.time
    if ended is None or _ended_by_plan(p):
        return 0.0
    return p.left_since(
        ended, backoff_seconds(early_end_streak(p) - 1), JobWait.ROUND_BACKOFF, p.round.number
    )


def record_early_pod_ends(p: Pass) -> None:
    """Record the pods that have ended early, each once; forget slots that have recovered."""
    if p.job.spec.template is None:
        return
    over = p.round.phase == "Broken"
    healthy = over and was_healthy(p)
    recovered = {m.slot for m in p.status.members()} if healthy else set()
    has_just_ended = p.before.current_round.phase == "Active"
    listed = (s for s in p.status.slot_backoffs if not (has_just_ended and s.slot in recovered))
    known = {s.slot: current for s in listed if (current := _still_counts(p, s)) is not None}
    members = p.status.member_uids
    for pod in p.observed.pods:
        if not pod.of_this_job or pod.slot is None or p.is_replaced(pod):
            continue
        ended = pod.exit is not None or pod.ended
        if pod.uid in members:
            if (
                ended
                and over
                and not healthy
                and not (pod.deleting or pod.exited_well or _was_disrupted(p, pod))
            ):
                _add(p, known, pod.slot, pod.name, first_is_free=True, joined=True)
        elif pod.deleting:
            if not p.waits.continues(JobWait.SURPLUS, pod.name):
                _add(p, known, pod.slot, pod.name, first_is_free=True)
        elif ended:
            joined = p.participant(pod) is not None and not _was_disrupted(p, pod)
            failed = not (pod_ends.ended_well(p, pod) and pod_ends.disruption_of(p, pod, pod.name) is None)
            _add(p, known, pod.slot, pod.name, joined=joined, unjoined=failed)
    for member in _lost_newcomers(p):
        if member.slot is not None and member.slot not in recovered:
            _add(p, known, member.slot, member.pod_name, first_is_free=True, joined=True, disrupted=True)
    _store(p, known)


def record_lost_members(p: Pass) -> bool:
    """Record members that live and were marked lost in this pass, of a round that was not healthy; return
    whether there are any."""
    if p.job.spec.template is None:
        return False
    found = False
    known = {s.slot: s for s in p.status.slot_backoffs}
    for member in p.before.members():
        pod = p.pods_by_uid.get(member.pod_uid)
        if member.state == MemberState.LOST or member.succeeded or pod is None or pod.slot is None:
            continue
        gone = pod.deleting or pod.ended or pod.exit is not None or pod_ends.node_problem(p, pod)
        if not gone and (pod.uid in p.status.lost_pod_uids or p.is_replaced(pod)):
            _add(p, known, pod.slot, pod.name, first_is_free=True, joined=True)
            found = True
    _store(p, known)
    return found


def attempts_ended_early(p: Pass, slot: int | None) -> int:
    """How many pods of this slot have ended before they joined since the last round was published; at least
    one has."""
    backoff = _slot_backoff(p, slot)
    return max(1, backoff.unjoined) if backoff is not None else 1


def most_attempts_ended_early(p: Pass) -> int:
    """How many pods have ended so in the slot with most of them."""
    return max((s.unjoined for s in p.status.slot_backoffs), default=0)


def begin_round(p: Pass) -> None:
    """A round is published: ends before joining are counted from zero."""
    p.set(slot_backoffs=tuple(replace(s, unjoined=0) for s in p.status.slot_backoffs))


def record_surplus_deletion(p: Pass, pod: Pod) -> None:
    """This pod is deleted because too many are there: that is no early end."""
    p.waits.elapsed(JobWait.SURPLUS, pod.name)


def slot_backoff_left(p: Pass, slot: int) -> float:
    """Seconds until the slot may have another pod."""
    backoff = _slot_backoff(p, slot)
    if backoff is None:
        return _unlisted_slot_backoff_left(p, slot)
    return p.left_since(backoff.time, backoff_seconds(backoff.count), JobWait.SLOT_BACKOFF, backoff.pod_name)


def _unlisted_slot_backoff_left(p: Pass, slot: int) -> float:
    listed = p.status.slot_backoffs
    if len(listed) < MAX_SLOT_BACKOFFS or slot >= len(p.status.attempts):
        return 0.0
    name = pod_name(p.job.name, slot, p.status.attempts[slot])
    pod = p.pods_by_name.get(name)
    if pod is None or not pod.of_this_job or not (pod.deleting or pod.ended or pod.exit is not None):
        return 0.0
    if pod.uid in p.status.member_uids and _was_disrupted(p, pod):
        return 0.0
    usual = sorted(backoff.count for backoff in listed)[len(listed) // 2]
    return p.left_since(listed[-1].time, backoff_seconds(usual), JobWait.SLOT_BACKOFF, name)


def probation_left(p: Pass, slot: int | None) -> float:
    """Seconds until a round may be ended, held up, or formed with the pod of this slot if it is a newcomer
    and enough are there without."""
    backoff = _slot_backoff(p, slot)
    if backoff is None or not backoff.joined:
        return 0.0
    return p.left_since(
        backoff.time,
        PROBATION_FACTOR * backoff_seconds(backoff.joined),
        JobWait.SLOT_PROBATION,
        backoff.pod_name,
    )


def newcomers_lost(p: Pass) -> tuple[int, datetime | None]:
    """How many rounds that had newcomers have in a row lost one of these early, with the one that has just
    ended, and when the last did. For pods that others create: our own are counted by their slots."""
    r = p.round
    if p.job.spec.template is None and r.newcomers and r.end is not None:
        if was_healthy(p):
            return 0, None
        if _lost_newcomers(p):
            return r.newcomers_lost + 1, r.end.time
    return r.newcomers_lost, r.newcomers_lost_time


def newcomer_backoff_left(p: Pass) -> float:
    """Seconds until pods that others create are admitted, after rounds that lost those admitted before."""
    count, last = newcomers_lost(p)
    if last is None or p.now.wall - last > FORGET_AFTER:
        return 0.0
    return p.left_since(
        last,
        PROBATION_FACTOR * backoff_seconds(count - 1),
        JobWait.GROWTH_BACKOFF,
        f"after {counted(count, 'round')} that lost new pods",
    )


def pods_on_probation(p: Pass) -> frozenset[str]:
    """The pods (by UID) that the next round is formed without, as long as enough are there: newcomers on
    probation. Where one that was no newcomer is lost, there is nothing to say against the pods that
    others have made for it."""
    known = p.status.member_uids
    fresh = [pod for pod in p.observed.pods if pod.uid not in known]
    if p.job.spec.template is not None:
        slots = {s.slot for s in p.status.slot_backoffs if probation_left(p, s.slot) > 0}
        return frozenset(pod.uid for pod in fresh if pod.slot in slots)
    old = (m for m in p.status.members() if m.pod_name not in p.round.newcomers)
    if any(_is_gone(p, m) for m in old) or newcomer_backoff_left(p) == 0:
        return frozenset()
    return frozenset(pod.uid for pod in fresh)


def scaling_backoff_left(p: Pass) -> float:
    """Seconds until a planned change may end the running round. Two are free; those that follow, while no
    round has lived for a minute, are 1, 2, 4 ... 60 s apart: an autoscaler that oscillates leaves time to
    train."""
    changes = 0
    for formed in p.status.round_history:
        ended = formed.end.time if formed.end is not None else None
        age = (ended or p.now.wall) - formed.start_time
        if formed.cause not in PLANNED or age.total_seconds() >= HEALTHY_SECONDS:
            break
        changes += 1
    if p.round.established_time is None:
        return 0.0
    return p.left_since(
        p.round.established_time, backoff_seconds(changes - 1), JobWait.SCALING_BACKOFF, p.round.number
    )


def growth_backoff_left(p: Pass) -> float:
    """Seconds until the round may be ended for newcomers again, when those for which the ones before it were
    ended had no place in the next: they were gone by then, or another operator saw them otherwise."""
    in_vain = 0
    for formed, before in pairwise(p.status.round_history):
        if formed.cause != Cause.SCALED_UP or formed.members > before.members:
            break
        in_vain += 1
    if not in_vain or p.round.start_time is None:
        return 0.0
    return p.left_since(p.round.start_time, backoff_seconds(in_vain), JobWait.GROWTH_BACKOFF, p.round.number)


def larger_round_backoff_left(p: Pass) -> float:
    """Seconds until the round may be ended to grow, when larger ones have ended early, also with other rounds
    between them: ten times 1, 2, 4 ... 60 s from the second on, until a larger one lives for a minute."""
    early = []
    for formed, before in pairwise(p.status.round_history[1:]):
        end = formed.end
        if formed.cause != Cause.SCALED_UP or formed.members <= before.members:
            continue
        if end is None or end.time is None:
            continue
        if (
            p.now.wall - end.time > FORGET_AFTER
            or (end.time - formed.start_time).total_seconds() >= HEALTHY_SECONDS
        ):
            break
        if end.account != SCALING:
            early.append((end.time, formed.number))
    if not early:
        return 0.0
    ended, number = early[0]
    return p.left_since(
        ended,
        PROBATION_FACTOR * backoff_seconds(len(early) - 1),
        JobWait.GROWTH_BACKOFF,
        f"after round {number}, which was larger",
    )


def _add(
    p: Pass,
    known: dict[int, SlotBackoff],
    slot: int,
    pod: str,
    first_is_free: bool = False,
    joined: bool = False,
    disrupted: bool = False,
    unjoined: bool = False,
) -> None:
    """One more early end in this slot, unless this pod's is known. ``first_is_free``: a first one is no
    series. ``disrupted``: the pod was taken away, which ends the series: the next one is made at once.
    ``unjoined``: it ended by itself as no member."""
    before = known.get(slot)
    if before is not None and before.pod_name == pod:
        return
    count, number = (-1 if first_is_free else 0, 0) if before is None else (before.count, before.joined)
    number += joined and before is not None
    attempts = (before.unjoined if before is not None else 0) + unjoined
    known[slot] = SlotBackoff(slot, pod, 0 if disrupted else count + 1, p.now.wall, number, attempts)


def _still_counts(p: Pass, ends: SlotBackoff) -> SlotBackoff | None:
    """What still counts of a slot's early ends. When the last is long ago, that is only how many there were
    before anyone joined: a limit holds however long each attempt takes."""
    if p.now.wall - ends.time < FORGET_AFTER:
        return ends
    return replace(ends, count=0, joined=0) if ends.unjoined else None


def _store(p: Pass, known: dict[int, SlotBackoff]) -> None:
    # One that is listed stays, so that it is counted on: of those that fail alike the first.
    most = sorted(known.values(), key=lambda s: (-s.count, s.time))[:MAX_SLOT_BACKOFFS]
    backoffs = tuple(sorted(most, key=lambda s: s.time))
    if backoffs != p.status.slot_backoffs:
        p.set(slot_backoffs=backoffs)


def _lost_newcomers(p: Pass) -> list[ParticipantStatus]:
    """Members whose first round has ended early, and that are gone with it."""
    if p.round.end is None or was_healthy(p):
        return []
    gone = [m for m in p.status.members() if m.pod_name in p.round.newcomers and _is_gone(p, m)]
    return [m for m in gone if not p.waits.continues(JobWait.SURPLUS, m.pod_name)]


def _is_gone(p: Pass, member: ParticipantStatus) -> bool:
    pod = p.pods_by_uid.get(member.pod_uid)
    if p.has_ended_well(member):
        return False
    return pod is None or pod.deleting or pod.ended or pod.exit is not None


def _slot_backoff(p: Pass, slot: int | None) -> SlotBackoff | None:
    return next((s for s in p.status.slot_backoffs if s.slot == slot), None)


def _ended_by_plan(p: Pass) -> bool:
    """Whether nothing was wrong with the round that has ended: another one was requested."""
    return p.round.established_time is not None and p.round.next_cause.account == SCALING


def was_healthy(p: Pass) -> bool:
    """Whether the round that has ended had trained for a while."""
    r = p.round
    if r.established_time is None or r.end is None or r.end.time is None:
        return False
    return (r.end.time - r.established_time).total_seconds() >= HEALTHY_SECONDS


def _made_progress(p: Pass) -> bool:
    """Whether the round that has ended did a step that none of those in the history had come to."""
    progress = p.status.progress
    if progress is None or progress.round != p.round.number:
        return False
    before = (
        h.last_step for h in p.status.round_history if h.number < p.round.number and h.last_step is not None
    )
    return progress.step > max(before, default=-1)


def _was_disrupted(p: Pass, pod: Pod) -> bool:
    """Whether this pod ended for what others did, or with its node."""
    evidence = pod_ends.explain(p, pod, pod.name)
    return evidence.account == PREEMPTION or evidence.cause.startswith("Node")
