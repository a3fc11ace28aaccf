"""Rules of planner and core, each with its absence: the simulation must tell (kept as a test)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from elasticjob.contract.records import Outcome
from elasticjob.core.participant import Membership
from elasticjob.core.rounds import Candidate, Form, Wait
from elasticjob_operator.plan import context, failures, lifecycle, members, pods, rounds
from elasticjob_operator.plan.causes import Evidence
from elasticjob_operator.plan.status import ParticipantStatus
from tests.simulation import operator


class Mutation(NamedTuple):
    """``place.name`` is replaced by ``absence``; some history must then break one of ``rules``."""

    rules: tuple[str, ...]
    what: str
    place: object
    name: str
    absence: Any


_examine = members._examine
_publish = rounds._publish


def _same_number_again(p: Any, *rest: Any) -> None:
    if p.round.phase == "Broken" and p.round.number > 1:
        p.set_round(number=p.round.number - 1)
    _publish(p, *rest)


def _one_less(membership: Membership) -> int:
    return max(1, len(membership.members) - 1)


def _decide_without_minimum(candidates: list[Candidate], *_: Any) -> Form | Wait:
    return Form(tuple(candidates)[:1]) if candidates else Wait(None, "nobody")


def _joined_whoever(p: context.Pass) -> Any:
    result = []
    for pod in p.observed.pods:
        lease = p.observed.leases.get(pod.name)
        record = lease.record if lease is not None else None
        if pod.mine and not pod.ended and record is not None and record.state == "Joining" and pod.ip:
            entry = ParticipantStatus(record.id, pod.name, pod.uid, "Joining", pod.slot)
            result.append((pod, replace(entry, address=record.endpoint)))
    return tuple(result)


def _convict_by_silence(p: Any, member: Any) -> tuple[str, Evidence | None]:
    lease = p.observed.leases.get(member.pod)
    if lease is not None and lease.silent > 10:
        return "Lost", Evidence("Unreachable", "silent", member.pod)
    return _examine(p, member)


def _ignore_what_ended(p: Any, member: Any) -> tuple[str, Evidence | None]:
    state, evidence = _examine(p, member)
    return (member.state, None) if evidence is not None and evidence.cause == "PodLost" else (state, evidence)


def _complete_with_the_first(p: Any) -> bool:
    if p.round.phase == "Active" and any(m.state == "Succeeded" for m in p.status.members()):
        lifecycle._close(p, Outcome.COMPLETE, "Succeeded", "one has succeeded")
        return True
    return False


def _charge_again(*_: Any, **__: Any) -> bool:
    return False


def _never_charge(p: Any) -> None:
    p.set(accounts=tuple(replace(a, charges=()) for a in p.status.accounts))


MUTATIONS = [
    Mutation(("I1",), "a number is used again", rounds, "_publish", _same_number_again),
    Mutation(("I1",), "the record may go back", operator, "_ahead", lambda *_: False),
    Mutation(("I2",), "the world is one smaller", Membership, "size", property(_one_less)),
    Mutation(("I3",), "no minimum", rounds, "decide", _decide_without_minimum),
    Mutation(("I4",), "whoever has joined may be a member", context.Pass, "joined", _joined_whoever),
    Mutation(("I4", "Liveness"), "spent ids are not refused", rounds, "_refused", lambda *_: ()),
    Mutation(("I5",), "silence convicts", members, "_examine", _convict_by_silence),
    Mutation(("I5",), "not ready convicts", members, "_silent", lambda *_: True),
    Mutation(("Liveness",), "what has ended is overlooked (I6)", members, "_examine", _ignore_what_ended),
    Mutation(("I7",), "charged at every look", failures, "_charged", _charge_again),
    Mutation(("I7",), "charges are dropped", failures, "refresh_accounts", _never_charge),
    Mutation(("I8",), "one success is enough", lifecycle, "check_success", _complete_with_the_first),
    Mutation(("Fencing",), "no fencing", members, "departed", lambda _: True),
    Mutation(("Liveness",), "silent announcements are kept", pods, "_replace_silent", lambda _: None),
    Mutation(("Liveness",), "nobody asks for the next pass", context.Timers, "wake", lambda *_: None),
]
