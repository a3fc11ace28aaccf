"""What this process has counted and measured, and all of it, with what is seen now, as Prometheus's text."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import aiohttp
from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from elasticjob import __version__
from elasticjob.rounds.waits import WaitKey
from elasticjob_operator.metrics import families as f
from elasticjob_operator.metrics.decisions import NONE, counted, from_the_start
from elasticjob_operator.metrics.families import Kind, Metric, Sample
from elasticjob_operator.metrics.requests import NO_ANSWER, verb_and_resource
from elasticjob_operator.observe.client import Attempt
from elasticjob_operator.plan.state.evidence import ACCOUNTS
from elasticjob_operator.plan.state.model import Job, Now, Observed, Plan
from elasticjob_operator.plan.state.status import JobStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Planner = Callable[[Job, JobStatus, Observed, Now, Mapping[WaitKey, float]], Plan]

KEPT = (
    *f.OF_DECISIONS,
    *(f.PLAN, f.PASS, f.FAILED_PASSES, f.REQUESTS, f.REQUEST, f.RETRIES, f.THROTTLED_SECONDS),
    *(f.TAKEOVERS, f.LOOP_LAG),
)
"""The metrics that are counted here; the others are computed on request."""


class Meter:
    """See the module. Counting is cheap and never fails; ``text`` may be called in another thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # of the library: a second series for each
        self._clock = clock
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._kept: dict[Metric, Counter | Histogram] = {m: self._make(m) for m in KEPT}
        self._seen = _Seen()
        self._registry.register(self._seen)
        self._asking = threading.Lock()
        self.count(from_the_start())
        for metric in (f.DETECTION, f.RENDEZVOUS, f.FIRST_STEP):
            for account in (*ACCOUNTS, NONE):
                self._kept[metric].labels(account)

    def count(self, samples: Iterable[Sample]) -> None:
        """Increase counters, and let histograms observe."""
        for metric, labels, value in samples:
            kept = self._kept[metric]
            series: Any = kept.labels(*labels) if labels else kept
            if metric.kind is Kind.COUNTER:
                series.inc(value)
            else:
                series.observe(value)

    def decided(self, before: JobStatus, after: JobStatus) -> None:
        """This status was written."""
        self.count(counted(before, after))

    def passed(self, seconds: float) -> None:
        """A pass has ended well."""
        self.count((Sample(f.PASS, (), seconds),))

    def pass_failed(self, error: Exception) -> None:
        """A pass has failed and will be tried again."""
        self.count((Sample(f.FAILED_PASSES, (type(error).__name__,), 1),))

    def took_over(self) -> None:
        """This process begins to make passes."""
        self.count((Sample(f.TAKEOVERS, (), 1),))

    def loop_was_late(self, seconds: float) -> None:
        """The event loop was late by that."""
        self.count((Sample(f.LOOP_LAG, (), max(0.0, seconds)),))

    def timed(self, plan: Planner) -> Planner:
        """The planner, with its time measured."""

        def measured(
            job: Job, status: JobStatus, observed: Observed, now: Now, timers: Mapping[WaitKey, float]
        ) -> Plan:
            began = self._clock()
            made = plan(job, status, observed, now, timers)
            self.count((Sample(f.PLAN, (), self._clock() - began),))
            return made

        return measured

    def trace(self) -> aiohttp.TraceConfig:
        """Measures the requests of a session: each that goes out, also a second try."""
        config = aiohttp.TraceConfig()

        async def start(
            _session: object, context: SimpleNamespace, params: aiohttp.TraceRequestStartParams
        ) -> None:
            context.began = self._clock()
            attempt = context.trace_request_ctx
            if isinstance(attempt, Attempt):
                self.count((Sample(f.THROTTLED_SECONDS, (), attempt.waited),))
                if attempt.again:
                    named = verb_and_resource(params.method, params.url.path, params.url.query)
                    self.count((Sample(f.RETRIES, named, 1),))

        async def end(
            _session: object, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
        ) -> None:
            verb, resource = verb_and_resource(params.method, params.url.path, params.url.query)
            self.count((Sample(f.REQUESTS, (verb, resource, str(params.response.status)), 1),))
            if verb != "watch":
                self.count((Sample(f.REQUEST, (verb,), self._clock() - context.began),))

        async def failed(
            _session: object, _context: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
        ) -> None:
            verb, resource = verb_and_resource(params.method, params.url.path, params.url.query)
            self.count((Sample(f.REQUESTS, (verb, resource, NO_ANSWER), 1),))

        config.on_request_start.append(start)
        config.on_request_end.append(end)
        config.on_request_exception.append(failed)
        return config

    def text(self, seen: Callable[[], Iterable[Sample]]) -> bytes:
        """Everything, with what ``seen`` makes of what was seen now. One at a time."""
        with self._asking:
            self._seen.samples = [Sample(f.BUILD, (__version__, platform.python_version()), 1), *seen()]
            try:
                return generate_latest(self._registry)
            finally:
                self._seen.samples = ()

    def _make(self, metric: Metric) -> Counter | Histogram:
        if metric.kind is Kind.COUNTER:
            return Counter(metric.name, metric.help, metric.labels, registry=self._registry)
        return Histogram(
            metric.name, metric.help, metric.labels, registry=self._registry, buckets=metric.buckets
        )


class _Seen(Collector):
    """Metrics that are computed on request: nothing is kept, so that the series of deleted jobs end."""

    def __init__(self) -> None:
        self.samples: Sequence[Sample] = ()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing: names are declared in ``families``, where a test compares them."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The families."""
        made: dict[Metric, GaugeMetricFamily | CounterMetricFamily] = {}
        for metric, labels, value in self.samples:
            family = made.get(metric)
            if family is None:
                kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
                family = made[metric] = kind(metric.name, metric.help, labels=metric.labels)
            family.add_metric(labels, value)
        yield from made.values()
