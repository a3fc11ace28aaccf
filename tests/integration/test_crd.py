"""The CRD in a real API server: what it accepts, refuses, defaults and shows, as kubectl's user sees it."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from crds import generate
from devcluster import crd
from devcluster.access import ClusterAccess
from devcluster.cluster import Cluster

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples"

CONTAINER = {"name": "train", "image": "train", "command": ["torchrun", "train.py"]}
TEMPLATE: dict[str, Any] = {"spec": {"containers": [CONTAINER]}}


@pytest.fixture(scope="module", autouse=True)
def _installed(cluster: ClusterAccess) -> None:
    crd.install(cluster, generate.CRD_FILE)


def manifest(name: str = "digits", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": spec,
    }


def apply(cluster: ClusterAccess, namespace: str, job: dict[str, Any]) -> str:
    """Apply like a user; what kubectl says. Raises KubectlError if it is refused."""
    return cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(job)).stdout


def refusal(cluster: ClusterAccess, namespace: str, job: dict[str, Any]) -> str:
    """Apply what must be refused; what kubectl says."""
    answer = cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(job), check=False)
    assert answer.returncode != 0, f"accepted: {answer.stdout}"
    return answer.stderr


def get(cluster: ClusterAccess, namespace: str, name: str = "digits") -> dict[str, Any]:
    answer = cluster.kubectl("get", "-n", namespace, "ej", name, "-o", "json")
    job: dict[str, Any] = json.loads(answer.stdout)
    return job


def template(**changes: Any) -> dict[str, Any]:
    """A minimal template whose pod spec has these fields besides."""
    return {"spec": {"containers": [CONTAINER], **changes}}


def labelled(**metadata: dict[str, str]) -> dict[str, Any]:
    return {"metadata": metadata, **TEMPLATE}


def nested(path: str, value: object) -> dict[str, Any]:
    """A spec in which this field of an object has this value."""
    outer, _, inner = path.partition(".")
    return {outer: {inner: value}}


def ruled(*rules: dict[str, Any]) -> dict[str, Any]:
    return manifest(template=TEMPLATE, failurePolicy={"rules": list(rules)})


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
    assert message in refusal(cluster, "default", job)


FULL: dict[str, Any] = {
    "replicas": 4,
    "minReplicas": 2,
    "maxReplicas": 8,
    "spares": 1,
    "nprocPerNode": "auto",
    "handlerSource": "Injected",
    "rendezvous": {"rejoinTimeoutSeconds": 60},
    "scaling": {"scaleUpDelaySeconds": 10},
    "failurePolicy": {
        "application": {"maxRestarts": 3, "windowSeconds": 3600},
        "infrastructure": {"maxRestarts": 20, "windowSeconds": 86400},
        "preemption": {"maxRestarts": 100},
        "rules": [
            {"name": "bad-gpu", "onErrorPattern": "CUDA error: .*ECC", "action": "ExcludeNode"},
            {"name": "bad-input", "onWorkerExitCodes": [42, -6], "action": "FailJob"},
            {"name": "spot", "onPodReasons": ["PreemptionByScheduler", "Evicted"], "action": "Ignore"},
        ],
        "maxRoundsWithoutProgress": 5,
        "hangTimeoutSeconds": 1800,
        "idleDeadlineSeconds": 3600,
        "fencing": {"type": "AfterSeconds", "afterSeconds": 300},
    },
    "suspend": False,
    "managedBy": "elasticjob.dev/operator",
    "activeDeadlineSeconds": 86400,
    "ttlSecondsAfterFinished": 3600,
    "cleanPodPolicy": "Running",
    "networkPolicy": "JobOnly",
    "template": TEMPLATE,
}

GOOD: dict[str, dict[str, Any]] = {
    "nothing said": manifest(),
    "the longest name": manifest("a" * 45, template=TEMPLATE),
    "a name of one digit": manifest("7"),
    "all bounds alike": manifest(replicas=3, minReplicas=3, maxReplicas=3),
    **{
        f"nprocPerNode {value!r}": manifest(nprocPerNode=value)
        for value in (1, 64, 99_999, "auto", "gpu", "cpu", "xpu")
    },
    "no waiting for newcomers": manifest(
        rendezvous={"lastCallTimeoutSeconds": 0, "initialLastCallTimeoutSeconds": 0}
    ),
    "fencing by proof": manifest(failurePolicy={"fencing": {"type": "WaitForProof"}}),
    "no restarts at all": manifest(failurePolicy={"application": {"maxRestarts": 0}}),
    "unlimited": manifest(failurePolicy={"application": {}, "infrastructure": {}, "preemption": {}}),
    "all that can be said": manifest(**FULL),
    "rules for the pods of others": manifest(
        failurePolicy={"rules": [{"name": "a", "onWorkerExitCodes": [42], "action": "FailJob"}]}
    ),
    "32 rules as large as they may be": ruled(
        *(
            {"name": f"{i:02}" + "a" * 61, "onErrorPattern": "(a+)+" * 51, "action": "Restart"}
            for i in range(32)
        )
    ),
    "as many pods as there may be": manifest(replicas=4_000, spares=1_000, template=TEMPLATE),
    "kept for no time": manifest(ttlSecondsAfterFinished=0, cleanPodPolicy="None"),
    "managed by another": manifest(managedBy="kueue.x-k8s.io/multikueue"),
    "no delay": manifest(scaling={"scaleUpDelaySeconds": 0}),
    "restartPolicy Never": manifest(template=template(restartPolicy="Never")),
    "environment that the operator overrides": manifest(
        template={
            "spec": {"containers": [{**CONTAINER, "env": [{"name": "PET_RDZV_BACKEND", "value": "c10d"}]}]}
        }
    ),
    "labels of others": manifest(template=labelled(labels={"app.elasticjob.dev/x": "1"}, annotations={})),
}


@pytest.mark.parametrize("job", GOOD.values(), ids=GOOD.keys())
def test_accepted(cluster: ClusterAccess, job: dict[str, Any]) -> None:
    answer = cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(job))
    assert "created (server dry run)" in answer.stdout


@pytest.mark.parametrize("example", ["digits", "digits-devcluster", "indexed-job", "indexed-job-devcluster"])
def test_the_examples_are_accepted(cluster: ClusterAccess, namespace: str, example: str) -> None:
    answer = cluster.kubectl("apply", "-n", namespace, "--dry-run=server", "-k", str(EXAMPLES / example))
    assert re.search(r"elasticjob.elasticjob.dev/digits(-indexed)? created", answer.stdout)


def documented(page: str) -> list[str]:
    """The pieces of YAML in a page for users."""
    text = (EXAMPLES.parent / "docs" / "use" / page).read_text()
    return re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)


def test_the_documented_example_is_accepted(cluster: ClusterAccess) -> None:
    (example,) = documented("job.md")
    limits, rules, fencing = documented("failures.md")
    job = yaml.safe_load(example)
    job["spec"]["template"] = TEMPLATE
    cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(job))
    job["spec"] |= yaml.safe_load(limits)
    job["spec"]["failurePolicy"] |= yaml.safe_load(rules)
    job["spec"]["failurePolicy"] |= yaml.safe_load(fencing)["failurePolicy"]
    cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(job))


def test_defaults_are_written_into_the_object_and_absent_bounds_are_not(
    cluster: ClusterAccess, namespace: str
) -> None:
    apply(cluster, namespace, manifest())
    assert get(cluster, namespace)["spec"] == {
        "replicas": 1,
        "spares": 0,
        "handlerSource": "Injected",
        "rendezvous": {
            "initialLastCallTimeoutSeconds": 300,
            "lastCallTimeoutSeconds": 15,
            "rejoinTimeoutSeconds": 45,
            "establishTimeoutSeconds": 15,
            "heartbeatPeriodSeconds": 1,
            "heartbeatTimeoutSeconds": 10,
            "stallTimeoutSeconds": 30,
        },
        "scaling": {"scaleUpDelaySeconds": 10},
        "suspend": False,
        "cleanPodPolicy": "Running",
        "networkPolicy": "JobOnly",
    }


def test_one_timeout_leaves_the_defaults_of_the_others(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, manifest(rendezvous={"heartbeatTimeoutSeconds": 3}))
    rendezvous = get(cluster, namespace)["spec"]["rendezvous"]
    assert (rendezvous["heartbeatTimeoutSeconds"], rendezvous["rejoinTimeoutSeconds"]) == (3, 45)


def test_applied_twice_is_unchanged(cluster: ClusterAccess, namespace: str) -> None:
    """The resource, and the definition too: its copy in the annotation of client-side apply fits."""
    job = manifest(replicas=2, template=TEMPLATE)
    assert "created" in apply(cluster, namespace, job)
    assert "unchanged" in apply(cluster, namespace, job)
    assert "unchanged" in cluster.kubectl("apply", "-f", str(generate.CRD_FILE)).stdout


def test_server_side_apply_merges_lists_by_their_keys(cluster: ClusterAccess, namespace: str) -> None:
    ports = [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]
    job = manifest(replicas=2, template={"spec": {"containers": [{**CONTAINER, "ports": ports}]}})
    command = ("apply", "--server-side", "-n", namespace, "-f", "-")
    cluster.kubectl(*command, input=json.dumps(job))
    cluster.kubectl(*command, input=json.dumps(job))
    container = get(cluster, namespace)["spec"]["template"]["spec"]["containers"][0]
    assert [port["protocol"] for port in container["ports"]] == ["TCP", "UDP"]


def test_the_template_is_immutable(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, manifest(template=TEMPLATE))
    changed = refusal(cluster, namespace, manifest(template=template(nodeName="b")))
    assert "spec.template: Invalid value: template may only be changed while suspend is true" in changed
    removed = refusal(cluster, namespace, manifest())
    assert "template may not be added or removed" in removed
    apply(cluster, namespace, manifest(replicas=2, minReplicas=1, template=TEMPLATE))
    assert get(cluster, namespace)["spec"]["replicas"] == 2


def test_a_template_cannot_be_added(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, manifest())
    assert "template may not be added or removed" in refusal(cluster, namespace, manifest(template=TEMPLATE))


def running(cluster: ClusterAccess, namespace: str, **spec: Any) -> dict[str, Any]:
    """Apply a job with all fields and then these changed; the object as it is now."""
    apply(cluster, namespace, manifest(**FULL))
    apply(cluster, namespace, manifest(**{**FULL, **spec}))
    return get(cluster, namespace)


MAY_CHANGE: dict[str, Any] = {
    "replicas": 5,
    "minReplicas": 1,
    "maxReplicas": 9,
    "spares": 2,
    "rendezvous": {"rejoinTimeoutSeconds": 90, "lastCallTimeoutSeconds": 1},
    "scaling": {"scaleUpDelaySeconds": 1},
    "failurePolicy": {"rules": [], "hangTimeoutSeconds": 60, "idleDeadlineSeconds": 60},
    "suspend": True,
    "activeDeadlineSeconds": 60,
    "ttlSecondsAfterFinished": 60,
    "cleanPodPolicy": "All",
    "handlerSource": "Image",
    "networkPolicy": "None",
}
MAY_NOT_CHANGE: dict[str, tuple[Any, str]] = {
    "nprocPerNode": (
        8,
        "spec.nprocPerNode: Invalid value: 8: nprocPerNode may not be changed; delete the job and apply it "
        "again, it resumes from its checkpoint",
    ),
    "managedBy": (
        "kueue.x-k8s.io/multikueue",
        'spec.managedBy: Invalid value: "kueue.x-k8s.io/multikueue": managedBy may not be changed; delete '
        "the job and apply it again",
    ),
    "template": (
        template(nodeName="b"),
        "spec.template: Invalid value: template may only be changed while suspend is true, and then only "
        "labels, annotations, nodeSelector, tolerations, affinity and schedulingGates; for any other change "
        "delete the job and apply it again, it resumes from its checkpoint",
    ),
}


def test_every_field_either_may_change_or_may_not() -> None:
    """A new field has to choose."""
    crd_file = yaml.safe_load(generate.CRD_FILE.read_text())
    schema = crd_file["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert set(schema["properties"]["spec"]["properties"]) == set(MAY_CHANGE) | set(MAY_NOT_CHANGE)
    assert set(FULL) == set(MAY_CHANGE) | set(MAY_NOT_CHANGE)


@pytest.mark.parametrize("field", MAY_CHANGE)
def test_may_change_while_the_job_runs(cluster: ClusterAccess, namespace: str, field: str) -> None:
    spec = running(cluster, namespace, **{field: MAY_CHANGE[field]})["spec"]
    if isinstance(MAY_CHANGE[field], dict):
        assert MAY_CHANGE[field].items() <= spec[field].items()
    else:
        assert spec[field] == MAY_CHANGE[field]


@pytest.mark.parametrize("field", [*MAY_CHANGE, "managedBy"])
def test_may_be_removed_while_the_job_runs(cluster: ClusterAccess, namespace: str, field: str) -> None:
    """What is absent then is the default again: for managedBy that is this operator, as before."""
    full = {**FULL, "replicas": 2}
    apply(cluster, namespace, manifest(**full))
    without = {key: value for key, value in full.items() if key != field}
    if field == "replicas":
        without["minReplicas"] = 1  # the default is 1, too
    apply(cluster, namespace, manifest(**without))
    apply(cluster, namespace, manifest(**full))


@pytest.mark.parametrize("field", MAY_NOT_CHANGE)
def test_may_not_change(cluster: ClusterAccess, namespace: str, field: str) -> None:
    value, message = MAY_NOT_CHANGE[field]
    apply(cluster, namespace, manifest(**FULL))
    assert message in refusal(cluster, namespace, manifest(**{**FULL, field: value}))


PLACED: dict[str, Any] = {
    "metadata": {"labels": {"queue": "a"}, "annotations": {"admitted": "yes"}},
    "spec": {
        **TEMPLATE["spec"],
        "nodeSelector": {"pool": "spot"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "schedulingGates": [{"name": "example.com/gate"}],
    },
}
"""The template with what a queue may inject."""
SIDECAR = {"name": "logs", "image": "logs"}
TWO: dict[str, Any] = {"spec": {**TEMPLATE["spec"], "containers": [CONTAINER, SIDECAR]}}
NOT_PLACEMENT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an image": (
        TEMPLATE,
        {"spec": {**TEMPLATE["spec"], "containers": [{**CONTAINER, "image": "other"}]}},
        "spec.template.spec.containers: Invalid value",
    ),
    "a field added": (
        TEMPLATE,
        template(nodeName="b"),
        "only affinity, nodeSelector, schedulingGates and tolerations of the pod may be added, changed",
    ),
    "a field changed": (
        template(nodeName="a"),
        template(nodeName="b"),
        'spec.template.spec.nodeName: Invalid value: "b": may not be changed; delete the job',
    ),
    "another container": (TWO, TEMPLATE, "spec.template.spec.containers: Invalid value"),
    "the order of containers": (
        TWO,
        {"spec": {**TEMPLATE["spec"], "containers": [SIDECAR, CONTAINER]}},
        "the first container may not be changed",
    ),
    "the container that trains": (
        TWO,
        {**TWO, "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "logs"}}},
        "the annotation kubectl.kubernetes.io/default-container may not be changed",
    ),
}


def test_a_queue_places_a_job_while_it_is_suspended_and_as_it_admits_it(
    cluster: ClusterAccess, namespace: str
) -> None:
    apply(cluster, namespace, manifest(template=TEMPLATE, suspend=True))
    apply(cluster, namespace, manifest(template=PLACED, suspend=True))
    pod = get(cluster, namespace)["spec"]["template"]["spec"]
    assert {name: pod[name] for name in generate.MAY_CHANGE} == {
        name: PLACED["spec"][name] for name in generate.MAY_CHANGE
    }
    apply(cluster, namespace, manifest(template=TEMPLATE, suspend=True))
    apply(cluster, namespace, manifest(template=PLACED, suspend=False))
    assert "template may only be changed while suspend is true" in refusal(
        cluster, namespace, manifest(template=TEMPLATE)
    )
    apply(cluster, namespace, manifest(template=TEMPLATE, suspend=True))
    apply(cluster, namespace, manifest(template=TEMPLATE, suspend=False))


@pytest.mark.parametrize("suspended", [True, False], ids=["suspended", "running"])
@pytest.mark.parametrize(("before", "after", "message"), NOT_PLACEMENT.values(), ids=list(NOT_PLACEMENT))
def test_all_but_the_placement_of_pods_is_immutable(
    cluster: ClusterAccess,
    namespace: str,
    before: dict[str, Any],
    after: dict[str, Any],
    message: str,
    suspended: bool,
) -> None:
    apply(cluster, namespace, manifest(template=before, suspend=suspended))
    assert message in refusal(cluster, namespace, manifest(template=after, suspend=suspended))


def test_a_number_of_processes_can_be_neither_added_nor_removed(
    cluster: ClusterAccess, namespace: str
) -> None:
    apply(cluster, namespace, manifest(name="none"))
    expected = "nprocPerNode may not be added or removed; delete the job and apply it again"
    assert expected in refusal(cluster, namespace, manifest(name="none", nprocPerNode=2))
    apply(cluster, namespace, manifest(name="two", nprocPerNode=2))
    assert expected in refusal(cluster, namespace, manifest(name="two"))


def test_a_job_is_not_handed_over(cluster: ClusterAccess, namespace: str) -> None:
    other = {"managedBy": "kueue.x-k8s.io/multikueue"}
    apply(cluster, namespace, manifest(name="ours"))
    expected = "managedBy may not be added or removed; delete the job and apply it again"
    assert expected in refusal(cluster, namespace, manifest(name="ours", **other))
    apply(cluster, namespace, manifest(name="theirs", **other))
    assert expected in refusal(cluster, namespace, manifest(name="theirs"))


def test_scale(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, manifest(replicas=2, minReplicas=2, maxReplicas=4))
    scale = ("scale", "-n", namespace, "ej/digits")
    cluster.kubectl(*scale, "--replicas=3")
    assert get(cluster, namespace)["spec"]["replicas"] == 3
    too_many = cluster.kubectl(*scale, "--replicas=5", check=False)
    assert "replicas (5) must be less than or equal to maxReplicas (4)" in too_many.stderr
    too_few = cluster.kubectl(*scale, "--replicas=1", check=False)
    assert "replicas (1) must be greater than or equal to minReplicas (2)" in too_few.stderr


CONDITION = {"lastTransitionTime": "2026-11-21T07:05:00Z", "reason": "NotFinished", "message": ""}
END: dict[str, Any] = {
    "time": "2026-11-21T07:05:59.000001Z",
    "cause": "WorkerFailed",
    "account": "application",
    "ruleName": "spot",
    "message": "a worker of digits-0-0 failed",
    "detectMilliseconds": 1040,
}
STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Training",
            "status": "True",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-11-21T07:05:00.123456Z",
            "reason": "Training",
            "message": "Round 7 runs with 2 members.",
        },
        {**CONDITION, "type": "Complete", "status": "False"},
        {**CONDITION, "type": "Failed", "status": "Unknown", "reason": "NotFailed"},
    ],
    "startTime": "2026-11-21T07:00:00.000001Z",
    "completionTime": "2026-11-21T08:00:00Z",
    "activeSeconds": 3600,
    "terminalState": "Complete",
    "replicas": 2,
    "selector": "elasticjob.dev/job-name=digits",
    "minReplicas": 1,
    "restarts": 5,
    "currentRound": {
        "number": 7,
        "phase": "Active",
        "members": 2,
        "worldSize": 16,
        "leaderPodName": "digits-0-0",
        "startTime": "2026-11-21T07:04:59.000001Z",
        "establishedTime": "2026-11-21T07:04:59.100001Z",
        "cause": "PodLost",
        "account": "infrastructure",
        "message": "digits-1-2 was lost with node b",
        "end": END,
    },
    "participants": [
        {
            "id": "k3x9q2ab",
            "podName": "digits-0-0",
            "podUID": "c7b3ad3e-3dbb-4d43-8e2a-8a0a0a3d9f10",
            "slot": 0,
            "groupRank": 0,
            "nodeName": "a",
            "localWorldSize": 8,
            "state": "Member",
            "message": "",
            "containerRestarts": 1,
        },
        {"id": "m4y0r3bc", "podName": "digits-1-3", "podUID": "d8", "slot": 1, "state": "Joining"},
    ],
    "ignoredPods": [{"podName": "digits-2-0", "message": "participant record: not JSON"}],
    "roundHistory": [
        {
            "number": 7,
            "cause": "PodLost",
            "members": 2,
            "startTime": "2026-11-21T07:04:59.000001Z",
            "end": END,
            "rendezvousMilliseconds": 85,
            "firstStepMilliseconds": 4100,
            "firstStep": 18000,
            "lastStep": 18200,
        }
    ],
    "accounts": [
        {
            "name": "infrastructure",
            "used": 1,
            "maxRestarts": 20,
            "windowSeconds": 86400,
            "charges": [
                {
                    "round": 6,
                    "podName": "digits-1-2",
                    "cause": "NodeLost",
                    "nodeName": "b",
                    "message": "digits-1-2 was lost with node b",
                    "time": "2026-11-21T07:04:58.999999Z",
                }
            ],
        },
        {"name": "application", "used": 0},
        {"name": "preemption", "used": 0},
        {"name": "scaling", "used": 0, "charges": []},
    ],
    "lastFailure": {
        "podName": "digits-1-2",
        "groupRank": 1,
        "exitCode": -9,
        "message": "killed",
        "time": "2026-11-21T07:04:58Z",
        "round": 6,
        "podUID": "c7b3ad3e-3dbb-4d43-8e2a-8a0a0a3d9f11",
        "nodeName": "b",
        "logsCommand": "kubectl -n default logs digits-1-2 -c train",
        "containerRestarts": 1,
    },
    "excludedNodes": [
        {
            "name": "b",
            "untilTime": "2026-11-21T08:04:58.000001Z",
            "message": "2 failures within 1 h",
            "liftedTime": "2026-11-21T07:14:58.000001Z",
        }
    ],
    "progress": {
        "step": 18200,
        "millisecondsPerStep": 412,
        "goodputPercent": 97,
        "lostSeconds": 214,
        "lastReportTime": "2026-11-21T07:05:59.000001Z",
        "lostByCause": [{"cause": "PodLost", "milliseconds": 214000}],
        "roundsWithoutProgress": 1,
    },
    "internal": {
        "version": 2,
        "minReaderVersion": 1,
        "attempts": [0, 3, -1],
        "round": {"nonce": "9f3c", "new": [{}]},
    },
}


@pytest.fixture
def observed(cluster: ClusterAccess, namespace: str) -> str:
    """A namespace with a job `digits` that has a full status."""
    apply(cluster, namespace, manifest(replicas=2))
    job = {**manifest(replicas=2), "status": STATUS}
    cluster.kubectl("replace", "-n", namespace, "--subresource=status", "-f", "-", input=json.dumps(job))
    return namespace


def test_a_full_status_is_kept_to_the_letter(cluster: ClusterAccess, observed: str) -> None:
    assert get(cluster, observed)["status"] == STATUS


def test_the_status_is_no_part_of_what_a_user_applies(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, {**manifest(), "status": STATUS})
    assert get(cluster, namespace)["status"] == {"observedGeneration": -1}, "kstatus: in progress"


def test_columns(cluster: ClusterAccess, observed: str) -> None:
    header, row = cluster.kubectl("get", "-n", observed, "ej").stdout.splitlines()
    assert header.split() == ["NAME", "STATE", "MEMBERS", "REPLICAS", "ROUND", "RESTARTS", "AGE"]
    assert row.split()[:-1] == ["digits", "Training", "2", "2", "7", "5"]
    header, row = cluster.kubectl("get", "-n", observed, "ej", "-o", "wide").stdout.splitlines()
    assert header.split()[-7:] == ["REASON", "CAUSE", "LEADER", "STARTED", "DURATION", "STEP", "GOODPUT"]
    *said, _, duration, step, goodput = row.split()[-7:]
    assert [*said, duration, step, goodput] == ["NotFailed", "PodLost", "digits-0-0", "3600", "18200", "97"]


def test_an_autoscaler_finds_the_pods(cluster: ClusterAccess, observed: str) -> None:
    path = f"/apis/elasticjob.dev/v1alpha1/namespaces/{observed}/elasticjobs/digits/scale"
    scale = json.loads(cluster.kubectl("get", "--raw", path).stdout)
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 2, "selector": "elasticjob.dev/job-name=digits"}


def test_explain(cluster: ClusterAccess) -> None:
    text = cluster.kubectl("explain", "ej.spec.rendezvous.initialLastCallTimeoutSeconds").stdout
    assert "once minReplicas pods have joined" in " ".join(text.split())


RICH_TEMPLATE: dict[str, Any] = yaml.safe_load(
    """
