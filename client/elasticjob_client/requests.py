"""What is asked of the API server, and in which order: written once, for ``Jobs`` and for ``AsyncJobs``.

Each method is a generator, and does no I/O: it yields a question, gets the answer or the error, and returns
what was found. A question is a call of lightkube's client, whose synchronous and asynchronous halves have the
same methods; who drives the generator makes the call, and awaits it if it has to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Event as CoreEvent
from lightkube.resources.core_v1 import Namespace
from lightkube.resources.core_v1 import Pod as CorePod
from lightkube.types import PatchType

from elasticjob.contract.names import GROUP, JOB_LABEL, KIND, PLURAL, PROGRESS_ANNOTATION, VERSION
from elasticjob_client import pods as pods_of
from elasticjob_client.decoding import list_ready, ready
from elasticjob_client.errors import (
    ClientError,
    JobFailed,
    NoServer,
    NotFound,
    Rejected,
    no_namespace,
    told,
)
from elasticjob_client.keywords import kind_of
from elasticjob_client.names import check_name
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob
from elasticjob_client.tell import fresh, lines
from elasticjob_client.tell.lines import Line, Window

if TYPE_CHECKING:
    from elasticjob_client.following import Log
    from elasticjob_client.patience import Notice
    from elasticjob_client.watching import Watch

RESOURCE = create_namespaced_resource(GROUP, VERSION, KIND, PLURAL)
FIELD_MANAGER = "elasticjob-client"
_ENDED = ("Complete", "Failed")

_T = TypeVar("_T")


class One(NamedTuple):
    """A call whose answer is one object, or nothing."""

    of: Callable[[Any], Any]


class Many(NamedTuple):
    """A call whose answer is a list, or the lines of a log."""

    of: Callable[[Any], Any]


Steps = Generator[One | Many, Any, _T]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What the operator, or Kubernetes, has said of a job or one of its pods. ``count``: how often."""

    time: datetime | None = None
    type: str = "Normal"
    reason: str = ""
    message: str = ""
    object: str = ""
    count: int = 1


class ToShow(NamedTuple):
    """Which pods' logs are wanted, and from what time."""

    job: ElasticJob
    pods: list[Pod]
    window: Window


def named(body: dict[str, Any]) -> str:
    """The job's name, or the beginning of one that the server makes up. Raises ValueError without any."""
    metadata = body.get("metadata") if isinstance(body, dict) else None
    found = metadata if isinstance(metadata, dict) else {}
    if not found.get("name") and isinstance(found.get("generateName"), str) and found["generateName"]:
        return f"{found['generateName']}..."
    if "name" not in found:
        found_one = "one without" if isinstance(body, dict) else f"what {kind_of(body)}"
        raise ValueError(f"expected an ElasticJob with metadata.name, found {found_one}")
    check_name("a job", found["name"])
    return str(found["name"])


