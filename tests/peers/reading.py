"""What a simulated coordinator reads in Leases, as ``elasticjob.coordination.reading`` does."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob.contract.fields import MAX_ID, RecordError
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import FailureReport, RoundReport
from elasticjob.contract.text import is_token
from elasticjob.coordination.directory import NEVER
from elasticjob.peers.sight import Peer
from tests.peers.api import Stored


@dataclass
class Known:
    """A Lease in a coordinator's list."""

    stored: Stored
    at: float
    changed: float = NEVER
    peer: Peer | None = None
    """What it says, once it was read."""


def read(leases: Mapping[str, Known], run: str, now: float) -> dict[str, Any]:
    """What a ``Sight`` has of the participants' Leases alone, by its fields' names."""
    peers, others, runs, said, reports = {}, {}, {}, {}, {}
    unreadable = set()
    for name, known in leases.items():
        a = known.stored.annotations
        if a.get("pod") != name:
            continue  # the round Lease, or a copy
        if a["run"] != run:
            others[name], runs[name] = known.stored.holder, a["run"]
            with contextlib.suppress(RecordError):
                said[name] = ParticipantRecord.parse(a.get("participant", ""))
            continue
        try:
            known.peer = known.peer or _peer(known.stored)
        except RecordError:
            unreadable.add(name)
            with contextlib.suppress(RecordError):
                reports[name] = RoundReport.parse(a.get("report", ""))
        else:
            p = known.peer
            peers[name] = Peer(
                name,
                p.key,
                p.record,
                p.slot,
                p.report,
                p.unreadable_report,
                p.failure,
                None,
                now - known.at,
                now - known.changed,
            )
    return {
        "peers": peers,
        "unreadable": frozenset(unreadable),
        "others": others,
        "other_runs": runs,
        "said": said,
        "reports": reports,
    }


def endpoint_of(annotations: Mapping[str, str]) -> str:
    """Where the agent listens, as its Lease says; "" if that cannot be read."""
    try:
        return ParticipantRecord.parse(annotations.get("participant", "")).endpoint
    except RecordError:
        return ""


def _peer(stored: Stored) -> Peer:
    a = stored.annotations
    if not is_token(stored.holder, MAX_ID):
        raise RecordError("its holder is no UID")
    report, unreadable = None, False
    try:
        report = RoundReport.parse(a["report"]) if "report" in a else None
    except RecordError:
        unreadable = True
    failure = FailureReport.parse(a["failure"]) if "failure" in a else None
    record = ParticipantRecord.parse(a.get("participant", ""))
    return Peer(stored.name, stored.holder, record, int(a["slot"]), report, unreadable, failure)
