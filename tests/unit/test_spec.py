"""An ElasticJob as JSON, read into the planner's words."""

from __future__ import annotations

import copy
import gc
import tracemalloc
from typing import Any

import pytest

from elasticjob.contract.limits import Limits
from elasticjob.rounds.sizes import Sizes
from elasticjob_operator.observe.spec import (
    JobDefaults,
    MalformedJob,
    TemplateTooLargeJob,
    read_job,
    read_spec,
)
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.model import JobSpec, Limit, MemoryCheckpoints, Rule, WarmWorkers
from elasticjob_operator.plan.state.status import JobStatus, RoundStatus
from elasticjob_operator.plan.state.status_json import VERSION


def raw(**changes: Any) -> dict[str, Any]:
    meta = {"namespace": "a", "name": "j", "uid": "u", "generation": 3, "resourceVersion": "41"}
    return {"metadata": {**meta, **changes.pop("meta", {})}, "spec": {"replicas": 2}, **changes}


def test_empty_spec_is_the_defaults() -> None:
    assert read_spec({}) == JobSpec()


def test_what_a_job_does_not_say_holds_as_the_operator_has_it() -> None:
    limits = {
        "application": {"maxRestarts": 1},
        "infrastructure": {"maxRestarts": 20},
        "idleDeadlineSeconds": 60,
    }
    defaults = JobDefaults(active_deadline=3600, limits=limits)
    silent = read_spec({"failurePolicy": {"rules": []}}, defaults)
    assert (silent.application, silent.infrastructure) == (Limit(1), Limit(20))
    assert (silent.preemption, silent.idle_deadline, silent.active_deadline) == (Limit(), 60, 3600)
    said = read_spec(
        {
            "activeDeadlineSeconds": 5,
            "failurePolicy": {"application": {}, "infrastructure": {"windowSeconds": 9}},
        },
        defaults,
    )
    assert (said.application, said.infrastructure) == (Limit(), Limit(None, 9)), (
        "the whole field is the job's"
    )
    assert (said.idle_deadline, said.active_deadline) == (60, 5)


def test_what_holds_in_its_namespace_holds_for_the_job() -> None:
    defaults = JobDefaults(ttl_after_finished=60, namespaces={"a": JobDefaults(ttl_after_finished=5)})
    assert read_job(raw(), defaults=defaults).job.spec.ttl_after_finished == 5
    elsewhere = raw(meta={"namespace": "b"})
    assert read_job(elsewhere, defaults=defaults).job.spec.ttl_after_finished == 60


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, MemoryCheckpoints(8 * 2**30, copies=0)),
        ({"memoryCheckpoints": {"perPod": 1000}}, MemoryCheckpoints(1000)),
        ({"memoryCheckpoints": {"perPod": "2k", "spread": "None"}}, MemoryCheckpoints(2000, spread="None")),
        ({"memoryCheckpoints": {"perPod": "999999999999999Ti"}}, MemoryCheckpoints(2**60)),
        ({"memoryCheckpoints": {"perPod": 0}}, None),
        ({"memoryCheckpoints": {"perPod": "0Gi"}}, None),
        ({"memoryCheckpoints": {"perPod": "1e99999999"}}, None),
        ({"memoryCheckpoints": {"perPod": True}}, None),
        ({"memoryCheckpoints": {"perPod": "1m"}}, None),
        ({"memoryCheckpoints": {}}, None),
        ({"memoryCheckpoints": None}, None),
        ({"memoryCheckpoints": {"perPod": 1, "spread": "Zone"}}, MemoryCheckpoints(1)),
    ],
)
def test_memory_checkpoints_of_a_job_replace_those_by_default(
    given: dict[str, Any], expected: MemoryCheckpoints | None
) -> None:
    defaults = JobDefaults(memory_checkpoints={"perPod": "8Gi", "copies": 0})
    assert read_spec({"template": {}, **given}, defaults).memory_checkpoints == expected
    assert read_spec(given, defaults).memory_checkpoints is None, "the pods are not made here"
    assert read_spec({"template": {}}).memory_checkpoints is None


