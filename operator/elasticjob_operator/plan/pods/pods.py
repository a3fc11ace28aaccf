"""Slots and pods: which pods should exist, which are replaced, and which are cleaned up.

A pod is named ``<job>-<slot>-<attempt>``; the attempt is written to the status before the pod is created. A
lost pod is replaced at once under the next attempt number, without waiting for the old pod to disappear.
"""

from __future__ import annotations

from itertools import islice

from elasticjob.contract.names import pod_name, slot_and_attempt
from elasticjob.contract.text import counted, node_words
from elasticjob.rounds.state import MemberState
from elasticjob.rounds.topology import kept
from elasticjob_operator.plan.charges import backoff, revision
from elasticjob_operator.plan.losses import excluded_nodes, pod_ends
from elasticjob_operator.plan.pods import gang, labels
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import (
    Action,
    CleanPodPolicy,
    CreatePod,
    DeleteLease,
    DeletePod,
    PatchPod,
    Pod,
)
from elasticjob_operator.plan.state.pass_state import Pass

ORPHAN_SECONDS = 10.0
"""How long a Lease without a pod is left alone: the two watches are not in step."""
MAX_ORPHANS = 200
"""How many Leases without a pod one pass looks at: a user who may create Leases can create very many."""
LINGER_SECONDS = 30.0
"""How long a pod may take to end by itself after its job is finished or its round is over for it."""

QUOTA_WANTED_BACK = "its queue wants its quota back"
"""Why a pod is deleted while a round forms."""
SIDECAR_LINGER_SECONDS = 5.0
"""How long sidecars may run after the training container has failed: the pod that replaces theirs may need
what it holds. They get their grace period in addition."""


def keep_pods(p: Pass) -> None:
    """Bring the pods of an unfinished job to what is wanted."""
    if p.job.spec.template is not None:
        _replace_silent(p)
        excluded_nodes.keep_nodes(p)
        _delete_surplus(p)
        _give_quota_back(p)
        _leave_group(p)
        _retire_names(p)
        _create_missing(p)
        _delete_lost_and_replaced(p)
        _delete_held_by_sidecars(p)
        _delete_old_attempts(p)
    live = [pod for pod in p.observed.pods if p.alive(pod)]
    labels.report_changed(p, live)
    _count(p, len(live) + sum(isinstance(a, CreatePod) for a in p.actions))
    if p.job.spec.template is not None and p.round.phase == "Active":
        labels.label(p, live)
    labels.set_member_gates(p, live)


def _count(p: Pass, there: int) -> None:
    """Those that an autoscaler counts: without standbys."""
    wanted = max(p.job.spec.replicas, len(p.status.members()) * (p.round.phase == "Active"))
    p.set(replicas=min(there, wanted))


def clean_up(p: Pass) -> None:
    """Pods end by themselves after the end of the job. ``cleanPodPolicy`` says whether they are deleted then,
    and those that do not end; by default the former are kept and the latter deleted."""
    _count(p, sum(p.alive(pod) for pod in p.observed.pods))
    policy = p.job.spec.clean_pod_policy
    if p.job.spec.template is None or policy == CleanPodPolicy.NONE:
        return
    for pod in p.observed.pods:
        if not pod.of_this_job or pod.deleting:
            continue
        if pod.ended:
            if policy == CleanPodPolicy.ALL:
                p.actions.append(DeletePod(pod.name, pod.uid, "the job is finished"))
            continue
        never_ran = not pod.running and pod.exit is None
        if never_ran or p.waits.left(JobWait.PODS_END, pod.uid, LINGER_SECONDS) == 0:
            p.actions.append(DeletePod(pod.name, pod.uid, "the job is finished"))


def delete_orphaned_leases(p: Pass) -> None:
    """Delete the Leases of pods that are gone."""
    orphans = (name for name in p.observed.leases if name not in p.pods_by_name)
    for name in islice(orphans, MAX_ORPHANS):
        if p.waits.left(JobWait.ORPHAN, name, ORPHAN_SECONDS) == 0:
            p.judged_unheard.add(name)
            p.actions.append(DeleteLease(name))


def writers(p: Pass) -> frozenset[str]:
    """The pods that may write the Lease of their name: all that have not ended, and those being made."""
    names = {
        pod.name
        for pod in p.observed.pods
        if pod.of_this_job and not pod.ended and (pod.uid in p.held or not p.is_replaced(pod))
    }
    if p.job.spec.template is not None:
        names |= {
            pod_name(p.job.name, slot, attempt)
            for slot, attempt in enumerate(p.status.attempts)
            if attempt >= 0
        }
    return frozenset(names)


