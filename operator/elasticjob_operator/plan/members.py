"""What is known of each member of the round, and the evidence against it.

A member is in one of these states (``status.participants[].state``):

* Member: nothing speaks against it.
* Succeeded: its workers have finished this round well.
* Left: it is known to have left the round and lives: it has announced itself anew.
* Unreachable: somebody who must know has named it lost; it may still come back by itself.
* Lost: it will not come back; its pod is replaced.

Lost and Unreachable are verdicts and stay: the witness may be gone at the next pass.
"""

from __future__ import annotations

from dataclasses import replace

from elasticjob.contract.records import LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS, RoundReport, State
from elasticjob_operator.plan.causes import Evidence
from elasticjob_operator.plan.context import Pass
from elasticjob_operator.plan.model import Exit, Participant, Pod
from elasticjob_operator.plan.status import ParticipantStatus

SIGNALS = {1: "SIGHUP", 2: "SIGINT", 6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}

ACCUSED_SECONDS = 2.0
"""How long fewer than half of the members may accuse the leader before they are the ones given up."""


def examine(p: Pass) -> list[Evidence]:
    """Bring the members' states up to date; return the evidence against the round, if any."""
    evidence: list[Evidence] = []
    members = []
    for member in p.status.members():
        state, found = _examine(p, member)
        if found is not None:
            evidence.append(found)
        message = found.message if found else member.message
        same = (state, message) == (member.state, member.message)
        members.append(member if same else replace(member, state=state, message=message))
    p.set_members(tuple(members))
    if p.round.phase == "Active":
        evidence.extend(_reports(p))
    return evidence


def departed(p: Pass) -> bool:
    """Whether one member of the last round at least can be shown to have left it (fencing).

    One is enough where training needs all of them. Without members there is nothing to fence.
    """
    members = p.status.members()
    if not members:
        return True
    for member in members:
        pod = p.pods_by_uid.get(member.uid)
        if member.state == "Left" or pod is None or pod.exit is not None or pod.ended:
            return True
        lease = p.participant(pod)
        if lease is not None and lease.record is not None and lease.record.id != member.id:
            return True  # given up, and it has announced itself anew all the same
    return False


def _examine(p: Pass, member: ParticipantStatus) -> tuple[str, Evidence | None]:
    """The member's state, and what speaks against the round, from its pod and its Lease."""
    over = p.round.phase != "Active"
    who = f"{member.pod} (rank {member.rank})"
    if member.state == "Lost":
        return "Lost", None
    pod = p.pods_by_uid.get(member.uid)
    if pod is None:
        return "Lost", _evidence("PodLost", member, f"{who} was lost: its pod is gone")
    lease = p.participant(pod)
    record = lease.record if lease is not None else None
    left = record is not None and record.id != member.id
    if pod.exit is not None or pod.ended:
        if pod.exit is not None and pod.exit.code == 0 and not left:
            return ("Lost" if over else "Succeeded"), None
        return "Lost", _ended(member, pod, who)
    if pod.deleting:
        return "Lost", _evidence("PodDeleted", member, f"{who} is being deleted")
    if pod.node_gone or (not pod.node_ready and _silent(p, member, lease)):
        what = "is gone" if pod.node_gone else "is not ready and the pod is silent"
        return "Lost", _evidence("NodeLost", member, f"{who} was lost: node {pod.node} {what}")
    if record is None:
        return member.state, None
    if left:
        if record.last_round != p.round.number or record.last_job_uid != p.job.uid:
            return "Left", _evidence("PodRestarted", member, f"{who} was restarted in place")
        failed = _worker_failure(p, member, lease)
        return "Left", failed or _evidence("MemberLeft", member, f"{who} left the round")
    if record.state == State.SUCCEEDED.value:
        return ("Lost" if over else "Succeeded"), None
    if record.state in (State.LEAVING.value, State.FAILED.value):
        return "Lost", _evidence("PodDeleted", member, f"{who} is leaving on a signal")
    return member.state, None


def _worker_failure(p: Pass, member: ParticipantStatus, lease: Participant | None) -> Evidence | None:
    failure = lease.failure if lease is not None else None
    if failure is None or failure.number != p.round.number:
        return None
    message = failure.message or "exit code unknown"
    return _evidence(
        "WorkerFailed",
        member,
        f"a worker of {member.pod} (rank {member.rank}) failed: {message}",
        exit_code=failure.exit_code,
    )


