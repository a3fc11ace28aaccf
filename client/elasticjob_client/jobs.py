"""The jobs of a namespace: read, submit, change, follow. What the command line is built on.

A thin shell: each method is one request, or a watch. What is concluded from the answers is in ``tell``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from lightkube.core.client import Client, FieldSelector
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import ConfigMap, Namespace
from lightkube.resources.core_v1 import Event as CoreEvent
from lightkube.resources.core_v1 import Pod as CorePod
from lightkube.types import OnErrorAction, OnErrorResult, PatchType

from elasticjob_client import pods as pods_of
from elasticjob_client.access import configuration
from elasticjob_client.errors import ClientError, JobFailed, NotFound, Rejected, no_namespace, told
from elasticjob_client.following import Follower
from elasticjob_client.functions import prepared
from elasticjob_client.pods import JOB_LABEL, Pod
from elasticjob_client.resource import API_VERSION, KIND, ElasticJob
from elasticjob_client.tell import lines
from elasticjob_client.tell.lines import Line, Window

GROUP, VERSION = API_VERSION.split("/")
RESOURCE = create_namespaced_resource(GROUP, VERSION, KIND, "elasticjobs")
CODE_LABEL = f"{GROUP}/code-of"
"""On a ConfigMap: the job for which it was made."""
FIELD_MANAGER = "elasticjob-client"
POLL_SECONDS = 1.0
"""Between two looks at a job that is waited for with a deadline."""
_RETRIES = 5
_ENDED = ("Complete", "Failed")


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What the operator, or Kubernetes, has said of a job or one of its pods. ``count``: how often."""

    time: datetime | None = None
    type: str = "Normal"
    reason: str = ""
    message: str = ""
    object: str = ""
    count: int = 1


