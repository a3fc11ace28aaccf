"""A stock image: torch, an urllib3 of another age, nothing of ours. The operator adds the handler."""

from __future__ import annotations

import json
import sys

import pytest

from elasticjob_operator.act.injection import HANDLER_DIR, IMAGE_DIR
from elasticjob_operator.settings import HANDLER_IMAGE
from tests.dockerfile import Build
from tests.e2e.job import SCRIPTS, JobRun
from tests.matrix.environments import NoEnvironment
from tests.stock import OLD_URLLIB3, THIS, Stock

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.devcluster,
    pytest.mark.root,
    pytest.mark.skipif(sys.platform != "linux", reason="mounts volumes"),
]
OTHERS = [version for version in ("3.10", "3.11", "3.12", "3.13", "3.14") if version != THIS.version]


@pytest.mark.parametrize(
    "version", [THIS.version, *(pytest.param(version, marks=pytest.mark.slow) for version in OTHERS)]
)
def test_a_stock_image_trains(job: JobRun, handler_image: Build, version: str) -> None:
    stock = Stock(version)
    try:
        stock.make()
    except NoEnvironment as missing:
        pytest.skip(str(missing))
    job.cluster.add_image(HANDLER_IMAGE, "/usr/bin", {IMAGE_DIR: handler_image.home / "site"})
    job.cluster.add_image("pytorch/pytorch", stock.bin)
    job.apply(
        handlerSource="Injected",
        pod={
            "containers": [
                {
                    "name": "train",
                    "image": "pytorch/pytorch",
                    "command": ["torchrun", str(SCRIPTS / "stock.py"), str(job.folder)],
                    "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
                }
            ]
        },
    )
    job.complete()
    for rank in range(2):
        found = json.loads((job.folder / f"rank-{rank}.json").read_text())
        assert found["sum"] == 2
        assert found["python"] == version
        assert found["elasticjob"] == f"{HANDLER_DIR}/elasticjob/__init__.py"
        assert found["urllib3"][0] == OLD_URLLIB3, "the image's own is not hidden from the script"
        assert found["urllib3"][1].startswith(str(stock.bin.parent))
        assert found["the handler's urllib3"].startswith(HANDLER_DIR)
        assert found["PYTHONPATH"] == HANDLER_DIR
        print(f"Python {version}, torch {found['torch']}")
    assert [entry["cause"] for entry in job.rounds()] == ["Started"]
    for pod in job.pods().values():
        (copied,) = pod["status"]["initContainerStatuses"]
        assert copied["state"]["terminated"]["exitCode"] == 0
    assert not job.events("PythonPathReplaced")
    assert "is not registered" not in job.log("job-0-0")
