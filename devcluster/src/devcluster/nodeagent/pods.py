"""One pod, from its binding to its deletion: what kubelet calls a pod worker.

Level-triggered like kubelet: the worker is told the newest object and looks at it. Everything that it says
goes through one publisher, which writes the status when it differs from the one written last, and repeats
that until the API server has taken it. The containers run on meanwhile, whatever happens there.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from devcluster.nodeagent.affinity import may_run, requires_nodes
from devcluster.nodeagent.api import STRATEGIC, UNREACHABLE, ApiError, Object
from devcluster.nodeagent.containers import Process, Runtime, Scope
from devcluster.nodeagent.env import PodFacts, Sources
from devcluster.nodeagent.images import Images
from devcluster.nodeagent.netns import NetworkError
from devcluster.nodeagent.network import PodNetwork
from devcluster.nodeagent.nodes import Node, timestamp
from devcluster.nodeagent.status import (
    MISPLACED,
    TOO_OLD,
    Addresses,
    Terminated,
    Termination,
    Waiting,
    failed,
    pod_status,
    unlocated,
)
from devcluster.nodeagent.volumes import PodVolumes, Waits
from devcluster.nodeagent.workload import Backoff, Sandbox, Workload

_logger = logging.getLogger(__name__)

_VOLUME_RETRY_SECONDS = 0.5
_NODE_RETRY_SECONDS = 0.1
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 2.0
_ORPHAN_GRACE_SECONDS = 1.0
"""For a pod whose object is gone already."""


@dataclass(frozen=True)
class Directories:
    """Where pods keep things on this machine."""

    state: Path
    logs: Path
    temporary: Path
    """Short, because programs put Unix sockets there, whose paths are limited to 107 bytes."""
    memory: Path
    """On a tmpfs."""


@dataclass(frozen=True)
class Environment:
    """What all pods of an agent share."""

    runtime: Runtime
    images: Images
    backoff: Backoff
    directories: Directories
    token_seconds: float | None


Attach = Callable[[], Awaitable[PodNetwork]]
"""Give the pod an address."""


class PodWorker:
    """Runs one pod on one node."""

    def __init__(
        self, pod: Object, node: Node, environment: Environment, attach: Attach, detach: Callable[[], None]
    ) -> None:
        """``attach`` is called when the pod starts, and then ``detach`` once at its end."""
        self.pod = pod
        self.node = node
        self._environment = environment
        self._attach = attach
        self._detach = detach
        metadata, spec = pod["metadata"], pod["spec"]
        self.uid: str = metadata["uid"]
        self.namespace: str = metadata["namespace"]
        self.name: str = metadata["name"]
        self._path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self._policy: str = spec.get("restartPolicy", "Always")
        self._init = [self._init_workload(container) for container in spec.get("initContainers") or []]
        waiting = Waiting("PodInitializing" if self._init else "ContainerCreating")
        self._main = [
            Workload(container, "main", self._policy, waiting, self._change)
            for container in spec["containers"]
        ]
        directories, runtime = environment.directories, environment.runtime
        self._directory = directories.state / self.uid
        self._temporary = directories.temporary / self.uid[:8]
        self.logs = directories.logs / f"{self.namespace}_{self.name}_{self.uid}"
        self._volumes = PodVolumes(
            node.request,
            runtime,
            self._directory / "volumes",
            directories.memory / self.uid,
            environment.token_seconds,
        )
        self.network: PodNetwork | None = None
        self._sandbox: Sandbox | None = None
        self._sources: Sources | None = None
        self._supervising: list[asyncio.Task[None]] = []
        self._start_time = timestamp()
        self._ended = asyncio.Event()
        self._deletion = asyncio.Event()
        self._deleted_at = 0.0
        self._termination: Termination | None = None
        self._terminated_by = 0.0
        self._stopping = asyncio.Event()
        self._gone = False
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._published: Object = {}
        self._task: asyncio.Task[None] | None = None

    def _init_workload(self, container: Object) -> Workload:
        if container.get("restartPolicy") == "Always":
            return Workload(container, "sidecar", "Always", Waiting("PodInitializing"), self._change)
        policy = "Never" if self._policy == "Never" else "OnFailure"
        return Workload(container, "init", policy, Waiting("PodInitializing"), self._change)

    # What others tell the worker

    def start(self, on_end: Callable[[], None]) -> None:
        """Begin. ``on_end`` is called when nothing is left to do, not after :meth:`power_off`."""
        self.update(self.pod)
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda task: None if task.cancelled() else on_end())
        deadline = self.pod["spec"].get("activeDeadlineSeconds")
        if deadline is not None:
            self._task.get_loop().call_later(deadline, self.terminate, TOO_OLD, float("inf"))

    @property
    def finished(self) -> bool:
        """Nothing is left to do."""
        return self._task is not None and self._task.done()

    def update(self, pod: Object) -> None:
        """The pod's object has changed."""
        self.pod = pod
        if pod["spec"].get("readinessGates"):
            self._change()  # somebody may have opened or closed one
        if "deletionTimestamp" in pod["metadata"] and not self._deletion.is_set():
            self._delete()

    def remove(self) -> None:
        """The pod's object is gone."""
        self._gone = True
        if not self._deletion.is_set():
            self._delete()

    def terminate(self, termination: Termination, grace_seconds: float) -> None:
        """Kubelet ends the pod by itself: its containers now, and its phase is Failed. The object stays.

        Its own grace period holds if that is shorter. Nothing happens to a pod that has ended.
        """
        if self._ended.is_set() or self._termination is not None:
            return
        own = float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))
        self._termination = termination
        self._terminated_by = time.monotonic() + min(own, grace_seconds)
        self._stopping.set()
        if termination.announced:
            self._change()

    async def settled(self) -> None:
        """Wait until it has ended and the API server knows."""
        await self._ended.wait()
        await self._settled.wait()

    def signal(self, number: int, scope: Scope, container: str | None = None) -> int:
        """Signal its containers, or one of them; returns how many."""
        targets = [w for w in self.workloads if w.process and container in (None, w.status.name)]
        for workload in targets:
            workload.signal(number, scope)
        return len(targets)

    def run_out_of_memory(self, container: str, pid: int) -> bool:
        """SIGKILL a process of one container, whose memory is full; False if it has no such process."""
        return any(w.run_out_of_memory(pid) for w in self.workloads if w.status.name == container)

    def power_off(self) -> None:
        """Its node has lost power: nothing is reported any more."""
        for workload in self.workloads:
            workload.abandon()
        if self._task is not None:
            self._task.cancel()
        self._clean_up()

    @property
    def workloads(self) -> list[Workload]:
        """Its containers, init containers first."""
        return [*self._init, *self._main]

    @property
    def processes(self) -> dict[str, Process]:
        """The main processes that run, by container."""
        return {w.status.name: w.process for w in self.workloads if w.process is not None}

    def _delete(self) -> None:
        self._deleted_at = time.monotonic()
        self._deletion.set()
        self._stopping.set()

    # Life

    async def _run(self) -> None:
        publisher = asyncio.create_task(self._publish())
        containers = asyncio.create_task(self._run_containers())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({containers, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if containers.done():
                if (error := containers.exception()) is not None:
                    _logger.error("pod %s/%s", self.namespace, self.name, exc_info=error)
                await self._stopping.wait()
            containers.cancel()
            await asyncio.wait({containers})
            await self._stop(self._main + self._init[::-1], self._deadline)
            if not self._ended.is_set():
                self._end()
            await self._deletion.wait()
            await self._settled.wait()
            await self.node.awake.wait()
            self._clean_up()
            await self._delete_object()
        finally:
            for task in (publisher, containers, stopping, *self._supervising):
                task.cancel()

    def _deadline(self) -> float:
        """When containers that were told to end are killed: a deletion may come while kubelet ends them."""
        deadlines = [self._deletion_deadline()] if self._deletion.is_set() else []
        return min([*deadlines, self._terminated_by] if self._termination is not None else deadlines)

    def _deletion_deadline(self) -> float:
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        if self._gone:
            return self._deleted_at + _ORPHAN_GRACE_SECONDS
        default = spec.get("terminationGracePeriodSeconds", 30)
        return self._deleted_at + float(metadata.get("deletionGracePeriodSeconds", default))

    async def _run_containers(self) -> None:
        """Run the containers in their order until none runs any more, and none will."""
        if self._take_up():
            return
        if requires_nodes(self.pod["spec"]) and not await self._may_run_here():
            self.terminate(MISPLACED, 0.0)
            return
        self._change()  # they are being created
        self._sandbox = sandbox = await self._make_sandbox()
        for workload in self._init:
            supervision = self._supervise(workload, sandbox)
            if workload.status.kind == "sidecar":
                await workload.up.wait()
                continue
            await supervision
            if failed(workload.status):
                break
        else:
            await asyncio.gather(*[self._supervise(workload, sandbox) for workload in self._main])
        for supervision in self._supervising:
            supervision.cancel()
        begun = time.monotonic()
        grace = float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))
        for sidecar in self._init[::-1]:
            await self._stop([sidecar], lambda: begun + grace)
        self._end()

    def _supervise(self, workload: Workload, sandbox: Sandbox) -> asyncio.Task[None]:
        task = asyncio.create_task(workload.supervise(sandbox))
        self._supervising.append(task)
        return task

    def _take_up(self) -> bool:
        """Look at what an earlier life of this node has left in the status; True if nothing is to be done."""
        status = self.pod.get("status") or {}
        if status.get("phase") in ("Succeeded", "Failed"):
            self._ended.set()
            return True
        before = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        if not any("waiting" not in entry.get("state", {}) for entry in before):
            return False
        self._start_time = status.get("startTime", self._start_time)
        if self._policy == "Never":
            states = {entry["name"]: entry.get("state", {}) for entry in before}
            for workload in self.workloads:
                workload.recall(states.get(workload.status.name, {}))
            self._end()
            return True
        restarts = {entry["name"]: entry["restartCount"] for entry in before}
        for workload in self.workloads:
            workload.resume(restarts.get(workload.status.name, -1) + 1)
        return False

    async def _may_run_here(self) -> bool:
        """Ask for the node as it is now: its labels change."""
        while True:
            try:
                node = await self.node.request("GET", f"/api/v1/nodes/{self.node.name}")
                return may_run(self.pod["spec"], self.node.name, node["metadata"].get("labels") or {})
            except (ApiError, *UNREACHABLE) as error:
                _logger.info("pod %s/%s: %r", self.namespace, self.name, error)
                await asyncio.sleep(_NODE_RETRY_SECONDS)

    async def _make_sandbox(self) -> Sandbox:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._temporary.mkdir(parents=True, exist_ok=True)
        environment = self._environment
        network = await self._prepare()
        return Sandbox(
            node=self.node,
            runtime=environment.runtime,
            images=environment.images,
            backoff=environment.backoff,
            network=network,
            facts=self._facts,
            sources=self._load_sources,
            mounts=self._volumes.place,
            directory=self._directory,
            temporary=self._temporary,
            logs=self.logs,
        )

    async def _prepare(self) -> PodNetwork:
        """Get an address and the volumes, however long they take to be there."""
        while True:
            try:
                if self.network is None:
                    self.network = await self._attach()
                await self._volumes.prepare(self._facts())
                return self.network
            except (Waits, NetworkError) as error:
                for workload in self.workloads:
                    workload.hold(str(error))
            except UNREACHABLE as error:
                _logger.info("volumes of pod %s/%s: %r", self.namespace, self.name, error)
            await asyncio.sleep(_VOLUME_RETRY_SECONDS)

    def _facts(self) -> PodFacts:
        address = self.network.address if self.network is not None else ""
        return PodFacts(self.pod, address, self.node.address)

    async def _load_sources(self) -> Sources:
        """Read once, so that a restart needs no API server; again as long as something is missing."""
        if self._sources is None or not self._sources.complete:
            spec = self.pod["spec"]
            containers = [*(spec.get("initContainers") or []), *spec["containers"]]
            self._sources = await self._volumes.sources(containers, self.namespace)
        return self._sources

    async def _stop(self, workloads: list[Workload], deadline: Callable[[], float]) -> None:
        """Stop the main containers together, then the sidecars one by one."""
        for task in self._supervising:
            task.cancel()
        if self._sandbox is None:
            return
        sandbox = self._sandbox
        await asyncio.gather(*[w.stop(sandbox, deadline) for w in workloads if w.status.kind == "main"])
        for workload in workloads:
            if workload.status.kind != "main":
                await workload.stop(sandbox, deadline)

    def _end(self) -> None:
        wanted = unlocated([w.status for w in self._init], [w.status for w in self._main])
        for workload in self.workloads:
            if workload.status.name in wanted:
                workload.locate()
        self._change()
        self._ended.set()

    def _clean_up(self) -> None:
        self._volumes.remove()
        for directory in (self._directory, self._temporary):
            shutil.rmtree(directory, ignore_errors=True)
        self.network = None
        self._detach()

    # Status

    def _change(self) -> None:
        self._settled.clear()
        self._changed.set()

    async def _publish(self) -> None:
        """Write the status whenever it has changed."""
        retry = _FIRST_RETRY_SECONDS
        while True:
            await self._changed.wait()
            self._changed.clear()
            status = self._status()
            if status != self._published and not self._gone:
                try:
                    if self._ends_by_itself(status):
                        before = self._published or self.pod.get("status", {})
                        await self._write({**status, "phase": before.get("phase", "Pending")})
                    await self._write(status)
                except (ApiError, *UNREACHABLE) as error:
                    if isinstance(error, ApiError) and error.status == 404:
                        self._gone = True
                    else:
                        _logger.info("status of pod %s/%s: %r", self.namespace, self.name, error)
                        await asyncio.sleep(retry)
                        retry = min(2 * retry, _LAST_RETRY_SECONDS)
                    self._changed.set()
                    continue
                retry = _FIRST_RETRY_SECONDS
                self._published = status
            if not self._changed.is_set():
                self._settled.set()

    def _ends_by_itself(self, status: Object) -> bool:
        """Whether kubelet says first that the containers have ended, and then of the pod that it has."""
        asked = self._deletion.is_set() or self._termination is not None
        return status["phase"] in ("Succeeded", "Failed") and not asked

    def _all_have_ended(self) -> bool:
        """Whether the last container has ended, and none is started again."""
        if self._policy != "Never":
            return False
        states = [workload.status.state for workload in self.workloads]
        failed_early = any(w.status.kind == "init" and failed(w.status) for w in self._init)
        return all(isinstance(s, Terminated) or (failed_early and isinstance(s, Waiting)) for s in states)

    def _status(self) -> Object:
        address = self.network.address if self.network is not None else self._published.get("podIP")
        return pod_status(
            self.pod,
            Addresses(address, self.node.address),
            [workload.status for workload in self._init],
            [workload.status for workload in self._main],
            start_time=self._start_time,
            ended=self._ended.is_set() or self._all_have_ended(),
            now=timestamp(),
            previous=self._published.get("conditions", []),
            termination=self._termination,
        )

    async def _write(self, status: Object) -> None:
        # The uid makes it fail if the name belongs to another pod by now; addresses are replaced, not merged.
        replaced = {
            key: [{"$patch": "replace"}, *status[key]] for key in ("podIPs", "hostIPs") if key in status
        }
        body = {"metadata": {"uid": self.uid}, "status": status | replaced}
        await self.node.request("PATCH", f"{self._path}/status", body, STRATEGIC)

    async def _delete_object(self) -> None:
        """Say that the pod is really gone: only then does its object disappear."""
        retry = _FIRST_RETRY_SECONDS
        options: Object = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        while not self._gone:
            try:
                await self.node.request("DELETE", self._path, options)
                return
            except (ApiError, *UNREACHABLE) as error:
                if isinstance(error, ApiError) and error.status in (404, 409):
                    return
                _logger.info("deletion of pod %s/%s: %r", self.namespace, self.name, error)
            await asyncio.sleep(retry)
            retry = min(2 * retry, _LAST_RETRY_SECONDS)
