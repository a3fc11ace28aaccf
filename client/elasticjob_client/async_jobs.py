"""The jobs of a namespace for programs on asyncio: what ``jobs`` has, method by method."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from elasticjob_client.async_following import AsyncFollower
from elasticjob_client.connection import AsyncConnection
from elasticjob_client.errors import NoServer, NotFound, Rejected, told
from elasticjob_client.following import Begun, Log
from elasticjob_client.functions import prepared
from elasticjob_client.launching import launch
from elasticjob_client.names import check_name
from elasticjob_client.patience import Notice, Patience, warn
from elasticjob_client.pods import Pod
from elasticjob_client.requests import (
    FIELD_MANAGER,
    RESOURCE,
    Event,
    Many,
    Requests,
    Steps,
    check_timeout,
    reached,
    waited,
    without_times,
)
from elasticjob_client.resource import ElasticJob
from elasticjob_client.splitting import async_lines_of
from elasticjob_client.streams import interrupt
from elasticjob_client.tell.lines import Line, Window
from elasticjob_client.urls import without_user
from elasticjob_client.watching import Watch

_T = TypeVar("_T")


class AsyncJobs:
    """The ElasticJobs of one namespace; methods and errors as in ``Jobs``. Make it in a running loop."""

    def __init__(
        self,
        namespace: str | None = None,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        notice: Notice | None = None,
    ) -> None:
        if namespace is not None:
            check_name("a namespace", namespace)
        notice = notice or warn
        with told("find a cluster"):
            self._client = AsyncConnection(namespace, kubeconfig, context, notice, FIELD_MANAGER)
        self.server: str = without_user(self._client.config.cluster.server)
        self.namespace: str = self._client.namespace
        self._notice = notice
        self._requests = Requests(self.namespace, self.server, notice)

    async def __aenter__(self) -> AsyncJobs:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def _do(self, steps: Steps[_T]) -> _T:
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                asked = steps.throw(error) if error else steps.send(answer)
            except StopIteration as done:
                found: _T = done.value
                return found
            answer, error = None, None
            try:
                answer = asked.of(self._client)
                if isinstance(asked, Many):
                    answer = [one async for one in answer]
                else:
                    answer = await answer
            except BaseException as raised:  # noqa: BLE001 - the steps judge it
                error = raised

    async def all(self, all_namespaces: bool = False) -> list[ElasticJob]:
        """All jobs of the namespace, or of all, by namespace and name."""
        return await self._do(self._requests.all(all_namespaces))

    async def raw(self, name: str) -> dict[str, Any]:
        """The object as the API server has it."""
        return await self._do(self._requests.raw(name))

    async def get(self, name: str) -> ElasticJob:
        """The job. Raises NotFound if there is none of this name."""
        return await self._do(self._requests.get(name))

    async def refreshed(self, job: ElasticJob) -> ElasticJob:
        """The job with the step, the speed and the goodput that its leader has in its Lease, seconds old: the
        status may be a minute behind. The same job if its Lease cannot be read."""
        return await self._do(self._requests.refreshed(job))

    async def pods(self, name: str) -> list[Pod]:
        """The job's pods, also those that have ended or are going, by slot, the older first."""
        return await self._do(self._requests.pods(name))

    async def events(self, name: str, pods: Sequence[Pod] = ()) -> list[Event]:
        """What Events say of the job, and of these pods of it, oldest first; kept for an hour or so. Those of
        an earlier job or pod of the name are left out."""
        return await self._do(self._requests.events(name, pods))

    async def tail(self, pod: Pod, count: int, within: Window | None = None) -> list[str]:
        """The last lines of a pod's training container; empty if it has none to show.

        ``within``: the last of that time; none if the kubelet gives no times.
        """
        return await self._do(self._requests.tail(pod, count, within))

    async def logs(
        self,
        name: str,
        rank: int | None = None,
        *,
        round: int | None = None,
        since_failure: bool = False,
        tail: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[Line]:
        """Lines as those of ``Jobs.logs``: ``async for line in jobs.logs("mnist", 0, follow=True)``.

        Raises ValueError with the first line if there is no such rank or round, or no failure.
        """
        shown = await self._do(self._requests.to_show(name, rank, round, since_failure))
        if not follow:
            for line in await self._do(self._requests.together(shown, rank, tail)):
                yield line
            return
        window = shown.window

        async def look() -> tuple[ElasticJob, list[Pod]]:
            return await self._do(self._requests.again(name)), await self.pods(name)

        async def read(log: Log) -> AsyncIterator[Line]:
            async for found in self._read(log):
                if log.is_new(found) and window.has(found.time):
                    yield found

        begun = Begun(rank, window.since, tail, self._notice)
        async for line in AsyncFollower(look, read, begun, self._notice).lines():
            yield line

    async def _read(self, log: Log) -> AsyncIterator[Line]:
        """The lines of a log as they come; without times if the kubelet refuses to give any."""
        try:
            async for found in self._lines(log):
                yield found
        except Rejected as error:
            if not log.timed or not without_times(error):
                raise
            log.timed = False
            async for found in self._lines(log):
                yield found

    async def _lines(self, log: Log) -> AsyncIterator[Line]:
        name, reader = log.pod.name, log.reader()
        with told(f"read the log of pod {name}", self.server):
            async with self._client.followed(name, **self._requests.follow_call(log)) as response:
                with log.reading(partial(interrupt, response)):
                    async for text in async_lines_of(response):
                        yield reader.line(text, log.rank)

    async def submit(self, job: ElasticJob | dict[str, Any], *, dry_run: bool = False) -> ElasticJob:
        """Create a job. Raises Rejected if there is one of this name, or if a field is refused."""
        return await self._do(self._requests.submit(job, dry_run))

    async def run(
        self,
        what: Callable[..., Any] | str | Path,
        *,
        image: str,
        name: str | None = None,
        arguments: Mapping[str, Any] | Sequence[str] = (),
        code: str | Path | None = None,
        **asked: Any,
    ) -> ElasticJob:
        """Train a function or a script, as ``Jobs.run`` does.

        Raises ValueError if it cannot be packed, Rejected if there is a job of this name.
        """
        return await self.launch(*prepared(what, image, name, arguments, code, asked))

    async def launch(self, job: ElasticJob, code: dict[str, Any] | None = None) -> ElasticJob:
        """Create a job with the ConfigMap of its code, which goes when the job goes.

        Raises Rejected if there is a job of this name, and leaves that one's code alone.
        """
        return await self._do(launch(self._requests, job, code))

    async def scale(self, name: str, replicas: int) -> ElasticJob:
        """Set the number of pods."""
        return await self._do(self._requests.change(name, {"replicas": replicas}, f"scale to {replicas}"))

    async def suspend(self, name: str) -> ElasticJob:
        """End the round and delete the pods; the job's state is kept."""
        return await self._do(self._requests.change(name, {"suspend": True}, "suspend"))

    async def resume(self, name: str) -> ElasticJob:
        """Train again, from the script's last checkpoint."""
        return await self._do(self._requests.change(name, {"suspend": False}, "resume"))

    async def patch(self, name: str, **spec: Any) -> ElasticJob:
        """Change fields of the spec, by the names of the definition: ``patch("mnist", replicas=4)``."""
        return await self._do(self._requests.patch(name, spec))

    async def delete(self, name: str) -> None:
        """Delete the job, and with it its pods."""
        await self._do(self._requests.delete(name))

    async def kill(self, pod: Pod) -> None:
        """Delete a pod without a grace period: its containers get SIGKILL."""
        await self._do(self._requests.kill(pod))

    def watch(self, name: str) -> AsyncIterator[ElasticJob]:
        """The job now, and after each change, until it has ended.

        A server that is away is asked again for 5 minutes. Raises NotFound when the job is deleted.
        """
        return self._watched(name, Patience(self._notice))

    async def _watched(self, name: str, patience: Patience) -> AsyncGenerator[ElasticJob, None]:
        watch = Watch(await self.get(name), patience)
        yield watch.job
        while not watch.job.ended:
            error = None
            try:
                async with aclosing(self._changes(watch)) as changes:
                    async for job in changes:
                        yield job
            except NoServer as away:
                error = away
            if not watch.job.ended:
                await asyncio.sleep(watch.ended(error))
                if await self._looked(watch):
                    yield watch.job

    async def _changes(self, watch: Watch) -> AsyncGenerator[ElasticJob, None]:
        """What one watch says."""
        name = self._requests.name_of(watch.job.name)
        with told(f"watch {name}", self.server):
            async with self._client.watched(RESOURCE, **self._requests.watch_call(watch)) as response:
                watch.opened()
                async for line in async_lines_of(response):
                    yield self._requests.changed(watch, line)
                    if watch.job.ended:
                        return

    async def _looked(self, watch: Watch) -> bool:
        """Look at the job as soon as the server says. Returns whether it has changed."""
        while True:
            try:
                return watch.looked(*await self._do(self._requests.look(watch.job.name)))
            except NoServer as error:
                await asyncio.sleep(watch.away(error))

    async def wait(
        self,
        name: str,
        until: str | Callable[[ElasticJob], bool] = "Complete",
        timeout_seconds: float | None = None,
    ) -> ElasticJob:
        """Wait for a condition of this type, such as Training or Complete, or until a function says so.

        A server that is away is asked again for 5 minutes, within ``timeout_seconds``. Raises JobFailed if
        the job ends without it, NotFound when it is deleted, TimeoutError with its state when the time is
        over.
        """
        check_timeout(timeout_seconds)
        last: list[ElasticJob] = []
        patience = Patience(self._notice)
        try:
            return await asyncio.wait_for(self._reached(name, until, last, patience), timeout_seconds)
        except asyncio.TimeoutError:
            job = last[-1] if last else await self.get(name)
            raise waited(job, until, patience.reason) from None

    async def _reached(
        self,
        name: str,
        until: str | Callable[[ElasticJob], bool],
        last: list[ElasticJob],
        patience: Patience,
    ) -> ElasticJob:
        async with aclosing(self._watched(name, patience)) as found:
            async for job in found:
                last[:] = [job]
                if reached(job, until):
                    return job
        raise NotFound(f"ElasticJob {self.namespace}/{name} is gone")
