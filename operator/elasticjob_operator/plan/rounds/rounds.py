"""Rounds: breaking one, waiting for the next, publishing it, and noticing that it is established."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from elasticjob.contract.names import members_object, pod_name, round_object
from elasticjob.contract.participant_record import AnnouncedState, endpoint_at
from elasticjob.contract.round_record import INLINE_MEMBERS as INLINE_MEMBERS
from elasticjob.contract.round_record import MemberList, Phase, RoundRecord
from elasticjob.contract.text import counted, in_a_row, listed, node_words
from elasticjob.rounds.candidates import Defer, Expected, reasons
from elasticjob.rounds.causes import ENDS_ALONE, PLANNED, Cause
from elasticjob.rounds.establishment import continues_series, take_established
from elasticjob.rounds.formation import ended, expect_members, last_call, published
from elasticjob.rounds.formation import form as form_round
from elasticjob.rounds.ranks import Candidate
from elasticjob.rounds.state import GONE, MemberState
from elasticjob_operator.plan.charges import backoff, revision
from elasticjob_operator.plan.charges.charging import (
    charge_round,
    detection,
    exhausted,
    record_evidence,
    renumber,
    root,
)
from elasticjob_operator.plan.losses import kernel, members, unheard
from elasticjob_operator.plan.rounds import fencing, progress
from elasticjob_operator.plan.rounds.crossings import crossings
from elasticjob_operator.plan.state.evidence import NEVER_CHARGED, SCALING, Evidence
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import Pod
from elasticjob_operator.plan.state.outlook import Waiting
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import (
    MAX_NEWCOMERS,
    MAX_ROUNDS,
    ParticipantStatus,
    RoundEnd,
    RoundHistory,
    RoundStatus,
)

SCHEDULING_GRACE_SECONDS = 5.0
"""How long a new pod counts as on its way while the scheduler has not yet spoken about it."""

RENEW_CHANGE_SECONDS = 30.0
"""How long another interval of renewals waits for a write of the round Lease that is due anyway."""


def projection(p: Pass, waiting: str = "", replacing: bool = False) -> RoundRecord:
    """The round Lease's record: a pure function of the status (and the timeouts in the spec), but for what
    may change without a new phase. ``waiting``: what the next round waits for. ``replacing``: the preStop
    hooks of members that leave have to keep waiting; those of a round that drains do, too."""
    r = p.round
    why = r.drain or (r if r.phase == Phase.ACTIVE.value else r.next_cause)
    ids = tuple(m.id for m in p.status.members())
    replacing = replacing and r.published_phase == Phase.ACTIVE.value
    return RoundRecord(
        job_uid=p.job.uid,
        number=r.number,
        phase=r.published_phase,
        nonce=r.nonce,
        size=len(ids),
        member_ids=ids if len(ids) <= INLINE_MEMBERS else (),
        leader_id=ids[0] if ids else "",
        leader_endpoint=r.leader_endpoint,
        cause=why.cause,
        message=why.message,
        waiting_message=waiting,
        replacing=replacing,
        outcome=p.status.terminal_state,
        wait_renew_period_seconds=_wait_renew(p, waiting, replacing),
        limits=p.job.spec.limits,
        out_of_memory=any(
            h.end is not None and h.end.cause == Cause.OUT_OF_MEMORY for h in p.status.round_history
        ),
        memory_alone=drains_into_memory(p),
    )


def drains_into_memory(p: Pass) -> bool:
    """Whether the round drains, and memory alone is enough for its last step: all of its pods stay."""
    drain = p.round.drain
    grows = drain is not None and drain.cause == Cause.SCALED_UP
    return grows and p.job.spec.memory_checkpoints is not None


def _wait_renew(p: Pass, waiting: str, replacing: bool) -> int:
    """The interval of renewals that the record should have. It follows from all jobs together, so that it
    may change for all at once: it goes with the next write, and has one of its own only where a pod
    waits, and not at once."""
    wanted, record, r = p.wait_renew(), p.observed.record, p.round
    if record is None or wanted == record.wait_renew_period_seconds:
        return wanted
    said = (record.number, record.phase, record.waiting_message, record.replacing)
    if said != (r.number, r.published_phase, waiting, replacing):
        return wanted
    if r.phase == Phase.CLOSED.value or not p.waiting_participants():
        return record.wait_renew_period_seconds
    late = p.waits.left(JobWait.RENEWAL_CHANGE, "", RENEW_CHANGE_SECONDS) == 0
    return wanted if late else record.wait_renew_period_seconds


def member_list(p: Pass) -> MemberList | None:
    """The list of a running round's members, if they are too many for its record."""
    r, members = p.round, p.status.members()
    if r.phase != Phase.ACTIVE.value or len(members) <= INLINE_MEMBERS:
        return None
    return MemberList(p.job.uid, r.number, r.nonce, tuple(m.id for m in members))