class Requests:
    """The requests of one namespace. ``server``: its URL, which errors name. ``notice`` is told of
    what is neither an error nor a result.

    Raises ValueError for what cannot be the name of a namespace. So do the methods for what cannot be the
    name of a job or a pod: an empty name would ask for all, and one with a "/" for something else.
    """

    def __init__(self, namespace: str, server: str, notice: Notice) -> None:
        check_name("a namespace", namespace)
        self.namespace, self.server, self.notice = namespace, server, notice

    def name_of(self, job: str) -> str:
        """How a job is called in errors."""
        return f"ElasticJob {self.namespace}/{job}"

    # -- reading -------------------------------------------------------------------------------------------

    def all(self, all_namespaces: bool) -> Steps[list[ElasticJob]]:
        where = "all namespaces" if all_namespaces else f"namespace {self.namespace}"
        what, namespace = f"list ElasticJobs of {where}", "*" if all_namespaces else self.namespace
        with told(what, self.server):
            answer = yield Many(lambda client: client.list(list_ready(RESOURCE), namespace=namespace))
            found = self._readable(answer)
        if not found and not all_namespaces:
            yield from self._must_exist(what)
        return sorted(found, key=lambda job: (job.namespace, job.name))

    def _readable(self, answer: Sequence[Any]) -> list[ElasticJob]:
        """These jobs; one that cannot be read is named in a notice. Raises ValueError if none can."""
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

    def raw(self, name: str) -> Steps[dict[str, Any]]:
        check_name("a job", name)
        what = f"read {self.name_of(name)}"
        try:
            with told(what, self.server):
                found = yield One(lambda client: client.get(RESOURCE, name, namespace=self.namespace))
                return dict(found)
        except NotFound:
            yield from self._must_exist(what)
            raise

    def _must_exist(self, what: str) -> Steps[None]:
        """Raises NotFound if there is no such namespace, as far as the user may know that."""
        try:
            with told(what, self.server):
                yield One(lambda client: client.get(ready(Namespace), self.namespace))
        except NotFound:
            raise no_namespace(what, self.namespace) from None
        except ClientError:
            return

    def get(self, name: str) -> Steps[ElasticJob]:
        body = yield from self.raw(name)
        with told(f"read {self.name_of(name)}", self.server):
            return ElasticJob.from_dict(body)

    def refreshed(self, job: ElasticJob) -> Steps[ElasticJob]:
        """The same job where the Lease cannot be read."""
        from lightkube.resources.coordination_v1 import Lease

        if not (pod := fresh.leader(job)):
            return job
        check_name("a pod", pod)
        try:
            with told(f"read the Lease of pod {pod}", self.server):
                found = yield One(lambda client: client.get(ready(Lease), pod, namespace=job.namespace))
        except ClientError:
            return job
        annotations = (found.metadata.annotations if found.metadata else None) or {}
        renewed = found.spec.renewTime if found.spec else None
        return fresh.with_report(job, annotations.get(PROGRESS_ANNOTATION, ""), renewed)

    def pods(self, name: str) -> Steps[list[Pod]]:
        check_name("a job", name)
        with told(f"list the pods of {self.name_of(name)}", self.server):
            labels = {JOB_LABEL: name}
            found = yield Many(
                lambda client: client.list(list_ready(CorePod), namespace=self.namespace, labels=labels)
            )
            return pods_of.in_order(pods_of.of(one) for one in found)

    def events(self, name: str, pods: Sequence[Pod]) -> Steps[list[Event]]:
        job = yield from self.get(name)
        uids = {("ElasticJob", name): job.metadata.uid, **{("Pod", pod.name): pod.uid for pod in pods}}
        fields = None if pods else {"involvedObject.name": name}
        with told(f"list the Events of {self.name_of(name)}", self.server):
            found = yield Many(
                lambda client: client.list(list_ready(CoreEvent), namespace=self.namespace, fields=fields)
            )
        mine = [one for one in found if _is_of(one, uids)]
        mine.sort(key=lambda one: (one.metadata.name or "") if one.metadata else "")  # those of one second
        return sorted(map(_event, mine), key=lambda e: e.time.timestamp() if e.time else 0.0)

    def tail(self, pod: Pod, count: int, within: Window | None) -> Steps[list[str]]:
        try:
            if within is None:
                found = yield from self._log(pod, None, None, count, False)
            else:
                read = yield from self._log(pod, None, within.since, None, True)
                found = [line for line in read if line.time and not within.is_over(line.time)][-count:]
        except (NotFound, Rejected):  # the container has not started, or is gone
            return []
        return [line.text for line in found]

    def to_show(self, name: str, rank: int | None, round: int | None, since_failure: bool) -> Steps[ToShow]:
        """Raises ValueError if there is no such rank or round, or no failure."""
        job = yield from self.get(name)
        pods = yield from self.pods(name)
        window = lines.window(job, round, since_failure)
        if rank is not None and job.members and not pods_of.of_rank(job, pods, rank):
            raise ValueError(f"{name} has no group rank {rank}: expected 0 to {len(job.members) - 1}")
        return ToShow(job, pods, window)

    def together(self, shown: ToShow, rank: int | None, tail: int | None) -> Steps[list[Line]]:
        """Lines of several pods by time. A kubelet that gives no times: one pod after the other."""
        none, pods = Window(), lines.chosen(shown.job, shown.pods, rank)
        try:
            logs = yield from self._logs(pods, rank, shown, tail, len(pods) > 1 or shown.window != none)
        except Rejected as error:
            if shown.window != none or not without_times(error):
                raise
            logs = yield from self._logs(pods, rank, shown, tail, False)
            return [*chain.from_iterable(logs)]
        return [*lines.in_time(logs, shown.window)]

    def _logs(
        self, pods: Sequence[Pod], rank: int | None, shown: ToShow, tail: int | None, timed: bool
    ) -> Steps[list[list[Line]]]:
        """Those that can be read; a notice names the others. Raises the first error if none can be."""
        found, errors, names = [], list[ClientError](), pods_of.ranks(shown.job)
        for pod in pods:
            try:
                one = yield from self._log(pod, names.get(pod.name, rank), shown.window.since, tail, timed)
            except ClientError as error:
                if isinstance(error, NoServer) and not error.answers:
                    raise
                if timed and isinstance(error, Rejected) and without_times(error):
                    raise
                errors.append(error)
            else:
                found.append(one)
        if errors and not found:
            raise errors[0]
        for unread in errors:
            self.notice(str(unread))
        return found

    def _log(
        self, pod: Pod, rank: int | None, since: datetime | None, tail: int | None, timed: bool
    ) -> Steps[list[Line]]:
        asked = self.log_call(pod, since, tail, timed)
        with told(f"read the log of pod {pod.name}", self.server):
            found = yield Many(lambda client: client.written(pod.name, **asked))
            reader = lines.Reader(pod.name, timed)
            return [reader.line(text, rank) for text in found]

    def log_call(self, pod: Pod, since: datetime | None, tail: int | None, timed: bool) -> dict[str, Any]:
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

    def submit(self, job: ElasticJob | dict[str, Any], dry_run: bool = False) -> Steps[ElasticJob]:
        body = job.to_dict() if isinstance(job, ElasticJob) else job
        name = named(body)
        with told(f"create {self.name_of(name)}", self.server):
            made = yield One(
                lambda client: client.create(RESOURCE(**body), namespace=self.namespace, dry_run=dry_run)
            )
            return ElasticJob.from_dict(dict(made))

    def change(self, name: str, spec: dict[str, Any], what: str) -> Steps[ElasticJob]:
        """Raises Rejected if the job has ended."""
        job = yield from self.get(name)
        if job.ended:
            assert job.status
            raise Rejected(
                f"cannot {what} {self.name_of(name)}: it is {job.status.terminal_state}, which is final. "
                "Delete it and create it again: the script resumes from its checkpoint."
            )
        return (yield from self.patch(name, spec, what))

    def patch(self, name: str, spec: dict[str, Any], what: str = "change") -> Steps[ElasticJob]:
        check_name("a job", name)
        with told(f"{what} {self.name_of(name)}", self.server):
            changed = yield One(
                lambda client: client.patch(
                    RESOURCE, name, {"spec": spec}, namespace=self.namespace, patch_type=PatchType.MERGE
                )
            )
            return ElasticJob.from_dict(dict(changed))

    def delete(self, name: str) -> Steps[None]:
        check_name("a job", name)
        with told(f"delete {self.name_of(name)}", self.server):
            yield One(lambda client: client.delete(RESOURCE, name, namespace=self.namespace))

    def kill(self, pod: Pod) -> Steps[None]:
        check_name("a pod", pod.name)
        with told(f"delete pod {self.namespace}/{pod.name}", self.server):
            yield One(
                lambda client: client.delete(CorePod, pod.name, namespace=self.namespace, grace_period=0)
            )

    # -- following -----------------------------------------------------------------------------------------

    def follow_call(self, log: Log) -> dict[str, Any]:
        """Arguments for ``followed`` of a connection: what has not been read yet."""
        return self.log_call(log.pod, *log.where(), log.timed)

    def again(self, name: str) -> Steps[ElasticJob]:
        """A job that was there a moment ago. Raises NotFound if it has been deleted."""
        try:
            return (yield from self.get(name))
        except NotFound:
            raise self._deleted(name) from None

    def _deleted(self, name: str) -> NotFound:
        return NotFound(f"{self.name_of(name)} has been deleted")

    def look(self, name: str) -> Steps[tuple[ElasticJob, str]]:
        """A job that was there a moment ago, and the version of the list that has it.

        Raises NotFound if it has been deleted.
        """
        check_name("a job", name)
        lists: list[Any] = []

        def ask(client: Any) -> Any:
            fields = {"metadata.name": name}
            lists.append(client.list(list_ready(RESOURCE), namespace=self.namespace, fields=fields))
            return lists[0]

        with told(f"read {self.name_of(name)}", self.server):
            found = yield Many(ask)
            if not found:
                raise self._deleted(name)
            return ElasticJob.from_dict(dict(found[0])), str(lists[0].resourceVersion)

    def watch_call(self, watch: Watch) -> dict[str, Any]:
        """Arguments for ``watched`` of a connection: all changes after what has been seen."""
        return {"namespace": self.namespace, "name": watch.job.name, "version": watch.version}

    def changed(self, watch: Watch, line: str) -> ElasticJob:
        """The job after a change. Raises NotFound if it was deleted."""
        if watch.event(line) == "DELETED":
            raise self._deleted(watch.job.name)
        return watch.job


