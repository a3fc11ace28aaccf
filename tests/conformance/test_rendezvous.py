"""torch's tests of rendezvous handlers, re-told: bare handlers in processes of their own, without agents.

Upstream: ``test/distributed/elastic/rendezvous/{api,out_of_tree_rendezvous,dynamic_rendezvous,
etcd_rendezvous}_test.py``; see docs/internals/conformance.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob.agent.torch_version import workers_may_share_agent_store
from elasticjob.contract import names
from tests.conformance import bodies
from tests.conformance.agents import Agent, Stage, join_all, raised
from tests.conformance.bodies import Made
from tests.conformance.pods import NAMESPACE

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


def create(stage: Stage, **place: Any) -> Agent:
    """A process that makes a handler with these parameters; it says Made, or what was raised."""
    pod = stage.pods(1)[0]
    return stage.start(bodies.run_member, (stage.place(pod, **place),), pod)


@pytest.mark.matrix
def test_the_registry_makes_the_handler_by_its_entry_point(stage: Stage) -> None:
    stage.job.create(1)
    made = create(stage, run_id="some-id").answer()
    share = workers_may_share_agent_store(stage.torch_version)
    assert made == Made("K8sRendezvousHandler", names.BACKEND, "some-id", share)


def test_parameters_that_are_accepted(stage: Stage) -> None:
    """With namespace and without (the pod's own), with settings, and with what torch adds by itself."""
    stage.job.create(1)
    accepted: list[dict[str, Any]] = [
        {"endpoint": stage.job.name},
        {"endpoint": stage.endpoint, "local_addr": "127.0.0.1"},
        {"config": {"join_timeout": "50", "establish_timeout": "7.5", "heartbeat_timeout": "3"}},
        {"config": {"timeout": "900", "is_host": "true", "read_timeout": "60"}},
        {"config": {"pod": "other", "pod_uid": "1-2-3"}},
        {"min_nodes": 3, "max_nodes": 6},
    ]
    for place in accepted:
        answer = create(stage, **place).answer()
        assert isinstance(answer, Made), (place, answer)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ({"endpoint": ""}, "expected [NAMESPACE/]NAME of an ElasticJob"),
        ({"endpoint": "localhost:29400"}, "expected [NAMESPACE/]NAME of an ElasticJob"),
        ({"endpoint": "a/b/c"}, "expected [NAMESPACE/]NAME of an ElasticJob"),
        (
            {"config": {"join_timeout": "soon"}},
            "join_timeout is 'soon', expected a number of seconds greater than 0",
        ),
        ({"config": {"stall_timeout": "-1"}}, "stall_timeout is '-1', expected a number of seconds"),
        ({"config": {"keep_alive_interval": "5"}}, "unknown key keep_alive_interval. Known keys: rounds"),
        ({"config": {"rounds": "mine"}}, "rounds is 'mine', expected peers or operator"),
    ],
)
def test_parameters_that_are_refused(stage: Stage, place: dict[str, Any], sentence: str) -> None:
    """A ValueError in one sentence: what was found and what is expected."""
    stage.job.create(1)
    refused(stage, place, sentence)


@pytest.mark.operator_alone("a run without operator has a last call of its own")
def test_a_last_call_that_an_operator_decides_on_is_refused(stage: Stage) -> None:
    stage.job.create(1)
    refused(stage, {"config": {"last_call_timeout": "30"}}, "last_call_timeout is for rounds=peers")


@pytest.mark.peers_alone
@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ({"run_id": "none"}, "--rdzv-id is none, but with rounds=peers each run needs an id of its own"),
        ({"run_id": "a b"}, "--rdzv-id is 'a b', but with rounds=peers it must be at most"),
        ({"max_nodes": 129}, "rounds=peers takes at most 128 pods"),
    ],
)
def test_runs_that_are_refused(stage: Stage, place: dict[str, Any], sentence: str) -> None:
    """With an operator neither is looked at."""
    stage.job.create(1)
    refused(stage, place, sentence)


def refused(stage: Stage, place: dict[str, Any], sentence: str) -> None:
    """No handler is made, and the error says so."""
    error = raised(create(stage, **place).answer())
    assert error.kind in ("ValueError", "SettingsError")
    assert sentence in error.text


