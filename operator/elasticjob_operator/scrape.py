"""``/metrics``: what Prometheus gets when it asks.

In the event loop only references are taken: of the jobs, which are frozen data, and of a few numbers. What
they say, and the text, is made in a thread: of 1,000 jobs that takes some tenths of a second, for which no
pass must wait.

An operator that stands by has metrics of its process, and none of the jobs: each is there once.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from aiohttp import web

from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.leadership.elector import Elector
from elasticjob_operator.metrics import families as f
from elasticjob_operator.metrics import jobs
from elasticjob_operator.metrics.families import Sample
from elasticjob_operator.metrics.meter import CONTENT_TYPE, Meter
from elasticjob_operator.observe.client import Client
from elasticjob_operator.observe.spec import JobView
from elasticjob_operator.settings import MetricsSettings

_LAG_SECONDS = 1.0
_FASTEST = 1


@dataclass(frozen=True)
class Seen:
    """What was seen when somebody asked. Times are seconds. ``views``: the jobs, if this operator leads."""

    wall: datetime
    leading: bool
    views: tuple[JobView, ...] | None = None
    unreadable: int = 0
    queued: int = 0
    under_way: int = 0
    oldest: float = 0.0
    failing_writes: int = 0
    throttled: int = 0
    watch_ages: tuple[tuple[str, float], ...] = ()
    watch_gaps: tuple[tuple[str, int], ...] = ()
    zones: Mapping[str, str] = field(default_factory=dict)
    """Of nodes, by name."""


def samples(seen: Seen, settings: MetricsSettings) -> Iterator[Sample]:
    """What is shown of it. Pure."""
    yield Sample(f.LEADING, (), seen.leading)
    yield Sample(f.QUEUED, (), seen.queued)
    yield Sample(f.UNDER_WAY, (), seen.under_way)
    yield Sample(f.OLDEST, (), seen.oldest)
    yield Sample(f.FAILING_WRITES, (), seen.failing_writes)
    yield Sample(f.THROTTLED, (), seen.throttled)
    for kind, age in seen.watch_ages:
        yield Sample(f.WATCH_AGE, (kind,), age)
    for kind, gaps in seen.watch_gaps:
        yield Sample(f.WATCH_GAPS, (kind,), gaps)
    if seen.views is not None:
        yield from jobs.samples(
            seen.views, seen.unreadable, seen.wall, settings.per_job, settings.max_jobs, seen.zones
        )


class Scrape:
    """See the module. What is None has not been made yet."""

    def __init__(self, meter: Meter, settings: MetricsSettings) -> None:
        self.controller: Controller | None = None
        self.elector: Elector | None = None
        self.client: Client | None = None
        self._meter = meter
        self._settings = settings

    def look(self) -> Seen:
        """What is to be seen now."""
        wall, controller = datetime.now(timezone.utc), self.controller
        leading = self.elector.may_write() if self.elector is not None else controller is not None
        if controller is None:
            return Seen(wall, leading)
        now = controller.clock()
        ages: dict[str, float] = {}
        gaps: dict[str, int] = {}
        watches = [(i.path, i.last_event_at, i.gaps) for i in controller.cache.informers() if not i.forbidden]
        watches += [(path, at, 0) for path, at in controller.source.last_event_at().items()]
        for path, heard, missed in watches:
            kind = path.rpartition("/")[2]
            if heard > float("-inf"):
                ages[kind] = max(ages.get(kind, 0.0), now - heard)
            gaps[kind] = gaps.get(kind, 0) + max(0, missed - 1)  # the first connection is none
        entries = list(controller.registry)
        views = tuple(e.view for e in entries if e.view.managed_here and not e.view.deleting)
        queue = controller.queue
        return Seen(
            wall=wall,
            leading=leading,
            views=views if leading and queue.is_open else None,
            unreadable=len(controller.registry.unreadable),
            queued=queue.depth,
            under_way=len(queue.working),
            oldest=queue.oldest_seconds(),
            failing_writes=sum(len(list(entry.memory.write_backoff)) for entry in entries),
            throttled=self.client.waiting if self.client is not None else 0,
            watch_ages=tuple(ages.items()),
            watch_gaps=tuple((kind, count) for kind, count in gaps.items() if kind != "elasticjobs"),
            zones={node.name: node.zone for node in controller.cache.nodes.all() if node.zone},
        )

    async def answer(self, request: web.Request) -> web.Response:
        """To a GET of /metrics."""
        seen = self.look()
        zipped = "gzip" in request.headers.get("Accept-Encoding", "").lower()
        body = await asyncio.to_thread(self._make, seen, zipped)
        headers = {"Content-Type": CONTENT_TYPE}
        if zipped:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    async def serve(self, host: str, port: int) -> web.AppRunner:
        """Answer at an address of its own; ``cleanup`` of what is returned ends it."""
        application = web.Application()
        application.add_routes(self.routes())
        runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        return runner

    def routes(self) -> list[web.RouteDef]:
        """For a server that others share."""
        return [web.get("/metrics", self.answer)]

    async def watch_loop(self) -> None:
        """Measure once a second by how much the event loop is late, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_SECONDS
            await asyncio.sleep(_LAG_SECONDS)
            self._meter.loop_was_late(loop.time() - due)

    def _make(self, seen: Seen, zipped: bool) -> bytes:
        text = self._meter.text(lambda: samples(seen, self._settings))
        return gzip.compress(text, _FASTEST) if zipped else text
