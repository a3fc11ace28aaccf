"""Why a round's workers failed, as this agent reports it.

Two sources are combined. The times come from our own thread (``exits``): the first worker that ended
with a status other than 0 counts, because the others were stopped for it. Exit code and message come from
torch's own result (``torch_agent``). Either source is enough; without both, the report says "exit code
unknown".

A worker that was stopped must not count as a failure: all that end after
:meth:`RoundWorkers.mark_stopping` were stopped.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from torch.distributed.elastic.agent.server.api import ElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException

from elasticjob.contract.reports import MAX_MESSAGE, FailureReport
from elasticjob.contract.text import NO_ERROR_TEXT
from elasticjob.workers import processes
from elasticjob.workers.exits import WorkerExit, WorkerExitWatcher
from elasticjob.workers.leftovers import Ending, Leftovers
from elasticjob.workers.torch_agent import AgentWorker, AgentWorkers, FailedWorker
from elasticjob.workers.worker_list import write_list

logger = logging.getLogger(__name__)

UNKNOWN = "exit code unknown"
EXIT_WATCH_SECONDS = 0.2
"""torch has stopped all workers when it is asked why they failed; the thread gets this long to see it."""
CGROUP = Path("/sys/fs/cgroup")


class RoundWorkers:
    """The workers that ``agent`` starts for one round; made when its barrier has been passed. ``folder`` is
    the round's own.

    No method raises, and only ``failure`` waits.
    """

    def __init__(self, agent: ElasticAgent | None, folder: str = "") -> None:
        self._barrier_at = time.monotonic()
        self._round_ended_at: float | None = None
        self._stopping_since: float | None = None
        self._succeeded = False
        self._asked_at = self._healthy_at = 0.0
        self._oom_kills = oom_kills()
        self._exits: WorkerExitWatcher | None = None
        self._listed = AgentWorkers(None)
        self._folder = folder
        self._error_files: dict[int, str] = {}
        self._said_that_in_files = False
        self._leftovers = Leftovers(folder)
        try:
            if agent is not None:
                self._listed = AgentWorkers(agent)
                self._exits = WorkerExitWatcher(self._pids, self._inspect)
                self._exits.start()
        except SignalException:
            raise
        except Exception:
            logger.debug("cannot watch the workers", exc_info=True)
            self._exits = None

    def listed(self) -> tuple[AgentWorker, ...]:
        """The workers, none before they are started."""
        try:
            return self._listed() or ()
        except SignalException:
            raise
        except Exception:
            logger.debug("cannot list the workers", exc_info=True)
            return ()

    def round_ended(self) -> None:
        """The round is over by its record: a failure from now on is not its cause."""
        self._round_ended_at = self._round_ended_at or time.monotonic()

    def mark_stopping(self) -> None:
        """torch, or this agent, now stops the workers: their ends are no failures."""
        self._stopping_since = self._stopping_since or time.monotonic()

    def mark_succeeded(self) -> None:
        """torch has found that all have ended with 0."""
        self._succeeded = True

    def mark_healthy(self) -> None:
        """torch asks for waiting nodes, which it does after each check that found no failed worker."""
        self._healthy_at, self._asked_at = self._asked_at, time.monotonic()

    def has_ended_well(self, local_rank: int | None) -> bool:
        """Whether this worker has ended with 0, as far as is known; for None, whether all have.

        Where torch took the status first, it was 0 if torch has looked since and goes on: after a failure it
        would end the others, and ask no more.
        """
        if self._succeeded or self._exits is None:
            return self._succeeded
        return any(
            end.local_rank == local_rank
            and (end.exit_code == 0 or (end.exit_code is None and end.at < self._healthy_at))
            for end in self._exits.exits(0)
        )

    def end_leftovers(self, number: int, spared: Collection[int]) -> Ending | None:
        """Begin to end what the workers, which torch has stopped, have left behind in round ``number``; None
        if they left nothing."""
        try:
            found = self._leftovers.find(self.listed(), spared)
            return Ending(number, found) if found else None
        except SignalException:
            raise
        except Exception:
            logger.warning("cannot look for what the workers have left behind", exc_info=True)
            return None

    def close(self) -> None:
        """Watch no longer."""
        self._listed.close()
        if self._exits is not None:
            self._exits.stop()

    def _pids(self) -> dict[int, int] | None:
        workers = self._listed()
        if workers is None:
            return None
        write_list(self._folder, workers)
        self._find_error_files(workers)
        return {worker.local_rank: worker.pid for worker in workers}

    def _inspect(self) -> None:
        workers = self.listed()
        self._find_error_files(workers)
        self._leftovers.remember(workers)

    def _find_error_files(self, workers: Sequence[AgentWorker]) -> None:
        """A warm worker has its own only after a while."""
        found = {
            worker.local_rank: path
            for worker in workers
            if worker.local_rank not in self._error_files and (path := processes.error_file(worker.pid))
        }
        self._error_files |= found
        if self._said_that_in_files:
            return
        in_files = [*found.values(), *filter(None, (processes.output_file(one.pid) for one in workers))]
        if in_files:
            self._said_that_in_files = True
            logger.info(
                "the workers' output goes into files, such as %s. torch removes them when the next round "
                "starts: to keep them, let the script write to a file with ELASTICJOB_ROUND in its name",
                in_files[0],
            )

    def failure(self, number: int, group_rank: int, failures: Sequence[FailedWorker]) -> FailureReport | None:
        """The report on the first worker that failed, None if none did before they were stopped."""
        try:
            return self._failure(number, group_rank, failures)
        except SignalException:
            raise
        except Exception:
            logger.debug("cannot describe the failure of a worker", exc_info=True)
            return FailureReport(
                number, group_rank, UNKNOWN, after_round_end=self._round_ended_at is not None
            )

    def _failure(
        self, number: int, group_rank: int, failures: Sequence[FailedWorker]
    ) -> FailureReport | None:
        by_pid = {failed.pid: failed for failed in failures}
        end = self._first_exit(by_pid)
        if end is None and self._stopping_since is not None:
            return None
        failed = by_pid.get(end.pid) if end is not None else first_noticed(failures)
        code: int | None = None
        if end is not None and end.exit_code is not None:
            code = end.exit_code
        elif failed is not None:
            code = failed.exit_code
        text = failed.text if failed is not None else ""
        local_rank = failed.local_rank if failed is not None else end.local_rank if end is not None else None
        path = "" if local_rank is None else self._error_files.get(local_rank, "")
        after_round_end = self._round_ended_at is not None and (end is None or end.at >= self._round_ended_at)
        return FailureReport(
            number,
            group_rank,
            describe(code, text, self._new_oom_kills(), path),
            code,
            local_rank,
            None if end is None else round((end.at - self._barrier_at) * 1000),
            after_round_end,
        )

    def _first_exit(self, by_pid: dict[int, FailedWorker]) -> WorkerExit | None:
        """The first worker that is known to have failed, by itself."""
        for end in self._exits.exits(EXIT_WATCH_SECONDS) if self._exits is not None else ():
            if self._stopping_since is not None and end.at >= self._stopping_since:
                return None
            if end.exit_code or (end.exit_code is None and end.pid in by_pid):
                return end
        return None

    def _new_oom_kills(self) -> int:
        now = oom_kills()
        return 0 if now is None or self._oom_kills is None else now - self._oom_kills


def first_noticed(failures: Sequence[FailedWorker]) -> FailedWorker | None:
    """torch's first failure. Its times are whole seconds, and it lists the workers that it stopped, too."""
    return min(
        failures,
        key=lambda f: (f.exit_code == -signal.SIGTERM, f.noticed, f.local_rank),
        default=None,
    )


