"""The operator's process with a stub for its planner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elasticjob_operator.act.paths import job_path
from tests.integration.shell.scene import Scene, eventually

pytestmark = pytest.mark.cluster

STUBBED = """
import sys
sys.path.insert(0, {tests!r})
import functools
from elasticjob_operator import __main__, app
from elasticjob_operator.controller.controller import Controller
from tests.integration.shell.stub import StubPlanner, create_missing
planner = StubPlanner()
planner.number, planner.actions = 2, create_missing
app.Controller = functools.partial(Controller, plan=planner)
sys.argv = ["operator", *{arguments!r}]
__main__.main()
"""


async def test_the_process_writes_nothing_of_its_own_and_ends_on_sigterm(
    scene: Scene, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    script = STUBBED.format(
        tests=str(Path(__file__).parents[3]), arguments=["-n", scene.namespace, "--verbose"]
    )
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        job = await scene.make_job()
        await scene.round_is(2, "Broken")
        after = await scene.job()
        for meta in (job["metadata"], after["metadata"]):
            del meta["resourceVersion"], meta["managedFields"]
        assert after["metadata"] == job["metadata"], "nothing was written into the user's object"
        await scene.admin.delete(job_path(scene.namespace, "mnist"))
        second = await scene.make_job()

        async def anew() -> bool:
            record = await scene.record()
            return record is not None and record.job_uid == second["metadata"]["uid"]

        await eventually(anew, "the job made anew is served")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        # Else it waits 5 s for what has not ended by itself.
        assert "Hung tasks stopping is skipped: no tasks given." in log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        print(log.read_text())
