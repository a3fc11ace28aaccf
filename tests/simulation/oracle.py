"""The judge: it sees everything as it happens and knows what is true. It checks I1 to I9 at every step."""

from __future__ import annotations

from typing import Any

from elasticjob.contract.records import RoundRecord
from elasticjob.core.participant import Membership
from elasticjob_operator.plan.status import JobStatus
from tests.simulation.agent import Agent
from tests.simulation.api import Item, Key
from tests.simulation.operator import JOB_KEY, ROUND_KEY, JobValue


class Violation(AssertionError):
    """An invariant does not hold. ``rule`` is its name, I1 to I9, or Liveness."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Oracle:
    """``excuses`` are (time, pod UID or "*", lightly) for which a round may end; lightly: only one that is
    not established."""

    def __init__(self, now: Any) -> None:
        self._now = now
        self.rounds: dict[tuple[str, int], tuple[Any, ...]] = {}
        """(job UID, round) -> (nonce, members, leader)."""
        self.ids: dict[tuple[str, str], int] = {}
        """(job UID, id) -> the round that it was a member of."""
        self.refused: set[tuple[str, str]] = set()
        self.returned: dict[tuple[str, int, str], dict[int, str]] = {}
        """(job UID, round, nonce) -> rank -> agent UID, of those who returned from ``next_rendezvous``."""
        self.finished: dict[tuple[str, int], set[int]] = {}
        self.training: dict[tuple[str, int], dict[int, str]] = {}
        """(job UID, round) -> rank -> agent UID, of those whose workers run now."""
        self.left: dict[tuple[str, int], set[int]] = {}
        self.failures: set[tuple[str, int]] = set()
        """(agent UID, round) of workers that failed."""
        self.excuses: list[tuple[float, str, bool]] = []
        self.by_hand = False
        """While somebody edits the round Lease."""
        self.established: set[tuple[str, int]] = set()
        self.ended: dict[int, str] = {}
        self.status: dict[str, JobStatus] = {}
        self.published: dict[int, float] = {}

    def excuse(self, who: str, lightly: bool = False) -> None:
        """Something happens for which a round may end: to this pod (UID), or to anybody ("*")."""
        self.excuses.append((self._now(), who, lightly))

    # -- what is written -----------------------------------------------------------------------------------

    def committed(self, key: Key, old: Item | None, item: Item | None) -> None:
        """Hear every commit."""
        if item is None:
            return
        if key == JOB_KEY:
            value: JobValue = item.value
            same = old is not None and old.uid == item.uid
            self._status(value, old.value.status if same and old is not None else JobStatus())
        elif key == ROUND_KEY:
            record: RoundRecord = item.value
            before = old.value if old is not None and old.value.job_uid == record.job_uid else None
            self._record(record, before)

    def _status(self, value: JobValue, before: JobStatus) -> None:
        status, uid = value.status, value.job.uid
        a, b = before.round, status.round
        self.status[uid] = status
        if b.number < a.number:
            raise Violation("I1", f"the status goes back from round {a.number} to {b.number}")
        if b.phase == "Active" and (a.number, a.phase) != (b.number, b.phase):
            self._publish(value, before)
        if b.number and b.phase == "Active":
            facts = (b.nonce, tuple(m.id for m in status.members()), b.leader_endpoint)
            self._same(uid, b.number, facts)
        if a.phase == "Active" and b.phase == "Broken" and a.number:
            self.ended[a.number] = b.cause
            self._excused(value, before)
        self._charges(before, status)
        if b.established is not None:
            self.established.add((uid, b.number))
        if status.finished and not before.finished:
            self._closed(value)
        elif before.finished and not status.finished:
            raise Violation("I8", "a finished job is not finished any more")

    def _publish(self, value: JobValue, before: JobStatus) -> None:
        status, spec, uid = value.status, value.job.spec, value.job.uid
        r, members = status.round, status.members()
        if r.number <= before.round.number:
            raise Violation("I1", f"round {r.number} is published after round {before.round.number}")
        if not spec.minimum <= len(members) <= spec.replicas:
            raise Violation(
                "I3", f"round {r.number} has {len(members)} members, not {spec.minimum} to {spec.replicas}"
            )
        if [m.rank for m in members] != list(range(len(members))):
            raise Violation("I2", f"the ranks of round {r.number} are {[m.rank for m in members]}")
        for member in members:
            if (uid, member.id) in self.refused:
                raise Violation("I4", f"{member.pod} was refused with id {member.id} and is in {r.number}")
            if (uid, member.id) in self.ids:
                known = self.ids[uid, member.id]
                raise Violation("I4", f"id {member.id} of {member.pod} was in round {known} already")
        slots = [m.slot for m in members]
        if value.job.spec.template is not None and len(set(slots)) != len(slots):
            raise Violation(
                "I4", f"round {r.number} has two attempts of one slot: {[m.pod for m in members]}"
            )
        self.refused |= {(uid, refused) for refused in r.refused}
        self.ids.update({(uid, m.id): r.number for m in members})
        self.published[r.number] = self._now()
        last = (uid, before.round.number)
        training = self.training.get(last, {})
        if before.members() and len(training) == len(before.members()) and before.round.number == last[1]:
            alive = [m for m in before.members() if m.uid in training.values()]
            if len(alive) == len(before.members()) and not self._gone(before):
                raise Violation(
                    "Fencing", f"round {r.number} is published while all of round {last[1]} are training"
                )

    def _gone(self, before: JobStatus) -> bool:
        """Whether the pod object of a member is gone: then it counts as having left, whatever runs."""
        return any(m.uid not in self.pod_uids() for m in before.members())

    def dead(self, uid: str) -> bool:
        """Whether the agent of this pod has ended; the world sets it."""
        raise NotImplementedError

    def pod_uids(self) -> set[str]:
        """UIDs of the pods that have not ended; the world sets it."""
        raise NotImplementedError

    def _record(self, record: RoundRecord, before: RoundRecord | None) -> None:
        if self.by_hand:
            return
        if before is not None and record.order < before.order:
            raise Violation("I1", f"the round Lease goes back from {before.order} to {record.order}")
        if record.phase == "Active":
            self._same(
                record.job_uid,
                record.number,
                (record.nonce, record.members, record.leader),
                "the round Lease",
            )
            if self.status.get(record.job_uid, JobStatus()).round.number < record.number:
                raise Violation("I1", f"the round Lease is ahead of the status: {record.number}")

    def _same(self, uid: str, number: int, facts: tuple[Any, ...], what: str = "the status") -> None:
        known = self.rounds.setdefault((uid, number), facts)
        if known != facts:
            raise Violation("I1", f"{what} has another round {number}: {facts} instead of {known}")

    def _excused(self, value: JobValue, before: JobStatus) -> None:
        """I5: a round ends for something that has really happened to it."""
        r = value.status.round
        since = self.published.get(r.number, 0.0) - 60.0
        uids = {m.uid for m in before.members()} | {"*"}
        hard = before.round.established is not None
        if any(at >= since and who in uids and not (hard and lightly) for at, who, lightly in self.excuses):
            return
        if any(self.dead(m.uid) for m in before.members()):
            return
        if r.cause == "ScaledUp" and before.round.members < value.job.spec.replicas:
            return
        raise Violation(
            "I5", f"round {r.number} is broken ({r.cause}: {r.message}) and nothing has happened to it"
        )

    def _charges(self, before: JobStatus, status: JobStatus) -> None:
        old = {(c.round, c.pod): a.name for a in before.accounts for c in a.charges}
        new = [(c.round, c.pod) for a in status.accounts for c in a.charges]
        if len(set(new)) != len(new):
            raise Violation("I7", f"charged twice: {sorted(map(str, new))}")
        lost = set(old) - set(new)
        if lost:
            raise Violation("I7", f"a charge has vanished: {lost}")
        if status.restarts < before.restarts:
            raise Violation("I7", f"restarts fall from {before.restarts} to {status.restarts}")
        if status.restarts != len(new):
            raise Violation("I7", f"{status.restarts} restarts, {len(new)} charges")

    def _closed(self, value: JobValue) -> None:
        status = value.status
        if status.is_true("Failed"):
            failed = status.condition("Failed")
            over = [a for a in status.accounts if a.limit is not None and len(a.charges) > a.limit]
            reason = failed.reason if failed is not None else ""
            theirs = value.job.spec.template is None and reason == "MemberLostAfterSuccess"
            if not over and not theirs:
                raise Violation("I8", f"the job is closed: {failed}")
            return
        number, members = status.round.number, status.members()
        done = self.finished.get((value.job.uid, number), set())
        if done != set(range(len(members))):
            raise Violation("I8", f"Complete, but of round {number} only {sorted(done)} have finished")

    # -- what agents do ------------------------------------------------------------------------------------

    def agent_returned(self, agent: Agent, m: Membership) -> None:
        """``next_rendezvous`` has returned."""
        known = self.rounds.get((m.job_uid, m.number))
        if m.nonce == "by-hand":
            return
        if known is None or known != (m.nonce, m.members, m.leader):
            raise Violation("I2", f"{agent.name} returned for round {m.number} as {m}, published: {known}")
        ranks = self.returned.setdefault((m.job_uid, m.number, m.nonce), {})
        if m.rank in ranks:
            raise Violation("I2", f"rank {m.rank} of round {m.number} returned twice: {agent.name}")
        if m.size != len(m.members) or m.members[m.rank] != m.id:
            raise Violation("I2", f"{agent.name} is rank {m.rank} of {m.size} in {m.members} as {m.id}")
        ranks[m.rank] = agent.uid
        self.training.setdefault((m.job_uid, m.number), {})[m.rank] = agent.uid

    def agent_left(self, agent: Agent, m: Membership) -> None:
        """Its workers of this round have ended."""
        self.training.get((m.job_uid, m.number), {}).pop(m.rank, None)
        self.excuse(agent.uid)
        self.left.setdefault((m.job_uid, m.number), set()).add(m.rank)

    def agent_failed(self, agent: Agent, m: Membership) -> None:
        """A worker of its has failed."""
        self.failures.add((agent.uid, m.number))
        self.excuse(agent.uid)

    def agent_finished(self, m: Membership) -> None:
        """Its workers have ended well."""
        self.finished.setdefault((m.job_uid, m.number), set()).add(m.rank)
