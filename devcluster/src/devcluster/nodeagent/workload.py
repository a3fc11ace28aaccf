"""One container of a pod: start it, restart it as its policy says, probe it, stop it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from devcluster.nodeagent import env
from devcluster.nodeagent.api import UNREACHABLE, Object
from devcluster.nodeagent.containers import (
    CreateContainerError,
    Process,
    ProcessSpec,
    Runtime,
    Scope,
    StartError,
)
from devcluster.nodeagent.images import Images, PullError
from devcluster.nodeagent.mounts import Mount
from devcluster.nodeagent.network import PodNetwork
from devcluster.nodeagent.nodes import Node, timestamp
from devcluster.nodeagent.probes import Action, verdicts
from devcluster.nodeagent.status import (
    UNLOCATED,
    Container,
    Kind,
    Running,
    Terminated,
    Waiting,
    failed,
    terminated,
)
from devcluster.nodeagent.volumes import Waits

_logger = logging.getLogger(__name__)

_CREATE_RETRY_SECONDS = 1.0
_KILL_SECONDS = 10.0
"""A process that outlives SIGKILL by so much hangs in the kernel: it is given up."""
_LEAST_TERM_SECONDS = 2.0
"""kubelet gives every container at least this between SIGTERM and SIGKILL, even after a long preStop."""

_MESSAGE_BYTES, _MESSAGE_LINES = 2048, 80
"""The kubelet's, of a log."""
_START_ERROR_CODE = 128


@dataclass(frozen=True)
class Backoff:
    """Pause before a restart, in seconds: none the first time, then ``first``, doubling up to ``cap``."""

    first: float = 1.0
    cap: float = 30.0

    def delay(self, failures: int) -> float:
        """``failures``: how many runs in a row have ended soon, at least 1."""
        return 0.0 if failures < 2 else min(self.cap, self.first * 2.0 ** (failures - 2))

    @property
    def forgets_after(self) -> float:
        """A run that lasted so long starts the count again."""
        return 2 * self.cap


@dataclass(frozen=True)
class Sandbox:
    """What the containers of a pod share."""

    node: Node
    runtime: Runtime
    images: Images
    backoff: Backoff
    network: PodNetwork
    facts: Callable[[], env.PodFacts]
    sources: Callable[[], Awaitable[env.Sources]]
    mounts: Callable[[Object], list[Mount]]
    directory: Path
    temporary: Path
    logs: Path


