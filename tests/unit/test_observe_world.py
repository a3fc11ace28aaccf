"""Objects of the API server, joined into what the planner sees of one job."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elasticjob.contract.names import JOB_LABEL
from elasticjob.contract.records import FailureReport, ParticipantRecord, RoundRecord, RoundReport
from elasticjob_operator.act.round_publisher import LeaseRoundPublisher
from elasticjob_operator.observe.answers import Answers
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.errors import Unavailable
from elasticjob_operator.observe.objects import SeenLease, read_lease, read_node, read_pod
from elasticjob_operator.observe.store import Store
from elasticjob_operator.observe.trials import Trials
from elasticjob_operator.observe.world import World
from elasticjob_operator.plan.model import Exit, Job, JobSpec, Observed, Pod

TEMPLATED = Job("ns", "job", "job-uid", 1, JobSpec(template={"spec": {}}))
FOREIGN = Job("ns", "job", "job-uid", 1, JobSpec())


THEIR_PODS = "/api/v1/namespaces/theirs/pods"


class NoApi:
    def __init__(self) -> None:
        self.answers = Answers()


class Scene:
    def __init__(self) -> None:
        self.now = 1000.0
        self.api = NoApi()
        self.dirty: list[tuple[str, str]] = []
        self.world = World(
            cast(Api, self.api), (), lambda ns, job: self.dirty.append((ns, job)), lambda: self.now
        )
        self.version = 1
        for informer in self.world.informers():
            informer.good_since = 900.0

    def pod(self, name: str = "job-0-0", **changes: Any) -> None:
        self.world.pods.put(read_pod(raw_pod(name, version=self.tick(), **changes)))

    def lease(self, name: str = "job-0-0", version: int | None = None, **texts: str) -> None:
        meta = {
            "namespace": "ns",
            "name": name,
            "uid": f"lease-{name}",
            "labels": {JOB_LABEL: "job"},
            "resourceVersion": str(version or self.tick()),
            "annotations": {f"elasticjob.dev/{key}": text for key, text in texts.items()},
        }
        self.world.leases.put(read_lease({"metadata": meta, "spec": {"holderIdentity": f"uid-{name}"}}))

    def node(
        self, name: str, ready: str | None = "True", uid: str = "uid-node", taints: tuple[str, ...] = ()
    ) -> None:
        conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
        meta = {"name": name, "uid": uid, "resourceVersion": str(self.tick())}
        spec = {"taints": [{"key": f"node.kubernetes.io/{key}", "effect": "NoExecute"} for key in taints]}
        self.world.nodes.put(
            read_node({"metadata": meta, "spec": spec, "status": {"conditions": conditions}})
        )

    def tick(self) -> int:
        self.version += 1
        return self.version

    def pass_time(self, seconds: float) -> None:
        """Time in which this process was running."""
        while seconds > 0:
            self.now += min(seconds, 1.0)
            seconds -= 1.0
            self.world.continuity("ns")

    def observe(self, job: Job = TEMPLATED) -> Observed:
        publisher = LeaseRoundPublisher(cast(Any, None), self.world, lambda: self.now)
        return replace(self.world.observe(job), **publisher.published(job)._asdict())

    def only(self, job: Job = TEMPLATED) -> Pod:
        (pod,) = self.observe(job).pods
        return pod


def raw_pod(name: str = "job-0-0", version: int = 1, **changes: Any) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {JOB_LABEL: "job", "elasticjob.dev/slot": "0", "elasticjob.dev/attempt": "0"},
            "ownerReferences": [{"kind": "ElasticJob", "name": "job", "uid": "job-uid", "controller": True}],
            "annotations": {},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}, {"name": "sidecar"}]},
        "status": {
            "phase": "Running",
            "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "podIP": "10.0.0.1",
        },
    }
    for part, fields in changes.items():
        raw[part] = {**raw[part], **copy.deepcopy(fields)}
    return raw


def status(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


def test_a_running_pod() -> None:
    scene = Scene()
    scene.pod()
    assert scene.only() == Pod(
        name="job-0-0", uid="uid-job-0-0", slot=0, attempt=0, node="n1", ip="10.0.0.1", running=True
    )


@pytest.mark.parametrize(
    ("statuses", "running"),
    [
        (None, True),
        ([status("main", running={})], True),
        ([status("main", waiting={"reason": "ContainerCreating"})], False),
        ([status("main", terminated={"exitCode": 0}), status("sidecar", running={})], False),
        ([status("main", running={}), status("sidecar", terminated={"exitCode": 1})], True),
    ],
)
def test_running_is_the_training_container(statuses: list[Any] | None, running: bool) -> None:
    scene = Scene()
    scene.pod(status={"containerStatuses": statuses} if statuses else {})
    assert scene.only().running is running


def test_a_pending_pod_does_not_run() -> None:
    scene = Scene()
    scene.pod(status={"phase": "Pending"})
    assert not scene.only().running


def test_exit_is_the_training_containers_though_a_sidecar_goes_on() -> None:
    scene = Scene()
    ended = status("main", terminated={"exitCode": 137, "reason": "OOMKilled", "message": "too much"})
    scene.pod(status={"containerStatuses": [status("sidecar", running={}), ended]})
    assert scene.only().exit == Exit(137, "OOMKilled", "too much")
    assert not scene.only().ended


def test_the_annotated_container_trains() -> None:
    scene = Scene()
    scene.pod(
        metadata={
            **raw_pod()["metadata"],
            "annotations": {"kubectl.kubernetes.io/default-container": "sidecar"},
        },
        status={
            "containerStatuses": [
                status("main", terminated={"exitCode": 1}),
                status("sidecar", running={}),
            ]
        },
    )
    assert scene.only().exit is None
    assert scene.only().running


def test_phase_reason_and_message() -> None:
    scene = Scene()
    scene.pod(status={"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"})
    pod = scene.only()
    assert (pod.ended, pod.reason, pod.message) == (True, "Evicted", "The node was low on memory")


def test_a_disruption_is_a_reason() -> None:
    scene = Scene()
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "m",
    }
    scene.pod(status={"conditions": [condition]})
    assert (scene.only().reason, scene.only().message) == ("PreemptionByScheduler", "m")


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulingGated"])
def test_unschedulable(reason: str) -> None:
    scene = Scene()
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/3 nodes"}
    scene.pod(status={"phase": "Pending", "conditions": [condition]})
    assert scene.only().unschedulable == "0/3 nodes"


def test_waiting_for_an_image() -> None:
    scene = Scene()
    waiting = status("main", waiting={"reason": "ErrImagePull", "message": "no such image"})
    scene.pod(status={"phase": "Pending", "containerStatuses": [waiting]})
    assert scene.only().waiting == "ErrImagePull: no such image"


def test_waiting_in_an_init_container() -> None:
    scene = Scene()
    scene.pod(
        status={
            "phase": "Pending",
            "containerStatuses": [status("main", waiting={"reason": "PodInitializing"})],
            "initContainerStatuses": [status("fetch", waiting={"reason": "CrashLoopBackOff"})],
        }
    )
    assert scene.only().waiting == "CrashLoopBackOff"


def test_an_init_container_has_ended_the_pod() -> None:
    scene = Scene()
    inits = [status("first", terminated={"exitCode": 0}), status("fetch", terminated={"exitCode": 3})]
    ended = {"phase": "Failed", "initContainerStatuses": inits}
    waiting = status("main", waiting={"reason": "PodInitializing"})
    scene.pod(status={**ended, "containerStatuses": [waiting]})
    assert (scene.only().failed_init, scene.only().exit) == ("fetch", Exit(3))
    scene.pod(status={**ended, "containerStatuses": [waiting], "reason": "Evicted"})
    assert (scene.only().failed_init, scene.only().reason) == ("fetch", "Evicted")
    # A sidecar among them is told to end when all is over, and says nothing of why.
    main = status("main", terminated={"exitCode": 1})
    scene.pod(status={**ended, "containerStatuses": [main]})
    assert (scene.only().failed_init, scene.only().exit) == ("", Exit(1))


@pytest.mark.parametrize(
    ("state", "accompanied"), [({"running": {}}, True), ({"waiting": {}}, True), ({"terminated": {}}, False)]
)
def test_a_sidecar_keeps_a_pod_from_ending_unless_the_kubelet_ends_it(
    state: dict[str, Any], accompanied: bool
) -> None:
    scene = Scene()
    ended = status("main", terminated={"exitCode": 1})
    scene.pod(status={"containerStatuses": [ended, status("sidecar", **state)]})
    assert scene.only().accompanied is accompanied
    native = [status("proxy", running={})]
    scene.pod(status={"containerStatuses": [ended], "initContainerStatuses": native})
    assert not scene.only().accompanied


def test_mine_is_by_owner_with_a_template_and_by_label_without() -> None:
    scene = Scene()
    scene.pod(metadata={**raw_pod()["metadata"], "ownerReferences": [{"uid": "former", "controller": True}]})
    assert not scene.only(TEMPLATED).mine
    assert scene.only(FOREIGN).mine


@pytest.mark.parametrize(
    ("labels", "slot"),
    [
        ({"batch.kubernetes.io/job-completion-index": "4"}, 4),
        ({"apps.kubernetes.io/pod-index": "5"}, 5),
        ({"elasticjob.dev/slot": "1", "apps.kubernetes.io/pod-index": "5"}, 1),
        ({}, None),
        ({"elasticjob.dev/slot": "x"}, None),
        ({"elasticjob.dev/slot": "-1"}, None),
    ],
)
def test_slot(labels: dict[str, str], slot: int | None) -> None:
    scene = Scene()
    theirs = {"labels": {JOB_LABEL: "job", **labels}, "ownerReferences": []}
    scene.pod(metadata={**raw_pod()["metadata"], **theirs})
    assert scene.only(FOREIGN).slot == slot


@pytest.mark.parametrize(
    ("labels", "wrong"),
    [
        ({"elasticjob.dev/slot": "0", "elasticjob.dev/attempt": "0"}, ""),
        ({"elasticjob.dev/attempt": "0"}, "elasticjob.dev/slot=none"),
        ({"elasticjob.dev/slot": "1", "elasticjob.dev/attempt": "0"}, "elasticjob.dev/slot=1"),
        (
            {"elasticjob.dev/slot": "zero", "elasticjob.dev/attempt": "4"},
            "elasticjob.dev/slot=zero, elasticjob.dev/attempt=4",
        ),
    ],
)
def test_the_name_of_a_pod_that_was_made_counts_not_its_labels(labels: dict[str, str], wrong: str) -> None:
    scene = Scene()
    scene.pod(metadata={**raw_pod()["metadata"], "labels": {JOB_LABEL: "job", **labels}})
    pod = scene.only()
    assert (pod.mine, pod.slot, pod.attempt, pod.mislabeled) == (True, 0, 0, wrong)


@pytest.mark.parametrize("name", ["debug", "job-0", "job-01-0", "other-0-0", "job-0-0-0", "job-0-123456789"])
def test_a_pod_that_bears_the_owner_and_no_name_of_ours_is_not_mine(name: str) -> None:
    scene = Scene()
    scene.pod(name)
    assert not scene.only().mine


def test_pods_of_other_jobs_are_not_seen() -> None:
    scene = Scene()
    scene.pod(metadata={**raw_pod()["metadata"], "labels": {JOB_LABEL: "other"}})
    assert scene.observe().pods == ()


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
    scene.world.nodes.remove("", "n1")
    assert scene.only().node_gone
    scene.world.pods.put(read_pod(raw_pod(name="job-1-0", version=scene.tick())))
    gone = {pod.name: pod.node_gone for pod in scene.observe().pods}
    assert gone == {"job-0-0": True, "job-1-0": False}, "names of nodes come back: later pods are not lost"
    scene.world.pods.remove("ns", "job-1-0")
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


def test_ready_nodes() -> None:
    scene = Scene()
    assert scene.observe().nodes is None, "no node can be seen: they may be forbidden"
    scene.node("n1", uid="1")
    scene.node("n2", uid="2")
    assert scene.observe().nodes == frozenset({"n1", "n2"})
    assert scene.observe().nodes is scene.observe().nodes, "not made anew for each job"
    scene.node("n2", "False", uid="2")
    assert scene.observe().nodes == frozenset({"n1"})
    scene.world.nodes.remove("", "n1")
    assert scene.observe().nodes == frozenset()
    scene.node("n2", uid="2")
    assert scene.observe().nodes == frozenset({"n2"})
    scene.world._nodes.good_since = None
    assert scene.observe().nodes is None, "the watch is interrupted"


@pytest.mark.parametrize(
    ("condition", "disruption"),
    [
        ({"status": "True", "reason": "PreemptionByScheduler"}, "PreemptionByScheduler"),
        ({"status": "False", "reason": "PreemptionByScheduler"}, ""),
    ],
)
def test_who_takes_the_pod_away(condition: dict[str, str], disruption: str) -> None:
    scene = Scene()
    scene.pod(
        status={"conditions": [{"type": "DisruptionTarget", "message": "in its own words", **condition}]}
    )
    pod = scene.only()
    assert (pod.disruption, pod.reason) == (disruption, disruption)
    assert pod.message == ("in its own words" if disruption else "")


def test_the_kubelets_words_come_before_the_conditions() -> None:
    scene = Scene()
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    scene.pod(
        status={
            "phase": "Failed",
            "reason": "Evicted",
            "message": "low on memory",
            "conditions": [{**condition, "message": "terminated by kubelet"}],
        }
    )
    pod = scene.only()
    assert (pod.disruption, pod.reason, pod.message) == ("TerminationByKubelet", "Evicted", "low on memory")


def test_an_answer_that_is_later_than_the_watch_brings_no_pod_back() -> None:
    """The pod was made by us and deleted by somebody at once: the watch said both before our answer came."""
    scene = Scene()
    scene.pod()
    scene.world.pods.remove("ns", "job-0-0", uid="uid-job-0-0")
    scene.world.saw_pod(raw_pod())
    assert scene.observe().pods == ()


def test_a_pod_that_gets_its_label_again_comes_back() -> None:
    """To a watch by label the loss of the label is the pod's end; the version tells that it was not."""
    scene = Scene()
    scene.pod()
    lost = scene.tick()
    scene.world.pods.remove("ns", "job-0-0", "uid-job-0-0", lost)
    scene.world.saw_pod(raw_pod(version=lost))
    assert scene.observe().pods == ()
    scene.pod()
    assert scene.only().name == "job-0-0"


