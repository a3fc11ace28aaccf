"""A round of one torchrun whose workers are asked to stop, as by a planned change, without a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.wait import wait_for
from elasticjob.contract.limits import Limits
from elasticjob.core.participant import Membership
from elasticjob.drain.agreement import Drain
from elasticjob.drain.board import StopBoard
from elasticjob.worker.progress import PROGRESS_DIR_ENV
from tests.guides.environment import GuidesEnvironment

DEADLINE = 400.0
"""Seconds after which a wait has hung."""


@dataclass
class Round:
    """``stopped_at`` has the step of each drain that came to its end; ``output`` is what torchrun printed."""

    process: subprocess.Popen[bytes]
    board: StopBoard
    log: Path
    stopped_at: list[int] = field(default_factory=list)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def drain(self) -> int:
        """Ask all workers to stop when they train; returns the step at which they all have."""
        self.wait(self.board.take_part, "all workers ask whether to stop")
        membership = Membership("uid", 1, "n1", "id-0", 0, 1, "127.0.0.1:1", Limits())
        done = threading.Event()

        def stopped(step: int) -> None:
            self.stopped_at.append(step)
            done.set()

        drain = Drain(membership, self.board, stopped, lambda: "")
        drain.start()
        try:
            self.wait(done.is_set, "all workers have stopped")
        finally:
            drain.close()
        return self.stopped_at[-1]

    def wait(self, predicate: Callable[[], bool], message: str) -> None:
        """Wait, unless torchrun ends before."""

        def there() -> bool:
            assert self.process.poll() is None, f"torchrun has ended before {message}: {self.output}"
            return predicate()

        try:
            wait_for(there, DEADLINE, message, interval=0.05)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.output}") from None

    def ends_well(self) -> str:
        """Wait until torchrun has ended with 0; returns what was printed."""
        assert self.process.wait(DEADLINE) == 0, self.output
        return self.output

    def terminate(self) -> int:
        """SIGTERM to torchrun, which sends it to its workers; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)


@contextmanager
def started(
    guides: GuidesEnvironment,
    script: Path,
    number: int,
    ranks: int = 2,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Round]:
    """torchrun with this many ranks as round ``number`` of a job; it is gone in the end."""
    folder = script.parent / f"round-{number}"
    folder.mkdir()
    log = folder / "output"
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "ELASTICJOB_ROUND": str(number),
        PROGRESS_DIR_ENV: str(folder),
        "CHECKPOINTS": str(script.parent / "checkpoints"),
        **(environment or {}),
    }
    command = [guides.launcher, "--standalone", f"--nproc-per-node={ranks}", str(script)]
    board = StopBoard(str(folder), ranks)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=variables,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Round(process, board, log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        board.close()