class Jobs:
    """The ElasticJobs of one namespace: that of the context unless another is named.

    Raises NoAccess if there is no usable kubeconfig. Every method raises an error of
    ``elasticjob_client.errors`` whose text says what to do.
    """

    def __init__(
        self, namespace: str | None = None, *, kubeconfig: str | None = None, context: str | None = None
    ) -> None:
        with told("find a cluster"):
            config = configuration(kubeconfig, context)
            self.server = config.cluster.server
            self._client = Client(config, namespace=namespace, field_manager=FIELD_MANAGER)
        self.namespace: str = self._client.namespace
        self.context: str | None = context
        self.kubeconfig = kubeconfig

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @property
    def client(self) -> Client:
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

    # -- reading -------------------------------------------------------------------------------------------

    def all(self, all_namespaces: bool = False) -> list[ElasticJob]:
        """All jobs of the namespace, or of all, by namespace and name."""
        where = "all namespaces" if all_namespaces else f"namespace {self.namespace}"
        with told(f"list ElasticJobs of {where}", self.server):
            namespace = "*" if all_namespaces else self.namespace
            found = [ElasticJob.from_dict(one) for one in self._client.list(RESOURCE, namespace=namespace)]
        if not found and not all_namespaces:
            self._must_exist(f"list ElasticJobs of {where}")
        return sorted(found, key=lambda job: (job.namespace, job.name))

    def raw(self, name: str) -> dict[str, Any]:
        """The object as the API server has it."""
        what = f"read ElasticJob {self.namespace}/{name}"
        try:
            with told(what, self.server):
                return dict(self._client.get(RESOURCE, name, namespace=self.namespace))
        except NotFound:
            self._must_exist(what)
            raise

    def _must_exist(self, what: str) -> None:
        """Raises NotFound if there is no such namespace, as far as the user may know that."""
        try:
            with told(what, self.server):
                self._client.get(Namespace, self.namespace)
        except NotFound:
            raise no_namespace(what, self.namespace) from None
        except ClientError:
            return

    def get(self, name: str) -> ElasticJob:
        """The job. Raises NotFound if there is none of this name."""
        body = self.raw(name)
        with told(f"read ElasticJob {self.namespace}/{name}"):
            return ElasticJob.from_dict(body)

    def pods(self, name: str) -> list[Pod]:
        """The job's pods, also those that have ended or are going, by slot, the older first."""
        with told(f"list the pods of ElasticJob {self.namespace}/{name}", self.server):
            found = self._client.list(CorePod, namespace=self.namespace, labels={JOB_LABEL: name})
            return pods_of.in_order(pods_of.of(one) for one in found)

    def events(self, name: str, pods: Sequence[Pod] = ()) -> list[Event]:
        """What Events say of the job, and of these pods of it, oldest first; kept for an hour or so."""
        names = {("ElasticJob", name), *(("Pod", pod.name) for pod in pods)}
        fields: FieldSelector | None = None if pods else {"involvedObject.name": name}
        with told(f"list the Events of ElasticJob {self.namespace}/{name}", self.server):
            found = list(self._client.list(CoreEvent, namespace=self.namespace, fields=fields))
        mine = [one for one in found if (one.involvedObject.kind, one.involvedObject.name) in names]
        mine.sort(key=lambda one: (one.metadata.name or "") if one.metadata else "")  # those of one second
        return sorted(map(_event, mine), key=lambda e: e.time.timestamp() if e.time else 0.0)

    def tail(self, pod: Pod, count: int) -> list[str]:
        """The last lines of a pod's training container; empty if it has none to show."""
        try:
            return [found.text for found in self._log(pod, None, tail=count)]
        except (NotFound, Rejected):  # the container has not started, or is gone
            return []

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

        Raises ValueError if there is no such rank or round, or no failure.
        """
        job, pods = self.get(name), self.pods(name)
        shown = lines.window(job, round, since_failure)
        if rank is not None and job.members and not pods_of.of_rank(job, pods, rank):
            raise ValueError(f"{name} has no group rank {rank}: expected 0 to {len(job.members) - 1}")
        if follow:
            timed = shown != lines.Window()

            def read(pod: Pod, of: int | None, on: bool) -> Iterator[Line]:
                found = self._log(pod, of, follow=on, since=shown.since, tail=tail, timed=timed)
                return (line for line in found if shown.has(line.time))

            look = Follower(lambda: (self.get(name), self.pods(name)), read, rank, shown.since)
            return look.lines()
        return self._together(job, lines.chosen(job, pods, rank), shown, tail)

    def _together(
        self, job: ElasticJob, pods: Sequence[Pod], shown: Window, tail: int | None
    ) -> Iterator[Line]:
        """Those of several pods by time. A kubelet that gives no times: one pod after the other."""
        names = pods_of.ranks(job)
        timed = len(pods) > 1 or shown != Window()

        def log(pod: Pod, timed: bool) -> list[Line]:
            return list(self._log(pod, names.get(pod.name), since=shown.since, tail=tail, timed=timed))

        try:
            return lines.in_time([log(pod, timed) for pod in pods], shown)
        except Rejected:
            if shown != Window():
                raise
            return chain.from_iterable(log(pod, False) for pod in pods)

    def _log(
        self,
        pod: Pod,
        rank: int | None,
        *,
        follow: bool = False,
        since: datetime | None = None,
        tail: int | None = None,
        timed: bool = False,
    ) -> Iterator[Line]:
        ago = None if since is None else max(1, int((datetime.now(timezone.utc) - since).total_seconds()) + 1)
        with told(f"read the log of pod {pod.name}", self.server):
            found = self._client.log(
                pod.name,
                namespace=self.namespace,
                container=pod.container or None,
                follow=follow,
                since=ago,
                tail_lines=tail,
                timestamps=timed,
                newlines=False,
            )
            for text in found:
                yield lines.line(pod.name, text, rank, timed)

    # -- changing ------------------------------------------------------------------------------------------

    def submit(self, job: ElasticJob | dict[str, Any], *, dry_run: bool = False) -> ElasticJob:
        """Create a job. Raises Rejected if there is one of this name, or if a field is refused."""
        body = job.to_dict() if isinstance(job, ElasticJob) else job
        name = body.get("metadata", {}).get("name", "")
        with told(f"create ElasticJob {self.namespace}/{name}", self.server):
            made = self._client.create(RESOURCE(**body), namespace=self.namespace, dry_run=dry_run)
        return ElasticJob.from_dict(dict(made))

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
        keywords that JSON can hold. A script's are the words of its command line, and ``code`` is a folder to
        pack with it. ``asked``: further fields of ``manifest.Run``, such as ``replicas`` and ``gpus``.

        Raises ValueError if it cannot be packed, Rejected if there is a job of this name.
        """
        return self.launch(*prepared(what, image, name, arguments, code, asked))

    def launch(self, job: ElasticJob, code: dict[str, Any] | None = None) -> ElasticJob:
        """Create a job with the ConfigMap of its code, which goes when the job goes.

        Raises Rejected if there is a job of this name, and leaves that one's code alone.
        """
        if code is None:
            return self.submit(job)
        self.submit(job, dry_run=True)
        name = code["metadata"]["name"]
        self._put_code(job.name, name, code)
        try:
            made = self.submit(job)
        except ClientError:
            with told(f"delete ConfigMap {self.namespace}/{name}", self.server):
                self._client.delete(ConfigMap, name, namespace=self.namespace)
            raise
        owner = {"apiVersion": API_VERSION, "kind": KIND, "name": made.name, "uid": made.metadata.uid}
        with told(f"change ConfigMap {self.namespace}/{name}", self.server):
            body = {"metadata": {"ownerReferences": [owner]}}
            self._client.patch(ConfigMap, name, body, namespace=self.namespace, patch_type=PatchType.MERGE)
        return made

    def _put_code(self, job: str, name: str, code: dict[str, Any]) -> None:
        """Create the ConfigMap; one that an earlier run of this job's name has left is replaced, no other."""
        here = {**code, "metadata": {**code["metadata"], "namespace": self.namespace}}
        body = msgspec.convert(here, ConfigMap)
        try:
            with told(f"create ConfigMap {self.namespace}/{name}", self.server):
                self._client.create(body)
        except Rejected:
            with told(f"replace ConfigMap {self.namespace}/{name}", self.server):
                found = self._client.get(ConfigMap, name, namespace=self.namespace)
                labels = found.metadata.labels if found.metadata else None
                if (labels or {}).get(CODE_LABEL) != job:
                    raise
                self._client.replace(body)

    def scale(self, name: str, replicas: int) -> ElasticJob:
        """Set the number of pods."""
        return self._patch(name, {"spec": {"replicas": replicas}}, f"scale to {replicas}")

    def suspend(self, name: str) -> ElasticJob:
        """End the round and delete the pods; the job's state is kept."""
        return self._patch(name, {"spec": {"suspend": True}}, "suspend")

    def resume(self, name: str) -> ElasticJob:
        """Train again, from the script's last checkpoint."""
        return self._patch(name, {"spec": {"suspend": False}}, "resume")

    def _patch(self, name: str, body: dict[str, Any], what: str) -> ElasticJob:
        ended = self.get(name)
        if ended.ended:
            assert ended.status
            state = ended.status.terminal_state
            raise Rejected(
                f"cannot {what} ElasticJob {self.namespace}/{name}: it is {state}, which is final. "
                "Delete it and create it again: the script resumes from its checkpoint."
            )
        with told(f"{what} ElasticJob {self.namespace}/{name}", self.server):
            changed = self._client.patch(
                RESOURCE, name, body, namespace=self.namespace, patch_type=PatchType.MERGE
            )
        return ElasticJob.from_dict(dict(changed))

    def delete(self, name: str) -> None:
        """Delete the job, and with it its pods."""
        with told(f"delete ElasticJob {self.namespace}/{name}", self.server):
            self._client.delete(RESOURCE, name, namespace=self.namespace)

    def kill(self, pod: Pod) -> None:
        """Delete a pod without a grace period: its containers get SIGKILL."""
        with told(f"delete pod {self.namespace}/{pod.name}", self.server):
            self._client.delete(CorePod, pod.name, namespace=self.namespace, grace_period=0)

    # -- following -----------------------------------------------------------------------------------------

    def watch(self, name: str) -> Iterator[ElasticJob]:
        """The job now, and after each change, until it has ended. Raises NotFound when it is deleted.

        A server that is away for a while is tried again.
        """
        first = self.get(name)
        yield first
        if first.ended:
            return
        with told(f"watch ElasticJob {self.namespace}/{name}", self.server):
            changes = self._client.watch(
                RESOURCE,
                namespace=self.namespace,
                fields={"metadata.name": name},
                resource_version=first.metadata.resource_version,
                on_error=retry,
            )
            for kind, found in changes:
                if kind == "DELETED":
                    raise NotFound(f"ElasticJob {self.namespace}/{name} has been deleted")
                job = ElasticJob.from_dict(dict(found))
                yield job
                if job.ended:
                    return

    def wait(
        self,
        name: str,
        until: str | Callable[[ElasticJob], bool] = "Complete",
        timeout_seconds: float | None = None,
    ) -> ElasticJob:
        """Wait for a condition of this type, such as Training or Complete, or until a function says so.

        Raises JobFailed if the job ends without it, TimeoutError with its state when the time is over.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            job = self.get(name)
            if reached(job, until):
                return job
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(waited(job, until))
            time.sleep(POLL_SECONDS)


def reached(job: ElasticJob, until: str | Callable[[ElasticJob], bool]) -> bool:
    """Whether it is what was waited for. Raises JobFailed if it never will be."""
    if callable(until):
        done = until(job)
    else:
        condition = job.condition(until)
        done = condition is not None and condition.status == "True"
    if done:
        return True
    if job.ended:
        ended = next((c for kind in _ENDED if (c := job.condition(kind)) and c.status == "True"), None)
        what = f"{ended.type}: {ended.reason}: {ended.message}" if ended else "has ended"
        raise JobFailed(f"ElasticJob {job.namespace}/{job.name} is {what}")
    return False


def waited(job: ElasticJob, until: str | Callable[[ElasticJob], bool]) -> str:
    """What a wait says whose time is over."""
    training = job.condition("Training")
    state = (
        f"{training.reason}: {training.message}" if training else "without a status: no operator serves it"
    )
    wanted = "what was waited for" if callable(until) else until
    return f"ElasticJob {job.namespace}/{job.name} is not {wanted} yet; it is {state}"


def retry(error: Exception, count: int) -> OnErrorResult:
    """A watch goes on after what may pass: a lost connection, a busy server, a version that is too old."""
    response = getattr(error, "response", None)
    code = (
        response.status_code
        if response is not None
        else getattr(getattr(error, "status", None), "code", None)
    )
    if count > _RETRIES or (code is not None and code not in (410, 429) and code < 500):
        return OnErrorResult(OnErrorAction.RAISE)
    return OnErrorResult(OnErrorAction.RETRY, sleep=min(0.5 * 2**count, 10.0))


def _event(found: CoreEvent) -> Event:
    last = found.lastTimestamp or found.eventTime or found.firstTimestamp
    return Event(
        time=last,
        type=found.type or "Normal",
        reason=found.reason or "",
        message=found.message or "",
        object=f"{(found.involvedObject.kind or '').lower()}/{found.involvedObject.name}",
        count=found.count or 1,
    )


__all__ = ["ConfigMap", "Event", "Jobs", "reached", "retry", "waited"]
