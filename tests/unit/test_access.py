"""What rights a job's pods get."""

from __future__ import annotations

import asyncio
from typing import Any, cast

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


def test_a_role_is_bound_when_it_is_there() -> None:
    """Side by side the API server would refuse the binding with 404, but for an administrator's."""
    steps: list[str] = []

    class Slow:
        async def patch(self, path: str, *_: object) -> dict[str, Any]:
            kind = path.split("/")[-2]
            steps.append(f"{kind} asked")
            for _turn in range(5):
                await asyncio.sleep(0)
            steps.append(f"{kind} written")
            return {}

    asyncio.run(grant(cast(Any, Slow()), job({}), Access(True, ("mnist-elasticjob",), ("mnist-0-0",)), None))
    assert steps[-2:] == ["rolebindings asked", "rolebindings written"]
    assert "roles written" in steps
