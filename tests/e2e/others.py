"""Pods that the operator does not create: made by a Job, a StatefulSet or by hand, met by an ElasticJob."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from devcluster.api import ApiClient, Response
from devcluster.wait import wait_for
from tests.e2e.job import ENVIRONMENT, SCRIPTS, JobRun

INDEX = "batch.kubernetes.io/job-completion-index"


class OthersRun(JobRun):
    """One ElasticJob without template, and the pods that join it."""

    def serve(self, replicas: int, **spec: Any) -> None:
        """Apply the ElasticJob."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.create_job(replicas=replicas, **spec)

    def torchrun(self, script: str = "others_steps.py") -> list[str]:
        """What the user of the backend alone types."""
        return [
            "torchrun",
            "--rdzv-backend=k8s",
            f"--rdzv-endpoint={self.name}",
            "--max-restarts=1000",
            str(SCRIPTS / script),
            str(self.folder),
        ]

    def template(self, command: Sequence[str] | None = None, **spec: Any) -> dict[str, Any]:
        """A pod template with the job's label; ``command`` defaults to training until ``stop()``."""
        container = {
            "name": "train",
            "image": "elasticjob-test",
            "command": list(command or self.torchrun()),
            "env": ENVIRONMENT,
        }
        return {
            "metadata": {"labels": {"elasticjob.dev/job-name": self.name}},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 5, **spec},
        }

    def indexed(
        self, completions: int, restart_policy: str, command: Sequence[str] | None = None, **pod: Any
    ) -> None:
        """Apply a batch/v1 Job with a pod for each index."""
        spec = {
            "completionMode": "Indexed",
            "completions": completions,
            "parallelism": completions,
            "backoffLimit": 20,
            "template": self.template(command, restartPolicy=restart_policy, **pod),
        }
        self.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": self.name}, "spec": spec})

    def pod(self, name: str, command: Sequence[str] | None = None, **spec: Any) -> None:
        """Apply a bare pod."""
        template = self.template(command, **{"restartPolicy": "Never", **spec})
        meta = {"name": name, "labels": template["metadata"]["labels"]}
        self.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]})

    # -- with a pod's own rights ---------------------------------------------------------------------------

    def client(self, pod: str) -> ApiClient:
        """The API server as this pod meets it: by a token of its service account that is bound to it."""
        spec = self.pods()[pod]
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}")
        uid = f"--bound-object-uid={spec['metadata']['uid']}"
        account = spec["spec"]["serviceAccountName"]
        token = self.kubectl("create", "token", account, *bound, uid)
        return ApiClient(self.cluster.server, self.cluster.ca_file, token.strip())

    def leases(self, name: str = "", query: str = "") -> str:
        """A path in the API."""
        base = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        return base + (f"/{name}" if name else "") + (f"?{query}" if query else "")

    def announce(self, client: ApiClient, name: str, holder: str) -> Response:
        """Write the Lease ``name`` as a participant's handler does for the first time."""
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "labels": {"elasticjob.dev/job-name": self.name},
                "annotations": {"elasticjob.dev/participant": "{}"},
            },
            "spec": {"holderIdentity": holder},
        }
        path = self.leases(name, "fieldManager=elasticjob&force=true")
        return client.request("PATCH", path, body, content_type="application/apply-patch+yaml")

    # -- following it --------------------------------------------------------------------------------------

    def ranks(self) -> dict[str, int]:
        """Rank by pod name, as the status has it."""
        return {p["podName"]: p["groupRank"] for p in self.status()["participants"] if "groupRank" in p}

    def ranks_by_index(self) -> dict[int, int]:
        """Rank by completion index, as the status has it; the index is read from the pod."""
        pods = self.pods()
        return {int(pods[pod]["metadata"]["labels"][INDEX]): rank for pod, rank in self.ranks().items()}

    def ranks_in_steps(self, number: int) -> dict[str, int]:
        """Rank by pod name, as the workers themselves logged it."""
        return {s["pod"]: s["rank"] for s in self.steps(number)}

    def pod_of_index(self, index: int) -> str:
        """The live pod of an index."""
        found = [
            name
            for name, pod in self.pods().items()
            if pod["metadata"]["labels"].get(INDEX) == str(index)
            and pod["status"]["phase"] == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]
        assert len(found) == 1, f"index {index} has the live pods {found}"
        return found[0]

    def batch_job_is(self, condition: str, seconds: float = 60.0) -> None:
        """Wait for a condition of the batch/v1 Job."""

        def said() -> bool:
            answer = self.kubectl("get", "job", self.name, "-o", "json")
            conditions = json.loads(answer)["status"].get("conditions", [])
            return any(c["type"] == condition and c["status"] == "True" for c in conditions)

        wait_for(said, seconds, f"the Job is {condition}", interval=0.2)

    def prints(self, pod: str, text: str, seconds: float = 60.0) -> None:
        """Wait until a pod's log has this text."""
        try:
            wait_for(lambda: text in self.log(pod), seconds, f"{pod} prints {text!r}", interval=0.2)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.log(pod)[-4000:]}") from None