def describe(code: int | None, text: str, new_oom_kills: int = 0, error_file: str = "") -> str:
    """A sentence about the failure: the exception if it is known, otherwise how the process ended, and the
    file that has its output, if that is not in the pod's log."""
    if code is None:
        end = UNKNOWN
    elif code < 0:
        end = f"killed by {signal_name(-code)}"
    elif name := shell_signal(code):
        end = f"exit code {code} ({name}, as reported by a shell)"
    else:
        end = f"exit code {code}"
    if new_oom_kills > 0 and code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        end += ": out of memory (the container's count of OOM kills increased)"
    if error_file and not text:
        end += f"; its output is in {error_file} of the pod"
    if text:
        # Every exception gives an exit code of 1, so that is left out.
        whole = text if code in (None, 1) else f"{end}: {text}"
    elif code is not None and code > 0:
        whole = f"{end}; {NO_ERROR_TEXT}"
    else:
        whole = end
    return whole.encode("utf-8", "replace").decode()[:MAX_MESSAGE]


def signal_name(number: int) -> str:
    """``SIGKILL``; ``signal 40`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def shell_signal(code: int) -> str:
    """The signal that a shell means by its exit code, "" if it means none."""
    name = signal_name(code - 128) if code > 128 else ""
    return name if name.startswith("SIG") else ""


def oom_kills(cgroup: Path = CGROUP) -> int | None:
    """The OOM kills in this container so far; None if the kernel does not count them.

    Kubernetes does not report them while the container's first process, torchrun, lives on.
    """
    for name in ("memory.events", "memory/memory.oom_control"):
        try:
            lines = (cgroup / name).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        for line in lines:
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.isdigit():
                return int(value)
    return None