@pytest.mark.operator_alone("without an operator a run has no object before its first pod makes one")
def test_a_job_that_does_not_exist(stage: Stage) -> None:
    """Nothing to wait for: says so, instead of waiting for an operator."""
    stage.job.create(1)
    kubeconfig = str(stage.cluster.kubeconfig)
    member = stage.member(endpoint=f"{NAMESPACE}/no-such-job", config={"kubeconfig": kubeconfig})
    error = raised(member.ask("next"))
    assert error.kind == "RendezvousStateError"
    assert f"there is no ElasticJob no-such-job in namespace {NAMESPACE}" in error.text


@pytest.mark.matrix
def test_all_nodes_join_rendezvous(stage: Stage) -> None:
    """Ranks are 0..n-1, all agents get the same size, the same address, and the same store."""
    stage.job.create(3)
    members = stage.members(3)
    infos = join_all(members)
    assert sorted(info.rank for info in infos) == [0, 1, 2]
    assert {info.world_size for info in infos} == {3}
    assert len({(info.master_addr, info.master_port) for info in infos}) == 1
    leader = next(m for m, info in zip(members, infos, strict=True) if info.rank == 0)
    assert infos[0].master_addr == leader.pod.address
    members[0].ask("put", "key", "value")
    assert [member.ask("fetch", "key") for member in members] == ["value"] * 3
    assert [member.ask("waiting") for member in members] == [0, 0, 0]


def test_outside_a_pod_by_a_kubeconfig(stage: Stage) -> None:
    """As a process on a user's machine: no service account, a kubeconfig by ``--rdzv-conf``."""
    stage.job.create(1)
    pod = stage.pods(1)[0]
    environment = {k: v for k, v in pod.environment.items() if k.startswith("ELASTICJOB_POD")}
    outside = type(pod)(pod.name, pod.uid, pod.address, environment)
    member = stage.member(outside, config={"kubeconfig": str(stage.cluster.kubeconfig)})
    assert member.ask("next").world_size == 1


def test_redundancy_list(stage: Stage) -> None:
    """More agents than replicas: one stands by, and disturbs no other."""
    stage.job.create(2)
    pods = stage.pods(3)
    members = [stage.member(pod) for pod in pods]
    join_all(members[:2])
    stage.round_is(1, 2)
    standby = members[2]
    standby.tell("next")
    stage.until(lambda: stage.job.states().get(standby.pod.name) == "Standby", "the third stands by")
    assert standby.silent()
    assert [member.ask("waiting") for member in members[:2]] == [0, 0]
    assert stage.job.round()["number"] == 1


@pytest.mark.matrix
def test_redundancy_transition_when_a_member_leaves(stage: Stage) -> None:
    """The standby takes the place, and the rank, of a member that is lost."""
    stage.job.create(2)
    members = stage.members(3)
    infos = join_all(members[:2])
    standby = members[2]
    standby.tell("next")
    stage.until(lambda: stage.job.states().get(standby.pod.name) == "Standby", "the third stands by")
    members[0].tell("next_on_notice")
    members[1].kill()
    again, promoted = members[0].joined(), standby.joined()
    assert again.rank == infos[0].rank
    assert promoted.rank == infos[1].rank
    assert (again.world_size, promoted.world_size) == (2, 2)
    assert stage.job.causes() == ["Started", "PodLost"]


@pytest.mark.matrix
def test_use_agent_store(stage: Stage) -> None:
    """The store that workers use is there before any worker is, and it is not the agents' own.

    On torch 2.4 and 2.5 rank 0's worker serves it (pytorch#135712), so there is nothing to see here.
    """
    if not workers_may_share_agent_store(stage.torch_version):
        pytest.skip("before torch 2.6 global rank 0's worker serves the workers' store")
    stage.job.create(2)
    members = stage.members(2)
    join_all(members)
    members[0].ask("workers_put", "from-a-worker")
    assert members[1].ask("workers_has", "from-a-worker")
    assert not members[1].ask("has", "from-a-worker")


