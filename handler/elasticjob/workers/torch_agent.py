"""Finds what torch's agent knows about its workers: their pids, and why they failed.

torch passes neither to a rendezvous handler. But the agent is on the call stack when it calls
``next_rendezvous``, next to the result that led to the call; and when it gives up, it calls ``shutdown``
while its ChildFailedError propagates. The classes and ``get_worker_group`` are public in torch, the same from
2.4 to 2.15. That they are on the stack is not guaranteed, so each function here may find nothing
(docs/internals/worker-failures.md has the alternatives, measured).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType

from torch.distributed.elastic.agent.server.api import ElasticAgent, RunResult
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from elasticjob.workers import processes

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FailedWorker:
    """A worker that torch found failed. ``text`` is from its error file, "" if it wrote none.

    Among them are workers that torch itself stopped because another had failed.
    """

    local_rank: int
    pid: int
    exit_code: int
    text: str
    noticed: int
    """Whole seconds since the epoch: from the error file, or when torch found the failure."""


@dataclass(frozen=True)
class AgentWorker:
    """A worker that the agent has started. ``born`` as in ``Process``, -1 if it had ended before it was
    seen."""

    local_rank: int
    rank: int
    pid: int
    born: int


@dataclass(frozen=True)
class AgentCall:
    """Which agent calls the handler, and which failures led to the call."""

    agent: ElasticAgent | None = None
    failures: tuple[FailedWorker, ...] = ()


def calling_agent(frame: FrameType | None) -> AgentCall:
    """The agent on the stack from ``frame`` outwards, the innermost if there are several. Never raises."""
    try:
        return _calling_agent(frame)
    except SignalException:
        raise
    except Exception:
        logger.debug("cannot find torch's agent", exc_info=True)
        return AgentCall()


def _calling_agent(frame: FrameType | None) -> AgentCall:
    agent: ElasticAgent | None = None
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):
            variables = frame.f_locals
            found = variables.get("self")
            if isinstance(found, ElasticAgent):
                if agent is not None and found is not agent:
                    break
                agent = found
                for value in list(variables.values()):
                    if isinstance(value, RunResult):
                        return AgentCall(agent, _failed_workers(value.failures.values()))
        frame = frame.f_back
    return AgentCall(agent)


def final_failures(error: BaseException | None) -> tuple[FailedWorker, ...]:
    """The failures for which the agent gives up, if ``error`` is a ChildFailedError."""
    return _failed_workers(error.failures.values()) if isinstance(error, ChildFailedError) else ()


def local_world_size(agent: ElasticAgent | None) -> int | None:
    """How many workers the agent starts, as torch has decided it; None if it can't be known. Never raises."""
    if agent is None:
        return None
    try:
        size: object = agent.get_worker_group().spec.local_world_size
    except SignalException:
        raise
    except Exception:
        logger.debug("the number of workers is unknown", exc_info=True)
        return None
    return size if isinstance(size, int) and size > 0 else None


class AgentWorkers:
    """The workers that the agent starts next, as it lists them itself. Other processes below torchrun are no
    workers, and a worker's environment, which it can change, does not matter. No agent has no workers."""

    def __init__(self, agent: ElasticAgent | None) -> None:
        self._agent = agent
        self._before = None if agent is None else agent.get_worker_group().workers
        self._found: tuple[AgentWorker, ...] | None = None

    def __call__(self) -> tuple[AgentWorker, ...] | None:
        """All of them, None before they are started. Raises OSError if this process has no descriptors
        left."""
        if self._found is None and self._agent is not None:
            workers = self._agent.get_worker_group().workers
            pids = [worker.id for worker in workers if isinstance(worker.id, int)]
            if workers is not self._before and len(pids) == len(workers):
                self._found = tuple(
                    AgentWorker(worker.local_rank, worker.global_rank, pid, one.born if one else -1)
                    for worker, pid in zip(workers, pids, strict=True)
                    for one in [processes.find(pid)]
                )
        return self._found

    def close(self) -> None:
        """The agent starts others from now on."""
        self._agent = self._before = None


def _failed_workers(failures: Iterable[ProcessFailure]) -> tuple[FailedWorker, ...]:
    return tuple(
        FailedWorker(f.local_rank, f.pid, f.exitcode, _text(f), f.timestamp)
        for f in failures
        if isinstance(f.exitcode, int)
    )


def _text(failure: ProcessFailure) -> str:
    """The exception's type and text; "" without an error file, where torch makes up a message."""
    if failure.error_file == "<N/A>":
        return ""
    message: object = failure.message
    if isinstance(message, dict):
        message = message.get("message", "")
    return message if isinstance(message, str) else ""