def renumber_above_leases(p: Pass) -> None:
    """Leases ahead even of a fresh status were restored or edited by hand: number above all of them."""
    record, r = p.observed.record, p.round
    if record is not None and record.ahead_of(projection(p)):
        what = f"{round_object(p.job.name)} says round {record.number} {record.phase}"
    elif p.observed.member_list_round > r.number:
        what = f"{members_object(p.job.name)} says round {p.observed.member_list_round}"
    else:
        return
    number = max(p.observed.member_list_round, record.number if record is not None else 0)
    text = f"{what}, the status says round {r.number} {r.published_phase}: one of them was restored or edited"
    end_round(p, [Evidence(Cause.RECORD_AHEAD, text)])
    renumber(p, number + 1)


def renumber_closed(p: Pass) -> None:
    """Number above a Lease that is ahead after the job's end, too: participants that still wait have to read
    it."""
    record = p.observed.record
    if record is not None and record.ahead_of(projection(p)):
        renumber(p, record.number + 1)


def end_round(p: Pass, evidence: list[Evidence]) -> None:
    """Break the round: all members rejoin. The end is in the history at once, its charge follows."""
    wall = p.now.wall
    if p.round.phase == "Active":
        over = ended(kernel.round_state(p), "")
        p.set_round(
            phase=over.phase,
            drain=None,
            failure_offset_milliseconds=None,
            establish_failures=over.establish_failures,
        )
        p.set_end(time=wall)
    record_evidence(p, evidence)
    why = p.round.next_cause
    failure = p.status.last_failure
    p.event(
        "RoundBroken",
        f"round {p.round.number} ended: {why.message}",
        warning=why.account != SCALING,
        pod=failure.pod_name if failure is not None and failure.round == p.round.number else "",
        cause=why.cause,
    )


def watch_active(p: Pass) -> None:
    """A running round: has it been established, is a member lost?"""
    with kernel.round_view(p) as view:
        established = take_established(view, spoken_for=0 in unheard.cut_off(p))
    if established:
        _report_established(p)
    evidence = members.examine(p)
    if not evidence:
        evidence = progress.hang(p)
    lost = [m for m in p.status.members() if m.state in GONE]
    if evidence and (lost or any(e.cause in ENDS_ALONE for e in evidence)):
        end_round(p, evidence)
    everybody = p.status.members()
    if p.round.phase == "Active" and everybody and all(members.started_again(p, m) for m in everybody):
        text = f"round {p.round.number} succeeded, and the commands of its members started torchrun again"
        end_round(p, [Evidence(Cause.STARTED_AGAIN, text)])


def _report_established(p: Pass) -> None:
    """The leader reports the round established, as of now."""
    r = p.round
    ended = next((h.end.time for h in p.status.round_history[1:2] if h.end is not None), None)
    if r.cause == Cause.RESUMED:
        ended = p.status.start_time
    since = ended or r.start_time or p.now.wall
    milliseconds = max(0, round((p.now.wall - since).total_seconds() * 1000))
    first, *rest = p.status.round_history
    p.set(round_history=(replace(first, rendezvous_milliseconds=milliseconds), *rest))
    p.event(
        "RoundEstablished",
        f"round {r.number} is established: {counted(r.members, 'member')} reached the leader "
        f"{r.leader_pod_name}",
        pod=r.leader_pod_name,
    )


