"""How the shell makes and deletes pods, and what one that fails holds up."""

from __future__ import annotations

import asyncio
import time

import pytest

from elasticjob_operator.act.injection import HANDLER_DIR
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.act.pod_creation_limiter import PODS_PER_TURN
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.errors import ApiError, Forbidden, Invalid, TooManyRequests, Unavailable
from elasticjob_operator.plan.state.model import CreatePod, DeletePod, Job, Observed
from tests.integration.shell.scene import Scene, eventually, most_tries, until
from tests.integration.shell.stub import FIRST, Actions, create_missing

pytestmark = pytest.mark.cluster


async def test_a_name_that_is_taken_is_shown_to_the_planner(scene: Scene) -> None:
    await scene.make_job()
    stranger = {
        "metadata": {"name": "mnist-0-0"},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }
    await scene.admin.create(scene.pods, stranger)
    taken: list[bool] = []

    def actions(job: Job, observed: Observed) -> Actions:
        others = [p.name for p in observed.pods if not p.of_this_job]
        taken.append("mnist-0-0" in others)
        return create_missing(job, observed, (1, 0) if "mnist-0-0" in others else (0, 0))

    scene.planner.actions = actions
    async with scene.operator():

        async def made() -> bool:
            return {"mnist-0-1", "mnist-1-0"} <= await scene.pod_names()

        await eventually(made, "the pod has taken the next attempt number")
    assert any(taken)


async def test_a_pod_that_is_there_when_the_status_is_written_is_not_made_again(scene: Scene) -> None:
    """A pass waits no longer than a second for a slow write. The next one is planned without the pods, and
    when it comes to make them, they are there."""
    await scene.make_job()
    scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
    scene.planner.actions = create_missing
    pods, status = asyncio.Event(), asyncio.Event()
    scene.wire.held["POST pods"] = pods
    async with scene.operator() as operator:
        await until(lambda: scene.wire.writes.count("POST pods") == 2, "the pods are being made")
        await until(lambda: not operator.controller.under_way(), "the pass has left them behind")
        scene.wire.held["PATCH elasticjobs"] = status
        scene.planner.number, before = 1, len(scene.wire.writes)
        await scene.poke()
        await until(lambda: len(scene.wire.writes) > before, "the status is being written")
        assert not scene.planner.seen[-1].pods
        pods.set()
        await until(lambda: len(operator.controller.cache.pods) == 2, "the pods are there")
        status.set()
        await scene.round_is(1, "Broken")
        await until(
            lambda: len(scene.planner.seen[-1].pods) == 2 and not operator.controller.under_way(),
            "the planner has seen them",
        )
    assert scene.wire.writes.count("POST pods") == 2


# shows: hundreds of jobs are applied at once, or the operator or the API server is behind
async def test_before_the_turn_of_its_first_pods_nothing_is_made_for_a_job(scene: Scene) -> None:
    """What a thousand jobs get beside their pods would be made before the first pod of any."""
    await scene.make_job()
    scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
    scene.planner.actions = create_missing
    async with scene.operator() as operator:
        limiter = operator.controller.reconciler._applier.creation.limiter
        for _ in range(5):
            limiter.due(scene.namespace, PODS_PER_TURN, False, None)  # others' pods, for 6 s
        await until(lambda: bool(scene.planner.seen), "the first pass begins")
        await until(lambda: not operator.controller.under_way(), "it has ended")
        assert scene.wire.writes == []
        await scene.pods_are("mnist-0-0", "mnist-1-0")
    assert scene.wire.writes.count("POST pods") == 2


async def test_a_write_that_fails_slowly_makes_no_passes_while_it_is_under_way(scene: Scene) -> None:
    """It has failed before, so it was due when it began; its next pause begins when it has failed again."""
    await scene.make_job()
    scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
    scene.planner.actions = create_missing
    scene.wire.fail_at = "POST pods"
    async with scene.operator() as operator:
        await until(lambda: scene.wire.failed > 0, "the webhook is down")
        scene.wire.held["POST pods"] = asyncio.Event()
        scene.wire.fail_at, before = "", len(scene.wire.writes)
        await until(lambda: "POST pods" in scene.wire.writes[before:], "it does not answer")
        await until(lambda: not operator.controller.under_way(), "the pass has left it behind")
        passes = operator.controller.passes
        await asyncio.sleep(2)
        assert operator.controller.passes - passes < 10


async def test_pods_are_deleted_by_uid(scene: Scene) -> None:
    await scene.make_job()
    scene.planner.actions = create_missing
    async with scene.operator() as operator:
        await scene.pods_are("mnist-0-0", "mnist-1-0")
        await until(lambda: len(operator.controller.cache.pods) == 2, "both pods are known")
        uids = {p.name: p.uid for p in operator.controller.cache.pods.all()}

        def actions(_job: Job, observed: Observed) -> Actions:
            there = {p.name for p in observed.pods if not p.deleting}
            wrong = DeletePod("mnist-1-0", "not-its-uid", "a former pod of that name")
            right = DeletePod("mnist-0-0", uids["mnist-0-0"], "test", force=True)
            return (wrong, right) if "mnist-0-0" in there else (wrong,)

        scene.planner.actions = actions
        await scene.poke()
        await scene.pods_are("mnist-1-0")


