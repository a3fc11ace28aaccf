"""``/metrics``: what Prometheus gets when it asks.

In the event loop only references are taken: of the jobs, which are frozen data, and of a few numbers. What
they say, and the text, is made in a thread of its own: of 1,000 jobs that takes some tenths of a second, for
which no pass must wait. Every pod may ask. So there is one text for all who ask at the same time, it is kept
for a while, and beyond a few who have not taken it yet the answer is 503.

An operator that stands by has metrics of its process, and none of the jobs: each is there once.
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import logging
from collections import Counter
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
from elasticjob_operator.own_thread import in_own_thread
from elasticjob_operator.probe_server import Answer, serve
from elasticjob_operator.settings import MetricsSettings, read_token
from elasticjob_operator.shared_answer import SharedAnswer

_LAG_SECONDS = 1.0
_FASTEST = 1
_KEPT_SECONDS = 1.0
_MOST, _MOST_OF_ONE = 8, 3
"""Answers that are being made or sent: to all, and to one address."""


log = logging.getLogger("elasticjob.operator")


@dataclass(frozen=True)
class Seen:
    """What is seen on request. Times are seconds. ``views``: the jobs, if this operator leads."""

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
    """Nodes by name."""


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


@dataclass(frozen=True)
class Rendered:
    """The text, also packed."""

    plain: bytes
    packed: bytes


class Scrape:
    """See the module. A part is None until it has been made."""

    def __init__(self, meter: Meter, settings: MetricsSettings) -> None:
        self.controller: Controller | None = None
        self.elector: Elector | None = None
        self.client: Client | None = None
        self._meter = meter
        self._settings = settings
        self._rendered = SharedAnswer(self.render, _KEPT_SECONDS)
        self._answering: Counter[str] = Counter()
        self._complained = False

    def look(self) -> Seen:
        """What is to be seen now."""
        wall, controller = datetime.now(timezone.utc), self.controller
        leading = self.elector.may_write() if self.elector is not None else controller is not None
        if controller is None:
            return Seen(wall, leading)
        now = controller.clock()
        ages: dict[str, float] = {}
        gaps: dict[str, int] = {}
        watches = [
            (i.path, i.last_event_at, i.gaps) for i in controller.cache.informers() if not i.unavailable
        ]
        watches += [(path, at, 0) for path, at in controller.source.last_event_at().items()]
        for path, heard, missed in watches:
            kind = path.rpartition("/")[2]
            if heard > float("-inf"):
                ages[kind] = max(ages.get(kind, 0.0), now - heard)
            gaps[kind] = gaps.get(kind, 0) + max(0, missed - 1)  # the first connection is not one
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
            failing_writes=sum(len(list(entry.state.writes.backoff)) for entry in entries),
            throttled=self.client.waiting if self.client is not None else 0,
            watch_ages=tuple(ages.items()),
            watch_gaps=tuple((kind, count) for kind, count in gaps.items() if kind != "elasticjobs"),
            zones={node.name: node.zone for node in controller.cache.nodes.all() if node.zone},
        )

    async def render(self) -> Rendered:
        """The text of the current metrics."""
        seen = self.look()
        return await in_own_thread(lambda: self._make(seen), "metrics")

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """To a GET of /metrics."""
        if not self._allowed(request.headers.get("Authorization", "")):
            return web.Response(
                status=401, headers={"WWW-Authenticate": "Bearer"}, text="send the token of the metrics\n"
            )
        address = request.remote or ""
        if self._answering.total() >= _MOST or self._answering[address] >= _MOST_OF_ONE:
            return web.Response(
                status=503, headers={"Retry-After": "1"}, text="busy: too many ask for the metrics\n"
            )
        self._answering[address] += 1
        try:
            rendered = await self._rendered.get()
            headers = {"Content-Type": CONTENT_TYPE}
            body = rendered.plain
            if "gzip" in request.headers.get("Accept-Encoding", "").lower():
                headers["Content-Encoding"], body = "gzip", rendered.packed
            response = web.Response(body=body, headers=headers)
            response.force_close()
            await response.prepare(request)
            await response.write_eof()  # counts until it has been taken
            return response
        finally:
            self._answering[address] -= 1
            self._answering += Counter()  # drops zeros

    def _allowed(self, authorization: str) -> bool:
        """Whether the token is in it. The file is on a volume in memory: reading it takes microseconds."""
        path = self._settings.token_file
        if path is None:
            return True
        try:
            token = read_token(path)
        except (OSError, ValueError) as error:
            if not self._complained:
                log.warning("the metrics are closed to all: %s", error)
            self._complained = True
            return False
        self._complained = False
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode("utf-8", "surrogateescape"), token.encode()
        )

    async def serve(self, host: str, port: int) -> web.BaseRunner:
        """Answer at an address of its own; ``cleanup`` of what is returned ends it."""
        return await serve(self.routes(), host, port)

    def routes(self) -> Mapping[str, Answer]:
        """The routes, for a server that others share."""
        return {"/metrics": self.answer}

    async def watch_loop(self) -> None:
        """Measure once a second by how much the event loop is late, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_SECONDS
            await asyncio.sleep(_LAG_SECONDS)
            self._meter.loop_was_late(loop.time() - due)

    def _make(self, seen: Seen) -> Rendered:
        text = self._meter.text(lambda: samples(seen, self._settings))
        return Rendered(text, gzip.compress(text, _FASTEST))
