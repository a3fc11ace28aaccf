"""Leases and pods, as the API server has them, as what a coordinator sees. Everything in a Lease is
untrusted."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from elasticjob.api.leases import Lease, read_lease
from elasticjob.contract import names
from elasticjob.contract.fields import MAX_ID, RecordError
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import MAX_MESSAGE, FailureReport, ProgressReport, RoundReport
from elasticjob.contract.text import is_token, one_line
from elasticjob.coordination.directory import Seen
from elasticjob.peers.records import PeerRecord
from elasticjob.peers.round_lease import RoundLease
from elasticjob.peers.run import PEER_ANNOTATION, STATE_ANNOTATION
from elasticjob.peers.settled import Settled
from elasticjob.peers.sight import Peer, Sight

logger = logging.getLogger(__name__)

_Report = TypeVar("_Report", RoundReport, FailureReport)
OLDER = timedelta(seconds=1)
"""The resolution of the times at which objects are made."""


def read_round(lease: Lease) -> RoundLease:
    """The round Lease."""
    a = lease.annotations
    return RoundLease(
        lease.resource_version,
        lease.holder,
        a.get(names.ROUND_ANNOTATION, ""),
        a.get(STATE_ANNOTATION, ""),
        lease.transitions,
        lease.created,
    )


def round_body(
    settled: Settled, waiting: str, holder: str, transitions: int, metadata: dict[str, Any]
) -> dict[str, Any]:
    """What to write into the round Lease: both annotations and the holder, in one write."""
    record = settled.record(waiting)
    return {
        "metadata": {
            **metadata,
            "annotations": {names.ROUND_ANNOTATION: record.dump(), STATE_ANNOTATION: settled.rest().dump()},
        },
        "spec": {
            "holderIdentity": holder or None,
            "renewTime": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "leaseTransitions": transitions,
        },
    }


def older_than(created: str, leases: Mapping[str, Seen]) -> frozenset[str]:
    """The names of those that were made before this time."""
    limit = _time(created)
    times = {
        name: _time((seen.body.get("metadata") or {}).get("creationTimestamp"))
        for name, seen in leases.items()
    }
    return frozenset(name for name, time in times.items() if limit and time and limit - time > OLDER)


def _time(text: object) -> datetime | None:
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None


def controller_of(body: Mapping[str, Any], run: str) -> dict[str, str] | None:
    """The Job that has made this pod, if the run's id is its UID: the run ends with it. Another controller's
    pods may all be made again in the same run, which then goes on from its last round."""
    for owner in (body.get("metadata") or {}).get("ownerReferences") or ():
        if owner.get("controller") and owner.get("uid") == run:
            return {key: str(owner[key]) for key in ("apiVersion", "kind", "name", "uid")}
    return None


@dataclass(frozen=True)
class _Read:
    """A Lease that was read: of this run, of another, or unreadable (neither). ``copied``: it is none of a
    pod."""

    body: Mapping[str, Any]
    peer: Peer | None = None
    other: str = ""
    run: str = ""
    """The id of that other run."""
    said: ParticipantRecord | None = None
    """What its participant has announced, as far as it can be read."""
    report: RoundReport | None = None
    """What it reports, if no more can be read."""
    copied: bool = False


class LeaseReader:
    """Reads the participants' Leases of a run, each version once."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._read: dict[str, _Read] = {}

    def peers(self, leases: Mapping[str, Seen], now: float) -> Sight:
        """The participants alone; what else is in sight is left at its defaults."""
        before, self._read = self._read, {}
        peers, others, runs, said, reports = {}, {}, {}, {}, {}
        unreadable = set()
        for name, seen in leases.items():
            if PEER_ANNOTATION not in ((seen.body.get("metadata") or {}).get("annotations") or {}):
                continue
            one = before.get(name)
            if one is None or one.body is not seen.body:
                one = self._read_one(seen.body)
            self._read[name] = one
            if one.peer is not None:
                peers[name] = replace(one.peer, silent=now - seen.at, renewed=now - seen.changed)
            elif one.other:
                others[name], runs[name] = one.other, one.run
                if one.said is not None:
                    said[name] = one.said
            elif not one.copied:
                unreadable.add(name)
                if one.report is not None:
                    reports[name] = one.report
        return Sight(
            peers,
            datetime.now(timezone.utc),
            secrets.token_hex(4),
            frozenset(unreadable),
            others=others,
            other_runs=runs,
            said=said,
            reports=reports,
        )

    def _read_one(self, body: Mapping[str, Any]) -> _Read:
        lease = read_lease(body)
        try:
            peer = PeerRecord.parse(lease.annotations[PEER_ANNOTATION])
            if peer.is_copied_to(lease.name):
                return _Read(body, copied=True)
            if peer.run != self._run:
                said = _optional(ParticipantRecord, lease.annotations.get(names.PARTICIPANT_ANNOTATION))
                return _Read(body, other=lease.holder, run=peer.run, said=said)
            return _Read(body, _read_peer(lease, peer.slot))
        except RecordError as error:
            logger.debug("Lease %s is not read: %s", lease.name, error)
            return _Read(body, report=_optional(RoundReport, lease.annotations.get(names.REPORT_ANNOTATION)))


