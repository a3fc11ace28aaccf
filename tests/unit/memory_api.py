"""Leases in memory behind the handler's ``LeaseApi``: for the handler's own decisions, in milliseconds.

What the real API server does with the same calls is tested in ``tests/integration``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from elasticjob.api.errors import ApiError, Conflict, NotFound
from elasticjob.api.leases import Lease
from elasticjob.contract import names
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import FailureReport, RoundReport
from elasticjob.contract.round_record import RoundRecord


class Leases:
    """One namespace of one API server. ``error`` is raised by every call while it is set, ``refused`` by
    writes of the Lease of that name."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.leases: dict[str, Lease] = {}
        self.error: ApiError | None = None
        self.refused: dict[str, ApiError] = {}
        self.writes = 0
        self.jobs: dict[str, bool] = {}
        self._version = 0

    def put(self, name: str, annotations: Mapping[str, str | None], holder: str = "") -> Lease:
        with self.changed:
            self._version += 1
            old = self.leases.get(name)
            merged = {**(old.annotations if old else {}), **annotations}
            kept = {key: value for key, value in merged.items() if value is not None}
            self.leases[name] = Lease(str(self._version), holder or (old.holder if old else ""), kept)
            self.changed.notify_all()
            return self.leases[name]

    def publish(self, record: RoundRecord) -> None:
        """Write the round record of the job ``job``, as the operator does."""
        self.put(names.round_lease("job"), {names.ROUND_ANNOTATION: record.dump()})

    def delete(self, name: str) -> None:
        """The Lease goes, with its job or by hand."""
        with self.changed:
            del self.leases[name]
            self.changed.notify_all()

    def annotation(self, pod: str, key: str) -> str | None:
        lease = self.leases.get(pod)
        return None if lease is None else lease.annotations.get(key)

    def participant(self, pod: str) -> ParticipantRecord | None:
        text = self.annotation(pod, names.PARTICIPANT_ANNOTATION)
        return None if text is None else ParticipantRecord.parse(text)

    def report(self, pod: str) -> RoundReport | None:
        text = self.annotation(pod, names.REPORT_ANNOTATION)
        return None if text is None else RoundReport.parse(text)

    def failure(self, pod: str) -> FailureReport | None:
        text = self.annotation(pod, names.FAILURE_ANNOTATION)
        return None if text is None else FailureReport.parse(text)

    def wait_for(self, predicate: Any, what: str, seconds: float = 60.0) -> Any:
        with self.changed:
            found = self.changed.wait_for(predicate, seconds)
        assert found, f"not within {seconds} s: {what}"
        return found

    def announced(self, pod: str, but: str = "") -> ParticipantRecord:
        """Wait for a Joining record with another id than ``but``."""

        def joining() -> ParticipantRecord | None:
            record = self.participant(pod)
            return record if record and record.state == "Joining" and record.id != but else None

        found: ParticipantRecord = self.wait_for(joining, f"{pod} announces itself")
        return found


class MemoryApi:
    """One participant's ``LeaseApi`` on ``Leases``."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._stopped = False

    def watch(self, name: str) -> Iterator[Lease | None]:
        last: Lease | None = None
        while not self._stopped:
            with self._leases.changed:
                if self._leases.error is not None:
                    raise self._leases.error
                current = self._leases.leases.get(name)
                if current is last:
                    self._leases.changed.wait(0.2)
                    continue
            yield replace(last, deleted=True) if current is None and last is not None else current
            last = current

    def take_over(self, name: str, lease: Mapping[str, Any]) -> Lease:
        return self._write(name, lease)

    def patch(self, name: str, patch: Mapping[str, Any]) -> Lease:
        current = self._leases.leases.get(name)
        if current is None:
            raise NotFound(f"{name} is not there", 404)
        if patch["metadata"]["resourceVersion"] != current.resource_version:
            raise Conflict("the object has been modified", 409)
        return self._write(name, patch)

    def read(self, name: str) -> Lease:
        if self._leases.error is not None:
            raise self._leases.error
        if name not in self._leases.leases:
            raise NotFound(f"{name} is not there", 404)
        return self._leases.leases[name]

    def job_exists(self, job: str) -> bool | None:
        return self._leases.jobs.get(job)

    def reopen_watch(self) -> None:
        """There is no connection that could be dead."""

    def stop(self) -> None:
        self._stopped = True
        with self._leases.changed:
            self._leases.changed.notify_all()

    def _write(self, name: str, body: Mapping[str, Any]) -> Lease:
        refusal = self._leases.error or self._leases.refused.get(name)
        if refusal is not None:
            raise refusal
        self._leases.writes += 1
        return self._leases.put(name, body["metadata"]["annotations"], body["spec"]["holderIdentity"])


def broken(record: RoundRecord, cause: str = "Test") -> RoundRecord:
    """The same round, over."""
    return replace(record, phase="Broken", cause=cause, message="by the test")
