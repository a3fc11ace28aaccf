"""What ``elasticjob doctor JOB`` says of PodDisruptionBudgets that select the job's pods: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from elasticjob.contract.names import ATTEMPT_LABEL, JOB_LABEL, MEMBER_CONDITION, SLOT_LABEL
from elasticjob_client.explain import lenient_template
from elasticjob_client.explain.checks import Check
from elasticjob_client.resource import ElasticJob

if TYPE_CHECKING:
    from lightkube.models.meta_v1 import LabelSelector, LabelSelectorRequirement

_ADVICE = (
    f"add `readinessGates: [{{conditionType: {MEMBER_CONDITION}}}]` to the template's spec: then the next "
    "pod is evicted only when the replacement of the one before trains: docs/operate/disruption-budgets.md"
)


def matter(job: ElasticJob) -> bool:
    """Whether a budget would count pods that are no members: the template has no readiness gate for them."""
    if job.ended or not job.spec.template:
        return False
    gates = lenient_template.template(job.spec.template)["spec"]["readinessGates"]
    return all(gate.get("conditionType") != MEMBER_CONDITION for gate in gates)


def checks(job: ElasticJob, selectors: Mapping[str, LabelSelector | None]) -> list[Check]:
    """One check if any budget selects pods of a job to which this matters. ``selectors``: by the budgets'
    names."""
    if not matter(job):
        return []
    labels = {
        **lenient_template.template(job.spec.template)["metadata"]["labels"],
        JOB_LABEL: job.name,
        SLOT_LABEL: "0",
        ATTEMPT_LABEL: "0",
    }
    found = sorted(name for name, selector in selectors.items() if _selects(selector, labels))
    if not found:
        return []
    which = f"{found[0]} and {len(found) - 1} more select" if len(found) > 1 else f"{found[0]} selects"
    text = (
        f"the PodDisruptionBudget {which} pods that count as Ready before they train: the template has no "
        f"readiness gate {MEMBER_CONDITION}"
    )
    return [Check(result="unknown", subject="budget", found=text, advice=_ADVICE)]


def _selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """As Kubernetes selects: without a selector none, with an empty one all."""
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in (selector.matchLabels or {}).items()) and all(
        _holds(one, labels) for one in selector.matchExpressions or []
    )


def _holds(one: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(one.key), one.values or []
    if one.operator == "Exists":
        return value is not None
    if one.operator == "DoesNotExist":
        return value is None
    return (value in values) == (one.operator == "In")
