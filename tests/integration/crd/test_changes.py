"""What of a job can be changed after it was created, and what cannot."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from crds import generate
from devcluster.access import ClusterAccess
from tests.integration.crd.jobs import (
    CONTAINER,
    FULL,
    TEMPLATE,
    apply,
    get,
    manifest,
    refusal,
    template,
    worded,
)

pytestmark = pytest.mark.cluster


def test_the_template_is_immutable(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, manifest(template=TEMPLATE))
    changed = refusal(cluster, namespace, manifest(template=template(nodeName="b")))
    assert "spec.template: Invalid value: template may only be changed while suspend is true" in changed
    removed = refusal(cluster, namespace, manifest())
    assert "template may not be added or removed" in removed
    apply(cluster, namespace, manifest(replicas=2, minReplicas=1, template=TEMPLATE))
    assert get(cluster, namespace)["spec"]["replicas"] == 2


def test_a_template_cannot_be_added(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, manifest())
    assert "template may not be added or removed" in refusal(cluster, namespace, manifest(template=TEMPLATE))


def running(cluster: ClusterAccess, namespace: str, **spec: Any) -> dict[str, Any]:
    """Apply a job with all fields and then these changed; the object as it is now."""
    apply(cluster, namespace, manifest(**FULL))
    apply(cluster, namespace, manifest(**{**FULL, **spec}))
    return get(cluster, namespace)


MAY_CHANGE: dict[str, Any] = {
    "replicas": 5,
    "minReplicas": 4,
    "maxReplicas": 9,
    "spares": 2,
    "warmWorkers": {"enabled": False, "imports": ["datasets"]},
    "memoryCheckpoints": {"perPod": 1000, "copies": 0, "spread": "None"},
    "rendezvous": {"rejoinTimeoutSeconds": 90, "lastCallTimeoutSeconds": 1},
    "scaling": {"sizes": [1, 2, 5], "scaleUpDelaySeconds": 1, "paybackSeconds": 300},
    "failurePolicy": {"rules": [], "hangTimeoutSeconds": 60, "idleDeadlineSeconds": 60},
    "suspend": True,
    "drainSeconds": 0,
    "activeDeadlineSeconds": 60,
    "ttlSecondsAfterFinished": 60,
    "cleanPodPolicy": "All",
    "handlerSource": "Image",
    "networkPolicy": "None",
}
MAY_NOT_CHANGE: dict[str, tuple[Any, str]] = {
    "nprocPerNode": (
        8,
        "spec.nprocPerNode: Invalid value: 8: nprocPerNode may not be changed; delete the job and apply it "
        "again, it resumes from its checkpoint",
    ),
    "gangScheduling": (
        "None",
        "spec.gangScheduling: Invalid value: may only be changed while suspend is true, because a pod "
        "cannot change its PodGroup",
    ),
    "managedBy": (
        "kueue.x-k8s.io/multikueue",
        'spec.managedBy: Invalid value: "kueue.x-k8s.io/multikueue": managedBy may not be changed; delete '
        "the job and apply it again",
    ),
    "template": (
        template(nodeName="b"),
        "spec.template: Invalid value: template may only be changed while suspend is true, and then only "
        "labels, annotations, nodeSelector, tolerations, affinity and schedulingGates; for any other change "
        "delete the job and apply it again, it resumes from its checkpoint",
    ),
}


def test_every_field_either_may_change_or_may_not() -> None:
    """A new field has to choose."""
    crd_file = yaml.safe_load(generate.CRD_FILE.read_text())
    schema = crd_file["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert set(schema["properties"]["spec"]["properties"]) == set(MAY_CHANGE) | set(MAY_NOT_CHANGE)
    assert set(FULL) == set(MAY_CHANGE) | set(MAY_NOT_CHANGE)


@pytest.mark.parametrize("field", MAY_CHANGE)
def test_may_change_while_the_job_runs(cluster: ClusterAccess, namespace: str, field: str) -> None:
    spec = running(cluster, namespace, **{field: MAY_CHANGE[field]})["spec"]
    if isinstance(MAY_CHANGE[field], dict):
        assert MAY_CHANGE[field].items() <= spec[field].items()
    else:
        assert spec[field] == MAY_CHANGE[field]


@pytest.mark.parametrize("field", [*MAY_CHANGE, "managedBy"])
def test_may_be_removed_while_the_job_runs(cluster: ClusterAccess, namespace: str, field: str) -> None:
    """What is absent then is the default again: for managedBy that is this operator, as before."""
    full = {**FULL, "replicas": 2}
    apply(cluster, namespace, manifest(**full))
    without = {key: value for key, value in full.items() if key != field}
    if field == "replicas":
        without["minReplicas"] = 1  # the default is 1, too
    apply(cluster, namespace, manifest(**without))
    apply(cluster, namespace, manifest(**full))


@pytest.mark.parametrize("field", MAY_NOT_CHANGE)
def test_may_not_change(cluster: ClusterAccess, namespace: str, field: str) -> None:
    value, message = MAY_NOT_CHANGE[field]
    apply(cluster, namespace, manifest(**FULL))
    assert worded(cluster, message) in refusal(cluster, namespace, manifest(**{**FULL, field: value}))


PLACED: dict[str, Any] = {
    "metadata": {"labels": {"queue": "a"}, "annotations": {"admitted": "yes"}},
    "spec": {
        **TEMPLATE["spec"],
        "nodeSelector": {"pool": "spot"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "schedulingGates": [{"name": "example.com/gate"}],
    },
}
"""The template with what a queue may inject."""
SIDECAR = {"name": "logs", "image": "logs"}
TWO: dict[str, Any] = {"spec": {**TEMPLATE["spec"], "containers": [CONTAINER, SIDECAR]}}
NOT_PLACEMENT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an image": (
        TEMPLATE,
        {"spec": {**TEMPLATE["spec"], "containers": [{**CONTAINER, "image": "other"}]}},
        "spec.template.spec.containers: Invalid value",
    ),
    "a field added": (
        TEMPLATE,
        template(nodeName="b"),
        "only affinity, nodeSelector, schedulingGates and tolerations of the pod may be added, changed",
    ),
    "a field changed": (
        template(nodeName="a"),
        template(nodeName="b"),
        'spec.template.spec.nodeName: Invalid value: "b": may not be changed; delete the job',
    ),
    "another container": (TWO, TEMPLATE, "spec.template.spec.containers: Invalid value"),
    "the order of containers": (
        TWO,
        {"spec": {**TEMPLATE["spec"], "containers": [SIDECAR, CONTAINER]}},
        "the first container may not be changed",
    ),
    "the container that trains": (
        TWO,
        {**TWO, "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "logs"}}},
        "the annotation kubectl.kubernetes.io/default-container may not be changed",
    ),
}


def test_pods_are_placed_together_from_the_next_start_on(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, manifest(template=TEMPLATE))
    apply(cluster, namespace, manifest(template=TEMPLATE, suspend=True))
    apply(cluster, namespace, manifest(template=TEMPLATE, suspend=True, gangScheduling="Kubernetes"))
    apply(cluster, namespace, manifest(template=TEMPLATE, gangScheduling="Kubernetes"))
    assert get(cluster, namespace)["spec"]["gangScheduling"] == "Kubernetes"


def test_a_queue_places_a_job_while_it_is_suspended_and_as_it_admits_it(
    cluster: ClusterAccess, namespace: str
) -> None:
    apply(cluster, namespace, manifest(template=TEMPLATE, suspend=True))
    apply(cluster, namespace, manifest(template=PLACED, suspend=True))
    pod = get(cluster, namespace)["spec"]["template"]["spec"]
    assert {name: pod[name] for name in generate.MAY_CHANGE} == {
        name: PLACED["spec"][name] for name in generate.MAY_CHANGE
    }
    apply(cluster, namespace, manifest(template=TEMPLATE, suspend=True))
    apply(cluster, namespace, manifest(template=PLACED, suspend=False))
    assert "template may only be changed while suspend is true" in refusal(
        cluster, namespace, manifest(template=TEMPLATE)
    )
    apply(cluster, namespace, manifest(template=TEMPLATE, suspend=True))
    apply(cluster, namespace, manifest(template=TEMPLATE, suspend=False))


@pytest.mark.parametrize("suspended", [True, False], ids=["suspended", "running"])
@pytest.mark.parametrize(("before", "after", "message"), NOT_PLACEMENT.values(), ids=list(NOT_PLACEMENT))
def test_all_but_the_placement_of_pods_is_immutable(
    cluster: ClusterAccess,
    namespace: str,
    before: dict[str, Any],
    after: dict[str, Any],
    message: str,
    suspended: bool,
) -> None:
    apply(cluster, namespace, manifest(template=before, suspend=suspended))
    assert worded(cluster, message) in refusal(
        cluster, namespace, manifest(template=after, suspend=suspended)
    )


def test_a_number_of_processes_can_be_neither_added_nor_removed(
    cluster: ClusterAccess, namespace: str
) -> None:
    apply(cluster, namespace, manifest(name="none"))
    expected = "nprocPerNode may not be added or removed; delete the job and apply it again"
    assert expected in refusal(cluster, namespace, manifest(name="none", nprocPerNode=2))
    apply(cluster, namespace, manifest(name="two", nprocPerNode=2))
    assert expected in refusal(cluster, namespace, manifest(name="two"))


def test_a_job_is_not_handed_over(cluster: ClusterAccess, namespace: str) -> None:
    other = {"managedBy": "kueue.x-k8s.io/multikueue"}
    apply(cluster, namespace, manifest(name="ours"))
    expected = "managedBy may not be added or removed; delete the job and apply it again"
    assert expected in refusal(cluster, namespace, manifest(name="ours", **other))
    apply(cluster, namespace, manifest(name="theirs", **other))
    assert expected in refusal(cluster, namespace, manifest(name="theirs"))


def test_scale(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, manifest(replicas=2, minReplicas=2, maxReplicas=4))
    scale = ("scale", "-n", namespace, "ej/digits")
    cluster.kubectl(*scale, "--replicas=3")
    assert get(cluster, namespace)["spec"]["replicas"] == 3
    too_many = cluster.kubectl(*scale, "--replicas=5", check=False)
    assert "replicas (5) must be less than or equal to maxReplicas (4)" in too_many.stderr
    too_few = cluster.kubectl(*scale, "--replicas=1", check=False)
    assert "replicas (1) must be greater than or equal to minReplicas (2)" in too_few.stderr
