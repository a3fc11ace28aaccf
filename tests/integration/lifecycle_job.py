"""A job with real pods, whose participants are played: what the tests of a job's lifecycle do with it."""

from __future__ import annotations

import json
import time
from typing import Any

from devcluster.access import ClusterAccess
from elasticjob.contract.names import (
    DRAIN_ANNOTATION,
    JOB_LABEL,
    PARTICIPANT_ANNOTATION,
    PROGRESS_ANNOTATION,
    REPORT_ANNOTATION,
    ROUND_ANNOTATION,
    round_lease,
)
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import DrainReport, ProgressReport, RoundReport
from elasticjob.contract.round_record import RoundRecord
from tests.cluster_job import ClusterJob

DEADLINE = 60.0
SLEEPS = "trap 'exit 0' TERM; sleep 600 & wait"
"""A container that ends at SIGTERM: its first process has to ask for that signal."""
ENDS_SLOWLY = "trap 'sleep 4; exit 0' TERM; while :; do sleep 0.2; done"
"""A container that takes its time after SIGTERM."""


class PlayedJob(ClusterJob):
    """One ElasticJob; its pods run a shell, and ``join`` announces them as their handlers would."""

    deadline = DEADLINE

    def __init__(self, cluster: ClusterAccess, namespace: str, name: str = "job") -> None:
        super().__init__(cluster, namespace, name)
        self._joins = 0

    def apply(self, script: str = SLEEPS, pod: dict[str, Any] | None = None, **spec: Any) -> None:
        """Make the job."""
        self.create_job({"command": ["sh", "-c", script]}, pod=pod, **spec)

    def is_true(self, kind: str) -> None:
        """Wait for a condition as people do."""
        self.kubectl("wait", f"ej/{self.name}", f"--for=condition={kind}", f"--timeout={DEADLINE:.0f}s")

    def reads(self, kind: str, reason: str) -> dict[str, Any]:
        """Wait until a condition has this reason; returns it."""
        self.wait_for(lambda: self.condition(kind).get("reason") == reason, f"{kind} has the reason {reason}")
        return self.condition(kind)

    def labelled(self, kind: str) -> list[dict[str, Any]]:
        """All objects of a kind that bear the job's label."""
        answer = self.kubectl("get", kind, "-l", f"{JOB_LABEL}={self.name}", "-o", "json")
        found: list[dict[str, Any]] = json.loads(answer)["items"]
        return found

    def runs(self, *names: str) -> None:
        """Wait until exactly these pods are there and not on their way out, and run."""

        def done() -> bool:
            live = {n: p for n, p in self.pods().items() if "deletionTimestamp" not in p["metadata"]}
            return set(live) == set(names) and all(p["status"]["phase"] == "Running" for p in live.values())

        self.wait_for(done, f"{', '.join(names)} run")

    def no_pods(self) -> None:
        """Wait until there are none."""
        self.wait_for(lambda: not self.pods(), "no pods are left")

    def join(self, *names: str) -> None:
        """Announce these pods, with new ids."""
        for name in names:
            self._joins += 1
            seen = self._record()
            record = ParticipantRecord(
                f"id{self._joins}{time.monotonic_ns()}",
                "Joining",
                "10.0.0.1:4000",
                seen_job_uid=seen.job_uid if seen else "",
                seen_round=seen.number if seen else 0,
            )
            self._lease(name, {PARTICIPANT_ANNOTATION: record.dump()})

    def round(self, number: int) -> dict[str, Any]:
        """Wait until this round is formed, and let its leader report it established; returns it."""
        self.wait_for(
            lambda: self.status().get("currentRound", {}).get("number") == number, f"round {number}"
        )
        status = self.status()
        report = RoundReport(status["internal"]["round"]["nonce"], established=True)
        self._lease(status["currentRound"]["leaderPodName"], {REPORT_ANNOTATION: report.dump()})
        self.is_true("Training")
        found: dict[str, Any] = self.status()["currentRound"]
        return found

    def drain(self, stopped: int = 0) -> None:
        """The leader says that all workers take part in drains, or have ``stopped`` at this step."""
        status = self.status()
        report = DrainReport(status["internal"]["round"]["nonce"], bool(stopped), stopped)
        self._lease(status["currentRound"]["leaderPodName"], {DRAIN_ANNOTATION: report.dump()})

    def steps(self, first: int, step: int, seconds: float) -> None:
        """The leader says that its round has trained from its first step to this one, for so long."""
        self.report_steps(first, step, seconds)
        self.wait_for(lambda: self.status().get("progress", {}).get("step") == step, f"step {step}")

    def report_steps(self, first: int, step: int, seconds: float) -> None:
        """The same, and nobody waits until the status has it: that may take a minute."""
        status = self.status()
        nonce = status["internal"]["round"]["nonce"]
        report = ProgressReport(nonce, first, step, 0, round(seconds * 1000))
        self._lease(status["currentRound"]["leaderPodName"], {PROGRESS_ANNOTATION: report.dump()})

    def charges(self) -> dict[str, int]:
        """How many charges each account has."""
        return {a["name"]: len(a.get("charges", [])) for a in self.status()["accounts"]}

    def _record(self) -> RoundRecord | None:
        """What the round Lease says, None before it is there."""
        name = round_lease(self.name)
        found = self.cluster.read(f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{name}")
        text = found.get("metadata", {}).get("annotations", {}).get(ROUND_ANNOTATION)
        return RoundRecord.parse(text) if text else None

    def _lease(self, pod: str, annotations: dict[str, str]) -> None:
        uid = self.pods()[pod]["metadata"]["uid"]
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": pod,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}],
                "namespace": self.namespace,
                "labels": {JOB_LABEL: self.name},
                "annotations": annotations,
            },
            "spec": {"holderIdentity": uid},
        }
        manager = f"--field-manager={next(iter(annotations)).partition('/')[2]}"
        self.kubectl(
            "apply", "--server-side", manager, "--force-conflicts", "-f", "-", input=json.dumps(body)
        )