async def test_a_pod_that_no_kubelet_ends_goes_with_force_only(scene: Scene) -> None:
    await scene.make_job(nodeName="a-node-that-is-not-there")
    scene.planner.actions = create_missing
    force = False

    def actions(_job: Job, observed: Observed) -> Actions:
        return tuple(
            DeletePod(pod.name, pod.uid, "test", force=force)
            for pod in observed.pods
            if force or not pod.deleting
        )

    async def there() -> list[Json]:
        items: list[Json] = (await scene.admin.get(scene.pods))["items"]
        return items

    async with scene.operator():
        await scene.pods_are("mnist-0-0", "mnist-1-0")
        scene.planner.actions = actions
        await scene.poke()
        await scene.pods_are()
        stuck = await there()
        assert {p["metadata"]["deletionGracePeriodSeconds"] for p in stuck} == {125}, "Terminating, for ever"
        assert len(stuck) == 2
        force = True
        await scene.poke()

        async def gone() -> bool:
            return not await there()

        await eventually(gone, "the objects are gone")


async def test_a_pod_that_is_refused_holds_up_nothing_else(scene: Scene) -> None:
    body = {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "mnist"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "main"}]}}},
    }
    await scene.admin.create(job_path(scene.namespace, "").rstrip("/"), body)
    scene.planner.actions = create_missing
    began = time.monotonic()
    async with scene.operator() as operator:
        await scene.round_is(0, "Broken")
        for number in range(1, 6):
            scene.planner.number = number
            operator.enqueue()
            await scene.round_is(number, "Broken")
        tried = scene.wire.writes.count("POST pods")
        assert tried <= 2 * most_tries(time.monotonic() - began)

        async def told(reason: str = "PodRejected", word: str = "image") -> bool:
            page = await scene.admin.get(f"/api/v1/namespaces/{scene.namespace}/events")
            return any(word in e["message"] for e in page["items"] if e["reason"] == reason)

        await eventually(told, "an Event says why")
        await eventually(
            lambda: told("PythonPathReplaced", HANDLER_DIR),
            "and another what a container without command loses",
        )


async def test_a_field_that_the_server_does_not_know_is_not_lost_silently(scene: Scene) -> None:
    pod = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "a"}], "ofTomorrow": 1}}
    with pytest.raises(Invalid, match=r'unknown field "spec\.ofTomorrow"'):
        await scene.admin.create(scene.pods, pod)


@pytest.mark.parametrize("error", [Unavailable, Forbidden, TooManyRequests], ids=["500", "403", "429"])
@pytest.mark.parametrize(
    "write",
    [
        "POST pods",
        "DELETE pods",
        "PATCH roles",
        "PATCH serviceaccounts",
        "PATCH rolebindings",
        "PATCH networkpolicies",
        "PATCH leases/mnist-round",
    ],
)
# shows: the API server rejects the job's ServiceAccount, Role, RoleBinding or NetworkPolicy
async def test_a_write_that_fails_holds_up_nothing_but_itself(
    scene: Scene, write: str, error: type[ApiError]
) -> None:
    """The status goes on, so do the round (unless it is what fails), the other pods and all timers."""
    await scene.make_job()
    scene.planner.actions = create_missing
    scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
    async with scene.operator() as operator:
        await scene.pods_are("mnist-0-0", "mnist-1-0")
        await until(lambda: operator.controller.cache.trusted(scene.namespace), "the watches are there")

        def under_way() -> bool:
            operator.enqueue()
            return len(scene.planner.seen[-1].pods) == 2 and bool(scene.planner.timers[-1])

        await until(under_way, "timers run")
        entry = operator.controller.registry.get(scene.namespace, "mnist")
        assert entry is not None
        entry.state.owned.written.clear()
        doomed = scene.planner.seen[-1].pods[0]
        scene.planner.actions = lambda _job, observed: (
            CreatePod("mnist-7-0", 7, 0),
            *(DeletePod(pod.name, pod.uid, "test") for pod in observed.pods if pod.uid == doomed.uid),
        )
        scene.planner.pod_names = ("mnist-0-0", "mnist-1-0", "mnist-7-0")
        scene.wire.error, scene.wire.fail_at = error, write
        began, protocol = time.monotonic(), write == "PATCH leases/mnist-round"
        first = scene.planner.timers[-1][FIRST]
        for number in (1, 2, 3):
            scene.planner.number = number
            operator.enqueue()
            await until(lambda: operator.round().number == number, "the status")  # noqa: B023
            if write != "PATCH leases/mnist-round":
                await scene.round_is(number, "Broken")
        await until(lambda: any("etcd" in t.why for t in scene.planner.seen[-1].failing_writes), "it is told")
        failed, took = scene.wire.failed, time.monotonic() - began
        assert failed <= (most_tries(took, 0.2, longest=1.0) if protocol else most_tries(took))
        assert scene.planner.timers[-1][FIRST] == first, "no timer starts again"
        others = {"POST pods", "DELETE pods"} - {write}
        if write in ("PATCH roles", "PATCH serviceaccounts", "PATCH rolebindings"):
            others -= {"POST pods"}  # it could not write its Lease
            assert "mnist-7-0" not in await scene.pod_names()
        for other in others:
            await until(lambda: any(w.startswith(other) for w in scene.wire.writes), other)  # noqa: B023
        scene.wire.fail_at = ""
        await until(lambda: not scene.planner.seen[-1].failing_writes, "nothing is told any more")
        await scene.round_is(3, "Broken")
