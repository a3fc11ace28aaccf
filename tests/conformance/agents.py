"""The words of these tests: start an agent, kill it, restart it, wait for what came out.

An agent is a process tree of its own: killing it takes its workers along, as the end of a container does, and
the pod that it plays then says so. While a test waits, every agent that has ended is reported in this way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks.zygote import Zygote
from devcluster.cluster import Cluster
from elasticjob.agent.torch_version import release
from elasticjob.contract import names
from tests.conformance import bodies
from tests.conformance.bodies import Info, Made, Place, Raised, Run, Workers
from tests.conformance.peer_run import PeerRun
from tests.conformance.pods import Job, Pod

DEADLINE = 60.0
"""Seconds after which a wait has hung; a round of forked agents takes less than one."""
POLL_SECONDS = 0.02
LOG_BYTES = 4000
T = TypeVar("T")

_TORCHRUN = Path(sys.executable).parent / "torchrun"


class Agent:
    """A process that plays a pod. ``pod`` says which; ``said`` is what it has sent so far."""

    def __init__(
        self, stage: Stage, pod: Pod, body: Callable[..., None], arguments: tuple[Any, ...], log: Path
    ) -> None:
        self._stage = stage
        self.pod = pod
        self.body = body
        self.arguments = arguments
        self.log = log
        self.said: list[Any] = []
        self.exit_code: int | None = None
        self.reported = False
        self._connection, theirs = Pipe()
        with theirs:
            self.pid = stage.zygote.fork(body, arguments, pod.environment, log, theirs)

    def look(self) -> None:
        """Take in what it has sent, and whether it has ended."""
        with contextlib.suppress(EOFError, ConnectionError):
            while self._connection.poll():
                self.said.append(self._connection.recv())
        if self.exit_code is None:
            self.exit_code = self._stage.zygote.poll(self.pid)
            if self.exit_code is not None:
                self.look()

    def run(self) -> Run:
        """The result of its ``agent.run()``."""
        runs = [said for said in self.said if isinstance(said, Run)]
        assert len(runs) == 1, (
            f"{self.pod.name} has sent {self.said}, exit code {self.exit_code}{self.tail()}"
        )
        return runs[0]

    def signal(self, number: signal.Signals) -> None:
        """Send the agent alone a signal."""
        os.kill(self.pid, number)

    def kill(self, report: bool = True) -> None:
        """kill -9, workers included; the pod says so unless ``report`` is False."""
        self.reported = not report
        _kill_session(self.pid)
        self._stage.until(lambda: self.exit_code is not None, f"{self.pod.name} is dead")

    def restart(self) -> Agent:
        """A new process in the same pod, as kubelet starts a container anew."""
        assert self.exit_code is not None, "it still runs"
        self._stage.job.report_restart(self.pod)
        return self._stage.start(self.body, self.arguments, self.pod)

    def tell(self, *words: Any) -> None:
        """Give a member (see ``bodies.run_member``) an order; ``answer`` takes what it says."""
        self.said.clear()
        self._connection.send(words)

    def answer(self, seconds: float = DEADLINE) -> Any:
        """The answer to the last order."""
        self._stage.until(
            lambda: self.said or self.exit_code is not None, f"{self.pod.name} answers", seconds
        )
        assert self.said, f"{self.pod.name} has ended with {self.exit_code}{self.tail()}"
        return self.said.pop(0)

    def ask(self, *words: Any) -> Any:
        """Order and answer."""
        self.tell(*words)
        return self.answer()

    def joined(self) -> Info:
        """The answer to ``next``."""
        info = self.answer()
        assert isinstance(info, Info), f"{self.pod.name}: {info}{self.tail()}"
        return info

    def silent(self) -> bool:
        """Whether it has given no answer yet."""
        self.look()
        return not self.said and self.exit_code is None

    def text(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self) -> str:
        """The end of its log, for a message."""
        return f"\n--- {self.log.name}\n{self.text()[-LOG_BYTES:]}"


class Stage:
    """One test's job and its agents. A context manager that leaves nothing behind."""

    def __init__(
        self, cluster: Cluster, zygote: Zygote, name: str, folder: Path, kind: type[Job] = Job
    ) -> None:
        self.cluster = cluster
        self.zygote = zygote
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        self.job = kind(cluster, name, folder / "pods")
        self.endpoint = f"{self.job.namespace}/{name}"
        self.torch_version = version("torch")
        self.torch = release(self.torch_version)
        self.agents: list[Agent] = []
        self.warm = False
        """Whether pods have warm workers on."""

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            _kill_session(agent.pid)
        self.job.delete()
        for agent in self.agents:
            print(agent.tail())

    # -- starting ------------------------------------------------------------------------------------------

    def pods(self, count: int, slot: int | None = None) -> list[Pod]:
        """New pods that run and have their rights."""
        made = [self.job.make_pod(slot) for _ in range(count)]
        self.until(lambda: self.job.granted(made), "the operator has granted the pods their rights")
        on = {names.WARM_ENV: "on"} if self.warm else {}
        return [replace(pod, environment={**pod.environment, **on}) for pod in made]

    def place(self, pod: Pod, **changes: Any) -> Place:
        """The rendezvous parameters of this job. Without an operator a pod's agent finds its own address,
        but not on the loopback interface: there it is given."""
        if not isinstance(self.job, PeerRun):
            return Place(**{"endpoint": self.endpoint, **changes})
        peers = {"rounds": "peers", **changes.pop("config", {})}
        bounds = {"min_nodes": self.job.minimum, "max_nodes": self.job.maximum}
        given = {"endpoint": self.endpoint, "local_addr": pod.address}
        return Place(**{**given, **bounds, **changes, "config": peers})

    def agent(self, workers: Workers, pod: Pod | None = None) -> Agent:
        """Start an agent, in a new pod if none is given."""
        return self.agents_of([workers], [pod] if pod is not None else None)[0]

    def agents_of(self, workers: Sequence[Workers], pods: Sequence[Pod] | None = None) -> list[Agent]:
        """Start an agent for each of these."""
        logs = self.folder / "workers"
        seats = pods or self.pods(len(workers))
        return [
            self.start(bodies.run_agent, (self.place(pod), one, str(logs)), pod)
            for one, pod in zip(workers, seats, strict=True)
        ]

    def member(self, pod: Pod | None = None, **place: Any) -> Agent:
        """Start a bare handler."""
        pod = pod or self.pods(1)[0]
        agent = self.start(bodies.run_member, (self.place(pod, **place),), pod)
        made = agent.answer()
        assert isinstance(made, Made), f"{made}{agent.tail()}"
        return agent

    def members(self, count: int, **place: Any) -> list[Agent]:
        """Start so many bare handlers."""
        started = [
            self.start(bodies.run_member, (self.place(pod, **place),), pod) for pod in self.pods(count)
        ]
        for agent in started:
            made = agent.answer()
            assert isinstance(made, Made), f"{made}{agent.tail()}"
        return started

    def start(self, body: Callable[..., None], arguments: tuple[Any, ...], pod: Pod) -> Agent:
        """Start a process with this body."""
        agent = Agent(self, pod, body, arguments, self.folder / f"{pod.name}-{len(self.agents)}.log")
        self.agents.append(agent)
        return agent

    def torchrun_arguments(self, *arguments: str, nproc: int = 1) -> list[str]:
        """Arguments of torchrun for this job, then these."""
        words = [
            "--rdzv-backend=k8s",
            f"--rdzv-endpoint={self.endpoint}",
            "--rdzv-id=conformance",
            f"--nproc-per-node={nproc}",
            "--monitor-interval=0.1",
        ]
        if isinstance(self.job, PeerRun):
            words += ["--rdzv-conf=rounds=peers", f"--nnodes={self.job.minimum}:{self.job.maximum}"]
        return [*words, *arguments]

    def torchrun(self, environment: Mapping[str, str], *arguments: str) -> Agent:
        """The real command in a new pod: a new Python, no fork. (torch 2.4 needs ``elasticjob.run``.)"""
        pod = self.pods(1)[0]
        command = [str(_TORCHRUN)] if self.torch >= (2, 5) else [sys.executable, "-m", "elasticjob.run"]
        words = [*command, *arguments]
        pod = replace(pod, environment={**pod.environment, **environment})
        return self.start(bodies.run_command, (words,), pod)

    # -- waiting -------------------------------------------------------------------------------------------

    def until(self, predicate: Callable[[], T], what: str, seconds: float = DEADLINE) -> T:
        """Wait for a condition; meanwhile the pods of agents that end say so."""
        deadline = time.monotonic() + seconds
        while True:
            self._sweep()
            found = predicate()
            if found:
                return found
            if time.monotonic() > deadline:
                self._dump_stacks()
                status = {k: v for k, v in self.job.status().items() if k not in ("accounts", "selector")}
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{status}")
            time.sleep(POLL_SECONDS)

    def ended(self, *agents: Agent) -> list[int]:
        """Wait until these have ended; their exit codes."""
        names = ", ".join(agent.pod.name for agent in agents)
        self.until(lambda: all(a.exit_code is not None for a in agents), f"{names} have ended")
        return [agent.exit_code for agent in agents if agent.exit_code is not None]

    def succeeded(self, *agents: Agent) -> list[Run]:
        """Wait until these have ended well, and the job is complete; their results."""
        codes = self.ended(*agents)
        assert set(codes) == {0}, f"exit codes {codes}" + "".join(agent.tail() for agent in agents)
        self.until(lambda: self.job.over("Complete"), "the job is Complete")
        return [agent.run() for agent in agents]

    def here(self, tag: str, number: int, count: int) -> None:
        """Wait until so many workers have said, in this round, that they are there (``work.arrive``)."""
        self.until(
            lambda: len(list(self.work.glob(f"{tag}-{number}-*"))) == count,
            f"{count} workers are there in round {number}",
        )

    def open_gate(self) -> None:
        """Let the workers go on."""
        (self.work / "go").touch()

    def round_is(self, number: int, members: int) -> None:
        """Wait until this round is established with so many members."""
        what = f"round {number} is established with {members} members"
        self.until(lambda: self.job.round_is(number, members), what)

    def _dump_stacks(self) -> None:
        for agent in self.agents:
            if agent.exit_code is None:
                agent.signal(signal.SIGUSR1)
        time.sleep(0.5)  # they write into their logs, which are shown

    def _sweep(self) -> None:
        for agent in self.agents:
            agent.look()
            if agent.exit_code is not None and not agent.reported:
                agent.reported = True
                self.job.report_end(agent.pod, agent.exit_code)


def raised(answer: object) -> Raised:
    """The answer, which must be an exception."""
    assert isinstance(answer, Raised), answer
    return answer


def join_all(members: Iterable[Agent], order: str = "next") -> list[Info]:
    """Let all join, and wait for all."""
    all_members = list(members)
    for member in all_members:
        member.tell(order)
    return [member.joined() for member in all_members]


def _kill_session(leader: int) -> None:
    """SIGKILL to a process, its descendants and whatever is left of its session."""
    for _ in range(100):
        found = _descendants(leader) | _session(leader)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    raise AssertionError(f"processes of session {leader} can't be killed: {found}")


def _descendants(leader: int) -> set[int]:
    try:
        process = psutil.Process(leader)
        if os.getsid(leader) != leader or process.status() == psutil.STATUS_ZOMBIE:
            return set()
        return {leader, *(child.pid for child in process.children(recursive=True))}
    except (psutil.NoSuchProcess, ProcessLookupError):
        return set()


def _session(leader: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.add(int(stat.parent.name))
    return found
