"""The jobs of a namespace: read, submit, change, follow. What the command line is built on.

A thin shell: what is asked of the server is in ``requests``, what is concluded from the answers in ``tell``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from elasticjob_client.connection import Connection
from elasticjob_client.errors import NoServer, Rejected, told
from elasticjob_client.following import Begun, Follower, Log
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
from elasticjob_client.splitting import lines_of
from elasticjob_client.streams import interrupt
from elasticjob_client.tell.lines import Line, Window
from elasticjob_client.urls import without_user
from elasticjob_client.watching import Watch

POLL_SECONDS = 1.0
"""Between two looks at a job that is waited for with a deadline."""

_T = TypeVar("_T")


class Jobs:
    """The ElasticJobs of one namespace: that of the context unless another is named. For several threads.

    ``notice`` is told, from any thread, of what is neither an error nor a result: that the server is away
    and is asked again, that a log cannot be read, that a login program waits. By default it is a warning of
    the logger ``elasticjob_client``.

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
        with told("find a cluster"):
            self._client = Connection(namespace, kubeconfig, context, notice, FIELD_MANAGER)
        self.server: str = without_user(self._client.config.cluster.server)
        self.namespace: str = self._client.namespace
        self.context: str | None = context
        self.kubeconfig = kubeconfig
        self._notice = notice
        self._requests = Requests(self.namespace, self.server, notice)

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @property
    def client(self) -> Connection:
        """lightkube's client, for what this class does not do."""
        return self._client

    @property
    def kubectl_flags(self) -> list[str]:
        """The flags with which kubectl reaches the same namespace."""
        return [
            *([f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []),
            *([f"--context={self.context}"] if self.context else []),
            f"--namespace={self.namespace}",
        ]

    def _do(self, steps: Steps[_T]) -> _T:
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
                    answer = list(answer)
            except BaseException as raised:  # noqa: BLE001 - the steps judge it
                error = raised

    # -- reading -------------------------------------------------------------------------------------------

    def all(self, all_namespaces: bool = False) -> list[ElasticJob]:
        """All jobs of the namespace, or of all, by namespace and name."""
        return self._do(self._requests.all(all_namespaces))

    def raw(self, name: str) -> dict[str, Any]:
        """The object as the API server has it."""
        return self._do(self._requests.raw(name))

    def get(self, name: str) -> ElasticJob:
        """The job. Raises NotFound if there is none of this name."""
        return self._do(self._requests.get(name))

    def refreshed(self, job: ElasticJob) -> ElasticJob:
        """The job with the step, the speed and the goodput that its leader has in its Lease, seconds old: the
        status may be a minute behind. The same job if its Lease cannot be read."""
        return self._do(self._requests.refreshed(job))

    def pods(self, name: str) -> list[Pod]:
        """The job's pods, also those that have ended or are going, by slot, the older first."""
        return self._do(self._requests.pods(name))

    def events(self, name: str, pods: Sequence[Pod] = ()) -> list[Event]:
        """What Events say of the job, and of these pods of it, oldest first; kept for an hour or so. Those of
        an earlier job or pod of the name are left out."""
        return self._do(self._requests.events(name, pods))

    def tail(self, pod: Pod, count: int, within: Window | None = None) -> list[str]:
        """The last lines of a pod's training container; empty if it has none to show.

        ``within``: the last of that time; none if the kubelet gives no times.
        """
        return self._do(self._requests.tail(pod, count, within))

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

        A line's rank is that of its pod now, or the one that was asked for if the pod has none. A pod's log
        that cannot be read is named in a notice; if that is so of all, the error is raised. Raises ValueError
        if there is no such rank or round, or no failure.
        """
        shown = self._do(self._requests.to_show(name, rank, round, since_failure))
        if not follow:
            return iter(self._do(self._requests.together(shown, rank, tail)))
        window = shown.window

        def look() -> tuple[ElasticJob, list[Pod]]:
            return self._do(self._requests.again(name)), self.pods(name)

        def read(log: Log) -> Iterator[Line]:
            return (line for line in self._read(log) if log.is_new(line) and window.has(line.time))

        begun = Begun(rank, window.since, tail, self._notice)
        return Follower(look, read, begun, self._notice).lines()

    def _read(self, log: Log) -> Iterator[Line]:
        """The lines of a log as they come; without times if the kubelet refuses to give any."""
        try:
            yield from self._lines(log)
        except Rejected as error:
            if not log.timed or not without_times(error):
                raise
            log.timed = False
            yield from self._lines(log)

    def _lines(self, log: Log) -> Iterator[Line]:
        name, reader = log.pod.name, log.reader()
        with (
            told(f"read the log of pod {name}", self.server),
            self._client.followed(name, **self._requests.follow_call(log)) as response,
            log.reading(partial(interrupt, response)),
        ):
            for text in lines_of(response):
                yield reader.line(text, log.rank)

    # -- changing ------------------------------------------------------------------------------------------

    def submit(self, job: ElasticJob | dict[str, Any], *, dry_run: bool = False) -> ElasticJob:
        """Create a job. Raises Rejected if there is one of this name, or if a field is refused."""
        return self._do(self._requests.submit(job, dry_run))

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
        return self._do(launch(self._requests, job, code))

    def scale(self, name: str, replicas: int) -> ElasticJob:
        """Set the number of pods."""
        return self._do(self._requests.change(name, {"replicas": replicas}, f"scale to {replicas}"))

    def suspend(self, name: str) -> ElasticJob:
        """End the round and delete the pods; the job's state is kept."""
        return self._do(self._requests.change(name, {"suspend": True}, "suspend"))

    def resume(self, name: str) -> ElasticJob:
        """Train again, from the script's last checkpoint."""
        return self._do(self._requests.change(name, {"suspend": False}, "resume"))

    def delete(self, name: str) -> None:
        """Delete the job, and with it its pods."""
        self._do(self._requests.delete(name))

    def kill(self, pod: Pod) -> None:
        """Delete a pod without a grace period: its containers get SIGKILL."""
        self._do(self._requests.kill(pod))

    # -- following -----------------------------------------------------------------------------------------

    def watch(self, name: str) -> Iterator[ElasticJob]:
        """The job now, and after each change, until it has ended.

        A server that is away is asked again for 5 minutes. Raises NotFound when the job is deleted.
        """
        watch = Watch(self.get(name), Patience(self._notice))
        yield watch.job
        while not watch.job.ended:
            error = None
            try:
                yield from self._changes(watch)
            except NoServer as away:
                error = away
            if not watch.job.ended:
                time.sleep(watch.ended(error))
                if self._looked(watch):
                    yield watch.job

    def _changes(self, watch: Watch) -> Iterator[ElasticJob]:
        """What one watch says."""
        name = self._requests.name_of(watch.job.name)
        with (
            told(f"watch {name}", self.server),
            self._client.watched(RESOURCE, **self._requests.watch_call(watch)) as response,
        ):
            watch.opened()
            for line in lines_of(response):
                yield self._requests.changed(watch, line)
                if watch.job.ended:
                    return

    def _looked(self, watch: Watch) -> bool:
        """Look at the job as soon as the server says. Returns whether it has changed."""
        while True:
            try:
                return watch.looked(*self._do(self._requests.look(watch.job.name)))
            except NoServer as error:
                time.sleep(watch.away(error))

    def wait(
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
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        job, patience, pause = self.get(name), Patience(self._notice), POLL_SECONDS
        while not reached(job, until):
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise waited(job, until, patience.reason)
                pause = min(pause, left)
            time.sleep(pause)
            try:
                job, pause = self._do(self._requests.again(name)), POLL_SECONDS
                patience.answered()
            except NoServer as error:
                pause = patience.pause(error)
        return job