def test_local_addr(stage: Stage) -> None:
    """``--local-addr`` is what the others use, instead of the pod's address."""
    stage.job.create(2)
    members = stage.members(2, local_addr="127.0.0.9")
    assert {info.master_addr for info in join_all(members)} == {"127.0.0.9"}


@pytest.mark.matrix
def test_the_store_is_fresh_when_rank_changes_to_zero(stage: Stage) -> None:
    """Upstream's ``test_share_store_creates_tcp_store_when_rank_changes_to_zero`` (pytorch#182375), and more:
    nothing of the round before is in either store."""
    stage.job.create(2, minReplicas=1)
    members = stage.members(2)
    infos = join_all(members)
    leader, other = sorted(members, key=lambda m: infos[members.index(m)].rank)
    other.ask("put", "left-over", "1")
    share = workers_may_share_agent_store(stage.torch_version)
    if share:
        other.ask("workers_put", "left-over")
    other.tell("next_on_notice")
    leader.kill()
    info = other.joined()
    assert (info.rank, info.world_size) == (0, 1)
    assert info.master_addr == other.pod.address
    assert not other.ask("has", "left-over")
    if share:
        assert not other.ask("workers_has", "left-over")


def test_a_member_joins_again_in_the_same_process(stage: Stage) -> None:
    """What an agent does whose worker failed: it joins once more, and the others follow."""
    stage.job.create(2)
    members = stage.members(2)
    first = join_all(members)
    members[1].tell("next_on_notice")
    again = members[0].ask("next")
    assert again.rank == first[0].rank
    assert members[1].joined().rank == first[1].rank
    assert again.master_port != first[0].master_port, "a store is never used twice"
    assert stage.job.causes() == ["Started", "WorkerFailed"]


def test_join_timeout(stage: Stage) -> None:
    """``--rdzv-conf join_timeout``: raises, and says what it has waited for."""
    stage.job.create(2)
    error = raised(stage.member(config={"join_timeout": "2"}).ask("next"))
    assert error.kind == "RendezvousTimeoutError"
    assert "no round within 2 s; waiting for round 1" in error.text
    assert "at least 2 required" in error.text


def test_closing_is_not_for_participants(stage: Stage) -> None:
    """``set_closed`` and ``shutdown`` of one close nothing for the others: only the operator does (I8), or
    without one the coordinator when all members have succeeded."""
    stage.job.create(2, minReplicas=1)
    members = stage.members(2)
    join_all(members)
    members[0].ask("close")
    members[0].ask("shutdown")
    assert members[1].ask("closed") is False
    now = stage.job.round()  # that the one has left may have ended it by now
    assert (now["number"], now["phase"] in ("Active", "Broken")) == (1, True)
    assert stage.job.condition("Failed").get("status") != "True"


def test_another_process_of_the_same_pod_is_refused(stage: Stage) -> None:
    """Two agents in one pod: the later one hears so when its handler is made, and the round goes on."""
    stage.job.create(1)
    earlier = stage.member()
    assert earlier.ask("next").world_size == 1
    error = raised(stage.start(bodies.run_member, (stage.place(earlier.pod),), earlier.pod).answer())
    assert error.kind == "SecondAgent"
    assert f"process {earlier.pid} of this pod" in error.text
    assert earlier.ask("waiting") == 0
    earlier.kill(report=False)
    again = stage.start(bodies.run_member, (stage.place(earlier.pod),), earlier.pod)
    assert isinstance(again.answer(), Made), "who is gone holds up nobody"


def test_another_process_of_the_same_pod_in_a_new_sandbox_takes_over(stage: Stage) -> None:
    """Neither sees the other: the later one is the pod's agent, the earlier one is told and ends."""
    stage.job.create(2)
    pod = stage.pods(1)[0]
    earlier = stage.member(pod)
    later = stage.start(bodies.run_member_in_a_new_sandbox, (stage.place(pod),), pod)
    assert isinstance(later.answer(), Made)
    earlier.tell("next")
    stage.until(lambda: pod.name in stage.job.states(), "the earlier one has joined")
    later.tell("next")
    error = raised(earlier.answer())
    assert error.kind == "RendezvousStateError"
    other = stage.member()
    other.tell("next")
    assert {later.joined().world_size, other.joined().world_size} == {2}
