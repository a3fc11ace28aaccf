"""Nodes that new pods avoid, because they have failed this job: ``status.excludedNodes``.

A node has failed when a restart was charged to infrastructure and its root failure was on that node, unless
a process there had been asked to end. A round that has just ended counts before it is charged, so that the
replacement goes elsewhere at once. Pods that run on an excluded node are left alone.

An exclusion never keeps a job from training: it is not made if the template allows no other node. If fewer
than ``minReplicas`` pods are scheduled, and a pod that avoids nodes cannot be, or a kubelet rejects it, the
oldest exclusion is lifted. It stays in the status until it expires, with the reason why it was lifted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from elasticjob.contract.text import counted, node_words
from elasticjob.rounds.causes import Cause
from elasticjob_operator.plan.losses import pod_ends
from elasticjob_operator.plan.losses.placement import nodes_left
from elasticjob_operator.plan.state.evidence import INFRASTRUCTURE
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import DeletePod, Pod
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import ExcludedNode, JobStatus

FAILURES = 2
"""This many failures within ``WINDOW`` exclude a node: one may be bad luck, and a job that loses the same
node twice in an hour has lost more time than another node costs."""

WINDOW = timedelta(hours=1)

EXCLUDED_FOR = timedelta(hours=1)
"""Long enough for people or a controller to look at the node; what is still wrong with it then shows again.
Charges before the exclusion have left the window when it is over: two new ones are needed."""

MAX_EXCLUDED = 20
"""Nodes excluded at a time; each is a requirement in the pod, which the scheduler checks for each node. A job
that has failed on more has another trouble than its nodes."""

LIFT_SECONDS = 5.0
"""How long pods stay unschedulable before an exclusion is lifted: a place may be just being cleared."""

_MAX_MESSAGE = 400

NOT_READY_SECONDS = 5.0
"""How long a node may be not ready before a pod there that has not joined yet is replaced: a kubelet that is
restarted is back by then. Kubernetes itself evicts it after five minutes."""

FORCE_SECONDS = 60.0
"""How long the object of a pod on a dead node is left to Kubernetes itself: its pod garbage collector, which
says why, takes 20 to 60 s. It is missed where that is off."""


def exclude(p: Pass, name: str, message: str) -> None:
    """Let new pods of this job avoid the node for a while. ``message`` says what it has done."""
    message = message[:_MAX_MESSAGE]
    known = next((n for n in p.status.excluded_nodes if n.name == name), None)
    if not name or p.job.spec.template is None or (known is not None and known.message.endswith(message)):
        return
    others = tuple(n for n in p.status.excluded_nodes if n is not known)
    avoided = {n.name for n in others if n.lifted_time is None}
    if p.observed.nodes is not None and not p.observed.nodes - avoided - {name}:
        p.event(
            "NodeNotExcluded",
            f"{node_words(name)} is not excluded because no other node is left: {message}",
            True,
        )
        return
    if nodes_left(p.job.spec.template, {*avoided, name}) == frozenset():
        text = f"{node_words(name)} is not excluded because the template allows no other node: {message}"
        p.event("NodeNotExcluded", text, True)
        return
    entry = ExcludedNode(name, p.now.wall + EXCLUDED_FOR, message)
    p.set(excluded_nodes=(*others, entry)[-MAX_EXCLUDED:])
    p.event("NodeExcluded", f"new pods avoid {node_words(name)} for {_words(EXCLUDED_FOR)}: {message}", True)


def suspected(cause: str, exit_code: int | None, node: str) -> str:
    """The node that a failure there speaks against, if it does."""
    return "" if cause == Cause.MEMBER_LEFT or pod_ends.by_request(exit_code) else node


def excluded(p: Pass) -> tuple[str, ...]:
    """The nodes that a pod created now must avoid."""
    wall = p.now.wall
    return tuple(
        sorted(n.name for n in p.status.excluded_nodes if n.lifted_time is None and n.until_time > wall)
    )


def keep_nodes(p: Pass) -> None:
    """Bring the list up to date with what was charged, drop what has expired, lift what is in the way, and
    replace pods that wait because of an exclusion that has ended. Called before pods are made."""
    if p.job.spec.template is None:
        if p.status.excluded_nodes:
            p.set(excluded_nodes=())
        return
    _drop_expired(p)
    _exclude_failing_nodes(p)
    _lift_oldest(p)
    _replace_pending(p)
    _replace_unheard(p)


def clear_dead_nodes(p: Pass) -> None:
    """Remove the objects of pods that were to go and whose node is dead: no kubelet will ever confirm it.

    Only where the node's object is gone or the node was declared out of service: on one that is merely not
    ready they may still run, and their objects say so.
    """
    if p.job.spec.template is None:
        return
    for pod in p.observed.pods:
        if not pod.of_this_job or not pod.deleting or not p.on_dead_node(pod):
            continue
        waited = p.waits.elapsed(JobWait.FORCED_DELETION, pod.uid)
        if waited >= FORCE_SECONDS:
            why = "gone" if pod.node_gone else "out of service"
            p.waits.restart(JobWait.FORCED_DELETION, pod.uid)
            p.actions.append(
                DeletePod(
                    pod.name,
                    pod.uid,
                    f"{node_words(pod.node)} is {why} and cannot confirm that the pod has ended",
                    force=True,
                )
            )
            waited = 0.0
        p.waits.declare(JobWait.FORCED_DELETION, pod.uid, FORCE_SECONDS, FORCE_SECONDS - waited)
        p.waits.wake(FORCE_SECONDS - waited)


def _drop_expired(p: Pass) -> None:
    wall = p.now.wall
    kept = tuple(n for n in p.status.excluded_nodes if n.until_time > wall)
    if kept != p.status.excluded_nodes:
        p.set(excluded_nodes=kept)
    for entry in kept:
        p.waits.wake((entry.until_time - wall).total_seconds())


def _exclude_failing_nodes(p: Pass) -> None:
    """A failure that is new in this pass may be one too many for its node."""
    failures = _failures(p, p.status)
    counts = Counter(failures.values())
    before = _failures(p, p.before)
    for name in dict.fromkeys(node for key, node in failures.items() if before.get(key) != node):
        if counts[name] >= FAILURES and name not in excluded(p):
            last = p.status.last_failure
            said = f"; last failure: {last.message}" if last is not None and last.node_name == name else ""
            exclude(p, name, f"{counts[name]} failures within {_words(WINDOW)}{said}")


def _failures(p: Pass, status: JobStatus) -> dict[tuple[int | None, str], str]:
    """The node of each infrastructure failure within the window, by round and pod."""
    since = p.now.wall - WINDOW
    found = {
        (charge.round, charge.pod_name): charge.node_name
        for account in status.accounts
        if account.name == INFRASTRUCTURE
        for charge in account.charges
        if charge.node_name and charge.time > since
    }
    last, r = status.last_failure, status.current_round
    over = r.phase == "Broken" and r.next_cause.account == INFRASTRUCTURE
    if over and last is not None and last.round == r.number and last.time > since:
        node = suspected(r.next_cause.cause, last.exit_code, last.node_name)
        if node:
            found.setdefault((r.number, ""), node)
    return found


def _lift_oldest(p: Pass) -> None:
    """Give the oldest exclusion up that pods can't be scheduled for, while too few have a place."""
    avoided = set(excluded(p))
    stuck = [pod for pod in p.observed.pods if _pending(p, pod) and pod.unschedulable]
    rejected = [pod for pod in p.observed.pods if _rejected(p, pod)]
    stuck = [pod for pod in rejected + stuck if avoided.intersection(pod.avoids)]
    placed = sum(p.alive(pod) and pod.node_ready and bool(pod.node) for pod in p.observed.pods)
    if (
        not stuck
        or placed >= p.status.min_replicas
        or (stuck[0] not in rejected and p.waits.left(JobWait.EXCLUSION_LIFTED, "", LIFT_SECONDS) > 0)
    ):
        return
    p.waits.restart(JobWait.EXCLUSION_LIFTED)
    in_the_way = {stuck[0].node} if rejected else {name for pod in stuck for name in pod.avoids}
    first = next(n for n in p.status.excluded_nodes if n.lifted_time is None and n.name in in_the_way)
    text = (
        f"only {placed} of {counted(p.status.min_replicas, 'required pod')} {'is' if placed == 1 else 'are'} "
        f"scheduled, and {stuck[0].name} cannot be ({_why(stuck[0])})"
    )
    lifted = replace(
        first, lifted_time=p.now.wall, message=f"lifted because {text}; was excluded for: {first.message}"
    )
    p.set(excluded_nodes=tuple(lifted if n is first else n for n in p.status.excluded_nodes))
    p.event("NodeExclusionLifted", f"new pods may run on {node_words(first.name)} again: {text}", True)


