"""Growing and shrinking a running round. It drains, and the change ends it (``draining``).

It does so only if the next round can be published as soon as the members have rejoined, with them and
the pods that have joined (I10). ``decide``, which also forms that round, says whether it can.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob.contract.participant_record import AnnouncedState
from elasticjob.contract.text import counted, listed, node_words
from elasticjob.rounds.candidates import Defer, Expected, decide, joined_of, reasons
from elasticjob.rounds.causes import Cause
from elasticjob.rounds.formation import RANK_HELD_SECONDS
from elasticjob_operator.plan.changes import draining, growth_payback
from elasticjob_operator.plan.charges import backoff
from elasticjob_operator.plan.losses import witnesses
from elasticjob_operator.plan.rounds import warm_starts
from elasticjob_operator.plan.rounds.rounds import candidates, newcomers
from elasticjob_operator.plan.state.evidence import Evidence
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import ParticipantStatus

NONE_COMING = "; no other pod is starting"

LOOK_AGAIN_SECONDS = 5.0
"""How soon a member that was not fit for a change is looked at again: its renewals make no event."""


def update_min_replicas(p: Pass) -> None:
    """Bring ``status.minReplicas``, the lower bound in force, up to date.

    A job without one of its own is of a fixed size. It goes over to a larger one in one piece: until a round
    of that size was established, the smaller one stays enough.
    """
    wanted, own, r = p.job.spec.replicas, p.job.spec.min_replicas, p.round
    if own is not None:
        p.set(min_replicas=own)
    elif (
        r.number == 0 or not p.status.min_replicas or (r.established_time is not None and r.members >= wanted)
    ):
        p.set(min_replicas=wanted)
    else:
        p.set(min_replicas=min(p.status.min_replicas, wanted))


def rescale(p: Pass) -> str:
    """Shrink when there are more members than wanted; grow when newcomers have joined and wait.

    New pods are brought up and joined as standbys before the running round is touched, and added
    together. Bounds that change under a running round break nothing by themselves (I3), and no change begins
    in one of which a member has succeeded (I10). One that drains ends when its workers have
    stopped, or at its deadline. Quota that a queue wants back waits for nothing else.
    Returns why the round stays as it is, if it is not of the wanted size.
    """
    wanted, have = p.job.spec.replicas, p.round.members
    if p.round.drain is not None:
        draining.follow(p)
        return ""
    if have == wanted or p.round.established_time is None:
        return ""
    if have > wanted and p.beyond_quota():
        _shrink(p)
        return ""
    if has_succeeded(p):
        return ""
    on_probation = {
        entry.pod_name: left for pod, entry in p.joined() if (left := backoff.probation_left(p, pod.slot)) > 0
    }
    joined = [entry for _, entry in p.joined() if entry.pod_name not in on_probation]
    unfit = {m.id: why for m in p.status.members() if (why := _unfit(p, m))}
    staying = [m for m in p.status.members() if m.id not in unfit]
    missed = [
        Expected(
            m.pod_name,
            RANK_HELD_SECONDS,
            unfit[m.id],
            m.group_rank,
            RANK_HELD_SECONDS,
            domains=p.observed.domains.get(m.node_name, ()),
        )
        for m in p.status.members()
        if m.id in unfit
    ]
    delay = float(p.job.spec.scale_up_delay)
    if have < wanted and joined:
        delay = p.waits.left(JobWait.SCALE_UP, p.round.number, delay)
    there = {entry.pod_uid for entry in joined}
    expected = newcomers(p, there, delay, bool(joined)) if have < wanted else []
    ready, awaited = candidates(p, (*staying, *joined)), [*missed, *expected]
    decision = decide(ready, awaited, _least(p), wanted, p.job.spec.sizes)
    if isinstance(decision, Defer):
        if missed:
            why = f"will {'grow' if have < wanted else 'shrink'}: waiting for {reasons(missed)}"
        else:
            why = _will_grow(p, len(joined), expected)
        if on_probation:
            name, left = min(on_probation.items(), key=lambda item: item[1])
            why += (
                f"; {name} is added in {left:.0f} s, "
                "because earlier pods of its slot ended soon after they joined"
            )
        if missed and (joined or have > wanted):
            p.waits.wake(LOOK_AGAIN_SECONDS)
        return why
    left = backoff.scaling_backoff_left(p)
    if left > 0:
        change = "grow" if have < wanted else "shrink"
        return f"will {change} in {left:.0f} s, because the size changes too often"
    if have > wanted:
        _shrink(p)
        return ""
    left = backoff.growth_backoff_left(p)
    if left > 0:
        return (
            f"will try to grow in {left:.0f} s; the pods for which the last round ended were lost before "
            "the next one started"
        )
    left = backoff.newcomer_backoff_left(p)
    if left > 0:
        return (
            f"will try to grow in {left:.0f} s; pods that were added before were lost soon after they joined"
        )
    left = backoff.larger_round_backoff_left(p)
    if left > 0:
        return f"will try to grow in {left:.0f} s; the last larger rounds ended soon after they started"
    names, to = listed([entry.pod_name for entry in joined]), len(decision.members)
    refusal = growth_payback.refusal(p, have, to)
    if refusal:
        return refusal
    if warm_starts.preparing(p):
        return f"will grow to {to} members when all members can start their workers warm"
    text = f"{names} joined: growing from {have} to {to} members"
    draining.change_or_drain(p, Evidence(Cause.SCALED_UP, text))
    return ""


def _shrink(p: Pass) -> None:
    text = f"scaled down from {p.round.members} to {counted(p.job.spec.replicas, 'member')}"
    if p.job.grant is not None and p.job.grant.sentence:
        text = f"{text}: {p.job.grant.sentence}"
    draining.change_or_drain(p, Evidence(Cause.SCALED_DOWN, text))


def _will_grow(p: Pass, joined: int, expected: Sequence[Expected]) -> str:
    """What growing waits for. ``joined``: the pods that stand by for it."""
    wanted, have, least, sizes = p.job.spec.replicas, p.round.members, _least(p), p.job.spec.sizes
    coming = [e for e in expected if e.wait_seconds > 0]
    if have + joined >= least:
        last = max(e.wait_seconds for e in coming)
        text = f"will grow to {sizes.floor(have + joined)} members in {last:.0f} s"
    elif p.job.spec.min_replicas is None:
        text = f"will grow to {wanted} members in one step, because minReplicas is not set"
    elif least > have + 1:
        text = f"will grow when {least} replicas have joined"
    else:
        text = "will grow"
    if joined and have + joined < least:
        text += f"; {joined_of(have + joined, wanted)}"
    return f"{text}; {_coming(coming)}" if coming else text + NONE_COMING


def _coming(expected: Sequence[Expected]) -> str:
    groups: dict[str, list[str]] = {}
    for one in expected:
        groups.setdefault(one.why, []).append(one.name)
    return "; ".join(
        f"{listed(names)} ({state})" if ";" in state else f"{state}: {listed(names)}"
        for state, names in list(groups.items())[:3]
    )


def has_succeeded(p: Pass) -> bool:
    """Whether a member has done its part, or its container says so: only a loss ends its round from now on,
    for what has been finished would be done again."""
    return any(p.has_ended_well(member) for member in p.status.members())


def _least(p: Pass) -> int:
    """The fewest members for which a running round is broken."""
    wanted, have = p.job.spec.replicas, p.round.members
    if have > wanted:
        return p.status.min_replicas
    least = max(have + 1, p.status.min_replicas)
    return wanted if p.job.spec.min_replicas is None else p.job.spec.sizes.ceil(least)


def describe_sizes(p: Pass) -> str:
    """Where rounds may only have some sizes: which, and how many replicas stand by for that."""
    spec, r = p.job.spec, p.round
    if r.phase != "Active" or r.members != spec.replicas:
        return spec.sizes.words
    if not spec.beyond_size:
        return ""
    all_replicas = counted(spec.replicas + spec.beyond_size, "replica")
    are = "stands" if spec.beyond_size == 1 else "stand"
    return f"{spec.replicas} of {all_replicas} train: {spec.sizes.words}; {spec.beyond_size} {are} by"


def _unfit(p: Pass, member: ParticipantStatus) -> str:
    """Why this member of the running round may not be there at once when it ends, or ""."""
    pod = p.pods_by_uid.get(member.pod_uid)
    if pod is not None and pod.uid in p.held:
        return f"leaving {node_words(pod.node)}"
    if pod is None or not p.alive(pod) or not pod.running:
        return "not running"
    if not pod.node_ready or pod.unreachable:
        return f"{node_words(pod.node)} is not ready"
    lease = p.participant(pod)
    record = lease.record if lease is not None else None
    if (
        lease is None
        or record is None
        or record.id != member.id
        or record.state != AnnouncedState.JOINING.value
    ):
        return "not announced in its Lease"
    if lease.silent > witnesses.LATE_RENEWALS * witnesses.renew_seconds(member):
        return f"Lease not renewed for {lease.silent:.0f} s"
    return ""
