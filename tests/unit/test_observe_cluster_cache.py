"""The caches joined: nodes, participants, silences and doubts, and what the operator has written itself."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elasticjob.contract.names import (
    DRAIN_ANNOTATION,
    FAILURE_ANNOTATION,
    JOB_LABEL,
    PARTICIPANT_ANNOTATION,
    REPORT_ANNOTATION,
    ROUND_ANNOTATION,
)
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.ranks import MAX_MEMBERS
from elasticjob.contract.reports import FailureReport, RoundReport
from elasticjob.contract.round_record import RoundRecord
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.errors import Unavailable
from elasticjob_operator.observe.objects import read_node
from elasticjob_operator.observe.seen_lease import SeenLease, read_lease
from elasticjob_operator.observe.seen_pod import read_pod
from elasticjob_operator.observe.store import Store
from elasticjob_operator.observe.write_outage_probe import WriteOutageProbe
from elasticjob_operator.observe.write_outages import WriteOutages
from tests.unit.observed import TEMPLATED, THEIR_PODS, NoApi, Scene, raw_pod


def test_nodes() -> None:
    scene = Scene()
    scene.pod()
    assert scene.only().node_ready, "an unknown node is taken for ready"
    scene.node("n1")
    scene.dirty.clear()
    scene.node("n1", "Unknown")
    assert scene.dirty == [("ns", "job")]
    assert not scene.only().node_ready
    scene.node("n1", "Unknown")
    assert scene.dirty == [("ns", "job")], "a node status without news marks nothing"
    scene.cache.nodes.remove("", "n1", "uid-node")
    assert scene.only().node_gone
    scene.cache.pods.put(read_pod(raw_pod(name="job-1-0", version=scene.tick())))
    gone = {pod.name: pod.node_gone for pod in scene.observe().pods}
    assert gone == {"job-0-0": True, "job-1-0": False}, "names of nodes come back: later pods are not lost"
    scene.cache.pods.remove("ns", "job-1-0", "uid-job-1-0")
    scene.node("n1", uid="uid-node-again")
    assert not scene.only().node_gone
    assert scene.only().node_ready


def test_taints_of_nodes() -> None:
    scene = Scene()
    scene.pod()
    scene.node("n1", "Unknown", taints=("unreachable",))
    pod = scene.only()
    assert (pod.node_ready, pod.unreachable, pod.out_of_service) == (False, True, False)
    scene.dirty.clear()
    scene.node("n1", "Unknown", taints=("unreachable", "out-of-service"))
    assert scene.dirty == [("ns", "job")], "a taint is news"
    assert scene.only().out_of_service
    scene.node("n1", "Unknown", taints=("unreachable", "out-of-service", "memory-pressure"))
    assert scene.dirty == [("ns", "job")], "other taints are not"
    scene.node("n1", taints=("out-of-service",))
    pod = scene.only()
    assert (pod.node_ready, pod.unreachable, pod.out_of_service) == (True, False, True)


NOTICE = "karpenter.sh/disrupted"


@pytest.mark.parametrize(
    ("toleration", "stays"),
    [
        ({"key": "node.kubernetes.io/unreachable", "operator": "Exists"}, False),
        ({"operator": "Exists"}, True),
        ({"key": NOTICE, "operator": "Exists"}, True),
        ({"key": NOTICE, "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": NOTICE, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": NOTICE, "operator": "Equal", "value": "soon"}, True),
        ({"key": NOTICE, "value": "late"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, False),
        ({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}, False),
    ],
    ids=str,
)
def test_a_pod_that_tolerates_a_taint_of_notice_has_none(toleration: dict[str, Any], stays: bool) -> None:
    scene = Scene()
    scene.cache.pods.put(read_pod(raw_pod(spec={"tolerations": [toleration]})))
    put_node(scene, {"key": NOTICE, "value": "soon", "effect": "NoSchedule"})
    assert scene.only().notice == ("" if stays else NOTICE)


def test_taints_that_keep_no_pod_away_are_no_notice() -> None:
    scene = Scene()
    scene.pod()
    put_node(scene, {"key": NOTICE, "effect": "PreferNoSchedule"})
    assert not scene.only().notice
    put_node(scene, {"key": "example.com/other", "effect": "NoSchedule"})
    assert not scene.only().notice
    scene.dirty.clear()
    put_node(
        scene, {"key": "example.com/other", "effect": "NoSchedule"}, {"key": NOTICE, "effect": "NoExecute"}
    )
    assert scene.only().notice == NOTICE
    assert scene.dirty == [("ns", "job")], "a notice is news"


def put_node(scene: Scene, *taints: dict[str, str]) -> None:
    meta = {"name": "n1", "uid": "uid-node", "resourceVersion": str(scene.tick())}
    scene.cache.nodes.put(read_node({"metadata": meta, "spec": {"taints": list(taints)}}, notices=[NOTICE]))


def test_ready_nodes() -> None:
    scene = Scene()
    assert scene.observe().nodes is None, "no node can be seen: they may be forbidden"
    scene.node("n1", uid="1")
    scene.node("n2", uid="2")
    assert scene.observe().nodes == frozenset({"n1", "n2"})
    assert scene.observe().nodes is scene.observe().nodes, "not made anew for each job"
    scene.node("n2", "False", uid="2")
    assert scene.observe().nodes == frozenset({"n1"})
    scene.cache.nodes.remove("", "n1", "1")
    assert scene.observe().nodes == frozenset()
    scene.node("n2", uid="2")
    assert scene.observe().nodes == frozenset({"n2"})
    scene.cache._nodes.good_since = None
    assert scene.observe().nodes is None, "the watch is interrupted"


def test_where_nodes_are_in_the_network() -> None:
    scene = Scene()
    for name, labels in (("n1", {"zone": "z", "rack": "7"}), ("n2", {"rack": "7", "other": "x"})):
        meta = {"name": name, "uid": name, "resourceVersion": "5", "labels": labels}
        scene.cache.nodes.put(read_node({"metadata": meta}, topology=("zone", "rack")))
    assert scene.observe().domains == {"n1": ("zone=z", "rack=7"), "n2": ("", "rack=7")}
    scene.cache.nodes.remove("", "n2", "n2")
    assert scene.observe().domains == {"n1": ("zone=z", "rack=7")}


def test_an_answer_that_is_later_than_the_watch_brings_no_pod_back() -> None:
    """The pod was made by us and deleted by somebody at once: the watch said both before our answer came."""
    scene = Scene()
    scene.pod()
    scene.cache.pods.remove("ns", "job-0-0", uid="uid-job-0-0")
    scene.cache.saw_pod(raw_pod())
    assert scene.observe().pods == ()


def test_a_pod_that_gets_its_label_again_comes_back() -> None:
    """To a watch by label the loss of the label is the pod's end; the version tells that it was not."""
    scene = Scene()
    scene.pod()
    lost = scene.tick()
    scene.cache.pods.remove("ns", "job-0-0", "uid-job-0-0", lost)
    scene.cache.saw_pod(raw_pod(version=lost))
    assert scene.observe().pods == ()
    scene.pod()
    assert scene.only().name == "job-0-0"