metadata:
  labels: {app: digits, team.example.com/name: research}
  annotations: {kubectl.kubernetes.io/default-container: train}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 60
  activeDeadlineSeconds: 100000
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  enableServiceLinks: false
  automountServiceAccountToken: false
  shareProcessNamespace: true
  hostAliases: [{ip: 10.1.2.3, hostnames: [storage]}]
  imagePullSecrets: [{name: registry}]
  nodeSelector: {gpu: h100}
  schedulerName: other-scheduler
  securityContext:
    runAsUser: 1000
    runAsNonRoot: true
    fsGroup: 2000
    supplementalGroups: [3000]
    seccompProfile: {type: RuntimeDefault}
    sysctls: [{name: kernel.shm_rmid_forced, value: "1"}]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: zone, operator: In, values: [a, b]}]
      preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 5
        preference: {matchFields: [{key: metadata.name, operator: NotIn, values: [bad]}]}
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 1
        podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: digits}}}
  tolerations:
  - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
  topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchExpressions: [{key: app, operator: Exists}]}
  initContainers:
  - {name: prepare, image: busybox, command: [sh, -c, "true"]}
  - name: proxy
    image: proxy
    restartPolicy: Always
    startupProbe: {tcpSocket: {port: 8080}, failureThreshold: 30}
  containers:
  - name: train
    image: train
    imagePullPolicy: IfNotPresent
    command: [torchrun, train.py]
    args: [--epochs=3]
    workingDir: /workspace
    env:
    - {name: PLAIN, value: "1"}
    - {name: NODE, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: spec.nodeName}}}
    - {name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: "1"}}}
    - {name: TOKEN, valueFrom: {secretKeyRef: {name: token, key: token, optional: true}}}
    envFrom:
    - {prefix: CONF_, configMapRef: {name: conf, optional: true}}
    ports:
    - {name: metrics, containerPort: 9090, protocol: TCP}
    - {name: metrics-udp, containerPort: 9090, protocol: UDP}
    resources:
      requests: {cpu: 2, memory: 1Gi, ephemeral-storage: 500M}
      limits: {cpu: "2", memory: 1073741824, nvidia.com/gpu: 8, rdma/hca: "1", hugepages-2Mi: 4Mi}
    lifecycle:
      preStop: {exec: {command: [sleep, "1"]}}
    livenessProbe: {httpGet: {path: /healthz, port: metrics, scheme: HTTP}, periodSeconds: 10}
    readinessProbe: {grpc: {port: 9000, service: ready}}
    securityContext:
      capabilities: {add: [IPC_LOCK], drop: [ALL]}
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
    volumeMounts:
    - {name: shm, mountPath: /dev/shm}
    - {name: code, mountPath: /workspace, readOnly: true}
    - {name: data, mountPath: /data, subPath: train, mountPropagation: None}
    - {name: tokens, mountPath: /var/run/tokens}
    volumeDevices:
    - {name: block, devicePath: /dev/block}
    terminationMessagePolicy: FallbackToLogsOnError
  - {name: log-shipper, image: log-shipper}
  volumes:
  - {name: shm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}
  - {name: code, configMap: {name: code, defaultMode: 420, items: [{key: train.py, path: train.py}]}}
  - {name: data, persistentVolumeClaim: {claimName: data, readOnly: true}}
  - name: block
    ephemeral:
      volumeClaimTemplate:
        metadata: {labels: {app: digits}}
        spec:
          accessModes: [ReadWriteOnce]
          volumeMode: Block
          storageClassName: fast
          resources: {requests: {storage: 10Gi}}
  - name: tokens
    projected:
      defaultMode: 420
      sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607, audience: storage}
      - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
      - configMap: {name: ca, items: [{key: ca.crt, path: ca.crt}]}
  - {name: host, hostPath: {path: /tmp, type: Directory}}
  - {name: nfs, nfs: {server: 10.0.0.1, path: /data}}
  - {name: bucket, csi: {driver: bucket.example.com, volumeAttributes: {bucket: data}}}
