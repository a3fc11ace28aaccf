"""Members that live and cannot write their Leases: what others pass on for them, and what people read.

What such a member would report is not known: a worker's end, steps, its success. So it is not taken for one
that trains well. It passes on what it can through the round's store (the handler's ``relay``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from elasticjob.contract.participant_record import LEADER_RENEW_SECONDS
from elasticjob.contract.relay import RELAYING_RANKS, CutOff
from elasticjob.contract.reports import FailureReport
from elasticjob.contract.text import listed
from elasticjob.rounds.candidates import Expected
from elasticjob.rounds.state import MemberState
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import ParticipantStatus

SILENT_LEADER_SECONDS = 3 * LEADER_RENEW_SECONDS
ACCOUNT_CHECK_SECONDS = 5.0
"""How often it is looked again whether pods from before their service account can write."""
_MOST_REASONS = 3


def cut_off(p: Pass) -> Mapping[int, CutOff]:
    """The members of this round that cannot write, as others say, by rank."""
    return p.once("cut off", lambda: _cut_off(p), p.round.nonce)


def says_left(p: Pass, group_rank: int | None) -> bool:
    """Whether the member of this rank has left the round, and could say so only to others."""
    word = cut_off(p).get(group_rank) if group_rank is not None else None
    return word is not None and word.left


def failure(p: Pass, member: ParticipantStatus) -> FailureReport | None:
    """What such a member reports of its workers in this round."""
    word = cut_off(p).get(member.group_rank) if member.group_rank is not None else None
    report = word.failure if word is not None and word.left else None
    return report if report is not None and report.of(p.job.uid, p.round.number) else None


def explained(p: Pass, one: Expected) -> Expected:
    """A member on its way, with the reason why it cannot announce itself, if others have passed that on."""
    word = cut_off(p).get(one.last_group_rank) if one.last_group_rank is not None else None
    return one if word is None else replace(one, why=f"cannot write its Lease: {word.why}")


def in_doubt(p: Pass) -> bool:
    """Whether members of a running round may lack their rights."""
    runs = p.round.phase == "Active" and p.round.established_time is not None
    return runs and (bool(cut_off(p)) or _leader_is_silent(p))


def sentence(p: Pass) -> str:
    """A clause on members of the running round that are not heard, and why, as far as that is known; ""
    where all are."""
    words = cut_off(p)
    names = {m.group_rank: m.pod_name for m in p.status.members()}
    reasons: dict[str, list[str]] = {}
    for rank, word in sorted(words.items()):
        if not word.left and rank in names:
            reasons.setdefault(word.why, []).append(names[rank])
    said = [
        f"; {listed(who)} cannot write {'its Lease' if len(who) == 1 else 'their Leases'} ({why}), as other "
        "members say"
        for why, who in list(reasons.items())[:_MOST_REASONS]
    ]
    account = _account(p)
    if account:
        said.append(account)
    elif _leader_is_silent(p) and 0 not in words:
        said.append(
            f"; its leader has not renewed its Lease for more than {SILENT_LEADER_SECONDS:.0f} s, so whether "
            f"all members train is not known: the log of {p.round.leader_pod_name} says why"
        )
    return "".join(said)


def _cut_off(p: Pass) -> dict[int, CutOff]:
    members = p.status.members()
    found: dict[int, CutOff] = {}
    for speaker in members[:RELAYING_RANKS]:
        lease = p.lease_of(speaker.pod_uid)
        if lease is None or lease.relay is None or not p.round.nonce or lease.relay.nonce != p.round.nonce:
            continue
        for word in lease.relay.cut_off:
            if word.group_rank == speaker.group_rank or word.group_rank >= len(members):
                continue
            own = p.lease_of(members[word.group_rank].pod_uid)
            if not word.left and own is not None and own.silent < lease.silent:
                continue  # it has written since
            found.setdefault(word.group_rank, word)
    return found


def _leader_is_silent(p: Pass) -> bool:
    """Whether the leader of an established round lives, as far as its pod shows, and does not renew its
    Lease: it may be cut off from the API server, or its token refused."""
    silent = _leader_silence(p)
    if silent is None:
        return False
    left = SILENT_LEADER_SECONDS - silent
    p.waits.wake(max(left + 1, SILENT_LEADER_SECONDS))  # silence makes no event
    return left < 0


def _leader_silence(p: Pass) -> float | None:
    leader = next(iter(p.status.members()), None)
    if leader is None or leader.state != MemberState.MEMBER:
        return None
    lease = p.lease_of(leader.pod_uid)
    return None if lease is None else lease.silent


def _account(p: Pass) -> str:
    """A clause on pods that are older than the job's service account, which was deleted and made again."""
    made, silent = p.observed.account_made, _leader_silence(p)
    if made is None or silent is None:
        return ""
    pods = (p.pods_by_uid.get(m.pod_uid) for m in p.status.members())
    before = [pod.name for pod in pods if pod is not None and pod.created is not None and pod.created < made]
    if not before:
        return ""
    if silent < p.waits.elapsed(JobWait.OLD_TOKENS, str(made)) - ACCOUNT_CHECK_SECONDS:
        return ""  # the leader has written since: the kubelet has brought new tokens
    p.waits.wake(ACCOUNT_CHECK_SECONDS)
    return (
        f"; their service account was made again at {made:%H:%M:%S} UTC, and the API server refuses the "
        f"tokens of pods from before ({listed(before)}), so whether all members train is not known; a new "
        "pod gets a new token"
    )
