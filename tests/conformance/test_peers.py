"""What is special without an operator: the coordinator dies or stands still, or its Lease is deleted."""

from __future__ import annotations

import signal
import time

import pytest

from elasticjob.contract.limits import Limits
from elasticjob.peers.run import round_lease
from elasticjob.peers.settled import FORMING_RENEW
from tests.conformance import bodies, work
from tests.conformance.agents import Agent, Stage, join_all, raised
from tests.conformance.bodies import Workers
from tests.conformance.peer_run import PeerRun
from tests.conformance.pods import requests_of

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.peers_alone]

MANY = 16
FEW_MORE = 3
"""Requests of one re-join beyond those that it needs: the coordinator lists once more before it judges, or
says why it waits."""
QUIET_SECONDS = 20.0
EARLY_ENDS_SECONDS = 480.0
"""For ten rounds that fail at once: 183 s of pauses between them."""


def run_of(stage: Stage) -> PeerRun:
    """The run."""
    assert isinstance(stage.job, PeerRun)
    return stage.job


def in_place(agents: list[Agent], name: str) -> Agent:
    """The agent in this pod."""
    return next(agent for agent in agents if agent.pod.name == name)


def test_a_run_shrinks_grows_loses_its_coordinator_and_ends_well(stage: Stage) -> None:
    """Kill of a member, shrink, growth, kill of the coordinator, success: real agents and workers."""
    run = run_of(stage)
    run.create(3, minReplicas=2)
    workers = Workers(work.gated_sum, (str(stage.work),), max_restarts=5)
    agents = stage.agents_of([workers] * 3)
    stage.here("here", 1, 3)
    member = next(a for a in agents if a.pod.name != run.coordinator)
    member.kill()
    stage.here("here", 2, 2)
    agents = [a for a in agents if a is not member] + stage.agents_of([workers])
    stage.here("here", 3, 3)
    coordinator = in_place(agents, run.coordinator)
    coordinator.kill()
    stage.here("here", 4, 2)
    assert run.coordinator != coordinator.pod.name
    stage.open_gate()
    stage.succeeded(*(a for a in agents if a is not coordinator))
    assert run.causes() == ["Started", "PodLost", "ScaledUp", "PodLost"]


def test_the_coordinator_that_is_also_rank_0_dies(stage: Stage) -> None:
    run = run_of(stage)
    run.create(2, minReplicas=1)
    pods = stage.pods(2)  # a pod that is not there yet would not be waited for
    first = stage.member(pods[0])
    first.tell("next")
    stage.until(lambda: run.coordinator == first.pod.name, "the first coordinates")
    second = stage.member(pods[1])
    second.tell("next")
    assert (first.joined().rank, second.joined().rank) == (0, 1)
    second.tell("next_on_notice")
    first.kill()
    assert second.joined().world_size == 1
    assert run.coordinator == second.pod.name


def test_a_run_goes_on_when_its_round_lease_is_deleted(stage: Stage) -> None:
    run = run_of(stage)
    run.create(2, minReplicas=1)
    members = stage.members(2)
    infos = join_all(members)
    before = run.round()["number"]
    run.delete_round_lease()
    stage.until(lambda: run.round_is(before, 2), "the round Lease is made again")
    assert [member.ask("waiting") for member in members] == [0, 0]
    members[0].tell("next_on_notice")
    members[1].kill()
    assert members[0].joined().world_size == 1
    assert infos[0].world_size == 2
    assert [s.state.number for s in run.history if s.state.active][-1] == before + 1


def test_a_coordinator_that_stands_still_is_replaced_and_comes_back_as_a_member(stage: Stage) -> None:
    run = run_of(stage)
    run.create(3, minReplicas=2)
    config = {"heartbeat_timeout": "2", "stall_timeout": "3"}
    members = stage.members(3, config=config)
    join_all(members)
    stage.round_is(1, 3)
    frozen = in_place(members, run.coordinator)
    others = [member for member in members if member is not frozen]
    for member in others:
        member.tell("next_on_notice")
    offset = stage.cluster.audit_log.stat().st_size
    frozen.signal(signal.SIGSTOP)
    assert [member.joined().world_size for member in others] == [2, 2]
    replaced = run.coordinator
    assert replaced != frozen.pod.name
    for member in others:
        member.tell("next_on_notice")
    frozen.signal(signal.SIGCONT)
    frozen.tell("next_on_notice")
    assert [member.joined().world_size for member in members] == [3, 3, 3]
    assert run.coordinator == replaced
    writes = [
        r for r in requests_of(stage.cluster, run, offset) if r.writes and r.name == round_lease(run.name)
    ]
    taken = next(r for r in writes if r.pod == replaced and r.code == 200)
    late = [r for r in writes if r.pod == frozen.pod.name and r.received > taken.received]
    assert {r.code for r in late} <= {409}, "what it had decided before it stood still is written by nobody"


