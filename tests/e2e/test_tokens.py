"""Tokens are replaced, expire and lose what they are bound to, under jobs that train."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from devcluster.api import ApiClient
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from tests import operator_account
from tests.e2e.job import DEADLINE, JobRun, Operator
from tests.integration.pod_identity import token_file

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


def status(cluster: Cluster, namespace: str, token: str) -> int:
    """What a request with this token gets; 403 is the answer to one that is known and may not."""
    client = ApiClient(cluster.server, cluster.ca_file, token)
    return client.request("GET", f"/api/v1/namespaces/{namespace}/pods").status


def unauthorized(cluster: Cluster, offset: int) -> Counter[str]:
    """How many requests were answered with 401, by user agent, from a length of the audit log on."""
    found: Counter[str] = Counter()
    with cluster.audit_log.open("rb") as log:
        log.seek(offset)
        for line in log:
            if b'"code":401' in line and line.endswith(b"\n"):
                found[json.loads(line).get("userAgent", "").partition("/")[0]] += 1
    return found


@pytest.mark.slow
# shows: a token has expired, and another is on disk
# shows: every token is rejected with 401: a new signing key, a deleted account of a template's own
# shows: a token is replaced on disk
# shows: the API server's signing key changes: every token is 401
# shows: the job's service account is deleted
def test_tokens_are_replaced_lose_their_key_and_their_account(
    job: JobRun, operator: Operator, installed: Cluster
) -> None:
    """I5 through all of it, and each time what comes next, a loss, is noticed and mended as ever."""
    job.apply()
    job.training(1, members=2)
    namespace, pods = job.namespace, [job.member(rank)["podName"] for rank in range(2)]
    files = {pod: token_file(installed, namespace, pod) for pod in pods}
    first = {pod: file.read_text() for pod, file in files.items()}
    wait_for(
        lambda: all(file.read_text() != first[pod] for pod, file in files.items()),
        DEADLINE,
        "the files have new tokens",
        interval=0.1,
    )
    assert {status(installed, namespace, token) for token in first.values()} == {403}, "old ones hold, too"

    # A new key: whatever was signed with the old one is 401, for pods and operator.
    offset = installed.audit_log.stat().st_size
    installed.new_signing_key()
    assert {status(installed, namespace, token) for token in first.values()} == {401}
    job.goes_on(1)
    wait_for(
        lambda: {"elasticjob-operator", "kopf"} <= set(unauthorized(installed, offset)),
        DEADLINE,
        lambda: f"both of the operator's clients have met it: {unauthorized(installed, offset)}",
        interval=0.2,
    )
    operator_account.renew(installed, operator.kubeconfig)
    job.kill_worker(pods[1])
    job.training(2, members=2)
    assert unauthorized(installed, offset)["elasticjob-handler"], "the pods have met it, too"
    job.scale(2)
    assert operator.process.poll() is None

    # The account goes: nobody's token is anybody's, and no pod can be made, until the operator needs one.
    before = {pod: file.read_text() for pod, file in files.items()}
    installed.kubectl("-n", namespace, "delete", "serviceaccount", "job-elasticjob")
    wait_for(
        lambda: {status(installed, namespace, token) for token in before.values()} == {401},
        DEADLINE,
        "the tokens are refused",
        interval=0.1,
    )
    job.goes_on(2)
    job.kill_pod(pods[1])
    job.training(3, members=2)
    assert [r["cause"] for r in job.rounds()] == ["Started", "WorkerFailed", "PodLost"]
    assert job.status()["restarts"] == 2
    job.stop()
    job.complete()
