"""What the end or the deletion of a pod means: what ended it, and what Kubernetes says about it.

Several parties report one end, in any order: the deletionTimestamp, the condition DisruptionTarget, the exit
codes of the containers (137 and 143 mean a signal, and torchrun ends with 1 when it is asked to stop), the
kubelet's reason, the state of the node. The sign that names what ended the pod explains most, whenever it
arrives.
"""

from __future__ import annotations

from dataclasses import replace

from elasticjob.contract.participant_record import AnnouncedState
from elasticjob.contract.text import node_words
from elasticjob.rounds.causes import ESTABLISHING, Cause
from elasticjob_operator.plan.state.evidence import Evidence
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import OOM_KILLED, Exit, HandlerSource, Pod
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.template.containers import HANDLER_CONTAINER, memory_limit

SIGNALS = {1: "SIGHUP", 2: "SIGINT", 6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}

ENDING_SIGNALS = frozenset({1, 2, 15})
"""Signals that ask a process to end."""

DISRUPTIONS = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.EVICTED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
}
"""The reasons of DisruptionTarget but for the kubelet's; any other is a preemption."""

BY_KUBELET = "TerminationByKubelet"

KUBELET_REASONS = {
    "Evicted": Cause.NODE_PRESSURE,
    "Terminated": Cause.PREEMPTED,
    "NodeShutdown": Cause.PREEMPTED,
    "Shutdown": Cause.PREEMPTED,
    "Preempting": Cause.PREEMPTED,
    "NodeLost": Cause.NODE_LOST,
    "DeadlineExceeded": Cause.POD_FAILED,
}
"""``status.reason`` of a pod that the kubelet has ended, in the words of all its versions: too little
memory or disk, because the machine is shut down (a spot node), for a critical pod, or because the template's
own activeDeadlineSeconds are over."""

DELETED = "was deleted (not by the operator; the API server's audit log names the user)"
"""Said of a pod that counted for its slot: the operator deletes no such pod."""

HANDLER_IS_BROKEN = "; the operator adds this container: check handler.image of its chart"

MISPLACED = frozenset({"NodeAffinity", "MatchNodeSelector", "NodeSelectorMismatching", "NodeName"})
"""``status.reason`` of a pod that a kubelet has rejected because it does not belong on its node: bound there
by its template's nodeName or by a scheduler that does not know of affinity."""

EXPLAINED_SECONDS = 5.0
"""How long after a pod has ended with 0 before it joined a sign may still show that it was asked to end: the
decision may end the job."""

EXPLAINED_BY_THE_NODE = frozenset(
    ESTABLISHING | {Cause.POD_LOST, Cause.UNREACHABLE, Cause.DID_NOT_REJOIN, Cause.MEMBER_LEFT}
)
"""Causes that a node's loss explains when it shows afterwards; not a deletion that came before."""


def disruption_of(p: Pass, pod: Pod, who: str, group_rank: int | None = None) -> Evidence | None:
    """Evidence that something else ended this pod, or is ending it, as far as it is known; None for a pod
    that ended by itself."""
    cause = _disruption_cause(pod)
    if cause is not None:
        return _evidence(pod, cause, _sentence(pod, who, cause), group_rank)
    if pod.exit is not None and pod.exit.reason == OOM_KILLED:
        return None
    problem = node_problem(p, pod)
    if pod.deleting and problem:
        text = f"{who} was lost: its pod was deleted, and {node_words(pod.node)} {problem}"
        return _evidence(pod, Cause.NODE_LOST, text, group_rank)
    if pod.deleting:
        return _evidence(pod, Cause.POD_DELETED, f"{who} {DELETED}", group_rank)
    return None


def explain(p: Pass, pod: Pod, who: str, group_rank: int | None = None) -> Evidence:
    """Why a pod has ended."""
    disruption = disruption_of(p, pod, who, group_rank)
    if disruption is not None:
        return disruption
    if pod.exit is None:
        text = f"{who} was lost: its pod failed ({describe_failure(pod)})"
        found = _evidence(pod, Cause.POD_LOST, text, group_rank)
        return replace(found, node_name="") if misplaced(pod) else found  # nothing speaks against the node
    if installer_failed(p, pod):
        text = f"{who} was lost: its {describe_end(pod, pod.exit)}{said(pod.exit)}{HANDLER_IS_BROKEN}"
        # Its image fails on every node: none is to be avoided for it.
        return replace(_evidence(pod, Cause.POD_LOST, text, group_rank), node_name="")
    limit = "" if pod.failed_init else memory_limit(p.job.spec.template)
    cause, text = Cause.POD_FAILED, f"{who} was lost: its {describe_end(pod, pod.exit, limit)}"
    if pod.exit.reason == OOM_KILLED:
        cause = Cause.OUT_OF_MEMORY
    elif pod.exit.code > 128 or pod.exit.code < 0:
        cause = Cause.POD_LOST
    else:
        text += said(pod.exit)
    return replace(_evidence(pod, cause, text, group_rank), detect_milliseconds=_noticed_after(p, pod.exit))


