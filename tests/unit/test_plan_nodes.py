"""Exclusion of nodes: what the scenarios do not reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from elasticjob.rounds.waits import WaitKey, Waits
from elasticjob_operator.plan.losses import excluded_nodes
from elasticjob_operator.plan.losses.placement import nodes_left
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import DeletePod, Job, JobSpec, Now, Observed, Pod
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.restart_accounts import Account, Charge
from elasticjob_operator.plan.state.status import ExcludedNode, JobStatus

WALL = datetime(2026, 1, 1, tzinfo=timezone.utc)


def a_pass(
    status: JobStatus | None = None,
    observed: Observed | None = None,
    minutes: float = 0,
    template: bool = True,
    before: JobStatus | None = None,
    began: Mapping[WaitKey, float] | None = None,
) -> Pass:
    spec = JobSpec(replicas=2, template={} if template else None)
    status = status or JobStatus()
    now = Now(WALL + timedelta(minutes=minutes), 60.0 * minutes, "nonce")
    job = Job("ns", "job", "uid", 1, spec)
    return Pass(job, before or status, observed or Observed(), now, Waits(began or {}, now.mono), status)


def test_excluding_again_for_the_same_reason_changes_nothing() -> None:
    p = a_pass()
    excluded_nodes.exclude(p, "b", "it is bad")
    once, said = p.status, len(p.events)
    p = a_pass(p.status, minutes=5)
    excluded_nodes.exclude(p, "b", "it is bad")
    assert p.status == once
    assert (said, len(p.events)) == (1, 0)
    excluded_nodes.exclude(p, "b", "it is worse")
    assert [(n.name, n.message) for n in p.status.excluded_nodes] == [("b", "it is worse")]
    assert p.status.excluded_nodes[0].until_time == WALL + timedelta(minutes=65)


def test_a_job_without_template_excludes_nothing() -> None:
    p = a_pass(template=False)
    excluded_nodes.exclude(p, "b", "it is bad")
    assert p.status.excluded_nodes == ()
    assert p.events == []


def test_the_last_ready_node_is_not_excluded() -> None:
    observed = Observed(nodes=frozenset({"a", "b"}))
    p = a_pass(observed=observed)
    excluded_nodes.exclude(p, "a", "it is bad")
    excluded_nodes.exclude(p, "b", "it is bad")
    assert excluded_nodes.excluded(p) == ("a",)
    assert [event.reason for event in p.events] == ["NodeExcluded", "NodeNotExcluded"]
    p = a_pass(p.status, replace(observed, nodes=frozenset({"a", "b", "c"})))
    excluded_nodes.exclude(p, "b", "it is bad")
    assert excluded_nodes.excluded(p) == ("a", "b")


def test_the_oldest_gives_way_when_there_are_too_many() -> None:
    p = a_pass()
    for number in range(excluded_nodes.MAX_EXCLUDED + 2):
        excluded_nodes.exclude(p, f"n{number:02}", "it is bad")
    assert excluded_nodes.excluded(p) == tuple(
        f"n{number:02}" for number in range(2, excluded_nodes.MAX_EXCLUDED + 2)
    )


def charged(*charges: tuple[float, int, str]) -> JobStatus:
    """Infrastructure charges: minutes, round, node."""
    entries = tuple(
        Charge(WALL + timedelta(minutes=at), round=number, cause="PodLost", node_name=node)
        for at, number, node in charges
    )
    return JobStatus(accounts=(Account("infrastructure", charges=entries),))


def test_a_charge_that_moves_to_another_node_counts_there() -> None:
    before = charged((0, 1, "a"), (1, 2, "b"))
    p = a_pass(charged((0, 1, "a"), (1, 2, "a")), minutes=2, before=before)
    excluded_nodes.keep_nodes(p)
    assert excluded_nodes.excluded(p) == ("a",)


def test_charges_of_before_exclude_nobody_again() -> None:
    """An exclusion that was lifted does not come back by what it was made for."""
    status = charged((0, 1, "a"), (1, 2, "a"))
    p = a_pass(status, minutes=2)
    excluded_nodes.keep_nodes(p)
    assert excluded_nodes.excluded(p) == ()
    p = a_pass(charged((0, 1, "a"), (1, 2, "a"), (3, 3, "a")), minutes=3, before=status)
    excluded_nodes.keep_nodes(p)
    assert excluded_nodes.excluded(p) == ("a",), "but by another failure"


def test_force_only_where_the_node_is_dead_for_sure() -> None:
    """On a node that is merely not ready the pod may still run, and its object says so."""
    stuck = Pod("job-0-0", "uid-0", slot=0, node="b", deleting=True)
    alive = (
        replace(stuck, node_ready=False),
        replace(stuck, node_ready=False, unreachable=True),
        replace(stuck, out_of_service=True),
        replace(stuck, of_this_job=False, node_gone=True),
        replace(stuck, deleting=False, node_gone=True),
    )
    dead = (
        replace(stuck, node_gone=True),
        replace(stuck, node_ready=False, out_of_service=True),
    )

    def forced(pod: Pod, template: bool = True) -> list[DeletePod]:
        kinds = (JobWait.NODE_GONE, JobWait.FORCED_DELETION)
        began = {WaitKey(kind, pod.uid): 0.0 for kind in kinds}
        p = a_pass(observed=Observed((pod,)), minutes=2, template=template, began=began)
        excluded_nodes.clear_dead_nodes(p)
        return [action for action in p.actions if isinstance(action, DeletePod) and action.force]

    for pod in alive:
        assert forced(pod) == [], pod
    for pod in dead:
        assert [(action.name, action.uid) for action in forced(pod)] == [("job-0-0", "uid-0")], pod
        assert forced(pod, template=False) == [], "pods of others are their controller's"


def test_a_kubelets_rejection_lifts_the_exclusion_of_its_node_alone() -> None:
    until = WALL + timedelta(hours=1)
    status = JobStatus(
        min_replicas=1, excluded_nodes=(ExcludedNode("a", until, "bad"), ExcludedNode("b", until, "bad"))
    )
    pod = Pod("job-0-0", "uid-0", slot=0, node="b", ended=True, reason="NodeAffinity", avoids=("a", "b"))
    p = a_pass(status, Observed((pod,)), minutes=1)
    excluded_nodes.keep_nodes(p)
    assert excluded_nodes.excluded(p) == ("a",)
    p = a_pass(p.status, Observed((pod,)), minutes=2)
    excluded_nodes.keep_nodes(p)
    assert excluded_nodes.excluded(p) == ("a",), "it is still there, and says nothing of other nodes"
    p = a_pass(status, Observed((replace(pod, reason="OutOfcpu"),)), minutes=1)
    excluded_nodes.keep_nodes(p)
    assert excluded_nodes.excluded(p) == ("a", "b"), "nor does the node's own trouble"


def test_nodes_that_the_template_names() -> None:
    def term(key: str, *values: str, kind: str = "matchExpressions") -> dict[str, Any]:
        return {kind: [{"key": key, "operator": "In", "values": list(values)}]}

    def required(*terms: dict[str, Any]) -> dict[str, Any]:
        key = "requiredDuringSchedulingIgnoredDuringExecution"
        return {"affinity": {"nodeAffinity": {key: {"nodeSelectorTerms": list(terms)}}}}

    label = "kubernetes.io/hostname"
    for spec, left in (
        ({"nodeName": "a"}, set()),
        ({"nodeName": "b"}, {"b"}),
        ({"nodeSelector": {label: "a"}}, set()),
        ({"nodeSelector": {"gpu": "a"}}, None),
        (required(term(label, "a", "b")), {"b"}),
        (required(term(label, "a")), set()),
        (required(term("metadata.name", "a", kind="matchFields")), set()),
        (required(term(label, "a"), term(label, "b")), {"b"}),
        (required(term(label, "a"), term("zone", "b")), None),
        (required(), None),
        ({"affinity": "?"}, None),
        ({}, None),
    ):
        found = nodes_left({"spec": spec}, {"a"})
        assert (found if found is None else set(found)) == left, spec