def test_full_spec() -> None:
    template: dict[str, Any] = {"spec": {"containers": []}}
    spec = read_spec(
        {
            "replicas": 4,
            "minReplicas": 2,
            "maxReplicas": 8,
            "spares": 1,
            "nprocPerNode": 2,
            "template": template,
            "handlerSource": "Image",
            "warmWorkers": {"enabled": True, "imports": ["transformers", "a b", 7]},
            "memoryCheckpoints": {"perPod": "1.5Gi", "copies": 0, "spread": "None"},
            "rendezvous": {
                "initialLastCallTimeoutSeconds": 1,
                "lastCallTimeoutSeconds": 0,
                "rejoinTimeoutSeconds": 3,
                "establishTimeoutSeconds": 4,
                "heartbeatTimeoutSeconds": 5,
            },
            "failurePolicy": {
                "application": {"maxRestarts": 0, "windowSeconds": 60},
                "infrastructure": {"maxRestarts": 20},
                "preemption": {"maxRestarts": 7, "windowSeconds": 8},
                "rules": [
                    {"name": "bad-gpu", "onErrorPattern": "ECC", "action": "ExcludeNode"},
                    {"name": "bad-input", "onWorkerExitCodes": [42, -6], "action": "FailJob"},
                    {"name": "spot", "onPodReasons": ["Evicted"], "action": "Ignore"},
                ],
                "maxRoundsWithoutProgress": 9,
                "hangTimeoutSeconds": 10,
                "idleDeadlineSeconds": 6,
                "fencing": {"type": "AfterSeconds", "afterSeconds": 120},
            },
            "scaling": {
                "scaleUpDelaySeconds": 0,
                "paybackSeconds": 600,
                "sizes": [4, 2],
                "extraPriorityClassName": "low",
            },
            "suspend": True,
            "managedBy": "elasticjob.dev/operator",
            "activeDeadlineSeconds": 11,
            "ttlSecondsAfterFinished": 0,
            "cleanPodPolicy": "None",
            "networkPolicy": "None",
            "gangScheduling": "Kubernetes",
        }
    )
    assert spec == JobSpec(
        replicas=4,
        min_replicas=2,
        max_replicas=8,
        spares=1,
        sizes=Sizes((2, 4)),
        extra_priority_class="low",
        nproc_per_node="2",
        template=template,
        handler_source="Image",
        warm_workers=WarmWorkers(imports=("transformers",)),
        memory_checkpoints=MemoryCheckpoints(3 * 2**29, 0, "None"),
        limits=Limits(1, 0, 3, 4, heartbeat_timeout=5, hang_timeout=10),
        application=Limit(0, 60),
        infrastructure=Limit(20, None),
        preemption=Limit(7, 8),
        rules=(
            Rule("bad-gpu", "ExcludeNode", on_error_pattern="ECC"),
            Rule("bad-input", "FailJob", on_worker_exit_codes=(42, -6)),
            Rule("spot", "Ignore", on_pod_reasons=("Evicted",)),
        ),
        max_rounds_without_progress=9,
        idle_deadline=6,
        fencing_after=120,
        scale_up_delay=0,
        payback=600,
        suspend=True,
        active_deadline=11,
        ttl_after_finished=0,
        clean_pod_policy="None",
        network_policy="None",
        gang_scheduling="Kubernetes",
    )


@pytest.mark.parametrize(
    "fencing",
    [
        {},
        {"type": "WaitForProof"},
        {"type": "WaitForProof", "afterSeconds": 60},
        {"type": "AfterSeconds"},
        {"type": "AfterSeconds", "afterSeconds": "60"},
        {"type": "Newer", "afterSeconds": 60},
        "AfterSeconds",
    ],
)
def test_who_does_not_ask_for_another_fencing_waits_for_proof(fencing: object) -> None:
    asked = isinstance(fencing, dict) and fencing.get("type") == "WaitForProof"
    assert read_spec({"failurePolicy": {"fencing": fencing}}) == JobSpec(fencing_needs_proof=asked)


def test_pods_of_others_are_neither_suspended_nor_kept_in_reserve() -> None:
    """The schema refuses both; an operator that meets them must not wait for what never happens."""
    assert read_spec({"suspend": True, "spares": 2}) == JobSpec()


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "newer", "onWorkerExitCodes": [1], "action": "Quarantine"},
        {"name": "no-criterion", "action": "Ignore"},
        {"name": "two", "onWorkerExitCodes": [1], "onErrorPattern": "a", "action": "Ignore"},
        {"name": "wrong", "onWorkerExitCodes": ["1", True], "action": "Ignore"},
        {"name": "wrong", "onPodReasons": "Evicted", "action": "Ignore"},
        {"name": "wrong", "onErrorPattern": 1, "action": "Ignore"},
        None,
    ],
)
def test_a_rule_that_cannot_be_used_is_left_out(rule: object) -> None:
    good = {"name": "good", "onWorkerExitCodes": [1], "action": "Restart"}
    spec = read_spec({"failurePolicy": {"rules": [rule, good]}})
    assert spec.rules == (Rule("good", "Restart", on_worker_exit_codes=(1,)),)


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": None, "rendezvous": None, "failurePolicy": None, "template": None},
        {"replicas": "4", "minReplicas": True, "rendezvous": [], "failurePolicy": {"application": 3}},
        {"replicas": 0, "unknown": {"x": 1}, "nprocPerNode": ""},
        {"spares": -1, "scaling": {"scaleUpDelaySeconds": "1"}, "suspend": "true", "cleanPodPolicy": "all"},
        {"activeDeadlineSeconds": 0, "ttlSecondsAfterFinished": -1, "failurePolicy": {"rules": {"a": 1}}},
        {"failurePolicy": {"hangTimeoutSeconds": 0, "maxRoundsWithoutProgress": 0, "preemption": []}},
        {"networkPolicy": "Nobody"},
    ],
)
def test_what_cannot_be_used_counts_as_absent(spec: dict[str, Any]) -> None:
    assert read_spec(spec) == JobSpec()


