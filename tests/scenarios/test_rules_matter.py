"""Each rule (docs/internals/invariants.md and others) has a scenario that tells when it is taken out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from elasticjob.core import heartbeats
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.status import JobStatus
from tests.peers.mutations import MUTATIONS as PEERS
from tests.rules import RULES, without
from tests.scenarios.test_scenarios import run
from tests.simulation.mutations import MUTATIONS
from tests.unit.test_heartbeats import monitor

RACES = Path(__file__).parent / "races"

TOLD_BY = [
    ("I1 numbered above both", "record_set_forward_by_hand"),
    ("I1 a new number", "container_is_restarted_in_place_twice_in_a_row"),
    ("I1 the record never goes back", "record_set_forward_by_hand"),
    ("I2 ranks by rule", "shrink_when_no_replacement_comes_and_regrow"),
    ("I3 never fewer", "account_used_up_fails_the_job"),
    ("I3 never more", "scale_up_beside_a_spare_waits_for_the_new_pods"),
    ("growth pays", "growth_waits_until_it_pays"),
    ("growth waits for warm workers", "growth_waits_until_all_can_start_warm"),
    ("who cannot write speaks through others", "member_that_cannot_write_tells_its_leader"),
    ("a drain ends whoever has succeeded", "drain_ends_at_its_deadline_although_a_member_has_succeeded"),
    ("storage has the steps before pods go", "suspended_while_only_memory_holds_the_last_steps"),
    ("growth waits for them a minute", "growth_waits_a_minute_for_members_to_start_warm"),
    ("I3 bounds break nothing", "bounds_that_change_break_nothing"),
    ("I4 late announcements", "stalled_standby_announces_itself_again"),
    ("I4 late announcements", "spent_id_is_never_picked_again"),
    ("I4 late announcements", "stalled_agent_wakes_and_announces_itself_again"),
    ("I4 who may be a member", "zombies_of_a_cut_off_node"),
    ("I4 replaced pods", "one_member_accuses_a_leader_that_others_reach"),
    ("I4 identity by holder", "participant_from_another_job"),
    ("survivors are waited for", "slow_worker_stop_outlasts_last_call"),
    ("a broken path once", "broken_path_is_charged_once"),
    ("fencing", "whole_job_cut_off_waits_for_fencing"),
    ("fencing", "suspended_and_resumed_faster_than_pods_go"),
    ("fencing for as long as the job says", "whole_round_is_cut_off_and_not_waited_for"),
    ("nobody waits without a timer", "join_timeout_ends_the_job"),
    ("I5 two witnesses", "stale_lease_accuses_but_does_not_convict"),
    ("I5 not without a witness", "nobody_vouches_for_a_silent_node"),
    ("I5 not against a witness", "only_the_path_to_the_api_server_is_cut"),
    ("lost with the leader", "whole_round_is_lost_with_its_node"),
    ("I6 losses end rounds", "rank_0_is_killed_and_replaced"),
    ("late reports explain only", "report_of_a_worker_that_came_late_explains_only"),
    ("out of memory in place", "container_out_of_memory_is_restarted_in_place"),
    ("hangs end rounds", "hang_breaks_the_round"),
    ("who leaves", "evicted_by_a_kubelet_short_of_memory"),
    ("nodes that are dead for sure", "all_nodes_are_declared_out_of_service"),
    ("no force on mere silence", "evicted_by_the_taint_of_an_unreachable_node"),
    ("members that are lost leave their slot", "one_member_accuses_a_leader_that_others_reach"),
    ("silent announcements are replaced", "waiting_member_goes_silent"),
    ("sidecars hold nothing", "dead_container_beside_a_sidecar"),
    ("fenced in this very round", "checkpoints_were_fenced_in_the_round_before"),
    ("I7 charged once", "one_root_failure_is_charged_once"),
    ("I7 charges are kept", "account_used_up_fails_the_job"),
    ("I7 an attempt is charged once", "pods_of_one_attempt_that_end_early_are_one_failure"),
    ("I7 ended well", "finished_member_is_heard_after_the_next_round_has_formed"),
    ("the root, not its echoes", "worker_without_a_known_exit_code"),
    ("the first rule", "first_rule_that_matches_decides"),
    ("rules are obeyed", "rule_fails_the_job"),
    ("given up on its node", "rule_excludes_the_node_of_the_root"),
    ("better evidence moves a charge", "charge_moves_when_the_container_was_out_of_memory"),
    ("not for ever", "charge_does_not_move_after_two_minutes"),
    ("the first worker, also later", "charge_moves_to_a_worker_that_failed_earlier"),
    ("charged once in any window", "charge_outlives_its_window"),
    ("a pod's end is charged once in any window", "end_before_joining_is_charged_once_in_any_window"),
    ("who takes pods away", "evicted_by_a_kubelet_short_of_memory"),
    ("who took it away", "preempted_by_the_scheduler"),
    ("who took it away, said late", "killed_and_the_preemption_is_seen_late"),
    ("who took it away, said late before it joined", "newcomer_is_preempted_and_its_command_ends_with_0"),
    ("a node's word on a deletion", "deleted_on_a_node_that_is_not_ready"),
    ("nodes are not blamed for requests", "node_is_not_blamed_for_who_was_told_to_end"),
    ("bad nodes are avoided", "node_that_fails_twice_is_avoided"),
    ("exclusions are lifted", "exclusion_is_lifted_when_too_few_can_be_placed"),
    ("exclusions end", "pod_that_waits_because_of_an_exclusion_is_made_again"),
    ("I8 all must succeed", "member_fails_after_others_have_succeeded"),
    ("I8 the exit barrier is not the end", "command_fails_after_torchrun"),
    ("I8 whoever is taken away has not refused to join", "newcomer_is_preempted_and_its_command_ends_with_0"),
    ("deleted after it is closed", "deleted_at_once_when_its_participants_can_know"),
    ("a suspension is seen", "suspended_in_a_running_round_and_resumed"),
    ("a suspension supersedes pods", "suspended_before_its_pods_are_deleted_the_operator_dies"),
    ("a suspension is not charged", "suspended_in_a_running_round_and_resumed"),
    ("what came before is charged", "suspended_while_a_round_is_broken"),
    ("I10 the size in one piece", "growth_without_room_breaks_nothing"),
    ("I10 nothing is done again", "scaled_while_some_have_succeeded"),
    ("I10 fit members", "growth_waits_for_a_member_that_is_not_heard_of"),
    ("I10 published at once", "growth_lets_in_those_who_have_joined_and_waits_no_longer"),
    ("I10 the former size is enough", "growth_without_room_breaks_nothing"),
    ("I10 growth asks whether it can", "growth_without_room_breaks_nothing"),
    ("quota waits for no pause", "quota_that_is_wanted_back_waits_for_no_pause"),
    ("quota waits for no round", "quota_is_wanted_back_while_a_round_forms"),
    ("I11 people are told", "pod_that_cannot_be_made_holds_up_no_round"),
    ("I14 rounds are paced", "rounds_that_get_nowhere_are_paced"),
    ("I14 rounds are paced", "rules_hold_before_a_pod_is_a_member"),
    ("I14 steps are the job's", "slot_whose_pods_die_after_a_step_is_paced"),
    ("I14 new steps only", "step_that_was_done_before_is_no_progress"),
    ("I14 a slot's pods", "slot_whose_pods_die_after_a_step_is_paced"),
    ("I14 given up", "newcomers_that_never_reach_the_leader_are_paced"),
    ("I14 growth in vain", "newcomer_is_not_there_when_the_round_has_ended"),
    ("I14 growth that does not last", "larger_rounds_that_lose_an_old_member_are_paced"),
    ("I14 newcomers that do not last", "pods_of_others_that_are_taken_away_are_let_in_later"),
    ("I14 no newcomer of a series", "newcomer_of_a_slot_that_ends_early_has_to_be_proven"),
    ("I14 newcomers are proven", "newcomer_of_a_slot_that_ends_early_has_to_be_proven"),
]
"""A rule, and a scenario whose trace differs without it."""


def test_each_rule_stands_where_it_is_said_to() -> None:
    for rule in RULES.values():
        assert rule.there is not rule.absence


def test_each_rule_is_told_of() -> None:
    """By a scenario or, where no scenario reaches it, by the simulation."""
    simulated = {mutation.rule for mutation in MUTATIONS} | {mutation.rule for mutation in PEERS}
    assert {rule for rule, _ in TOLD_BY} | simulated == set(RULES)


@pytest.mark.parametrize(("rule", "race"), TOLD_BY)
def test_a_scenario_tells_when_the_rule_is_gone(rule: str, race: str) -> None:
    """With the rule it goes as the file says (``test_scenarios``)."""
    expected = (RACES / f"{race}.txt").read_text()
    with without(rule):
        try:
            actual = run(expected)
        except (AssertionError, LookupError):
            return  # the world objects: a pod is made twice or missing, or the planner does not come to rest
    assert actual != expected, f"nothing tells that the rule is gone: {rule}"


def test_i9_a_stalled_judge_accuses_when_the_rule_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent_ranks() -> list[int]:
        stalled = monitor()
        stalled.tick(1.0, {1: 1, 2: 1})
        return stalled.tick(61.0, {1: 1, 2: 1})

    assert silent_ranks() == []
    monkeypatch.setattr(heartbeats, "OWN_STALL_SECONDS", float("inf"))
    assert silent_ranks() == [1, 2]


def test_i9_timers_start_again_with_a_new_operator() -> None:
    """Its predecessor had waited 40 of 45 s: the survivor gets the whole time again."""
    text = (RACES / "slow_survivor_is_lost_after_rejoin_seconds.txt").read_text()
    commands = [line for line in text.splitlines() if line.startswith(">")]
    early = "\n".join([*commands[:2], "> wait 40", "> operator restarts", "> wait 40"])
    assert "DidNotRejoin" not in run(early)
    assert "DidNotRejoin" in run(early + "\n> wait 10")


def test_status_survives_json() -> None:
    """``World`` checks it at each pass; here that the check is not vacuous."""
    status = replace(JobStatus(), attempts=(0, 1), restarts=2)
    assert status_json.parse(status_json.dump(status)) == status