def _read_peer(lease: Lease, slot: int | None) -> Peer:
    """Raises RecordError if the announcement can't be read. A report that can't is left out."""
    a = lease.annotations
    if not is_token(lease.holder, MAX_ID):
        raise RecordError(f"its holder is {lease.holder[:80]!r}, expected the pod's UID")
    report, unreadable = None, False
    try:
        if names.REPORT_ANNOTATION in a:
            report = _on_one_line(RoundReport.parse(a[names.REPORT_ANNOTATION]))
    except RecordError:
        unreadable = True
    failure = _optional(FailureReport, a.get(names.FAILURE_ANNOTATION))
    return Peer(
        name=lease.name,
        key=lease.holder,
        record=ParticipantRecord.parse(a.get(names.PARTICIPANT_ANNOTATION, "")),
        slot=slot,
        report=report,
        unreadable_report=unreadable,
        failure=_on_one_line(failure) if failure is not None else None,
        progress=_optional(ProgressReport, a.get(names.PROGRESS_ANNOTATION)),
    )


def _on_one_line(report: _Report) -> _Report:
    """Its message goes into the record, and into all logs."""
    return replace(report, message=one_line(report.message, MAX_MESSAGE))


def _optional(kind: Any, text: str | None) -> Any:
    try:
        return kind.parse(text) if text else None
    except RecordError:
        return None


def pod_end(body: Mapping[str, Any]) -> str:
    """Why this pod's agent has ended, in words; "" while that is not known. Which container it is in is not
    known either: helpers may be put in front of it, so that only the end of all containers is proof (P3)."""
    if is_over(body):
        return f"its pod has {str(body['status']['phase']).lower()}"
    codes = _exit_codes(body)
    return f"its container has ended with exit code {max(codes)}" if codes else ""


def is_over(body: Mapping[str, Any]) -> bool:
    """Whether nothing starts in this pod any more. Containers that have ended may be started again."""
    return (body.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def ended_well(body: Mapping[str, Any]) -> bool:
    """Whether all of this pod has ended with exit code 0 by itself. One that is taken away may trap the
    signal, and end with 0, too: only its Lease says whether its workers have finished."""
    phase, codes = (body.get("status") or {}).get("phase"), _exit_codes(body)
    well = phase == "Succeeded" or (phase != "Failed" and bool(codes) and not any(codes))
    return well and not taken_away(body)


def taken_away(body: Mapping[str, Any]) -> bool:
    """Whether this pod is being deleted, or has ended because it was evicted or preempted. The condition
    alone is no end: what was going to take the pod may have changed its mind."""
    if "deletionTimestamp" in (body.get("metadata") or {}):
        return True
    conditions = (body.get("status") or {}).get("conditions") or ()
    disrupted = any(c.get("type") == "DisruptionTarget" and c.get("status") == "True" for c in conditions)
    return disrupted and bool(pod_end(body))


def container_ends(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """How its containers have ended, if all have; [] otherwise."""
    statuses = (body.get("status") or {}).get("containerStatuses") or ()
    ends = {s.get("name"): (s.get("state") or {}).get("terminated") for s in statuses}
    found = [ends.get(c.get("name")) for c in (body.get("spec") or {}).get("containers") or ()]
    return [end for end in found if end] if all(found) else []


def _exit_codes(body: Mapping[str, Any]) -> list[int]:
    return [int(end.get("exitCode", 1)) for end in container_ends(body)]