def test_a_participant_and_its_reports() -> None:
    scene = Scene()
    record = ParticipantRecord(id="abcdefgh", state="Joining", endpoint="h:1")
    failure = FailureReport(number=2, rank=1, message="boom", exit_code=-9)
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
    leases = list(scene.world.informers())[1]
    leases.good_since = None
    assert scene.observe().leases["job-0-0"].silent == 0.0
    leases.good_since = 1035.0
    assert scene.observe().leases["job-0-0"].silent == pytest.approx(5.0)


def test_one_tenant_s_trouble_makes_nobody_else_less_silent() -> None:
    """A write for another job fails every 20 s, and others' Leases are renewed: the dead are seen."""
    scene = Scene()
    scene.lease()
    scene.lease("job-1-0")
    before = scene.world.continuity("ns")
    for _ in range(30):
        scene.api.answers.failed(THEIR_PODS, scene.now, scene.now)
        scene.pass_time(2.0)
        scene.lease("job-1-0")
        scene.pass_time(18.0)
    assert scene.observe().leases["job-0-0"].silent == pytest.approx(600.0)
    assert scene.world.continuity("ns") == before
    assert scene.world.trusted("ns")


def test_in_doubt_clocks_stand_and_after_an_outage_they_start_again() -> None:
    scene = Scene()
    scene.lease()
    scene.pass_time(14.0)
    before = scene.world.continuity("ns")
    scene.api.answers.failed(THEIR_PODS, scene.now, scene.now)
    scene.pass_time(2.0)
    assert scene.observe().leases["job-0-0"].silent == pytest.approx(14.0), "nobody is convicted in doubt"
    assert scene.world.trusted("ns"), "timers go on"
    scene.pass_time(98.0)
    assert scene.observe().leases["job-0-0"].silent == pytest.approx(14.0)
    assert not scene.world.trusted("ns")
    scene.api.answers.got_through(THEIR_PODS, scene.now)
    scene.pass_time(3.0)
    assert scene.observe().leases["job-0-0"].silent == pytest.approx(3.0), "from the end of the outage on"
    assert scene.world.continuity("ns") != before, "and timers, too"


