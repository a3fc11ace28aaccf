"""Jobs that make no sense, and a pod that writes garbage, with a real operator and API server.

What is promised is in docs/internals/hostile-input.md.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from devcluster.api import ApiClient
from devcluster.cluster import Cluster
from elasticjob.contract.names import (
    FAILURE_ANNOTATION,
    FINISHED_ANNOTATION,
    JOB_LABEL,
    PARTICIPANT_ANNOTATION,
    PROGRESS_ANNOTATION,
    REPORT_ANNOTATION,
)
from tests.e2e.job import Operator
from tests.integration.lifecycle_job import SLEEPS, PlayedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

TRAIN: dict[str, Any] = {"name": "train", "image": "elasticjob-test", "command": ["sh", "-c", SLEEPS]}


@dataclass(frozen=True)
class Odd:
    """A job that the schema lets pass. ``condition`` and ``event`` are words of what is said of it."""

    template: dict[str, Any]
    condition: str = ""
    event: str = ""
    replicas: int = 1
    runs: bool = False


def pod(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [TRAIN], **fields}}


def container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{**TRAIN, **fields}]}}


ODD = {
    "no-image": Odd(
        container(image=""), "cannot be created: Pod", "spec.containers[0].image: Required value"
    ),
    "no-such-account": Odd(
        pod(serviceAccountName="nobody"),
        'serviceaccount "nobody" not found',
        'serviceaccount "nobody" not found',
    ),
    "no-account-name": Odd(
        pod(serviceAccountName="No Name!"),
        "cannot be written: RoleBinding",
        "subjects[0].name: Invalid value",
    ),
    "no-priority": Odd(
        pod(priorityClassName="first"), "no PriorityClass with name first", "no PriorityClass with name first"
    ),
    "bad-label": Odd(
        {**pod(), "metadata": {"labels": {"team": "not a label!"}}},
        "metadata.labels: Invalid value",
        "PodRejected",
    ),
    "bad-volume": Odd(
        container(volumeMounts=[{"name": "data", "mountPath": "/data"}]),
        'volumeMounts[0].name: Not found: "data"',
    ),
    "token-volume": Odd(
        pod(
            automountServiceAccountToken=False,
            volumes=[{"name": "elasticjob-token", "emptyDir": {}}],
        ),
        'Duplicate value: "elasticjob-token"',
    ),
    "host-port": Odd(
        container(ports=[{"containerPort": 5000, "hostPort": 5000}]), "didn't have free ports", replicas=5
    ),
    "greedy": Odd(container(resources={"requests": {"cpu": "100000"}}), "Insufficient cpu"),
    "misnamed": Odd(
        {**pod(), "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "trian"}}},
        event="is 'trian', but no container has that name; using the first container, 'train'",
        runs=True,
    ),
}


def apply(cluster: Cluster, namespace: str, *jobs: dict[str, Any]) -> None:
    cluster.kubectl(
        "-n",
        namespace,
        "apply",
        "-f",
        "-",
        input=json.dumps({"kind": "List", "apiVersion": "v1", "items": jobs}),
    )


def a_job(name: str, template: dict[str, Any], replicas: int) -> dict[str, Any]:
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "handlerSource": "Image", "template": template},
    }


def items(cluster: Cluster, namespace: str, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        cluster.kubectl("-n", namespace, "get", kind, "-o", "json").stdout
    )["items"]
    return found


# shows: the API server rejects the job's ServiceAccount, Role, RoleBinding or NetworkPolicy
def test_a_job_that_makes_no_sense_gets_a_sentence(
    installed: Cluster, namespace: str, operator: Operator
) -> None:
    """All at once: none of them keeps the operator from the others, nor from a job that makes sense."""
    jobs = [a_job(name, odd.template, odd.replicas) for name, odd in ODD.items()]
    apply(installed, namespace, *jobs, a_job("well", pod(), 1))
    seen: dict[str, str] = {}
    told: dict[str, str] = {}
    running: set[str] = set()
    well = {"well", *(name for name, odd in ODD.items() if odd.runs)}

    def missing() -> list[str]:
        for job in items(installed, namespace, "elasticjobs"):
            training = [c for c in job.get("status", {}).get("conditions", []) if c["type"] == "Training"]
            seen[job["metadata"]["name"]] = training[0]["message"] if training else ""
        for event in items(installed, namespace, "events"):
            name = event["involvedObject"]["name"]
            told[name] = told.get(name, "") + f"{event['reason']}: {event['message']}\n"
        for made in items(installed, namespace, "pods"):
            if made["status"].get("phase") == "Running":
                running.add(made["metadata"]["labels"][JOB_LABEL])
        found = [name for name, odd in ODD.items() if odd.condition not in seen.get(name, "")]
        found += [name for name, odd in ODD.items() if odd.event not in told.get(name, "")]
        return found + [name for name in well if name not in running]

    deadline = time.monotonic() + 90
    while left := missing():
        assert time.monotonic() < deadline, {name: (seen.get(name), told.get(name)) for name in left}
        time.sleep(0.5)
    assert "Traceback" not in operator.log.read_text()


def garbage(choice: random.Random) -> dict[str, str]:
    """One write of a hostile pod: any annotations of its Lease."""
    texts = [
        "[" * 100_000,
        "\x1b[2J\r\nforged",
        "null",
        '{"version":1,"id":"\\ud800\\u001b[31m","state":"Joining","endpoint":"h:1"}',
        '{"version":1,"id":"' + f"{choice.getrandbits(64):x}" + '","state":"Joining","endpoint":"\\n:1"}',
        '{"version":1,"id":"abcdefgh","state":"Joining","endpoint":"h:' + "9" * 3000 + '"}',
        '{"version":1e999,"nonce":NaN,"round":' + "1" * 2000 + "}",
        "x" * choice.choice([10, 5000, 200_000]),
    ]
    keys = choice.sample(
        [
            PARTICIPANT_ANNOTATION,
            FAILURE_ANNOTATION,
            REPORT_ANNOTATION,
            PROGRESS_ANNOTATION,
            FINISHED_ANNOTATION,
        ],
        k=2,
    )
    return {keys[0]: choice.choice(texts), keys[1]: choice.choice(texts[1:-1])}


@pytest.fixture
def bad(installed: Cluster, namespace: str) -> Iterator[PlayedJob]:
    yield PlayedJob(installed, namespace, "bad")
    installed.kubectl("-n", namespace, "delete", "elasticjob", "--all", "--timeout=60s", check=False)


# shows: a pod writes something invalid into its Lease
def test_a_pod_that_writes_garbage_hurts_no_other_job_nor_its_own(
    bad: PlayedJob, installed: Cluster, namespace: str, operator: Operator
) -> None:
    bad.apply(replicas=3, minReplicas=2, rendezvous={"initialLastCallTimeoutSeconds": 5})
    bad.runs("bad-0-0", "bad-1-0", "bad-2-0")
    writes, stop = Writes(installed, namespace), threading.Event()
    uid = bad.pods()["bad-1-0"]["metadata"]["uid"]
    writer = threading.Thread(target=writes.flood, args=("bad-1-0", uid, stop))
    writer.start()
    try:
        good = PlayedJob(installed, namespace, "good")
        good.apply()
        good.runs("good-0-0", "good-1-0")
        good.join("good-0-0", "good-1-0")
        good.round(1)
        bad.join("bad-0-0", "bad-2-0")
        members = bad.round(1)["members"]
    finally:
        stop.set()
        writer.join()
    assert members == 2
    assert writes.sent > 20, writes.sent
    bad.wait_for(
        lambda: [entry["podName"] for entry in bad.status().get("ignoredPods", [])] == ["bad-1-0"],
        "it is named",
    )
    message = bad.status()["ignoredPods"][0]["message"]
    assert message.isprintable()
    assert "is ignored: " in bad.condition("Training")["message"]
    described = installed.kubectl("-n", namespace, "describe", "elasticjob", "bad").stdout
    assert "PodIgnored" in described
    assert "\x1b" not in described
    assert good.status()["currentRound"]["number"] == 1
    assert not good.status().get("ignoredPods")
    log = operator.log.read_text()
    assert "Traceback" not in log
    assert "\x1b" not in log
    assert len(json.dumps(bad.status())) < 20_000


class Writes:
    """What a hostile pod does to its own Lease, as fast as the API server answers."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._api = ApiClient(cluster.server, cluster.ca_file, cluster.admin_token)
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.sent = 0

    def flood(self, name: str, uid: str, stop: threading.Event) -> None:
        choice = random.Random(7)
        end = time.monotonic() + 60
        while not stop.is_set() and time.monotonic() < end:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": name,
                    "labels": {JOB_LABEL: "bad"},
                    "annotations": garbage(choice),
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}],
                },
                "spec": {"holderIdentity": uid},
            }
            path = f"{self._path}/{name}?fieldManager=hostile&force=true"
            answer = self._api.request("PATCH", path, lease, content_type="application/apply-patch+yaml")
            self.sent += answer.ok
