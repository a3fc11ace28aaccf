# Generated from _async/jobs.py by `python client/unasync.py`: do not edit.
"""The jobs of a namespace: read, submit, change, follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from elasticjob_client._sync.launching import launch
from elasticjob_client._sync.requests import Requests
from elasticjob_client.connection import FIELD_MANAGER, RESOURCE, Connection
from elasticjob_client.errors import NoServer, Rejected, translated_errors
from elasticjob_client.explain.lines import Line
from elasticjob_client.following import Log, OpenLogs, without_times
from elasticjob_client.names import check_name
from elasticjob_client.on_threads import Follower, opened, reach
from elasticjob_client.packing import prepared
from elasticjob_client.patience import Notice, Patience, warn
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob
from elasticjob_client.splitting import lines_of
from elasticjob_client.streams import interrupt
from elasticjob_client.urls import without_user
from elasticjob_client.waiting import Until, check_timeout
from elasticjob_client.watching import Watch


class Jobs(Requests):
    """The ElasticJobs of one namespace: that of the context unless another is named.

    Several threads may use one; one for time belongs to the running loop in which it is made.

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
            client = Connection(namespace, kubeconfig, context, notice, FIELD_MANAGER)
        super().__init__(client, client.namespace, without_user(client.config.cluster.server), notice)
        self.context: str | None = context
        self.kubeconfig = kubeconfig

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    @property
    def kubectl_flags(self) -> list[str]:
        """The flags with which kubectl reaches the same namespace."""
        return [
            *([f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []),
            *([f"--context={self.context}"] if self.context else []),
            f"--namespace={self.namespace}",
        ]

    # -- creating ------------------------------------------------------------------------------------------

    def run(
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
        return self.launch(*prepared(what, image, name, arguments, code, asked))

    def launch(self, job: ElasticJob, code: dict[str, Any] | None = None) -> ElasticJob:
        """Create a job with the ConfigMap of its code, which goes when the job goes.

        Raises Rejected if there is a job of this name, and leaves that one's code alone.
        """
        if code is None:
            return self.submit(job)
        return launch(self, job, code)

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
    ) -> Iterator[Line]:
        """Lines of the training containers, of one group rank or of all pods, also of pods that have ended as
        long as they are there. With ``follow`` as they come, until the job has ended; otherwise by time.

        A line's rank is that of its pod now, or the one that was asked for if the pod has none. A notice
        names each pod whose log cannot be read; if none can be read, the error is raised. Raises ValueError
        if there is no such rank or round, or no failure.
        """
        return opened(partial(self._shown, name, rank, round, since_failure, tail, follow))

    def _shown(
        self,
        name: str,
        rank: int | None,
        round: int | None,
        since_failure: bool,
        tail: int | None,
        follow: bool,
    ) -> Iterator[Line] | list[Line]:
        shown = self._to_show(name, rank, round, since_failure)
        if not follow:
            return self._together(shown, rank, tail)
        window = shown.window

        def look() -> tuple[ElasticJob, list[Pod]]:
            return self._again(name), self.pods(name)

        def read(log: Log) -> Iterator[Line]:
            for line in self._read(log):
                if log.is_new(line) and window.has(line.time):
                    yield line

        logs = OpenLogs(rank, window.since, tail, self.notice)
        return Follower(look, read, logs, self.notice).lines()

    def _read(self, log: Log) -> Iterator[Line]:
        """The lines of a log as they come; without times if the kubelet refuses to give any."""
        try:
            for line in self._lines(log):
                yield line
        except Rejected as error:
            if not log.timed or not without_times(error):
                raise
            log.timed = False
            for line in self._lines(log):
                yield line

    def _lines(self, log: Log) -> Iterator[Line]:
        name, reader = log.pod.name, log.reader()
        with translated_errors(f"read the log of pod {name}", self.server):
            asked = self._log_call(log.pod, *log.where(), log.timed)  # what has not been read yet
            with self.client.followed(name, **asked) as response:
                with log.reading(partial(interrupt, response)):
                    for text in lines_of(response):
                        yield reader.line(text, log.rank)

    def watch(self, name: str) -> Iterator[ElasticJob]:
        """The job now, and after each change, until it has ended.

        A server that is away is asked again for 5 minutes. Raises NotFound when the job is deleted.
        """
        with closing(self._watched(self.get(name), Patience(self.notice))) as jobs:
            for job in jobs:
                yield job

    def _watched(self, job: ElasticJob, patience: Patience) -> Generator[ElasticJob, None, None]:
        watch = Watch(job, patience)
        yield watch.job
        while not watch.job.ended:
            error = None
            try:
                with closing(self._changes(watch)) as changes:
                    for changed in changes:
                        yield changed
            except NoServer as away:
                error = away
            if not watch.job.ended:
                time.sleep(watch.ended(error))
                if self._looked(watch):
                    yield watch.job

    def _changes(self, watch: Watch) -> Generator[ElasticJob, None, None]:
        """What one watch says. Raises NotFound if the job is deleted."""
        name = watch.job.name
        with translated_errors(f"watch {self._full_name(name)}", self.server):
            asked = {"namespace": self.namespace, "name": name, "version": watch.version}
            with self.client.watched(RESOURCE, **asked) as response:
                watch.opened()
                for line in lines_of(response):
                    if watch.event(line) == "DELETED":
                        raise self._deleted(name)
                    yield watch.job
                    if watch.job.ended:
                        return

    def _looked(self, watch: Watch) -> bool:
        """List the job as soon as the server answers. Returns whether it has changed."""
        while True:
            try:
                return watch.looked(*self._listed(watch.job.name))
            except NoServer as error:
                time.sleep(watch.away(error))

    def wait(self, name: str, until: Until = "Complete", timeout_seconds: float | None = None) -> ElasticJob:
        """Wait for a condition of this type, such as Training or Complete, or until a function says so.

        A server that is away is asked again for 5 minutes, within ``timeout_seconds``. Raises JobFailed if
        the job ends without it, NotFound when it is deleted, TimeoutError with its state when the time is
        over.
        """
        check_timeout(timeout_seconds)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        job, patience = self.get(name), Patience(self.notice)
        watched = partial(self._watched, job, patience)
        return reach(job, until, deadline, patience, watched, partial(self._again, name))
