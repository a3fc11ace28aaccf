"""Pods that end before they are members of a round: what is charged for them."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from elasticjob.contract.text import listed, node_words
from elasticjob_operator.plan.charges.charging import charge_pod, mark_charged, slot_attempt
from elasticjob_operator.plan.losses import pod_ends
from elasticjob_operator.plan.state.evidence import Evidence
from elasticjob_operator.plan.state.model import Pod
from elasticjob_operator.plan.state.pass_state import Pass

MAX_EARLY_END_EVENTS = 3
"""How many Events on early ends one pass sends; each is about all pods that ended alike."""


def charge(p: Pass) -> str:
    """A pod that ended while it was no member hurt no other pod, but that must not go on without a limit.

    The end of a member that was not waited for belongs to its round (``revision``). Returns why a failure
    rule ends the job, "" if none does.
    """
    failed_by_rule = ""
    if p.job.spec.template is None:
        return failed_by_rule
    others = p.status.member_uids.union(entry.pod_uid for entry in p.round.unaccounted_members)
    charged = set(p.status.charged_pods)
    ended: dict[str, list[str]] = {}
    for pod in p.observed.pods:
        if (
            not pod.of_this_job
            or pod.uid in others
            or pod.deleting
            or p.is_replaced(pod)
            or slot_attempt(pod) in charged
        ):
            continue
        if (pod.exit is None and not pod.ended) or pod_ends.explanation_left(p, pod) > 0:
            continue
        if pod_ends.ended_well(p, pod) and pod_ends.disruption_of(p, pod, pod.name) is None:
            mark_charged(p, pod.uid)
            continue
        text, failing = charge_pod(p, _early_end(p, pod))
        failed_by_rule = failing or failed_by_rule
        if text:
            ended.setdefault(text.removeprefix(pod.name), []).append(pod.name)
    for how, names in islice(ended.items(), MAX_EARLY_END_EVENTS):
        each = " each" * (len(names) > 1)
        one = names[0] if len(names) == 1 else ""
        p.event("PodEndedEarly", f"{listed(names)}{each}{how}", True, True, pod=one)
    return failed_by_rule


def _early_end(p: Pass, pod: Pod) -> Evidence:
    evidence = pod_ends.explain(p, pod, pod.name)
    if pod_ends.disruption_of(p, pod, pod.name) is not None:
        return replace(evidence, message=f"{evidence.message}; it was not yet a member of a round")
    problem = pod_ends.node_problem(p, pod) if pod.exited_well else ""
    if problem:  # a machine that is shut down may let a command end well
        text = f"{pod.name} ended with exit code 0 before it joined, and {node_words(pod.node)} {problem}"
        return replace(pod_ends.node_lost(p, pod, pod.name), message=text)
    how = pod_ends.describe_failure(pod)
    if pod.exit is not None:
        how = pod_ends.describe_end(pod, pod.exit) if pod.failed_init else pod_ends.describe_exit(pod.exit)
        how += pod_ends.said(pod.exit)
    if pod_ends.installer_failed(p, pod):
        how += pod_ends.HANDLER_IS_BROKEN
    lease = p.participant(pod)
    when = "before it joined" if lease is None else "while it was not in a round"
    return replace(evidence, message=f"{pod.name} ended {when}: {how}")
