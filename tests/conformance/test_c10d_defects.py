"""Each defect that was found in torch's c10d backend has a test that passes here.

What c10d does was run with torch 2.13.0 (and D1 to D3 again with 2.15.0), two cores, torchrun with stock
settings unless it says otherwise. Only this backend is asserted on.
"""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from tests.conformance import work
from tests.conformance.agents import Stage, join_all
from tests.conformance.bodies import Workers
from tests.conformance.pods import Request, requests_of

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

MANY = 64


@pytest.mark.matrix
def test_d1_a_replacement_joins_and_everybody_trains(stage: Stage) -> None:
    """c10d: a replacement can't join and takes the job down. Rank 0 keeps its store of the first round and
    does not write its address into the new one; the newcomer waits 60 s for MASTER_ADDR, the survivors time
    out, all agents exit (torchrun 2:2, kill -9 of one agent, another one started: dead after 75 s)."""
    stage.job.create(2)
    workers = Workers(work.gated_sum, (str(stage.work),), max_restarts=0)
    first, second = stage.agents_of([workers] * 2)
    stage.here("here", 1, 2)
    second.kill()
    third = stage.agent(workers, stage.pods(1, slot=1)[0])
    stage.here("here", 2, 2)
    stage.open_gate()
    stage.succeeded(first, third)
    assert stage.job.causes() == ["Started", "PodLost"]


@pytest.mark.matrix
def test_d1_an_added_agent_joins_and_everybody_trains(stage: Stage) -> None:
    """c10d: the same end when a job grows from one agent to two."""
    stage.job.create(1, later=2, minReplicas=1)
    workers = Workers(work.gated_sum, (str(stage.work),), max_restarts=0)
    first = stage.agent(workers)
    stage.here("here", 1, 1)
    stage.job.scale(2)
    second = stage.agent(workers)
    stage.here("here", 2, 2)
    stage.open_gate()
    stage.succeeded(first, second)
    assert stage.job.causes() == ["Started", "ScaledUp"]


@pytest.mark.matrix
def test_d2_a_restart_finds_no_stale_keys(stage: Stage) -> None:
    """c10d: all attempts share one store and one MASTER_PORT, so that workers of a second attempt read what
    the first has left there: gloo connects to dead addresses ("Connection refused"), and one failure of two
    agents' workers burnt three restarts. The form that NCCL shows is pytorch#135712."""
    stage.job.create(2)
    workers = Workers(work.fail_once_and_leave_a_key, (str(stage.work),), max_restarts=3)
    agents = stage.agents_of([workers] * 2)
    runs = stage.succeeded(*agents)
    assert [run.return_values for run in runs] == [{0: (False, 2)}, {1: (False, 2)}]
    assert [run.remaining_restarts for run in runs] == [3, 2], "one failure, one restart"
    assert stage.job.causes() == ["Started", "WorkerFailed"]
    ports = {file.name.split("-")[1] for file in stage.work.glob("port-*")}
    assert len(ports) == 2, "a port of its own in each round"


@pytest.mark.matrix
def test_d3_all_survivors_of_rank_0_get_the_same_leader(stage: Stage) -> None:
    """c10d: the new rank 0 builds a new store, the other survivor keeps the cached address of the lost one:
    ``next_rendezvous`` returned port 46853 to one and 37545 to the other in the same round."""
    stage.job.create(3, minReplicas=2)
    members = stage.members(3)
    infos = join_all(members)
    by_rank = {info.rank: member for member, info in zip(members, infos, strict=True)}
    survivors = [by_rank[1], by_rank[2]]
    for member in survivors:
        member.tell("next_on_notice")
    by_rank[0].kill()
    again = [member.joined() for member in survivors]
    assert [info.rank for info in again] == [0, 1]
    assert again[0].master_addr == again[1].master_addr == survivors[0].pod.address
    assert again[0].master_port == again[1].master_port
    assert again[0].master_port != infos[0].master_port
    survivors[0].ask("put", "key", "value")
    assert survivors[1].ask("fetch", "key") == "value"


@pytest.mark.matrix
def test_d4_a_standby_ends_well_when_the_job_is_complete(stage: Stage) -> None:
    """c10d: a redundant node of a closed rendezvous raises RendezvousGracefulExitError, after which torch's
    agent returns None and the launcher ends with an AttributeError and exit code 1 (pytorch#194710)."""
    stage.job.create(1)
    workers = Workers(work.gated, (str(stage.work),))
    first = stage.agent(workers)
    stage.here("here", 1, 1)
    standby = stage.agent(workers)
    stage.until(lambda: stage.job.states().get(standby.pod.name) == "Standby", "the second stands by")
    stage.open_gate()
    stage.succeeded(first)
    assert stage.ended(standby) == [0]
    assert "Traceback" not in standby.text()


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_d5_a_lost_agent_is_noticed_while_workers_are_well(
    stage: Stage, lost: int, number: signal.Signals
) -> None:
    """c10d: a lost node is not noticed by agents whose workers do not fail: 60 s after SIGTERM of its peer
    the survivor still ran with a world size of 2 (pytorch#111646, open since 2023).

    Here no pod says so either (``report=False``: as if kubelet were late): the other agent notices.
    """
    stage.job.create(2, minReplicas=1)
    agents = stage.agents_of([Workers(work.gated, (str(stage.work),))] * 2)
    stage.here("here", 1, 2)
    stage.round_is(1, 2)
    agents[lost].reported = True
    if number == signal.SIGKILL:
        agents[lost].kill(report=False)
    else:
        agents[lost].signal(number)
    stage.here("here", 2, 1)
    stage.open_gate()
    stage.succeeded(agents[1 - lost])
    assert len(stage.job.causes()) == 2


