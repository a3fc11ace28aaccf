"""A planner of a few lines in the place of the real one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from elasticjob.contract.names import pod_name
from elasticjob.contract.round_record import RoundRecord
from elasticjob.rounds.waits import RoundWait, WaitKey
from elasticjob_operator.plan.state.model import (
    CreatePod,
    DeletePod,
    Event,
    Job,
    Now,
    Observed,
    Plan,
)
from elasticjob_operator.plan.state.status import JobStatus, ParticipantStatus, RoundStatus

Actions = tuple[CreatePod | DeletePod, ...]
FIRST = WaitKey(RoundWait.LAST_CALL)


class StubPlanner:
    """Wants round ``number`` in ``phase``, and whatever ``actions`` says."""

    def __init__(self) -> None:
        self.number = 0
        self.phase = "Broken"
        self.follows = True
        """A round Lease that is ahead."""
        self.message = ""
        self.waiting = ""
        self.events: tuple[Event, ...] = ()
        self.actions: Callable[[Job, Observed], Actions] = lambda _job, _observed: ()
        self.judged_unheard: Callable[[Observed], tuple[str, ...]] = lambda _observed: ()
        self.pod_names: tuple[str, ...] = ()
        self.participants: tuple[ParticipantStatus, ...] = ()
        self.rights_in_doubt = False
        self.seen: list[Observed] = []
        self.seen_at: list[float] = []
        self.timers: list[Mapping[WaitKey, float]] = []

    def __call__(
        self, job: Job, status: JobStatus, observed: Observed, now: Now, timers: Mapping[WaitKey, float]
    ) -> Plan:
        self.seen.append(observed)
        self.seen_at.append(time.monotonic())
        self.timers.append(timers)
        number = max(self.number, status.current_round.number)
        if self.follows and observed.record is not None and observed.record.number > number:
            number = observed.record.number + 1
        judged_unheard = self.judged_unheard(observed)
        message = f"given up: {', '.join(judged_unheard)}" if judged_unheard else self.message
        wanted = RoundStatus(number=number, phase=self.phase, message=message)
        if self.phase == "Active":
            wanted = replace(
                wanted, nonce=f"n{number}", leader_pod_name="mnist-0-0", leader_endpoint="10.0.0.1:1"
            )
        after = replace(status, current_round=wanted, participants=self.participants)
        return Plan(
            status=after,
            record=project(job, after, self.waiting),
            pod_names=frozenset(self.pod_names),
            actions=self.actions(job, observed),
            events=self.events,
            timers={FIRST: now.mono, **timers},
            judged_unheard=judged_unheard,
            rights_in_doubt=self.rights_in_doubt,
        )


def project(job: Job, status: JobStatus, waiting: str = "") -> RoundRecord:
    active = status.current_round.phase == "Active"
    return RoundRecord(
        job_uid=job.uid,
        number=status.current_round.number,
        phase=status.current_round.phase,
        nonce=status.current_round.nonce,
        member_ids=("abcd",) if active else (),
        leader_endpoint=status.current_round.leader_endpoint,
        message=status.current_round.message,
        waiting_message=waiting,
    )


def create_missing(job: Job, observed: Observed, attempts: tuple[int, ...] = (0, 0)) -> Actions:
    there = {p.name for p in observed.pods}
    wanted = [CreatePod(pod_name(job.name, slot, a), slot, a) for slot, a in enumerate(attempts)]
    return tuple(action for action in wanted if action.name not in there)
