"""The checker of runs without an operator finds what it is there to find; ended pods are replaced."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from devcluster.api import Response
from elasticjob.contract import names
from elasticjob.peers.run import STATE_ANNOTATION
from elasticjob.peers.settled import Settled
from tests.chaos.faults import Impossible
from tests.chaos.peers import PEER_KINDS, PeerScene, PodMaker, RoundChecker, may_end
from tests.chaos.timeline import Timeline
from tests.chaos.watcher import Sight
from tests.unit.peers.table import Table


class Watched:
    """A round Lease, version by version."""

    def __init__(self, trained: bool = False) -> None:
        self.timeline = Timeline(lambda _: None)
        self.checker = RoundChecker(self.timeline, lambda: trained, maximum=3)
        self._version = 0

    def see(self, settled: Settled, version: str = "") -> None:
        self._version += 1
        annotations = {
            names.ROUND_ANNOTATION: settled.record().dump(),
            STATE_ANNOTATION: settled.rest().dump(),
        }
        metadata = {"resourceVersion": version or str(self._version), "annotations": annotations}
        body = {"metadata": metadata, "spec": {"holderIdentity": "pod-1_uid-1"}}
        self.checker.see(Sight(body, deleted=False, gap=False))

    def broken(self) -> list[str]:
        return [text.partition(":")[0] for text in self.checker.violations]


def rounds() -> tuple[Settled, Settled, Settled]:
    """Round 1, its end, and round 2."""
    table = Table(minimum=2, maximum=3)
    table.train("pod-0", "pod-1", "pod-2")
    first = table.settled
    table.join("pod-0", "pod-1", "pod-2")
    table.look()
    over = table.settled
    table.look(60.0)
    assert (over.state.phase, table.settled.state.number) == ("Broken", 2)
    return first, over, table.settled


def test_a_run_that_keeps_its_promises_has_none_broken() -> None:
    watched = Watched(trained=True)
    first, over, second = rounds()
    for settled in (first, over, second):
        watched.see(settled)
    watched.see(replace(second, state=replace(second.state, phase="Closed"), outcome="Complete"))
    assert watched.broken() == []
    assert watched.checker.coordinator == "pod-1"


def test_each_broken_promise_is_told() -> None:
    first, over, second = rounds()
    again = replace(first, state=replace(first.state, nonce="another"))
    spent = replace(second, state=replace(second.state, members=first.state.members))
    few = replace(first, minimum=3, state=replace(first.state, members=first.state.members[:2]))
    ended = replace(second, state=replace(second.state, phase="Closed"), outcome="Complete")
    for versions, rule in (
        ((second, first), "P2"),
        ((first, again), "P2"),
        ((first, over, spent), "I4"),
        ((few,), "I3"),
        ((second, ended), "end"),
        ((second, replace(ended, outcome="Failed")), "end"),
    ):
        watched = Watched()
        for settled in versions:
            watched.see(settled)
        assert rule in watched.broken(), (rule, watched.checker.violations)


@pytest.mark.parametrize(
    ("name", "calm", "told"),
    [
        ("delete the round Lease", True, True),
        ("delete the round Lease", False, False),
        ("kill the coordinator", True, False),
    ],
)
def test_what_may_end_no_round_ends_none_if_all_was_well(name: str, calm: bool, told: bool) -> None:
    watched = Watched()
    first, over, _ = rounds()
    watched.see(first)
    watched.timeline.fault(name, "", calm)
    watched.see(over)
    assert ("P4" in watched.broken()) == told


def waits(watched: Watched) -> bool:
    return watched.checker.awaited is not None


def test_all_is_well_once_a_round_of_all_is_established() -> None:
    watched = Watched()
    first, over, second = rounds()
    watched.see(first)
    assert [watched.checker.calm_seconds(), waits(watched)] == [0.0, True]
    watched.checker.see_established(first)
    assert not waits(watched)
    assert watched.checker.calm_seconds() > 0.0
    watched.see(over)
    watched.see(second)
    watched.checker.see_established(first)
    assert watched.checker.calm_seconds() == 0.0


def test_what_was_set_back_by_hand_is_not_held_against_the_run() -> None:
    watched = Watched()
    first, over, second = rounds()
    with pytest.raises(Impossible, match="no older record"):
        watched.checker.set_back(lambda _: "")
    for settled in (first, over, second):
        watched.see(settled)
    written: list[dict[str, str]] = []
    watched.checker.set_back(lambda both: written.append(both) or "set-back")  # type: ignore[func-returns-value]
    assert Settled.parse(*written[0].values()).state.number == 1
    watched.see(first, "set-back")
    watched.see(second)
    assert watched.broken() == []


def test_no_kind_needs_an_operator_and_each_is_known() -> None:
    found = {kind.name for kind in PEER_KINDS}
    assert not {"kill the operator", "stop the operator", "delete a pod"} & found
    assert {"kill the coordinator", "kill the coordinator and rank 0", "set a run's Lease back"} <= found
    assert may_end("kill the coordinator")
    assert not may_end("set a run's Lease back")
    assert may_end("node thawed")


class Pods(PeerScene):
    """The pods of a namespace in memory."""

    def __init__(self) -> None:
        self.phases: dict[str, str] = {}
        self.answers = True

    def api(self, method: str, path: str, body: Any = None) -> Response:
        if not self.answers:
            raise Impossible("no answer")
        name = path.rpartition("/")[2]
        if method == "POST":
            self.phases[body["metadata"]["name"]] = "Running"
        elif method == "DELETE":
            del self.phases[name]
        items = [{"metadata": {"name": n}, "status": {"phase": phase}} for n, phase in self.phases.items()]
        return Response(200, {}, json.dumps({"items": items}))


def test_each_pod_that_has_ended_is_replaced_until_one_has_succeeded() -> None:
    pods = Pods()
    maker = PodMaker(pods, {"metadata": {"labels": {}}, "spec": {}}, 2)
    maker.look()
    assert [name.rpartition("-")[2] for name in pods.phases] == ["0", "1"]
    first, second = pods.phases
    pods.phases[first] = "Failed"
    pods.answers = False
    maker.look()
    pods.answers = True
    maker.look()
    assert first not in pods.phases
    assert sorted(name.rpartition("-")[2] for name in pods.phases) == ["0", "1"]
    pods.phases[second] = "Succeeded"
    maker.look()
    assert len(pods.phases) == 2
