"""What rights a job's pods get."""

from __future__ import annotations

import asyncio
from typing import Any

from elasticjob_operator.act.access import Access, access_of, grant
from elasticjob_operator.plan.model import Job, JobSpec


def job(template: dict[str, Any] | None) -> Job:
    return Job("default", "mnist", "uid", 1, JobSpec(template=template))


def test_pods_of_others_are_bound_by_the_service_accounts_that_they_have() -> None:
    found = access_of(job(None), ("mnist-1-k2p4x", "mnist-0-x7k2p"), ("default", "trainer"))
    assert found == Access(False, ("default", "trainer"), ("mnist-0-x7k2p", "mnist-1-k2p4x"))


def test_a_pod_can_not_be_named_into_the_right_to_write_a_round() -> None:
    assert access_of(job(None), ("mnist-round", "other-round", "around"), ("default",)).pod_names == (
        "around",
    )


def test_a_template_decides_whose_account_it_is() -> None:
    own = access_of(job({"spec": {"containers": []}}), ("mnist-0-0",), ("default",))
    assert (own.own_account, own.subjects) == (True, ("mnist-elasticjob",))
    theirs = access_of(job({"spec": {"serviceAccountName": "trainer", "containers": []}}), (), ("default",))
    assert (theirs.own_account, theirs.subjects) == (False, ("trainer",))


class SlowApi:
    """Answers when everybody else waits."""

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
    wanted = Access(True, ("mnist-elasticjob",), ("mnist-0-0",))
    asyncio.run(grant(api, job({"spec": {"containers": []}}), wanted, None))  # type: ignore[arg-type]
    assert api.log.index("roles there") < api.log.index("rolebindings asked")
    assert api.log.index("roles asked") < api.log.index("serviceaccounts there")
