"""The agent: nodes, the pods bound to them, and the faults that befall both."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from devcluster.nodeagent.api import Api, Credentials, Object
from devcluster.nodeagent.containers import Runtime
from devcluster.nodeagent.control import ControlError, ControlServer
from devcluster.nodeagent.images import Images
from devcluster.nodeagent.logs_server import LogServer, server_context
from devcluster.nodeagent.netns import Direction, Fabric
from devcluster.nodeagent.network import LoopbackRange, PodNetwork
from devcluster.nodeagent.nodes import Node
from devcluster.nodeagent.pods import Attach, Directories, Environment, PodWorker
from devcluster.nodeagent.runtime import is_stopped
from devcluster.nodeagent.status import NOT_ADMITTED, SHUT_DOWN, evicted
from devcluster.nodeagent.watch import PodWatch
from devcluster.nodeagent.workload import Backoff
from devcluster.proxy import TcpProxy

_ANNOTATION = "devcluster/network"
"""Of a pod: "netns" gives it a network of its own."""

_CAPACITY = {"cpu": "64", "memory": "64Gi", "ephemeral-storage": "64Gi", "pods": "500"}
"""Of each node."""
_STOP_SECONDS = 10.0
_LAST_WORDS_SECONDS = 5.0
_EVICTION_SECONDS = 1.0
"""kubelet's grace period under pressure, whatever the pod's own; a container still gets two."""


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    kubeconfig: Path
    nodes: Sequence[str]
    state_dir: Path
    images: Images
    control: Path
    backoff: Backoff
    netns: bool
    """Every pod gets a network of its own, not only those that ask for it."""
    token_seconds: float | None
    """For so long a service account's token is kept; None: for four fifths of its life, as kubelet does."""


@dataclass
class _Machine:
    """What stays of a node when its power is off."""

    address: str
    proxy: TcpProxy
    logs: LogServer
    node: Node | None = None
    """None while it is off."""
    registering: asyncio.Task[None] | None = None


