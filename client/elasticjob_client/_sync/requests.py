# Generated from _async/requests.py by `python client/unasync.py`: do not edit.
"""What is asked of the API server, and in which order. ``explain`` concludes from the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Event as CoreEvent
from lightkube.resources.core_v1 import Namespace
from lightkube.resources.core_v1 import Pod as CorePod
from lightkube.types import PatchType

from elasticjob.contract.names import JOB_LABEL, PROGRESS_ANNOTATION
from elasticjob_client import pods as pods_of
from elasticjob_client.connection import RESOURCE, Connection
from elasticjob_client.decoding import list_ready, ready
from elasticjob_client.errors import (
    ClientError,
    NoServer,
    NotFound,
    Rejected,
    no_namespace,
    translated_errors,
)
from elasticjob_client.events import Event, event_of, is_of
from elasticjob_client.explain import lease_progress, lines
from elasticjob_client.explain.lines import Line, ToShow, Window
from elasticjob_client.following import without_times
from elasticjob_client.keywords import job_name_of
from elasticjob_client.names import check_name
from elasticjob_client.patience import Notice
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob


class Requests:
    """The requests of one namespace. ``server``: its URL, which errors name.

    Raises ValueError for what cannot be the name of a namespace. So do the methods for what cannot be the
    name of a job or a pod: an empty name would ask for all, and one with a "/" for something else.
    """

    def __init__(self, client: Connection, namespace: str, server: str, notice: Notice) -> None:
        check_name("a namespace", namespace)
        self.client = client
        """lightkube's client, for what this class does not do."""
        self.notice = notice
        self.namespace: str = namespace
        self.server: str = server

    # -- reading -------------------------------------------------------------------------------------------

    def all(self, all_namespaces: bool = False) -> list[ElasticJob]:
        """All jobs of the namespace, or of all, by namespace and name."""
        where = "all namespaces" if all_namespaces else f"namespace {self.namespace}"
        what, namespace = f"list ElasticJobs of {where}", "*" if all_namespaces else self.namespace
        with translated_errors(what, self.server):
            answer = [one for one in self.client.list(list_ready(RESOURCE), namespace=namespace)]
            found = self._readable(answer)
        if not found and not all_namespaces:
            self._must_exist(what)
        return sorted(found, key=lambda job: (job.namespace, job.name))

    def _readable(self, answer: Sequence[Any]) -> list[ElasticJob]:
        """These jobs; a notice names each that cannot be read. Raises ValueError if none can."""
        found, errors = [], list[tuple[str, ValueError]]()
        for one in answer:
            try:
                found.append(ElasticJob.from_dict(one))
            except ValueError as error:
                metadata = one.get("metadata") or {}
                errors.append((f"{metadata.get('namespace')}/{metadata.get('name')}", error))
        if errors and not found:
            raise errors[0][1]
        for name, unread in errors:
            self.notice(f"ElasticJob {name} is left out: {unread}")
        return found

    def raw(self, name: str) -> dict[str, Any]:
        """The object as the API server has it."""
        check_name("a job", name)
        what = f"read {self._full_name(name)}"
        try:
            with translated_errors(what, self.server):
                return dict(self.client.get(RESOURCE, name, namespace=self.namespace))
        except NotFound:
            self._must_exist(what)
            raise

    def _must_exist(self, what: str) -> None:
        """Raises NotFound if there is no such namespace, as far as the user may know that."""
        try:
            with translated_errors(what, self.server):
                self.client.get(ready(Namespace), self.namespace)
        except NotFound:
            raise no_namespace(what, self.namespace) from None
        except ClientError:
            return

    def get(self, name: str) -> ElasticJob:
        """The job. Raises NotFound if there is none of this name."""
        body = self.raw(name)
        with translated_errors(f"read {self._full_name(name)}", self.server):
            return ElasticJob.from_dict(body)

    def refreshed(self, job: ElasticJob) -> ElasticJob:
        """The job with the step, the speed and the goodput that its leader has in its Lease, seconds old: the
        status may be a minute behind. The same job if its Lease cannot be read."""
        if not (pod := lease_progress.leader_pod(job)):
            return job
        check_name("a pod", pod)
        try:
            with translated_errors(f"read the Lease of pod {pod}", self.server):
                found = self.client.get(ready(Lease), pod, namespace=job.namespace)
        except ClientError:
            return job
        annotations = (found.metadata.annotations if found.metadata else None) or {}
        return lease_progress.with_report(job, annotations.get(PROGRESS_ANNOTATION, ""))

    def pods(self, name: str) -> list[Pod]:
        """The job's pods, also those that have ended or are going, by slot, the older first."""
        check_name("a job", name)
        with translated_errors(f"list the pods of {self._full_name(name)}", self.server):
            found = self.client.list(list_ready(CorePod), namespace=self.namespace, labels={JOB_LABEL: name})
            return pods_of.in_order([pods_of.of(one) for one in found])

    def events(self, name: str, pods: Sequence[Pod] = ()) -> list[Event]:
        """What Events say of the job, and of these pods of it, oldest first; kept for an hour or so. Those of
        an earlier job or pod of the name are left out."""
        job = self.get(name)
        uids = {("ElasticJob", name): job.metadata.uid, **{("Pod", pod.name): pod.uid for pod in pods}}
        with translated_errors(f"list the Events of {self._full_name(name)}", self.server):
            found = self.client.list(
                list_ready(CoreEvent),
                namespace=self.namespace,
                fields=None if pods else {"involvedObject.name": name},
            )
            mine = [one for one in found if is_of(one, uids)]
        mine.sort(key=lambda one: (one.metadata.name or "") if one.metadata else "")  # those of one second
        return sorted(map(event_of, mine), key=lambda e: e.time.timestamp() if e.time else 0.0)

    def tail(self, pod: Pod, count: int, within: Window | None = None) -> list[str]:
        """The last lines of a pod's training container; empty if it has none to show.

        ``within``: the last of that time; none if the kubelet gives no times.
        """
        try:
            if within is None:
                found = self._log(pod, None, None, count, False)
            else:
                read = self._log(pod, None, within.since, None, True)
                found = [line for line in read if line.time and not within.is_over(line.time)][-count:]
        except (NotFound, Rejected):  # the container has not started, or is gone
            return []
        return [line.text for line in found]

    def _to_show(self, name: str, rank: int | None, round: int | None, since_failure: bool) -> ToShow:
        """Raises ValueError if there is no such rank or round, or no failure."""
        job = self.get(name)
        pods = self.pods(name)
        window = lines.window(job, round, since_failure)
        if rank is not None and job.members and not pods_of.of_rank(job, pods, rank):
            raise ValueError(f"{name} has no group rank {rank}: expected 0 to {len(job.members) - 1}")
        return ToShow(job, pods, window)

    def _together(self, shown: ToShow, rank: int | None, tail: int | None) -> list[Line]:
        """Lines of several pods by time. A kubelet that gives no times: one pod after the other."""
        none, pods = Window(), lines.chosen(shown.job, shown.pods, rank)
        try:
            logs = self._logs(pods, rank, shown, tail, len(pods) > 1 or shown.window != none)
        except Rejected as error:
            if shown.window != none or not without_times(error):
                raise
            return [*chain.from_iterable(self._logs(pods, rank, shown, tail, False))]
        return [*lines.in_time(logs, shown.window)]

    def _logs(
        self, pods: Sequence[Pod], rank: int | None, shown: ToShow, tail: int | None, timed: bool
    ) -> list[list[Line]]:
        """Those that can be read; a notice names the others. Raises the first error if none can be."""
        found, errors, names = [], list[ClientError](), pods_of.ranks(shown.job)
        for pod in pods:
            try:
                found.append(self._log(pod, names.get(pod.name, rank), shown.window.since, tail, timed))
            except ClientError as error:
                if isinstance(error, NoServer) and not error.answers:
                    raise
                if timed and isinstance(error, Rejected) and without_times(error):
                    raise
                errors.append(error)
        if errors and not found:
            raise errors[0]
        for unread in errors:
            self.notice(str(unread))
        return found

    def _log(
        self, pod: Pod, rank: int | None, since: datetime | None, tail: int | None, timed: bool
    ) -> list[Line]:
        asked, reader = self._log_call(pod, since, tail, timed), lines.Reader(pod.name, timed)
        with translated_errors(f"read the log of pod {pod.name}", self.server):
            return [reader.line(text, rank) for text in self.client.written(pod.name, **asked)]

    def _log_call(self, pod: Pod, since: datetime | None, tail: int | None, timed: bool) -> dict[str, Any]:
        """Arguments for ``written`` and ``followed`` of a connection."""
        check_name("a pod", pod.name)
        return {
            "namespace": self.namespace,
            "container": pod.container or None,
            "since": since,
            "tail_lines": tail,
            "timestamps": timed,
        }

    # -- changing ------------------------------------------------------------------------------------------

    def submit(self, job: ElasticJob | dict[str, Any], *, dry_run: bool = False) -> ElasticJob:
        """Create a job. Raises Rejected if there is one of this name, or if a field is refused."""
        body = job.to_dict() if isinstance(job, ElasticJob) else job
        with translated_errors(f"create {self._full_name(job_name_of(body))}", self.server):
            client: Any = self.client  # lightkube's types forbid the namespace
            made = client.create(RESOURCE(**body), namespace=self.namespace, dry_run=dry_run)
            return ElasticJob.from_dict(dict(made))

    def scale(self, name: str, replicas: int) -> ElasticJob:
        """Set the number of pods."""
        return self._change(name, {"replicas": replicas}, f"scale to {replicas}")

    def suspend(self, name: str) -> ElasticJob:
        """End the round and delete the pods; the job's state is kept."""
        return self._change(name, {"suspend": True}, "suspend")

    def resume(self, name: str) -> ElasticJob:
        """Train again, from the script's last checkpoint."""
        return self._change(name, {"suspend": False}, "resume")

    def _change(self, name: str, spec: Mapping[str, Any], what: str) -> ElasticJob:
        """Change fields of the spec. Raises Rejected if the job has ended."""
        job = self.get(name)
        if job.ended:
            assert job.status
            raise Rejected(
                f"cannot {what} {self._full_name(name)}: it is {job.status.terminal_state}, which is final. "
                "Delete it and create it again: the script resumes from its checkpoint."
            )
        with translated_errors(f"{what} {self._full_name(name)}", self.server):
            changed = self.client.patch(
                RESOURCE, name, {"spec": spec}, namespace=self.namespace, patch_type=PatchType.MERGE
            )
            return ElasticJob.from_dict(dict(changed))

    def delete(self, name: str) -> None:
        """Delete the job, and with it its pods."""
        check_name("a job", name)
        with translated_errors(f"delete {self._full_name(name)}", self.server):
            self.client.delete(RESOURCE, name, namespace=self.namespace)

    def kill(self, pod: Pod) -> None:
        """Delete a pod without a grace period: its containers get SIGKILL."""
        check_name("a pod", pod.name)
        with translated_errors(f"delete pod {self.namespace}/{pod.name}", self.server):
            self.client.delete(CorePod, pod.name, namespace=self.namespace, grace_period=0)

    # -- looking again -------------------------------------------------------------------------------------

    def _again(self, name: str) -> ElasticJob:
        """A job that was there a moment ago. Raises NotFound if it has been deleted."""
        try:
            return self.get(name)
        except NotFound:
            raise self._deleted(name) from None

    def _listed(self, name: str) -> tuple[ElasticJob, str]:
        """A job that was there a moment ago, and the version of the list that has it.

        Raises NotFound if it has been deleted.
        """
        check_name("a job", name)
        with translated_errors(f"read {self._full_name(name)}", self.server):
            answer = self.client.list(
                list_ready(RESOURCE), namespace=self.namespace, fields={"metadata.name": name}
            )
            found = [one for one in answer]
            if not found:
                raise self._deleted(name)
            return ElasticJob.from_dict(dict(found[0])), str(answer.resourceVersion)

    def _deleted(self, name: str) -> NotFound:
        return NotFound(f"{self._full_name(name)} has been deleted")

    def _full_name(self, job: str) -> str:
        """How errors name a job."""
        return f"ElasticJob {self.namespace}/{job}"
