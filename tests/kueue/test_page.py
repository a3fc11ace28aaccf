"""What the page on Kueue shows is accepted by the API server and Kueue; its commands do what it says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from devcluster.cluster import Cluster
from devcluster.kueue import Kueue
from tests import docs_commands
from tests.docs_commands import ROOT
from tests.e2e.job import Operator
from tests.integration.lifecycle_job import PlayedJob
from tests.kueue.queued_job import all_run, apply
from tests.kueue.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

PAGE = ROOT / "docs" / "use" / "kueue.md"
SHOWN = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def kind(block: str) -> str:
    return str(yaml.safe_load(block)["kind"])


def test_the_page_shows_a_job_and_a_queue() -> None:
    assert [kind(block) for block in SHOWN] == ["ElasticJob", "ClusterQueue"]


@pytest.mark.parametrize("block", SHOWN, ids=kind)
def test_what_the_page_shows_is_accepted(
    kueue: Kueue, installed: Cluster, namespace: str, block: str
) -> None:
    del kueue
    command = ("create", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-")
    installed.kubectl(*command, input=block)


def test_workloads_that_no_operator_serves_are_found_and_let_go_by_hand(
    stage: Stage, played: PlayedJob, operator: Operator, installed: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "kubectl").symlink_to(installed.kubectl_binary)
    reader = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(installed.kubeconfig),
        "NAMESPACE": played.namespace,
    }

    def words(document: str, name: str, **variables: str) -> str:
        return docs_commands.run(ROOT / document, name, {**reader, **variables})

    apply(stage, played)
    all_run(played)
    names = [one.name for one in stage.of_job(played).values()]
    played.wait_for(lambda: stage.used("a") == 4, "Kueue has counted them")
    operator.stop()
    played.delete()
    played.no_pods()
    played.wait_for(
        lambda: all(one.deleting for one in stage.of_job(played).values()), "Kubernetes deletes them"
    )
    assert stage.used("a") == 4, "the finalizer holds that up"
    left = words("docs/use/kueue.md", "left")
    for name in names:
        assert name in left
        words("docs/use/kueue.md", "let-go", WORKLOAD=name)
    played.wait_for(lambda: not stage.of_job(played), "no Workload is left")
    played.wait_for(lambda: stage.used("a") == 0, "no quota is used")
