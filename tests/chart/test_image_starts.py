"""The images do their work as a kubelet starts them, on a cluster whose certificates are frugal.

The operator's root file system cannot be written, its user has no name, its environment has what the chart
and the kubelet put there, and its Python verifies strictly (3.13). The certificates lack what only such a
Python asks for: key usages and key identifiers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from charts.generate import MANIFESTS, NAMESPACE
from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.commands import Options
from devcluster.nodeagent.env import PodFacts, Sources, command_line, container_env
from devcluster.wait import wait_for
from elasticjob.contract.names import SERVICE_ACCOUNT_DIR_ENV
from tests.chart import image_root
from tests.dockerfile import ROOT, Build

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.devcluster,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="a root file system of its own needs root"),
    pytest.mark.timeout(600),
]

DEADLINE = 120.0
CRD = ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml"
WRITES_AND_WATCHES = """
from elasticjob.api.connection import connect
from elasticjob.api.leases import HttpLeaseApi
from itertools import islice

import logging, ssl

logging.basicConfig(level="INFO", format="%(message)s")
assert ssl.create_default_context().verify_flags & ssl.VERIFY_X509_STRICT
connection = connect()
lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "strict"}}
for _ in range(2):
    api = HttpLeaseApi(connection, "default")
    api.take_over("strict", {**lease, "spec": {"holderIdentity": "me"}})
    assert [*islice(api.watch("strict"), 2)][1].holder == "me"
"""


@pytest.fixture(scope="module")
def frugal() -> Iterator[Cluster]:
    """A cluster with a bare authority, in which the chart's default objects are."""
    with Cluster(nodes=0, options=Options(bare_authority=True)) as cluster:
        crd.install(cluster, CRD)
        cluster.kubectl("apply", "-f", str(MANIFESTS))
        yield cluster


@pytest.mark.parametrize(
    "user", ["", "1000670000:0"], ids=["the image's user", "a user of OpenShift's choice"]
)
def test_operator(frugal: Cluster, operator_image: Build, tmp_path: Path, user: str) -> None:
    log = tmp_path / "log"
    name = f"operator-{len(user)}"
    with _running(frugal, operator_image, tmp_path, name, user) as (operator, port):
        pool = urllib3.PoolManager(retries=False, timeout=5)

        def ready() -> bool:
            assert operator.poll() is None, log.read_text()
            try:
                return pool.request("GET", f"http://127.0.0.1:{port}/readyz").status == 200
            except urllib3.exceptions.HTTPError:
                return False

        wait_for(ready, DEADLINE, lambda: f"the operator is ready:\n{log.read_text()}")
        template = {
            "spec": {"containers": [{"name": "train", "image": "a", "command": ["torchrun", "a.py"]}]}
        }
        job = {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"replicas": 2, "template": template},
        }
        frugal.kubectl("apply", "-f", "-", input=json.dumps(job))

        def reconciled() -> bool:
            pods = frugal.read(
                f"/api/v1/namespaces/default/pods?labelSelector=elasticjob.dev/job-name={name}"
            )
            path = f"/apis/elasticjob.dev/v1alpha1/namespaces/default/elasticjobs/{name}"
            status = frugal.read(path).get("status", {})
            return len(pods["items"]) == 2 and "WaitingForPods" in json.dumps(status)

        wait_for(reconciled, DEADLINE, lambda: f"the job has its pods and a status:\n{log.read_text()}")
        operator.send_signal(signal.SIGTERM)
        assert operator.wait(timeout=DEADLINE) == 0, log.read_text()
    said = log.read_text()
    assert "Traceback" not in said
    lacks = [line for line in said.splitlines() if "no key usage" in line]
    assert len(lacks) == 1, said
    assert "no authority key identifier" in lacks[0]


@pytest.mark.parametrize("way", ["in a pod", "by a kubeconfig"])
def test_handler(
    frugal: Cluster, operator_image: Build, handler_image: Build, tmp_path: Path, way: str
) -> None:
    """The handler's own requests. The operator's image has what reads a kubeconfig, and a strict Python."""
    image, env = operator_image, {"KUBECONFIG": str(frugal.kubeconfig)}
    if way == "in a pod":
        account = _account(frugal, tmp_path, frugal.admin_token, "default")
        env = {**_way_to_the_server(frugal), SERVICE_ACCOUNT_DIR_ENV: str(account)}
        env["PYTHONPATH"] = str(handler_image.home / "site")
    answer = image.run(["python", "-c", WRITES_AND_WATCHES], **env)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr.count("no authority key identifier") == 1, answer.stderr


def _account(cluster: Cluster, folder: Path, token: str, namespace: str) -> Path:
    """The volume that a kubelet makes of a service account."""
    account = folder / "account"
    account.mkdir(mode=0o755)
    for file, text in (("token", token), ("ca.crt", cluster.ca_file.read_text()), ("namespace", namespace)):
        (account / file).write_text(text)
        (account / file).chmod(0o644)
    return account


def _way_to_the_server(cluster: Cluster) -> dict[str, str]:
    """What a kubelet puts into every environment; the Service itself has no network here."""
    host, _, port = cluster.server.removeprefix("https://").partition(":")
    return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}


@contextmanager
def _running(
    cluster: Cluster, image: Build, folder: Path, name: str, user: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The container of the chart's Deployment, without a node; and its probes' port."""
    every = yaml.safe_load_all(MANIFESTS.read_text())
    (deployment,) = [one for one in every if one and one["kind"] == "Deployment"]
    template: dict[str, Any] = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    # This is what the root below is made like.
    wanted = container["securityContext"]
    assert wanted["readOnlyRootFilesystem"]
    assert not wanted["allowPrivilegeEscalation"]
    assert wanted["capabilities"] == {"drop": ["ALL"]}
    assert template["spec"]["securityContext"]["runAsNonRoot"]
    assert "volumeMounts" not in container

    meta = {**template["metadata"], "name": name, "namespace": NAMESPACE}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(pod))
    pod = cluster.read(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
    bound = ["--bound-object-kind=Pod", f"--bound-object-name={name}"]
    made = cluster.kubectl("-n", NAMESPACE, "create", "token", template["spec"]["serviceAccountName"], *bound)
    account = _account(cluster, folder, made.stdout.strip(), NAMESPACE)
    kubelets = {**_way_to_the_server(cluster), "HOSTNAME": name}
    env = container_env(container, PodFacts(pod, "10.0.0.1", "10.0.0.1"), Sources(), kubelets)
    port = cluster.claim_port()
    command = [
        word.replace(":8080", f":{port}") if "probe" in word else word
        for word in command_line(container, env)
    ]
    root = folder / "root"
    root.mkdir()
    with (folder / "log").open("wb") as log:
        mounts = {image_root.SERVICE_ACCOUNT: account}
        operator = image_root.start(image, root, command, env, mounts, log, user)
    try:
        yield operator, port
    finally:
        operator.kill()
        operator.wait()
        assert list(root.iterdir()) == []
