"""Jobs, pods and Events as the API server would give them, for tests of what is told of them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=timezone.utc)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def conditions(state: str, message: str, failed: tuple[str, str] | None = None) -> list[dict[str, Any]]:
    training = {"type": "Training", "status": str(state == "Training"), "reason": state, "message": message}
    reason, text = failed or ("NotFailed", "")
    return [training, {"type": "Failed", "status": str(bool(failed)), "reason": reason, "message": text}]


def member(rank: int, pod: str, node: str = "a") -> dict[str, Any]:
    return {
        "id": f"id{rank}",
        "podName": pod,
        "podUID": f"uid-{pod}",
        "slot": int(pod.split("-")[-2]),
        "groupRank": rank,
        "nodeName": node,
        "localWorldSize": 8,
        "state": "Member",
    }


def job(status: dict[str, Any] | None, **spec: Any) -> ElasticJob:
    body: dict[str, Any] = {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "mnist", "namespace": "research", "uid": "u", "creationTimestamp": ago(2520)},
        "spec": {"replicas": 2, **spec},
    }
    if status is not None:
        body["status"] = status
    return ElasticJob.from_dict(body)


LOST = "mnist-1-0 (group rank 1) was lost: its container ended with SIGKILL (exit code 137)"


def after_a_loss(**status: Any) -> ElasticJob:
    """Round 2 trains; round 1 ended when mnist-1-0 was killed."""
    end = {
        "time": ago(120),
        "cause": "PodLost",
        "account": "infrastructure",
        "message": LOST,
        "detectMilliseconds": 1040,
    }
    charge = {"time": ago(120), "cause": "PodLost", "round": 1, "nodeName": "b", "message": LOST}
    return job(
        {
            "conditions": conditions("Training", "round 2 with 2 members, leader mnist-0-0"),
            "startTime": ago(2500),
            "minReplicas": 2,
            "restarts": 1,
            "currentRound": {
                "number": 2,
                "phase": "Active",
                "members": 2,
                "worldSize": 16,
                "leaderPodName": "mnist-0-0",
                "startTime": ago(118),
                "establishedTime": ago(118),
                "cause": "PodLost",
            },
            "participants": [member(0, "mnist-0-0"), member(1, "mnist-1-1", "c")],
            "roundHistory": [
                {
                    "number": 2,
                    "cause": "PodLost",
                    "members": 2,
                    "startTime": ago(118),
                    "rendezvousMilliseconds": 85,
                    "firstStepMilliseconds": 4100,
                    "firstStep": 1801,
                    "lastStep": 2000,
                    "workerStarts": {"warm": 15, "cold": 1, "coldReason": "no warm interpreter was ready"},
                },
                {
                    "number": 1,
                    "cause": "Started",
                    "members": 2,
                    "startTime": ago(2400),
                    "rendezvousMilliseconds": 300,
                    "firstStep": 1,
                    "lastStep": 1850,
                    "end": end,
                },
            ],
            "accounts": [
                {"name": "application", "maxRestarts": 5, "windowSeconds": 3600},
                {"name": "infrastructure", "used": 1, "charges": [charge]},
            ],
            "lastFailure": {
                "podName": "mnist-1-0",
                "podUID": "uid-mnist-1-0",
                "groupRank": 1,
                "nodeName": "b",
                "round": 1,
                "exitCode": 137,
                "message": LOST,
                "time": ago(119),
            },
            "progress": {
                "step": 2000,
                "millisecondsPerStep": 412,
                "goodputPercent": 97,
                "lostSeconds": 75,
                "lostByCause": [
                    {"cause": "Started", "milliseconds": 70000},
                    {"cause": "PodLost", "milliseconds": 4100},
                ],
            },
            **status,
        }
    )


def pod(name: str, phase: str = "Running", **fields: Any) -> Pod:
    slot = int(name.split("-")[-2])
    return Pod(name=name, uid=f"uid-{name}", slot=slot, node="a", phase=phase, container="train", **fields)
