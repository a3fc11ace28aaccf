"""The operator's process with clocks in it: `python -m benchmarks.jobs_operator FILE [the operator's flags]`.

SIGUSR1 makes it write what was measured so far into the file (`Clocks`). What the operator does is as ever:
its planner, its passes, its requests and its event loop are timed from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import time
from array import array
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from elasticjob_operator import __main__ as operator
from elasticjob_operator import app, health, probe_server
from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.controller.registry import JobEntry
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import Client
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.state.model import Job, Now, Observed, Plan
from elasticjob_operator.plan.state.status import JobStatus
from elasticjob_operator.settings import Settings

TICK_SECONDS = 0.02
_ROWS = ("passes", "pauses", "lags")


@dataclass
class PassTimes:
    """One pass. Times are seconds; ``at`` is monotonic."""

    at: float = 0.0
    queued: float = 0.0
    """Seconds from the first news to the beginning of the pass."""
    took: float = 0.0
    waited: float = 0.0
    """The part of it in which at least one of its requests was under way."""
    plan_cpu: float = 0.0
    broke: float = 0.0
    """1 if it found that a round is over."""

    @property
    def own(self) -> float:
        """The operator's own part."""
        return self.queued + self.took - self.waited


@dataclass
class Stall:
    """``at`` is monotonic. ``cpu``: seconds that its thread had a processor; the rest it waited for one."""

    at: float
    seconds: float
    cpu: float


T = TypeVar("T", PassTimes, Stall)


class Rows(Generic[T]):
    """Rows of numbers in one array. Thousands of small objects would count as the operator's memory, and keep
    what lies between them from being given back."""

    def __init__(self, row: type[T]) -> None:
        self._row: type[T] = row
        self.values = array("d")

    def append(self, row: T) -> None:
        """Append a row."""
        self.values.extend(astuple(row))

    def __iter__(self) -> Iterator[T]:
        width = len(fields(self._row))
        for at in range(0, len(self.values), width):
            yield self._row(*self.values[at : at + width])


@dataclass
class Clocks:
    """All that was measured."""

    at: float = 0.0
    leading_at: float = 0.0
    """When this process first led; 0: never."""
    passes: Rows[PassTimes] = field(default_factory=lambda: Rows(PassTimes))
    pauses: Rows[Stall] = field(default_factory=lambda: Rows(Stall))
    """Garbage collections."""
    lags: Rows[Stall] = field(default_factory=lambda: Rows(Stall))
    """How late the event loop was, of those above a millisecond."""

    def dump(self, file: Path) -> None:
        """Write all of it: a line of JSON, and then the bytes of the arrays."""
        self.at = time.monotonic()
        rows = {name: getattr(self, name).values for name in _ROWS}
        head = {"at": self.at, "leading_at": self.leading_at, **{name: len(rows[name]) for name in _ROWS}}
        part = file.with_suffix(".part")
        with part.open("wb") as out:
            out.write(json.dumps(head).encode() + b"\n")
            for values in rows.values():
                values.tofile(out)
        part.rename(file)

    @staticmethod
    def read(file: Path) -> Clocks:
        """Read what `dump` wrote."""
        with file.open("rb") as source:
            head = json.loads(source.readline())
            clocks = Clocks(head["at"], head["leading_at"])
            for name in _ROWS:
                getattr(clocks, name).values.fromfile(source, head[name])
        return clocks


class _UnderWay:
    """A pass, and how many of its requests are under way."""

    def __init__(self) -> None:
        self.times = PassTimes()
        self._requests = 0
        self._since = 0.0
        self._over = False

    @contextlib.contextmanager
    def request(self) -> Any:
        """Count the time of a request."""
        if not self._requests:
            self._since = time.monotonic()
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._add()

    def end(self, seconds: float) -> None:
        """Record how long the pass took. Requests still under way, Events above all, do not count."""
        if self._requests:
            self._add()
        self.times.took, self._over = seconds, True

    def _add(self) -> None:
        if not self._over:
            self.times.waited += time.monotonic() - self._since


clocks = Clocks()
_current: ContextVar[_UnderWay | None] = ContextVar("current", default=None)
_news: dict[tuple[str, str], float] = {}


class TimedClient(Client):
    """The operator's client."""

    async def _request(self, method: str, path: str, **more: Any) -> Json:
        current = _current.get()
        if current is None:
            return await super()._request(method, path, **more)
        with current.request():
            return await super()._request(method, path, **more)


class TimedController(Controller):
    """The operator's controller."""

    def __init__(self, api: Client, settings: Settings, **more: Any) -> None:
        super().__init__(api, settings, _timed_plan, **more)
        reconcile = self.reconciler.reconcile

        async def timed(entry: JobEntry, hurried: bool) -> float | None:
            under_way = _UnderWay()
            times, now = under_way.times, time.monotonic()
            times.at = now
            times.queued = now - _news.pop(entry.request[:2], now)
            token = _current.set(under_way)
            try:
                return await reconcile(entry, hurried)
            finally:
                _current.reset(token)
                under_way.end(time.monotonic() - now)
                clocks.passes.append(times)

        self.reconciler.reconcile = timed  # type: ignore[method-assign]

    def enqueue(self, namespace: str, name: str) -> None:
        _news.setdefault((namespace, name), time.monotonic())
        super().enqueue(namespace, name)

    def start(self, leading: bool = True) -> None:
        super().start(leading)
        loop = asyncio.get_running_loop()
        file = Path(os.environ["JOBS_OPERATOR_FILE"])
        loop.add_signal_handler(signal.SIGUSR1, clocks.dump, file)
        loop.call_later(TICK_SECONDS, _tick, loop, loop.time() + TICK_SECONDS, time.thread_time())


def _timed_plan(
    job: Job, status: JobStatus, observed: Observed, now: Now, timers: Mapping[Any, float]
) -> Plan:
    began = time.thread_time()
    decided = plan(job, status, observed, now, timers)
    current = _current.get()
    if current is not None:
        current.times.plan_cpu += time.thread_time() - began
        if (status.current_round.phase, decided.status.current_round.phase) == ("Active", "Broken"):
            current.times.broke = 1.0
    return decided


def _tick(loop: asyncio.AbstractEventLoop, due: float, cpu: float) -> None:
    now = loop.time()
    if now - due > 0.001:
        clocks.lags.append(Stall(now, now - due, time.thread_time() - cpu))
    if not clocks.leading_at and app.running.elector is not None and app.running.elector.may_write():
        clocks.leading_at = now
    loop.call_at(now + TICK_SECONDS, _tick, loop, now + TICK_SECONDS, time.thread_time())


def _collections() -> None:
    began = cpu = 0.0

    def collected(phase: str, _: Mapping[str, Any]) -> None:
        nonlocal began, cpu
        if phase == "start":
            began, cpu = time.monotonic(), time.thread_time()
        else:
            clocks.pauses.append(Stall(began, time.monotonic() - began, time.thread_time() - cpu))

    gc.callbacks.append(collected)


def main() -> None:
    """Entry point."""
    os.environ["JOBS_OPERATOR_FILE"] = sys.argv.pop(1)
    app.Client = TimedClient  # type: ignore[attr-defined]
    app.Controller = TimedController  # type: ignore[attr-defined, assignment]
    # The other loopback addresses are other pods'.
    for module in (probe_server, health):
        module.from_inside = lambda remote: remote == "127.0.0.1"  # type: ignore[attr-defined]
    _collections()
    operator.main()


if __name__ == "__main__":
    main()
