"""Several writes of one pass at the same time: a slow or failing write holds up nothing else.

A pass waits for its writes, so that the next pass sees their results. But it waits only while they make
progress. A write that hangs then continues in the background, and is not started a second time meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from elasticjob_operator.act.job_state import Spawn, Stale, WriteState
from elasticjob_operator.act.write_failures import record_write_failure
from elasticjob_operator.logs import about
from elasticjob_operator.observe.errors import ApiError, NotLeading
from elasticjob_operator.plan.state.model import Event, Job, Target

NO_PROGRESS_SECONDS = 1.0
"""Seconds without one of the writes having come to its end."""
MAX_WAIT_SECONDS = 5.0

log = logging.getLogger("elasticjob.operator")


class Batch:
    """See the module. ``late`` is called when a write for which no pass waits any more has ended, with the
    Events to send."""

    def __init__(
        self,
        job: Job,
        writes: WriteState,
        clock: Callable[[], float],
        spawn: Spawn,
        late: Callable[[list[Event]], None],
    ) -> None:
        self._job = job
        self._writes = writes
        self._clock = clock
        self._spawn = spawn
        self._late = late
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: dict[str, Target] = {}
        """A write that has failed in this batch, by verb. Others of that verb are postponed."""
        self._waited_for = True
        self._wrong: Exception | None = None
        """An unexpected error, or Stale: something has to be read again."""
        self.events: list[Event] = []

    def add(
        self, target: Target, write: Callable[[], Awaitable[None]], hurried: bool = False, gated: bool = False
    ) -> None:
        """Begin this write, unless it is under way or has to wait. ``gated``: a few of those at a time."""
        writes = self._writes
        if target in writes.under_way or not writes.backoff.due(target, self._clock(), hurried):
            return
        writes.under_way.add(target)
        task = self._spawn(self._run(target, write, gated), f"{self._job.key}: {target.name}")
        # Also of a task that was cancelled before its first step.
        task.add_done_callback(lambda _: writes.under_way.discard(target))
        self._tasks.add(task)

    async def wait(self) -> None:
        """Wait for the writes as long as they get on. Raises Stale if one has found that out, and what is no
        ApiError."""
        began = self._clock()
        pending = self._tasks
        while pending and self._clock() - began < MAX_WAIT_SECONDS:
            done, pending = await asyncio.wait(
                pending, timeout=NO_PROGRESS_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
        self._waited_for = False
        if self._wrong is not None:
            raise self._wrong

    async def _run(self, target: Target, write: Callable[[], Awaitable[None]], gated: bool) -> None:
        writes = self._writes
        try:
            if not gated:
                await write()
            else:
                async with writes.gate:
                    like = self._failed.get(target.verb)
                    if like is not None:
                        writes.backoff.put_off(target, like, self._clock())
                        return
                    await write()
        except Stale as stale:
            self._wrong, writes.stale = stale, not self._waited_for
        except NotLeading as error:
            log.info("%s", error, extra=about(self._job.key))
        except ApiError as error:
            self._record_failure(target, error)
        except Exception as error:
            self._wrong = error
            if not self._waited_for:
                log.exception("writing %s failed", target.name, extra=about(self._job.key))
        else:
            writes.backoff.done(target)
        if not self._waited_for:
            events, self.events = self.events, []
            self._late(events)

    def _record_failure(self, target: Target, error: ApiError) -> None:
        self._failed[target.verb] = target
        self.events += record_write_failure(self._job, self._writes, target, error, self._clock())
