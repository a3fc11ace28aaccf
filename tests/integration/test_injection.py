"""Pods with the handler injected, as a real API server takes them, and the entry point as torch finds it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.access import ClusterAccess, KubectlError
from elasticjob_operator.act.injection import HANDLER_DIR, VOLUME, HandlerImage
from elasticjob_operator.act.refusals import refused_containers
from elasticjob_operator.act.template import pod_of
from elasticjob_operator.plan.state.model import Job, JobSpec
from tests.dockerfile import ROOT, Build

ALLOWED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER: dict[str, Any] = {"name": "train", "image": "any", "securityContext": ALLOWED}


def pod(namespace: str, **spec: Any) -> str:
    """The pod that the operator would make of this template."""
    template = {"spec": {"containers": [CONTAINER], "serviceAccountName": "default", **spec}}
    job = Job(namespace, "job", "uid", 1, JobSpec(template=template))
    return json.dumps(pod_of(job, 0, 0, HandlerImage("handler:1")))


@pytest.mark.cluster
def test_pods_are_admitted_where_the_rules_are_strictest(cluster: ClusterAccess, namespace: str) -> None:
    """The namespace demands the Pod Security Standard `restricted`."""

    def create(**spec: Any) -> str:
        command = ("create", "-n", namespace, "--dry-run=server", "-f", "-")
        return cluster.kubectl(*command, input=pod(namespace, **spec)).stdout

    root: dict[str, Any] = {"securityContext": {"runAsUser": 0}}
    assert "created" in create(**root), "where root may be, it may stay"
    label = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", namespace, label)
    for context in ({"runAsNonRoot": True}, {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000}):
        assert "created" in create(securityContext=context)
    with pytest.raises(KubectlError) as refused:
        create(**root)
    assert VOLUME not in str(refused.value), "what is refused is the template's own"


def limit_range(cluster: ClusterAccess, namespace: str, **limits: Any) -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "limits"},
        "spec": {"limits": [{"type": "Container", **limits}]},
    }
    cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(manifest))


@pytest.mark.cluster
@pytest.mark.parametrize(
    "asked",
    [
        {"requests": {"cpu": "2", "memory": "1Gi"}},
        {"limits": {"cpu": "4", "memory": "2Gi"}},
        {"requests": {"cpu": "2"}, "limits": {"memory": "2Gi"}},
        {"requests": {"cpu": "200m", "memory": "32Mi"}, "limits": {"cpu": "400m", "memory": "64Mi"}},
        {},
    ],
)
def test_a_limit_range_that_takes_the_template_takes_the_handlers_container(
    cluster: ClusterAccess, namespace: str, asked: dict[str, Any]
) -> None:
    """Also by the ratio of limit and request, where it puts in limits for containers that leave them out."""
    half, whole = {"cpu": "2", "memory": "1Gi"}, {"cpu": "4", "memory": "2Gi"}
    ratio = {"cpu": "2", "memory": "2"}
    limit_range(cluster, namespace, default=whole, defaultRequest=half, maxLimitRequestRatio=ratio)
    made = pod(namespace, containers=[{**CONTAINER, "resources": asked}])
    command = ("create", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-")
    spec = json.loads(cluster.kubectl(*command, input=made).stdout)["spec"]
    assert [one["name"] for one in spec["initContainers"]] == [VOLUME]


@pytest.mark.cluster
def test_the_container_that_a_limit_range_refuses_is_named(cluster: ClusterAccess, namespace: str) -> None:
    """In the words of this API server."""

    def refused(**resources: Any) -> str:
        made = pod(namespace, containers=[{**CONTAINER, "resources": resources}])
        with pytest.raises(KubectlError) as error:
            cluster.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", input=made)
        said = str(error.value)
        print(said)
        return refused_containers(said, json.loads(made)["spec"])

    limits = {"min": {"cpu": "500m"}, "max": {"memory": "1Gi"}, "maxLimitRequestRatio": {"memory": "2"}}
    limit_range(cluster, namespace, **limits)
    assert "init container elasticjob-handler, which the operator adds" in refused(requests={"cpu": "1"})
    two = {"cpu": "1", "memory": "2Gi"}
    assert "container train" in refused(requests=two, limits=two)
    apart = {"requests": {"cpu": "1", "memory": "100Mi"}, "limits": {"cpu": "1", "memory": "900Mi"}}
    assert "container train" in refused(**apart)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"volumes": [{"name": VOLUME, "emptyDir": {}}]}, f'spec.volumes.*Duplicate value: "{VOLUME}"'),
        ({"initContainers": [{**CONTAINER, "name": VOLUME}]}, f'initContainers.*Duplicate value: "{VOLUME}"'),
        (
            {
                "volumes": [{"name": "mine", "emptyDir": {}}],
                "containers": [
                    {**CONTAINER, "volumeMounts": [{"name": "mine", "mountPath": HANDLER_DIR}]},
                ],
            },
            f'mountPath: Invalid value: "{HANDLER_DIR}": must be unique',
        ),
    ],
    ids=["volume", "container", "mount"],
)
def test_a_name_that_the_template_has_itself_is_refused_by_name(
    cluster: ClusterAccess, namespace: str, spec: dict[str, Any], why: str
) -> None:
    """The operator says so in an Event, PodRejected: test_a_pod_that_is_refused_holds_up_nothing_else."""
    with pytest.raises(KubectlError, match=why):
        cluster.kubectl(
            "create", "-n", namespace, "--dry-run=server", "-f", "-", input=pod(namespace, **spec)
        )


FINDS = """
import logging, sys, warnings
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
warnings.simplefilter("always")
from importlib.metadata import distributions
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
print(len({str(d.locate_file("")) for d in distributions(name="elasticjob")}))
print(registry._registry["k8s"].__code__.co_filename)
"""


def test_what_is_injected_wins_quietly_over_what_the_image_has(handler_image: Build) -> None:
    """Both are found, in this order; torch sees the entry point of the first alone."""
    site = handler_image.home / "site"
    answer = subprocess.run(
        [sys.executable, "-c", FINDS],
        env={
            **os.environ,
            "PYTHONPATH": str(site),
            "PYTHONDONTWRITEBYTECODE": "1",
        },  # an image does not change
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert answer.stdout.splitlines() == ["2", f"{site}/elasticjob/entry.py"]
    assert "elasticjob" not in answer.stderr
    assert "k8s" not in answer.stderr


HIDES = """
import urllib3
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
from elasticjob.api import http
print(urllib3.__file__)
print(http.urllib3.__file__)
print(registry._registry["k8s"].__code__.co_filename)
"""


def test_the_documented_init_container_hides_no_package_of_the_image(
    handler_image: Build, tmp_path: Path
) -> None:
    """What its script makes has urllib3 inside, as what the operator injects. It may run twice: an emptyDir
    stays when a pod's containers are made again."""
    page = (ROOT / "docs" / "use" / "without-an-operator.md").read_text()
    *_, template = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (container,) = yaml.safe_load(template)["spec"]["initContainers"]
    wheels, handler = tmp_path / "wheels", tmp_path / "handler"
    places = {"/checkpoints": str(wheels), "/handler": str(handler)}
    command = [re.sub("/checkpoints|/handler", lambda m: places[m[0]], word) for word in container["command"]]

    def run(*words: str) -> None:
        path = f"{handler_image.python}/bin:{os.environ['PATH']}"
        subprocess.run(words, cwd=ROOT, env={**os.environ, "PATH": path}, check=True, timeout=240)

    run("pip", "wheel", "--quiet", "--wheel-dir", str(wheels), "./handler")
    run(*command)
    run(*command)
    answer = subprocess.run(
        [sys.executable, "-c", HIDES],
        env={**os.environ, "PYTHONPATH": str(handler)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    scripts, handlers, entry = answer.stdout.splitlines()
    assert not scripts.startswith(str(tmp_path))
    assert handlers == f"{handler}/elasticjob/_vendor/urllib3/__init__.py"
    assert entry == f"{handler}/elasticjob/entry.py"
