"""Pods that report something in the job's name which is ignored, and why: ``status.ignoredPods``.

A pod may write anything into its Lease, as often as it likes. What cannot be used is listed once. An entry
keeps its text for a while, however often the reason changes, and an Event reports only its first appearance.
"""

from __future__ import annotations

from collections.abc import Mapping

from elasticjob.contract.names import slot_and_attempt
from elasticjob.contract.participant_record import AnnouncedState
from elasticjob.contract.text import counted, listed, node_words, one_line
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import Pod
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import IgnoredPod, ParticipantStatus

MAX_IGNORED = 20
MAX_MESSAGE = 300
LEFT_BEHIND_SECONDS = 10.0
"""How long a pod of an earlier job may go on before that is said: the garbage collector takes a moment."""
REFRESH_SECONDS = 10.0
"""How long an entry stands before another sentence on the same pod replaces it."""

_STATES = frozenset(state.value for state in AnnouncedState)


def describe(p: Pass) -> None:
    """Bring ``status.ignoredPods`` up to date."""
    if p.round.phase == "Closed":
        p.set(ignored_pods=())
        return
    members = {m.id: m for m in p.status.members()}
    duplicates = p.duplicate_ids()
    found = {}
    for pod in p.observed.pods:
        why = _why(p, pod, members, duplicates)
        if why:
            found[pod.name] = one_line(why, MAX_MESSAGE)
    before = {entry.pod_name: entry for entry in p.status.ignored_pods}
    names = sorted(found)
    shown = [IgnoredPod(name, found[name]) for name in names[:MAX_IGNORED]]
    more = len(names) - len(shown)
    if more:
        last = shown[-1]
        shown[-1] = IgnoredPod(
            last.pod_name, one_line(f"(and {counted(more, 'more pod')}) {last.message}", MAX_MESSAGE)
        )
    changed = [entry for entry in shown if entry.pod_name in before and before[entry.pod_name] != entry]
    if changed and p.waits.left(JobWait.IGNORED_REFRESH, "", REFRESH_SECONDS) > 0:
        shown = [before.get(entry.pod_name, entry) for entry in shown]
    p.set(ignored_pods=tuple(shown))


def report(p: Pass) -> None:
    """An Event for each pod that is new in the status. After the status is as it will be written."""
    if p.status.ignored_pods != p.before.ignored_pods:
        p.waits.restart(JobWait.IGNORED_REFRESH)
    before = {entry.pod_name for entry in p.before.ignored_pods}
    for entry in p.status.ignored_pods:
        if entry.pod_name not in before:
            p.event("PodIgnored", f"{entry.pod_name} is ignored: {entry.message}", True, pod=entry.pod_name)


def sentence(p: Pass) -> str:
    """A sentence for the condition; "" if no pod is ignored."""
    if not p.status.ignored_pods:
        return ""
    first, *others = p.status.ignored_pods
    if not others:
        return f"{first.pod_name} is ignored: {first.message}"
    names = listed([entry.pod_name for entry in p.status.ignored_pods])
    return (
        f"{names} are ignored (each has its reason in status.ignoredPods); {first.pod_name}: {first.message}"
    )


def _why(p: Pass, pod: Pod, members: Mapping[str, ParticipantStatus], duplicates: Mapping[str, str]) -> str:
    lease = p.participant(pod)
    if pod.ended or pod.deleting:
        return ""
    if not pod.of_this_job and pod.running and slot_and_attempt(p.job.name, pod.name) is not None:
        return _left_behind(p, pod)
    if lease is None:
        return ""
    record = lease.record
    if not pod.of_this_job:
        joins = record is not None and record.state == AnnouncedState.JOINING.value
        return f"it has the label of job {p.job.name}, but was not created for this job" if joins else ""
    if lease.problem or record is None:
        return lease.problem
    if record.state not in _STATES:
        return f"participant record: this operator does not know the state {record.state}"
    other, member = duplicates.get(pod.name), members.get(record.id)
    if member is not None and member.pod_uid != pod.uid:
        other = member.pod_name
    return f"participant record: the id {record.id} is already used by {other}" if other else ""


def _left_behind(p: Pass, pod: Pod) -> str:
    """Why a pod with a name of ours and another job, or none, is ignored: it trains for one that is gone."""
    if p.waits.left(JobWait.LEFT_BEHIND, pod.uid, LEFT_BEHIND_SECONDS) > 0:
        return ""
    return (
        "it was left behind by a job of this name (kubectl delete --cascade=orphan), or taken from it; it "
        f"still runs on {node_words(pod.node)}, and may save checkpoints beside this job; to end it: "
        f"kubectl -n {p.job.namespace} delete pod {pod.name}"
    )