def _replace_pending(p: Pass) -> None:
    """A pod can't be changed: one that waits for a node and avoids one that it need not leaves its slot to
    the next attempt. Nothing is charged for it."""
    avoided = set(excluded(p))
    p.replace_pods([pod for pod in p.observed.pods if _pending(p, pod) and set(pod.avoids) - avoided])


def _replace_unheard(p: Pass) -> None:
    """A pod that has not joined yet, on a node that does not answer, leaves its slot to the next attempt: it
    cannot be started there, and no member misses its heartbeats."""
    unheard = []
    for pod in p.observed.pods:
        new = pod.node and not pod.node_ready and p.alive(pod) and pod.uid not in p.status.member_uids
        if not new or p.participant(pod) is not None:
            continue
        if p.waits.left(JobWait.NODE_READY, pod.uid, NOT_READY_SECONDS) == 0:
            text = f"{pod.name} has not joined, and {node_words(pod.node)} is not ready"
            p.event("PodReplaced", text, True, pod=pod.name)
            unheard.append(pod)
    p.replace_pods(unheard)


def _pending(p: Pass, pod: Pod) -> bool:
    return bool(pod.avoids) and not pod.node and p.alive(pod)


def _rejected(p: Pass, pod: Pod) -> bool:
    """Whether the kubelet of a node that the pod avoids has found that it does not belong there, as a
    scheduler finds of all nodes."""
    avoids = pod.node in pod.avoids and pod.node in excluded(p)
    return avoids and pod.of_this_job and pod_ends.misplaced(pod) and not p.is_replaced(pod)


def _why(pod: Pod) -> str:
    return pod.unschedulable or pod_ends.describe_failure(pod)


def _words(time: timedelta) -> str:
    minutes = round(time.total_seconds() / 60)
    return "an hour" if minutes == 60 else f"{minutes} minutes"