def test_a_participant_and_its_reports() -> None:
    scene = Scene()
    record = ParticipantRecord(id="abcdefgh", state="Joining", endpoint="h:1")
    failure = FailureReport(round_number=2, group_rank=1, message="boom", exit_code=-9)
    report = RoundReport(nonce="n", established=True)
    scene.lease(participant=record.dump(), failure=failure.dump(), report=report.dump())
    found = scene.observe().leases["job-0-0"]
    assert (found.record, found.failure, found.report) == (record, failure, report)
    assert found.holder == "uid-job-0-0"
    assert found.problem == ""


def test_what_an_earlier_torchrun_has_finished() -> None:
    scene = Scene()
    record = ParticipantRecord(id="abcdefgh", state="Joining", endpoint="h:1").dump()
    scene.lease(participant=record)
    assert scene.observe().leases["job-0-0"].finished == ""
    scene.lease(participant=record, finished="nonce")
    assert scene.observe().leases["job-0-0"].finished == "nonce"
    for text in ("", "two words", "\n", "x" * 65, "x" * 100_000):
        scene.lease(participant=record, finished=text)
        found = scene.observe().leases["job-0-0"]
        assert (found.finished, found.problem) == ("", "")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id":1}', "x" * 10_000])
def test_a_bad_record_is_a_problem_and_hides_nothing_else(text: str) -> None:
    scene = Scene()
    report = RoundReport(nonce="n")
    scene.lease(participant=text, report=report.dump())
    found = scene.observe().leases["job-0-0"]
    assert found.record is None
    assert found.report == report
    assert 0 < len(found.problem) <= 1_024


def test_silence_counts_from_the_last_change_while_the_watch_is_good() -> None:
    scene = Scene()
    scene.lease(version=5)
    scene.pass_time(20.0)
    assert scene.observe().leases["job-0-0"].silent == pytest.approx(20.0)
    scene.lease(version=6)
    assert scene.observe().leases["job-0-0"].silent == 0.0
    scene.pass_time(20.0)
    leases = list(scene.cache.informers())[1]
    leases.good_since = None
    assert scene.observe().leases["job-0-0"].silent == 0.0
    leases.good_since = 1035.0
    assert scene.observe().leases["job-0-0"].silent == pytest.approx(5.0)


