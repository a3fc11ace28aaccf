"""The judge of what is charged (I7): once, never again, never lost, and to an account that may bear it."""

from __future__ import annotations

from collections import Counter

from elasticjob_operator.plan.charges.revision import REVISION_WINDOW_SECONDS
from elasticjob_operator.plan.state.evidence import (
    APPLICATION,
    INFRASTRUCTURE,
    PREEMPTION,
    SCALING,
)
from elasticjob_operator.plan.state.restart_accounts import Charge
from elasticjob_operator.plan.state.status import JobStatus
from tests.simulation.informers import JobValue
from tests.simulation.past import Past
from tests.simulation.truth import Truth
from tests.simulation.violation import Violation


def _cause(charge: Charge) -> int | str:
    """What was charged for: the end of a round, or of a pod that was never a member."""
    return charge.pod_name if charge.round is None else charge.round


def _counted(status: JobStatus) -> int:
    """Charges that are listed no more."""
    return sum(entry.count for account in status.accounts for entry in account.older_charges)


def a_notice_may_be_repeated(past: Past, truth: Truth, since: float, until: float) -> bool:
    """Whether operators may have heard in this time of a node's notice that was over by then: a watch of
    nodes that was dead and is opened again repeats it."""
    return past.deaf(since, until, "nodes") and PREEMPTION in truth.between(since, until)


