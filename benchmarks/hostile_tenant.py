"""A hostile tenant: `python -m benchmarks.hostile_tenant SERVER CA NAMESPACE SECONDS URL...`, token in stdin.

With the rights of a namespace's editor, and what any pod can reach. For that many seconds, all at once:

* jobs with the largest templates that are accepted, and with some that are not;
* Leases with the label of jobs that exist and of jobs that do not, full of text, changing all the time;
* from eight addresses, as eight pods have: GETs of the metrics and of the probes of each operator (the
  URLs), forty at a time, connections that say nothing, half a request, a thousand requests in one packet.

Prints what it has done as JSON.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import ssl
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import aiohttp

from elasticjob.contract import names

LARGE_JOBS, TOO_LARGE_JOBS, LEASES = 200, 40, 1_000
ASKING, SILENT = 40, 300
ADDRESSES = [f"127.0.0.{n}" for n in range(2, 10)]
"""127.0.0.1 is the operator's own pod's."""
_AT_ONCE = 8
_TEMPLATE_BYTES = 127 * 1024
_WORDS = 200_000
"""The length of a command: 12 MB as Python objects."""
_PAUSE_SECONDS = 0.05
_HALF = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"


class Tenant:
    """See the module. ``until`` is monotonic."""

    def __init__(self, server: str, namespace: str, urls: list[str], until: float) -> None:
        self._jobs = f"{server}/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"
        self._leases = f"{server}/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._urls = urls
        self._until = until
        self._random = random.Random(31)
        self.done: Counter[str] = Counter()

    async def run(self, api: aiohttp.ClientSession) -> None:
        """Do all of it until the time is over."""
        writes = asyncio.Semaphore(_AT_ONCE)
        async with AsyncExitStack() as stack:
            pods = [
                await stack.enter_async_context(
                    aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, local_addr=(one, 0)))
                )
                for one in ADDRESSES
            ]
            paths = ["/metrics"] * ASKING + ["/livez", "/readyz"] * 2
            await asyncio.gather(
                self._make(api, writes),
                *(
                    self._ask(pods[n % len(pods)], url + path)
                    for url in self._urls
                    for n, path in enumerate(paths)
                ),
                *(self._connect(url, b"") for url in self._urls for _ in range(SILENT)),
                *(self._connect(url, _HALF) for url in self._urls for _ in range(_AT_ONCE)),
                *(self._connect(url, (_HALF + b"\r\n") * 1000) for url in self._urls for _ in range(2)),
            )

    async def _make(self, api: aiohttp.ClientSession, writes: asyncio.Semaphore) -> None:
        async def send(what: str, method: str, url: str, body: object) -> None:
            kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
            async with writes:
                if time.monotonic() > self._until:
                    return
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    text = json.dumps(body)
                    headers = {"content-type": kind}
                    async with api.request(method, url, data=text, headers=headers) as answer:
                        await answer.read()
                        self.done[f"{what} {answer.status}"] += 1

        for first in range(0, LEASES, _AT_ONCE):
            some = [self._lease(n) for n in range(first, first + _AT_ONCE)]
            await asyncio.gather(*(send("leases", "POST", self._leases, lease) for lease in some))
        for first in range(0, LARGE_JOBS + TOO_LARGE_JOBS, _AT_ONCE):
            them = [self._job(n, n < TOO_LARGE_JOBS) for n in range(first, first + _AT_ONCE)]
            await asyncio.gather(*(send("jobs", "POST", self._jobs, job) for job in them))
        while time.monotonic() < self._until:
            changed = (self._lease(self._random.randrange(LEASES)) for _ in range(4 * _AT_ONCE))
            await asyncio.gather(
                *(
                    send("changes", "PATCH", f"{self._leases}/{one['metadata']['name']}", one)
                    for one in changed
                )
            )

    def _job(self, number: int, too_large: bool) -> dict[str, object]:
        noise = [self._noise(_TEMPLATE_BYTES)]
        container = {"name": "train", "image": "none", "args": ["ab"] * _WORDS if too_large else noise}
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": f"job-{number}"},
            "spec": {"replicas": 1, "suspend": True, "template": {"spec": {"containers": [container]}}},
        }

    def _noise(self, characters: int) -> str:
        """Random text, which no compression makes smaller."""
        return base64.b64encode(self._random.randbytes(characters * 3 // 4)).decode()

    def _lease(self, number: int) -> dict[str, dict[str, object]]:
        ranks = f"0-{self._random.randrange(1000, 5000)}"
        report = {"version": 1, "nonce": "n", "unarrivedRanks": ranks, "silentRanks": ranks}
        rubbish = self._noise(30_000)
        annotations = {
            names.REPORT_ANNOTATION: json.dumps(report),
            names.PARTICIPANT_ANNOTATION: rubbish,
            names.ROUND_ANNOTATION: rubbish[::-1],
        }
        labels = {names.JOB_LABEL: f"job-{number % (2 * LARGE_JOBS)}"}
        return {"metadata": {"name": f"claims-{number}", "labels": labels, "annotations": annotations}}

    async def _ask(self, web: aiohttp.ClientSession, url: str) -> None:
        while time.monotonic() < self._until:
            try:
                async with web.get(url, timeout=aiohttp.ClientTimeout(total=20)) as answer:
                    await answer.read()
                    self.done[f"{urlsplit(url).path} {answer.status}"] += 1
            except (aiohttp.ClientError, TimeoutError, OSError):
                self.done[f"{urlsplit(url).path} closed"] += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _connect(self, url: str, said: bytes) -> None:
        address = urlsplit(url)
        while time.monotonic() < self._until:
            with contextlib.suppress(OSError, TimeoutError):
                source = self._random.choice(ADDRESSES), 0
                reader, writer = await asyncio.open_connection(
                    address.hostname, address.port, local_addr=source
                )
                writer.write(said)
                self.done["connections"] += 1
                async with asyncio.timeout(20):
                    await reader.read()
                writer.close()
            await asyncio.sleep(10 * _PAUSE_SECONDS)


async def _main() -> None:
    server, ca_file, namespace, seconds, *urls = sys.argv[1:]
    tenant = Tenant(server, namespace, urls, time.monotonic() + float(seconds))
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca_file), limit=_AT_ONCE),
        headers={"authorization": f"Bearer {sys.stdin.read().strip()}", "user-agent": "hostile"},
        timeout=aiohttp.ClientTimeout(total=60),
    ) as api:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(seconds) + 30):
                await tenant.run(api)
    print(json.dumps(tenant.done))


if __name__ == "__main__":
    asyncio.run(_main())