def _ended(member: ParticipantStatus, pod: Pod, who: str) -> Evidence:
    end = pod.exit
    if end is None:
        why = pod.reason or "no reason given"
        return _evidence("PodLost", member, f"{who} was lost: its pod failed ({why})")
    cause = "PodFailed"
    if end.reason == "OOMKilled":
        cause = "OutOfMemory"
    elif end.code > 128 or end.code < 0:
        cause = "PodLost"
    return _evidence(
        cause, member, f"{who} was lost: its container ended with {describe_exit(end)}", end.code
    )


def describe_exit(end: Exit) -> str:
    """An exit code in words: ``SIGKILL (exit code 137)``, ``OOMKilled``, ``exit code 1``."""
    if end.reason == "OOMKilled":
        return "OOMKilled"
    name = SIGNALS.get(end.code - 128)
    return f"{name} (exit code {end.code})" if name else f"exit code {end.code}"


def _evidence(cause: str, member: ParticipantStatus, message: str, exit_code: int | None = None) -> Evidence:
    return Evidence(cause, message, member.pod, member.rank, exit_code)


def _silent(p: Pass, member: ParticipantStatus, lease: Participant | None) -> bool:
    """The second witness against a pod on a node that is not ready: it was named lost, or its Lease was
    not renewed three times. A kubelet that died alone takes no training with it."""
    if member.state == "Unreachable":
        return True
    silent = lease.silent if lease is not None else p.timers.elapsed(f"unheard:{member.uid}")
    left = 3 * (LEADER_RENEW_SECONDS if member.rank == 0 else MEMBER_RENEW_SECONDS) - silent
    if left >= 0:
        p.timers.wake(left + 1)  # silence makes no event
    return left < 0


def report_of(p: Pass, member: ParticipantStatus) -> RoundReport | None:
    """What this member says of the current round, if it still is that member."""
    pod = p.pods_by_uid.get(member.uid)
    lease = p.participant(pod) if pod is not None else None
    if lease is None or lease.report is None or lease.report.nonce != p.round.nonce:
        return None
    return lease.report


def _reports(p: Pass) -> list[Evidence]:
    """What members report about each other: silent ids from the leader, a leader nobody reaches."""
    members = p.status.members()
    leader = members[0]
    evidence: list[Evidence] = []
    named: dict[str, str] = {}
    report = report_of(p, leader)
    if report is not None:
        for member in members[1:]:
            if member.id in report.silent and member.state == "Member":
                why = report.message or "its beats stopped"
                named[member.id] = f"{member.pod} (rank {member.rank}) is unreachable: {why}"
                evidence.append(_evidence("Unreachable", member, named[member.id]))
        suspect_leader(p, leader, len(named), len(members) - 1)
    accusers = [m for m in members[1:] if _accuses(p, m)]
    if accusers:
        others = max(1, len(members) - 1)
        if 2 * len(accusers) > others and _leader_may_be_given_up(p, members, accusers):
            said = next((r.message for m in accusers if (r := report_of(p, m)) is not None and r.message), "")
            text = f"{len(accusers)} of {others} other members can't reach the leader {leader.pod}"
            named[leader.id] = f"{text}: {said}" if said else text
            p.bar_from_leading(leader.pod)
            evidence.append(_evidence("LeaderUnreachable", leader, named[leader.id]))
        elif p.timers.left(f"accused:{p.round.number}", ACCUSED_SECONDS) == 0:
            for member in (m for m in accusers if m.state == "Member"):
                named[member.id] = (
                    f"{member.pod} (rank {member.rank}) can't reach the leader {leader.pod}; others can"
                )
                evidence.append(_evidence("Unreachable", member, named[member.id]))
    if named:
        p.set_members(
            tuple(
                replace(m, state="Unreachable", message=named[m.id]) if m.id in named else m
                for m in p.status.members()
            )
        )
    return evidence


def suspect_leader(p: Pass, leader: ParticipantStatus, named: int, others: int) -> None:
    """A leader that reaches fewer than half of several others may be the one who is cut off: it shall not
    lead the next round."""
    if others >= 2 and 2 * named > others:
        p.bar_from_leading(leader.pod)


def _accuses(p: Pass, member: ParticipantStatus) -> bool:
    report = report_of(p, member)
    return report is not None and report.leader_lost and member.state in ("Member", "Succeeded")


def _leader_may_be_given_up(
    p: Pass, members: tuple[ParticipantStatus, ...], accusers: list[ParticipantStatus]
) -> bool:
    """Of two members one accuses the other: it is believed if its own Lease is fresher than the leader's."""
    if len(members) != 2:
        return True
    silences = []
    for member in (members[0], accusers[0]):
        pod = p.pods_by_uid.get(member.uid)
        lease = p.participant(pod) if pod is not None else None
        silences.append(lease.silent if lease is not None else float("inf"))
    return silences[1] <= silences[0]