class Charges:
    """See the module. ``truth`` is what has happened, ``past`` which rounds there were."""

    def __init__(self, truth: Truth, past: Past) -> None:
        self._truth = truth
        self._past = past
        self._counted: dict[str, dict[int, str]] = {}
        """By job UID: the rounds whose charges are listed no more, and the accounts that they stood in."""
        self._charged: set[tuple[str, int | str]] = set()
        """By job UID, the rounds and pods whose ends were ever charged."""
        self._attempts: dict[
            tuple[str, str], tuple[Counter[int], Counter[tuple[int, str]], Counter[str]]
        ] = {}
        """By job UID and nonce of the last round: how many ends before joining were charged of each slot, of
        these how many to each account, and how many count."""

    def changed(self, uid: str, before: JobStatus, status: JobStatus) -> None:
        """Hear of a status, and of the one before: no charge comes twice, and none goes without being
        counted."""
        old = {_cause(c) for a in before.accounts for c in a.charges}
        new = [_cause(c) for a in status.accounts for c in a.charges]
        if len(set(new)) != len(new):
            raise Violation("I7", f"charged twice: {sorted(map(str, new))}")
        gained = {(uid, cause) for cause in set(new) - old}
        if gained & self._charged:
            raise Violation("I7", f"charged again: {sorted(map(str, gained & self._charged))}")
        self._charged |= gained
        beside = {_cause(c) for a in before.accounts for c in a.charges if not c.counts}
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
            self._counted.setdefault(uid, {}).update(listed)
        if status.restarts < before.restarts:
            raise Violation("I7", f"restarts fall from {before.restarts} to {status.restarts}")
        self._count_attempts(uid, status, {cause for _, cause in gained})
        used = sum(a.used for a in status.accounts)
        if status.restarts != used:
            raise Violation("I7", f"{status.restarts} restarts, {used} charges")

    def _count_attempts(self, uid: str, status: JobStatus, gained: set[int | str]) -> None:
        """What is charged for pods that ended before they joined: each attempt once, in however many slots it
        fails, and no attempt of a slot goes without."""
        nonce = status.current_round.nonce
        ends, by_account, counted = self._attempts.setdefault((uid, nonce), (Counter(), Counter(), Counter()))
        for account in status.accounts:
            for charge in account.charges:
                if charge.round is not None or charge.pod_name not in gained:
                    continue
                slot = int(charge.pod_name.split("-")[-2])
                ends[slot] += 1
                counted[account.name] += charge.counts
                if charge.during_round is None:
                    by_account[slot, account.name] += 1
        for (slot, name), number in by_account.items():
            if number > counted[name]:
                text = f"slot {slot} has failed {number} attempts, {name} is charged for {counted[name]}"
                raise Violation("I7", text)
        most = max(ends.values(), default=0)
        for name, number in counted.items():
            if number > most:
                text = f"{name} is charged for {number} attempts, no slot has had more than {most}"
                raise Violation("I7", text)

    def judge(self, value: JobValue) -> None:
        """I7, when all has come to rest: each round that ended is charged once, to an account that may bear
        what has happened to it."""
        uid = value.job.uid
        charged = dict(self._counted.get(uid, {}))
        charged |= {c.round: a.name for a in value.status.accounts for c in a.charges if c.round is not None}
        charges = [c for a in value.status.accounts for c in a.charges]
        unseen = {c.round for c in charges if c.message.endswith("was lost: its pod was deleted")}
        for key, known in self._past.published.items():
            if key[0] != uid or known.until == float("inf"):
                continue
            since, late = self._past.since(known.at), known.until + REVISION_WINDOW_SECONDS
            allowed = self._truth.accounts(key, known.uids, since, known.until)
            later = (other.uids for k, other in self._past.published.items() if k[0] == uid and k[1] > key[1])
            gone = known.uids.difference(*later)  # for good: what becomes of them may explain the end
            if self._past.restarts_in_place and self._past.deaf(since, late, "pods"):
                gone = known.uids  # of several ends the pod shows the last
            allowed |= self._truth.accounts(key, gone, since, late)
            if not known.established:
                allowed.add(INFRASTRUCTURE)
            ended_at = self._past.closed.get(uid, float("inf"))
            too_soon = SCALING in allowed or self._past.restarts_in_place or ended_at < late
            too_soon = too_soon or self._past.deaf(since, late, "pods", "leases", "nodes")
            given_up = self._past.unheard - self._past.heard
            if any(word.uid in known.uids and word.round == key for word in given_up):
                allowed.add(INFRASTRUCTURE)  # whatever it has to say of the end, it is given up before
            if key in self._past.missed:
                allowed.add(INFRASTRUCTURE)  # of a member that is cut off there is the same evidence
            if known.echoes and too_soon:
                allowed.add(APPLICATION)  # all goes on, or is over, before the root is told
            if unseen.intersection(range(key[1], known.next)) and INFRASTRUCTURE in allowed:
                allowed.add(PREEMPTION)  # a pod deleted for its node: nothing is left to tell by
            if {PREEMPTION, APPLICATION} & allowed and self._past.deaf(since, known.until, "pods"):
                allowed.add(INFRASTRUCTURE)  # the notice, or how it has ended, is missed, and the pod is gone
            if a_notice_may_be_repeated(self._past, self._truth, since, known.until):
                allowed.add(PREEMPTION)
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
                pods = self._past.pods[uid, charge.pod_name]
                if any(self._alone(pod) for pod in pods):
                    raise Violation(
                        "I7", f"{charge.pod_name} is charged for beside the round it was a member of"
                    )
                allowed = {account for pod in pods for account in self._truth.of_pod(pod)}
                if account.name not in allowed:
                    text = f"the end of {charge.pod_name} is charged to {account.name}, not to {allowed}"
                    raise Violation("I7", text)

    def _alone(self, uid: str) -> bool:
        """Whether this agent ended as a member of a round to which nothing else has happened."""
        known = self._past.died_in_round.get(uid)
        if known is None or known.rescaled:
            return False
        since = self._past.since(known.at)
        if self._past.deaf(since, known.until, "pods", "leases", "nodes"):
            return False
        return self._truth.roots(known.uids, since, known.until) == 1

    def _judge_root(self, value: JobValue) -> None:
        """Where workers of one pod alone have failed by their own fault, that pod is the root, or one that
        had its own reason to end soon after."""
        failure = value.status.last_failure
        key = (value.job.uid, failure.round or 0 if failure is not None else 0)
        known = self._past.published.get(key)
        if failure is None or known is None or known.next != key[1] + 1:
            return
        since = self._past.since(known.at)
        allowed = self._truth.accounts(key, known.uids, since, known.until)
        roots = {who for who in self._truth.failed_in(key) if who != "*"}
        its_own = self._truth.roots({failure.pod_uid}, since, known.until + REVISION_WINDOW_SECONDS)
        if allowed == {APPLICATION} and len(roots) == 1 and failure.pod_uid not in roots and not its_own:
            text = f"the root failure of round {key[1]} is said to be {failure.pod_name}: {failure.message}"
            raise Violation("I7", text)