class Workload:
    """A container and its status. ``on_change`` is called with every change of the status."""

    def __init__(
        self, container: Object, kind: Kind, policy: str, initial: Waiting, on_change: Callable[[], None]
    ) -> None:
        """``policy``: restartPolicy as it applies to this container."""
        self._container = container
        self._policy = policy
        self._on_change = on_change
        self.status = Container(container["name"], container["image"], initial, kind=kind)
        self.up = asyncio.Event()
        """It has started once: its startup probe has passed."""
        self._process: Process | None = None
        self._env: dict[str, str] = {}
        self._working_dir = "/"
        self._launch: asyncio.Task[None] | None = None
        self._probing: list[asyncio.Task[None]] = []
        self._log: Path | None = None
        self._memory_events: Path | None = None
        """What the container reads of its control group, if its memory is limited."""
        self._oom_kills = 0
        """How many processes of this run were killed as if by the kernel."""

    # Status

    def _set(self, status: Container) -> None:
        if status != self.status:
            self.status = status
            self._on_change()

    def resume(self, restarts: int) -> None:
        """Take over the count of a container that ran before the node was lost."""
        self.status = replace(self.status, restarts=restarts)

    def recall(self, state: Object) -> None:
        """Take over what the API says of a container that ran, or had ended, when its node was lost."""
        if "running" in state:
            self._set(self.status.become(Terminated(255, "Unknown", timestamp())))
        elif "terminated" in state:
            self._set(self.status.become(terminated(state["terminated"])))

    def locate(self) -> None:
        """Its pod is over: one that has never run is said to have ended."""
        if isinstance(self.status.state, Waiting) and self.status.last is None:
            message = "The container could not be located when the pod was terminated"
            code = 128 + signal.SIGKILL
            self._set(self.status.become(Terminated(code, UNLOCATED, message=message)))

    def hold(self, message: str) -> None:
        """It can't be started yet, for the reason given."""
        if isinstance(self.status.state, Waiting):
            self._set(self.status.become(Waiting(self.status.state.reason, message)))

    # Run

    async def supervise(self, sandbox: Sandbox) -> None:
        """Run it until it has ended for good. Cancelled, it leaves a running process alone."""
        failures = 0
        while True:
            began = time.monotonic()
            await self._run(sandbox)
            if not self._restarts():
                return
            failures = 1 if time.monotonic() - began > sandbox.backoff.forgets_after else failures + 1
            if delay := sandbox.backoff.delay(failures):
                message = f"back-off {delay:g}s restarting failed container={self.status.name}"
                self._set(self.status.become(Waiting("CrashLoopBackOff", message)))
                await asyncio.sleep(delay)
            await sandbox.node.awake.wait()
            self.status = replace(self.status, restarts=self.status.restarts + 1)

    def _restarts(self) -> bool:
        return self._policy == "Always" or (self._policy == "OnFailure" and failed(self.status))

    async def _run(self, sandbox: Sandbox) -> None:
        while True:
            try:
                self._launch = asyncio.create_task(self._start(sandbox))
                await asyncio.shield(self._launch)
                break
            except PullError as error:
                self._wait("ErrImagePull", error)
            except (env.ConfigError, Waits) as error:
                self._wait("CreateContainerConfigError", error)
            except CreateContainerError as error:
                self._wait("CreateContainerError", error)
            except UNREACHABLE as error:
                _logger.info("container %s: %r", self.status.name, error)
            await asyncio.sleep(_CREATE_RETRY_SECONDS)
        if self._process is not None:
            await asyncio.shield(self._process.exit_code)
            self._on_exit(self._process.exit_code)  # a waiting thread may be woken before the callback

    def _wait(self, reason: str, error: Exception) -> None:
        self._set(self.status.become(Waiting(reason, str(error))))

    async def _start(self, sandbox: Sandbox) -> None:
        """Start the process; its end sets the status by itself."""
        self._process, self._oom_kills = None, 0
        spec = await self._spec(sandbox)
        await sandbox.node.awake.wait()
        try:
            process = await sandbox.runtime.spawn(spec)
        except StartError as error:
            now = timestamp()
            self._set(self.status.become(Terminated(_START_ERROR_CODE, "StartError", now, now, str(error))))
            return
        self._process, self._env, self._working_dir = process, spec.env, spec.cwd
        running = replace(self.status.become(Running(timestamp())), container_id=f"devcluster://{process.id}")
        gated = "startupProbe" in self._container
        ready = not gated and "readinessProbe" not in self._container
        self._set(replace(running, started=not gated, ready=ready))
        if not gated:
            self.up.set()
        process.exit_code.add_done_callback(self._on_exit)
        action = Action(self._container, sandbox.network, self._exec_in(sandbox.runtime), sandbox.node.awake)
        self._probing = [asyncio.create_task(self._watch(action, process))]

    async def _spec(self, sandbox: Sandbox) -> ProcessSpec:
        container, name = self._container, self.status.name
        image = sandbox.images.find(container["image"])
        facts = sandbox.facts()
        host, port = sandbox.network.api
        services = {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        }
        variables = env.container_env(container, facts, await sandbox.sources(), services)
        argv = env.command_line(container, variables)
        if not argv:
            raise CreateContainerError(
                "neither command nor args: there is no image that could have a default"
            )
        home = sandbox.directory / "work" / name
        log = sandbox.logs / name / f"{self.status.restarts}.log"
        home.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        working_dir = container.get("workingDir") or str(home)
        base = {
            "PATH": f"{image.path}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(home),
            "HOSTNAME": facts.pod["metadata"]["name"],
            "LANG": "C.UTF-8",
            "TMPDIR": str(sandbox.temporary),
        }
        hosts = Mount(str(self._hosts_file(sandbox)), "/etc/hosts")
        return ProcessSpec(
            argv=argv,
            env=base | variables,
            cwd=working_dir,
            output=str(log),
            hostname=base["HOSTNAME"],
            network=sandbox.network.namespace,
            staging=str(sandbox.directory / "root"),
            mounts=[hosts, *self._control_group(sandbox), *image.mounts, *sandbox.mounts(container)],
            directories=[working_dir],
        )

    def _control_group(self, sandbox: Sandbox) -> list[Mount]:
        if "memory" not in (self._container.get("resources") or {}).get("limits", {}):
            return []
        folder = sandbox.directory / "cgroup" / self.status.name
        folder.mkdir(parents=True, exist_ok=True)
        self._memory_events = folder / "memory.events"
        self._memory_events.write_text("oom_kill 0\n")
        return [Mount(str(folder), "/sys/fs/cgroup")]

    def _hosts_file(self, sandbox: Sandbox) -> Path:
        file = sandbox.directory / "hosts"
        name = sandbox.facts().pod["metadata"]["name"]
        file.write_text(f"127.0.0.1 localhost\n::1 localhost\n{sandbox.network.address} {name}\n")
        (sandbox.directory / "root").mkdir(exist_ok=True)
        return file

    def _exec_in(self, runtime: Runtime) -> Callable[[list[str]], Awaitable[Process]]:
        async def execute(argv: list[str]) -> Process:
            if self._process is None or self._process.exit_code.done():
                raise CreateContainerError("the container does not run")
            return await runtime.exec(self._process, argv, self._env, self._working_dir)

        return execute

    def _on_exit(self, exit_code: asyncio.Future[int]) -> None:
        for task in self._probing:
            task.cancel()
        if exit_code.cancelled() or not isinstance(self.status.state, Running):
            return
        code = exit_code.result()
        # The runtime's mark: it is kept although the container has lived on, and whatever ended it.
        reason = "OOMKilled" if self._oom_kills else "Completed" if code == 0 else "Error"
        self._set(
            self.status.become(
                Terminated(
                    exit_code=code,
                    reason=reason,
                    started_at=self.status.state.started_at,
                    finished_at=timestamp(),
                    message=self._termination_message(code),
                    container_id=self.status.container_id,
                )
            )
        )

    def _termination_message(self, code: int) -> str:
        """The end of a failed container's log, where it asks for that. Files for it (terminationMessagePath)
        can't be had."""
        asked = self._container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if code == 0 or not asked or self._log is None or not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - _MESSAGE_BYTES))
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
        return "".join(lines[-_MESSAGE_LINES:])

    # Hooks and probes

    async def _watch(self, action: Action, process: Process) -> None:
        """The startup probe, then the readiness and the liveness probe."""
        if (startup := self._container.get("startupProbe")) is not None:
            async for verdict in verdicts(startup, action):
                if not verdict:
                    await self._end(process)
                    return
                break
        self._set(replace(self.status, started=True, ready="readinessProbe" not in self._container))
        self.up.set()
        for key, follow in (
            ("readinessProbe", self._follow_readiness),
            ("livenessProbe", self._follow_liveness),
        ):
            if (probe := self._container.get(key)) is not None:
                self._probing.append(asyncio.create_task(follow(probe, action, process)))

    async def _follow_readiness(self, probe: Object, action: Action, process: Process) -> None:
        async for verdict in verdicts(probe, action):
            if not process.exit_code.done():
                self._set(replace(self.status, ready=verdict))

    async def _follow_liveness(self, probe: Object, action: Action, process: Process) -> None:
        async for verdict in verdicts(probe, action):
            if not verdict:
                _logger.info("container %s: liveness probe failed", self.status.name)
                await self._end(process)
                return

    async def _end(self, process: Process) -> None:
        """End a run that a probe has judged; its policy says what comes next."""
        process.signal(signal.SIGTERM)
        grace = float(self._container.get("terminationGracePeriodSeconds", 30))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(process.exit_code), grace)
        process.signal(signal.SIGKILL)

    # Stop

    @property
    def process(self) -> Process | None:
        """Its main process, if it runs."""
        process = self._process
        return process if process is not None and not process.exit_code.done() else None

    def signal(self, number: int, scope: Scope) -> None:
        """Send a signal, if it runs."""
        if self.process is not None:
            self.process.signal(number, scope)

    def run_out_of_memory(self, pid: int) -> bool:
        """Kill one of its processes as the kernel does when memory is full; False if it can't be that."""
        if self._memory_events is None or self.process is None:
            return False
        if pid not in (self.process.pid, *self.process.members()):
            return False
        self._oom_kills += 1
        self._memory_events.write_text(f"oom_kill {self._oom_kills}\n")
        os.kill(pid, signal.SIGKILL)
        return True

    def abandon(self) -> None:
        """Its node has lost power: kill it, also if it is being started at this moment."""
        self.signal(signal.SIGKILL, "all")
        if self._launch is not None:
            # It may fail at this moment because its volumes are removed: that is not reported.
            self._launch.add_done_callback(lambda launch: launch.cancelled() or launch.exception())
            self._launch.cancel()
        for task in self._probing:
            task.cancel()

    async def stop(self, sandbox: Sandbox, deadline: Callable[[], float]) -> None:
        """preStop, SIGTERM, and at the deadline SIGKILL. Returns when it has ended.

        :param deadline: by ``time.monotonic()``; may move to an earlier time meanwhile
        """
        if self._launch is not None and not self._launch.done():
            await asyncio.wait({self._launch})
        process = self.process
        if process is None:
            return
        if (hook := (self._container.get("lifecycle") or {}).get("preStop")) is not None:
            action = Action(
                self._container, sandbox.network, self._exec_in(sandbox.runtime), sandbox.node.awake
            )
            await action.succeeds(hook, max(0.0, deadline() - time.monotonic()))
        await sandbox.node.awake.wait()
        process.signal(signal.SIGTERM)
        earliest = time.monotonic() + _LEAST_TERM_SECONDS
        while not process.exit_code.done() and (left := max(earliest, deadline()) - time.monotonic()) > 0:
            await asyncio.wait({process.exit_code}, timeout=min(left, 0.5))
        await sandbox.node.awake.wait()
        process.signal(signal.SIGKILL)
        await asyncio.wait({process.exit_code}, timeout=_KILL_SECONDS)
