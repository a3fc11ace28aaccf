"""The invariants (docs/internals/invariants.md) on every version of the ElasticJob and of its round Lease.

* I1: (round, phase) never goes back; one (job, round) has one member list, leader and nonce, in the status
  and in the Lease.
* I2: ranks are 0..n-1.
* I3: at publication ``minReplicas <= members <= replicas``.
* I4: no id is in two rounds.
* I5: what may not end a round does not, when nothing else was wrong (``forgives``).
* A planned change of a round that takes part in drains, when nothing else was wrong, ends it with its own
  cause and account, and with all workers stopped at a common step.
* The Lease says what the status says again, some seconds after every change (``lease_differs_seconds``).
* I7: a charge neither vanishes nor doubles, ``restarts`` is their number, and a round's end is charged when
  the next one is published.
* Complete comes only after the training's end, Failed never.

What a test writes into the Lease by hand is announced by ``tampering`` and not held against any pod.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from elasticjob.contract.names import ROUND_ANNOTATION
from elasticjob.contract.round_record import RoundRecord
from elasticjob.rounds.causes import CHARGED_ONCE, Cause
from elasticjob_operator.plan.changes.draining import HowStopped
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.evidence import CAUSES, NEVER_CHARGED
from elasticjob_operator.plan.state.status import JobStatus, RoundEnd, WorkerStarts
from tests.chaos.timeline import Entry, Timeline
from tests.chaos.watcher import Sight

_PHASES = {"Active": 1, "Draining": 2, "Broken": 3, "Closed": 4}


@dataclass(frozen=True)
class Identity:
    """What of a round must never change."""

    nonce: str
    leader: str
    members: tuple[str, ...]


@dataclass
class Checker:
    """Sees every version, in order. ``violations`` are sentences; there must be none."""

    timeline: Timeline
    trained: Callable[[], bool]
    """Whether the training has come to its end."""
    forgives: Callable[[str], bool]
    """Whether the fault of this name may end a round."""
    violations: list[str] = field(default_factory=list)
    ends: dict[int, RoundEnd] = field(default_factory=dict)
    """Why each round has ended, as it was said last."""
    starts: dict[int, WorkerStarts] = field(default_factory=dict)
    """How the workers of each round were started, where warm workers are on."""

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._bounds: dict[int, tuple[int, int]] = {}
        self._generation = 0
        self._status = JobStatus()
        self._highest = (-1, 0)
        self._identities: dict[int, Identity] = {}
        self._first_round: dict[str, int] = {}
        self._charges: set[tuple[int | None, str]] = set()
        self._ended: set[int] = set()
        self._met: set[int] = set()
        self._lease_highest = (-1, 0)
        self._records: list[tuple[tuple[int, int], str]] = []
        self._tampered: set[str] = set()
        self._replicas = 0
        self._lease_order: tuple[int, int] | None = None
        self._differs_since: float | None = 0.0
        self._calm_since: float | None = None

    # -- what others ask -----------------------------------------------------------------------------------

    @property
    def status(self) -> JobStatus:
        """The newest status seen."""
        with self._lock:
            return self._status

    def calm_seconds(self) -> float:
        """For how long all replicas have been in an established round, and no other pod exists."""
        with self._lock:
            return 0.0 if self._calm_since is None else self.timeline.now() - self._calm_since

    def older_record(self) -> str | None:
        """The text of the newest record that is older than the newest one, if there is one."""
        with self._lock:
            if not self._records:
                return None
            newest = max(order for order, _ in self._records)
            older = [(order, text) for order, text in self._records if order < newest]
            return max(older)[1] if older else None

    @contextmanager
    def tampering(self) -> Iterator[Callable[[str], None]]:
        """While the test writes the round Lease; it announces the resourceVersion of what it wrote."""
        with self._lock:  # nothing is seen meanwhile, so that the version is known before it is seen
            yield self._tampered.add

    def lease_differs_seconds(self) -> float:
        """For how long the Lease has not said the status's round and phase; 0 if it does now."""
        with self._lock:
            return 0.0 if self._differs_since is None else self.timeline.now() - self._differs_since

    # -- what it sees --------------------------------------------------------------------------------------

    def see_job(self, sight: Sight) -> None:
        """A version of the ElasticJob."""
        if sight.deleted:
            return
        with self._lock:
            spec, generation = sight.body["spec"], sight.body["metadata"]["generation"]
            self._replicas = spec["replicas"]
            self._bounds[generation] = (spec.get("minReplicas", spec["replicas"]), spec["replicas"])
            before, status = self._status, status_json.parse(sight.body.get("status"))
            self._status = status
            self._check_order(status)
            self._check_charges(status)
            self._check_members(status)
            if status.current_round.number > before.current_round.number:
                self._published(before, status, sight.gap)
            self._follow(status)
            self._check_end(status)
            self._see_calm(status)
            self._see_difference()

    def see_lease(self, sight: Sight) -> None:
        """A version of the round Lease."""
        with self._lock:
            text = sight.body["metadata"].get("annotations", {}).get(ROUND_ANNOTATION, "")
            record = RoundRecord.parse(text)
            self._lease_order = None if sight.deleted else record.order
            self._see_difference()
            if sight.deleted or sight.body["metadata"]["resourceVersion"] in self._tampered:
                return
            if record.order < self._lease_highest:
                self._violated(
                    "I1", f"the round Lease went back from {self._lease_highest} to {record.order}"
                )
            self._lease_highest = max(self._lease_highest, record.order)
            self._records.append((record.order, text))
            if record.member_ids:  # those of a large round stand elsewhere
                self._identify(
                    record.number, Identity(record.nonce, record.leader_endpoint, record.member_ids), "Lease"
                )

    # -- the invariants ------------------------------------------------------------------------------------

    def _check_order(self, status: JobStatus) -> None:
        order = (status.current_round.number, _PHASES.get(status.current_round.published_phase, 0))
        if order < self._highest:
            self._violated("I1", f"status.currentRound went back from {self._highest} to {order}")
        self._highest = max(self._highest, order)

    def _check_members(self, status: JobStatus) -> None:
        r, members = status.current_round, status.members()
        if r.number == 0 or (r.members == 0 and r.end is not None and r.end.cause == Cause.SUSPENDED):
            return  # a suspended job has no members; those of its round are listed until their pods are gone
        ranks = [m.group_rank for m in members]
        if ranks != list(range(r.members)):
            self._violated("I2", f"round {r.number} of {r.members} members has the ranks {ranks}")
        self._identify(r.number, Identity(r.nonce, r.leader_endpoint, tuple(m.id for m in members)), "status")

    def _identify(self, number: int, found: Identity, where: str) -> None:
        known = self._identities.setdefault(number, found)
        if known != found:
            self._violated("I1", f"round {number} is {known}, and in the {where} {found}")
            return
        for one in found.members:
            first = self._first_round.setdefault(one, number)
            if first != number:
                self._violated("I4", f"the id {one} is in the rounds {first} and {number}")

    def _published(self, before: JobStatus, status: JobStatus, gap: bool) -> None:
        r = status.current_round
        generations = [status.observed_generation]
        if gap:  # it may have been published for any spec since
            generations += [g for g in self._bounds if before.observed_generation <= g]
        bounds = [self._bounds[g] for g in generations if g in self._bounds]
        if bounds and not any(low <= r.members <= high for low, high in bounds):
            self._violated("I3", f"round {r.number} has {r.members} members, the bounds were {bounds}")
        end = r.number - 1
        if end > 0 and (end, "") not in self._charges and r.cause not in CHARGED_ONCE | NEVER_CHARGED:
            self._violated("I7", f"the end of round {end} ({r.cause}) is not charged in round {r.number}")

    def _check_charges(self, status: JobStatus) -> None:
        charges = [c for account in status.accounts for c in account.charges if c.counts]
        keys = [(c.round, c.pod_name) for c in charges]
        found = set(keys)
        if len(keys) != len(found):
            self._violated("I7", f"charged twice: {sorted(k for k in found if keys.count(k) > 1)}")
        counted = sum(entry.count for account in status.accounts for entry in account.older_charges)
        lost = self._charges - found
        if len(lost) != counted:
            self._violated("I7", f"charges have vanished: {lost}, {counted} are counted")
        if status.restarts != len(found) + counted:
            self._violated("I7", f"restarts is {status.restarts}, the charges are {len(found)} and {counted}")
        self._charges |= found

    def _check_end(self, status: JobStatus) -> None:
        if status.is_true("Failed"):
            condition = status.condition("Failed")
            self._violated("end", f"the job has failed: {condition.message if condition else ''}")
        if status.is_true("Complete") and not self.trained():
            self._violated("end", "the job is Complete, and the training has not come to its end")

    # -- the story -----------------------------------------------------------------------------------------

    def _follow(self, status: JobStatus) -> None:
        r = status.current_round
        self.ends |= {h.number: h.end for h in status.round_history if h.end is not None}
        self.starts |= {h.number: h.worker_starts for h in status.round_history if h.worker_starts}
        over = [h.number for h in status.round_history if h.number < r.number]
        over += [r.number] if r.phase == "Broken" and r.number > 0 else []
        for number in sorted(set(over) - self._ended):
            self._ended.add(number)
            entry = self.timeline.broken(number)
            self._must_not_end(number, entry, r.cause if r.number > number else r.next_cause.cause)
            self._must_drain(number, entry)
        for h in sorted(status.round_history, key=lambda h: h.number):
            if h.number not in self._met:
                self._met.add(h.number)
                self.timeline.published(h.number, h.cause, h.members, r.message)
        if r.established_time is not None and -r.number not in self._met:
            self._met.add(-r.number)
            self.timeline.established(r.number)

    def _must_not_end(self, number: int, entry: Entry | None, cause: str) -> None:
        if entry is not None and entry.calm and not self.forgives(entry.name):
            self._violated("I5", f"round {number} ended ({cause}) after {entry.name}: {entry.target}")

    def _must_drain(self, number: int, entry: Entry | None) -> None:
        if entry is None or entry.drains != number:
            return
        end = self.ends.get(number, RoundEnd())
        found = (end.cause, end.account, end.drain)
        wanted = (entry.cause, CAUSES[entry.cause], HowStopped.STOPPED.value)
        if found != wanted:
            self._violated(
                "drain", f"{entry.name} ({entry.target}) ended round {number} with {found}, not {wanted}"
            )

    def _see_calm(self, status: JobStatus) -> None:
        r = status.current_round
        full = (
            r.published_phase == "Active" and r.established_time is not None and r.members == self._replicas
        )
        if not full or len(status.participants) != r.members:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = self.timeline.now()

    def _see_difference(self) -> None:
        r = self._status.current_round
        if self._lease_order == (r.number, _PHASES.get(r.published_phase, 0)):
            self._differs_since = None
        elif self._differs_since is None:
            self._differs_since = self.timeline.now()

    def _violated(self, invariant: str, text: str) -> None:
        sentence = f"{invariant}: {text}"
        if sentence not in self.violations:
            self.violations.append(sentence)
            self.timeline.note(f"VIOLATION {sentence}")
