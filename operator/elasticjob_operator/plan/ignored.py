"""Pods that report something in the job's name which is ignored, and why: ``status.ignored``.

A pod may write anything into its Lease, as often as it likes. What cannot be used is listed once. An entry
keeps its text for a while, however often the reason changes, and an Event reports only its first appearance.
"""

from __future__ import annotations

from collections.abc import Mapping

from elasticjob.contract.records import State
from elasticjob.contract.text import one_line
from elasticjob.rounds.candidates import listed
from elasticjob_operator.plan.context import Pass
from elasticjob_operator.plan.model import Pod
from elasticjob_operator.plan.status import Ignored, ParticipantStatus
from elasticjob_operator.plan.waits import JobWait

MAX_IGNORED = 20
MAX_MESSAGE = 300
REFRESH_SECONDS = 10.0
"""How long an entry stands before another sentence on the same pod replaces it."""

_STATES = frozenset(state.value for state in State)


def describe(p: Pass) -> None:
    """Bring ``status.ignored`` up to date."""
    if p.round.phase == "Closed":
        p.set(ignored=())
        return
    members = {m.id: m for m in p.status.members()}
    found = {}
    for pod in p.observed.pods:
        why = _why(p, pod, members)
        if why:
            found[pod.name] = one_line(why, MAX_MESSAGE)
    before = {entry.pod: entry for entry in p.status.ignored}
    names = sorted(found)
    shown = [Ignored(name, found[name]) for name in names[:MAX_IGNORED]]
    more = len(names) - len(shown)
    if more:
        last = shown[-1]
        shown[-1] = Ignored(last.pod, one_line(f"(and {more} more pods) {last.message}", MAX_MESSAGE))
    changed = [entry for entry in shown if entry.pod in before and before[entry.pod] != entry]
    if changed and p.waits.left(JobWait.IGNORED_REFRESH, "", REFRESH_SECONDS) > 0:
        shown = [before.get(entry.pod, entry) for entry in shown]
    p.set(ignored=tuple(shown))


def tell(p: Pass) -> None:
    """An Event for each pod that is new in the status. After the status is as it will be written."""
    if p.status.ignored != p.before.ignored:
        p.waits.restart(JobWait.IGNORED_REFRESH)
    before = {entry.pod for entry in p.before.ignored}
    for entry in p.status.ignored:
        if entry.pod not in before:
            p.event("ParticipantIgnored", f"{entry.pod} is ignored: {entry.message}", warning=True)


def sentence(p: Pass) -> str:
    """For the condition; empty if nobody is ignored."""
    if not p.status.ignored:
        return ""
    names = listed([entry.pod for entry in p.status.ignored])
    are = "is" if len(p.status.ignored) == 1 else "are"
    return f"; {names} {are} ignored: {p.status.ignored[0].message}"


def _why(p: Pass, pod: Pod, members: Mapping[str, ParticipantStatus]) -> str:
    lease = p.participant(pod)
    if lease is None or pod.ended or pod.deleting:
        return ""
    record = lease.record
    if not pod.mine:
        joins = record is not None and record.state == State.JOINING.value
        return f"it has the label of job {p.job.name}, but was not created for this job" if joins else ""
    if lease.problem or record is None:
        return lease.problem
    if record.state not in _STATES:
        return f"participant record: this operator does not know the state {record.state}"
    other, member = p.namesakes.get(pod.name), members.get(record.id)
    if member is not None and member.uid != pod.uid:
        other = member.pod
    return f"participant record: the id {record.id} is already used by {other}" if other else ""
