"""The jobs of a namespace: read, submit, change, follow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

from elasticjob_client._async.launching import launch
from elasticjob_client._async.requests import AsyncRequests
from elasticjob_client.connection import FIELD_MANAGER, RESOURCE, AsyncConnection
from elasticjob_client.errors import NoServer, Rejected, translated_errors
from elasticjob_client.explain.lines import Line
from elasticjob_client.following import Log, OpenLogs, without_times
from elasticjob_client.names import check_name
from elasticjob_client.on_asyncio import Follower, opened, reach
from elasticjob_client.packing import prepared
from elasticjob_client.patience import Notice, Patience, warn
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob
from elasticjob_client.splitting import async_lines_of
from elasticjob_client.streams import interrupt
from elasticjob_client.urls import without_user
from elasticjob_client.waiting import Until, check_timeout
from elasticjob_client.watching import Watch


class AsyncJobs(AsyncRequests):
    """The ElasticJobs of one namespace: that of the context unless another is named.

    Several threads may use one; one for asyncio belongs to the running loop in which it is made.

    ``notice`` gets a sentence, from any thread, when something happens that is neither an error nor a result:
    the server is away and is asked again, a log cannot be read, a login program waits. By default it is a
    warning of the logger ``elasticjob_client``.

    Raises NoAccess if there is no usable kubeconfig, ValueError for what cannot be the name of a namespace.
    If the cluster refuses a request or does not answer, methods raise a ``ClientError``
    (``elasticjob_client.errors``) whose text says what to do; for what cannot be the name of a job or a pod
    they raise ValueError. ``wait`` also raises TimeoutError, and ``logs`` and ``run`` ValueError.
    """

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
        with translated_errors("find a cluster"):
            client = AsyncConnection(namespace, kubeconfig, context, notice, FIELD_MANAGER)
        super().__init__(client, client.namespace, without_user(client.config.cluster.server), notice)
        self.context: str | None = context
        self.kubeconfig = kubeconfig

    async def __aenter__(self) -> AsyncJobs:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()

    @property
    def kubectl_flags(self) -> list[str]:
        """The flags with which kubectl reaches the same namespace."""
        return [
            *([f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []),
            *([f"--context={self.context}"] if self.context else []),
            f"--namespace={self.namespace}",
        ]

    # -- creating ------------------------------------------------------------------------------------------

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
        """Train a function or a script: pack it into a ConfigMap and create the job.

        A function travels as source, so it imports what it uses in its own body; its ``arguments`` are
        keywords that JSON can hold. A script's are the words of its command line, and ``code`` is a directory
        to pack with it. ``asked``: further fields of ``manifest.Run``, such as ``replicas`` and ``gpus``.

        Raises ValueError if it cannot be packed or the name is not valid, TypeError for an unknown field,
        Rejected if there is a job of this name.
        """
        return await self.launch(*prepared(what, image, name, arguments, code, asked))

    async def launch(self, job: ElasticJob, code: dict[str, Any] | None = None) -> ElasticJob:
        """Create a job with the ConfigMap of its code, which goes when the job goes.

        Raises Rejected if there is a job of this name, and leaves that one's code alone.
        """
        if code is None:
            return await self.submit(job)
        return await launch(self, job, code)

    # -- following -----------------------------------------------------------------------------------------

    def logs(
        self,
        name: str,
        rank: int | None = None,
        *,
        round: int | None = None,
        since_failure: bool = False,
        tail: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[Line]:
        """Lines of the training containers, of one group rank or of all pods, also of pods that have ended as
        long as they are there. With ``follow`` as they come, until the job has ended; otherwise by time.

        A line's rank is that of its pod now, or the one that was asked for if the pod has none. A notice
        names each pod whose log cannot be read; if none can be read, the error is raised. Raises ValueError
        if there is no such rank or round, or no failure.
        """
        return opened(partial(self._shown, name, rank, round, since_failure, tail, follow))

    async def _shown(
        self,
        name: str,
        rank: int | None,
        round: int | None,
        since_failure: bool,
        tail: int | None,
        follow: bool,
    ) -> AsyncIterator[Line] | list[Line]:
        shown = await self._to_show(name, rank, round, since_failure)
        if not follow:
            return await self._together(shown, rank, tail)
        window = shown.window

        async def look() -> tuple[ElasticJob, list[Pod]]:
            return await self._again(name), await self.pods(name)

        async def read(log: Log) -> AsyncIterator[Line]:
            async for line in self._read(log):
                if log.is_new(line) and window.has(line.time):
                    yield line

        logs = OpenLogs(rank, window.since, tail, self.notice)
        return Follower(look, read, logs, self.notice).lines()

    async def _read(self, log: Log) -> AsyncIterator[Line]:
        """The lines of a log as they come; without times if the kubelet refuses to give any."""
        try:
            async for line in self._lines(log):
                yield line
        except Rejected as error:
            if not log.timed or not without_times(error):
                raise
            log.timed = False
            async for line in self._lines(log):
                yield line

    async def _lines(self, log: Log) -> AsyncIterator[Line]:
        name, reader = log.pod.name, log.reader()
        with translated_errors(f"read the log of pod {name}", self.server):
            asked = self._log_call(log.pod, *log.where(), log.timed)  # what has not been read yet
            async with self.client.followed(name, **asked) as response:
                with log.reading(partial(interrupt, response)):
                    async for text in async_lines_of(response):
                        yield reader.line(text, log.rank)

    async def watch(self, name: str) -> AsyncIterator[ElasticJob]:
        """The job now, and after each change, until it has ended.

        A server that is away is asked again for 5 minutes. Raises NotFound when the job is deleted.
        """
        async with aclosing(self._watched(await self.get(name), Patience(self.notice))) as jobs:
            async for job in jobs:
                yield job

    async def _watched(self, job: ElasticJob, patience: Patience) -> AsyncGenerator[ElasticJob, None]:
        watch = Watch(job, patience)
        yield watch.job
        while not watch.job.ended:
            error = None
            try:
                async with aclosing(self._changes(watch)) as changes:
                    async for changed in changes:
                        yield changed
            except NoServer as away:
                error = away
            if not watch.job.ended:
                await asyncio.sleep(watch.ended(error))
                if await self._looked(watch):
                    yield watch.job

    async def _changes(self, watch: Watch) -> AsyncGenerator[ElasticJob, None]:
        """What one watch says. Raises NotFound if the job is deleted."""
        name = watch.job.name
        with translated_errors(f"watch {self._full_name(name)}", self.server):
            asked = {"namespace": self.namespace, "name": name, "version": watch.version}
            async with self.client.watched(RESOURCE, **asked) as response:
                watch.opened()
                async for line in async_lines_of(response):
                    if watch.event(line) == "DELETED":
                        raise self._deleted(name)
                    yield watch.job
                    if watch.job.ended:
                        return

    async def _looked(self, watch: Watch) -> bool:
        """List the job as soon as the server answers. Returns whether it has changed."""
        while True:
            try:
                return watch.looked(*await self._listed(watch.job.name))
            except NoServer as error:
                await asyncio.sleep(watch.away(error))

    async def wait(
        self, name: str, until: Until = "Complete", timeout_seconds: float | None = None
    ) -> ElasticJob:
        """Wait for a condition of this type, such as Training or Complete, or until a function says so.

        A server that is away is asked again for 5 minutes, within ``timeout_seconds``. Raises JobFailed if
        the job ends without it, NotFound when it is deleted, TimeoutError with its state when the time is
        over.
        """
        check_timeout(timeout_seconds)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        job, patience = await self.get(name), Patience(self.notice)
        watched = partial(self._watched, job, patience)
        return await reach(job, until, deadline, patience, watched, partial(self._again, name))
