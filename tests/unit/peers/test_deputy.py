"""The deputy: the lowest rank beside the coordinator watches that pod, and takes over when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from devcluster.wait import wait_for
from elasticjob.api.errors import ApiError, Forbidden
from elasticjob.api.listing import Change, HttpListApi
from elasticjob.contract.limits import Limits
from elasticjob.coordination.pods import Pods
from elasticjob.coordination.reading import round_body
from elasticjob.coordination.source import PeerSource
from elasticjob.peers.round_lease import Identity, Rest, RoundLease, Write
from elasticjob.peers.run import Run, round_lease
from elasticjob.peers.seat import Seat
from elasticjob.peers.settled import Settled
from tests.unit.memory_api import Leases, MemoryApi
from tests.unit.peers.table import RUN, Table
from tests.unit.peers.watched import FORCED, Item, Watched


def trained() -> Settled:
    """Round 1 of pod-0, pod-1 and pod-2."""
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    return table.settled


ROUND = trained()
MEMBERS = [Identity(m.name, m.key) for m in ROUND.state.members]
LEADER, SECOND, THIRD = MEMBERS
NEWCOMER = Identity("pod-9", "uid-9")


def lease(holder: Identity | None, settled: Settled = ROUND, version: int = 10) -> RoundLease:
    text = str(holder) if holder is not None else ""
    return RoundLease(str(version), text, settled.record().dump(), settled.rest().dump())


def seat_of(me: Identity, seen: RoundLease) -> Seat:
    seat = Seat(RUN, me, ROUND.limits)
    seat.hear(seen, 100.0)
    return seat


OTHER_RUN = replace(ROUND, run="run-2")


@pytest.mark.parametrize(
    ("coordinator", "settled", "deputy"),
    [
        (LEADER, ROUND, SECOND),
        (SECOND, ROUND, LEADER),
        (THIRD, ROUND, LEADER),
        (NEWCOMER, ROUND, LEADER),
        (Identity(LEADER.pod, "an earlier one"), ROUND, SECOND),
        (None, ROUND, None),
        (LEADER, OTHER_RUN, None),
        (LEADER, Table().settled, None),
    ],
    ids=["rank 0", "rank 1", "rank 2", "no member", "an earlier pod", "none", "another run", "no round"],
)
def test_the_lowest_rank_beside_the_coordinator_is_its_deputy(
    coordinator: Identity | None, settled: Settled, deputy: Identity | None
) -> None:
    for me in (*MEMBERS, NEWCOMER):
        watched = seat_of(me, lease(coordinator, settled)).deputy_of
        assert watched == (coordinator if me == deputy else None), me


def test_a_new_pod_of_a_members_name_is_no_deputy() -> None:
    """It is in no round yet."""
    assert seat_of(Identity(SECOND.pod, "uid-new"), lease(LEADER)).deputy_of is None


def test_it_takes_over_at_once_when_that_pod_has_ended_and_not_for_another() -> None:
    seat = seat_of(SECOND, lease(LEADER))
    for pod, uid in ((LEADER.pod, "uid-before"), (THIRD.pod, THIRD.uid)):
        seat.hear_ended(pod, uid)
        assert isinstance(seat.step(100.1, None), Rest)
    seat.hear_ended(LEADER.pod, LEADER.uid)
    claim = seat.step(100.1, None)
    assert isinstance(claim, Write)
    assert (claim.claim, claim.version) == ("its pod has ended", "10")
    assert claim.settled.order == ROUND.order, "the round goes on: the next look ends it"


def test_a_new_coordinator_is_not_taken_for_the_one_that_has_ended() -> None:
    seat = seat_of(SECOND, lease(LEADER))
    seat.hear_ended(LEADER.pod, LEADER.uid)
    seat.hear(lease(THIRD, version=11), 100.1)
    assert isinstance(seat.step(100.2, None), Rest)


# -- the pod that it watches ---------------------------------------------------------------------------------


def pod(name: str, uid: str, exit_code: int | None = None, **metadata: Any) -> dict[str, Any]:
    """One that runs, or whose container has ended."""
    state = {"terminated": {"exitCode": exit_code}} if exit_code is not None else {"running": {}}
    return {
        "metadata": {"name": name, "uid": uid, **metadata},
        "spec": {"containers": [{"name": "train"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "train", "state": state}]},
    }


RUNS = pod("pod-0", "uid-0")


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def pods(watched: Watched) -> Iterator[Pods]:
    """Those that the deputy of pod-0 sees."""
    made = Pods("mnist", Identity("pod-1", "uid-1"), lambda: cast(HttpListApi, watched), lambda: None)
    made.deputize(Identity("pod-0", "uid-0"))
    yield made
    made.rest()


@pytest.mark.parametrize(
    "shown",
    [
        Change(pod("pod-0", "uid-0", exit_code=-9)),
        Change({**RUNS, "status": {"phase": "Failed"}}),
        Change(pod("pod-0", "uid-0", **FORCED), deleted=True),
        Change(pod("pod-0", "uid-new")),
        [],
    ],
    ids=["its container has ended", "it has failed", "it was deleted", "it was replaced", "it is not there"],
)
def test_the_end_of_that_pod_is_seen(pods: Pods, watched: Watched, shown: Item) -> None:
    assert pods.ended_coordinator() is None, "nothing is known yet"
    watched.brings([RUNS])
    watched.brings(shown)
    ended = wait_for(pods.ended_coordinator, 60, "its end is seen", interval=0.01)
    assert ended == Identity("pod-0", "uid-0")
    assert watched.asked == ["pod-0"], "that one alone"


def test_a_pod_that_runs_and_an_api_server_that_is_away_are_no_end(pods: Pods, watched: Watched) -> None:
    """P4."""
    watched.brings([RUNS])
    wait_for(lambda: pods._one is not None and pods._one[1].objects(), 60, "it is seen", interval=0.01)
    assert pods.ended_coordinator() is None
    watched.brings(ApiError("no answer", 0))
    wait_for(lambda: len(watched.asked) == 2, 60, "it asks again", interval=0.01)
    assert pods.ended_coordinator() is None


def test_it_watches_the_pod_of_the_coordinator_of_the_moment(pods: Pods, watched: Watched) -> None:
    watched.brings([])
    wait_for(pods.ended_coordinator, 60, "its end is seen", interval=0.01)
    pods.deputize(Identity("pod-2", "uid-2"))
    assert pods.ended_coordinator() is None, "nothing is known of that one"
    wait_for(lambda: watched.asked == ["pod-0", "pod-2"], 60, "that one is watched", interval=0.01)
    pods.deputize(None)
    assert pods.ended_coordinator() is None


def test_who_may_not_watch_pods_asks_once(pods: Pods, watched: Watched) -> None:
    watched.brings(Forbidden("no", 403))
    wait_for(lambda: pods.ended_coordinator() is None and pods._refused, 60, "it is known", interval=0.01)
    pods.deputize(Identity("pod-0", "uid-0"))
    assert pods.ended_coordinator() is None
    assert watched.asked == ["pod-0"]


# -- all of it -----------------------------------------------------------------------------------------------


def test_a_participant_whose_coordinator_has_ended_coordinates() -> None:
    """Nothing else says so: it waits for nothing, and its heartbeats have not noticed."""
    leases, watched = Leases(), Watched()
    table = Table()
    table.train("pod-0", "pod-1")
    leader, me = (Identity(m.name, m.key) for m in table.settled.state.members)
    name = round_lease(RUN.name)
    written = round_body(table.settled, "", str(leader), 1, {})["metadata"]["annotations"]
    leases.put(name, written, str(leader))

    class Api(MemoryApi):
        def follow_pod(self, name: str) -> Iterator[Item]:
            return watched.follow_pod(name)

        def follow_leases(self, label: str, value: str) -> Iterator[Item]:
            del label, value
            raise ApiError("no answer", 0)

        follow_pods = follow_leases

        def stop(self) -> None:
            watched.stop()
            super().stop()

    run = Run(RUN.name, RUN.id, 1, 3)
    source = PeerSource(run, me, 1, Limits(), lambda: cast(HttpListApi, Api(leases)), lambda _: None)
    source.start()
    try:
        watched.brings([pod(leader.pod, leader.uid)])
        wait_for(lambda: watched.asked == [leader.pod], 60, "it watches that pod", interval=0.01)
        assert leases.leases[name].holder == str(leader)
        watched.brings(Change(pod(leader.pod, leader.uid, exit_code=137)))
        wait_for(lambda: leases.leases[name].holder == str(me), 60, "it coordinates", interval=0.01)
    finally:
        leases.put(name, {}, "another")  # so that there is nothing to release
        source.stop()
