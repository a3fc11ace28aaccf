"""The judge: it sees everything as it happens and knows what is true. It checks invariants at every step.

Their numbers are those of docs/internals/invariants.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from elasticjob.contract.records import ParticipantRecord, RoundRecord
from elasticjob.core.participant import Membership
from elasticjob.rounds.causes import Cause
from elasticjob_operator.plan.causes import APPLICATION, INFRASTRUCTURE, PREEMPTION, SCALING
from elasticjob_operator.plan.model import JobSpec
from elasticjob_operator.plan.moves import MOVE_SECONDS
from elasticjob_operator.plan.status import Charge, JobStatus
from tests.simulation import traits
from tests.simulation.agent import Agent
from tests.simulation.api import DEAD_SECONDS, JOB_KEY, ROUND_KEY, Item, Key
from tests.simulation.informers import JobValue
from tests.simulation.pace import Pace
from tests.simulation.truth import Incident, RoundKey, Truth

HEARD_SECONDS = 2.0
"""Who has announced itself for so long is not taken for one that has not."""
SLACK_SECONDS = 60.0
"""How long before a round's first moment its end may have begun, if operators hear of it."""


class Violation(AssertionError):
    """An invariant does not hold. ``rule`` is its number, such as I1, or Liveness."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


@dataclass
class Published:
    """A round: when it was published, its members' pods, and when the next one was published, and as what.

    ``echoes``: a worker of it has failed for the loss of its peer. ``suspended``: the job was, before the
    next round; that is charged to nobody. ``rescaled``: it ended for a planned change.
    ``succeeded``: all had finished, and their commands ran torchrun again; that is charged to nobody, too.
    """

    at: float
    uids: frozenset[str]
    until: float = float("inf")
    next: int = 0
    established: bool = False
    echoes: bool = False
    suspended: bool = False
    rescaled: bool = False
    succeeded: bool = False


def _violated(rule: str, text: str) -> None:
    if traits.ON & traits.NEEDED_BY[rule]:
        raise Violation(rule, text)


def _cause(charge: Charge) -> int | str:
    """What was charged for: the end of a round, or of a pod that was never a member."""
    return charge.pod_name if charge.round is None else charge.round


def _counted(status: JobStatus) -> int:
    """Charges that are listed no more."""
    return sum(entry.count for account in status.accounts for entry in account.older)


class Oracle:
    """See the module. ``truth`` is what has happened."""

    def __init__(self, now: Any) -> None:
        self._now = now
        self.deafness: Callable[[], Iterable[tuple[str, float, float]]] = lambda: ()
        """Which watches of operators were dead without a sign, from when until when; the world sets it."""
        self.pace = Pace(now, _violated)
        self.rounds: dict[tuple[str, int], tuple[Any, ...]] = {}
        """(job UID, round) -> (nonce, members, leader)."""
        self.ids: dict[tuple[str, str], int] = {}
        """(job UID, id) -> the round that it was a member of."""
        self.returned: dict[tuple[str, int, str], dict[int, str]] = {}
        """(job UID, round, nonce) -> rank -> agent UID, of those who returned from ``next_rendezvous``."""
        self.finished: dict[tuple[str, int], set[int]] = {}
        self.training: dict[tuple[str, int], dict[int, str]] = {}
        """(job UID, round) -> rank -> agent UID, of those whose workers run now."""
        self.truth = Truth()
        self.restarts_in_place = False
        """Whether containers are restarted, after which nothing tells of their end."""
        self.by_hand = False
        """While somebody edits the round Lease."""
        self.status: dict[str, JobStatus] = {}
        self.published: dict[RoundKey, Published] = {}
        self.stages: dict[RoundKey, set[int]] = {}
        """By round, which torchruns of their commands its members ran."""
        self.closed: dict[str, float] = {}
        """By job UID, when it ended."""
        self.counted: dict[str, dict[int, str]] = {}
        """By job UID: the rounds whose charges are listed no more, and the accounts that they stood in."""
        self._charged: set[tuple[str, int | str]] = set()
        """By job UID, the rounds and pods whose ends were ever charged."""
        self.current: dict[str, Published] = {}
        """By job UID, the round that was published last."""
        self.died_in_round: dict[str, Published] = {}
        """By UID, the agents that ended while their workers ran, before there was another round."""
        self.announced: dict[str, tuple[float, ParticipantRecord]] = {}
        """By the UID of its pod, what a participant has announced, and when."""
        self.spoken: dict[str, float] = {}
        """By the UID of its pod, when a participant's Lease was last written."""
        self.unheard: set[tuple[str, RoundKey]] = set()
        """Who (by UID) has tried in vain to say that it comes from a round, or has finished it,"""
        self.heard: set[tuple[str, RoundKey]] = set()
        """and who has said so."""
        self.pods: dict[tuple[str, str], set[str]] = {}
        """(job UID, pod) -> the UIDs of all that ever bore this name."""

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
            self.pods.setdefault((item.uid.partition("-")[0], key[1]), set()).add(item.uid)
        if key[0] == "lease" and item.value.record is not None:
            at, known = self.announced.get(item.value.holder, (self._now(), None))
            if known != item.value.record:
                at = self._now()
            self.announced[item.value.holder] = at, item.value.record
            self.spoken[item.value.holder] = self._now()
            last = (item.value.record.from_job_uid, item.value.record.from_round)
            self.heard.add((item.value.holder, last))
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
        if b.phase == "Active" and (a.number, a.phase) != (b.number, b.phase):
            self._publish(value, before)
        if b.number and b.phase == "Active":
            facts = (b.nonce, tuple(m.id for m in status.members()), b.leader_endpoint)
            self._same(uid, b.number, facts)
        if a.phase == "Active" and b.phase == "Broken" and a.number:
            succeeded = any(m.succeeded for m in before.members())
            cause = b.next_cause.cause
            self.pace.broken(cause, cause in ("ScaledUp", "ScaledDown"), succeeded)
            self._excused(value, before)
        if (
            b.phase == "Active"
            and (a.established is None or a.number < b.number)
            and b.established is not None
        ):
            self.pace.established()
        self._silence(uid, before, status)
        self._charges(uid, before, status)
        if uid in self.current:
            self.current[uid].established |= b.established is not None
            self.current[uid].suspended |= value.job.spec.suspend
            self.current[uid].rescaled |= b.phase == "Broken" and b.next_cause.account == SCALING
        if status.finished and not before.finished:
            self.closed[uid] = self._now()
            self._closed(value)
        elif before.finished and not status.finished:
            raise Violation("I8", "a finished job is not finished any more")

    def _publish(self, value: JobValue, before: JobStatus) -> None:
        status, spec, uid = value.status, value.job.spec, value.job.uid
        r, members = status.current_round, status.members()
        if r.number <= before.current_round.number:
            raise Violation("I1", f"round {r.number} is published after round {before.current_round.number}")
        if spec.suspend and spec.template is not None:
            raise Violation("Suspension", f"round {r.number} is published while the job is suspended")
        self._bounds(spec, before, status.min_replicas)
        least = spec.min_replicas or status.min_replicas
        if not least <= len(members) <= spec.replicas:
            raise Violation(
                "I3", f"round {r.number} has {len(members)} members, not {least} to {spec.replicas}"
            )
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
        if uid in self.current:
            self.current[uid].until, self.current[uid].next = self._now(), r.number
            self.current[uid].succeeded = r.cause == Cause.STARTED_AGAIN
            done = self.finished.get((uid, before.current_round.number), set())
            if r.cause == Cause.STARTED_AGAIN and done != set(range(len(before.members()))):
                raise Violation(
                    "I8", f"round {before.current_round.number} has not succeeded: only {sorted(done)} have"
                )
        self.current[uid] = Published(self._now(), frozenset(m.pod_uid for m in members))
        self.published[uid, r.number] = self.current[uid]
        self.pace.published(r.cause)
        training = self.training.get((uid, before.current_round.number), {})
        if before.members() and len(training) == len(before.members()):
            alive = [m for m in before.members() if m.pod_uid in training.values()]
            heard = max(self.spoken.get(m.pod_uid, 0.0) for m in before.members())
            waived = spec.fencing_after is not None and self._now() - heard >= spec.fencing_after
            if len(alive) == len(before.members()) and not self._gone(before) and not waived:
                raise Violation(
                    "Fencing",
                    f"round {r.number} is published while all of round {before.current_round.number} "
                    "are training",
                )

    def _bounds(self, spec: JobSpec, before: JobStatus, least: int) -> None:
        """Without ``minReplicas`` the job is of a fixed size, once it has trained with it."""
        r = before.current_round
        full = r.established is not None and r.members == spec.replicas
        if spec.min_replicas is None and (full or not r.number) and least != spec.replicas:
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
                (record.nonce, record.members or None, record.leader),
                "the round Lease",
            )
            members = self.rounds[record.job_uid, record.number][1]
            if members is not None and len(members) != record.size:
                raise Violation("I2", f"round {record.number} has another size than {record.size}")
            if self.status.get(record.job_uid, JobStatus()).current_round.number < record.number:
                raise Violation("I1", f"the round Lease is ahead of the status: {record.number}")

    def _same(self, uid: str, number: int, facts: tuple[Any, ...], what: str = "the status") -> None:
        known = self.rounds.get((uid, number))
        if known is None:
            known = self.rounds[uid, number] = facts
        if known != facts and (facts[1] is not None or (known[0], known[2]) != (facts[0], facts[2])):
            raise Violation("I1", f"{what} has another round {number}: {facts} instead of {known}")

    def _excused(self, value: JobValue, before: JobStatus) -> None:
        """I5: a round ends for something that has really happened to it."""
        r, why = value.status.current_round, value.status.current_round.next_cause
        if why.cause == "ScaledUp" and before.current_round.members < value.job.spec.replicas:
            self.happens("*", SCALING, key=(value.job.uid, r.number))
            return
        key = (value.job.uid, r.number)
        known = self.published.get(key)
        since = self._since(known.at if known is not None else 0.0)
        uids = {m.pod_uid for m in before.members()}
        if self.truth.excuses(key, uids, since, before.current_round.established is not None):
            return
        if any(self.dead(m.pod_uid) or self.hangs(m.pod_uid) for m in before.members()):
            return
        raise Violation(
            "I5", f"round {r.number} is broken ({why.cause}: {why.message}) and nothing has happened to it"
        )

    def _since(self, at: float) -> float:
        """From when on what happens may end a round that was published then: operators hear of it within a
        minute, or, while their watches are dead, when these are opened anew."""
        since = at - SLACK_SECONDS
        for _, start, end in sorted(self.deafness(), key=lambda times: times[1], reverse=True):
            if start < since <= end:
                since = start
        return max(since, at - SLACK_SECONDS - DEAD_SECONDS[1])

    def _deaf(self, since: float, until: float, *watches: str) -> bool:
        """Whether one of these watches was dead meanwhile: what pods said may be missed, if they are gone
        after that."""
        return any(name in watches and start < until and end > since for name, start, end in self.deafness())

    def _silence(self, uid: str, before: JobStatus, status: JobStatus) -> None:
        """Nobody is given up for not having come back who has announced itself for the next round."""
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
                _violated("Silence", text)

    def _charges(self, uid: str, before: JobStatus, status: JobStatus) -> None:
        old = {_cause(c) for a in before.accounts for c in a.charges}
        new = [_cause(c) for a in status.accounts for c in a.charges]
        if len(set(new)) != len(new):
            raise Violation("I7", f"charged twice: {sorted(map(str, new))}")
        gained = {(uid, cause) for cause in set(new) - old}
        if gained & self._charged:
            raise Violation("I7", f"charged again: {sorted(map(str, gained & self._charged))}")
        self._charged |= gained
        beside = {_cause(c) for a in before.accounts for c in a.charges if c.during_round is not None}
        lost = old - set(new) - beside
        # A Lease set forward by hand: the round that has ended and its charge are renumbered.
        later = set(range(before.current_round.number + 1, status.current_round.number + 1))
        counted = _counted(status) - _counted(before)
        renumbered = lost == {before.current_round.number} and later & (set(new) - old)
        if len(lost) != counted and not renumbered:
            raise Violation("I7", f"a charge has vanished: {lost}, {counted} are counted")
        for account in () if renumbered else before.accounts:
            listed = {
                c.round: account.name for c in account.charges if c.round is not None and c.round in lost
            }
            self.counted.setdefault(uid, {}).update(listed)
        if status.restarts < before.restarts:
            raise Violation("I7", f"restarts fall from {before.restarts} to {status.restarts}")
        used = sum(a.used for a in status.accounts)
        if status.restarts != used:
            raise Violation("I7", f"{status.restarts} restarts, {used} charges")

    def judge_accounts(self, value: JobValue) -> None:
        """I7, when all has come to rest: each round that ended is charged once, to an account that may bear
        what has happened to it."""
        uid = value.job.uid
        charged = dict(self.counted.get(uid, {}))
        charged |= {c.round: a.name for a in value.status.accounts for c in a.charges if c.round is not None}
        charges = [c for a in value.status.accounts for c in a.charges]
        unseen = {c.round for c in charges if c.message.endswith("was lost: its pod was deleted")}
        for key, known in self.published.items():
            if key[0] != uid or known.until == float("inf"):
                continue
            since, late = self._since(known.at), known.until + MOVE_SECONDS
            allowed = self.truth.accounts(key, known.uids, since, known.until)
            later = (other.uids for k, other in self.published.items() if k[0] == uid and k[1] > key[1])
            gone = known.uids.difference(*later)  # for good: what becomes of them may explain the end
            if self.restarts_in_place and self._deaf(since, late, "pods"):
                gone = known.uids  # of several ends the pod shows the last
            allowed |= self.truth.accounts(key, gone, since, late)
            if not known.established:
                allowed.add(INFRASTRUCTURE)
            ended_at = self.closed.get(uid, float("inf"))
            too_soon = SCALING in allowed or self.restarts_in_place or ended_at < late
            too_soon = too_soon or self._deaf(since, late, "pods", "leases", "nodes")
            if any((who, key) in self.unheard - self.heard for who in known.uids):
                allowed.add(INFRASTRUCTURE)  # whatever it has to say of the end, it is given up before
            if known.echoes and too_soon:
                allowed.add(APPLICATION)  # all goes on, or is over, before anybody has told the root
            if unseen.intersection(range(key[1], known.next)) and INFRASTRUCTURE in allowed:
                allowed.add(PREEMPTION)  # whoever deletes a pod for its node: nothing is left to tell by
            if {PREEMPTION, APPLICATION} & allowed and self._deaf(since, known.until, "pods"):
                allowed.add(INFRASTRUCTURE)  # the notice, or how it has ended, is missed, and the pod is gone
            # A round Lease that was set forward by hand gives a broken round a higher number.
            names = [charged[number] for number in range(key[1], known.next) if number in charged]
            must = known.established and not known.suspended and not known.succeeded
            if len(names) > 1 or (must and not names) or set(names) - allowed:
                said = " and ".join(names) or "nobody"
                raise Violation("I7", f"the end of round {key[1]} is charged to {said}, not to {allowed}")
        self._judge_root(value)
        for account in value.status.accounts:
            for charge in account.charges:
                if charge.round is not None:
                    continue
                pods = self.pods[uid, charge.pod_name]
                if any(self._alone(pod) for pod in pods):
                    raise Violation(
                        "I7", f"{charge.pod_name} is charged for beside the round it was a member of"
                    )
                allowed = {account for pod in pods for account in self.truth.of_pod(pod)}
                if account.name not in allowed:
                    text = f"the end of {charge.pod_name} is charged to {account.name}, not to {allowed}"
                    raise Violation("I7", text)

    def _alone(self, uid: str) -> bool:
        """Whether this agent ended as a member of a round to which nothing else has happened."""
        known = self.died_in_round.get(uid)
        if known is None or known.rescaled:
            return False
        since = self._since(known.at)
        if self._deaf(since, known.until, "pods", "leases", "nodes"):
            return False
        return self.truth.roots(known.uids, since, known.until) == 1

    def _judge_root(self, value: JobValue) -> None:
        """Where workers of one pod alone have failed by their own fault, that pod is the root, or one that
        had its own reason to end soon after."""
        failure = value.status.last_failure
        key = (value.job.uid, failure.round or 0 if failure is not None else 0)
        known = self.published.get(key)
        if failure is None or known is None or known.next != key[1] + 1:
            return
        since = self._since(known.at)
        allowed = self.truth.accounts(key, known.uids, since, known.until)
        roots = {who for who in self.truth.failed_in(key) if who != "*"}
        its_own = self.truth.roots({failure.pod_uid}, since, known.until + MOVE_SECONDS)
        if allowed == {APPLICATION} and len(roots) == 1 and failure.pod_uid not in roots and not its_own:
            text = f"the root failure of round {key[1]} is said to be {failure.pod_name}: {failure.message}"
            raise Violation("I7", text)

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
            return
        self.pace.completed()
        number, members = status.current_round.number, status.members()
        done = self.finished.get((value.job.uid, number), set())
        if done != set(range(len(members))):
            raise Violation("I8", f"Complete, but of round {number} only {sorted(done)} have finished")
        going_on = [m.pod_name for m in members if self.runs(m.pod_uid)]
        if going_on and value.job.spec.template is not None:
            _violated("I8", f"Complete, and the commands of {going_on} go on or have failed")

    # -- what agents do ------------------------------------------------------------------------------------

    def agent_returned(self, agent: Agent, m: Membership) -> None:
        """``next_rendezvous`` has returned."""
        self.stages.setdefault((m.job_uid, m.number), set()).add(agent.stage)
        known = self.rounds.get((m.job_uid, m.number))
        if m.nonce == "by-hand":
            return
        if known is None or (known[0], known[2]) != (m.nonce, m.leader):
            raise Violation("I2", f"{agent.name} returned for round {m.number} as {m}, published: {known}")
        ranks = self.returned.setdefault((m.job_uid, m.number, m.nonce), {})
        if m.rank in ranks:
            raise Violation("I2", f"rank {m.rank} of round {m.number} returned twice: {agent.name}")
        if m.size != len(known[1]) or m.rank < 0 or known[1][m.rank] != m.id:
            raise Violation("I2", f"{agent.name} is rank {m.rank} of {m.size} in {known[1]} as {m.id}")
        ranks[m.rank] = agent.uid
        self.training.setdefault((m.job_uid, m.number), {})[m.rank] = agent.uid

    def agent_left(self, agent: Agent, m: Membership) -> None:
        """Its workers of this round have ended."""
        self.training.get((m.job_uid, m.number), {}).pop(m.rank, None)
        self.happens(agent.uid)
        known = self.published.get((m.job_uid, m.number))
        if not agent.alive and known is not None and known.until == float("inf"):
            self.died_in_round[agent.uid] = known

    def agent_failed(self, agent: Agent, m: Membership, echo: bool) -> None:
        """A worker of its has failed; ``echo``: because it lost a peer."""
        key = (m.job_uid, m.number)
        if echo:
            self.happens(agent.uid)
            if key in self.published:
                self.published[key].echoes = True
        else:
            self.happens(agent.uid, APPLICATION, key=key)

    def agent_finished(self, agent: Agent, m: Membership) -> None:
        """Its workers have ended well."""
        status = self.status.get(m.job_uid, JobStatus())
        if (status.current_round.number, status.current_round.phase) != (m.number, "Active"):
            self.happens(agent.uid, APPLICATION)  # it does not know that this does not count any more
        self.finished.setdefault((m.job_uid, m.number), set()).add(m.rank)
