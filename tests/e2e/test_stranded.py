"""One API server of several is lost without a word: the connections that some pods have to it are dead.

New connections reach another server at once. Whoever holds a dead watch hears of no round, and a write on a
dead connection arrives nowhere; nobody who trains well may be taken for lost by that.
"""

from __future__ import annotations

import shlex

import pytest

from devcluster.cluster import Cluster
from tests.e2e.job import SCRIPTS, TORCHRUN, JobRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("script", "slot"),
    [
        pytest.param("steps.py", 1, id="a member whose workers fail with the lost one's"),
        pytest.param("lone_steps.py", 1, id="a member whose workers go on"),
        pytest.param("lone_steps.py", 0, id="the leader"),
    ],
)
def test_nobody_is_lost_with_an_api_server(job: JobRun, installed: Cluster, script: str, slot: int) -> None:
    proxy = installed.proxy()
    way = f"export KUBERNETES_SERVICE_HOST={proxy.host} KUBERNETES_SERVICE_PORT={proxy.port}"
    train = shlex.join([*TORCHRUN, str(SCRIPTS / script), str(job.folder)])
    choose = f"case $ELASTICJOB_POD_NAME in job-{slot}-*) {way};; esac"
    job.apply(replicas=3, command=["sh", "-c", f"{choose}; exec {train}"])
    job.training(1, members=3)
    pods = {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}
    proxy.strand()
    job.kill_pod("job-2-0")
    job.training(2, members=3)
    job.goes_on(job.round()["number"])
    assert [past["cause"] for past in job.rounds()] == ["Started", "PodLost"], job.rounds()
    now = {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}
    assert all(now.get(f"job-{one}-0") == pods[f"job-{one}-0"] for one in (0, 1)), now
    job.stop()
    job.complete()
