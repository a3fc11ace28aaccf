"""The part of kubelet's HTTPS server that ``kubectl logs`` needs: /containerLogs.

The API server dials the node's address and does not verify the certificate (no
--kubelet-certificate-authority). The files hold what the container wrote, byte for byte, so lines have no
timestamps and ``--timestamps``, ``--since`` can't be had.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from devcluster.nodeagent.pods import PodWorker
from devcluster.nodeagent.workload import Workload
from devcluster.pki import Authority

_POLL_SECONDS = 0.1
_CHUNK = 1 << 16

Find = Callable[[str, str], PodWorker | None]
"""The worker of a pod (namespace, name) on this server's node."""


def server_context(folder: Path) -> ssl.SSLContext:
    """TLS for all nodes, with a certificate made for the purpose."""
    certificate, key = Authority(folder).issue_server("kubelet", ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


class LogServer:
    """Serves the logs of one node's pods."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._runner: web.AppRunner | None = None

    async def start(self, address: str, context: ssl.SSLContext) -> int:
        """Listen on a free port of ``address`` and return it."""
        application = web.Application()
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._serve)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, address, 0, ssl_context=context)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close it, and the streams that are under way."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        names = request.match_info
        worker = self._find(names["namespace"], names["pod"])
        if worker is None:
            return web.Response(status=404, text=f"pod {names['pod']!r} is not on this node")
        # A node that is cut off or frozen cannot be reached.
        await worker.node.reachable.wait()
        workload = next((w for w in worker.workloads if w.status.name == names["container"]), None)
        if workload is None:
            return web.Response(status=404, text=f"container {names['container']!r} is not in this pod")
        if request.query.get("timestamps") == "true":
            return web.Response(status=400, text="devcluster's logs have no timestamps")
        run = workload.status.restarts - (request.query.get("previous") == "true")
        file = worker.logs / names["container"] / f"{run}.log"
        if not file.exists():
            return web.Response(status=400, text=f"container {names['container']!r} has not written this log")
        tail = request.query.get("tailLines")
        follow = request.query.get("follow") == "true"
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await _copy(file, None if tail is None else int(tail), workload, run, follow, response)
        return response


async def _copy(
    file: Path, tail: int | None, workload: Workload, run: int, follow: bool, response: web.StreamResponse
) -> None:
    """Send the file; with ``follow`` also what is written until this run of the container has ended."""
    with file.open("rb") as stream:
        if tail is not None:
            stream.seek(start_of_last_lines(file, tail))
        while True:
            running = workload.process is not None and workload.status.restarts == run
            while chunk := stream.read(_CHUNK):
                await response.write(chunk)
            if not follow or not running:
                return
            await asyncio.sleep(_POLL_SECONDS)


def start_of_last_lines(file: Path, count: int) -> int:
    """Offset of the last ``count`` lines."""
    with file.open("rb") as stream:
        position = stream.seek(0, os.SEEK_END)
        size, block = position, b""
        while position > 0 and block.count(b"\n") <= count:
            step = min(_CHUNK, position)
            position -= step
            stream.seek(position)
            block = stream.read(step) + block
    lines = block.splitlines(keepends=True)
    return size - sum(len(line) for line in lines[len(lines) - count :]) if count else size
