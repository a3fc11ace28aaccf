"""The judge: it sees everything as it happens and knows what is true. It checks invariants at every step.

Their numbers are those of docs/internals/invariants.md.
"""

from __future__ import annotations

from typing import Any

from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.participant import Membership
from elasticjob.rounds.causes import Cause
from elasticjob_operator.plan.state.evidence import APPLICATION, SCALING
from elasticjob_operator.plan.state.status import JobStatus
from tests.simulation.agent import Agent
from tests.simulation.api import JOB_KEY, ROUND_KEY, Item, Key
from tests.simulation.charges import Charges, a_notice_may_be_repeated
from tests.simulation.informers import JobValue
from tests.simulation.pace import Pace
from tests.simulation.past import Past, Published, Word
from tests.simulation.truth import Incident, RoundKey, Truth
from tests.simulation.violation import Violation, violated

DEPARTURES = frozenset({Cause.POD_DELETED, Cause.EVICTED, Cause.PREEMPTED, Cause.NODE_LOST})
"""Causes of a drain that something else takes a member away for; a taint of a node that is well, too."""
HEARD_SECONDS = 2.0
"""After this time, a participant that has announced itself must not be taken for one that has not."""


class Oracle:
    """See the module. ``truth`` is what has happened."""

    def __init__(self, now: Any) -> None:
        self._now = now
        self.pace = Pace(now)
        self._suspension_asked: dict[str, float] = {}
        """Since when jobs are to be suspended, by UID."""
        self.rounds: dict[tuple[str, int], tuple[Any, ...]] = {}
        """(job UID, round) -> (nonce, members, leader)."""
        self.ids: dict[tuple[str, str], int] = {}
        """(job UID, id) -> the round that it was a member of."""
        self.returned: dict[tuple[str, int, str], dict[int, str]] = {}
        """(job UID, round, nonce) -> rank -> agent UID, of those who returned from ``next_rendezvous``."""
        self.finished: dict[tuple[str, int], set[int]] = {}
        self.opened: dict[str, set[int]] = {}
        """By nonce of a round: its ranks whose workers have opened checkpoints that are fenced."""
        self.training: dict[tuple[str, int], dict[int, str]] = {}
        """(job UID, round) -> rank -> agent UID, of those whose workers run now."""
        self.truth = Truth()
        self.past = Past()
        self.charges = Charges(self.truth, self.past)
        self.by_hand = False
        """While somebody edits the round Lease."""
        self.status: dict[str, JobStatus] = {}
        self.stages: dict[RoundKey, set[int]] = {}
        """By round, which torchruns of their commands its members ran."""
        self.announced: dict[str, tuple[float, ParticipantRecord]] = {}
        """By the UID of its pod, what a participant has announced, and when."""
        self.spoken: dict[str, float] = {}
        """By the UID of its pod, when a participant's Lease was last written."""
        self.bases: dict[str, set[int]] = {}
        """By the UID of the job, for how many pods a queue was asked at first."""

    def happens(
        self,
        who: str,
        *accounts: str,
        lightly: bool = False,
        harmless: bool = False,
        key: RoundKey | None = None,
    ) -> None:
        """See ``Incident``."""
        self.truth.incidents.append(Incident(self._now(), who, frozenset(accounts), lightly, harmless, key))

    # -- what is written -----------------------------------------------------------------------------------

    def committed(self, key: Key, old: Item | None, item: Item | None) -> None:
        """Hear every commit."""
        if item is None:
            return
        if key[0] == "pod":
            self.past.pods.setdefault((item.uid.partition("-")[0], key[1]), set()).add(item.uid)
        if key[0] == "workload" and not item.value.workload.extra:
            self.bases.setdefault(item.value.job_uid, set()).add(item.value.workload.count)
        if key[0] == "lease" and item.value.record is not None:
            at, known = self.announced.get(item.value.holder, (self._now(), None))
            if known != item.value.record:
                at = self._now()
            self.announced[item.value.holder] = at, item.value.record
            self.spoken[item.value.holder] = self._now()
            self.past.heard.add(Word.of(item.value.holder, item.value.record))
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
        a, b = before.current_round, status.current_round
        self.status[uid] = status
        if b.number < a.number:
            raise Violation("I1", f"the status goes back from round {a.number} to {b.number}")
        if b.drain is not None and a.drain is None:
            self._drains(value, before)
        if b.drain is not None and a.drain not in (None, b.drain) and a.number == b.number:
            raise Violation("Drain", f"the drain of round {b.number} was changed")
        if a.drain is not None and b.drain is None and (a.number, b.phase) == (b.number, "Active"):
            raise Violation("Drain", f"the drain of round {b.number} was taken back")
        if b.phase == "Active" and (a.number, a.phase) != (b.number, b.phase):
            self._publish(value, before)
        if b.number and b.phase == "Active":
            facts = (b.nonce, tuple(m.id for m in status.members()), b.leader_endpoint)
            self._same(uid, b.number, facts)
        if a.phase == "Active" and b.phase == "Broken" and a.number:
            succeeded = any(m.succeeded for m in before.members()) and a.drain is None
            succeeded &= value.job.queue is None  # quota that is wanted back does not wait for that
            cause = b.next_cause.cause
            planned = cause in ("ScaledUp", "ScaledDown") and not self._too_few_are_left(value)
            self.pace.broken(cause, planned, succeeded)
            self._excused(value, before)
        if (
            b.phase == "Active"
            and (a.established_time is None or a.number < b.number)
            and b.established_time is not None
        ):
            self.pace.established()
        if value.job.spec.suspend:
            self._suspension_asked.setdefault(uid, self._now())
        else:
            self._suspension_asked.pop(uid, None)
        if status.is_true("Suspended") and not before.is_true("Suspended"):
            self._suspended(value)
        self._silence(uid, before, status)
        self.charges.changed(uid, before, status)
        if uid in self.past.current:
            self.past.current[uid].established |= b.established_time is not None
            self.past.current[uid].suspended |= value.job.spec.suspend or (
                value.job.queue is not None and status.is_true("Suspended")
            )
            self.past.current[uid].rescaled |= b.phase == "Broken" and b.next_cause.account == SCALING
        if status.finished and not before.finished:
            self.past.closed[uid] = self._now()
            self._closed(value)
        elif before.finished and not status.finished:
            raise Violation("I8", "a finished job is not finished any more")

    def _publish(self, value: JobValue, before: JobStatus) -> None:
        status, spec, uid = value.status, value.job.spec, value.job.uid
        r, members = status.current_round, status.members()
        if r.number <= before.current_round.number:
            raise Violation("I1", f"round {r.number} is published after round {before.current_round.number}")
        kept = self._kept_for_memory(value)
        if spec.suspend and spec.template is not None and not kept:
            raise Violation("Suspension", f"round {r.number} is published while the job is suspended")
        self._bounds(value, before)
        # A queue has admitted a job with the minimum that it had then.
        least = (spec.min_replicas or status.min_replicas) if value.job.queue is None else 1
        if not least <= len(members) <= max(spec.replicas, kept):
            raise Violation(
                "I3", f"round {r.number} has {len(members)} members, not {least} to {spec.replicas}"
            )
        if spec.sizes.ceil(len(members)) != len(members):
            raise Violation("I3", f"round {r.number} has {len(members)} members: {spec.sizes.words}")
        if [m.group_rank for m in members] != list(range(len(members))):
            raise Violation("I2", f"the ranks of round {r.number} are {[m.group_rank for m in members]}")
        for member in members:
            if (uid, member.id) in self.ids:
                known = self.ids[uid, member.id]
                raise Violation("I4", f"id {member.id} of {member.pod_name} was in round {known} already")
        slots = [m.slot for m in members]
        if value.job.spec.template is not None and len(set(slots)) != len(slots):
            raise Violation(
                "I4", f"round {r.number} has two attempts of one slot: {[m.pod_name for m in members]}"
            )
        self.ids.update({(uid, m.id): r.number for m in members})
        if uid in self.past.current:
            self.past.current[uid].until, self.past.current[uid].next = self._now(), r.number
            self.past.current[uid].succeeded = r.cause == Cause.STARTED_AGAIN
            done = self.finished.get((uid, before.current_round.number), set())
            if r.cause == Cause.STARTED_AGAIN and done != set(range(len(before.members()))):
                raise Violation(
                    "I8", f"round {before.current_round.number} has not succeeded: only {sorted(done)} have"
                )
        self.past.current[uid] = Published(self._now(), frozenset(m.pod_uid for m in members))
        self.past.published[uid, r.number] = self.past.current[uid]
        self.pace.published(r.cause)
        training = self.training.get((uid, before.current_round.number), {})
        if before.members() and len(training) == len(before.members()):
            alive = [m for m in before.members() if m.pod_uid in training.values()]
            heard = max(self.spoken.get(m.pod_uid, 0.0) for m in before.members())
            waived = spec.fencing_after is not None and self._now() - heard >= spec.fencing_after
            waived |= len(self.opened.get(before.current_round.nonce, ())) == len(before.members())
            if len(alive) == len(before.members()) and not self._gone(before) and not waived:
                raise Violation(
                    "Fencing",
                    f"round {r.number} is published while all of round {before.current_round.number} "
                    "are training",
                )

    def _bounds(self, value: JobValue, before: JobStatus) -> None:
        """Without ``minReplicas`` the job is of a fixed size, once it has trained with it; or of the one that
        its queue has admitted at first."""
        r, spec, least = before.current_round, value.job.spec, value.status.min_replicas
        full = r.established_time is not None and r.members == spec.replicas
        fixed = spec.min_replicas is None and (full or not r.number)
        bases = {spec.sizes.floor(base) for base in self.bases.get(value.job.uid, ())}
        if fixed and least != spec.replicas and least not in bases:
            raise Violation("I3", f"the minimum in force is {least}, not {spec.replicas}")

    def _gone(self, before: JobStatus) -> bool:
        """Whether the object of a member's pod or node is gone: it counts as having left, whatever runs."""
        return any(m.pod_uid not in self.pod_uids() for m in before.members())

    def dead(self, uid: str) -> bool:
        """Whether the agent of this pod has ended; the world sets it."""
        raise NotImplementedError

    def hangs(self, uid: str) -> bool:
        """Whether the agent of this pod hangs for ever; the world sets it."""
        raise NotImplementedError

    def runs(self, uid: str) -> bool:
        """Whether the training container of this pod still runs or has failed; the world sets it."""
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
                (record.nonce, record.member_ids or None, record.leader_endpoint),
                "the round Lease",
            )
            members = self.rounds[record.job_uid, record.number][1]
            if members is not None and len(members) != record.size:
                raise Violation("I2", f"round {record.number} has another size than {record.size}")
            if self.status.get(record.job_uid, JobStatus()).current_round.number < record.number:
                raise Violation("I1", f"the round Lease is ahead of the status: {record.number}")

    @staticmethod
    def _too_few_are_left(value: JobValue) -> bool:
        """Whether so many members finished while the round drained that the next one waits for other pods."""
        status = value.status
        finished = sum(m.succeeded for m in status.members())
        return finished > 0 and len(status.participants) - finished < status.min_replicas

    def _same(self, uid: str, number: int, facts: tuple[Any, ...], what: str = "the status") -> None:
        known = self.rounds.get((uid, number))
        if known is None:
            known = self.rounds[uid, number] = facts
        if known != facts and (facts[1] is not None or (known[0], known[2]) != (facts[0], facts[2])):
            raise Violation("I1", f"{what} has another round {number}: {facts} instead of {known}")

    def _suspended(self, value: JobValue) -> None:
        """The pods of a job go. They take what only their memory holds with them."""
        history = value.status.round_history
        ends = [one.end for one in history if one.end is not None]
        if ends and (ends[0].cause, ends[0].drain) == ("Suspended", "NotSupported"):
            del ends[0]  # that round had no time to save anything
        drained = bool(ends) and (ends[0].cause, ends[0].drain) == ("ScaledUp", "Stopped")
        waited = self._now() - self._suspension_asked.get(value.job.uid, self._now())
        if value.job.spec.memory_checkpoints is not None and drained and waited < 29.0:
            raise Violation("Memory", f"suspended after {waited:.0f} s, and only memory has the last steps")

    @staticmethod
    def _kept_for_memory(value: JobValue) -> int:
        """How many members the round before had, if only memory has its last steps: what takes pods away may
        wait."""
        before = value.status.round_history[1:2]
        end = before[0].end if before and value.job.spec.memory_checkpoints is not None else None
        drained = end is not None and (end.cause, end.drain) == ("ScaledUp", "Stopped")
        return before[0].members if drained else 0

    def _drains(self, value: JobValue, before: JobStatus) -> None:
        """A drain begins: in an established round, for what somebody wants, with time to end."""
        r, spec, queued = value.status.current_round, value.job.spec, value.job.queue is not None
        assert r.drain is not None
        seconds = (r.drain.deadline_time - r.drain.start_time).total_seconds()
        wanted: dict[str, bool] = {
            "ScaledUp": r.members < spec.replicas,
            "ScaledDown": r.members > spec.replicas or queued,
            "Suspended": spec.suspend or queued,
            "DeadlineExceeded": spec.active_deadline is not None,
        }
        if r.drain.cause in DEPARTURES:
            wanted[r.drain.cause] = self._departs(value)
        if r.established_time is None or before.current_round.number != r.number or not 0 < seconds <= 30:
            raise Violation("Drain", f"round {r.number} drains for {seconds:.0f} s and is not established")
        if not wanted.get(r.drain.cause, False):
            raise Violation("Drain", f"round {r.number} drains for {r.drain.cause}, which nobody wants")

    def _departs(self, value: JobValue) -> bool:
        """Whether something has taken a member of the running round away."""
        r, members = value.status.current_round, value.status.members()
        key = (value.job.uid, r.number)
        known = self.past.published.get(key)
        since = self.past.since(known.at if known is not None else 0.0)
        return self.truth.excuses(key, {m.pod_uid for m in members}, since, True) or (
            r.drain is not None and self._repeated_notice(r.drain.cause, since)
        )

    def _repeated_notice(self, cause: str, since: float) -> bool:
        """Whether this round ends for a node's notice that may have been over before it."""
        return cause == "Preempted" and a_notice_may_be_repeated(self.past, self.truth, since, self._now())

    def _excused(self, value: JobValue, before: JobStatus) -> None:
        """I5: a round ends for something that has really happened to it."""
        r, why = value.status.current_round, value.status.current_round.next_cause
        drain = before.current_round.drain
        if drain is not None and drain.cause == why.cause and why.cause not in DEPARTURES:
            self.happens("*", SCALING, key=(value.job.uid, r.number))
            return  # it was excused when the drain began
        if value.job.queue is not None and why.cause in ("ScaledDown", "Suspended"):
            self.happens("*", SCALING, key=(value.job.uid, r.number))
            return  # the queue decides; ``queue.Judge`` says whether it had to be
        if why.cause == "ScaledUp" and before.current_round.members < value.job.spec.replicas:
            self.happens("*", SCALING, key=(value.job.uid, r.number))
            return
        key = (value.job.uid, r.number)
        known = self.past.published.get(key)
        since = self.past.since(known.at if known is not None else 0.0)
        uids = {m.pod_uid for m in before.members()}
        if self.truth.excuses(key, uids, since, before.current_round.established_time is not None):
            return
        if self._repeated_notice(why.cause, since):
            return
        alone = why.cause == "LeaderUnreachable" and len(uids) == 1  # nobody passes on what it cannot write
        if alone and self.truth.excuses(key, uids, since, established=False, harmless=True):
            return
        if any(self.dead(m.pod_uid) or self.hangs(m.pod_uid) for m in before.members()):
            return
        raise Violation(
            "I5", f"round {r.number} is broken ({why.cause}: {why.message}) and nothing has happened to it"
        )

    def _silence(self, uid: str, before: JobStatus, status: JobStatus) -> None:
        """No pod that has announced itself for the next round is given up for not having come back."""
        known = {m.pod_uid for m in before.members() if m.state == "Lost"}
        for member in status.members():
            if member.state != "Lost" or member.pod_uid in known or "did not rejoin" not in member.message:
                continue
            at, record = self.announced.get(member.pod_uid, (self._now(), None))
            back = (
                record is not None
                and record.state == "Joining"
                and record.seen(uid) >= status.current_round.number
            )
            if (
                back
                and self._now() - at > HEARD_SECONDS
                and not (self.dead(member.pod_uid) or self.hangs(member.pod_uid))
            ):
                text = f"{member.message}, and it has announced itself {self._now() - at:.0f} s ago"
                violated("Silence", text)

    def _closed(self, value: JobValue) -> None:
        status = value.status
        if status.is_true("Failed"):
            failed = status.condition("Failed")
            over = [a for a in status.accounts if a.max_restarts is not None and a.used > a.max_restarts]
            reason = failed.reason if failed is not None else ""
            theirs = value.job.spec.template is None and reason == "MemberLostAfterSuccess"
            # A replacement begins with the first torchrun of its command, beside others' later ones.
            mixed = len(self.stages.get((value.job.uid, status.current_round.number), ())) > 1
            if not over and not theirs and not (mixed and reason == "MembersDisagree"):
                raise Violation("I8", f"the job is closed: {failed}")
            if theirs:
                self.pace.completed()
            return
        self.pace.completed()
        number, members = status.current_round.number, status.members()
        # A round Lease that was set forward by hand gives a broken round a higher number.
        as_published = max((n for uid, n in self.past.published if uid == value.job.uid), default=number)
        done = self.finished.get((value.job.uid, as_published), set())
        if done != set(range(len(members))):
            raise Violation("I8", f"Complete, but of round {as_published} only {sorted(done)} have finished")
        going_on = [m.pod_name for m in members if self.runs(m.pod_uid)]
        if going_on and value.job.spec.template is not None:
            violated("I8", f"Complete, and the commands of {going_on} go on or have failed")

    # -- what agents do ------------------------------------------------------------------------------------

    def agent_returned(self, agent: Agent, m: Membership) -> None:
        """``next_rendezvous`` has returned."""
        self.stages.setdefault((m.job_uid, m.number), set()).add(agent.stage)
        known = self.rounds.get((m.job_uid, m.number))
        if m.nonce == "by-hand":
            return
        if known is None or (known[0], known[2]) != (m.nonce, m.leader_endpoint):
            raise Violation("I2", f"{agent.name} returned for round {m.number} as {m}, published: {known}")
        ranks = self.returned.setdefault((m.job_uid, m.number, m.nonce), {})
        if m.group_rank in ranks:
            raise Violation("I2", f"rank {m.group_rank} of round {m.number} returned twice: {agent.name}")
        if m.size != len(known[1]) or m.group_rank < 0 or known[1][m.group_rank] != m.id:
            raise Violation("I2", f"{agent.name} is rank {m.group_rank} of {m.size} in {known[1]} as {m.id}")
        ranks[m.group_rank] = agent.uid
        self.training.setdefault((m.job_uid, m.number), {})[m.group_rank] = agent.uid

    def agent_left(self, agent: Agent, m: Membership) -> None:
        """Its workers of this round have ended."""
        self.training.get((m.job_uid, m.number), {}).pop(m.group_rank, None)
        self.happens(agent.uid)
        known = self.past.published.get((m.job_uid, m.number))
        if not agent.alive and known is not None and known.until == float("inf"):
            self.past.died_in_round[agent.uid] = known

    def agent_failed(self, agent: Agent, m: Membership, echo: bool) -> None:
        """A worker of its has failed; ``echo``: because it lost a peer."""
        key = (m.job_uid, m.number)
        if echo:
            self.happens(agent.uid)
            if key in self.past.published:
                self.past.published[key].echoes = True
        else:
            self.happens(agent.uid, APPLICATION, key=key)

    def agent_finished(self, agent: Agent, m: Membership) -> None:
        """Its workers have ended well."""
        status = self.status.get(m.job_uid, JobStatus())
        if (status.current_round.number, status.current_round.phase) != (m.number, "Active"):
            self.happens(agent.uid, APPLICATION)  # it does not know that this does not count any more
        self.finished.setdefault((m.job_uid, m.number), set()).add(m.group_rank)
