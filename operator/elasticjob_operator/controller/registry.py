"""What is known of each ElasticJob: one entry per job. No I/O, no clock.

Four notions of a version:

* ``view.version``: the newest one seen: brought by the watch or a list, or returned by our own write;
* ``watched_version``: the newest one that the watch of jobs has brought;
* ``expected_version``: one that was seen otherwise, and that the watch is to bring as well;
* ``covered_status``: the caches of pods and Leases are at least as new as what this status says about them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from elasticjob_operator.act.job_state import JobState
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.fields import version_of
from elasticjob_operator.observe.recent import Recent
from elasticjob_operator.observe.spec import JobDefaults, JobView, read_job
from elasticjob_operator.plan.state.status import JobStatus

Key = tuple[str, str]
"""(namespace, name)."""


class Request(NamedTuple):
    """The job that a pass is asked for. A job that is created again under the same name is another one."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(eq=False)
class JobEntry:
    """One ElasticJob, by UID. ``gone`` is set when it was deleted."""

    view: JobView
    user_revision: int = 0
    """A hash of what people have written into the job, to distinguish their changes from ours."""
    watched_version: int = 0
    expected_version: int = 0
    expected_since: float = 0.0
    """When the watch was first found not to have brought ``expected_version``, while that is above
    ``watched_version``."""
    covered_status: JobStatus = field(default_factory=JobStatus)
    """We wrote it, or have listed the job's pods and Leases since it was seen."""
    state: JobState = field(default_factory=JobState)
    waiting: int = 0
    """How many of its participants wait for a round."""
    rest_until: float = float("-inf")
    """The last plan was costly: the next pass begins no earlier than this."""
    gone: bool = False

    @property
    def request(self) -> Request:
        """What asks for a pass over this job."""
        job = self.view.job
        return Request(job.namespace, job.name, job.uid)


class Registry:
    """See the module. ``changed`` is called when there is news of a job, ``forgotten`` when it is gone."""

    def __init__(
        self,
        changed: Callable[[Request], None],
        forgotten: Callable[[Request], None],
        defaults: JobDefaults = JobDefaults(),  # noqa: B008 (frozen)
    ) -> None:
        self._defaults = defaults
        self._changed = changed
        self._forgotten = forgotten
        self._entries: dict[Key, JobEntry] = {}
        self._deleted = Recent()
        """A list that was under way still has these jobs."""
        self.unreadable: dict[Key, JobState] = {}
        """Jobs that can't be read, and what was said of them."""
        self.waiting = 0
        """How many participants of all jobs wait for a round."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[JobEntry]:
        return iter(list(self._entries.values()))

    def of(self, namespace: str) -> list[JobEntry]:
        """The jobs of a namespace, or of all ("")."""
        return [entry for entry in self if namespace in ("", entry.view.job.namespace)]

    def get(self, namespace: str, name: str) -> JobEntry | None:
        """The job of that name."""
        return self._entries.get((namespace, name))

    def find(self, request: Request) -> JobEntry | None:
        """The job that is meant; None if it is gone."""
        entry = self._entries.get((request.namespace, request.name))
        return entry if entry is not None and entry.view.job.uid == request.uid else None

    def update(self, raw: Json) -> None:
        """A version of a job was seen. Raises MalformedJob."""
        meta = raw["metadata"]
        key = key_of(raw)
        entry = self._entries.get(key)
        if str(meta["uid"]) in self._deleted or (
            entry is not None and version_of(meta) <= entry.view.version
        ):
            return
        view = read_job(raw, entry.view if entry is not None else None, self._defaults)
        self.unreadable.pop(key, None)
        revision = _user_revision(view.job.generation, meta)
        if entry is not None and entry.view.job.uid == view.job.uid:
            entry.view = view
            if revision != entry.user_revision:
                entry.user_revision = revision
                entry.state.writes.backoff.again()
        else:
            if entry is not None:
                self.forget(entry)
            entry = self._entries[key] = JobEntry(view, revision)
        self._changed(entry.request)

    def watched(self, raw: Json) -> None:
        """The watch has brought this version."""
        entry = self._entries.get(key_of(raw))
        if entry is not None:
            entry.watched_version = max(entry.watched_version, version_of(raw["metadata"]))

    def read_again(self, entry: JobEntry, raw: Json) -> None:
        """This version of the job was read for its pass: that is no news. Raises MalformedJob."""
        if version_of(raw["metadata"]) >= entry.view.version:
            entry.view = read_job(raw, defaults=self._defaults)

    def wrote(self, entry: JobEntry, view: JobView) -> None:
        """We have written its status, and ``view`` is the job after that."""
        if view.version > entry.view.version:
            # A change of the spec that arrived while we wrote is older than this write: the test of the
            # resource version has seen to that. One that is newer stays.
            entry.view = view
        entry.covered_status = view.status

    def deleted(self, raw: Json) -> None:
        """A job was deleted. What it owns is collected by the cluster."""
        key, uid = key_of(raw), str(raw["metadata"]["uid"])
        self.unreadable.pop(key, None)
        self._deleted.add(uid)
        entry = self.find(Request(*key, uid))
        if entry is not None:
            self.forget(entry)

    def forget(self, entry: JobEntry) -> None:
        """The job is gone."""
        entry.gone = True
        self.set_waiting(entry, 0)
        key = (entry.view.job.namespace, entry.view.job.name)
        if self._entries.get(key) is entry:
            del self._entries[key]
        self._forgotten(entry.request)

    def forget_others(self, namespace: str, present: Collection[Request], version: int) -> list[JobEntry]:
        """A list of this version has only these jobs: forget the others, and return them."""
        others = [e for e in self.of(namespace) if e.request not in present and e.view.version <= version]
        for entry in others:
            self.forget(entry)
        return others

    def age(self) -> None:
        """Call it after lists of all namespaces (``Recent``)."""
        self._deleted.age()

    def set_waiting(self, entry: JobEntry, number: int) -> None:
        """How many of its participants wait for a round."""
        number = 0 if entry.gone else number
        self.waiting += number - entry.waiting
        entry.waiting = number

    def start_afresh(self) -> None:
        """Another operator may have written in the meantime: nothing remembered of the jobs counts."""
        for entry in self:
            entry.state, entry.covered_status = JobState(), entry.view.status

    def watch_behind_since(self, now: float) -> dict[str, float]:
        """Namespaces where the watch has not brought everything that was seen otherwise, and since when not.

        Ask regularly: a version is expected from the first call on that finds it missing.
        """
        behind: dict[str, float] = {}
        for entry in self:
            if entry.watched_version >= entry.expected_version:
                entry.expected_version, entry.expected_since = entry.view.version, now
            if entry.watched_version < entry.expected_version:
                namespace = entry.view.job.namespace
                behind[namespace] = min(behind.get(namespace, now), entry.expected_since)
        return behind


def key_of(raw: Json) -> Key:
    """The namespace and name of an ElasticJob."""
    meta = raw["metadata"]
    return str(meta["namespace"]), str(meta["name"])


def _user_revision(generation: int, meta: dict[str, Any]) -> int:
    return hash((generation, repr(meta.get("annotations")), repr(meta.get("labels"))))