def test_the_coordinator_dies_while_a_round_forms(stage: Stage) -> None:
    """Another goes on with it, with the number and what it says of the round before. That a pod has ended
    explains a failed worker better, if the record still says why that round has ended."""
    run = run_of(stage)
    run.create(3, minReplicas=2)
    members = stage.members(3)
    join_all(members)
    stage.round_is(1, 3)
    coordinator = in_place(members, run.coordinator)
    others = [member for member in members if member is not coordinator]
    others[0].tell("next")
    stage.until(lambda: run.round()["phase"] == "Broken", "the others are waited for")
    coordinator.kill()
    others[1].tell("next_on_notice")
    assert [other.joined().world_size for other in others] == [2, 2]
    stage.round_is(2, 2)
    assert run.coordinator in [other.pod.name for other in others]
    assert run.causes() in (["Started", "WorkerFailed"], ["Started", "PodLost"])


def test_a_new_run_of_the_same_name_begins_when_the_one_before_is_over(stage: Stage) -> None:
    run = run_of(stage)
    run.create(1)
    member = stage.member()
    assert member.ask("next").world_size == 1
    newer = stage.member(run_id="another")
    newer.tell("next")
    stage.until(lambda: "waiting: run conformance has the name" in newer.text(), "it says what it waits for")
    member.kill(report=False)
    assert newer.silent(), "nothing but its port shows that the agent has ended"
    run.delete_pod(member.pod)
    assert newer.joined().world_size == 1


def test_an_agent_that_comes_after_the_end_of_its_run_ends_with_0_and_warns(stage: Stage) -> None:
    """It has trained nothing: a second torchrun in one container, or a run with an id that was taken."""
    run = run_of(stage)
    run.create(1)
    stage.succeeded(stage.agent(Workers(work.happy)))
    late = stage.agent(Workers(work.sad))
    assert stage.ended(late) == [0]
    (warning,) = [line for line in late.text().splitlines() if "has trained nothing" in line]
    assert " elasticjob W the job is complete" in warning
    assert f"Run conformance of {run.name} is over" in warning
    assert run.causes() == ["Started"]


def test_of_two_runs_that_begin_at_once_one_trains_and_the_other_is_told(stage: Stage) -> None:
    run = run_of(stage)
    run.create(1)
    config = {"join_timeout": "10"}
    agents = [stage.member(run_id=run_id, config=config) for run_id in ("one", "other")]
    for agent in agents:
        agent.tell("next")
    stage.until(lambda: run.round_is(1, 1), "one of them trains")
    first = in_place(agents, next(iter(run.ranks())))
    (second,) = (agent for agent in agents if agent is not first)
    assert first.joined().world_size == 1
    error = raised(second.answer())
    assert error.kind == "RendezvousTimeoutError"
    assert f"has the name {run.name} (its pods: {first.pod.name})" in error.text
    assert "give one of them another name" in error.text


def test_missing_rights_end_with_the_role_to_hand_to_an_admin(stage: Stage) -> None:
    run = run_of(stage)
    run.create(1)
    run.take_rights()
    try:
        pod = stage.pods(1)[0]
        agent = stage.start(bodies.run_member, (stage.place(pod),), pod)
        agent.answer()
        error = raised(agent.ask("next"))
    finally:
        run.give_rights()
    assert error.kind == "RendezvousStateError"
    assert "kind: Role" in error.text
    assert "resources: [leases], verbs: [get, list, watch, create, patch]" in error.text