def form(p: Pass) -> tuple[Waiting, str]:
    """Between rounds: gather evidence, mark members lost that do not rejoin, publish when it is time. Returns
    what the next round waits for otherwise; and why a failure rule ends the job, "" if none does."""
    evidence = members.examine(p)
    record_evidence(p, evidence)
    failed_by_rule = revision.revise(p, evidence)
    with kernel.round_view(p) as view:
        expected, found = expect_members(view)
    # Those who cannot write cannot rejoin: why they have left is the cause.
    found = [f for f in found if f.member is None or not unheard.says_left(p, f.member.group_rank)]
    record_evidence(p, kernel.as_evidence(found))
    last = p.status.members()
    nodes = {m.pod_name: m.node_name for m in last}
    expected = [
        replace(unheard.explained(p, one), domains=p.observed.domains.get(nodes[one.name], ()))
        for one in expected
    ]
    awaited = any(m.state == MemberState.MEMBER for m in last)
    if last and not awaited:
        failed_by_rule = charge_last_round(p) or failed_by_rule
    done = [m.pod_name for m in last if m.succeeded]
    # Perhaps all have. Their controller does not replace these.
    if done and p.job.spec.template is None and (awaited or not others_may_go_on(p)):
        return Waiting(f"{listed(done)} succeeded; waiting for {reasons(expected)}"), failed_by_rule
    joined = p.joined()
    ready = _admitted(p, candidates(p, (entry for _, entry in joined)), joined, len(expected))
    minimum, replicas = p.status.min_replicas, p.job.spec.replicas
    enough = len(ready) >= minimum
    with kernel.round_view(p) as view:
        if not (
            enough and p.round.next_cause.cause in PLANNED
        ):  # that has waited for them beside the running round
            left = last_call(view, enough)
            expected += newcomers(p, {pod.uid for pod, _ in joined}, left, enough)
        decision = form_round(view, ready, expected, minimum, replicas, p.job.spec.sizes)
    if isinstance(decision, Defer):
        doubtful = any(m.state == MemberState.UNREACHABLE for m in p.status.members())
        none_starting = decision.seconds is None and not doubtful
        return Waiting(decision.why, decision.count, none_starting=none_starting), failed_by_rule
    fence = fencing.fence(p)
    held_back = fence.waiting or _pause(p)
    if held_back is not None:
        return held_back, failed_by_rule
    failed_by_rule = charge_last_round(p) or failed_by_rule
    if failed_by_rule or exhausted(p) is not None:
        return Waiting(), failed_by_rule
    if p.job.spec.template is not None and p.status.lost_pod_uids & {pod.uid for pod, _ in joined}:
        # A rule has just marked one lost that had joined.
        p.waits.wake(0.1)
        return Waiting("a pod is being replaced on another node"), ""
    _replace_lost_pods(p, {pod.uid for pod, _ in joined})
    _publish(p, decision.members, {pod.uid: entry for pod, entry in joined}, fence)
    return Waiting(), ""


def others_may_go_on(p: Pass) -> bool:
    """Whether a planned change ended the round when some of its members had finished, and pods that had not
    are enough for the next one."""
    finished = {m.pod_uid for m in p.status.members() if m.succeeded}
    left = sum(p.alive(pod) and pod.uid not in finished for pod in p.observed.pods)
    return p.round.next_cause.cause in PLANNED and left >= p.status.min_replicas


def candidates(p: Pass, entries: Iterable[ParticipantStatus]) -> list[Candidate]:
    """These participants, as candidates for the next round."""
    ranks = {m.pod_uid: m.group_rank for m in p.status.members()}
    ineligible = set(p.round.ineligible_leaders)
    if p.job.spec.template is None:  # a pod that replaces a member may have its name
        ineligible -= {m.pod_name for m in p.status.members() if m.pod_uid not in p.pods_by_uid}
    return [
        Candidate(
            e.id,
            e.pod_name,
            e.slot,
            ranks.get(e.pod_uid),
            e.pod_name not in ineligible,
            p.observed.domains.get(e.node_name, ()),
        )
        for e in entries
    ]


def _admitted(
    p: Pass, ready: list[Candidate], joined: Sequence[tuple[Pod, ParticipantStatus]], on_their_way: int
) -> list[Candidate]:
    """Those of them that may be in the next round: without newcomers on probation, if there are enough
    without, or will be when the members that are on their way are back."""
    on_probation = backoff.pods_on_probation(p)
    if not on_probation:
        return ready
    ids = {entry.id for pod, entry in joined if pod.uid in on_probation}
    admitted = [c for c in ready if c.id not in ids]
    return admitted if len(admitted) + on_their_way >= p.status.min_replicas else ready


