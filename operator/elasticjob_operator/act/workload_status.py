"""What is written into the status of a Workload. Pure.

Each change is made from the whole object as it was just read, and is written with its version. None: there is
nothing to change any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

StatusChange = Callable[[Mapping[str, Any], str], dict[str, Any] | None]
"""From the object and the time now to the fields of the new status."""

_BACK_AT_ONCE = ("Preempted", "NodeFailures")
"""Evictions after which Kueue may admit again at once; after others it says itself when."""
_NOT_STARTED = ("False", "WaitForStart", "Not all pods are ready or succeeded")


def cleared(raw: Mapping[str, Any], now: str) -> dict[str, Any] | None:
    """Give the quota back: the second step of an eviction, all in one write. PodsReady would else be that of
    the life before, with its time, and Kueue would evict it again as soon as it is admitted."""
    status = raw.get("status") or {}
    evicted = _condition(raw, "Evicted")
    if evicted.get("status") != "True" or not status.get("admission"):
        return None
    reason, said = str(evicted.get("reason")), str(evicted.get("message", ""))
    changed = with_conditions(
        raw,
        now,
        QuotaReserved=("False", "Pending", said),
        Admitted=("False", "NoReservation", "The workload has no reservation"),
        Requeued=("True" if reason in _BACK_AT_ONCE else "False", reason, said),
        PodsReady=_NOT_STARTED,
    )
    return {"admission": None, **changed}


def ready(raw: Mapping[str, Any], now: str) -> dict[str, Any] | None:
    """Say that its pods have joined, unless its quota is gone."""
    if not (raw.get("status") or {}).get("admission"):
        return None
    reason = "Recovered" if _condition(raw, "PodsReady").get("reason") == "WaitForRecovery" else "Started"
    return with_conditions(raw, now, PodsReady=("True", reason, "All pods have joined the training"))


def unready(raw: Mapping[str, Any], now: str) -> dict[str, Any] | None:
    """Say that its pods do not all run, unless its quota is gone. Kueue gives it ``recoveryTimeout`` from
    now; but what was said before the last admission is of other pods, and these have not started yet."""
    before = _condition(raw, "PodsReady")
    if before.get("status") != "True" or not (raw.get("status") or {}).get("admission"):
        return None
    admitted = _condition(raw, "Admitted").get("lastTransitionTime", "")
    if str(before.get("lastTransitionTime", "")) < str(admitted):
        return with_conditions(raw, now, PodsReady=_NOT_STARTED)
    return with_conditions(
        raw, now, PodsReady=("False", "WaitForRecovery", "At least one pod is lost, waiting for recovery")
    )


def finished(outcome: str, message: str) -> StatusChange:
    """Say that the job has ended."""

    def change(raw: Mapping[str, Any], now: str) -> dict[str, Any] | None:
        reason = "Succeeded" if outcome == "Complete" else "Failed"
        return with_conditions(raw, now, Finished=("True", reason, message or f"the job is {outcome}"))

    return change


def with_conditions(raw: Mapping[str, Any], now: str, **changed: tuple[str, str, str]) -> dict[str, Any]:
    """The conditions with these in place of those of their types: status, reason and message of each."""
    meta, before = raw.get("metadata") or {}, (raw.get("status") or {}).get("conditions") or []
    since = {one["type"]: one["lastTransitionTime"] for one in before if _stays(one, changed)}
    made = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": since.get(kind, now),
            "observedGeneration": int(meta.get("generation", 1)),
        }
        for kind, (status, reason, message) in changed.items()
    ]
    return {"conditions": [*(one for one in before if one["type"] not in changed), *made]}


def _condition(raw: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions: list[dict[str, Any]] = (raw.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one.get("type") == kind), {})


def _stays(condition: Mapping[str, Any], changed: Mapping[str, tuple[str, str, str]]) -> bool:
    new = changed.get(condition["type"])
    return new is not None and new[0] == condition["status"]
