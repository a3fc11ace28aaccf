"""The rules that tests take out of the code to see that something tells: where each stands, and what stands
there when it is gone.

Scenarios and simulation know a rule by its name. Who moves or renames a function changes its place here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pkgutil import resolve_name
from typing import Any
from unittest import mock

from elasticjob.contract.round_record import Outcome
from elasticjob.rounds.candidates import Defer, FormRound, decide
from elasticjob.rounds.causes import better
from elasticjob.rounds.ranks import Candidate
from elasticjob_operator.plan import lifecycle
from elasticjob_operator.plan.changes import scaling
from elasticjob_operator.plan.losses.members import Verdict
from elasticjob_operator.plan.rounds import rounds
from elasticjob_operator.plan.state.evidence import Evidence
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import ParticipantStatus
from tests.simulation.api import Unavailable

PLAN = "elasticjob_operator.plan"


@dataclass(frozen=True)
class Rule:
    """``place``: the function or constant that makes the rule hold, where its callers find it; of the planner
    unless it begins with another package. ``absence`` takes its place; ``around`` is called in its place,
    with what was there as its first argument."""

    place: str
    absence: Any = None
    around: Callable[..., Any] | None = None

    @property
    def path(self) -> str:
        """The place in full."""
        known = self.place.startswith(("elasticjob.", "elasticjob_operator.", "tests."))
        return self.place if known else f"{PLAN}.{self.place}"

    @property
    def there(self) -> Any:
        """What stands there."""
        return resolve_name(self.path)


gone: set[str] = set()
"""The rules that are out of the code now."""


@contextmanager
def without(name: str) -> Iterator[None]:
    """Take a rule out of the code, and put it back."""
    rule = RULES[name]
    absence = rule.absence if rule.around is None else staticmethod(partial(rule.around, rule.there))
    with mock.patch(rule.path, absence):
        gone.add(name)
        try:
            yield
        finally:
            gone.remove(name)


def gives(value: Any) -> Callable[..., Any]:
    """A function that always returns this."""
    return lambda *_, **__: value


# -- absences that are more than an answer -------------------------------------------------------------------


def fenced_once(p: Any) -> None:
    """What a leader has said of any round goes for each."""
    if any(lease.fenced for lease in p.observed.leases.values()):
        p.set_round(fenced=True)


def convict_by_silence(verdict: Any, case: Any) -> Verdict:
    """A Lease that is not renewed is enough."""
    lease = case.p.observed.leases.get(case.member.pod_name)
    if lease is not None and lease.silent > 10:
        return Verdict("Lost", Evidence("Unreachable", "silent", case.member.pod_name))
    result: Verdict = verdict(case)
    return result


def ignore_what_ended(verdict: Any, case: Any) -> Verdict:
    """Pods that are lost are overlooked."""
    result: Verdict = verdict(case)
    lost = result.evidence is not None and result.evidence.cause == "PodLost"
    return Verdict(case.member.state) if lost else result


def as_if_in_time(failure_report: Any, p: Any, member: Any) -> Any:
    """No report of a failure is late."""
    report = failure_report(p, member)
    return None if report is None else replace(report, after_round_end=False)


def match_the_last(first_matching: Any, among: Any, evidence: Evidence) -> Any:
    """The last failure rule that matches decides."""
    return first_matching(tuple(reversed(among)), evidence)


def same_number_again(publish: Any, p: Any, *rest: Any) -> None:
    """A round gets the number of the one before."""
    if p.round.phase == "Broken" and p.round.number > 1:
        p.set_round(number=p.round.number - 1)
    publish(p, *rest)


def one_less(place: Any, *args: Any) -> Any:
    """The world is one smaller than the round."""
    membership = place(*args)
    return replace(membership, size=max(1, membership.size - 1))


def complete_with_the_first(p: Any) -> str:
    """One member that has succeeded completes the job."""
    if p.round.phase == "Active" and any(m.succeeded for m in p.status.members()):
        return lifecycle._close(p, Outcome.COMPLETE, "Succeeded", "one has succeeded")
    return ""


def complete_at_the_barrier(p: Any) -> str:
    """The job is complete when all have passed the exit barrier, whatever their containers do then."""
    members = p.status.members()
    if p.round.phase != "Active" or not members or not all(m.succeeded for m in members):
        return ""
    return lifecycle._close(p, Outcome.COMPLETE, "Succeeded", "all have passed the exit barrier")


def whoever_ended_well(p: Any) -> str:
    """One that was taken away before it joined, and ended with 0, was never going to join."""
    joined = any(p.alive(pod) and p.participant(pod) is not None for pod in p.observed.pods)
    ended = (
        pod.name for pod in p.observed.pods if pod.of_this_job and pod.exited_well and not p.is_replaced(pod)
    )
    return "" if p.round.number or joined or p.job.spec.template is None else next(ended, "")


def rank_by_slot(candidates: list[Candidate], size: int) -> tuple[Candidate, ...]:
    """Ranks go by slots, whatever they were before."""
    return tuple(sorted(candidates, key=lambda c: (c.slot is None, c.slot or 0, c.name))[:size])


def decide_without_minimum(candidates: list[Candidate], *_: Any) -> FormRound | Defer:
    """One is enough for a round."""
    return FormRound(tuple(candidates)[:1]) if candidates else Defer(None, "nobody")


def decide_with_spares(
    candidates: Any, awaited: Any, minimum: int, replicas: int, *_: Any
) -> FormRound | Defer:
    """A round is one larger than wanted."""
    return decide(candidates, awaited, minimum, replicas + 1)


def any_size(_: Any, most: int) -> int:
    """Every size is allowed."""
    return most


def form_at_once(candidates: Any, _awaited: Any, _minimum: int, replicas: int, *_: Any) -> FormRound | Defer:
    """Nothing is waited for."""
    return decide(candidates, (), 1, replicas)


def break_below_minimum(p: Any) -> str:
    """A round that is smaller than a minimum that was raised is ended."""
    if p.round.members < p.status.min_replicas:
        rounds.end_round(p, [Evidence("ScaledUp", "too few")])
    return ""


def joined_whoever(p: Any) -> Any:
    """Any pod that says that it has joined may be a member."""
    result = []
    for pod in p.observed.pods:
        lease = p.observed.leases.get(pod.name)
        record = lease.record if lease is not None else None
        if pod.of_this_job and not pod.ended and record is not None and record.state == "Joining" and pod.ip:
            result.append((pod, ParticipantStatus(record.id, pod.name, pod.uid, "Joining", pod.slot)))
    return tuple(result)


def charged_inside_the_window(p: Any, round_number: int | None = None, pod: str = "") -> bool:
    """What was charged is forgotten with its window."""
    charges = [c for a in p.status.accounts for c in a.charges]
    return any((pod and c.pod_name == pod) or (round_number and c.round == round_number) for c in charges)


def never_charge(p: Any) -> None:
    """Charges are dropped at every look."""
    p.set(accounts=tuple(replace(a, charges=()) for a in p.status.accounts))


def unless_one_has_succeeded(there: Callable[[Pass], None], p: Pass) -> None:
    """Of a round with a member that has succeeded nothing is asked any more."""
    if not scaling.has_succeeded(p):
        there(p)


def a_step_is_enough(p: Any) -> bool:
    """A round that has reported any step has got somewhere."""
    return p.status.progress is not None and p.status.progress.round == p.round.number


def trusts_no_taint(_: Any, pod: Any) -> bool:
    """A node that is not ready is dead."""
    return bool(not pod.node_ready or pod.node_gone)


def end_the_pass(operator: Any, target: Any, why: Exception) -> None:
    """A write that fails ends the operator's pass."""
    operator.timers = {}
    in_background = operator.under_way | (set() if operator.owned is None else operator.owned.under_way)
    if target not in in_background:
        raise Unavailable(str(why))