def test_job() -> None:
    view = read_job(raw())
    assert (view.job.namespace, view.job.name, view.job.uid, view.job.generation) == ("a", "j", "u", 3)
    assert view.version == 41
    assert view.managed_here
    assert not view.deleting
    assert view.status == JobStatus()


def test_spec_is_read_once_per_generation() -> None:
    first = read_job(raw())
    same = read_job(raw(meta={"resourceVersion": "42"}), first)
    assert same.job is first.job
    assert same.version == 42
    other = read_job(raw(meta={"generation": 4}), first)
    assert other.job is not first.job
    new = read_job(raw(meta={"uid": "v"}), first)
    assert new.job.uid == "v"


def test_managed_by_others_and_deleting() -> None:
    assert not read_job(raw(spec={"managedBy": "kueue.x-k8s.io/multikueue"})).managed_here
    assert read_job(raw(spec={"managedBy": "elasticjob.dev/operator"})).managed_here
    assert read_job(raw(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})).deleting


@pytest.mark.parametrize(
    ("finalizers", "kept_by"),
    [
        (["a.b/c", "d.e/f"], ("a.b/c", "d.e/f")),
        (["foregroundDeletion"], ()),
        (["foregroundDeletion", "a.b/c"], ("a.b/c",)),
        (["orphan", "a.b/c"], ()),
    ],
)
def test_what_keeps_a_job_that_is_being_deleted(finalizers: list[str], kept_by: tuple[str, ...]) -> None:
    before = read_job(raw(meta={"finalizers": finalizers}))
    assert before.job.finalizers == ()
    deleted = {"finalizers": finalizers, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert read_job(raw(meta=deleted), before).job.finalizers == kept_by


def test_of_many_finalizers_a_few_are_kept() -> None:
    many = [f"example.com/{number}" for number in range(50_000)]
    deleted = {
        "finalizers": ["example.com/" + "a" * 1000, *many],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    kept = read_job(raw(meta=deleted)).job.finalizers
    assert kept[1:] == (*many[:7], "49993 more")
    assert len(kept[0]) == 253


def test_foreign_status_is_an_error_with_a_sentence() -> None:
    with pytest.raises(MalformedJob, match="a/j: the status cannot be read"):
        read_job(raw(status={"roundHistory": [{"number": 1}]}))


def test_a_status_without_what_is_internal_is_an_error() -> None:
    written = status_json.dump(JobStatus(current_round=RoundStatus(number=3, nonce="n"), attempts=(0, 2)))
    assert status_json.parse(written).attempts == (0, 2)
    del written["internal"]
    with pytest.raises(MalformedJob, match="internal is missing"):
        read_job(raw(status=written))


def test_a_status_of_a_newer_operator_is_read_if_it_says_that_this_one_may() -> None:
    written = status_json.dump(JobStatus(current_round=RoundStatus(number=3, nonce="n")))
    newer = {**written, "internal": {**written["internal"], "version": VERSION + 1, "new": {"field": 1}}}
    assert read_job(raw(status=newer)).status.current_round.nonce == "n"
    newer["internal"]["minReaderVersion"] = VERSION + 1
    with pytest.raises(MalformedJob, match="a/j: its status was written by a newer operator") as raised:
        read_job(raw(status=newer))
    assert raised.value.event == "StatusTooNew"


def test_a_template_is_kept_small_and_read_as_it_was() -> None:
    """A tenant's templates are kept for as long as the jobs exist."""
    env = [{"name": f"A{number}", "value": "1"} for number in range(4_000)]
    template = {"metadata": {"labels": {"a": "ü"}}, "spec": {"containers": [{"name": "train", "env": env}]}}
    tracemalloc.start()
    try:
        views = [read_job(raw(spec={"template": copy.deepcopy(template)})) for _ in range(50)]
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] / len(views)
    finally:
        tracemalloc.stop()
    assert held < 64 * 1024, "as Python objects it has a megabyte"
    assert views[0].job.spec.template == template
    assert views[0].job.spec == views[1].job.spec


def test_a_template_that_is_too_large_is_named_and_not_kept() -> None:
    env = [{"name": f"A{number}", "value": "1"} for number in range(42_000)]
    template = {"spec": {"containers": [{"name": "train", "env": env}]}}
    with pytest.raises(TemplateTooLargeJob, match=r"a/j: the pod template has 1,248,\d+ bytes .* 131,072"):
        read_job(raw(spec={"template": template}))
