"""Records and statuses as each release writes them, kept for good.

``records/v1`` has texts that stand in annotations of Leases, by kind (the first word of a file's name),
``status/v1`` has statuses of jobs. Operators and handlers of later releases must read them all. Files are
added (``python -m tests.golden`` writes those that are missing) and never changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.relay import CutOff, RelayReport
from elasticjob.contract.reports import (
    DrainReport,
    FailureReport,
    ProgressReport,
    ResumedReport,
    RoundReport,
    StartsReport,
)
from elasticjob.contract.round_record import MemberList, RoundRecord
from elasticjob.contract.text import NO_ERROR_TEXT
from elasticjob_operator.plan.state import status_json
from tests.full_status import full
from tests.scenarios.world import World

HERE = Path(__file__).parent
RECORDS, STATUSES = HERE / "records" / "v1", HERE / "status" / "v1"

PARSE: dict[str, Callable[[str], Any]] = {
    "round": RoundRecord.parse,
    "members": MemberList.parse,
    "participant": ParticipantRecord.parse,
    "failure": FailureReport.parse,
    "report": RoundReport.parse,
    "progress": ProgressReport.parse,
    "drain": DrainReport.parse,
    "starts": StartsReport.parse,
    "resumed": ResumedReport.parse,
    "relay": RelayReport.parse,
}
"""How a file is read, by the first word of its name."""

_UID = "1f0c9a6e-3ff0-4b8e-9a5b-0d8d0b1a6a11"
_ENDPOINT = "10.0.3.7:41234"


def records() -> dict[str, Any]:
    """A record of each kind and content, by the name of its file."""
    ids = ("k3x9q2aaaaa", "p7m2w4bbbbb")
    lost = "mnist-2-0 (group rank 2) was lost: its pod is gone"
    return {
        "round-before-the-first": RoundRecord(_UID, 0, "Broken", waiting_message="1 of 2 pods have joined"),
        "round-active": RoundRecord(_UID, 7, "Active", "9f3c", ids, _ENDPOINT, "PodLost", lost),
        "round-active-large": RoundRecord(
            _UID,
            7,
            "Active",
            "9f3c",
            leader_endpoint=_ENDPOINT,
            size=5_000,
            leader_id=ids[0],
            wait_renew_period_seconds=20,
        ),
        "round-active-replacing": RoundRecord(
            _UID, 7, "Active", "9f3c", ids, _ENDPOINT, "PodLost", lost, replacing=True
        ),
        "round-draining": RoundRecord(_UID, 7, "Draining", "9f3c", ids, _ENDPOINT, "ScaledUp", "growing"),
        "round-broken": RoundRecord(
            _UID, 7, "Broken", "9f3c", ids, _ENDPOINT, "Hang", "training hangs", "waiting for 2 pods"
        ),
        "round-complete": RoundRecord(_UID, 8, "Closed", "9f3d", ids, _ENDPOINT, outcome="Complete"),
        "round-failed": RoundRecord(_UID, 8, "Closed", "9f3d", message="too many restarts", outcome="Failed"),
        "members": MemberList(_UID, 7, "9f3c", ids),
        "participant-joining": ParticipantRecord(ids[0], "Joining", _ENDPOINT, open_files=1_024),
        "participant-rejoining": ParticipantRecord(
            ids[1], "Joining", "[fd00::1]:1", True, _UID, 7, 8, _UID, 7, 1_024
        ),
        "participant-after-an-oom-kill": ParticipantRecord(ids[0], "Joining", _ENDPOINT, oom_kills=2),
        "participant-succeeded": ParticipantRecord(ids[0], "Succeeded", _ENDPOINT, False, _UID, 7, 8),
        "participant-leaving": ParticipantRecord(ids[0], "Leaving", _ENDPOINT, False, _UID, 7, 8),
        "failure": FailureReport(7, 2, "ValueError: bad input", 1, 3, 10_450),
        "failure-without-text": FailureReport(
            7, 2, f"exit code 1; {NO_ERROR_TEXT}", 1, 0, 10_450, after_round_end=True
        ),
        "failure-of-unknown-code": FailureReport(7, 0),
        "report-established": RoundReport("9f3c", established=True),
        "report-not-arrived": RoundReport("9f3c", unarrived_ranks=(1, 2, 3, 7), message="4 did not arrive"),
        "report-silent": RoundReport(
            "9f3c", True, silent_ranks=(5,), silent_milliseconds=10_012, message="silent"
        ),
        "report-leader-lost": RoundReport(
            "9f3c", leader_lost=True, connection_refused=True, message="refused"
        ),
        "report-hung": RoundReport("9f3c", True, hung=True, silent_milliseconds=1_800_000, message="no step"),
        "progress": ProgressReport("9f3c", 18_000, 18_200, 2_100, 81_000),
        "drain": DrainReport("9f3c"),
        "drain-stopped": DrainReport("9f3c", True, 18_201),
        "drain-waits": DrainReport("9f3c", step=18_201, waiting_ranks=(1, 2, 5)),
        "starts": StartsReport("9f3c", 7, 1, "no interpreter waits for it"),
        "starts-preparing": StartsReport("9f3c", 8, preparing=True),
        "resumed": ResumedReport("9f3c", 18_199, "Peer", 640),
        "relay": RelayReport(
            "9f3c",
            (
                CutOff(2, "Unauthorized", True, FailureReport(7, 2, "ValueError: bad input", 1, 3, 10_450)),
                CutOff(1, "no answer"),
            ),
        ),
    }


def _played(*lines: str) -> dict[str, Any]:
    return status_json.dump(World().play("job replicas=2", *lines).status)


def _short(value: Any) -> Any:
    """With two entries of each list, and the beginning of each text."""
    if isinstance(value, dict):
        return {name: _short(field) for name, field in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value[:2]]
    return value[:60] if isinstance(value, str) else value


def statuses() -> dict[str, dict[str, Any]]:
    """Statuses of jobs in different states, by the name of their file."""
    runs = ("start mnist-0-0 mnist-1-0", "establish", "progress 100-250 first=4 training=60")
    ends = ("succeed mnist-0-0 mnist-1-0", "exit mnist-0-0 0", "exit mnist-1-0 0")
    racks = ("start mnist-0-0 mnist-2-0 node=a", "start mnist-1-0 node=b")
    fails = ("limit application 0", "fail mnist-0-0 exit=1", "fail mnist-1-0")
    return {
        "first-write": _played(),
        "running": _played(*runs),
        "broken": _played(*runs, "exit mnist-0-0 1"),
        "warm": _played(*runs, "starts mnist-0-0 warm=1 cold=1 why=hidden", "exit mnist-0-0 1"),
        "state-from-memory": _played(*runs, "resumed 3 Memory"),
        "suspended": _played(*runs, "suspend", "gone mnist-0-0 mnist-1-0"),
        "resumed": _played(*runs, "suspend", "gone mnist-0-0 mnist-1-0", "resume"),
        "draining": _played(*runs, "drain", "suspend"),
        "drained": _played(*runs, "drain", "suspend", "drain stopped=251"),
        "complete": _played(*runs, *ends),
        "failed": _played(*runs, *fails),
        "lost-time": _played("wait 10", *runs),
        "early-ends": _played("run mnist-0-0 mnist-1-0", "exit mnist-0-0 1", "exit mnist-1-0 1"),
        "fenced": _played(*runs, "fenced"),
        "topology": _played("topology a=z/r1 b=z/r2", "job replicas=3", *racks, "establish"),
        "all-fields": status_json.dump(status_json.parse(_short(status_json.dump(full(2))))),
    }


def files() -> dict[Path, str]:
    """What each file has where it is written by this release."""
    texts = {RECORDS / f"{name}.json": record.dump() for name, record in records().items()}
    for name, status in statuses().items():
        texts[STATUSES / f"{name}.json"] = json.dumps(status, indent=1)
    return {path: f"{text}\n" for path, text in texts.items()}