def charge_last_round(p: Pass) -> str:
    """The end of the last round is charged: at its successor, or once every member is accounted for. Returns
    why a failure rule ends the job, "" if none does.

    A suspension is not charged, and of the failures that one broken path causes only the first: neither
    the members that go on to miss each other nor the round that ended before.
    """
    why = p.round.next_cause
    chargeable = why.account and why.cause not in NEVER_CHARGED
    if p.round.number > 0 and chargeable and (why.rule_name or not _continues_series(p)):
        return charge_round(p)
    return ""


def _continues_series(p: Pass) -> bool:
    """Whether this round was never established for what ended the one before."""
    formed = p.status.round_history[0] if p.status.round_history else None
    formed_for = p.round.cause if formed is not None and formed.number == p.round.number else ""
    failure = root(p)
    return continues_series(
        kernel.round_state(p), formed_for, failure.pod_name if failure is not None else ""
    )


def _replace_lost_pods(p: Pass, joined: set[str]) -> None:
    """A member that is lost, or reported unreachable and not back when the round forms without it, leaves its
    slot to a new pod; so its own has been charged for, even if more happens to it."""
    absent = (m.pod_uid for m in p.status.members() if m.state in (MemberState.UNREACHABLE, MemberState.LOST))
    p.replace_pods(p.pods_by_uid[uid] for uid in absent if uid not in joined and uid in p.pods_by_uid)


def newcomers(p: Pass, joined: set[str], left: float, enough: bool) -> list[Expected]:
    """Pods on their way, but for those that have ``joined``. With a node they are waited for while there is
    time ``left``; without one never, but for the moment until the scheduler has spoken. Where there are
    ``enough`` without them, no round waits for a slot whose pods end early again and again."""
    known = p.status.member_uids
    on_probation = backoff.pods_on_probation(p) if enough else frozenset()
    expected = []
    for pod in p.observed.pods:
        if not p.alive(pod) or pod.uid in joined or pod.uid in known or _passed_over(p, pod):
            continue
        if pod.uid in on_probation:
            continue
        if pod.node:
            if pod.node_ready:
                state = "running" if pod.running else "starting"
                expected.append(Expected(pod.name, left, state, where=node_words(pod.node)))
        elif not pod.unschedulable:
            expected.append(Expected(pod.name, _scheduling_left(p, pod.name), "not scheduled yet"))
    if p.job.spec.template is not None:
        expected += (
            _being_made(p, slot, enough)
            for slot in p.missing_slots()
            if not (_is_rejected(p, slot) or (enough and backoff.probation_left(p, slot) > 0))
        )
    return expected


def _being_made(p: Pass, slot: int, enough: bool) -> Expected:
    left = backoff.slot_backoff_left(p, slot)
    if left > 0:
        return Expected(
            f"slot {slot}",
            0.0 if enough else left,
            f"last pods ended early; next pod in {left:.0f} s",
        )
    return Expected(f"slot {slot}", _scheduling_left(p, f"slot {slot}"), "pod not created yet")


def _is_rejected(p: Pass, slot: int) -> bool:
    """Whether the API server would not take the pod that this slot needs."""
    attempt = p.status.attempts[slot] if slot < len(p.status.attempts) else 0
    return pod_name(p.job.name, slot, attempt) in p.observed.rejected_pods


def _passed_over(p: Pass, pod: Pod) -> bool:
    """Whether this pod has announced itself and can't be picked, other than for a round before the last: then
    it is about to do so again, unless it is silent."""
    lease = p.participant(pod)
    if lease is None or lease.record is None or lease.record.state != AnnouncedState.JOINING.value:
        return False
    return p.in_time(lease.record) or p.silent_announcement(pod) is not None


def _endpoint(p: Pass, leader: ParticipantStatus) -> str:
    """Where the others find the leader's store."""
    lease = p.lease_of(leader.pod_uid)
    assert lease is not None
    assert lease.record is not None, "it has just joined"
    return endpoint_at(lease.record, p.pods_by_name[leader.pod_name].ip)


