"""Each invariant (docs/internals/invariants.md) has a scenario that tells when its rule is taken out.

A mutation replaces one rule by its absence; the scenario's trace must then differ, or the world object.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticjob.core import beats
from elasticjob.rounds import candidates, formation
from elasticjob.rounds.candidates import Candidate, FormRound
from elasticjob.rounds.causes import better
from elasticjob_operator.plan import (
    context,
    ends,
    failures,
    lifecycle,
    members,
    moves,
    nodes,
    pacing,
    pods,
    rounds,
    rules,
    scaling,
    suspension,
)
from elasticjob_operator.plan.causes import Evidence
from tests.scenarios.absences import complete_with_the_first, convict_by_silence, ignore_what_ended
from tests.scenarios.test_scenarios import run
from tests.unit.test_beats import judge

RACES = Path(__file__).parent / "races"
REGROW = "shrink_when_no_replacement_comes_and_regrow"
UNREACHABLE = "evicted_by_the_taint_of_an_unreachable_node"

Mutation = tuple[str, object, str, Any, str]

_match = rules.match
_failure_report = members._failure_report


def rank_by_slot(joined: list[Candidate], size: int) -> tuple[Candidate, ...]:
    return tuple(sorted(joined, key=lambda c: (c.slot is None, c.slot or 0, c.name))[:size])


def decide_without_minimum(joined: list[Candidate], *_: Any) -> FormRound:
    return FormRound(tuple(joined))


def trusts_no_taint(_: Any, pod: Any) -> bool:
    return bool(not pod.node_ready or pod.node_gone)


def break_below_minimum(p: Any) -> None:
    if p.round.members < p.status.min_replicas:
        rounds.end_round(p, [Evidence("ScaledUp", "too few")])


def match_the_last(among: Any, evidence: Evidence) -> Any:
    return _match(tuple(reversed(among)), evidence)


def as_if_in_time(p: Any, member: Any) -> Any:
    report = _failure_report(p, member)
    return None if report is None else replace(report, late=False)


def charged_inside_the_window(p: Any, round_number: int | None = None, pod: str = "") -> bool:
    charges = [c for a in p.status.accounts for c in a.charges]
    return any((pod and c.pod == pod) or (round_number and c.round == round_number) for c in charges)


def a_step_is_enough(p: Any) -> bool:
    return p.status.progress is not None and p.status.progress.round == p.round.number


MUTATIONS: list[Mutation] = [
    ("I1 numbered above both", rounds, "catch_up", lambda _: None, "record_set_forward_by_hand"),
    ("I2 ranks by rule", candidates, "assign_ranks", rank_by_slot, REGROW),
    ("I3 never fewer", formation, "decide", decide_without_minimum, "account_used_up_fails_the_job"),
    ("I3 bounds break nothing", scaling, "rescale", break_below_minimum, "bounds_that_change_break_nothing"),
    ("I10 the size in one piece", scaling, "_least", lambda _: 1, "growth_without_room_breaks_nothing"),
    (
        "I10 nothing is done again",
        scaling,
        "_has_succeeded",
        lambda _: False,
        "scaled_while_some_have_succeeded",
    ),
    (
        "I14 steps are the job's",
        pacing,
        "has_lived",
        a_step_is_enough,
        "slot_whose_pods_die_after_a_step_is_paced",
    ),
    (
        "I14 new steps only",
        pacing,
        "_came_further",
        a_step_is_enough,
        "step_that_was_done_before_is_no_progress",
    ),
    ("I14 a slot's pods", pacing, "slot_left", lambda *_: 0.0, "slot_whose_pods_die_after_a_step_is_paced"),
    (
        "I14 given up",
        pacing,
        "note_given_up",
        lambda _: None,
        "newcomers_that_never_reach_the_leader_are_paced",
    ),
    (
        "I14 growth in vain",
        pacing,
        "growth_left",
        lambda _: 0.0,
        "newcomer_is_not_there_when_the_round_has_ended",
    ),
    (
        "I14 growth that does not last",
        pacing,
        "larger_left",
        lambda _: 0.0,
        "newcomers_made_by_others_that_die_are_paced",
    ),
    (
        "I7 ended well",
        ends,
        "ended_well",
        lambda *_: False,
        "finished_member_is_heard_after_the_next_round_has_formed",
    ),
    ("I14 rounds are paced", pacing, "pause", lambda _: 0.0, "rounds_that_get_nowhere_are_paced"),
    (
        "I14 newcomers are proven",
        pacing,
        "unproven",
        lambda *_: 0.0,
        "newcomer_of_a_slot_that_ends_early_has_to_be_proven",
    ),
    ("I10 fit members", scaling, "_unfit", lambda *_: "", "growth_waits_for_a_member_that_is_not_heard_of"),
    (
        "I10 published at once",
        rounds,
        "PLANNED",
        frozenset(),
        "growth_lets_in_those_who_have_joined_and_waits_no_longer",
    ),
    (
        "I10 the former size is enough",
        scaling,
        "bound",
        lambda p: p.set(min_replicas=p.job.spec.min_replicas or p.job.spec.replicas),
        "growth_without_room_breaks_nothing",
    ),
    (
        "I4 late announcements",
        context.Pass,
        "in_time",
        lambda *_: True,
        "stalled_standby_announces_itself_again",
    ),
    ("I4 spent ids", context.Pass, "in_time", lambda *_: True, "spent_id_is_never_picked_again"),
    (
        "I4 replaced pods",
        context.Pass,
        "superseded",
        lambda *_: False,
        "one_member_accuses_a_leader_that_others_reach",
    ),
    ("I5 two witnesses", members, "_examine", convict_by_silence, "stale_lease_accuses_but_does_not_convict"),
    ("I5 not without a witness", members, "_silent", lambda *_: True, "nobody_vouches_for_a_silent_node"),
    (
        "I5 not against a witness",
        members,
        "_vouched_for",
        lambda *_: False,
        "only_the_path_to_the_api_server_is_cut",
    ),
    ("I6 losses end rounds", members, "_examine", ignore_what_ended, "rank_0_is_killed_and_replaced"),
    ("I7 charged once", failures, "_charged", lambda *_, **__: False, "one_root_failure_is_charged_once"),
    (
        "I8 all must succeed",
        lifecycle,
        "check_success",
        complete_with_the_first,
        "member_fails_after_others_have_succeeded",
    ),
    (
        "I4 late announcements, awake",
        context.Pass,
        "in_time",
        lambda *_: True,
        "stalled_agent_wakes_and_announces_itself_again",
    ),
    (
        "I4 identity by holder",
        context.Pass,
        "participant",
        lambda p, pod: p.observed.leases.get(pod.name),
        "participant_from_another_job",
    ),
    (
        "survivors are waited for",
        rounds,
        "expect_members",
        lambda _: ([], []),
        "slow_worker_stop_outlasts_last_call",
    ),
    ("fencing", members, "departed", lambda _: True, "whole_job_cut_off_waits_for_fencing"),
    (
        "the root, not its echoes",
        failures,
        "explains_more",
        lambda cause, _matched, _ms, than, *_: better(cause, than),
        "worker_without_a_known_exit_code",
    ),
    (
        "late reports explain only",
        members,
        "_failure_report",
        as_if_in_time,
        "report_of_a_worker_that_came_late_explains_only",
    ),
    ("the first rule", rules, "match", match_the_last, "first_rule_that_matches_decides"),
    ("rules are obeyed", failures, "enforce", lambda *_: None, "rule_fails_the_job"),
    ("given up on its node", failures, "_give_up", lambda *_: None, "rule_excludes_the_node_of_the_root"),
    (
        "a pause for what is ignored",
        pacing,
        "pause",
        lambda _: 0.0,
        "rules_hold_before_a_pod_is_a_member",
    ),
    (
        "out of memory in place",
        members,
        "killed_for_memory",
        lambda *_: None,
        "container_out_of_memory_is_restarted_in_place",
    ),
    (
        "better evidence moves a charge",
        moves,
        "revise",
        lambda *_: None,
        "charge_moves_when_the_container_was_out_of_memory",
    ),
    (
        "not for ever",
        moves,
        "MOVE_SECONDS",
        float("inf"),
        "charge_does_not_move_after_two_minutes",
    ),
    (
        "the first worker, also later",
        moves,
        "_earlier_failure",
        lambda *_: None,
        "charge_moves_to_a_worker_that_failed_earlier",
    ),
    ("a broken path once", rounds, "_goes_on", lambda _: False, "broken_path_is_charged_once"),
    (
        "charged once in any window",
        failures,
        "_charged",
        charged_inside_the_window,
        "charge_outlives_its_window",
    ),
    (
        "a pod's end is charged once in any window",
        failures,
        "settle_pod",
        lambda *_: None,
        "end_before_joining_is_charged_once_in_any_window",
    ),
    (
        "who took it away, said late before it joined",
        ends,
        "unexplained",
        lambda *_: 0.0,
        "newcomer_is_preempted_and_its_command_ends_with_0",
    ),
    (
        "sidecars hold nothing",
        pods,
        "_delete_held_by_sidecars",
        lambda _: None,
        "dead_container_beside_a_sidecar",
    ),
    ("who took it away", ends, "_disruption", lambda _: None, "preempted_by_the_scheduler"),
    (
        "who took it away, said late",
        ends,
        "second_thoughts",
        lambda *_: None,
        "killed_and_the_preemption_is_seen_late",
    ),
    (
        "a node's word on a deletion",
        ends,
        "node_trouble",
        lambda *_: "",
        "deleted_on_a_node_that_is_not_ready",
    ),
    ("who leaves", context.Pass, "leaving", lambda *_: False, "evicted_by_a_kubelet_short_of_memory"),
    (
        "nodes that are dead for sure",
        context.Pass,
        "on_dead_node",
        lambda *_: False,
        "all_nodes_are_declared_out_of_service",
    ),
    ("no force on mere silence", context.Pass, "on_dead_node", trusts_no_taint, UNREACHABLE),
    ("bad nodes are avoided", nodes, "excluded", lambda _: (), "node_that_fails_twice_is_avoided"),
    (
        "exclusions are lifted",
        nodes,
        "_lift",
        lambda _: None,
        "exclusion_is_lifted_when_too_few_can_be_placed",
    ),
    (
        "exclusions end",
        nodes,
        "_replace_pending",
        lambda _: None,
        "pod_that_waits_because_of_an_exclusion_is_made_again",
    ),
    (
        "a suspension supersedes pods",
        suspension,
        "_supersede",
        lambda _: None,
        "suspended_before_its_pods_are_deleted_the_operator_dies",
    ),
    (
        "a suspension is not charged",
        rounds,
        "NEVER_CHARGED",
        frozenset(),
        "suspended_in_a_running_round_and_resumed",
    ),
    (
        "fencing after a suspension",
        members,
        "departed",
        lambda _: True,
        "suspended_and_resumed_faster_than_pods_go",
    ),
    (
        "what came before is charged",
        suspension,
        "settle",
        lambda _: None,
        "suspended_while_a_round_is_broken",
    ),
    (
        "deleted after it is closed",
        lifecycle,
        "projection",
        lambda p: p.observed.record,
        "deleted_at_once_when_its_participants_can_know",
    ),
]


@pytest.mark.parametrize(
    ("rule", "place", "name", "absence", "race"), MUTATIONS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_scenario_tells_when_the_rule_is_gone(
    rule: str,
    place: object,
    name: str,
    absence: Any,
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
