"""A store, master or lighthouse that is a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.zygote import QUIET


def started(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process in a group of its own, which appends to the log."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env={**os.environ, **QUIET, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


class Coordinator:
    """A process that can be killed and started again with the same address. A context manager."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = command
        self._log = log
        self._environment = environment or {}

    def __enter__(self) -> Coordinator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it."""
        self._process = started(self._command, self._log, self._environment)

    def kill(self) -> None:
        """SIGKILL to it and what it has started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            print("the coordinator had ended by itself", file=sys.stderr, flush=True)
        self._process.wait()