@pytest.mark.operator_alone("a run has other numbers: test_peers.py")
def test_d6_many_join_with_a_constant_number_of_requests_each(stage: Stage) -> None:
    """c10d: every step of every agent is a compare-and-set of the whole state. With 64 agents 290 of 354 are
    lost, with 128 more than 90 %; with 256 the storm outlasts the 15 s after which silent participants are
    purged, and the rendezvous never ends (0 of 3 runs within 600, 180 and 180 s).

    This asserts on the mechanism with 64 processes: what a participant asks of the API server in a round does
    not grow with their number, and no write is lost. How long it takes is the benchmarks' to say
    (``make bench``, up to 1,000 participants).
    """
    stage.job.create(MANY, minReplicas=MANY - 1)
    members = stage.members(MANY)
    offset = stage.cluster.audit_log.stat().st_size
    infos = join_all(members)
    assert sorted(info.rank for info in infos) == list(range(MANY))
    stage.round_is(1, MANY)
    joining = _by_pod(list(requests_of(stage.cluster, stage.job, offset)))
    # Its Lease is taken over (a PATCH or a POST), the round Lease is read and watched; the leader reports.
    assert len(joining) == MANY
    assert max(map(len, joining.values())) <= 6, _worst(joining)

    lost = next(m for m, info in zip(members, infos, strict=True) if info.rank == MANY - 1)
    survivors = [member for member in members if member is not lost]
    offset = stage.cluster.audit_log.stat().st_size
    for member in survivors:
        member.tell("next_on_notice")
    lost.kill()
    again = [member.joined() for member in survivors]
    assert [info.rank for info in again] == [i.rank for i in infos if i.rank != MANY - 1], "ranks are kept"
    stage.round_is(2, MANY - 1)
    joining = _by_pod(list(requests_of(stage.cluster, stage.job, offset)))
    writes = {pod: [r for r in done if r.writes] for pod, done in joining.items()}
    leader = stage.job.round()["leaderPodName"]
    assert max(len(done) for pod, done in writes.items() if pod != leader) <= 2, _worst(writes)
    assert len(writes[leader]) <= 4, "it reports, too"


def _by_pod(requests: list[Request]) -> dict[str, list[Request]]:
    """The requests of each pod. None was a conflict."""
    assert [request for request in requests if request.code == 409] == []
    found: dict[str, list[Request]] = {}
    for request in requests:
        found.setdefault(request.pod, []).append(request)
    return found


def _worst(requests: dict[str, list[Request]]) -> str:
    return str(max(requests.values(), key=len))


def test_d7_no_store_failure_reaches_the_agent(stage: Stage) -> None:
    """c10d: any failure of the store in ``num_nodes_waiting`` ends the agent at once, a passing one too
    (torchtune#2676); after SIGKILL of the agent that hosts it the other agent exits with 1 within 1.5 s.

    Here the API server is away while two agents train, then the leader dies: no other agent ends.
    """
    stage.job.create(2, minReplicas=1)
    workers = Workers(work.gated, (str(stage.work),))
    pods = [replace(pod, environment={**pod.environment, "LOGLEVEL": "DEBUG"}) for pod in stage.pods(2)]
    agents = stage.agents_of([workers] * 2, pods)
    stage.here("here", 1, 2)
    stage.round_is(1, 2)
    apiserver = stage.cluster.component("apiserver")
    apiserver.kill()
    try:
        for agent in agents:
            noticed = lambda text=agent.text: text().count("watch of Lease") >= 3  # noqa: E731
            stage.until(noticed, f"{agent.pod.name} has tried to reach the API server three times")
    finally:
        apiserver.start()
    assert [agent.exit_code for agent in agents] == [None, None]
    assert stage.job.round()["number"] == 1
    agents[0].kill()
    stage.here("here", 2, 1)
    stage.open_gate()
    assert stage.succeeded(agents[1])[0].return_values == {0: 0}
    assert stage.job.causes() == ["Started", "PodLost"]


@pytest.mark.operator_alone("maxRestarts is an operator's: a run ends early only after ten early ends")
@pytest.mark.matrix
def test_d8_a_failed_job_is_seen_by_healthy_agents(stage: Stage) -> None:
    """c10d: an agent that gives up closes the rendezvous, which no healthy agent looks at: 40 s later it
    still ran. It fails when its own workers do, with a RendezvousClosedError that names no cause.

    Here the operator closes the job; the healthy agent stops its workers, and the error names the root.
    """
    stage.job.create(2, failurePolicy={"application": {"maxRestarts": 0}})
    healthy = stage.agent(Workers(work.gated, (str(stage.work),)))
    failing = stage.agent(Workers(work.sad))
    assert stage.ended(failing, healthy) == [1, 1]
    error = "RendezvousClosedError: the job has failed"
    said = [line for line in healthy.text().splitlines() if error in line]
    assert said
    assert failing.pod.name in said[-1], "it names who failed"
    assert stage.job.condition("Failed")["reason"] == "ApplicationRestartsExhausted"


@pytest.mark.matrix
def test_d8_without_a_limit_healthy_agents_wait_for_a_replacement(stage: Stage) -> None:
    """The other way to take it: one agent's giving up ends nothing for the others (I8)."""
    stage.job.create(2)
    healthy = stage.agent(Workers(work.gated, (str(stage.work),)))
    failing = stage.agent(Workers(work.sad))
    assert stage.ended(failing) == [1]
    stage.until(lambda: stage.job.states().get(healthy.pod.name) in ("Left", "Joining"), "it has come back")
    assert "1 of 2 replicas has joined" in stage.until(stage.job.waiting, "it is said what it waits for")
    third = stage.agent(Workers(work.gated, (str(stage.work),)), stage.pods(1)[0])
    stage.here("here", 2, 2)
    stage.open_gate()
    stage.succeeded(healthy, third)