def installer_failed(p: Pass, pod: Pod) -> bool:
    """Whether the container that the operator adds for the handler has failed: no fault of the template's."""
    return pod.failed_init == HANDLER_CONTAINER and p.job.spec.handler_source == HandlerSource.INJECTED


def ended_well(p: Pass, pod: Pod) -> bool:
    """Whether this pod has joined, and its container has ended with 0: no failure. It may have been a member
    that had finished, and whose report was late or lost, so that the next round has formed without it."""
    lease = p.participant(pod)
    record = lease.record if lease is not None else None
    return pod.exited_well and record is not None and record.state != AnnouncedState.LEAVING.value


def explanation_left(p: Pass, pod: Pod) -> float:
    """Seconds that an explanation is still waited for, of a pod that has ended with 0 and never joined; 0 if
    it has ended in another way, or is explained, or no explanation came."""
    if not pod.exited_well or p.participant(pod) is not None:
        return 0.0
    if p.job.spec.template is None or disruption_of(p, pod, pod.name) is not None or node_problem(p, pod):
        return 0.0
    return p.waits.left(JobWait.END_EXPLAINED, pod.uid, EXPLAINED_SECONDS)


def later_evidence(p: Pass, pod: Pod, who: str, cause: str, group_rank: int | None = None) -> Evidence | None:
    """What the pod of a member that was marked lost for ``cause`` says now, if that is more than was known.

    Its deletion and its exit code say nothing: that was the operator. Compare by ``better``.
    """
    if pod.exited_well:
        return None
    disruption = _disruption_cause(pod)
    if disruption is not None:
        return _evidence(pod, disruption, _sentence(pod, who, disruption), group_rank)
    if pod.exit is not None and pod.exit.reason == OOM_KILLED:
        return explain(p, pod, who, group_rank)
    problem = node_problem(p, pod)
    if problem and cause in EXPLAINED_BY_THE_NODE:
        return _evidence(
            pod, Cause.NODE_LOST, f"{who} was lost: {node_words(pod.node)} {problem}", group_rank
        )
    return None


def final_evidence(p: Pass, pod: Pod, who: str, cause: str, group_rank: int | None = None) -> Evidence | None:
    """``later_evidence``, or that the pod failed by itself: not one that was asked to end."""
    found = later_evidence(p, pod, who, cause, group_rank)
    if found is None and pod.exit is not None and pod.exit.code != 0 and not pod.deleting:
        return explain(p, pod, who, group_rank)
    return found


def node_lost(p: Pass, pod: Pod, who: str, group_rank: int | None = None) -> Evidence:
    """The member is lost with its node."""
    problem = node_problem(p, pod)
    silent = "" if p.on_dead_node(pod) else " and the pod is silent"
    return _evidence(
        pod, Cause.NODE_LOST, f"{who} was lost: {node_words(pod.node)} {problem}{silent}", group_rank
    )


def node_problem(p: Pass, pod: Pod) -> str:
    """The problem of the pod's node, in words; "" if it is well."""
    if pod.node_gone:
        return "is gone" if p.on_dead_node(pod) else ""
    if pod.out_of_service and not pod.node_ready:
        return "is out of service"
    if pod.unreachable:
        return "is unreachable"
    return "" if pod.node_ready else "is not ready"


def describe_failure(pod: Pod) -> str:
    """Why a pod has failed of which no container has ended, in the kubelet's words: ``OutOfcpu: Pod was
    rejected: Node didn't have enough resource: cpu, ...``."""
    return ": ".join(filter(None, (pod.reason, pod.message.strip(". ")))) or "no reason given"


def misplaced(pod: Pod) -> bool:
    """Whether a kubelet has rejected the pod because it does not belong there."""
    return pod.ended and pod.exit is None and pod.reason in MISPLACED


