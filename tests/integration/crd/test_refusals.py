"""What the API server refuses of a job, and with which sentence."""

from __future__ import annotations

from typing import Any

import pytest

from devcluster.access import ClusterAccess
from tests.integration.crd.jobs import (
    CONTAINER,
    TEMPLATE,
    labelled,
    limited,
    manifest,
    refusal,
    ruled,
    template,
    worded,
)

pytestmark = pytest.mark.cluster


def nested(path: str, value: object) -> dict[str, Any]:
    """A spec in which this field of an object has this value."""
    outer, _, inner = path.partition(".")
    return {outer: {inner: value}}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a name too long": (
        manifest("a" * 46),
        "metadata.name: Invalid value: has 46 characters, must have at most 45, so that "
        "<name>-<slot>-<attempt> can name a pod",
    ),
    "a name with a dot": (manifest("my.job"), "metadata.name: Invalid value: must be a DNS label"),
    "no spec": (
        {key: value for key, value in manifest().items() if key != "spec"},
        "spec: Required value",
    ),
    "no replicas": (manifest(replicas=0), "spec.replicas in body should be greater than or equal to 1"),
    "too many replicas": (manifest(replicas=5_001), "should be less than or equal to 5000"),
    "less than the minimum": (
        manifest(replicas=1, minReplicas=2),
        "replicas (1) must be greater than or equal to minReplicas (2)",
    ),
    "less than the minimum by default": (
        manifest(minReplicas=2),
        "replicas (1) must be greater than or equal to minReplicas (2)",
    ),
    "more than the maximum": (
        manifest(replicas=3, maxReplicas=2),
        "replicas (3) must be less than or equal to maxReplicas (2)",
    ),
    "minimum above maximum": (
        manifest(replicas=3, minReplicas=4, maxReplicas=2),
        "minReplicas (4) must be less than or equal to maxReplicas (2)",
    ),
    "less than the smallest size": (
        manifest(scaling={"sizes": [2, 4]}),
        "spec.replicas: Invalid value: 1 is less than each of scaling.sizes ([2, 4]), so no round could "
        "form; raise replicas or add a smaller size",
    ),
    "less than one group": (
        manifest(replicas=3, scaling={"multipleOf": 4}),
        "spec.replicas: Invalid value: 3 is less than scaling.multipleOf (4), so no round could form; raise "
        "replicas or lower multipleOf",
    ),
    "a minimum that is no size": (
        manifest(replicas=4, minReplicas=3, scaling={"sizes": [2, 4]}),
        "spec.minReplicas: Invalid value: 3 is not one of scaling.sizes ([2, 4]); a round has one of these "
        "sizes, set minReplicas to the smallest that may train",
    ),
    "a minimum that is no multiple": (
        manifest(replicas=8, minReplicas=6, scaling={"multipleOf": 4}),
        "spec.minReplicas: Invalid value: 6 is not a multiple of scaling.multipleOf (4); set it to the "
        "smallest multiple that may train",
    ),
    "sizes and a multiple": (
        manifest(replicas=4, scaling={"sizes": [4], "multipleOf": 4}),
        "spec.scaling: Invalid value: only one of sizes and multipleOf may be set",
    ),
    "a size twice": (
        manifest(replicas=4, scaling={"sizes": [4, 4]}),
        "spec.scaling.sizes[1]: Duplicate value",
    ),
    "no sizes": (manifest(scaling={"sizes": []}), "spec.scaling.sizes in body should have at least 1 items"),
    "a size of 0": (
        manifest(scaling={"sizes": [0, 1]}),
        "spec.scaling.sizes[0] in body should be greater than or equal to 1",
    ),
    "a priority of pods that others make": (
        manifest(scaling={"extraPriorityClassName": "low"}),
        "spec.scaling.extraPriorityClassName: Invalid value: may only be set together with `template`",
    ),
    "a word for processes": (
        manifest(nprocPerNode="gpus"),
        'spec.nprocPerNode: Invalid value: "gpus": must be a number from 1 to 99999 (8, not "8")',
    ),
    "no processes": (manifest(nprocPerNode=0), "must be a number from 1 to 99999"),
    "too many processes": (manifest(nprocPerNode=100_000), "must be a number from 1 to 99999"),
    "processes as text": (
        manifest(nprocPerNode="8"),
        'spec.nprocPerNode: Invalid value: "8": must be a number from 1 to 99999 (8, not "8") or one of auto',
    ),
    "processes as a list": (
        manifest(nprocPerNode=[2]),
        "nprocPerNode in body must be of type integer,string",
    ),
    "a module's name with a space": (
        manifest(warmWorkers={"imports": ["torch", "a b"]}),
        "spec.warmWorkers.imports[1] in body should match",
    ),
    "a module's name that ends with a dot": (
        manifest(warmWorkers={"imports": ["a."]}),
        "spec.warmWorkers.imports[0] in body should match",
    ),
    "a module twice": (
        manifest(warmWorkers={"imports": ["a", "a"]}),
        "spec.warmWorkers.imports[1]: Duplicate",
    ),
    "too many modules": (
        manifest(warmWorkers={"imports": [f"m{n}" for n in range(33)]}),
        "spec.warmWorkers.imports: Too many: 33: must have at most 32 items",
    ),
    "memory checkpoints without a size": (
        manifest(memoryCheckpoints={"copies": 1}),
        "spec.memoryCheckpoints.perPod: Required value",
    ),
    "memory that is no quantity": (
        manifest(memoryCheckpoints={"perPod": "8GB"}),
        "spec.memoryCheckpoints.perPod in body should match",
    ),
    "less than no memory": (
        manifest(memoryCheckpoints={"perPod": -1}),
        "spec.memoryCheckpoints.perPod: Invalid value: -1: must be 0 or more bytes, or a quantity such as ",
    ),
    "a part of a byte": (
        manifest(memoryCheckpoints={"perPod": 1.5}),
        "spec.memoryCheckpoints.perPod in body must be of type integer,string",
    ),
    "two copies": (
        manifest(memoryCheckpoints={"perPod": 1, "copies": 2}),
        "spec.memoryCheckpoints.copies in body should be less than or equal to 1",
    ),
    "copies spread over zones": (
        manifest(memoryCheckpoints={"perPod": 1, "spread": "Zone"}),
        'spec.memoryCheckpoints.spread: Unsupported value: "Zone": supported values: "Node", "None"',
    ),
    "as much memory for checkpoints as the container may use": (
        manifest(memoryCheckpoints={"perPod": "4Gi"}, template=limited("4096Mi")),
        "spec.memoryCheckpoints.perPod: Invalid value: 4Gi must be less than the memory limit of the "
        "training container (4096Mi), which holds them beside the training",
    ),
    "as much as the container may use, which the annotation names": (
        manifest(
            memoryCheckpoints={"perPod": "4Gi"},
            template=limited("4Gi", annotations={"kubectl.kubernetes.io/default-container": "train"}),
        ),
        "4Gi must be less than the memory limit of the training container (4Gi)",
    ),
    "more memory for checkpoints than the container may use, in bytes": (
        manifest(memoryCheckpoints={"perPod": 5_000_000_001}, template=limited(5_000_000_000)),
        "5000000001 must be less than the memory limit of the training container (5000000000)",
    ),
    "a period that the timeout does not bear": (
        manifest(rendezvous={"heartbeatPeriodSeconds": 4}),
        "must be at least three times heartbeatPeriodSeconds",
    ),
    **{
        f"{name} of {value}": (
            manifest(rendezvous={name: value}),
            f"spec.rendezvous.{name} in body should be greater than or equal to {value + 1}",
        )
        for name, value in {
            "initialLastCallTimeoutSeconds": -1,
            "lastCallTimeoutSeconds": -1,
            "rejoinTimeoutSeconds": 0,
            "establishTimeoutSeconds": 0,
            "heartbeatPeriodSeconds": 0,
            "heartbeatTimeoutSeconds": 2,
            "stallTimeoutSeconds": 0,
        }.items()
    },
    **{
        f"a {path} of {most + 1}": (
            manifest(**nested(path, most + 1)),
            f"spec.{path} in body should be less than or equal to {most}",
        )
        for path, most in {
            "rendezvous.initialLastCallTimeoutSeconds": 86_400,
            "rendezvous.lastCallTimeoutSeconds": 86_400,
            "rendezvous.rejoinTimeoutSeconds": 86_400,
            "rendezvous.establishTimeoutSeconds": 3_600,
            "rendezvous.heartbeatTimeoutSeconds": 3_600,
            "scaling.scaleUpDelaySeconds": 86_400,
            "scaling.paybackSeconds": 31_536_000,
            "failurePolicy.hangTimeoutSeconds": 604_800,
            "failurePolicy.maxRoundsWithoutProgress": 1_000,
            "failurePolicy.idleDeadlineSeconds": 31_536_000,
        }.items()
    },
    "no time to be idle": (
        manifest(failurePolicy={"idleDeadlineSeconds": 0}),
        "spec.failurePolicy.idleDeadlineSeconds in body should be greater than or equal to 1",
    ),
    "fencing without a type": (
        manifest(failurePolicy={"fencing": {"afterSeconds": 60}}),
        "spec.failurePolicy.fencing.type: Required value",
    ),
    "fencing after no time": (
        manifest(failurePolicy={"fencing": {"type": "AfterSeconds"}}),
        "spec.failurePolicy.fencing: Invalid value: afterSeconds must be set if type is AfterSeconds",
    ),
    "fencing by proof and time": (
        manifest(failurePolicy={"fencing": {"type": "WaitForProof", "afterSeconds": 60}}),
        "fencing: Invalid value: afterSeconds must be set if type is AfterSeconds, and may not be set",
    ),
    "fencing sooner than a member is heard of": (
        manifest(failurePolicy={"fencing": {"type": "AfterSeconds", "afterSeconds": 59}}),
        "spec.failurePolicy.fencing.afterSeconds in body should be greater than or equal to 60",
    ),
    "fencing after more than a day": (
        manifest(failurePolicy={"fencing": {"type": "AfterSeconds", "afterSeconds": 86_401}}),
        "spec.failurePolicy.fencing.afterSeconds in body should be less than or equal to 86400",
    ),
    "an unknown fencing": (
        manifest(failurePolicy={"fencing": {"type": "Never"}}),
        'fencing.type: Unsupported value: "Never": supported values: "WaitForProof", "AfterSeconds"',
    ),
    "a timeout as text": (
        manifest(rendezvous={"rejoinTimeoutSeconds": "45s"}),
        "spec.rendezvous.rejoinTimeoutSeconds in body must be of type integer",
    ),
    "a window without a limit": (
        manifest(failurePolicy={"application": {"windowSeconds": 60}}),
        "spec.failurePolicy.application: Invalid value: windowSeconds may only be set together",
    ),
    "another window without a limit": (
        manifest(failurePolicy={"infrastructure": {"windowSeconds": 60}}),
        "spec.failurePolicy.infrastructure: Invalid value: windowSeconds may only be set together",
    ),
    "less than no restarts": (
        manifest(failurePolicy={"application": {"maxRestarts": -1}}),
        "maxRestarts in body should be greater than or equal to 0",
    ),
    "a template without pods": (manifest(template={}), "spec.template.spec: Required value"),
    "no containers": (
        manifest(template={"spec": {"containers": []}}),
        "spec.template.spec.containers in body should have at least 1 items",
    ),
    "a container without a name": (
        manifest(template={"spec": {"containers": [{"image": "train"}]}}),
        "spec.template.spec.containers[0].name: Required value",
    ),
    "a container with an empty name": (
        manifest(template={"spec": {"containers": [{"name": ""}]}}),
        "spec.template.spec.containers[0].name in body should be at least 1 chars long",
    ),
    "two containers with one name": (
        manifest(template={"spec": {"containers": [CONTAINER, CONTAINER]}}),
        'spec.template.spec.containers[1]: Duplicate value: {"name":"train"}',
    ),
    "a pod that restarts": (
        manifest(template=template(restartPolicy="OnFailure")),
        "spec.template: Invalid value: restartPolicy is OnFailure, must be Never or not set",
    ),
    "a quantity that is none": (
        manifest(
            template={"spec": {"containers": [{**CONTAINER, "resources": {"limits": {"memory": "1GB"}}}]}}
        ),
        "spec.template.spec.containers[0].resources.limits.memory in body should match",
    ),
    "a label of the operator's": (
        manifest(template=labelled(labels={"app": "a", "elasticjob.dev/slot": "1"})),
        'label ["elasticjob.dev/slot"] may not be set; the operator sets it',
    ),
    "an annotation of the operator's": (
        manifest(template=labelled(annotations={"elasticjob.dev/round": "1"})),
        'annotation ["elasticjob.dev/round"] may not be set; the operator sets it',
    ),
    "a typing error": (
        manifest(rendezvous={"joinTimeout": 60}),
        'unknown field "spec.rendezvous.joinTimeout"',
    ),
    "a typing error in the template": (
        manifest(template={"spec": {"containers": [{**CONTAINER, "img": "train"}]}}),
        'unknown field "spec.template.spec.containers[0].img"',
    ),
    "an account without limits": (
        manifest(failurePolicy={"scaling": {"maxRestarts": 1}}),
        'unknown field "spec.failurePolicy.scaling"',
    ),
    "less than no spares": (
        manifest(spares=-1, template=TEMPLATE),
        "spec.spares in body should be greater than or equal to 0",
    ),
    "too many pods": (
        manifest(replicas=4_999, spares=2, template=TEMPLATE),
        "replicas (4999) and spares (2) together must be at most 5000",
    ),
    "spares among the pods of others": (
        manifest(spares=1),
        "spec.spares: Invalid value: may only be set together with `template`",
    ),
    "pods of others suspended": (
        manifest(suspend=True),
        "spec.suspend: Invalid value: may only be set together with `template`",
    ),
    "a word for suspend": (
        manifest(suspend="yes", template=TEMPLATE),
        "spec.suspend in body must be of type boolean",
    ),
    "less than no delay": (
        manifest(scaling={"scaleUpDelaySeconds": -1}),
        "spec.scaling.scaleUpDelaySeconds in body should be greater than or equal to 0",
    ),
    "no time to pay back": (
        manifest(scaling={"paybackSeconds": 0}),
        "spec.scaling.paybackSeconds in body should be greater than or equal to 1",
    ),
    "no active time": (
        manifest(activeDeadlineSeconds=0),
        "spec.activeDeadlineSeconds in body should be greater than or equal to 1",
    ),
    "kept for less than no time": (
        manifest(ttlSecondsAfterFinished=-1),
        "spec.ttlSecondsAfterFinished in body should be greater than or equal to 0",
    ),
    "an unknown policy for pods": (
        manifest(cleanPodPolicy="Failed"),
        'spec.cleanPodPolicy: Unsupported value: "Failed": supported values: "Running", "All", "None"',
    ),
    "pods of others placed together": (
        manifest(gangScheduling="Kubernetes"),
        "spec.gangScheduling: Invalid value: ",
    ),
    "a group of the template and one of the operator": (
        manifest(gangScheduling="Kubernetes", template=template(schedulingGroup={"podGroupName": "mine"})),
        "may not be set together with a `schedulingGroup` of the template; the operator names the PodGroup",
    ),
    "a group of coscheduling, and one of the operator": (
        manifest(
            gangScheduling="Coscheduling",
            template={**template(), "metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "mine"}}},
        ),
        "may not be set together with a label scheduling.x-k8s.io/pod-group of the template",
    ),
    "a group of Volcano, and one of the operator": (
        manifest(
            gangScheduling="Volcano",
            template={**template(), "metadata": {"annotations": {"scheduling.k8s.io/group-name": "mine"}}},
        ),
        "may not be set together with an annotation scheduling.k8s.io/group-name of the template",
    ),
    "an unknown gang": (
        manifest(gangScheduling="YuniKorn"),
        'spec.gangScheduling: Unsupported value: "YuniKorn": supported values: "None", "Kubernetes", '
        '"Coscheduling", "Volcano"',
    ),
    "an unknown policy for the network": (
        manifest(networkPolicy="Nobody"),
        'spec.networkPolicy: Unsupported value: "Nobody": supported values: "JobOnly", "None"',
    ),
    "a manager without a domain": (
        manifest(managedBy="kueue"),
        "spec.managedBy in body should match",
    ),
    "a manager with a long name": (
        manifest(managedBy="example.com/" + "a" * 52),
        "spec.managedBy: Too long: may not be more than 63",
    ),
    "a third window without a limit": (
        manifest(failurePolicy={"preemption": {"windowSeconds": 60}}),
        "spec.failurePolicy.preemption: Invalid value: windowSeconds may only be set together",
    ),
    "no hang at all": (
        manifest(failurePolicy={"hangTimeoutSeconds": 0}),
        "spec.failurePolicy.hangTimeoutSeconds in body should be greater than or equal to 1",
    ),
    "no round without progress": (
        manifest(failurePolicy={"maxRoundsWithoutProgress": 0}),
        "spec.failurePolicy.maxRoundsWithoutProgress in body should be greater than or equal to 1",
    ),
    "too many rules": (
        ruled(*({"name": f"rule-{i}", "onWorkerExitCodes": [1], "action": "Ignore"} for i in range(33))),
        "spec.failurePolicy.rules: Too many: 33: must have at most 32 items",
    ),
    "two rules of one name": (
        ruled(
            {"name": "a", "onWorkerExitCodes": [1], "action": "Ignore"},
            {"name": "a", "onWorkerExitCodes": [2], "action": "FailJob"},
        ),
        'spec.failurePolicy.rules: Invalid value: rule names ["a", "a"] must be unique',
    ),
    "a rule with nothing to go by": (
        ruled({"name": "a", "action": "Ignore"}),
        "spec.failurePolicy.rules[0]: Invalid value: rule a has 0 of onWorkerExitCodes, onPodReasons "
        "and onErrorPattern, must have exactly one: use several rules",
    ),
    "a rule with two criteria": (
        ruled({"name": "a", "onWorkerExitCodes": [1], "onErrorPattern": "b", "action": "Ignore"}),
        "rule a has 2 of onWorkerExitCodes, onPodReasons and onErrorPattern, must have exactly one",
    ),
    "a rule without a name": (
        ruled({"onWorkerExitCodes": [1], "action": "Ignore"}),
        "spec.failurePolicy.rules[0].name: Required value",
    ),
    "a rule with an empty name": (
        ruled({"name": "", "onWorkerExitCodes": [1], "action": "Ignore"}),
        "spec.failurePolicy.rules[0].name in body should be at least 1 chars long",
    ),
    "a rule with a name that is a sentence": (
        ruled({"name": "bad GPU", "onWorkerExitCodes": [1], "action": "Ignore"}),
        "spec.failurePolicy.rules[0].name in body should match",
    ),
    "a rule without consequences": (
        ruled({"name": "a", "onWorkerExitCodes": [1]}),
        "spec.failurePolicy.rules[0].action: Required value",
    ),
    "a rule with unknown consequences": (
        ruled({"name": "a", "onWorkerExitCodes": [1], "action": "Retry"}),
        'Unsupported value: "Retry": supported values: "FailJob", "Restart", "Ignore", "ExcludeNode"',
    ),
    "a rule on success": (
        ruled({"name": "a", "onWorkerExitCodes": [1, 0], "action": "Ignore"}),
        "spec.failurePolicy.rules[0].onWorkerExitCodes[1]: Invalid value: 0: must not be 0",
    ),
    "an exit code that none can be": (
        ruled({"name": "a", "onWorkerExitCodes": [256], "action": "Ignore"}),
        "spec.failurePolicy.rules[0].onWorkerExitCodes[0] in body should be less than or equal to 255",
    ),
    "a signal that none can be": (
        ruled({"name": "a", "onWorkerExitCodes": [-65], "action": "Ignore"}),
        "spec.failurePolicy.rules[0].onWorkerExitCodes[0] in body should be greater than or equal to -64",
    ),
    "one exit code twice": (
        ruled({"name": "a", "onWorkerExitCodes": [42, 42], "action": "Ignore"}),
        "spec.failurePolicy.rules[0].onWorkerExitCodes[1]: Duplicate value: 42",
    ),
    "no exit codes": (
        ruled({"name": "a", "onWorkerExitCodes": [], "action": "Ignore"}),
        "spec.failurePolicy.rules[0].onWorkerExitCodes in body should have at least 1 items",
    ),
    "no pod reasons": (
        ruled({"name": "a", "onPodReasons": [], "action": "Ignore"}),
        "spec.failurePolicy.rules[0].onPodReasons in body should have at least 1 items",
    ),
    "a pod reason that is a sentence": (
        ruled({"name": "a", "onPodReasons": ["out of memory"], "action": "Ignore"}),
        "spec.failurePolicy.rules[0].onPodReasons[0] in body should match",
    ),
    "an empty pattern": (
        ruled({"name": "a", "onErrorPattern": "", "action": "Ignore"}),
        "spec.failurePolicy.rules[0].onErrorPattern in body should be at least 1 chars long",
    ),
    "a pattern that is a novel": (
        ruled({"name": "a", "onErrorPattern": "a" * 257, "action": "Ignore"}),
        "spec.failurePolicy.rules[0].onErrorPattern: Too long: may not be more than 256",
    ),
    "a pattern that is none": (
        ruled({"name": "a", "onErrorPattern": "CUDA error: (ECC", "action": "Ignore"}),
        'spec.failurePolicy.rules[0].onErrorPattern: Invalid value: "string": error parsing regexp: missing '
        "closing ): `CUDA error: (ECC` evaluating rule: must be a regular expression in RE2 "
        "syntax, see https://github.com/google/re2/wiki/Syntax",
    ),
    "a pattern in the syntax of Perl": (
        ruled({"name": "a", "onErrorPattern": "(?!NCCL)error", "action": "Ignore"}),
        "error parsing regexp: invalid or unsupported Perl syntax: `(?!`",
    ),
    "a node of others excluded": (
        manifest(
            failurePolicy={"rules": [{"name": "a", "onPodReasons": ["Evicted"], "action": "ExcludeNode"}]}
        ),
        "spec.failurePolicy.rules: Invalid value: action ExcludeNode may only be used together with "
        "`template`",
    ),
}


@pytest.mark.parametrize(("job", "message"), BAD.values(), ids=BAD.keys())
def test_refused_with_a_reason(cluster: ClusterAccess, job: dict[str, Any], message: str) -> None:
    assert worded(cluster, message) in refusal(cluster, "default", job)
