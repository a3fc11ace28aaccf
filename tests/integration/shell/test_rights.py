"""The rights that the shell grants to pods."""

from __future__ import annotations

import contextlib

import pytest

from devcluster.access import ClusterAccess
from devcluster.wait import wait_for
from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.observe.errors import NotFound
from elasticjob_operator.plan.state.status import ParticipantStatus
from tests.integration.shell.scene import DEADLINE, Scene, eventually
from tests.integration.shell.stub import create_missing

pytestmark = pytest.mark.cluster


async def test_a_pods_identity_may_do_two_things(
    scene: Scene, namespace: str, api_server: ClusterAccess
) -> None:
    scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
    scene.planner.actions = create_missing
    await scene.make_job()
    async with scene.operator():
        await scene.pods_are("mnist-0-0", "mnist-1-0")
    pod = await scene.admin.get(f"{scene.pods}/mnist-0-0")
    assert pod["spec"]["serviceAccountName"] == "mnist-elasticjob"

    def may(verb: str, resource: str) -> bool:
        user = f"system:serviceaccount:{namespace}:mnist-elasticjob"
        answer = api_server.kubectl(
            "auth", "can-i", verb, resource, "-n", namespace, "--as", user, check=False
        )
        return answer.stdout.strip() == "yes"

    wait_for(lambda: may("watch", "leases/mnist-round"), DEADLINE, "RBAC knows of the Role")
    allowed = {("get", "leases/mnist-round"), ("list", "leases/mnist-round"), ("watch", "leases/mnist-round")}
    allowed |= {("get", "leases/mnist.members-round")}
    for name in ("mnist-0-0", "mnist-1-0"):
        allowed |= {(verb, f"leases/{name}") for verb in ("get", "create", "patch")}
    resources = ["mnist-round", "mnist.members-round", "mnist-0-0", "mnist-1-0", "mnist-0-1", "other"]
    for verb in ("get", "list", "watch", "create", "update", "patch", "delete"):
        for name in resources:
            assert may(verb, f"leases/{name}") == ((verb, f"leases/{name}") in allowed), (verb, name)
    for denied in [("list", "leases"), ("get", "pods"), ("get", "secrets"), ("patch", "elasticjobs/mnist")]:
        assert not may(*denied), denied


async def test_pods_of_others_get_access_by_their_own_account(scene: Scene) -> None:
    await scene.make_job(template=False)
    pod = {
        "metadata": {"name": "theirs", "labels": {JOB_LABEL: "mnist"}},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }
    await scene.admin.create(scene.pods, pod)
    scene.planner.pod_names = ("theirs",)
    async with scene.operator():

        async def bound() -> bool:
            path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{scene.namespace}/rolebindings"
            page = await scene.admin.get(path)
            return [b["subjects"][0]["name"] for b in page["items"]] == ["default"]

        await eventually(bound, "the Role is bound to the pods' account")
    accounts = await scene.admin.get(f"/api/v1/namespaces/{scene.namespace}/serviceaccounts")
    assert [a["metadata"]["name"] for a in accounts["items"]] == ["default"]


async def test_a_name_less_in_the_role_holds_nothing_up(scene: Scene) -> None:
    """A lost pod's name leaves the Role with the next name that comes, or after a while."""
    scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
    await scene.make_job()
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{scene.namespace}/roles/mnist-elasticjob"

    async def names() -> list[str]:
        role = await scene.admin.get(path)
        return [name for rule in role["rules"] if "create" in rule["verbs"] for name in rule["resourceNames"]]

    async with scene.operator() as operator:

        async def granted() -> bool:
            return "POST roles" in scene.wire.writes

        await eventually(granted, "the Role")
        writes = scene.wire.writes.count("PATCH roles/mnist-elasticjob")
        async with operator.one_more_pass():
            scene.planner.pod_names = ("mnist-0-0",)
            await scene.poke()
        scene.planner.pod_names = ("mnist-0-0", "mnist-1-1")
        await scene.poke()

        async def replaced() -> bool:
            return await names() == ["mnist-0-0", "mnist-1-1"]

        await eventually(replaced, "the replacement's name in place of the lost pod's")
        assert scene.wire.writes.count("PATCH roles/mnist-elasticjob") == writes + 1
        scene.planner.pod_names = ("mnist-0-0",)
        await scene.poke()

        async def removed() -> bool:
            return await names() == ["mnist-0-0"]

        await eventually(removed, "the name is gone without any further event")


