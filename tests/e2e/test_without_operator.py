"""The examples without an operator, on nodes: a user with ``edit`` creates them after an ``admin`` of the
namespace has made the Role. Nothing of this project is installed in the cluster: it is this module's own."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from tests.e2e.peer_runs import DEADLINE, EDITOR, NAME, PeerRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(900)]

STEPS = 60 * 23
"""Of the example: epochs, and steps of each."""
SAVED = 25
"""By then it has a checkpoint."""
MINUTE = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A new one, so that no other test has installed the resource definition."""
    with Cluster() as started:
        assert not started.read("/apis/elasticjob.dev")
        yield started


@pytest.fixture
def run(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[PeerRun]:
    """An admin of the namespace has applied rights.yaml; all is gone before the next test begins."""
    with PeerRun(cluster, namespace, tmp_path / "run") as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "job"),
    [("job", NAME), ("statefulset", ""), ("jobset", f"{NAME}-workers-0")],
    ids=["job", "set", "jobset"],
)
def test_the_example_trains_loses_a_pod_and_ends_well(run: PeerRun, example: str, job: str) -> None:
    """The example's own script goes on from a checkpoint, to its last step. Of the manifests, only the claim
    is replaced."""
    run.apply(f"{example}.yaml")
    first = run.trains(1, members=3)
    assert first.state.number == 1
    names = [m.name for m in first.state.members]
    wait_for(lambda: len(run.steps(1)) > SAVED, DEADLINE, "there is a checkpoint", interval=0.1)
    run.cluster.nodes.kill_container(run.namespace, names[1])
    later = run.trains(2)
    assert sum(m.name in names for m in later.state.members) >= 2
    assert min(step["step"] for step in run.steps(later.state.number)) > 1, "it begins where it was saved"
    over = run.closes()
    assert over.outcome == "Complete", over.message
    result = json.loads((run.folder / example / "result.json").read_text())
    assert result["steps"] == STEPS
    assert result["resumed_from_step"] > 0
    if job:
        run.job_is("Complete", job)


@pytest.mark.slow
def test_the_program_reads_the_run_and_nothing_is_left_of_it(run: PeerRun) -> None:
    """There is no resource ElasticJob. The round Lease goes with the Job."""
    run.apply_until_stopped()
    lost = run.trains(1, members=3).state.members[1].name
    run.cluster.nodes.kill_container(run.namespace, lost)
    run.trains(2, members=3)
    said = run.program("status", NAME)
    assert re.match(rf"{NAME} is Training: round [23] with 3 members, leader ", said), said
    assert "The last round that ended: " in (said := run.program("why", NAME)), said
    assert re.search(rf"{NAME}\s+Training\s", said := run.program("list")), said
    run.stop()
    assert run.closes().outcome == "Complete"
    run.job_is("Complete")
    said = run.program("status", NAME)
    assert said.startswith(f"{NAME} is Complete: all members have succeeded"), said
    said = run.program("why", NAME)
    assert said.startswith("The run is Complete: all members have succeeded"), said
    run.kubectl(EDITOR, "delete", "job", NAME, "--timeout=60s")
    wait_for(lambda: not run.cluster.read(run.leases())["items"], DEADLINE, "all Leases are collected")


@pytest.mark.slow
def test_the_mode_is_found_where_there_are_no_elasticjobs(run: PeerRun) -> None:
    """The Job without ``rounds=peers``: the first line of each log says which mode it is. (Before it there is
    the warning of an address of the loopback interface.)"""
    run.apply_until_stopped(leave_out="--rdzv-conf=rounds=peers")
    for member in run.trains(1, members=3).state.members:
        lines = run.log(member.name).splitlines()
        first = next(line for line in lines if "only agents on this machine" not in line)
        assert "rounds without an operator (rounds=peers): run " in first, first
    run.stop()
    assert run.closes().outcome == "Complete"
    run.job_is("Complete")


@pytest.mark.slow
def test_the_api_server_is_away_for_a_minute(run: PeerRun) -> None:
    """P4: the round goes on, and the same one goes on afterwards."""
    run.apply_until_stopped()
    run.trains(1, members=3)
    before = len(run.steps(1))
    run.outage(MINUTE)
    assert len(run.steps(1)) > before + 100
    run.goes_on(1)
    for _ in range(3):
        time.sleep(2.0)
        settled = run.settled()
        assert settled is not None
        assert (settled.state.number, settled.state.active) == (1, True)
    run.stop()
    assert run.closes().outcome == "Complete"
    run.job_is("Complete")


@pytest.mark.slow
def test_a_member_is_lost_while_the_api_server_is_away(run: PeerRun) -> None:
    """The next round forms when it is back, and has all three again."""
    run.apply_until_stopped()
    lost = run.trains(1, members=3).state.members[1].name
    run.outage(MINUTE, lambda: run.cluster.nodes.kill_container(run.namespace, lost))
    run.trains(2, members=3)
    run.stop()
    assert run.closes().outcome == "Complete"
    run.job_is("Complete")
