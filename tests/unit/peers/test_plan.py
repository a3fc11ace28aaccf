"""What a coordinator decides, look by look: torch's semantics, and the proof that a verdict needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from elasticjob.contract.reports import FailureReport
from elasticjob.peers.pacing import MOST_EARLY_ENDS
from elasticjob.peers.plan import GROWTH_SECONDS
from tests.unit.peers.table import RUN, Table


def test_a_round_begins_at_once_with_the_maximum() -> None:
    table = Table()
    table.join("pod-2", "pod-0", "pod-1")
    table.look()
    assert table.told == (1, "Active", "")
    assert table.members == ["pod-0", "pod-1", "pod-2"]
    assert table.settled.endpoint == "10.0.0.2:1234"


def test_the_first_round_has_a_last_call_once_enough_have_joined() -> None:
    table = Table(minimum=2, maximum=3)
    table.join("pod-0")
    table.look()
    assert "at least 2 required" in table.look(after=100).waiting
    table.join("pod-1")
    table.look()
    assert not table.look(after=29).settled.state.active
    assert table.look(after=1).settled.state.active
    assert table.members == ["pod-0", "pod-1"]


def test_pods_in_sight_are_waited_for_and_no_others() -> None:
    table = Table(minimum=1, maximum=3)
    table.live_pods = {"pod-0": "a", "pod-1": "b"}
    table.join("pod-0")
    assert "pod-1 (its pod has not joined yet)" in table.look().waiting
    table.live_pods = {"pod-0": "a"}
    assert table.look().settled.state.active, "no other is on its way"


def lost_and_replaced() -> Table:
    """pod-2 of three is lost while pods are in sight; pod-3 is in its place, and the others have rejoined."""
    table = Table(minimum=2, maximum=3)
    table.train("pod-0", "pod-1", "pod-2")
    table.gone[table.peers.pop("pod-2").key] = "its pod was deleted"
    table.live_pods = {name: peer.key for name, peer in table.peers.items()} | {"pod-3": "uid-3"}
    table.look()
    assert table.told == (1, "Broken", "PodLost")
    table.join("pod-0", "pod-1")
    return table


def test_a_replacement_that_has_not_started_holds_up_no_later_round() -> None:
    """It has no node, or its image is on the way. The round grows when it joins."""
    table = lost_and_replaced()
    table.pending = frozenset({"pod-3"})
    table.look()
    assert table.told == (2, "Active", "")
    assert table.members == ["pod-0", "pod-1"]


def test_a_replacement_that_has_started_is_waited_for() -> None:
    table = lost_and_replaced()
    assert "pod-3 (its pod has not joined yet)" in table.look().waiting
    table.join("pod-3")
    table.look()
    assert table.members == ["pod-0", "pod-1", "pod-3"]


def test_pods_that_have_not_started_are_waited_for_before_the_first_round_and_below_the_minimum() -> None:
    table = Table(minimum=1, maximum=2)
    table.live_pods, table.pending = {"pod-0": "a", "pod-1": "b"}, frozenset({"pod-1"})
    table.join("pod-0")
    assert "pod-1 (its pod has not joined yet)" in table.look().waiting
    few = lost_and_replaced()
    few.pending = frozenset({"pod-3"})
    few.gone[few.peers.pop("pod-1").key] = "its pod was deleted"
    assert "pod-3 (its pod has not joined yet)" in few.look().waiting


def test_one_beyond_the_maximum_stands_by_and_takes_a_lost_one_s_place() -> None:
    table = Table(minimum=2, maximum=2)
    table.train("pod-0", "pod-1")
    table.join("pod-2")
    table.look(after=60)
    assert table.told == (1, "Active", "")
    del table.peers["pod-1"]
    assert table.look().settled.state.cause == "PodLost"
    table.join("pod-0")
    table.join("pod-2")
    table.look()
    assert table.told == (2, "Active", "")
    assert table.members == ["pod-0", "pod-2"]


def test_newcomers_end_a_round_below_the_maximum_after_a_moment_or_at_once_if_they_fill_it() -> None:
    table = Table(minimum=1, maximum=3, last_call=0)
    table.train("pod-0")
    table.join("pod-1")
    assert table.look().settled.state.active
    table.look(after=GROWTH_SECONDS)
    assert table.told == (1, "Broken", "ScaledUp")
    filled = Table(minimum=1, maximum=2, last_call=0)
    filled.train("pod-0")
    filled.join("pod-1")
    filled.look()
    assert filled.told == (1, "Broken", "ScaledUp")
    assert filled.settled.message == "pod-1 joined"


def test_a_round_that_is_not_established_does_not_grow() -> None:
    table = Table(minimum=1, maximum=2, last_call=0)
    table.join("pod-0")
    table.look()
    table.join("pod-1")
    table.look(after=10)
    assert table.told == (1, "Active", "")


def test_each_way_to_leave_has_its_cause() -> None:
    def ended(change: object) -> str:
        table = Table()
        table.train("pod-0", "pod-1", "pod-2")
        change(table)  # type: ignore[operator]
        table.look()
        return table.settled.state.cause

    def fails(table: Table) -> None:
        table.fail("pod-1", "boom")
        table.join("pod-1")

    def starts_again(table: Table) -> None:
        table.join("pod-1")
        again = table.peers["pod-1"]
        table.peers["pod-1"] = replace(again, record=replace(again.record, from_round=0))

    assert ended(lambda t: t.peers.pop("pod-1")) == "PodLost"
    assert ended(lambda t: t.gone.update({t.peers["pod-1"].key: "its pod has failed"})) == "PodLost"
    assert ended(lambda t: t.leave("pod-1")) == "MemberLeft"
    assert ended(lambda t: t.join("pod-1")) == "WorkerFailed"
    assert ended(fails) == "WorkerFailed"
    assert ended(lambda t: t.fail("pod-1", "its last restart")) == "WorkerFailed"
    assert ended(starts_again) == "PodRestarted"
    assert ended(lambda t: t.report("pod-0", established=True, silent_ranks=(1,))) == "Unreachable"
    assert ended(lambda t: t.report("pod-0", established=True, hung=True)) == "Hang"


def test_the_first_of_several_failures_explains_the_others() -> None:
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    table.fail("pod-1", "connection reset", offset=900)
    table.fail("pod-2", "out of luck", offset=800)
    table.look()
    assert table.settled.message == "a worker of pod-2 failed: out of luck"


def test_the_failure_that_another_run_has_left_in_a_lease_ends_no_round() -> None:
    """Two torchruns came one after the other in one pod. Of an older handler it is not known whose it is."""
    for run, told in (("run-0", (1, "Active", "")), (RUN.id, (1, "Broken", "WorkerFailed"))):
        table = Table()
        table.train("pod-0", "pod-1", "pod-2")
        failure = FailureReport(1, 1, "CUDA error", job_uid=run)
        table.peers["pod-1"] = replace(table.peers["pod-1"], failure=failure)
        table.look()
        assert table.told == told
        assert failure.of(run, 1)
        assert FailureReport(1, 1).of(run, 1)
        assert not failure.of(run, 2)


def test_a_failure_in_an_earlier_round_of_the_same_number_ends_no_round() -> None:
    """The round Lease was deleted, and with the agents all knowledge of its rounds: numbers come again."""
    for nonce, told in (("before", (1, "Active", "")), ("", (1, "Broken", "WorkerFailed"))):
        table = Table()
        table.train("pod-0", "pod-1", "pod-2")
        failure = FailureReport(1, 1, "CUDA error", job_uid=RUN.id, nonce=nonce)
        table.peers["pod-1"] = replace(table.peers["pod-1"], failure=failure)
        table.look()
        assert table.told == told


def test_all_have_succeeded() -> None:
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    table.succeed("pod-0", "pod-1")
    table.look()
    assert table.told == (1, "Active", "")
    table.succeed("pod-2")
    table.look()
    assert (table.settled.closed, table.settled.outcome) == (True, "Complete")
    assert table.look(after=1000).settled is table.settled


def end_well(table: Table, name: str) -> None:
    """Its pod ends with exit code 0; what its agent wrote last has not arrived."""
    key = table.peers[name].key
    table.gone[key] = "its pod has succeeded"
    table.finished |= {key}


def test_a_pod_that_has_ended_well_has_succeeded() -> None:
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    table.succeed("pod-0")
    end_well(table, "pod-1")
    table.look()
    assert table.told == (1, "Active", "")
    end_well(table, "pod-2")
    del table.peers["pod-2"]
    table.look()
    assert (table.settled.closed, table.settled.outcome) == (True, "Complete")


def test_one_that_was_ended_or_has_failed_has_not_succeeded_whatever_its_exit_code() -> None:
    """A shell around torchrun may hide it."""
    changes: list[Callable[[Table, str], None]] = [Table.leave, Table.fail, Table.join]
    for change in changes:
        table = Table()
        table.train("pod-0", "pod-1", "pod-2")
        change(table, "pod-1")
        end_well(table, "pod-1")
        table.look()
        assert table.told[:2] == (1, "Broken")


def test_a_member_that_is_lost_after_others_have_succeeded_fails_the_run() -> None:
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    table.succeed("pod-0")
    table.look()
    del table.peers["pod-2"]
    table.look()
    assert (table.settled.closed, table.settled.outcome) == (True, "Failed")
    assert "after others had succeeded" in table.settled.message


def lost_by_silence(table: Table) -> None:
    """The leader reports one silent; the round breaks, and no other has announced itself again yet."""
    table.report("pod-0", established=True, silent_ranks=(2,))
    table.look()
    assert table.told == (1, "Broken", "Unreachable")


def test_no_round_begins_while_a_member_of_the_last_may_be_in_it_without_proof() -> None:
    """P3: newcomers could form a round; but all members may still train, they have only been silent for
    long."""
    table = Table(minimum=2, maximum=3)
    table.train("pod-0", "pod-1", "pod-2")
    lost_by_silence(table)
    table.look()
    table.join("pod-3", "pod-4")
    table.look(after=60)
    assert table.told == (1, "Broken", "Unreachable")
    assert "no member of the last round is known to have left it" in table.look(after=60).waiting
    table.gone[table.peers["pod-1"].key] = "its port refuses connections"
    assert table.look(after=1).settled.state.active
    assert table.members == ["pod-3", "pod-4"]


def test_one_whose_lease_was_deleted_by_hand_comes_back() -> None:
    """It was taken for lost; that it announces itself again is the proof that it has left the round."""
    table = Table(minimum=1, maximum=1)
    table.train("pod-0")
    peer = table.peers.pop("pod-0")
    table.look()
    assert table.told == (1, "Broken", "PodLost")
    table.peers["pod-0"] = peer
    table.join("pod-0")
    table.look()
    assert table.told == (2, "Active", "")


def test_a_lease_that_goes_without_its_pod_is_no_news_where_pods_are_in_sight() -> None:
    """P3: a user has deleted it."""
    table = Table(minimum=1, maximum=1)
    table.train("pod-0")
    table.join("pod-1")
    table.live_pods = {name: peer.key for name, peer in table.peers.items()}
    del table.peers["pod-0"]
    table.look(after=60)
    assert table.told == (1, "Active", "")
    del table.live_pods["pod-0"]
    table.look()
    table.look()
    assert table.told == (2, "Active", "")


def test_the_ports_of_those_who_do_not_rejoin_are_tried() -> None:
    """A member that dies together with the leader is named by no other: it is not waited for 45 s."""
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    lost_by_silence(table)
    table.join("pod-0")
    assert table.look().probes == {}
    probes = table.look(after=1).probes
    assert probes == {table.peers[n].key: table.peers[n].record.endpoint for n in ("pod-1", "pod-2")}
    table.join("pod-1")
    table.gone[table.peers["pod-2"].key] = "its port refuses connections"
    table.look()
    assert table.told == (2, "Active", "")
    assert table.members == ["pod-0", "pod-1"]


def test_a_former_coordinator_that_shows_no_sign_of_life_is_not_chosen() -> None:
    table = Table(minimum=1, maximum=2, last_call=0)
    table.join("pod-0", "pod-1")
    table.suspects = frozenset({"pod-0"})
    table.look()
    assert table.members == ["pod-1"]


def test_one_that_has_been_silent_for_some_renewals_is_not_chosen() -> None:
    table = Table(minimum=1, maximum=2, last_call=0)
    table.join("pod-0", "pod-1")
    table.silence("pod-0", 8.1)
    table.look()
    assert table.members == ["pod-1"]


def test_a_round_that_no_record_knows_may_run_while_those_who_have_seen_it_have_shown_no_other_sign() -> None:
    """P2, P3: the round Lease was deleted, and one that knows nothing has made it again."""
    table = Table(minimum=1, maximum=3, last_call=0)
    table.join("pod-0")
    knows = replace(table.peers["pod-0"].record, seen_round=4)
    table.peers["pod-0"] = replace(table.peers["pod-0"], record=knows)
    table.join("pod-1")
    table.look()
    assert table.told == (5, "Broken", "")
    table.join("pod-1")
    assert "pod-0 may be in a round that is not known any more" in table.look(after=60).waiting
    table.gone[table.peers["pod-0"].key] = "its port refuses connections"
    table.look()
    assert table.told == (6, "Active", "")


def test_members_that_are_older_than_the_round_lease_may_be_in_the_first_round() -> None:
    """I4, P3: they have announced themselves before the first round, as one that waits has. The round Lease
    was deleted, and a new pod has made it again."""
    table = Table(minimum=1, maximum=3, last_call=0)
    table.settled = replace(table.settled, unsure=True)
    table.join("pod-0", "pod-1")
    table.older = frozenset({"pod-0"})
    table.look()
    assert table.told == (1, "Broken", "")
    table.join("pod-1")
    assert "pod-0 may be in a round" in table.look(after=60).waiting
    table.join("pod-0")
    assert table.look().settled.state.active


def test_a_round_that_goes_on_after_its_lease_was_deleted_leaves_a_number_out_when_it_ends() -> None:
    """P3: one that has left the round has made the Lease again, and did not hear that another one began."""
    table = Table(minimum=1, maximum=3, last_call=0)
    table.train("pod-0", "pod-1")
    table.settled = replace(table.settled, unsure=True)
    table.join("pod-1")
    table.look()
    assert table.told == (2, "Broken", "WorkerFailed")
    table.join("pod-1")
    assert "pod-0 may be in a round" in table.look(after=60).waiting


def test_participants_of_another_run_may_train_where_there_was_no_round_lease() -> None:
    """P8: a user has deleted it while they trained."""
    table = Table(minimum=1, maximum=3, last_call=0)
    table.settled = replace(table.settled, unsure=True)
    table.others, table.older = {"old-0": "uid-old"}, frozenset({"old-0"})
    table.join("pod-0")
    waiting = table.look(after=60).waiting
    assert "old-0 of another run of this name may train" in waiting
    assert "give one of the runs another name" in waiting
    table.gone["uid-old"] = "its pod has ended"
    assert table.look().settled.state.active


def test_participants_of_another_run_that_came_after_the_round_lease_wait_and_are_not_waited_for() -> None:
    """Two runs of one name begin at once: each would wait for the other until ``join_timeout``."""
    table = Table(minimum=1, maximum=3, last_call=0)
    table.settled = replace(table.settled, unsure=True)
    table.others = {"other-0": "uid-other"}
    table.join("pod-0")
    assert table.look().settled.state.active


def test_a_run_in_the_place_of_another_may_have_had_rounds() -> None:
    """I4: its round Lease was deleted, and a pod of the run before has made it again. The ids of its members
    look as those of participants that wait for the first round."""
    table = Table(minimum=1, maximum=3, last_call=0)
    table.join("pod-0", "pod-1")
    table.older = frozenset({"pod-0", "pod-1"})
    table.look()
    assert (table.told, table.settled.unsure) == ((1, "Broken", ""), True)
    table.join("pod-1")
    assert "pod-0 may be in a round" in table.look(after=60).waiting


def test_after_an_unsure_beginning_all_show_first_that_they_are_in_no_round() -> None:
    table = Table(minimum=1, maximum=3, last_call=0)
    state = replace(table.settled.state, number=5)
    table.settled = replace(table.settled, state=state, unsure=True, left_out=True)
    table.join("pod-0", "pod-1")
    old = replace(table.peers["pod-1"].record, seen_round=4)
    table.peers["pod-1"] = replace(table.peers["pod-1"], record=old)
    assert "pod-1 may be in a round" in table.look(after=60).waiting
    table.join("pod-1")
    assert table.look().settled.state.active
    assert not table.settled.unsure


def test_a_lease_of_which_there_is_no_pod_is_to_be_deleted_itself() -> None:
    """A user has copied the one of a pod that had seen less: it will never announce itself."""
    table = Table(minimum=1, maximum=3, last_call=0)
    state = replace(table.settled.state, number=5)
    table.settled = replace(table.settled, state=state, unsure=True, left_out=True)
    table.join("pod-0")
    record = replace(table.peers["pod-0"].record, seen_round=4)
    table.peers["copy-of-pod-0"] = replace(table.peers["pod-0"], name="copy-of-pod-0", record=record)
    assert "copy-of-pod-0 may be in a round" in table.look().waiting
    assert "delete it, or its Lease where there is no such pod" in table.last.waiting
    del table.peers["copy-of-pod-0"]
    assert table.look().settled.state.active


def fail_early(table: Table, times: int) -> list[float]:
    """Rounds that fail at once; the pauses before the next."""
    pauses = []
    for _ in range(times):
        table.fail("pod-0", "boom")
        table.look()
        if table.settled.closed:
            break
        table.join("pod-0", "pod-1")
        paused = 0.0
        while not table.look(after=0.5 if paused else 0).settled.state.active:
            paused += 0.5
        pauses.append(paused)
        table.report(table.members[0], established=True)
        table.look()
    return pauses


def test_rounds_that_end_early_in_a_row_slow_down_and_end() -> None:
    """I14: a script that fails at once."""
    table = Table(maximum=2)
    table.train("pod-0", "pod-1")
    pauses = fail_early(table, 20)
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert (table.settled.closed, table.settled.outcome) == (True, "Failed")
    assert f"{MOST_EARLY_ENDS} rounds in a row ended within a minute" in table.settled.message
    assert table.settled.message.endswith("a worker of pod-0 failed: boom")


def test_a_minute_or_progress_ends_the_series() -> None:
    table = Table(maximum=2)
    table.train("pod-0", "pod-1")
    fail_early(table, 5)
    assert table.settled.early_ends == 5
    table.progress("pod-0", step=1)
    fail_early(table, 1)
    assert (table.settled.early_ends, table.settled.best_step) == (0, 1)
    fail_early(table, 3)
    assert table.settled.early_ends == 3
    table.progress("pod-0", step=1)
    fail_early(table, 1)
    assert table.settled.early_ends == 4, "an earlier round had come as far"
    table.look(after=60)
    fail_early(table, 1)
    assert table.settled.early_ends == 0
