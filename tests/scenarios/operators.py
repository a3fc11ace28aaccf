"""A second operator that thinks it leads: caches of its own, and the guards of ``operator/.../act``.

It may see less than is there, but what it writes meets what is there: a status whose version is old is
refused (409), a round Lease is never put behind or beside itself, a pod's name is given once, and a
delete hits the UID that it was meant for. After a refusal it reads job and round Lease from the API
server, as the operator does, and plans again; pods and participants it knows from its watches only, which
have caught up by then unless a scenario says that they lag on. Before a verdict on what it has not heard it
lists them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elasticjob.contract.round_record import RoundRecord
from elasticjob.rounds.waits import WaitKey
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.state.model import (
    CreatePod,
    DeleteLease,
    DeletePod,
    Observed,
    Participant,
    Plan,
    Pod,
)
from elasticjob_operator.plan.state.status import JobStatus
from tests.scenarios.trace import differences, with_events

if TYPE_CHECKING:
    from tests.scenarios.world import World

REREADS = 3
OTHER = "other: "
"""Begins each line about it."""


class Refused(Exception):
    """A write met a guard: what was planned on must be read again."""


def ahead(there: RoundRecord | None, record: RoundRecord) -> bool:
    """Whether the round Lease of this job says more than a plan knows."""
    return there is not None and there.job_uid == record.job_uid and there.ahead_of(record)


def name_of(record: RoundRecord | None) -> str:
    """A record in a few words."""
    return "nothing" if record is None else f"round {record.number} {record.phase}"


@dataclass
class OtherOperator:
    """What it has in its caches, and the world that its writes meet."""

    world: World
    status: JobStatus = field(default_factory=JobStatus)
    version: int = 0
    record: RoundRecord | None = None
    pods: dict[str, Pod] = field(default_factory=dict)
    leases: dict[str, Participant] = field(default_factory=dict)
    timers: dict[WaitKey, float] = field(default_factory=dict)

    def see(self, *what: str) -> None:
        """Its watches bring what is there now; nothing named: everything."""
        seen = what or ("status", "record", "pods", "leases")
        if "status" in seen:
            self.status, self.version = self.world.status, self.world.version
        if "record" in seen:
            self.record = self.world.record
        if "pods" in seen:
            self.pods = dict(self.world.pods)
        if "leases" in seen:
            self.leases = dict(self.world.leases)

    def work(self, lagging: bool = False) -> None:
        """One pass, with as many readings as it needs. ``lagging``: only what it reads becomes new."""
        fresh = False
        for _ in range(REREADS):
            result = self._plan()
            if result.judged_unheard:
                self._say(f"lists pods and Leases before it gives up {', '.join(result.judged_unheard)}")
                self.see("pods", "leases")
                result = self._plan()
            try:
                self._carry_out(result, fresh)
            except Refused as refused:
                self._say(f"refused: {refused}")
                self.see(*(("status", "record") if lagging else ()))
                self.timers = {}
                fresh = True
                continue
            return
        raise AssertionError("the other operator does not come to rest")

    def _plan(self) -> Plan:
        world = self.world
        observed = Observed(tuple(self.pods.values()), dict(self.leases), self.record, world.ready_nodes())
        return plan(world.job, self.status, observed, world.now(), self.timers)

    def _carry_out(self, result: Plan, fresh: bool) -> None:
        behind = ahead(self.record, result.record)
        if behind and not fresh:
            raise Refused(
                f"the round Lease has {name_of(self.record)}, planned was {name_of(result.record)}; "
                "reads both again"
            )
        before = self.status
        if result.status != before:
            if self.version != self.world.version:
                raise Refused(
                    f"409, its status is of version {self.version}, the job of version {self.world.version}; "
                    "reads again"
                )
            self.world.write_status(result.status)
            self.see("status")
        said = len(self.world.trace)
        for line in differences(before, result.status):
            self._say(line)
        self.timers = dict(result.timers)
        try:
            self._write_rest(result, behind)
        finally:
            lines = [line.removeprefix(OTHER) for line in self.world.trace[said:]]
            self.world.trace[said:] = [OTHER + line for line in with_events(lines, result.events)]

    def _write_rest(self, result: Plan, behind: bool) -> None:
        if not behind and result.record != self.record:
            if self.record != self.world.record:
                raise Refused(
                    f"409, its round Lease is {name_of(self.record)}, there is {name_of(self.world.record)}; "
                    "reads again"
                )
            self.world.write_record(result.record)
            self.see("record")
        for action in result.actions:
            if isinstance(action, CreatePod):
                if action.name in self.world.pods:
                    self._say(f"refused: 409, {action.name} is there already")
                    continue
            elif isinstance(action, DeletePod):
                there = self.world.pods.get(action.name)
                if there is None or there.uid != action.uid:
                    self._say(f"refused: {action.name} is gone or another pod")
                    continue
            elif isinstance(action, DeleteLease) and action.name not in self.world.leases:
                continue
            self.world.act(action, OTHER)

    def _say(self, line: str) -> None:
        self.world.trace.append(OTHER + line)