# shows: writes fail for one job or in one namespace, permanently
def test_one_tenant_s_trouble_makes_nobody_else_less_silent() -> None:
    """A write for another job fails every 20 s, and others' Leases are renewed: the dead are seen."""
    scene = Scene()
    scene.lease()
    scene.lease("job-1-0")
    before = scene.cache.continuity("ns")
    for _ in range(30):
        scene.api.write_outages.failed(THEIR_PODS, scene.now, scene.now)
        scene.pass_time(2.0)
        scene.lease("job-1-0")
        scene.pass_time(18.0)
    assert scene.observe().leases["job-0-0"].silent == pytest.approx(600.0)
    assert scene.cache.continuity("ns") == before
    assert scene.cache.trusted("ns")


# shows: the API server answers 429, 500 or 503 to everything, or hangs with all watches open
def test_in_doubt_clocks_stand_and_after_an_outage_they_start_again() -> None:
    scene = Scene()
    scene.lease()
    scene.pass_time(14.0)
    before = scene.cache.continuity("ns")
    scene.api.write_outages.failed(THEIR_PODS, scene.now, scene.now)
    scene.pass_time(2.0)
    assert scene.observe().leases["job-0-0"].silent == pytest.approx(14.0), "nobody is convicted in doubt"
    assert scene.cache.trusted("ns"), "timers go on"
    scene.pass_time(98.0)
    assert scene.observe().leases["job-0-0"].silent == pytest.approx(14.0)
    assert not scene.cache.trusted("ns")
    scene.api.write_outages.got_through(THEIR_PODS, scene.now)
    scene.pass_time(3.0)
    assert scene.observe().leases["job-0-0"].silent == pytest.approx(3.0), "from the end of the outage on"
    assert scene.cache.continuity("ns") != before, "and timers, too"


# shows: writes fail for one job or in one namespace, permanently
def test_leases_that_can_t_be_written_in_one_namespace_concern_that_one() -> None:
    scene = Scene()
    scene.lease()
    there = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/x"
    scene.pass_time(20.0)
    for namespace, seen in (("theirs", 30.0), ("ns", 30.0)):
        scene.api.write_outages.failed(there.format(namespace), scene.now, scene.now)
        scene.api.write_outages.got_through("/api/v1/namespaces/theirs/pods", scene.now)
        scene.pass_time(10.0)
        assert scene.observe().leases["job-0-0"].silent == pytest.approx(seen)
    scene.api.write_outages.got_through(there.format("ns"), scene.now)
    assert scene.observe().leases["job-0-0"].silent == 0.0


async def test_what_is_in_doubt_is_tried_in_each_namespace_in_turn() -> None:
    """One of them hangs, and one fails: the third shows that the API server takes writes."""

    class Tried(NoApi):
        def __init__(self) -> None:
            super().__init__()
            self.paths: list[str] = []

        async def patch(self, path: str, _body: object, *rest: Any) -> dict[str, Any]:
            assert rest[-1] == {"dryRun": "All"}
            self.paths.append(path.split("/")[5])
            if "hangs" in path:
                await asyncio.Event().wait()
            if "fails" in path:
                raise Unavailable(path, 500, "", "failed calling webhook")
            return {}

    now = 1.0
    api = Tried()
    store: Store[SeenLease] = Store(lambda _: None, lambda: now)
    probe = WriteOutageProbe(cast(Api, api), store, lambda: now)
    for version, namespace in enumerate(("fails", "hangs", "well"), 1):
        meta = {"namespace": namespace, "name": "job-round", "uid": "u", "resourceVersion": str(version)}
        store.put(read_lease({"metadata": {**meta, "labels": {JOB_LABEL: "job"}}, "spec": {}}))
    probe.begin()
    assert not probe._under_way, "nothing is in doubt"
    api.write_outages.failed(THEIR_PODS, now, now)
    for _ in range(3):
        probe.begin()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert api.write_outages.uncertain_since("ns") is None
    assert sorted(set(api.paths)) == ["fails", "hangs", "well"]
    await probe.aclose()


def test_a_standstill_of_this_process_is_nobodys_silence() -> None:
    scene = Scene()
    scene.lease()
    before = scene.cache.continuity("ns")
    scene.now += 60.0
    assert scene.observe().leases["job-0-0"].silent == 0.0
    assert scene.cache.continuity("ns") != before, "the planner's timers start again too"


