"""The Leases of a round never go back, whatever comes over the watch while a pass is writing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from elasticjob.contract.names import MEMBERS_ANNOTATION, ROUND_ANNOTATION
from elasticjob.contract.round_record import MemberList, RoundRecord
from elasticjob_operator.act.job_state import PublishedState, Stale
from elasticjob_operator.act.round_publisher import LeaseRoundPublisher
from elasticjob_operator.observe.errors import NotFound
from elasticjob_operator.observe.seen_lease import SeenLease, read_lease
from elasticjob_operator.observe.store import Store
from elasticjob_operator.plan.state.model import Job, JobSpec

JOB = Job("default", "mnist", "uid", 1, JobSpec())
PLANNED = RoundRecord("uid", 2, "Active", "ours", ("id-1",), "10.0.0.1:4000")
LARGE = replace(PLANNED, member_ids=(), size=40)
LIST = MemberList("uid", 2, "ours", ("id-1", "id-2"))
LIST_LEASE = "mnist.members-round"


class Namespace:
    """The API server and the operator's watch of it, for the Leases of one job."""

    def __init__(self, *there: RoundRecord | MemberList) -> None:
        self.leases: Store[SeenLease] = Store(lambda _: None, lambda: 0.0)
        self.written: list[str] = []
        self.coming: list[dict[str, Any]] = []
        """The watch brings it during the next ``get``."""
        self._version = 0
        for record in there:
            name, key = "mnist-round", ROUND_ANNOTATION
            if isinstance(record, MemberList):
                name, key = LIST_LEASE, MEMBERS_ANNOTATION
            self.saw_lease(self._put(name, {key: record.dump()}))
        self.projector = LeaseRoundPublisher(cast(Any, self), cast(Any, self), lambda: 0.0)

    def write(
        self, record: RoundRecord, members: MemberList | None, state: PublishedState | None = None
    ) -> None:
        asyncio.run(self.projector.write(JOB, record, members, state or PublishedState()))

    # What the projector asks of the world and of the API server.

    def round_lease(self, _: Job) -> SeenLease | None:
        return self.leases.get("default", "mnist-round")

    def members_lease(self, _: Job) -> SeenLease | None:
        return self.leases.get("default", LIST_LEASE)

    def saw_lease(self, raw: dict[str, Any]) -> None:
        self.leases.put(read_lease(raw), quiet=True)

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        del path
        return self._written(body["metadata"]["name"], body)

    async def get(self, path: str) -> dict[str, Any]:
        """Not found; and while the answer is on its way, the watch brings what comes."""
        for raw in self.coming:
            self.saw_lease(raw)
        raise NotFound(path, 404, "NotFound", "")

    async def patch(self, path: str, body: dict[str, Any], kind: str) -> dict[str, Any]:
        del kind
        name = path.rpartition("/")[2]
        known = self.leases.get("default", name)
        assert known is not None
        assert body["metadata"]["resourceVersion"] == str(known.version)
        return self._written(name, body)

    async def delete(self, path: str, uid: str) -> None:
        del uid
        self.written.append(f"no {path.rpartition('/')[2]}")

    def _written(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        self.written.append(name)
        return self._put(name, body["metadata"]["annotations"])

    def _put(self, name: str, annotations: dict[str, str]) -> dict[str, Any]:
        self._version += 1
        return {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"lease-{name}",
                "resourceVersion": str(self._version),
                "labels": {"elasticjob.dev/job-name": "mnist"},
                "ownerReferences": [{"uid": "uid", "controller": True}],
                "annotations": annotations,
            },
            "spec": {},
        }


@pytest.mark.parametrize(
    "there",
    [replace(PLANNED, number=3), replace(PLANNED, phase="Broken"), replace(PLANNED, nonce="theirs")],
    ids=["a later round", "a later phase", "another such round"],
)
def test_a_lease_that_got_ahead_after_the_check_is_not_written_over(there: RoundRecord) -> None:
    namespace = Namespace(there)
    with pytest.raises(Stale):
        namespace.write(PLANNED, None)
    assert not namespace.written


def test_the_list_is_written_before_the_round_and_once() -> None:
    namespace, state = Namespace(), PublishedState()
    namespace.write(LARGE, LIST, state)
    assert namespace.written == [LIST_LEASE, "mnist-round"]
    namespace.write(LARGE, LIST, state)
    assert len(namespace.written) == 2, "nothing is new"
    namespace.write(replace(LARGE, phase="Broken"), None, state)
    assert namespace.written[2:] == ["mnist-round"]
    later = replace(LIST, number=3, nonce="next")
    namespace.write(replace(LARGE, number=3, nonce="next"), later, state)
    assert namespace.written[3:] == [LIST_LEASE, "mnist-round"]


def test_an_operator_that_dies_between_the_two_has_told_nobody_of_the_round() -> None:
    """Its successor goes on there."""
    namespace = Namespace(replace(PLANNED, number=1, phase="Broken"), LIST)
    assert namespace.projector.check(JOB, LARGE, fresh=False)
    namespace.write(LARGE, LIST)
    assert namespace.written == ["mnist-round"]


def test_a_list_that_is_ahead_stops_the_pass_and_is_not_written_over() -> None:
    """It was planned on a stale status; after a fresh reading the planner numbers above it."""
    namespace = Namespace(replace(LIST, number=3))
    with pytest.raises(Stale):
        namespace.projector.check(JOB, LARGE, fresh=False)
    with pytest.raises(Stale):
        namespace.write(LARGE, LIST)
    assert namespace.projector.check(JOB, LARGE, fresh=True)
    assert not namespace.written


def test_the_list_of_a_former_job_of_this_name_goes() -> None:
    namespace = Namespace(replace(LIST, job_uid="former", number=9))
    assert namespace.projector.check(JOB, LARGE, fresh=False)
    namespace.write(LARGE, LIST)
    assert namespace.written == [f"no {LIST_LEASE}", LIST_LEASE, "mnist-round"]


def test_a_list_that_is_gone_is_not_made_again_unasked() -> None:
    """It may have gone with its job."""
    namespace, state = Namespace(), PublishedState()
    namespace.write(LARGE, LIST, state)
    namespace.leases.remove("default", LIST_LEASE, f"lease-{LIST_LEASE}")
    with pytest.raises(Stale):
        namespace.write(LARGE, LIST, state)


def test_what_was_not_found_is_not_what_another_operator_has_made_since() -> None:
    """It was taken for gone for up to two minutes: each pass read, and planned, for nothing (seed 22181)."""
    namespace = Namespace(PLANNED)
    made = namespace._put("mnist-round", {ROUND_ANNOTATION: replace(PLANNED, number=3).dump()})
    made["metadata"]["uid"] = "another"
    namespace.coming = [made]
    asyncio.run(namespace.projector.refresh(JOB))
    found = namespace.round_lease(JOB)
    assert found is not None
    assert (found.uid, found.record) == ("another", replace(PLANNED, number=3))
    namespace.coming = []
    asyncio.run(namespace.projector.refresh(JOB))
    assert namespace.round_lease(JOB) is None


def test_that_members_are_being_replaced_is_written_at_once() -> None:
    """The hooks of those that leave wait for ten seconds, a sentence may wait as long for its write."""
    namespace, state = Namespace(), PublishedState()
    namespace.write(PLANNED, None, state)
    namespace.write(replace(PLANNED, waiting_message="for nothing"), None, state)
    assert namespace.written == ["mnist-round"]
    namespace.write(replace(PLANNED, replacing=True), None, state)
    namespace.write(PLANNED, None, state)
    assert namespace.written == ["mnist-round"] * 3
