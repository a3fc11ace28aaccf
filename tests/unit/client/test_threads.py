"""One client for several threads. Each try is a process of its own, so that a crash is an exit code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit.client.server import Server
from tests.unit.client.test_watching import changed, over, told

PROGRAM = """\
import sys, threading
from elasticjob_client import ClientError, Jobs
sys.setswitchinterval(1e-6)
begin = threading.Barrier(8)
with Jobs() as jobs:
    def ask(number):
        begin.wait()
        try:
            (jobs.events, lambda name: list(jobs.watch(name)), jobs.get, jobs.pods)[number % 4]("mnist")
            jobs.get("gone")
        except ClientError:
            pass
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(len(jobs.pods("mnist")))
"""


@pytest.mark.parametrize("attempt", range(3))
def test_the_first_requests_of_several_threads(server: Server, attempt: int) -> None:
    del attempt
    server.put(changed(1))
    server.watches = [told(("MODIFIED", changed(2)), ("MODIFIED", over(3)))] * 2
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
