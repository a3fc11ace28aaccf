"""An ElasticJob as JSON, read into the planner's words."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob_operator.observe.spec import MalformedJob, read_job, read_spec
from elasticjob_operator.plan.model import JobSpec, Limit, Rendezvous
from elasticjob_operator.plan.status import JobStatus


def raw(**changes: Any) -> dict[str, Any]:
    meta = {"namespace": "a", "name": "j", "uid": "u", "generation": 3, "resourceVersion": "41"}
    return {"metadata": {**meta, **changes.pop("meta", {})}, "spec": {"replicas": 2}, **changes}


def test_empty_spec_is_the_defaults() -> None:
    assert read_spec({}) == JobSpec()


def test_full_spec() -> None:
    template: dict[str, Any] = {"spec": {"containers": []}}
    spec = read_spec(
        {
            "replicas": 4,
            "minReplicas": 2,
            "maxReplicas": 8,
            "nprocPerNode": 2,
            "template": template,
            "rendezvous": {
                "startTimeoutSeconds": 1,
                "lastCallSeconds": 0,
                "rejoinSeconds": 3,
                "establishTimeoutSeconds": 4,
                "heartbeatTimeoutSeconds": 5,
                "joinTimeoutSeconds": 6,
            },
            "failurePolicy": {
                "application": {"maxRestarts": 0, "windowSeconds": 60},
                "infrastructure": {"maxRestarts": 20},
            },
        }
    )
    assert spec == JobSpec(
        replicas=4,
        min_replicas=2,
        max_replicas=8,
        nproc_per_node="2",
        template=template,
        rendezvous=Rendezvous(1, 0, 3, 4, 5, 6),
        application=Limit(0, 60),
        infrastructure=Limit(20, None),
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": None, "rendezvous": None, "failurePolicy": None, "template": None},
        {"replicas": "4", "minReplicas": True, "rendezvous": [], "failurePolicy": {"application": 3}},
        {"replicas": 0, "unknown": {"x": 1}, "nprocPerNode": ""},
    ],
)
def test_what_cannot_be_used_counts_as_absent(spec: dict[str, Any]) -> None:
    assert read_spec(spec) == JobSpec()


def test_job() -> None:
    view = read_job(raw())
    assert (view.job.namespace, view.job.name, view.job.uid, view.job.generation) == ("a", "j", "u", 3)
    assert view.version == 41
    assert view.ours
    assert not view.deleting
    assert view.status == JobStatus()


def test_spec_is_read_once_per_generation() -> None:
    first = read_job(raw())
    same = read_job(raw(meta={"resourceVersion": "42"}), first)
    assert same.job is first.job
    assert same.version == 42
    other = read_job(raw(meta={"generation": 4}), first)
    assert other.job is not first.job
    new = read_job(raw(meta={"uid": "v"}), first)
    assert new.job.uid == "v"


def test_managed_by_others_and_deleting() -> None:
    assert not read_job(raw(spec={"managedBy": "kueue.x-k8s.io/multikueue"})).ours
    assert read_job(raw(spec={"managedBy": "elasticjob.dev/operator"})).ours
    assert read_job(raw(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})).deleting


def test_foreign_status_is_an_error_with_a_sentence() -> None:
    with pytest.raises(MalformedJob, match="a/j: status can't be read"):
        read_job(raw(status={"rounds": [{"number": 1}]}))
