"""The agent's limit of open files, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are Linux's")


def run(script: str) -> None:
    code = "import resource, subprocess, sys\nfrom elasticjob.workers import open_files\n" + textwrap.dedent(
        script
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_agent_raises_its_limit_and_workers_keep_theirs() -> None:
    run(
        """
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, 2048))
        for _ in range(2):
            open_files.raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (2048, 2048)
        worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        open_files.restore_limit([worker.pid, 2**22 - 1])
        assert resource.prlimit(worker.pid, resource.RLIMIT_NOFILE) == (512, 2048)
        worker.communicate(b"\\n")
        """
    )


# shows: more members are wanted, or train, than the leader's limit of open files allows
def test_the_leader_is_told_when_the_limit_will_not_do() -> None:
    run(
        """
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
        assert open_files.shortfall(50, 400) == ""
        assert "1064 open files, but its limit is 1024" in open_files.shortfall(100, 800)
        """
    )
