"""What the forked processes do: a whole agent, a bare rendezvous handler, or a launcher.

Each body is called with a connection to the test first; what it sends there is plain data, so that the test
need not import torch. Imports of torch are inside the functions for the same reason.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from elasticjob.agent import pod_lock

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo

POLL_SECONDS = 0.1
"""torchrun's ``--monitor-interval``."""


@dataclass(frozen=True)
class Place:
    """The rendezvous parameters of one agent."""

    endpoint: str
    config: Mapping[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    run_id: str = "conformance"
    min_nodes: int = 1
    max_nodes: int = 1


@dataclass(frozen=True)
class Workers:
    """What an agent runs: ``count`` workers with this function of ``tests.conformance.work``."""

    entrypoint: Callable[..., Any]
    args: tuple[Any, ...] = ()
    count: int = 1
    role: str = "default"
    max_restarts: int = 0
    exit_barrier_timeout: float = 300
    monitor_interval: float = 0.05
    log_prefix: str | None = None


@dataclass(frozen=True)
class Failure:
    """A worker's failure as torch reports it."""

    rank: int
    exit_code: int
    message: str


@dataclass(frozen=True)
class Run:
    """The result of ``agent.run()``. Tensors among the return values are given as ("tensor", *shape)."""

    state: str
    return_values: Mapping[int, Any]
    failures: Sequence[Failure]
    remaining_restarts: int
    role: str

    @property
    def failed(self) -> bool:
        """Whether torch calls it a failure."""
        return self.state == "FAILED"


@dataclass(frozen=True)
class Made:
    """The handler is there."""

    kind: str
    backend: str
    run_id: str
    use_agent_store: bool


@dataclass(frozen=True)
class Info:
    """What ``next_rendezvous`` returned."""

    rank: int
    world_size: int
    master_addr: str
    master_port: int
    called: float
    returned: float


@dataclass(frozen=True)
class Raised:
    """An exception: its type's name and its text."""

    kind: str
    text: str


class Entrypoint:
    """A function that takes the agent's environment of that moment along, as spawned workers have it.

    A fork server's children would have the environment in which the server was started: without the round.
    """

    def __init__(self, function: Callable[..., Any], environment: Mapping[str, str] | None = None) -> None:
        self._function = function
        self.__name__ = self.__qualname__ = function.__name__
        os.environ.update(environment or {})

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return Entrypoint, (self._function, dict(os.environ))


def make_handler(place: Place) -> RendezvousHandler:
    """The handler as torch's launcher makes it."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    register()
    return get_rendezvous_handler(
        RendezvousParameters(
            backend="k8s",
            endpoint=place.endpoint,
            run_id=place.run_id,
            min_nodes=place.min_nodes,
            max_nodes=place.max_nodes,
            local_addr=place.local_addr,
            **place.config,
        )
    )


def register() -> None:
    """torch 2.4 knows no entry points for handlers: there it is done as ``elasticjob.run`` does it."""
    import torch
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    from elasticjob.agent.torch_version import release
    from elasticjob.entry import create_handler

    if release(str(torch.__version__)) < (2, 5):
        rendezvous_handler_registry.register("k8s", create_handler)


def run_agent(connection: Connection, place: Place, workers: Workers, log_dir: str) -> None:
    """A LocalElasticAgent from its start to its end; sends its Run, and ends as torchrun would."""
    from torch.distributed.elastic.multiprocessing.errors import record

    start_method = serve_forks()  # before there is any thread

    def agent() -> None:
        from torch.distributed.elastic.agent.server.api import WorkerSpec
        from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        handler = make_handler(place)
        spec = WorkerSpec(
            role=workers.role,
            local_world_size=workers.count,
            entrypoint=Entrypoint(workers.entrypoint),
            args=workers.args,
            rdzv_handler=handler,
            max_restarts=workers.max_restarts,
            monitor_interval=workers.monitor_interval,
        )
        elastic = LocalElasticAgent(
            spec,
            logs_specs=DefaultLogsSpecs(log_dir=log_dir, tee=Std.ALL if workers.log_prefix else Std.NONE),
            start_method=start_method,
            exit_barrier_timeout=workers.exit_barrier_timeout,
            log_line_prefix_template=workers.log_prefix,
        )
        signalled = False
        try:
            result = elastic.run()
        except SignalException:
            signalled = True
            raise
        finally:
            if not signalled:
                handler.shutdown()
        connection.send(_summary(result, elastic._remaining_restarts, workers.role))
        if result.is_failed():
            raise ChildFailedError(workers.entrypoint.__name__, result.failures)

    record(agent)()


def run_member(connection: Connection, place: Place) -> None:
    """A bare handler that does what it is told until the test is gone."""
    try:
        handler = make_handler(place)
    except Exception as error:  # noqa: BLE001 - it is the answer
        connection.send(_raised(error))
        return
    connection.send(
        Made(type(handler).__name__, handler.get_backend(), handler.get_run_id(), handler.use_agent_store)
    )
    member = _Member(handler)
    while True:
        try:
            name, *arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = getattr(member, name)(*arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the answer
            answer = _raised(error)
        connection.send(answer)


def run_member_in_a_new_sandbox(connection: Connection, place: Place) -> None:
    """A bare handler in a sandbox that was made anew for its pod: its network namespace is another, and it
    doesn't see what is left of the one before."""
    pod_lock._address = lambda uid: f"\0conformance/{os.getpid()}/{uid}".encode()
    run_member(connection, place)


class _Member:
    """The words that a member process understands."""

    def __init__(self, handler: RendezvousHandler) -> None:
        self._handler = handler
        self._info: RendezvousInfo | None = None

    def next(self) -> Info:
        """Join the next round."""
        called = time.monotonic()
        info = self._handler.next_rendezvous()
        self._info = info
        place = info.bootstrap_store_info
        assert place is not None
        return Info(
            info.rank, info.world_size, place.master_addr, place.master_port, called, time.monotonic()
        )

    def next_on_notice(self) -> Info:
        """Ask ``num_nodes_waiting`` as an agent does, and join when it is positive."""
        while self._handler.num_nodes_waiting() <= 0:
            time.sleep(POLL_SECONDS)
        return self.next()

    def waiting(self) -> int:
        """``num_nodes_waiting``."""
        return self._handler.num_nodes_waiting()

    def put(self, key: str, value: str) -> None:
        """Set a key in the round's store."""
        assert self._info is not None
        self._info.store.set(key, value)

    def fetch(self, key: str) -> str:
        """Get a key of the round's store; waits for it."""
        assert self._info is not None
        return bytes(self._info.store.get(key)).decode()

    def has(self, key: str) -> bool:
        """Whether the round's store has the key."""
        assert self._info is not None
        return bool(self._info.store.check([key]))

    def workers_put(self, key: str) -> None:
        """As a worker: set a key in the store at MASTER_ADDR:MASTER_PORT."""
        self._as_worker().set(key, "1")

    def workers_has(self, key: str) -> bool:
        """As a worker: whether that store has the key."""
        return bool(self._as_worker().check([key]))

    def closed(self) -> bool:
        """``is_closed``."""
        return self._handler.is_closed()

    def close(self) -> None:
        """``set_closed``."""
        self._handler.set_closed()  # type: ignore[no-untyped-call]

    def shutdown(self) -> tuple[bool, bool, list[str]]:
        """``shutdown`` twice; and what threads of the handler are left."""
        answers = self._handler.shutdown(), self._handler.shutdown()
        deadline = time.monotonic() + 10
        while (left := _threads()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return (*answers, left)

    def _as_worker(self) -> Any:
        from torch.distributed import TCPStore

        assert self._info is not None
        at = self._info.bootstrap_store_info
        assert at is not None
        return TCPStore(at.master_addr, at.master_port, is_master=False, timeout=timedelta(seconds=30))


def run_launcher(connection: Connection, arguments: Sequence[str]) -> None:
    """``torchrun ARGUMENTS``, without the two seconds that importing torch takes."""
    del connection
    from torch.distributed.run import main

    register()
    main(list(arguments))


def run_command(connection: Connection, words: Sequence[str]) -> None:
    """Become another program."""
    del connection
    os.execv(words[0], list(words))


def run_launcher_whose_agent_raises(connection: Connection, arguments: Sequence[str], text: str) -> None:
    """torchrun whose agent raises; sends how often the handler was shut down."""
    from unittest import mock

    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.run import main

    from elasticjob.agent.handler import K8sRendezvousHandler

    register()
    shut_down = mock.Mock(wraps=K8sRendezvousHandler.shutdown)
    with (
        mock.patch.object(LocalElasticAgent, "run", side_effect=KeyError(text)),
        mock.patch.object(K8sRendezvousHandler, "shutdown", lambda self: shut_down(self)),
    ):
        try:
            main(list(arguments))
        finally:
            connection.send(shut_down.call_count)


def run_agent_without_barrier(
    connection: Connection, place: Place, workers: Workers, log_dir: str, error: str
) -> None:
    """An agent whose exit barrier raises; sends how often it was called, then the agent's Run."""
    from unittest import mock

    with mock.patch(
        "torch.distributed.elastic.utils.store.barrier", side_effect=RuntimeError(error)
    ) as barrier:
        try:
            run_agent(connection, place, workers, log_dir)
        finally:
            connection.send(barrier.call_count)


def run_elastic_launch(
    connection: Connection, place: Place, function: Callable[..., Any], args: tuple[Any, ...], count: int
) -> None:
    """``elastic_launch(config, function)(*args)``; sends what it returned."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    start_method = serve_forks()
    register()
    config = LaunchConfig(
        min_nodes=place.min_nodes,
        max_nodes=place.max_nodes,
        nproc_per_node=count,
        run_id=place.run_id,
        rdzv_backend="k8s",
        rdzv_endpoint=place.endpoint,
        rdzv_configs=dict(place.config),
        max_restarts=0,
        monitor_interval=POLL_SECONDS,
        start_method=start_method,
        local_addr=place.local_addr,
    )
    connection.send(elastic_launch(config, Entrypoint(function))(*args))


def serve_forks() -> str:
    """Let the workers of this process be forked from a process that has torch and one thread.

    That is multiprocessing's start method ``forkserver``, with a server that is forked from here, now,
    instead of a new Python that would import torch again. Returns the start method to use; where this
    Python's multiprocessing is another one than this was written for, it is ``spawn``, slower and as good.
    """
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    if not hasattr(server, "_forkserver_alive_fd") or hasattr(server, "_forkserver_authkey"):
        return "spawn"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0conformance-{os.getpid()}-{time.monotonic_ns()}")
    listener.listen()
    alive_read, alive_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(alive_write)
        try:
            forkserver.main(listener.detach(), alive_read, [])
        finally:
            os._exit(0)
    server._forkserver_address = listener.getsockname()
    server._forkserver_alive_fd = alive_write
    server._forkserver_pid = pid
    listener.close()
    os.close(alive_read)
    return "forkserver"


def _summary(result: RunResult, remaining_restarts: int, role: str) -> Run:
    failures = []
    for rank, failure in sorted(result.failures.items()):
        failures.append(Failure(rank, failure.exitcode, str(failure.message)))
    values = {rank: _plain(value) for rank, value in result.return_values.items()}
    return Run(result.state.name, values, failures, remaining_restarts, role)


def _plain(value: Any) -> Any:
    import torch

    return ("tensor", *value.shape) if isinstance(value, torch.Tensor) else value


def _raised(error: BaseException) -> Raised:
    return Raised(type(error).__name__, str(error))


def _threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("elasticjob")]