def without_times(error: Rejected) -> bool:
    """Whether a log is refused because its lines cannot have times."""
    return "timestamp" in str(error).lower()


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


def check_timeout(seconds: float | None) -> None:
    """Raises ValueError for nan, which is never over."""
    if seconds is not None and math.isnan(seconds):
        raise ValueError("timeout_seconds is nan: expected a number of seconds, or None")


class NotYet(TimeoutError):
    """The time of a wait is over. ``state``: what the job does instead."""

    def __init__(self, text: str, state: str) -> None:
        super().__init__(f"{text}; {state}")
        self.state = state


def waited(job: ElasticJob, until: str | Callable[[ElasticJob], bool], away: str = "") -> NotYet:
    """The error of a wait whose time is over. ``away``: why the server does not say more."""
    training = job.condition("Training")
    state = (
        f"{training.reason}: {training.message}" if training else "without a status: no operator serves it"
    )
    wanted = "what was waited for" if callable(until) else until
    seen = f" (as last seen: {away})" if away else ""
    return NotYet(f"ElasticJob {job.namespace}/{job.name} is not {wanted} yet", f"it is {state}{seen}")


def _is_of(event: CoreEvent, uids: Mapping[tuple[str, str], str]) -> bool:
    """Whether it tells of one of these objects, and not of one that had the name before."""
    about = event.involvedObject
    uid = uids.get((about.kind or "", about.name or ""))
    return uid is not None and (not uid or about.uid in (uid, None, ""))


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