"""
)


def test_a_rich_template_is_kept_to_the_letter(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, manifest(template=RICH_TEMPLATE))
    assert get(cluster, namespace)["spec"]["template"] == RICH_TEMPLATE


def test_the_rich_template_is_a_pod_that_kubernetes_accepts(cluster: ClusterAccess, namespace: str) -> None:
    """Else the test above would prove less than it seems to."""
    pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(RICH_TEMPLATE)}
    pod["metadata"]["name"] = "rich"
    cluster.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", input=json.dumps(pod))


def test_a_port_without_protocol_is_tcp(cluster: ClusterAccess, namespace: str) -> None:
    """The one default in the template: the protocol is a key of the list of ports."""
    ports = [{"containerPort": 80}]
    apply(cluster, namespace, manifest(template={"spec": {"containers": [{**CONTAINER, "ports": ports}]}}))
    container = get(cluster, namespace)["spec"]["template"]["spec"]["containers"][0]
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]


@pytest.mark.devcluster
def test_the_generated_part_is_what_this_version_of_kubernetes_gives(devcluster: Cluster) -> None:
    openapi = json.loads(devcluster.kubectl("get", "--raw", "/openapi/v3/api/v1").stdout)
    text = generate.CRD_FILE.read_text()
    assert generate.splice(text, generate.template_properties(openapi)) == text, (
        "run: kubectl get --raw /openapi/v3/api/v1 | python crds/generate.py"
    )


def test_the_job_of_your_script_is_accepted(cluster: ClusterAccess, namespace: str) -> None:
    (job,) = documented("writing.md")
    answer = cluster.kubectl("apply", "-n", namespace, "--dry-run=server", "-f", "-", input=job)
    assert "elasticjob.elasticjob.dev/mnist created" in answer.stdout