def test_without_the_right_on_pods_losses_are_noticed_by_heartbeats(stage: Stage) -> None:
    """A member dies, then the coordinator with rank 0: nothing but Leases and ports tells of it."""
    run = run_of(stage)
    run.create(3, minReplicas=1)
    run.take_right_on_pods()
    try:
        members = stage.members(3)
        join_all(members)
        member = next(m for m in members if m.pod.name != run.coordinator)
        others = [m for m in members if m is not member]
        for other in others:
            other.tell("next_on_notice")
        member.kill()
        assert [other.joined().world_size for other in others] == [2, 2]
        coordinator = in_place(others, run.coordinator)
        (last,) = (m for m in others if m is not coordinator)
        last.tell("next_on_notice")
        coordinator.kill()
        assert last.joined().world_size == 1
        assert run.coordinator == last.pod.name
    finally:
        run.give_right_on_pods()


def test_the_coordinator_and_rank_0_die_at_once_and_nothing_but_their_ports_tells(stage: Stage) -> None:
    """No right on pods, and the dead coordinator is named by no one: without the look at its port the others
    would wait for it as long as for one that rejoins. No Lease tells that wait from a shorter one: the limit
    is far from both."""
    run = run_of(stage)
    run.create(4, minReplicas=2)
    run.take_right_on_pods()
    try:
        pods = stage.pods(4)
        coordinator = stage.member(pods[1])
        coordinator.tell("next")
        stage.until(lambda: run.coordinator == pods[1].name, "the second pod coordinates")
        rank_0, *others = (stage.member(pod) for pod in (pods[0], *pods[2:]))
        for agent in (rank_0, *others):
            agent.tell("next")
        assert [agent.joined().rank for agent in (rank_0, coordinator, *others)] == [0, 1, 2, 3]
        stage.round_is(1, 4)
        for other in others:
            other.tell("next_on_notice")
        killed = time.monotonic()
        for agent in (rank_0, coordinator):
            agent.signal(signal.SIGKILL)
        again = [other.joined() for other in others]
    finally:
        run.give_right_on_pods()
    assert [info.world_size for info in again] == [2, 2]
    assert "its port refuses connections" in run.history[-1].message, [s.message for s in run.history]
    assert max(info.returned for info in again) - killed < Limits().rejoin_timeout - 15


def test_one_re_join_takes_a_request_of_each_and_three_more_and_a_running_round_none(stage: Stage) -> None:
    """Each announces itself; for all together the round Lease is written twice, and the leader reports. Who
    waits, and the coordinator while others do, shows every two seconds that it lives."""
    run = run_of(stage)
    run.create(MANY)
    members = stage.members(MANY)
    infos = join_all(members)
    stage.round_is(1, MANY)
    offset = stage.cluster.audit_log.stat().st_size
    time.sleep(QUIET_SECONDS)
    quiet = [r for r in requests_of(stage.cluster, run, offset) if r.name == round_lease(run.name)]
    assert quiet == [], "a running round needs no coordinator"

    offset = stage.cluster.audit_log.stat().st_size
    began = time.monotonic()
    for member in members[1:]:
        member.tell("next_on_notice")
    members[0].tell("next")
    again = [member.joined() for member in members]
    assert [info.rank for info in again] == [info.rank for info in infos]
    stage.round_is(2, MANY)
    renewals = (MANY + 1) * int((time.monotonic() - began) / FORMING_RENEW)
    asked = list(requests_of(stage.cluster, run, offset))
    assert len(asked) <= MANY + 3 + FEW_MORE + renewals, sorted(asked, key=lambda r: r.received)
    assert [r for r in asked if r.code == 409] == []


@pytest.mark.slow
@pytest.mark.timeout(EARLY_ENDS_SECONDS + 120)
def test_a_script_that_fails_at_once_ends_its_run_after_ten_rounds(stage: Stage) -> None:
    """However many restarts its agent has left; the pauses between the rounds grow meanwhile."""
    run = run_of(stage)
    run.create(1)
    agent = stage.agent(Workers(work.sad, max_restarts=100))
    stage.until(lambda: agent.exit_code is not None, "the agent has ended", EARLY_ENDS_SECONDS)
    assert agent.exit_code == 1
    sentence = "10 rounds in a row ended within a minute, without progress. The last: "
    assert f"RendezvousClosedError: the job has failed: {sentence}" in agent.text()
    assert sentence in run.condition("Failed")["message"]
    assert "sad because I throw" in run.condition("Failed")["message"]
    assert run.causes() == ["Started", *["WorkerFailed"] * 9]