def test_leases_that_can_t_be_written_in_one_namespace_concern_that_one() -> None:
    scene = Scene()
    scene.lease()
    there = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/x"
    scene.pass_time(20.0)
    for namespace, seen in (("theirs", 30.0), ("ns", 30.0)):
        scene.api.answers.failed(there.format(namespace), scene.now, scene.now)
        scene.api.answers.got_through("/api/v1/namespaces/theirs/pods", scene.now)
        scene.pass_time(10.0)
        assert scene.observe().leases["job-0-0"].silent == pytest.approx(seen)
    scene.api.answers.got_through(there.format("ns"), scene.now)
    assert scene.observe().leases["job-0-0"].silent == 0.0


def test_what_is_in_doubt_is_tried_in_each_namespace_in_turn() -> None:
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

    async def main() -> None:
        now = 1.0
        api = Tried()
        store: Store[SeenLease] = Store(lambda _: None, lambda: now)
        trials = Trials(cast(Api, api), store, lambda: now)
        for version, namespace in enumerate(("fails", "hangs", "well"), 1):
            meta = {"namespace": namespace, "name": "job-round", "uid": "u", "resourceVersion": str(version)}
            store.put(read_lease({"metadata": {**meta, "labels": {JOB_LABEL: "job"}}, "spec": {}}))
        trials.begin()
        assert not trials._under_way, "nothing is in doubt"
        api.answers.failed(THEIR_PODS, now, now)
        for _ in range(3):
            trials.begin()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert api.answers.doubted_since("ns") is None
        assert sorted(set(api.paths)) == ["fails", "hangs", "well"]
        await trials.aclose()

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_standstill_of_this_process_is_nobodys_silence() -> None:
    scene = Scene()
    scene.lease()
    before = scene.world.continuity("ns")
    scene.now += 60.0
    assert scene.observe().leases["job-0-0"].silent == 0.0
    assert scene.world.continuity("ns") != before, "the planner's timers start again too"


