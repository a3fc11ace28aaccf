"""What a scenario file says of a pass."""

from __future__ import annotations

from collections.abc import Iterator

from elasticjob_operator.plan.status import JobStatus
from tests.scenarios.failing import charges
from tests.scenarios.machines import exclusions


def differences(old: JobStatus, new: JobStatus) -> Iterator[str]:
    """What the status says now and did not say before, a line each."""
    a, b = old.round, new.round
    if (a.number, a.phase) != (b.number, b.phase):
        text = f"round {b.number} {b.phase}"
        if b.phase == "Active":
            text += " [" + " ".join(m.pod for m in new.members()) + "]"
        yield f"{text} {b.cause}: {b.message}" if b.cause else text
    elif b.cause != a.cause:
        yield f"cause {b.cause}: {b.message}"
    if b.established is not None and a.established is None:
        yield f"established {b.number}"
    yield from charges(old, new)
    yield from exclusions(old, new)
    states = {m.pod: m.state for m in old.members()}
    for member in new.members():
        if member.state != states.get(member.pod, "Member") and member.state in ("Lost", "Unreachable"):
            yield f"{member.state.lower()} {member.pod}"
    for condition in new.conditions:
        before = old.condition(condition.type)
        changed = before is None or (before.status, before.reason) != (condition.status, condition.reason)
        if changed and (condition.type == "Training" or condition.status == "True"):
            yield f"{condition.type}={condition.status} {condition.reason}: {condition.message}"