def describe_end(pod: Pod, end: Exit, limit: str = "") -> str:
    """Which container has ended, and how. ``limit``: of its memory, where that is known."""
    which = f"init container {pod.failed_init}" if pod.failed_init else "container"
    how = "was killed:" if end.reason == OOM_KILLED else "ended with"
    return f"{which} {how} {describe_exit(end, limit)}"


def said(end: Exit) -> str:
    """What a container has said last, to stand behind how it ended."""
    return f": {end.message}" if end.message else ""


def describe_exit(end: Exit, limit: str = "") -> str:
    """An exit code in words: ``SIGKILL (exit code 137)``, ``out of memory (OOMKilled)``, ``exit code 1``."""
    if end.reason == OOM_KILLED:
        return f"out of memory ({OOM_KILLED}, limit {limit})" if limit else f"out of memory ({OOM_KILLED})"
    name = SIGNALS.get(end.code - 128)
    return f"{name} (exit code {end.code})" if name else f"exit code {end.code}"


def by_request(code: int | None) -> bool:
    """Whether a process with this exit code was asked to end: no fault of its node's."""
    return code is not None and code - 128 in ENDING_SIGNALS


def _noticed_after(p: Pass, end: Exit) -> int | None:
    """How many milliseconds ago the container ended, by its node's clock, in whole seconds; None where that
    can't be, since the clocks differ or it has ended another round."""
    since = p.round.established_time or p.round.start_time
    if end.finished is None or since is None or not since <= end.finished <= p.now.wall:
        return None
    return round((p.now.wall - end.finished).total_seconds() * 1000)


def _disruption_cause(pod: Pod) -> str | None:
    """The cause that the API's own words tell. The condition DisruptionTarget alone takes no pod away: the
    deletion follows it within milliseconds, or has failed (Kubernetes takes the condition back then)."""
    over = pod.exit is not None or pod.ended
    if over and pod.reason == "Evicted" and _over_its_own_limit(pod.message):
        return Cause.POD_FAILED
    if over and pod.reason in KUBELET_REASONS:
        return KUBELET_REASONS[pod.reason]
    if not pod.disruption or not (over or pod.deleting):
        return None
    if pod.disruption == BY_KUBELET:
        return Cause.POD_LOST
    return DISRUPTIONS.get(pod.disruption, Cause.PREEMPTED)


def _over_its_own_limit(message: str) -> bool:
    """Whether the kubelet has evicted a pod for using more disk than its template allows. Then it says ``Pod
    ephemeral local storage usage exceeds ...``, ``Container train exceeded its ...`` or ``Usage of EmptyDir
    volume "x" exceeds ...``; where the node is short, ``The node was low ...`` (pkg/kubelet/eviction)."""
    return "exceed" in message and not message.startswith("The node ")


def _sentence(pod: Pod, who: str, cause: str) -> str:
    words_of: dict[str, str] = {
        Cause.PREEMPTED: "was preempted",
        Cause.EVICTED: "was evicted",
        Cause.NODE_PRESSURE: f"was evicted from {node_words(pod.node)}, which is short of resources",
        Cause.NODE_LOST: f"was lost with {node_words(pod.node)}",
    }
    how = words_of.get(cause, "was terminated by its node")
    words = pod.message.strip(". ") or pod.disruption or pod.reason
    return f"{who} {how}: {words}"


def _evidence(pod: Pod, cause: str, message: str, group_rank: int | None) -> Evidence:
    # Rules ask for the exit codes of workers.
    known = pod.exit is not None and cause in _OWN_EXIT_CAUSES and not pod.failed_init
    exit_code = pod.exit.code if pod.exit is not None and known else None
    return Evidence(
        cause,
        message,
        pod.name,
        group_rank,
        exit_code,
        pod_uid=pod.uid,
        node_name=pod.node,
        reasons=_reasons(pod, cause),
    )


_OWN_EXIT_CAUSES = frozenset({Cause.POD_FAILED, Cause.POD_LOST, Cause.OUT_OF_MEMORY})
"""Causes that a container's exit code belongs to; where the pod was taken away it is only the echo."""


def _reasons(pod: Pod, cause: str) -> tuple[str, ...]:
    """The words by which the API, and ``kubectl``, know this end."""
    words = [pod.exit.reason if pod.exit is not None else "", pod.reason, pod.disruption]
    if cause == Cause.NODE_LOST:
        words.append("NodeLost")
    return tuple(dict.fromkeys(word for word in words if word))