def test_the_round_lease() -> None:
    scene = Scene()
    record = RoundRecord(job_uid="job-uid", number=0, phase="Broken")
    scene.lease("job-round", round=record.dump())
    observed = scene.observe()
    assert observed.record == record
    assert observed.leases == {}
    scene.lease("job-round", round=RoundRecord(job_uid="former", number=9, phase="Broken").dump())
    assert scene.observe().record is None
    seen = scene.world.round_lease(TEMPLATED)
    assert seen is not None
    assert seen.record is not None
    assert seen.record.number == 9


def test_own_writes_are_seen_at_once_and_quietly() -> None:
    scene = Scene()
    scene.world.saw_pod(raw_pod(version=7))
    assert scene.only().name == "job-0-0"
    assert scene.dirty == []
    scene.world.saw_pod(raw_pod(version=8), deleting=True)
    assert scene.only().deleting
    scene.pod()  # the watch comes later, with an older version
    assert scene.only().deleting


def test_read_again_takes_over_what_the_watches_have_not_brought() -> None:
    """A status of somebody else's tells of pods and Leases that our own watches may not have brought yet."""
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

    scene.world._api = cast(Any, SimpleNamespace(get=get, answers=Answers()))
    asyncio.run(scene.world.read_again(TEMPLATED))
    assert [pod.name for pod in scene.observe().pods] == ["job-1-0"]
    assert asked == [f"{JOB_LABEL}=job"] * 2


def test_a_container_that_was_restarted_in_place_says_how_it_had_ended() -> None:
    restarted = {
        "name": "main",
        "state": {"running": {}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        "restartCount": 3,
    }
    pod = read_pod(raw_pod(status={"containerStatuses": [restarted, status("sidecar", running={})]})).pod
    assert (pod.exit, pod.last_exit, pod.running) == (None, Exit(137, "OOMKilled"), True)
    assert pod.restarts == 3
    fresh = read_pod(raw_pod(status={"containerStatuses": [status("main", running={})]})).pod
    assert (fresh.last_exit, fresh.restarts) == (None, 0)