def test_the_round_lease() -> None:
    scene = Scene()
    record = RoundRecord(job_uid="job-uid", number=0, phase="Broken")
    scene.lease("job-round", round=record.dump())
    observed = scene.observe()
    assert observed.record == record
    assert observed.leases == {}
    scene.lease("job-round", round=RoundRecord(job_uid="former", number=9, phase="Broken").dump())
    assert scene.observe().record is None
    seen = scene.cache.round_lease(TEMPLATED)
    assert seen is not None
    assert seen.record is not None
    assert seen.record.number == 9


def test_own_writes_are_seen_at_once_and_quietly() -> None:
    scene = Scene()
    scene.cache.saw_pod(raw_pod(version=7))
    assert scene.only().name == "job-0-0"
    assert scene.dirty == []
    scene.cache.saw_pod(raw_pod(version=8), deleting=True)
    assert scene.only().deleting
    scene.pod()  # the watch comes later, with an older version
    assert scene.only().deleting


def test_read_again_takes_over_what_the_watches_have_not_brought() -> None:
    """A status of another operator tells of pods and Leases that our own watches may not have brought yet."""
    scene = Scene()
    scene.pod()
    lists = {
        "/api/v1/namespaces/ns/pods": [raw_pod(name="job-1-0", version=900)],
        "/apis/coordination.k8s.io/v1/namespaces/ns/leases": [],
    }
    asked = []

    async def get(path: str, query: dict[str, str]) -> dict[str, Any]:
        asked.append(query["labelSelector"])
        return {"metadata": {"resourceVersion": "1000"}, "items": lists[path]}

    scene.cache._api = cast(Any, SimpleNamespace(get=get, write_outages=WriteOutages()))
    asyncio.run(scene.cache.read_again(TEMPLATED))
    assert [pod.name for pod in scene.observe().pods] == ["job-1-0"]
    assert asked == [f"{JOB_LABEL}=job"] * 2


IDS = [f"{number:04}" for number in range(MAX_MEMBERS)]
GREEDY = {
    "a round that is none of its job's": {
        ROUND_ANNOTATION: RoundRecord("u", 1, "Broken", member_ids=tuple(IDS)).dump()
    },
    "ranges of ranks": {
        REPORT_ANNOTATION: json.dumps(
            {"version": 1, "nonce": "n", "unarrivedRanks": "0-4999", "silentRanks": "0-4999"}
        )
    },
    "an endless nonce": {REPORT_ANNOTATION: json.dumps({"version": 1, "nonce": "n" * 60_000})},
    "garbage": dict.fromkeys((PARTICIPANT_ANNOTATION, FAILURE_ANNOTATION, DRAIN_ANNOTATION), "x" * 40000),
}


def held_by(read: Callable[[Any], object], fields: dict[str, Any]) -> float:
    """Bytes of an object with these fields as it is kept."""

    def one(number: int) -> Any:
        meta = {"name": f"x-{number}", "namespace": "team", "labels": {JOB_LABEL: "x"}}
        meta.update(fields.get("metadata", {}))
        return json.loads(json.dumps({**fields, "metadata": meta}))

    tracemalloc.start()
    try:
        kept = [read(one(number)) for number in range(20)]
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / len(kept)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("annotations", GREEDY.values(), ids=GREEDY.keys())
def test_a_lease_takes_little_memory_whatever_it_says(annotations: dict[str, str]) -> None:
    """A tenant may have thousands of them, of jobs that do not exist."""
    assert held_by(read_lease, {"metadata": {"annotations": annotations}}) < 8 * 1024


def test_what_names_somebody_else_takes_little_memory() -> None:
    owner = {"metadata": {"ownerReferences": [{"uid": "u" * 500_000}]}}
    assert held_by(read_lease, {**owner, "spec": {"holderIdentity": "h" * 500_000}}) < 8 * 1024
    tolerations = [{"key": f"k{number}", "operator": "Exists"} for number in range(20_000)]
    assert held_by(read_pod, {"spec": {"tolerations": tolerations}}) < 64 * 1024


def test_a_round_is_kept_as_its_text() -> None:
    record = RoundRecord("u", 1, "Broken", member_ids=tuple(IDS))
    raw = {"metadata": {"name": "x-round", "labels": {JOB_LABEL: "x"}}}

    def lease(text: str) -> SeenLease:
        return read_lease({"metadata": {**raw["metadata"], "annotations": {ROUND_ANNOTATION: text}}})

    seen = lease(record.dump())
    assert seen.record == record
    assert seen == lease(record.dump().replace(":", ": ", 3)), "other spaces are no news"
    assert seen != lease(replace(record, number=2).dump())
    assert (lease("garbage").record, lease("garbage")) == (None, lease("rubbish"))