# shows: a job's Role or RoleBinding is deleted, or a policy denies its pods' Leases
async def test_rights_that_somebody_has_deleted_are_written_when_members_do_not_come_back(
    scene: Scene,
) -> None:
    """They can't: with the Role gone they neither read the round nor write that they have joined. The next
    look at all jobs' Roles is minutes away, and after rejoinTimeoutSeconds their pods would be deleted."""
    scene.planner.number, scene.planner.phase = 1, "Active"
    scene.planner.pod_names = ("mnist-0-0",)
    scene.planner.participants = (ParticipantStatus("abcd", "mnist-0-0", "uid-0", "Member", group_rank=0),)
    await scene.make_job()
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{scene.namespace}"

    async def there(kind: str = "roles") -> bool:
        with contextlib.suppress(NotFound):
            return bool(await scene.admin.get(f"{rbac}/{kind}/mnist-elasticjob"))
        return False

    async with scene.operator() as operator:
        await eventually(lambda: there("rolebindings"), "what is written after the Role")
        await scene.admin.delete(f"{rbac}/roles/mnist-elasticjob")
        async with operator.one_more_pass():
            await scene.poke()
        assert not await there()
        scene.planner.phase = "Broken"
        await scene.poke()
        await eventually(there, "the Role again")


async def test_rights_that_somebody_has_deleted_are_written_when_members_cannot_write(scene: Scene) -> None:
    """They train, and say so by others, or say nothing any more; once a minute, whatever comes of it."""
    scene.planner.number, scene.planner.phase = 1, "Active"
    scene.planner.pod_names = ("mnist-0-0",)
    await scene.make_job()
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{scene.namespace}/roles/mnist-elasticjob"

    async def there() -> bool:
        with contextlib.suppress(NotFound):
            return bool(await scene.admin.get(role))
        return False

    async with scene.operator() as operator:
        await eventually(there, "the Role")
        await scene.admin.delete(role)
        scene.planner.rights_in_doubt = True
        await scene.poke()
        await eventually(there, "the Role again")
        await scene.admin.delete(role)
        async with operator.one_more_pass():
            await scene.poke()
        assert not await there(), "a minute has not passed"


async def test_an_account_that_is_deleted_is_made_again_at_once(scene: Scene) -> None:
    scene.planner.pod_names = ("mnist-0-0",)
    await scene.make_job()
    account = f"/api/v1/namespaces/{scene.namespace}/serviceaccounts/mnist-elasticjob"

    async def uid() -> str:
        with contextlib.suppress(NotFound):
            return str((await scene.admin.get(account))["metadata"]["uid"])
        return ""

    async with scene.operator():

        async def seen() -> bool:
            return scene.planner.seen[-1].account_made is not None

        await eventually(uid, "the account")  # type: ignore[arg-type]
        await scene.poke()
        await eventually(seen, "the planner knows when it was made")
        for _ in range(2):
            before = await uid()
            await scene.admin.delete(account)

            async def again(before: str = before) -> bool:
                return await uid() not in ("", before)

            await eventually(again, "there is another one, without any other event")
        await eventually(seen, "the planner knows of that one")

        async def told() -> bool:
            page = await scene.admin.get(f"/api/v1/namespaces/{scene.namespace}/events")
            text = "the service account mnist-elasticjob was deleted (not by the operator)"
            return any(
                event["reason"] == "AccountMadeAgain" and event["message"].startswith(text)
                for event in page["items"]
            )

        await eventually(told, "an Event")
