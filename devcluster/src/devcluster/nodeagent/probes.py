"""Probes and lifecycle hooks: something that is done to a container and that succeeds or fails."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from devcluster.nodeagent.api import Object
from devcluster.nodeagent.containers import CreateContainerError, Process, StartError
from devcluster.nodeagent.network import PodNetwork

Exec = Callable[[list[str]], Awaitable[Process]]
"""Start a command in the container."""


class Action:
    """``exec``, ``tcpSocket``, ``httpGet`` or ``sleep`` of one container."""

    def __init__(self, container: Object, network: PodNetwork, execute: Exec, awake: asyncio.Event) -> None:
        """``awake``: nothing is done while this is clear."""
        self._awake = awake
        self._container = container
        self._network = network
        self._execute = execute

    async def succeeds(self, action: Object, limit: float) -> bool:
        """Do it, for at most ``limit`` seconds; a command that takes longer is killed."""
        await self._awake.wait()
        try:
            return await asyncio.wait_for(self._do(action), limit)
        except (asyncio.TimeoutError, OSError, CreateContainerError, StartError):
            return False

    async def _do(self, action: Object) -> bool:
        if "exec" in action:
            return await self._command(action["exec"]["command"])
        if "tcpSocket" in action:
            (await self._network.connect(self._port(action["tcpSocket"]["port"]))).close()
            return True
        if "httpGet" in action:
            return await self._http(action["httpGet"])
        if "sleep" in action:
            await asyncio.sleep(action["sleep"]["seconds"])
            return True
        raise OSError(f"{sorted(action)} is no action known to devcluster's node agent")

    async def _command(self, argv: list[str]) -> bool:
        process = await self._execute(argv)
        try:
            return await asyncio.shield(process.exit_code) == 0
        finally:
            process.signal(signal.SIGKILL, "group")

    async def _http(self, action: Object) -> bool:
        connection = await self._network.connect(self._port(action["port"]))
        context: ssl.SSLContext | None = None
        if action.get("scheme") == "HTTPS":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        name = self._network.address
        reader, writer = await asyncio.open_connection(
            sock=connection, ssl=context, server_hostname=name if context else None
        )
        try:
            headers = {"Host": name, "User-Agent": "kube-probe/devcluster", "Connection": "close"}
            headers |= {header["name"]: header["value"] for header in action.get("httpHeaders") or []}
            lines = [f"GET {action.get('path', '/')} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            status = (await reader.readline()).split()
            return len(status) > 1 and status[1].isdigit() and 200 <= int(status[1]) < 400
        finally:
            writer.close()

    def _port(self, port: int | str) -> int:
        if isinstance(port, int):
            return port
        for entry in self._container.get("ports") or []:
            if entry.get("name") == port:
                return int(entry["containerPort"])
        raise OSError(f"container {self._container['name']!r} has no port named {port!r}")


async def verdicts(probe: Object, action: Action) -> AsyncIterator[bool]:
    """Probe for ever; yields each time that a threshold is passed, in either direction."""
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    thresholds = {True: probe.get("successThreshold", 1), False: probe.get("failureThreshold", 3)}
    streak, last = 0, None
    while True:
        result = await action.succeeds(probe, probe.get("timeoutSeconds", 1))
        streak = streak + 1 if result is last else 1
        last = result
        if streak == thresholds[result]:
            yield result
        await asyncio.sleep(probe.get("periodSeconds", 10))