def _scheduling_left(p: Pass, name: str) -> float:
    return p.waits.left(JobWait.SCHEDULING, name, SCHEDULING_GRACE_SECONDS)


def _pause(p: Pass) -> Waiting | None:
    """The pause before the next round after rounds that made no progress."""
    left = backoff.round_backoff_left(p)
    if left <= 0:
        return None
    count = backoff.early_end_streak(p)
    return Waiting(f"{in_a_row(count, 'round')} ended without progress; next attempt in {left:.0f} s")


def _publish(
    p: Pass,
    ranked: tuple[Candidate, ...],
    entries: dict[str, ParticipantStatus],
    fence: fencing.Fence,
) -> None:
    """Write down the next round: its number, members in rank order, leader, and why it is formed."""
    progress.count_round_time(p)
    if progress.stuck(p):
        return
    before, wall = p.round, p.now.wall
    by_pod = {entry.pod_name: entry for entry in entries.values()}
    chosen = tuple(
        replace(by_pod[c.name], group_rank=rank, state=MemberState.MEMBER.value, message="")
        for rank, c in enumerate(ranked)
    )
    leader = chosen[0]
    following = published(kernel.round_state(p), kernel.round_members(chosen), p.now.nonce, wall)
    why = RoundEnd(cause="Started", message="the first round")
    if before.number:
        why = before.next_cause
        p.set_end(detect_milliseconds=detection(p))
    message = why.message
    taken_over = _hand_over(p, chosen)
    if taken_over:
        message = f"{message}; {taken_over}"
    message += fencing.report(p, fence, following.number)
    counts = [m.local_world_size for m in chosen if m.local_world_size is not None]
    chosen_ids = {m.id for m in chosen}
    lost, lost_time = backoff.newcomers_lost(p)
    streak = backoff.early_end_streak(p)
    backoff.begin_round(p)
    p.set(
        current_round=RoundStatus(
            number=following.number,
            phase=following.phase,
            nonce=following.nonce,
            leader_pod_name=leader.pod_name,
            leader_endpoint=_endpoint(p, leader),
            members=len(chosen),
            world_size=sum(counts) if len(counts) == len(chosen) else None,
            crossings=crossings(chosen, p.observed.domains),
            start_time=following.start,
            cause=why.cause,
            account=why.account,
            message=message,
            establish_failures=following.establish_failures,
            early_end_streak=streak,
            newcomers=_newcomers(ranked),
            newcomers_lost=lost,
            newcomers_lost_time=lost_time,
            unarrived_pods=following.unarrived,
            ineligible_leaders=following.ineligible_leaders,
            unreachable_reports=following.unreachable_reports,
            unaccounted_members=revision.unaccounted_members(p, set(entries)),
        ),
        participants=chosen
        + tuple(replace(e, state="Standby") for e in entries.values() if e.id not in chosen_ids),
        round_history=(
            RoundHistory(following.number, why.cause, len(chosen), wall),
            *p.status.round_history,
        )[:MAX_ROUNDS],
    )
    p.event(
        "RoundPublished",
        f"round {following.number} begins with {counted(len(chosen), 'member')}; "
        f"{_why_it_begins(before)}{message}",
        cause=why.cause,
    )


def _why_it_begins(before: RoundStatus) -> str:
    """What stands before the cause of a new round: it is the end of the one before, unless the job is new or
    was resumed."""
    if not before.number:
        return "it is "
    return "" if before.resumed else f"round {before.number} ended: "


def _newcomers(ranked: tuple[Candidate, ...]) -> tuple[str, ...]:
    """The members that were not in the round before, if others of them were."""
    new = tuple(c.name for c in ranked if c.last_group_rank is None)
    return new[:MAX_NEWCOMERS] if len(new) < len(ranked) else ()


def _hand_over(p: Pass, chosen: tuple[ParticipantStatus, ...]) -> str:
    """Which pod took which rank, in words."""
    before = {m.group_rank: m for m in p.status.members()}
    said = []
    for member in chosen:
        old = before.get(member.group_rank)
        if old is not None and old.pod_uid != member.pod_uid and old.state == MemberState.LOST:
            said.append(f"{member.pod_name} took over group rank {member.group_rank}")
    return listed(said)
