"""The end of a job: Complete when every member of one round has succeeded in it; Failed with a reason.

The terminal condition is written first, then the record (Closed), then pods are cleaned up (I8).
"""

from __future__ import annotations

from dataclasses import replace

from elasticjob.contract.records import Outcome, Phase, State
from elasticjob_operator.plan.context import Pass
from elasticjob_operator.plan.failures import exhausted
from elasticjob_operator.plan.status import ParticipantStatus


def check_success(p: Pass) -> bool:
    """Complete the job if every member of the running round has succeeded."""
    members = p.status.members()
    if p.round.phase != "Active" or not members or any(m.state != "Succeeded" for m in members):
        return False
    text = f"all {len(members)} members of round {p.round.number} have succeeded"
    _close(p, Outcome.COMPLETE, "Succeeded", text)
    return True


def check_failure(p: Pass) -> bool:
    """Fail the job if it can't or must not go on."""
    account = exhausted(p)
    if account is not None:
        window = f" within {account.window_seconds} s" if account.window_seconds else ""
        last = f"; the last: {p.status.last_failure.message}" if p.status.last_failure else ""
        _close(
            p,
            Outcome.FAILED,
            f"{account.name.capitalize()}RestartsExhausted",
            f"{len(account.charges)} restarts{window} were charged to {account.name}, "
            f"{account.limit} are allowed{last}",
        )
        return True
    never = _never_joined(p)
    if never:
        _close(
            p,
            Outcome.FAILED,
            "NeverJoined",
            f"{never} ended with exit code 0 and never joined a round: its command did not use the "
            "backend k8s (flags of torchrun override PET_*; torchrun --standalone and plain python "
            "train alone); let the command be: torchrun train.py",
        )
        return True
    if p.job.spec.template is None and p.round.phase == "Broken" and _some_had_succeeded(p):
        _close(
            p,
            Outcome.FAILED,
            "MemberLostAfterSuccess",
            f"{p.round.message}; others had succeeded already and their pods are not ours to replace",
        )
        return True
    limit = p.job.spec.rendezvous.join_timeout
    waits = p.round.phase == "Broken" and any(pod.node for pod in p.observed.pods if p.alive(pod))
    if limit is not None and waits and p.timers.left(f"join:{p.round.number}", limit) == 0:
        _close(p, Outcome.FAILED, "JoinTimeout", f"no round was formed within {limit} s: {p.waiting}")
        return True
    return False


def _never_joined(p: Pass) -> str:
    """A pod of ours that ended well and never joined. Pods of others may be left from before this job was."""
    if p.job.spec.template is None:
        return ""
    members = {m.uid for m in p.status.members()}
    for pod in p.observed.pods:
        if not pod.mine or pod.deleting or pod.exit is None or pod.exit.code != 0 or p.superseded(pod):
            continue
        if pod.uid not in members and p.participant(pod) is None:
            return pod.name
    return ""


def _some_had_succeeded(p: Pass) -> bool:
    """Whether a member of the last round has ended well: its controller makes it no more."""
    if any(_ended_well(p, member) for member in p.status.members()):
        return True
    before = p.before.members()
    return p.before.round.number == p.round.number and any(m.state == "Succeeded" for m in before)


def _ended_well(p: Pass, member: ParticipantStatus) -> bool:
    pod = p.pods_by_uid.get(member.uid)
    if pod is None or pod.exit is None or pod.exit.code != 0:
        return False
    lease = p.participant(pod)
    record = lease.record if lease is not None else None
    return record is None or (record.id == member.id and record.state != State.LEAVING.value)


def _close(p: Pass, outcome: Outcome, reason: str, message: str) -> None:
    """The job is over: the round is Closed for good."""
    wall = p.now.wall
    history = p.status.rounds
    if history and history[0].end is None:
        p.set(rounds=(replace(history[0], end=wall), *history[1:]))
    p.set_round(
        phase=Phase.CLOSED.value, outcome=outcome.value, message=message, broken=p.round.broken or wall
    )
    p.set(completion=wall)
    p.reason = reason
    p.event(outcome.value, message, warning=outcome is Outcome.FAILED)
