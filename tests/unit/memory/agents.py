"""Agents in one process, with real sockets and memory, and their workers."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Callable
from pathlib import Path

from elasticjob.memory.client import Agent, AgentError
from elasticjob.memory.keeper import Keeper
from elasticjob.memory.link import Link
from elasticjob.memory.membership import Members
from elasticjob.memory.pieces import Held, PieceName, Save
from elasticjob.memory.service import Service

SIZE = 3 << 16
JOB = "job-uid"


class Pod:
    """One agent, and the connections of its workers."""

    def __init__(
        self, limit: int = 100 * SIZE, gate: Callable[[int], str] = lambda _: "", network: bool = True
    ) -> None:
        self.service = Service(limit, gate, network=network)
        self.keeper: Keeper = self.service.keeper
        self.where = ""
        self._workers: list[Agent] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.service.port}"

    @property
    def key(self) -> str:
        return self.where.rpartition(":")[2]

    def enter(self, number: int, job: str = JOB) -> None:
        """Enter a round; the members do not know each other yet."""
        self.where = self.service.begin(job, number)

    def meet(self, token: str, partner: str = "") -> None:
        address = self.address if self.service.port else ""
        self.keeper.meet(self.key, Members(token, address, partner))

    def worker(self) -> Agent:
        """A worker of the present round."""
        self._workers.append(Agent(self.where))
        return self._workers[-1]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self.service.close()

    def held(self) -> list[str]:
        """What it holds, as ``round.step.rank``; copies in brackets."""
        found = self.keeper._shelf.pieces
        return sorted(text(name) if piece.own else f"({text(name)})" for name, piece in found.items())

    def held_bytes(self) -> int:
        return sum(self.keeper._shelf.held().values())


def text(name: PieceName) -> str:
    return f"{name.save.round}.{name.save.step}.{name.rank}"


def begin(number: int, *pods: Pod) -> None:
    """All enter a round in which each has the next one as its partner."""
    for pod in pods:
        pod.enter(number)
    for rank, pod in enumerate(pods):
        other = pods[(rank + 1) % len(pods)]
        pod.meet(f"token of {number}", other.address if other is not pod else "")


def name_of(number: int, step: int, rank: int = 0, world: int = 1) -> PieceName:
    return PieceName(JOB, "f", Save(1, number, 1, step, world), rank)


def held_of(name: PieceName, size: int = SIZE) -> Held:
    """What the agent that holds this piece says of it, if it was saved by ``save``."""
    return Held(name, size, zlib.crc32(bytes([name.save.step]) * size), own=True)


def dial(address: str, token: str) -> socket.socket:
    """A connection of a member, or of one that would be one."""
    return Link().open(address, token)


def save(
    worker: Agent,
    name: PieceName,
    *,
    complete: Save | None = None,
    stale: tuple[PieceName, ...] = (),
    size: int = SIZE,
) -> int:
    """Save a piece filled with its step. Returns the inode of its memory."""
    descriptor = worker.lend(name.rank, size, complete, stale)
    try:
        os.pwrite(descriptor, bytes([name.save.step]) * size, 0)
        worker.take(name, size, descriptor)
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


def copied(worker: Agent, name: PieceName) -> str:
    """Wait for the copy; why it failed, "" if it has not."""
    worker.await_copy(name, 30)
    state = worker.state_of(name)
    assert state.ended, "it has not ended in 30 s"
    return state.why


def content(descriptor: int) -> set[int]:
    """Which bytes the piece has."""
    try:
        return set(os.pread(descriptor, SIZE, 0))
    finally:
        os.close(descriptor)


def mapped() -> set[str]:
    """The inodes of the agents' buffers that this process has mapped, also those of tests before."""
    maps = Path("/proc/self/maps").read_bytes().decode(errors="replace").splitlines()
    return {line.split()[4] for line in maps if "memfd:" in line}


def refusal(call: Callable[[], object]) -> str:
    """Why the agent refuses."""
    try:
        call()
    except AgentError as error:
        return str(error)
    raise AssertionError("it was not refused")
