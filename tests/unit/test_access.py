"""What rights a job's pods get."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elasticjob_operator.act.owned import Needs, NotOurs, write_together
from elasticjob_operator.act.owned_kinds import ACCOUNT, BINDING, RIGHTS, ROLE, wanted, writers_in
from elasticjob_operator.observe.errors import AlreadyExists, ApiError, Conflict, NotFound
from elasticjob_operator.plan.state.model import Job, JobSpec


def job(template: dict[str, Any] | None) -> Job:
    return Job("default", "mnist", "uid", 1, JobSpec(template=template))


def rights(template: dict[str, Any] | None, names: tuple[str, ...], accounts: tuple[str, ...]) -> Any:
    """Whether the job has an account of its own, whose accounts are bound, and which pods may write."""
    found = wanted(job(template), Needs(frozenset(names), accounts, ()))
    role, binding = found[ROLE], found.get(BINDING) or {"subjects": []}
    return ACCOUNT in found, tuple(s["name"] for s in binding["subjects"]), writers_in(role, ())


def test_pods_of_others_are_bound_by_the_service_accounts_that_they_have() -> None:
    found = rights(None, ("mnist-1-k2p4x", "mnist-0-x7k2p"), ("default", "trainer"))
    assert found == (False, ("default", "trainer"), ["mnist-0-x7k2p", "mnist-1-k2p4x"])


# shows: writes the round, or deletes it
def test_a_pod_can_not_be_named_into_the_right_to_write_a_round() -> None:
    assert rights(None, ("mnist-round", "other-round", "around"), ("default",))[2] == ["around"]


def test_a_template_decides_whose_account_it_is() -> None:
    own = rights({"spec": {"containers": []}}, ("mnist-0-0",), ("default",))
    assert own[:2] == (True, ("mnist-elasticjob",))
    theirs = rights({"spec": {"serviceAccountName": "trainer", "containers": []}}, (), ("default",))
    assert theirs[:2] == (False, ("trainer",))


async def grant(api: Any, new: bool = False) -> None:
    """Write the rights of a job with one pod."""
    mnist = job({"spec": {"containers": []}})
    found = wanted(mnist, Needs(frozenset({"mnist-0-0"}), (), ()))
    await write_together(api, mnist, {k: v for k, v in found.items() if k.target == RIGHTS}, new)


class SlowApi:
    """Answers when all others wait."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def patch(self, path: str, *_: Any) -> dict[str, Any]:
        kind = path.split("/")[-2]
        self.log.append(f"{kind} asked")
        for _turn in range(10):
            await asyncio.sleep(0)
        self.log.append(f"{kind} there")
        return {}


def test_a_role_is_there_before_it_is_bound() -> None:
    """To look it up is the API server's check of who may bind it; an administrator is not checked."""
    api = SlowApi()
    asyncio.run(grant(api))
    assert api.log.index("roles there") < api.log.index("rolebindings asked")
    assert api.log.index("roles asked") < api.log.index("serviceaccounts there")


class OneKind:
    """Answers as an API server that has an object of one kind already, or has none of it."""

    def __init__(self, kind: str, error: ApiError) -> None:
        self._kind = kind
        self._error = error
        self.made: list[dict[str, Any]] = []

    async def patch(self, path: str, *_: Any) -> dict[str, Any]:
        if path.split("/")[-2] == f"{self._kind.lower()}s":
            raise self._error
        return {}

    async def create(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.made.append(body)
        return body


@pytest.mark.parametrize("kind", ["ServiceAccount", "Role", "RoleBinding"])
def test_what_is_somebody_elses_is_named(kind: str) -> None:
    api: Any = OneKind(kind, Conflict("PATCH", 422, "Invalid", "the test of the owner's UID failed"))
    with pytest.raises(
        NotOurs, match=f"{kind} mnist-elasticjob already exists in namespace default .*under another name"
    ):
        asyncio.run(grant(api))
    assert not api.made


@pytest.mark.parametrize("kind", ["ServiceAccount", "Role", "RoleBinding"])
def test_what_is_not_there_is_made_whole(kind: str) -> None:
    api: Any = OneKind(kind, NotFound("PATCH", 404, "NotFound", ""))
    asyncio.run(grant(api))
    (made,) = api.made
    assert (made["kind"], made["metadata"]["name"]) == (kind, "mnist-elasticjob")
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid"
    assert {"Role": "rules", "RoleBinding": "subjects"}.get(kind, "kind") in made


@pytest.mark.parametrize("taken", ["ServiceAccount", "Role", "RoleBinding", ""])
def test_for_a_new_job_nothing_is_looked_for_first(taken: str) -> None:
    class New:
        def __init__(self) -> None:
            self.asked: list[tuple[str, str]] = []

        async def patch(self, path: str, *_: Any) -> dict[str, Any]:
            self.asked.append(("PATCH", path.split("/")[-2]))
            raise Conflict("PATCH", 422, "Invalid", "the test of the owner's UID failed")

        async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            self.asked.append(("POST", path.split("/")[-1]))
            if body["kind"] == taken:
                raise AlreadyExists("POST", 409, "AlreadyExists", "")
            return body

    api: Any = New()
    granting = grant(api, new=True)
    if taken:
        with pytest.raises(NotOurs, match=taken):
            asyncio.run(granting)
        assert ("PATCH", f"{taken.lower()}s") in api.asked
    else:
        asyncio.run(granting)
        assert sorted(api.asked) == [("POST", kind) for kind in ("rolebindings", "roles", "serviceaccounts")]


def test_a_write_that_comes_between_is_no_reason_to_call_it_somebody_elses() -> None:
    api: Any = OneKind("Role", Conflict("PATCH", 409, "Conflict", "the object has been modified"))
    with pytest.raises(Conflict):
        asyncio.run(grant(api))
