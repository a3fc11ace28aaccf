"""What a scenario file says of a pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from elasticjob.contract.round_record import RoundRecord
from elasticjob_operator.plan.state.model import Event
from elasticjob_operator.plan.state.status import Condition, JobStatus, RoundEnd, RoundStatus
from tests.scenarios.failing import charges
from tests.scenarios.machines import exclusions


def differences(old: JobStatus, new: JobStatus) -> Iterator[str]:
    """What the status says now and did not say before, a line each."""
    a, b = old.current_round, new.current_round
    was, now = _reason(a), _reason(b)
    if (a.number, a.phase) != (b.number, b.phase):
        text = f"round {b.number} {b.phase}"
        if b.phase == "Active":
            text += " [" + " ".join(m.pod_name for m in new.members()) + "]"
        cause = now.cause or b.cause
        yield f"{text} {cause}: {now.message}" if cause else text
    elif now.cause != was.cause:
        yield f"cause {now.cause}: {now.message}"
    if b.established_time is not None and a.established_time is None:
        yield f"round {b.number} established"
    if b.drain is not None and a.drain is None:
        yield f"round {b.number} Draining {b.drain.cause}: {b.drain.message}"
    yield from charges(old, new)
    yield from exclusions(old, new)
    states = {m.pod_name: m.state for m in old.members()}
    for member in new.members():
        if member.state != states.get(member.pod_name, "Member") and member.state in ("Lost", "Unreachable"):
            yield f"{member.state.lower()} {member.pod_name}"
    for condition in new.conditions:
        if condition.type in ("Reconciling", "Stalled"):
            continue  # they follow from the others
        says = _says(condition)
        if says and says != _says(old.condition(condition.type)):
            yield f"{condition.type}={condition.status} {condition.reason}: {condition.message}"


def _says(condition: Condition | None) -> tuple[str, ...]:
    """What makes a line when it changes. Training's message changes all the time: `> status` prints it."""
    if condition is None:
        return ()
    if condition.type == "Training":
        return condition.status, condition.reason
    return (condition.reason, condition.message) if condition.status == "True" else ()


def _reason(r: RoundStatus) -> RoundStatus | RoundEnd:
    """Why it was formed while it runs, then why the next is."""
    return r if r.phase == "Active" else r.next_cause


def with_events(lines: list[str], events: Iterable[Event]) -> list[str]:
    """The lines of a pass, and its Events. One that only repeats a line stands behind it; of another that
    ends with the sentence of a line, the sentence is left out."""
    sentences = [line.partition(": ")[2] for line in lines]
    said = list(lines)
    for event in events:
        kind = "Warning" if event.warning else "Normal"
        for i, line in enumerate(lines):
            if _repeats(event.message, line, sentences[i]):
                said[i] += f" ({kind} {event.reason})"
                break
        else:
            known = max((s for s in sentences if event.message.endswith(s)), key=len, default="")
            message = event.message.removesuffix(known) + "..." * bool(known)
            said.append(f"{kind} {event.reason}: {message}")
    return said


def _repeats(message: str, line: str, sentence: str) -> bool:
    """Whether an Event says what a line says: its sentence, of the same round if it is a round's."""
    round_ = re.match(r"round \d+ ", line)
    return message == sentence or bool(
        round_ and message.startswith(round_[0]) and message.endswith(sentence)
    )


def publications(old: RoundRecord | None, new: RoundRecord) -> Iterator[str]:
    """What the round Lease says now that follows from no status."""
    was = old is not None and old.replacing
    if new.replacing != was:
        yield "the hooks wait for the next pods" if new.replacing else "no hook waits for a next pod any more"
    if new.memory_alone and not (old is not None and old.memory_alone):
        yield "memory alone is enough for this drain"
