"""What the operator writes on pods that are there: labels, and the readiness gate of members."""

from __future__ import annotations

from elasticjob.contract.names import KEPT_LABELS, MEMBER_CONDITION, STANDBY_LABEL
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import DeletePod, PatchPod, Pod, PodCondition
from elasticjob_operator.plan.state.pass_state import Pass


def report_changed(p: Pass, live: list[Pod]) -> None:
    """Say once that labels were changed which say what a pod's name says."""
    for pod in live:
        if pod.mislabeled and p.waits.begins(JobWait.LABELS_REPORTED, f"{pod.uid}:{pod.mislabeled}"):
            text = f"labels of {pod.name} were changed ({pod.mislabeled}) and are ignored; by its name it is"
            p.event(
                "PodLabelsIgnored", f"{text} attempt {pod.attempt} of slot {pod.slot}", True, pod=pod.name
            )


def label(p: Pass, live: list[Pod]) -> None:
    """Keep the labels up to date that say what a pod is at the moment (``KEPT_LABELS``)."""
    standing_by = _standing_by(p, live)
    going = _going(p)
    for pod in live:
        there, wanted = dict(pod.labels), {STANDBY_LABEL: "true"} if pod.uid in standing_by else {}
        if there != wanted and pod.uid not in going:
            keys = [key for key in KEPT_LABELS if there.get(key) != wanted.get(key)]
            changes = tuple((key, wanted.get(key)) for key in keys)
            p.actions.append(PatchPod(pod.name, pod.uid, labels=changes))


def _standing_by(p: Pass, live: list[Pod]) -> set[str]:
    """Pods beyond ``replicas`` that are no members stand by: an autoscaler's average leaves them out. By UID.

    Which ones changes as rarely as can be: those that have the label keep it.
    """
    others = [pod for pod in live if pod.uid not in p.status.member_uids]
    count = min(p.job.spec.spares, max(0, len(live) - max(p.job.spec.replicas, p.round.members)))
    others.sort(key=lambda pod: (STANDBY_LABEL not in dict(pod.labels), -(pod.slot or 0)))
    return {pod.uid for pod in others[:count]}


def set_member_gates(p: Pass, live: list[Pod]) -> None:
    """Of the pods with the gate, the members of a round that has met are ready, until another round is formed
    without them. So a disruption budget counts neither standbys nor pods that have not
    joined, and no other pod may be evicted before a replacement trains."""
    met = p.round.established_time is not None
    going = _going(p)
    for pod in live:
        if pod.member_gate is None or pod.uid in going:
            continue
        member = pod.uid in p.status.member_uids and (met or pod.member_gate)
        if member != pod.member_gate:
            gate = PodCondition(MEMBER_CONDITION, member, "Member" if member else "NotMember")
            p.actions.append(PatchPod(pod.name, pod.uid, condition=gate))


def _going(p: Pass) -> set[str]:
    """The UIDs of the pods that this pass deletes."""
    return {action.uid for action in p.actions if isinstance(action, DeletePod)}
