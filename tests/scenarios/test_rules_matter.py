"""Each invariant has a scenario that tells when its rule is taken out of the code (design, section 4).

A mutation replaces one rule by its absence; the scenario's trace must then differ, or the world object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticjob.contract.records import Outcome
from elasticjob.core import beats
from elasticjob.core import rounds as core_rounds
from elasticjob.core.rounds import Candidate, Form
from elasticjob_operator.plan import context, failures, lifecycle, members, rounds, scaling
from elasticjob_operator.plan.causes import Evidence
from tests.scenarios.test_scenarios import run
from tests.unit.test_beats import judge

RACES = Path(__file__).parent / "races"

Mutation = tuple[str, object, str, Callable[..., Any], str]

original_examine = members._examine


def seat_by_slot(candidates: list[Candidate], size: int) -> tuple[Candidate, ...]:
    return tuple(sorted(candidates, key=lambda c: (c.slot is None, c.slot or 0, c.pod))[:size])


def decide_without_minimum(candidates: list[Candidate], *_: Any) -> Form:
    return Form(tuple(candidates))


def convict_by_silence(p: Any, member: Any) -> tuple[str, Evidence | None]:
    lease = p.observed.leases.get(member.pod)
    if lease is not None and lease.silent > 10:
        return "Lost", Evidence("Unreachable", "silent", member.pod)
    return original_examine(p, member)


def ignore_what_ended(p: Any, member: Any) -> tuple[str, Evidence | None]:
    state, evidence = original_examine(p, member)
    return (member.state, None) if evidence is not None and evidence.cause == "PodLost" else (state, evidence)


def break_below_minimum(p: Any) -> None:
    if p.round.members < p.job.spec.minimum:
        rounds.end_round(p, [Evidence("ScaledUp", "too few")])


def complete_with_the_first(p: Any) -> bool:
    if p.round.phase == "Active" and any(m.state == "Succeeded" for m in p.status.members()):
        lifecycle._close(p, Outcome.COMPLETE, "Succeeded", "one has succeeded")
        return True
    return False


MUTATIONS: list[Mutation] = [
    ("I1 numbered above both", rounds, "catch_up", lambda _: None, "record_set_forward_by_hand"),
    ("I2 ranks by rule", core_rounds, "seat", seat_by_slot, "shrink_when_no_replacement_comes_and_regrow"),
    ("I3 never fewer", rounds, "decide", decide_without_minimum, "account_used_up_fails_the_job"),
    ("I3 bounds break nothing", scaling, "rescale", break_below_minimum, "bounds_that_change_break_nothing"),
    ("I4 refused ids", rounds, "_refused", lambda *_: (), "silent_standby_is_refused"),
    ("I4 spent ids", rounds, "_refused", lambda *_: (), "spent_id_is_never_picked_again"),
    (
        "I4 replaced pods",
        context.Pass,
        "superseded",
        lambda *_: False,
        "one_member_accuses_a_leader_that_others_reach",
    ),
    ("I5 two witnesses", members, "_examine", convict_by_silence, "stale_lease_accuses_but_does_not_convict"),
    ("I5 not without a witness", members, "_silent", lambda *_: True, "kubelet_dies_alone"),
    ("I6 losses end rounds", members, "_examine", ignore_what_ended, "rank_0_is_killed_and_replaced"),
    ("I7 charged once", failures, "_charged", lambda *_, **__: False, "one_root_failure_is_charged_once"),
    (
        "I8 all must succeed",
        lifecycle,
        "check_success",
        complete_with_the_first,
        "member_fails_after_others_have_succeeded",
    ),
    ("I4 refused ids, awake", rounds, "_refused", lambda *_: (), "stalled_agent_wakes_after_it_was_refused"),
    (
        "I4 identity by holder",
        context.Pass,
        "participant",
        lambda p, pod: p.observed.leases.get(pod.name),
        "participant_from_another_job",
    ),
    ("survivors are waited for", rounds, "_survivors", lambda _: [], "slow_worker_stop_outlasts_last_call"),
    ("fencing", members, "departed", lambda _: True, "whole_job_cut_off_waits_for_fencing"),
]


@pytest.mark.parametrize(
    ("rule", "place", "name", "absence", "race"), MUTATIONS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_scenario_tells_when_the_rule_is_gone(
    rule: str,
    place: object,
    name: str,
    absence: Callable[..., Any],
    race: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = (RACES / f"{race}.txt").read_text()
    assert run(expected) == expected
    monkeypatch.setattr(place, name, absence)
    try:
        actual = run(expected)
    except (AssertionError, LookupError):
        return  # the world objects: a pod is made twice or missing, or the planner does not come to rest
    assert actual != expected, f"nothing tells that the rule is gone: {rule}"


def test_i9_a_stalled_judge_accuses_when_the_rule_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent_ranks() -> list[int]:
        stalled = judge()
        stalled.tick(1.0, {1: 1, 2: 1})
        return stalled.tick(61.0, {1: 1, 2: 1})

    assert silent_ranks() == []
    monkeypatch.setattr(beats, "OWN_STALL_SECONDS", float("inf"))
    assert silent_ranks() == [1, 2]


def test_i9_timers_start_again_with_a_new_operator() -> None:
    """Its predecessor had waited 40 of 45 s: the survivor gets the whole time again."""
    text = (RACES / "slow_survivor_is_lost_after_rejoin_seconds.txt").read_text()
    commands = [line for line in text.splitlines() if line.startswith(">")]
    early = "\n".join([*commands[:4], "> wait 40", "> operator restarts", "> wait 40"])
    assert "DidNotRejoin" not in run(early)
    assert "DidNotRejoin" in run(early + "\n> wait 10")


def test_status_survives_json() -> None:
    """``World`` checks it at each pass; here that the check is not vacuous."""
    from elasticjob_operator.plan.status import JobStatus

    status = replace(JobStatus(), attempts=(0, 1), restarts=2)
    assert JobStatus.parse(status.dump()) == status