def is_recorded(p: Pass, action: Action) -> bool:
    """Whether this action follows from the status alone, so that it needs no other to be written first."""
    if isinstance(action, CreatePod):
        there = p.status.attempts[action.slot] if action.slot < len(p.status.attempts) else -1
        return there == action.attempt
    if isinstance(action, DeletePod):
        pod = p.pods_by_name.get(action.name)
        unwanted = pod is not None and (p.is_replaced(pod) or pod.uid in p.status.lost_pod_uids)
        return unwanted or p.status.finished or p.status.is_true("Suspended")
    # Who is a member, the status says.
    return not (isinstance(action, PatchPod) and action.condition is not None)


def _delete_surplus(p: Pass) -> None:
    """More pods than wanted, beside a running round or before the first: those that are furthest from
    training go first, as in a ReplicaSet.

    Members that a smaller round will leave out are standbys once it is published.
    """
    if p.round.phase != "Active" and p.round.number > 0:
        return
    members = p.status.member_uids
    live = [pod for pod in p.observed.pods if p.alive(pod)]
    surplus = len(live) - max(p.job.spec.pods, len(members))
    others = _furthest_first(p, [pod for pod in live if pod.uid not in members])
    going = others[: max(0, surplus)]
    _excuse(p, going)
    for pod in going:
        p.actions.append(
            DeletePod(pod.name, pod.uid, f"scaled down to {counted(p.job.spec.replicas, 'replica')}")
        )


def _give_quota_back(p: Pass) -> None:
    """While a round forms, pods end at once for which the job's queue gives no quota any more: the round may
    lack members for long. Those go first that are no members, then the last ranks.
    """
    beyond = p.beyond_quota() if p.round.phase == "Broken" else 0
    if not beyond:
        return
    ranks = {member.pod_uid: member.group_rank or 0 for member in p.status.members()}
    live = [pod for pod in p.observed.pods if p.alive(pod)]
    others = _furthest_first(p, [pod for pod in live if pod.uid not in ranks])[:beyond]
    members = sorted((pod for pod in live if pod.uid in ranks), key=lambda pod: ranks[pod.uid])
    placed = [(p.observed.domains.get(pod.node, ()), pod.uid) for pod in members]
    staying = set(kept(placed, max(0, len(members) + len(others) - beyond)))
    going = [*others, *(pod for pod in members if pod.uid not in staying)]
    _excuse(p, going)
    for pod in going:
        if pod.uid not in ranks:
            p.actions.append(DeletePod(pod.name, pod.uid, QUOTA_WANTED_BACK))
    p.mark_lost({pod.uid: QUOTA_WANTED_BACK for pod in going if pod.uid in ranks})


def _leave_group(p: Pass) -> None:
    """Make pods again, outside of their PodGroup or in the next one, that theirs would hold for good."""
    going, why = gang.outgrown(p)
    _excuse(p, going)
    for pod in going:
        p.actions.append(DeletePod(pod.name, pod.uid, why))


def _excuse(p: Pass, going: list[Pod]) -> None:
    """Charge nothing for these, and let their slots have other pods without a back-off."""
    revision.forget(p, {pod.uid for pod in going})
    for pod in going:
        backoff.record_surplus_deletion(p, pod)


def _furthest_first(p: Pass, pods: list[Pod]) -> list[Pod]:
    """Those that are furthest from training come first; of equal ones, the highest slot."""
    return sorted(pods, key=lambda pod: (*_readiness(p, pod), -(pod.slot or 0)))


def _readiness(p: Pass, pod: Pod) -> tuple[bool, ...]:
    """How near a pod is to training: it has a node, the node is ready, it runs, it has joined (perhaps
    for the round that this pass has published without it)."""
    lease = p.participant(pod)
    record = lease.record if lease is not None else None
    joined = record is not None and record.seen(p.job.uid) >= p.before.current_round.number
    return bool(pod.node), pod.node_ready and not pod.unreachable, pod.running, joined


def _replace_silent(p: Pass) -> None:
    """A pod that has announced itself and stopped renewing its Lease is not picked; while it is needed, it
    gets as long to come back as a member to rejoin."""
    if p.round.phase == "Active" and p.round.members >= p.job.spec.pods:
        return
    lost: dict[str, str] = {}
    newcomers = []
    for pod in p.observed.pods:
        silent = p.silent_announcement(pod)
        if silent is None or silent <= p.job.spec.limits.rejoin_timeout:
            continue
        if p.round.phase == "Active" and pod.uid in p.status.member_uids:
            continue
        text = f"{pod.name} joined, but has not renewed its Lease for {silent:.0f} s"
        p.event("PodReplaced", text, warning=True, pod=pod.name)
        p.judged_unheard.add(pod.name)
        if pod.uid in p.status.member_uids:
            lost[pod.uid] = text
        else:
            newcomers.append(pod)
    p.replace_pods(newcomers)
    p.mark_lost(lost)


