"""Rules of planner and core, each with its absence: the simulation must tell (kept as a test)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from elasticjob.contract.records import Outcome, ParticipantRecord, RoundRecord
from elasticjob.core.participant import Membership, Participant
from elasticjob.rounds import formation, waits
from elasticjob.rounds.candidates import Candidate, Defer, FormRound, decide
from elasticjob_operator.observe import answers
from elasticjob_operator.plan import (
    conditions,
    context,
    ends,
    failures,
    lifecycle,
    members,
    moves,
    pacing,
    pods,
    progress,
    rounds,
    scaling,
    suspension,
)
from elasticjob_operator.plan.status import ParticipantStatus
from tests.scenarios.absences import complete_with_the_first, convict_by_silence, ignore_what_ended
from tests.simulation.api import Unavailable
from tests.simulation.operator import Operator


class Mutation(NamedTuple):
    """``place.name`` is replaced by ``absence``; some history must then break one of ``rules``. ``seed`` is
    one that did when it was last looked for: where to begin. ``trait``: the class (``traits``) that all
    histories are of, where the rule is for one."""

    rules: tuple[str, ...]
    what: str
    place: object
    name: str
    absence: Any
    seed: int = 0
    trait: str = ""


_publish = rounds._publish


def _same_number_again(p: Any, *rest: Any) -> None:
    if p.round.phase == "Broken" and p.round.number > 1:
        p.set_round(number=p.round.number - 1)
    _publish(p, *rest)


_place = Participant._place


def _one_less(record: RoundRecord, announced: ParticipantRecord, rank: int) -> Membership:
    membership = _place(record, announced, rank)
    return replace(membership, size=max(1, membership.size - 1))


def _decide_without_minimum(candidates: list[Candidate], *_: Any) -> FormRound | Defer:
    return FormRound(tuple(candidates)[:1]) if candidates else Defer(None, "nobody")


def _joined_whoever(p: context.Pass) -> Any:
    result = []
    for pod in p.observed.pods:
        lease = p.observed.leases.get(pod.name)
        record = lease.record if lease is not None else None
        if pod.mine and not pod.ended and record is not None and record.state == "Joining" and pod.ip:
            result.append((pod, ParticipantStatus(record.id, pod.name, pod.uid, "Joining", pod.slot)))
    return tuple(result)


def _charge_again(*_: Any, **__: Any) -> bool:
    return False


def _decide_with_spares(candidates: Any, awaited: Any, minimum: int, replicas: int) -> FormRound | Defer:
    return decide(candidates, awaited, minimum, replicas + 1)


def _form_at_once(candidates: Any, _awaited: Any, _minimum: int, replicas: int) -> FormRound | Defer:
    return decide(candidates, (), 1, replicas)


def _end_the_pass(operator: Any, target: Any, why: Exception) -> None:
    operator.timers = {}
    if operator.owned is None or target not in operator.owned.under_way:
        raise Unavailable(str(why))


def _no_look(_operator: Any) -> Any:
    yield from ()


def _any_doubt(scope: Any, _now: float) -> bool:
    return scope.doubted is not None


def _complete_at_the_barrier(p: Any) -> bool:
    members = p.status.members()
    if p.round.phase != "Active" or not members or not all(m.succeeded for m in members):
        return False
    lifecycle._close(p, Outcome.COMPLETE, "Succeeded", "all have passed the exit barrier")
    return True


def _whoever_ended_well(p: Any) -> str:
    joined = any(p.alive(pod) and p.participant(pod) is not None for pod in p.observed.pods)
    ended = (pod.name for pod in p.observed.pods if pod.mine and pod.exited_well and not p.superseded(pod))
    return "" if p.round.number or joined or p.job.spec.template is None else next(ended, "")


def _never_charge(p: Any) -> None:
    p.set(accounts=tuple(replace(a, charges=()) for a in p.status.accounts))


MUTATIONS = [
    Mutation(("I1",), "a number is used again", rounds, "_publish", _same_number_again),
    Mutation(("I1",), "the record may go back", RoundRecord, "ahead_of", lambda *_: False),
    Mutation(("I2",), "the world is one smaller", Participant, "_place", staticmethod(_one_less)),
    Mutation(("I3",), "no minimum", formation, "decide", _decide_without_minimum),
    Mutation(("I4",), "whoever has joined may be a member", context.Pass, "joined", _joined_whoever),
    Mutation(("I4", "I5", "Liveness"), "announcements last", context.Pass, "in_time", lambda *_: True, 1295),
    Mutation(("I5",), "silence convicts", members, "_examine", convict_by_silence),
    Mutation(("I5",), "not ready convicts", members, "_silent", lambda *_: True, 100),
    Mutation(("Liveness",), "what has ended is overlooked (I6)", members, "_examine", ignore_what_ended),
    Mutation(("I7",), "charged at every look", failures, "_charged", _charge_again),
    Mutation(("I7",), "charges are dropped", failures, "refresh_accounts", _never_charge),
    Mutation(("I8",), "one success is enough", lifecycle, "check_success", complete_with_the_first),
    Mutation(("Fencing",), "no fencing", members, "departed", lambda _: True, 367),
    Mutation(("Liveness",), "silent announcements are kept", pods, "_replace_silent", lambda _: None, 1620),
    Mutation(("I3",), "spares are members, too", formation, "decide", _decide_with_spares),
    Mutation(("I7",), "charges never move", moves, "revise", lambda *_: None, 1576),
    Mutation(
        ("I7",), "members that are lost keep their slot", rounds, "_replace_absent", lambda *_: None, 44
    ),
    Mutation(("I7",), "nobody takes pods away", ends, "taken_away", lambda *_: None),
    Mutation(("Suspension",), "suspension is overlooked", suspension, "wanted", lambda _: False),
    Mutation(("Liveness",), "hangs are overlooked", progress, "hang", lambda _: []),
    Mutation(("Liveness",), "nobody asks for the next pass", waits.Waits, "wake", lambda *_: None),
    Mutation(("I11",), "a write that fails ends the pass", Operator, "failed", _end_the_pass, 67, "writes"),
    Mutation(("I11",), "failing writes are not told", conditions, "_stuck", lambda _: "", 11, "writes"),
    Mutation(
        ("Liveness",), "each failure is an outage", answers._Scope, "is_outage", _any_doubt, 44, "neighbour"
    ),
    Mutation(
        ("Silence",), "what a dead watch brings is believed", Operator, "_look", _no_look, 933, "stranded"
    ),
    Mutation(
        ("I8",),
        "the exit barrier is the end",
        lifecycle,
        "check_success",
        _complete_at_the_barrier,
        18,
        "commands",
    ),
    Mutation(
        ("I8",),
        "who is taken away has never joined",
        lifecycle,
        "_never_joined",
        _whoever_ended_well,
        136,
        "commands",
    ),
    Mutation(
        ("Remains",), "sidecars hold places", pods, "_delete_held_by_sidecars", lambda _: None, 26, "sidecars"
    ),
    Mutation(("I14",), "nothing is paced", pacing, "pause", lambda _: 0.0, 14, "broken"),
    Mutation(("I10",), "growth never asks whether it can", scaling, "decide", _form_at_once, 37, "scale"),
    Mutation(("I10",), "a success is no hindrance", scaling, "_has_succeeded", lambda _: False, 184, "scale"),
]
