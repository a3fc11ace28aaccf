"""What is known of each job, and by which version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticjob_operator.act.write_backoff import STATUS
from elasticjob_operator.controller.registry import JobEntry, Registry, Request
from elasticjob_operator.observe.errors import Forbidden
from elasticjob_operator.observe.spec import JobDefaults, MalformedJob
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.status import JobStatus


def job(version: int, name: str = "job", uid: str = "u", **fields: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "here", "uid": uid, "resourceVersion": str(version), "generation": 1}
    meta |= fields.pop("metadata", {})
    return {"metadata": meta, "spec": {"replicas": 2}, "status": {}, **fields}


class Scene:
    def __init__(self) -> None:
        self.changed: list[Request] = []
        self.forgotten: list[Request] = []
        self.registry = Registry(self.changed.append, self.forgotten.append)

    def entry(self, name: str = "job") -> JobEntry:
        entry = self.registry.get("here", name)
        assert entry is not None
        return entry


def test_only_a_newer_version_is_news() -> None:
    scene = Scene()
    for version in (5, 5, 4, 6):
        scene.registry.update(job(version))
    assert scene.changed == [("here", "job", "u")] * 2
    assert scene.entry().view.version == 6


def test_our_own_write_is_newer_than_what_the_watch_brings_of_the_time_before() -> None:
    scene = Scene()
    scene.registry.update(job(5))
    entry, status = scene.entry(), replace(JobStatus(), restarts=1)
    scene.registry.wrote(entry, replace(entry.view, status=status, version=7))
    scene.registry.update(job(6))
    assert (entry.view.version, entry.view.status, entry.covered_status) == (7, status, status)


def test_a_job_that_sets_no_time_to_live_has_that_of_the_operator() -> None:
    registry = Registry(lambda _: None, lambda _: None, JobDefaults(ttl_after_finished=60))
    registry.update(job(5))
    registry.update(job(5, "own", spec={"replicas": 2, "ttlSecondsAfterFinished": 0}))
    entries = {entry.view.job.name: entry for entry in registry}
    assert entries["job"].view.job.spec.ttl_after_finished == 60
    assert entries["own"].view.job.spec.ttl_after_finished == 0
    registry.read_again(entries["job"], job(6))
    assert entries["job"].view.job.spec.ttl_after_finished == 60


def test_a_change_that_is_newer_than_our_own_write_stays() -> None:
    scene = Scene()
    scene.registry.update(job(5))
    before = scene.entry().view
    scene.registry.update(job(9))
    status = replace(JobStatus(), restarts=1)
    scene.registry.wrote(scene.entry(), replace(before, status=status, version=7))
    assert scene.entry().view.version == 9
    assert scene.entry().covered_status == status, (
        "and not that of version 9, which somebody else may have written"
    )


def test_what_was_read_for_a_pass_is_taken_over_and_is_no_news() -> None:
    scene = Scene()
    scene.registry.update(job(5))
    scene.registry.read_again(scene.entry(), job(4, spec={"replicas": 4}))
    assert scene.entry().view.job.spec.replicas == 2
    scene.registry.read_again(scene.entry(), job(6, spec={"replicas": 6}))
    assert scene.entry().view.job.spec.replicas == 6
    assert len(scene.changed) == 1


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"status": {"restarts": 1}}, False),
        ({"metadata": {"generation": 2}}, True),
        ({"metadata": {"labels": {"a": "b"}}}, True),
        ({"metadata": {"annotations": {"a": "b"}}}, True),
    ],
)
def test_writes_that_failed_are_due_again_when_people_have_changed_the_job(
    change: dict[str, Any], again: bool
) -> None:
    scene = Scene()
    scene.registry.update(job(5))
    backoff = scene.entry().state.writes.backoff
    backoff.failed(STATUS, Forbidden("PATCH", 403, "Forbidden", "no"), now=0.0)
    scene.registry.update(job(6, **change))
    assert backoff.due(STATUS, now=0.0) == again


def test_a_job_that_is_created_again_under_the_same_name_is_another_one() -> None:
    scene = Scene()
    scene.registry.update(job(5))
    former = scene.entry()
    scene.registry.update(job(6, uid="v"))
    assert former.gone
    assert scene.forgotten == [("here", "job", "u")]
    assert scene.entry().request == ("here", "job", "v")
    assert scene.registry.find(former.request) is None
    assert scene.registry.find(scene.entry().request) is scene.entry()
    scene.registry.forget(former)
    assert scene.entry().request.uid == "v", "it is not taken for the other"


def test_a_list_that_was_under_way_does_not_bring_back_a_job_that_was_deleted() -> None:
    scene = Scene()
    scene.registry.update(job(5))
    scene.registry.deleted(job(6, uid="other"))
    assert len(scene.registry) == 1
    scene.registry.deleted(job(6))
    scene.registry.update(job(5))
    scene.registry.update(job(7))
    assert len(scene.registry) == 0


def test_a_list_tells_which_jobs_are_gone_unless_they_are_newer_than_it() -> None:
    scene = Scene()
    for name, version in (("there", 5), ("gone", 5), ("newer", 9), ("replaced", 5)):
        scene.registry.update(job(version, name))
    present = {scene.entry("there").request, Request("here", "replaced", "v")}
    gone = scene.registry.forget_others("here", present, version=8)
    assert sorted(entry.request.name for entry in gone) == ["gone", "replaced"]
    assert sorted(entry.request.name for entry in scene.registry) == ["newer", "there"]
    assert scene.registry.forget_others("elsewhere", set(), version=100) == []
    assert len(scene.registry.forget_others("", set(), version=100)) == 2


def test_a_job_that_can_not_be_read_stays_as_it_was() -> None:
    scene = Scene()
    scene.registry.update(job(5))
    with pytest.raises(MalformedJob):
        scene.registry.update(job(6, status={"accounts": 5}))
    assert scene.entry().view.version == 5


def test_participants_that_wait_are_counted_over_all_jobs() -> None:
    scene = Scene()
    for name in ("a", "b"):
        scene.registry.update(job(5, name))
    a, b = scene.entry("a"), scene.entry("b")
    scene.registry.set_waiting(a, 3)
    scene.registry.set_waiting(b, 4)
    scene.registry.set_waiting(a, 1)
    assert scene.registry.waiting == 5
    scene.registry.forget(b)
    assert scene.registry.waiting == 1
    scene.registry.set_waiting(b, 7)
    assert scene.registry.waiting == 1, "a pass over it may still be under way"


def test_the_watch_is_behind_until_it_has_brought_what_was_expected_of_it() -> None:
    scene = Scene()
    scene.registry.update(job(5))
    scene.registry.watched(job(5))
    assert scene.registry.watch_behind_since(10.0) == {}
    scene.registry.update(job(6))
    assert scene.registry.watch_behind_since(11.0) == {"here": 11.0}
    scene.registry.update(job(8))
    assert scene.registry.watch_behind_since(12.0) == {"here": 11.0}, "it still owes version 6"
    scene.registry.watched(job(7))
    assert scene.registry.watch_behind_since(13.0) == {"here": 13.0}, "version 8 counts from now on"
    scene.registry.watched(job(8))
    assert scene.registry.watch_behind_since(14.0) == {}


def test_who_takes_over_relies_on_nothing_that_it_remembers() -> None:
    scene = Scene()
    scene.registry.update(job(5))
    entry, state = scene.entry(), scene.entry().state
    status = replace(JobStatus(), restarts=1)
    scene.registry.update(job(6, status=status_json.dump(status)))
    assert entry.covered_status == JobStatus()
    scene.registry.start_afresh()
    assert entry.state is not state
    assert entry.covered_status == status
