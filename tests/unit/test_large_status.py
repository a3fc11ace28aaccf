"""What a job of thousands costs while all of them join again."""

from __future__ import annotations

from datetime import timedelta

from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.rounds.waits import WaitKey
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.state.model import Job, JobSpec, Now, Observed, Participant, Pod
from elasticjob_operator.plan.state.status import JobStatus, ParticipantStatus, RoundStatus
from tests.full_status import WALL

MEMBERS = 2_000
JOB = Job("default", "large", "uid", 1, JobSpec(replicas=MEMBERS))


def broken() -> JobStatus:
    members = (
        ParticipantStatus(f"old-{n}", f"large-{n}", f"uid-{n}", "Member", n, n, "node")
        for n in range(MEMBERS)
    )
    ended = RoundStatus(
        1, "Broken", "n", "large-0", "10.0.0.1:1", MEMBERS, start_time=WALL, established_time=WALL
    )
    return JobStatus(start_time=WALL, active_seconds=1, current_round=ended, participants=tuple(members))


def seen(back: int) -> Observed:
    """So many have announced themselves anew."""
    pods = tuple(
        Pod(f"large-{n}", f"uid-{n}", slot=n, node="node", running=True, ip="10.0.0.1")
        for n in range(MEMBERS)
    )
    leases = {}
    for n, pod in enumerate(pods):
        word = "new" if n < back else "old"
        record = ParticipantRecord(
            f"{word}-{n}", "Joining", "10.0.0.1:1", seen_job_uid="uid", seen_round=1 if n < back else 0
        )
        leases[pod.name] = Participant(pod.name, pod.uid, record)
    return Observed(pods=pods, leases=leases)


def test_joins_of_thousands_reach_the_status_every_few_seconds() -> None:
    """Each write was a megabyte, and there was one a second while all of them joined."""
    status, writes = broken(), []
    timers: dict[WaitKey, float] = {}
    for second in range(20):
        now = Now(WALL + timedelta(seconds=second), float(second), "nonce")
        decided = plan(JOB, status, seen(100 + 50 * second), now, timers)
        if decided.status != status:
            writes.append(second)
        status, timers = decided.status, dict(decided.timers)
    assert sum(entry.state == "Left" for entry in status.members()) >= 100
    assert len(writes) <= 6