# -- the rules -----------------------------------------------------------------------------------------------


def silent_since_the_start(hear: Any, settled: Any, sight: Any, member: Any) -> Any:
    """Silence from the time in the record, which another coordinator's clock has given."""
    heard, start = hear(settled, sight, member), settled.state.start
    return heard and start and replace(heard, silent_seconds=(sight.wall - start).total_seconds())


def hasty(hearing: Any, *_: Any) -> bool:
    """Neither does a coordinator list again when it does not see its own writes, nor when it is about to
    judge by silence. Each of the two covers for the other."""
    hearing.must_list = gives(False)
    return False


RULES = {
    # Runs without operator
    "P1 a write carries the version that it was decided on": Rule(
        "elasticjob.peers.round_lease.Write.precondition", ""
    ),
    "P2 the number of a round that is not known is left out": Rule(
        "elasticjob.peers.seat.made_again", lambda last, *_, **__: last
    ),
    "P2 the first number is left out where there were rounds": Rule(
        "elasticjob.peers.forming._misses_rounds", gives(False)
    ),
    "P2 a record that was set back is set forward": Rule("elasticjob.peers.seat.Seat._behind", gives(False)),
    "P2 a run that comes back begins above its last number": Rule(
        "elasticjob.peers.settled.come_back", lambda run, _last: run
    ),
    "P3 a member is known to have left": Rule("elasticjob.peers.forming.has_left", gives(True)),
    "P3 the ports of silent members are tried": Rule("elasticjob.peers.plan.quiet_members", gives([])),
    "P4 a second look before silence counts": Rule("elasticjob.peers.silence.Hearing.is_deaf", hasty),
    "P4 others have time to write after the API server was away": Rule(
        "elasticjob.peers.silence.Hearing.wait", gives(0.0)
    ),
    "a run fails after ten early ends": Rule("elasticjob.peers.plan.MOST_EARLY_ENDS", 1),
    "P4 exit code 0 of a pod that is taken away is no success": Rule(
        "elasticjob.coordination.reading.taken_away", gives(False)
    ),
    "P4 a failure is that of its own run": Rule(
        "elasticjob.contract.reports.FailureReport.of",
        lambda report, _run, number, _nonce="": report.round_number == number,
    ),
    "P5 patience ends": Rule("elasticjob.peers.election.patience", gives(float("inf"))),
    "P5 one whose list is under way shows that it lives": Rule("elasticjob.peers.seat.BLIND_SECONDS", -1.0),
    "P6 silence is counted by one clock": Rule("elasticjob.peers.plan._hear", around=silent_since_the_start),
    "P7 what cannot be read is there": Rule("elasticjob.peers.sight.Sight.is_there", gives(False)),
    "P7 what a participant claims to have seen is bounded": Rule(
        "elasticjob.peers.sight.Sight.credible", lambda sight, *_: sight
    ),
    "P8 no run's Lease is taken while it may train": Rule(
        "elasticjob.peers.sight.Sight.may_go_on", gives(False)
    ),
    # Rounds
    "I1 numbered above both": Rule("rounds.rounds.renumber_above_leases", gives(None)),
    "I1 a new number": Rule("rounds.rounds._publish", around=same_number_again),
    "I1 the record never goes back": Rule(
        "elasticjob.contract.round_record.RoundRecord.ahead_of", gives(False)
    ),
    "I2 ranks by rule": Rule("elasticjob.rounds.candidates.assign_ranks", rank_by_slot),
    "I2 the world is the round": Rule(
        "elasticjob.core.participant.Participant._make_membership", around=one_less
    ),
    "I3 never fewer": Rule("elasticjob.rounds.formation.decide", decide_without_minimum),
    "I3 never more": Rule("elasticjob.rounds.formation.decide", decide_with_spares),
    "I3 only some sizes": Rule("elasticjob.rounds.sizes.Sizes.floor", any_size),
    "I3 bounds break nothing": Rule("changes.scaling.rescale", break_below_minimum),
    "I4 late announcements": Rule("state.pass_state.Pass.in_time", gives(True)),
    "I4 who may be a member": Rule("state.pass_state.Pass.joined", joined_whoever),
    "I4 replaced pods": Rule("state.pass_state.Pass.is_replaced", gives(False)),
    "I4 identity by holder": Rule(
        "state.pass_state.Pass.participant", lambda p, pod: p.observed.leases.get(pod.name)
    ),
    "survivors are waited for": Rule("rounds.rounds.expect_members", lambda _: ([], [])),
    "a broken path once": Rule("rounds.rounds._continues_series", gives(False)),
    "fencing": Rule("losses.members.fencing_satisfied", gives(True)),
    "fencing for as long as the job says": Rule("rounds.fencing._left", gives(0.0)),
    "fenced in this very round": Rule("rounds.fencing.note", fenced_once),
    "nobody waits without a timer": Rule("elasticjob.rounds.waits.Waits.wake", gives(None)),
    # Losses
    "I5 two witnesses": Rule("losses.members._verdict", around=convict_by_silence),
    "I5 not without a witness": Rule("losses.witnesses.silent", gives(True)),
    "I5 not against a witness": Rule("losses.witnesses.vouched_for", gives(False)),
    "lost with the leader": Rule("losses.members._lost_with_the_leader", gives([])),
    "I6 losses end rounds": Rule("losses.members._verdict", around=ignore_what_ended),
    "late reports explain only": Rule("losses.failure_reports.failure_report", around=as_if_in_time),
    "out of memory in place": Rule("losses.failure_reports.killed_for_memory", gives(None)),
    "hangs end rounds": Rule("rounds.progress.hang", lambda _: []),
    "who leaves": Rule("state.pass_state.Pass.leaving", gives(False)),
    "nodes that are dead for sure": Rule("state.pass_state.Pass.on_dead_node", gives(False)),
    "no force on mere silence": Rule("state.pass_state.Pass.on_dead_node", trusts_no_taint),
    "members that are lost leave their slot": Rule("rounds.rounds._replace_lost_pods", gives(None)),
    "silent announcements are replaced": Rule("pods.pods._replace_silent", gives(None)),
    "sidecars hold nothing": Rule("pods.pods._delete_held_by_sidecars", gives(None)),
    "what a dead watch brings is not believed": Rule(
        "tests.simulation.operator.Operator._confirm_silence", gives(())
    ),
    "one failure is no outage": Rule(
        "elasticjob_operator.observe.write_outages._Scope.is_outage",
        lambda scope, _now: scope.uncertain_since is not None,
    ),
    # Causes and charges
    "I7 charged once": Rule("charges.charging._charged", gives(False)),
    "I7 charges are kept": Rule("charges.charging.refresh_accounts", never_charge),
    "I7 an attempt is charged once": Rule("charges.charging._counted_with", gives("")),
    "I7 ended well": Rule("losses.pod_ends.ended_well", gives(False)),
    "the root, not its echoes": Rule(
        "charges.charging.explains_more", lambda cause, _matched, _ms, than, *_: better(cause, than)
    ),
    "the first rule": Rule("charges.failure_rules.first_matching_rule", around=match_the_last),
    "rules are obeyed": Rule("charges.charging.enforce", gives("")),
    "given up on its node": Rule("charges.charging._mark_lost", gives(None)),
    "better evidence moves a charge": Rule("charges.revision.revise", gives("")),
    "not for ever": Rule("charges.revision.REVISION_WINDOW_SECONDS", float("inf")),
    "the first worker, also later": Rule("charges.revision._earlier_failure", gives(None)),
    "charged once in any window": Rule("charges.charging._charged", charged_inside_the_window),
    "a pod's end is charged once in any window": Rule("charges.charging.mark_charged", gives(None)),
    "who takes pods away": Rule("losses.pod_ends.disruption_of", gives(None)),
    "who took it away": Rule("losses.pod_ends._disruption_cause", gives(None)),
    "who took it away, said late": Rule("losses.pod_ends.later_evidence", gives(None)),
    "who took it away, said late before it joined": Rule("losses.pod_ends.explanation_left", gives(0.0)),
    "a node's word on a deletion": Rule("losses.pod_ends.node_problem", gives("")),
    # Nodes
    "bad nodes are avoided": Rule("losses.excluded_nodes.excluded", gives(())),
    "nodes are not blamed for requests": Rule(
        "losses.excluded_nodes.suspected", lambda _cause, _code, node: node
    ),
    "exclusions are lifted": Rule("losses.excluded_nodes._lift_oldest", gives(None)),
    "exclusions end": Rule("losses.excluded_nodes._replace_pending", gives(None)),
    # The job's end, and its suspension
    "I8 all must succeed": Rule("lifecycle.check_success", complete_with_the_first),
    "I8 the exit barrier is not the end": Rule("lifecycle.check_success", complete_at_the_barrier),
    "I8 whoever is taken away has not refused to join": Rule("lifecycle._never_joined", whoever_ended_well),
    "deleted after it is closed": Rule("lifecycle.projection", lambda p: p.observed.record),
    "a suspension is seen": Rule("changes.suspension.wanted", gives(False)),
    "a suspension supersedes pods": Rule("changes.suspension._replace_all_pods", gives(None)),
    "a suspension is not charged": Rule("rounds.rounds.NEVER_CHARGED", frozenset()),
    "what came before is charged": Rule("changes.suspension.charge_last_round", gives("")),
    # Growth
    "I10 the size in one piece": Rule("changes.scaling._least", gives(1)),
    "I10 nothing is done again": Rule("changes.scaling.has_succeeded", gives(False)),
    "quota follows pods": Rule("queue.changes._Room.take", gives(True)),
    "pods leave a PodGroup that holds them": Rule("pods.pods._leave_group", gives(None)),
    "quota waits for no pause": Rule("state.pass_state.Pass.beyond_quota", gives(0)),
    "quota waits for no round": Rule("pods.pods._give_quota_back", gives(None)),
    "who cannot write speaks through others": Rule("losses.unheard.says_left", gives(False)),
    "a drain ends whoever has succeeded": Rule("changes.draining.follow", around=unless_one_has_succeeded),
    "storage has the steps before pods go": Rule("changes.unsaved.kept", lambda p: p.job),
    "I10 fit members": Rule("changes.scaling._unfit", gives("")),
    "I10 published at once": Rule("rounds.rounds.PLANNED", frozenset()),
    "I10 the former size is enough": Rule(
        "changes.scaling.update_min_replicas",
        lambda p: p.set(min_replicas=p.job.spec.min_replicas or p.job.spec.replicas),
    ),
    "I10 growth asks whether it can": Rule("changes.scaling.decide", form_at_once),
    "growth pays": Rule("changes.growth_payback.refusal", gives("")),
    "growth waits for warm workers": Rule("rounds.warm_starts.preparing", gives(False)),
    "growth waits for them a minute": Rule("rounds.warm_starts.PREPARE_SECONDS", 1e9),
    # Writes that fail
    "I11 the pass goes on": Rule("tests.simulation.operator.Operator.failed", end_the_pass),
    "I11 people are told": Rule("conditions._cannot_start", gives("")),
    # Pauses
    "I14 rounds are paced": Rule("charges.backoff.backoff_seconds", gives(0.0)),
    "I14 steps are the job's": Rule("charges.backoff.was_healthy", a_step_is_enough),
    "I14 new steps only": Rule("charges.backoff._made_progress", a_step_is_enough),
    "I14 a slot's pods": Rule("charges.backoff.slot_backoff_left", gives(0.0)),
    "I14 given up": Rule("charges.backoff.record_lost_members", gives(False)),
    "I14 growth in vain": Rule("charges.backoff.growth_backoff_left", gives(0.0)),
    "I14 growth that does not last": Rule("charges.backoff.larger_round_backoff_left", gives(0.0)),
    "I14 newcomers that do not last": Rule("charges.backoff.newcomer_backoff_left", gives(0.0)),
    "I14 no newcomer of a series": Rule("charges.backoff.pods_on_probation", gives(frozenset())),
    "I14 newcomers are proven": Rule("charges.backoff.probation_left", gives(0.0)),
}