class Agent:
    """Plays all the nodes of ``settings``. Made by :meth:`run` only."""

    def __init__(self, settings: Settings, api: Api, runtime: Runtime, addresses: LoopbackRange) -> None:
        self._settings = settings
        self._api = api
        self._addresses = addresses
        state = settings.state_dir
        self._environment = Environment(
            runtime=runtime,
            images=settings.images,
            backoff=settings.backoff,
            directories=Directories(
                state=state / "pods",
                logs=state / "logs",
                temporary=Path(tempfile.mkdtemp(prefix="dc-", dir="/tmp")),
                memory=Path(tempfile.mkdtemp(prefix="dc-", dir="/dev/shm")),
            ),
            token_seconds=settings.token_seconds,
        )
        runtime.remember(str(self._environment.directories.temporary))
        runtime.remember(str(self._environment.directories.memory))
        self._tls = server_context(state / "pki")
        self._machines: dict[str, _Machine] = {}
        self._workers: dict[str, PodWorker] = {}
        self._fabric = Fabric(available=os.geteuid() == 0)
        self._watch = PodWatch(api, settings.nodes, self._on_pod)

    @classmethod
    async def run(cls, settings: Settings, stop: asyncio.Event) -> None:
        """Play the nodes until ``stop`` is set; then every container is killed."""
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        addresses = LoopbackRange()
        runtime = await Runtime.start(on_loss=stop.set)
        try:
            async with Api(Credentials.load(settings.kubeconfig)) as api:
                agent = cls(settings, api, runtime, addresses)
                try:
                    await agent._serve(stop)
                finally:
                    await agent._close()
        finally:
            await runtime.close()
            addresses.close()

    async def _serve(self, stop: asyncio.Event) -> None:
        control = ControlServer(
            {
                "kill_node": self._kill_node,
                "shut_down_node": self._shut_down_node,
                "start_node": self._start_node,
                "freeze_node": self._freeze_node,
                "thaw_node": self._thaw_node,
                "cut_node": self._cut_node,
                "restore_node": self._restore_node,
                "cut_pod": self._cut_pod,
                "restore_pod": self._restore_pod,
                "cut_path": self._cut_path,
                "restore_path": self._restore_path,
                "kill_container": self._kill_container,
                "run_out_of_memory": self._run_out_of_memory,
                "evict_pod": self._evict_pod,
                "pids": self._pids,
                "logs_path": self._logs_path,
            }
        )
        await control.start(self._settings.control)
        for name in self._settings.nodes:
            self._machines[name] = _Machine(
                self._addresses.nodes.take(),
                TcpProxy(self._api.credentials.address),
                LogServer(partial(self._find_on, name)),
            )
            await self._start_node(name)
        watching = asyncio.create_task(self._watch.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            stopping.cancel()
            control.close()

    async def _close(self) -> None:
        for worker in self._workers.values():
            worker.power_off()
        self._fabric.close()
        for machine in self._machines.values():
            if machine.registering is not None:
                machine.registering.cancel()
            await machine.logs.stop()
            await asyncio.to_thread(machine.proxy.close)

    # Pods

    def _on_pod(self, pod: Object, gone: bool) -> None:
        node = self._machines[pod["spec"]["nodeName"]].node
        # What a node can't hear now it is told when it can: see _resync.
        if node is not None and node.reachable.is_set():
            self._tell(node, pod, gone)

    def _tell(self, node: Node, pod: Object, gone: bool) -> None:
        uid = pod["metadata"]["uid"]
        worker = self._workers.get(uid)
        if worker is not None:
            if not gone:
                worker.update(pod)
            elif worker.finished:
                del self._workers[uid]
            else:
                worker.remove()
        elif not gone:
            self._start_worker(node, pod)

    def _start_worker(self, node: Node, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        proxy = self._machines[node.name].proxy
        api = (proxy.host, proxy.port)
        attach: Attach
        if self._settings.netns or (pod["metadata"].get("annotations") or {}).get(_ANNOTATION) == "netns":
            attach, detach = (
                partial(self._fabric.attach, node.name, uid, api),
                partial(self._fabric.detach, uid),
            )
        else:
            address = self._addresses.pods.take()
            attach = partial(_on_loopback, address, api)
            detach = partial(self._addresses.pods.give_back, address)
        worker = PodWorker(pod, node, self._environment, attach, detach)
        self._workers[uid] = worker
        if node.shutting_down:
            worker.terminate(NOT_ADMITTED, 0.0)
        worker.start(on_end=lambda: self._worker_ended(uid))

    def _worker_ended(self, uid: str) -> None:
        if uid not in self._watch.pods:
            self._workers.pop(uid, None)

    def _resync(self, node: Node) -> None:
        """Tell the node what has happened to its pods while it could not hear."""
        for worker in [w for w in self._workers.values() if w.node is node]:
            if worker.uid not in self._watch.pods:
                self._tell(node, worker.pod, gone=True)
        for pod in list(self._watch.pods.values()):
            if pod["spec"]["nodeName"] == node.name:
                self._tell(node, pod, gone=False)

    # Faults

    async def _kill_node(self, name: str) -> None:
        machine, node = self._running(name)
        machine.node = None
        if machine.registering is not None:
            machine.registering.cancel()
        lost = [worker for worker in self._workers.values() if worker.node is node]
        ends = [process.exit_code for worker in lost for process in worker.processes.values()]
        for worker in lost:
            worker.power_off()
            del self._workers[worker.uid]
        self._fabric.remove_node(name)
        await asyncio.to_thread(machine.proxy.refuse)
        await machine.logs.stop()
        if ends:
            await asyncio.wait(ends, timeout=10)

    async def _shut_down_node(self, name: str, grace: float) -> None:
        _, node = self._running(name)
        await node.shut_down()
        pods = [worker for worker in self._workers.values() if worker.node is node]
        for worker in pods:
            worker.terminate(SHUT_DOWN, grace)
        # What is left then, the power cut ends: the shutdown waits no longer.
        told = [asyncio.create_task(worker.settled()) for worker in pods]
        if told:
            await asyncio.wait(told, timeout=grace + _LAST_WORDS_SECONDS)
        for task in told:
            task.cancel()
        await self._kill_node(name)

    async def _start_node(self, name: str) -> None:
        machine = self._machine(name)
        if machine.node is not None:
            raise ControlError(f"node {name!r} is not off")
        await asyncio.to_thread(machine.proxy.restore)
        port = await machine.logs.start(machine.address, self._tls)
        node = Node(name, machine.address, port, _CAPACITY, self._api, machine.proxy)
        machine.node = node
        machine.registering = asyncio.create_task(node.run())
        self._resync(node)

    async def _freeze_node(self, name: str) -> None:
        _, node = self._running(name)
        node.freeze()
        frozen = [worker for worker in self._workers.values() if worker.node is node]
        for worker in frozen:
            worker.signal(signal.SIGSTOP, "all")
        await self._environment.runtime.settled()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in [process for worker in frozen for process in worker.processes.values()]:
            # A process that runs on another CPU stops a moment after the signal was sent.
            while not all(map(is_stopped, process.members())):
                if time.monotonic() > deadline:
                    raise ControlError(f"processes of {name} did not stop within {_STOP_SECONDS:g} s")
                await asyncio.sleep(0.001)

    async def _thaw_node(self, name: str) -> None:
        _, node = self._running(name)
        for worker in self._workers.values():
            if worker.node is node:
                worker.signal(signal.SIGCONT, "all")
        node.thaw()
        self._resync(node)

    async def _cut_node(self, name: str) -> None:
        _, node = self._running(name)
        await asyncio.to_thread(node.cut)
        await self._fabric.cut_node(name)

    async def _restore_node(self, name: str) -> None:
        _, node = self._running(name)
        await self._fabric.restore_node(name)
        node.restore()
        if node.reachable.is_set():
            self._resync(node)

    async def _cut_pod(self, namespace: str, pod: str, direction: Direction) -> None:
        try:
            await self._fabric.cut_pod(self._worker(namespace, pod).uid, direction)
        except KeyError:
            needed = f"annotate it with {_ANNOTATION}: netns, or cut its node"
            raise ControlError(f"pod {namespace}/{pod} has no network of its own: {needed}") from None

    async def _restore_pod(self, namespace: str, pod: str) -> None:
        with suppress(KeyError):
            await self._fabric.restore_pod(self._worker(namespace, pod).uid)

    async def _cut_path(self, namespace: str, pod: str, peer: str) -> None:
        uids = [self._worker(namespace, name).uid for name in (pod, peer)]
        try:
            await self._fabric.cut_path(*uids)
        except KeyError:
            needed = f"annotate both with {_ANNOTATION}: netns"
            raise ControlError(f"no path from {namespace}/{pod} to {peer} can be cut: {needed}") from None

    async def _restore_path(self, namespace: str, pod: str, peer: str) -> None:
        uids = [self._worker(namespace, name).uid for name in (pod, peer)]
        with suppress(KeyError):
            await self._fabric.restore_path(*uids)

    async def _kill_container(
        self, namespace: str, pod: str, container: str | None, signal: int, group: bool
    ) -> None:
        worker = self._worker(namespace, pod)
        if not worker.signal(signal, "group" if group else "main", container):
            raise ControlError(f"pod {namespace}/{pod} has no running container {container or ''}")
        await self._environment.runtime.settled()

    async def _run_out_of_memory(self, namespace: str, pod: str, container: str, pid: int) -> None:
        if not self._worker(namespace, pod).run_out_of_memory(container, pid):
            what = f"no process {pid} in a container {container} with a limit of memory"
            raise ControlError(f"pod {namespace}/{pod} has {what}")

    async def _evict_pod(self, namespace: str, pod: str, message: str) -> None:
        self._worker(namespace, pod).terminate(evicted(message), _EVICTION_SECONDS)

    # Questions

    async def _pids(self, namespace: str, pod: str, container: str | None) -> list[int]:
        processes = self._worker(namespace, pod).processes
        chosen = [process for name, process in processes.items() if container in (None, name)]
        main = [process.pid for process in chosen]
        return main + [pid for process in chosen for pid in process.members() if pid not in main]

    async def _logs_path(self, namespace: str, pod: str, container: str | None) -> str:
        worker = self._worker(namespace, pod)
        name = container or worker.pod["spec"]["containers"][0]["name"]
        for workload in worker.workloads:
            if workload.status.name == name:
                return str(worker.logs / name / f"{workload.status.restarts}.log")
        raise ControlError(f"pod {namespace}/{pod} has no container {name!r}")

    def _machine(self, name: str) -> _Machine:
        if name not in self._machines:
            raise ControlError(f"no node {name!r}: there are {', '.join(self._machines)}")
        return self._machines[name]

    def _running(self, name: str) -> tuple[_Machine, Node]:
        machine = self._machine(name)
        if machine.node is None:
            raise ControlError(f"node {name!r} is off")
        return machine, machine.node

    def _worker(self, namespace: str, pod: str) -> PodWorker:
        for worker in self._workers.values():
            if (worker.namespace, worker.name) == (namespace, pod):
                return worker
        raise ControlError(f"no pod {namespace}/{pod} on these nodes")

    def _find_on(self, node: str, namespace: str, pod: str) -> PodWorker | None:
        for worker in self._workers.values():
            if (worker.node.name, worker.namespace, worker.name) == (node, namespace, pod):
                return worker
        return None


async def _on_loopback(address: str, api: tuple[str, int]) -> PodNetwork:
    return PodNetwork(address, api)