def _retire_names(p: Pass) -> None:
    """Pods that are gone, and that the status is about to forget: no later pod gets their names."""
    kept = {entry.pod_name for entry in p.status.participants}.union(p.pods_by_name)
    forgotten = [entry.pod_name for entry in p.before.participants if entry.pod_name not in kept]
    if forgotten:
        p.use_up(filter(None, (slot_and_attempt(p.job.name, name) for name in forgotten)))


def _create_missing(p: Pass) -> None:
    missing = p.missing_slots()
    if not missing:
        return
    attempts = list(p.status.attempts)
    known = _known(p)
    for slot in missing:
        attempts.extend([-1] * (slot + 1 - len(attempts)))
        attempt = attempts[slot]
        name = pod_name(p.job.name, slot, attempt) if attempt >= 0 else ""
        if name in known:
            ended = p.pods_by_name.get(name)
            if ended is not None and ended.of_this_job and pod_ends.explanation_left(p, ended) > 0:
                continue
            attempt += 1
        if backoff.slot_backoff_left(p, slot) > 0:
            continue
        attempt = max(attempt, 0)
        while pod_name(p.job.name, slot, attempt) in p.pods_by_name:
            attempt += 1
        attempts[slot] = attempt
        name = pod_name(p.job.name, slot, attempt)
        p.actions.append(CreatePod(name, slot, attempt, excluded_nodes.excluded(p)))
    p.set(attempts=tuple(attempts))


def _known(p: Pass) -> set[str]:
    """The pods that are known to have existed. If that of a slot's newest attempt is not among them, an
    operator died before it made it."""
    known = {entry.pod_name for entry in p.status.participants}.union(p.pods_by_name)
    known.update(backed_off.pod_name for backed_off in p.status.slot_backoffs)
    known.update(charge.pod_name for account in p.status.accounts for charge in account.charges)
    return known


def _delete_lost_and_replaced(p: Pass) -> None:
    """Pods of lost members, and running pods of a slot that a later attempt has taken."""
    lost = {m.pod_uid: m.message for m in p.status.members() if m.state == MemberState.LOST}
    for pod in p.observed.pods:
        if not pod.of_this_job or pod.ended or pod.exit is not None or pod.deleting:
            continue
        if pod.uid in lost:
            if lost[pod.uid] or p.waits.left(JobWait.PODS_END, pod.uid, LINGER_SECONDS) == 0:
                p.actions.append(DeletePod(pod.name, pod.uid, lost[pod.uid] or "its round is over"))
        elif pod.uid in p.held:
            continue
        elif p.is_replaced(pod) and (
            # One that says that it ends does so by itself, and whose doing that was is still to be seen.
            not p.leaving(pod) or p.waits.left(JobWait.PODS_END, pod.uid, LINGER_SECONDS) == 0
        ):
            why = f"{node_words(pod.node)} has the taint {pod.notice}" if pod.notice else ""
            p.actions.append(DeletePod(pod.name, pod.uid, why or "replaced by a later pod of the same slot"))


def _delete_held_by_sidecars(p: Pass) -> None:
    """Pods whose training container has ended while another lives: nothing else frees what they hold.

    Those of members that have done their part, or may have, end with the job.
    """
    done = p.status.member_uids - p.status.lost_pod_uids if p.round.phase == "Active" else frozenset()
    for pod in p.observed.pods:
        if not pod.of_this_job or pod.ended or pod.deleting or pod.exit is None or not pod.sidecar_running:
            continue
        if pod.uid in done or pod_ends.explanation_left(p, pod) > 0:
            continue
        if p.waits.left(JobWait.SIDECAR, pod.uid, SIDECAR_LINGER_SECONDS) == 0:
            how = pod_ends.describe_exit(pod.exit)
            why = f"its training container ended with {how}, but other containers keep the pod running"
            p.actions.append(DeletePod(pod.name, pod.uid, why))


def _delete_old_attempts(p: Pass) -> None:
    """Keep only the newest of each slot's ended pods, so that its log can be read."""
    newest: dict[int, Pod] = {}
    for pod in sorted(p.observed.pods, key=lambda pod: pod.attempt):
        if not pod.of_this_job or pod.slot is None or not pod.ended or pod.deleting:
            continue
        older = newest.get(pod.slot)
        if older is not None:
            p.actions.append(DeletePod(older.name, older.uid, "a later pod of the same slot has ended"))
        newest[pod.slot] = pod
