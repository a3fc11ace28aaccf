"""The status in a real API server: nothing of it is lost, and other tools find what they look for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from devcluster.access import ClusterAccess
from tests.integration.crd.jobs import apply, get, manifest

pytestmark = pytest.mark.cluster


CONDITION = {"lastTransitionTime": "2026-11-21T07:05:00Z", "reason": "NotFinished", "message": ""}
END: dict[str, Any] = {
    "time": "2026-11-21T07:05:59.000001Z",
    "cause": "WorkerFailed",
    "account": "application",
    "ruleName": "spot",
    "message": "a worker of digits-0-0 failed",
    "detectMilliseconds": 1040,
}
STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Training",
            "status": "True",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-11-21T07:05:00.123456Z",
            "reason": "Training",
            "message": "Round 7 runs with 2 members.",
        },
        {**CONDITION, "type": "Complete", "status": "False"},
        {**CONDITION, "type": "Failed", "status": "Unknown", "reason": "NotFailed"},
    ],
    "startTime": "2026-11-21T07:00:00.000001Z",
    "completionTime": "2026-11-21T08:00:00Z",
    "activeSeconds": 3600,
    "terminalState": "Complete",
    "replicas": 2,
    "selector": "elasticjob.dev/job-name=digits",
    "minReplicas": 1,
    "restarts": 5,
    "currentRound": {
        "number": 7,
        "phase": "Active",
        "members": 2,
        "worldSize": 16,
        "leaderPodName": "digits-0-0",
        "startTime": "2026-11-21T07:04:59.000001Z",
        "establishedTime": "2026-11-21T07:04:59.100001Z",
        "cause": "PodLost",
        "account": "infrastructure",
        "message": "digits-1-2 was lost with node b",
        "end": END,
    },
    "participants": [
        {
            "id": "k3x9q2ab",
            "podName": "digits-0-0",
            "podUID": "c7b3ad3e-3dbb-4d43-8e2a-8a0a0a3d9f10",
            "slot": 0,
            "groupRank": 0,
            "nodeName": "a",
            "localWorldSize": 8,
            "state": "Member",
            "message": "",
            "containerRestarts": 1,
        },
        {"id": "m4y0r3bc", "podName": "digits-1-3", "podUID": "d8", "slot": 1, "state": "Joining"},
    ],
    "ignoredPods": [{"podName": "digits-2-0", "message": "participant record: not JSON"}],
    "roundHistory": [
        {
            "number": 7,
            "cause": "PodLost",
            "members": 2,
            "startTime": "2026-11-21T07:04:59.000001Z",
            "end": END,
            "rendezvousMilliseconds": 85,
            "firstStepMilliseconds": 4100,
            "firstStep": 18000,
            "lastStep": 18200,
            "workerStarts": {"warm": 31, "cold": 1, "coldReason": "no warm interpreter was ready"},
            "resumed": {"step": 17999, "from": "Peer", "redoneSteps": 1, "milliseconds": 640},
        }
    ],
    "accounts": [
        {
            "name": "infrastructure",
            "used": 1,
            "maxRestarts": 20,
            "windowSeconds": 86400,
            "charges": [
                {
                    "round": 6,
                    "podName": "digits-1-2",
                    "cause": "NodeLost",
                    "nodeName": "b",
                    "message": "digits-1-2 was lost with node b",
                    "time": "2026-11-21T07:04:58.999999Z",
                }
            ],
        },
        {"name": "application", "used": 0},
        {"name": "preemption", "used": 0},
        {"name": "scaling", "used": 0, "charges": []},
    ],
    "lastFailure": {
        "podName": "digits-1-2",
        "groupRank": 1,
        "exitCode": -9,
        "message": "killed",
        "time": "2026-11-21T07:04:58Z",
        "round": 6,
        "podUID": "c7b3ad3e-3dbb-4d43-8e2a-8a0a0a3d9f11",
        "nodeName": "b",
        "logsCommand": "kubectl -n default logs digits-1-2 -c train",
        "containerRestarts": 1,
    },
    "excludedNodes": [
        {
            "name": "b",
            "untilTime": "2026-11-21T08:04:58.000001Z",
            "message": "2 failures within 1 h",
            "liftedTime": "2026-11-21T07:14:58.000001Z",
        }
    ],
    "progress": {
        "step": 18200,
        "millisecondsPerStep": 412,
        "goodputPercent": 97,
        "lostSeconds": 214,
        "lastReportTime": "2026-11-21T07:05:59.000001Z",
        "lostByCause": [{"cause": "PodLost", "milliseconds": 214000}],
        "roundsWithoutProgress": 1,
    },
    "internal": {
        "version": 2,
        "minReaderVersion": 1,
        "attempts": [0, 3, -1],
        "round": {"nonce": "9f3c", "new": [{}]},
    },
}


@pytest.fixture
def observed(cluster: ClusterAccess, namespace: str) -> str:
    """A namespace with a job `digits` that has a full status."""
    apply(cluster, namespace, manifest(replicas=2))
    job = {**manifest(replicas=2), "status": STATUS}
    cluster.kubectl("replace", "-n", namespace, "--subresource=status", "-f", "-", input=json.dumps(job))
    return namespace


def test_a_full_status_is_kept_to_the_letter(cluster: ClusterAccess, observed: str) -> None:
    assert get(cluster, observed)["status"] == STATUS


def test_the_status_is_no_part_of_what_a_user_applies(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, {**manifest(), "status": STATUS})
    assert get(cluster, namespace)["status"] == {"observedGeneration": -1}, "kstatus: in progress"


def test_columns(cluster: ClusterAccess, observed: str) -> None:
    header, row = cluster.kubectl("get", "-n", observed, "ej").stdout.splitlines()
    assert header.split() == ["NAME", "STATE", "MEMBERS", "REPLICAS", "ROUND", "RESTARTS", "AGE"]
    assert row.split()[:-1] == ["digits", "Training", "2", "2", "7", "5"]
    header, row = cluster.kubectl("get", "-n", observed, "ej", "-o", "wide").stdout.splitlines()
    names = ["CAUSE", "LEADER", "STARTED", "ACTIVE(S)", "STEP", "GOODPUT(%)", "MESSAGE"]
    assert header.split()[-7:] == names
    cause, leader, _, active, step, goodput, *message = row.split()[7:]
    assert [cause, leader, active, step, goodput] == ["PodLost", "digits-0-0", "3600", "18200", "97"]
    training = next(c for c in STATUS["conditions"] if c["type"] == "Training")
    assert " ".join(message) == training["message"]


def test_an_autoscaler_finds_the_pods(cluster: ClusterAccess, observed: str) -> None:
    path = f"/apis/elasticjob.dev/v1alpha1/namespaces/{observed}/elasticjobs/digits/scale"
    scale = json.loads(cluster.kubectl("get", "--raw", path).stdout)
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 2, "selector": "elasticjob.dev/job-name=digits"}
