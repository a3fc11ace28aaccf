"""What the operator does to a template, and above all what it leaves alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from elasticjob.contract.names import COPIES_ENV, MEMORY_ENV, NODE_ENV, WARM_ENV, WARM_IMPORTS_ENV, ZONE_ENV
from elasticjob_operator.act.injection import HandlerImage
from elasticjob_operator.act.template import (
    SAFE_TO_EVICT_VOLUMES,
    TEMPORARY_VOLUME,
    TOKEN_DIR,
    TOKEN_VOLUME,
    pod_of,
    service_account,
    warnings,
)
from elasticjob_operator.observe.seen_pod import read_pod
from elasticjob_operator.plan.state.model import Job, JobSpec, MemoryCheckpoints, WarmWorkers
from elasticjob_operator.plan.template.containers import (
    DEFAULT_CONTAINER_ANNOTATION,
    training_container,
)

RICH: dict[str, Any] = {
    "metadata": {
        "labels": {"team": "vision", "kueue.x-k8s.io/queue-name": "gpu"},
        "annotations": {
            "kubectl.kubernetes.io/default-container": "trainer",
            "sidecar.istio.io/inject": "true",
        },
    },
    "spec": {
        "initContainers": [
            {"name": "fetch", "image": "fetch:1", "env": [{"name": "PET_NNODES", "value": "untouched"}]},
            {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"},
        ],
        "containers": [
            {"name": "logs", "image": "logs:1", "env": [{"name": "A", "value": "1"}]},
            {
                "name": "trainer",
                "image": "trainer:1",
                "command": ["torchrun", "train.py"],
                "env": [
                    {"name": "FIRST", "value": "$(PET_RDZV_ID)"},
                    {"name": "PET_NNODES", "value": "7"},
                    {"name": "PET_LOCAL_ADDR", "value": "10.0.0.1"},
                    {"name": "LAST", "value": "$(FIRST)"},
                ],
                "resources": {"limits": {"nvidia.com/gpu": "8", "rdma/hca": "1"}},
                "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
                "ports": [{"containerPort": 1}],
            },
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "affinity": {"podAntiAffinity": {"x": 1}},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "high",
        "imagePullSecrets": [{"name": "pull"}],
        "runtimeClassName": "nvidia",
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "schedulerName": "volcano",
        "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "nodeSelector": {"a": "b"},
        "terminationGracePeriodSeconds": 600,
        "securityContext": {"fsGroup": 1},
        "resourceClaims": [{"name": "c"}],
        "serviceAccountName": "mine",
    },
}
IMAGE = HandlerImage("handler:1")
TOUCHED_IN_SPEC = {"restartPolicy", "containers", "initContainers"}
LAST_WORDS = {"terminationMessagePolicy": "FallbackToLogsOnError"}


def a_job(template: dict[str, Any] | None, **spec: Any) -> Job:
    """Its image has the handler, and drains are off; what is injected otherwise is in test_injection, and
    what drains add in test_pre_stop."""
    spec = {"handler_source": "Image", "drain_seconds": 0, **spec}
    return Job("team-a", "mnist", "uid-1", 1, JobSpec(template=template, **spec))


def env_of(container: dict[str, Any]) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container["env"]}


def simple(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": "i", **container}]}}


def test_what_need_not_be_touched_is_equal() -> None:
    before = copy.deepcopy(RICH)
    pod = pod_of(a_job(RICH, replicas=4), 2, 1, IMAGE)
    assert before == RICH, "the template itself was changed"
    for key, value in RICH["spec"].items():
        if key not in TOUCHED_IN_SPEC:
            assert pod["spec"][key] == value, key
    assert set(pod["spec"]) - set(RICH["spec"]) == {"restartPolicy"}
    logs, trainer = pod["spec"]["containers"]
    assert logs == RICH["spec"]["containers"][0]
    for key, value in RICH["spec"]["containers"][1].items():
        if key != "env":
            assert trainer[key] == value, key
    assert trainer == {**RICH["spec"]["containers"][1], "env": trainer["env"], **LAST_WORDS}
    fetch, proxy = RICH["spec"]["initContainers"]
    assert pod["spec"]["initContainers"] == [{**fetch, **LAST_WORDS}, proxy], "a sidecar's log is its own"
    assert pod["metadata"]["annotations"] == RICH["metadata"]["annotations"]
    for key, value in RICH["metadata"]["labels"].items():
        assert pod["metadata"]["labels"][key] == value


def test_identity() -> None:
    pod = pod_of(a_job(RICH, replicas=4), 2, 1, IMAGE)
    assert pod["metadata"]["name"] == "mnist-2-1"
    assert pod["metadata"]["namespace"] == "team-a"
    labels = pod["metadata"]["labels"]
    assert labels["elasticjob.dev/job-name"] == "mnist"
    assert labels["elasticjob.dev/slot"] == "2"
    assert labels["elasticjob.dev/attempt"] == "1"
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "name": "mnist",
        "uid": "uid-1",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert pod["spec"]["restartPolicy"] == "Never"


# shows: a webhook puts containers before the one that trains, or a pod's annotation ...
def test_the_training_container_is_the_one_that_was_given_the_environment() -> None:
    """Whatever webhooks and people make of the pod afterwards: others before it, other names, annotations."""
    pod = pod_of(a_job(RICH), 0, 0, IMAGE)
    meta, spec = pod["metadata"], pod["spec"]
    trainer = training_container(meta, spec)
    assert trainer == spec["containers"][1]["name"]
    proxy = {"name": "linkerd-proxy", "env": [{"name": "LINKERD2_PROXY_LOG", "value": "warn"}]}
    meshed = {**spec, "containers": [proxy, *spec["containers"]]}
    marked = {"annotations": {DEFAULT_CONTAINER_ANNOTATION: "linkerd-proxy"}}
    assert training_container({}, meshed) == training_container(marked, meshed) == trainer
    renamed = [proxy, {**spec["containers"][1], "name": "renamed"}]
    assert training_container(meta, {"containers": renamed}) == "renamed"
    assert training_container(marked, {"containers": [{"name": "a", "env": "?"}, proxy]}) == "linkerd-proxy"


def test_environment_of_the_training_container() -> None:
    trainer = pod_of(a_job(RICH, replicas=4, min_replicas=2, max_replicas=8), 0, 0, IMAGE)["spec"][
        "containers"
    ][1]
    env = env_of(trainer)
    assert env["PET_RDZV_BACKEND"] == "k8s"
    assert env["PET_RDZV_ENDPOINT"] == "team-a/mnist"
    assert env["PET_RDZV_ID"] == "uid-1"
    assert env["PET_NNODES"] == "1:8", "the operator's value wins"
    assert env["PET_MAX_RESTARTS"] == "1000000"
    assert env["PET_NPROC_PER_NODE"] == "gpu"
    assert env["PET_LOCAL_ADDR"] == "10.0.0.1", "the user's value wins"
    assert env["ELASTICJOB_POD_NAME"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert env["ELASTICJOB_POD_UID"]["fieldRef"]["fieldPath"] == "metadata.uid"
    names = [e["name"] for e in trainer["env"]]
    assert len(names) == len(set(names))
    assert names.index("PET_RDZV_ID") < names.index("FIRST") < names.index("LAST"), "$(VAR) looks backwards"


@pytest.mark.parametrize(
    ("spec", "nnodes"),
    [
        ({"replicas": 1}, "1:1"),
        ({"replicas": 4}, "1:4"),
        ({"replicas": 4, "min_replicas": 2}, "1:4"),
        ({"replicas": 2, "min_replicas": 2, "max_replicas": 8}, "1:8"),
    ],
)
def test_nnodes(spec: dict[str, Any], nnodes: str) -> None:
    pod = pod_of(a_job(simple(), **spec), 0, 0, IMAGE)
    assert env_of(pod["spec"]["containers"][0])["PET_NNODES"] == nnodes


@pytest.mark.parametrize(
    ("container", "nproc_per_node", "expected"),
    [
        ({}, None, "1"),
        ({}, "4", "4"),
        ({"resources": {"limits": {"nvidia.com/gpu": 2}}}, None, "gpu"),
        ({"resources": {"requests": {"amd.com/gpu": 2}}}, None, "gpu"),
        ({"resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}, None, "gpu"),
        ({"resources": {"limits": {"nvidia.com/gpu": 2}}}, "auto", "auto"),
        ({"env": [{"name": "PET_NPROC_PER_NODE", "value": "3"}]}, "4", "3"),
        ({"envFrom": [{"configMapRef": {"name": "x"}}]}, None, None),
        ({"envFrom": [{"configMapRef": {"name": "x"}}]}, "4", "4"),
    ],
)
def test_processes_per_pod(
    container: dict[str, Any], nproc_per_node: str | None, expected: str | None
) -> None:
    pod = pod_of(a_job(simple(**container), nproc_per_node=nproc_per_node), 0, 0, IMAGE)
    assert env_of(pod["spec"]["containers"][0]).get("PET_NPROC_PER_NODE") == expected


@pytest.mark.parametrize(
    ("warm", "expected"),
    [
        (None, (None, None)),
        (WarmWorkers(), ("on", None)),
        (WarmWorkers(imports=("transformers", "a.b")), ("on", "transformers:a.b")),
        (WarmWorkers(enabled=False, imports=("a",)), ("off", None)),
    ],
)
def test_warm_workers(warm: WarmWorkers | None, expected: tuple[str | None, str | None]) -> None:
    env = env_of(pod_of(a_job(simple(), warm_workers=warm), 0, 0, IMAGE)["spec"]["containers"][0])
    assert (env.get(WARM_ENV), env.get(WARM_IMPORTS_ENV)) == expected
    own = simple(env=[{"name": WARM_ENV, "value": "off"}])
    env = env_of(pod_of(a_job(own, warm_workers=warm), 0, 0, IMAGE)["spec"]["containers"][0])
    assert env[WARM_ENV] == "off", "the template's word holds"


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (None, []),
        (
            MemoryCheckpoints(8 * 2**30),
            [(MEMORY_ENV, "8589934592"), (COPIES_ENV, "1"), (NODE_ENV, None), (ZONE_ENV, None)],
        ),
        (MemoryCheckpoints(1, spread="None"), [(MEMORY_ENV, "1"), (COPIES_ENV, "1")]),
        (MemoryCheckpoints(1, copies=0), [(MEMORY_ENV, "1"), (COPIES_ENV, "0")]),
    ],
)
def test_memory_checkpoints(memory: MemoryCheckpoints | None, expected: list[tuple[str, str | None]]) -> None:
    pod = pod_of(a_job(simple(), memory_checkpoints=memory), 0, 0, IMAGE)
    env = pod["spec"]["containers"][0]["env"]
    ours = (MEMORY_ENV, COPIES_ENV, NODE_ENV, ZONE_ENV)
    assert [(one["name"], one.get("value")) for one in env if one["name"] in ours] == expected
    for one in env:
        if one["name"] == NODE_ENV:
            assert one["valueFrom"] == {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}
        if one["name"] == ZONE_ENV:
            path = "metadata.labels['topology.kubernetes.io/zone']"
            assert one["valueFrom"] == {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}
    own = simple(env=[{"name": MEMORY_ENV, "value": "5"}])
    env = env_of(pod_of(a_job(own, memory_checkpoints=memory), 0, 0, IMAGE)["spec"]["containers"][0])
    assert env[MEMORY_ENV] == "5", "the template's word holds"


@pytest.mark.parametrize(("given", "expected"), [(None, 35), (5, 35), (35, 35), (600, 600)])
def test_grace_is_only_raised(given: int | None, expected: int) -> None:
    template = simple()
    if given is not None:
        template["spec"]["terminationGracePeriodSeconds"] = given
    assert pod_of(a_job(template), 0, 0, IMAGE)["spec"]["terminationGracePeriodSeconds"] == expected


@pytest.mark.parametrize(
    "given", [{"terminationMessagePolicy": "File"}, {"terminationMessagePath": "/dev/shm/words"}]
)
def test_what_the_template_says_of_termination_messages_holds(given: dict[str, str]) -> None:
    template = simple(**given)
    template["spec"]["initContainers"] = [{"name": "fetch", **given}]
    spec = pod_of(a_job(template), 0, 0, IMAGE)["spec"]
    for container in (spec["containers"][0], spec["initContainers"][0]):
        assert container.get("terminationMessagePolicy") == given.get("terminationMessagePolicy")


READ_ONLY = {"securityContext": {"readOnlyRootFilesystem": True}}


def test_a_root_that_is_read_only_gets_a_folder_for_temporary_files() -> None:
    pod = pod_of(a_job(simple(**READ_ONLY)), 0, 0, IMAGE)
    assert pod["spec"]["volumes"] == [{"name": TEMPORARY_VOLUME, "emptyDir": {}}]
    assert pod["spec"]["containers"][0]["volumeMounts"] == [{"name": TEMPORARY_VOLUME, "mountPath": "/tmp"}]
    assert pod["metadata"]["annotations"] == {SAFE_TO_EVICT_VOLUMES: TEMPORARY_VOLUME}


@pytest.mark.parametrize(
    "container",
    [
        {},
        {"securityContext": {"readOnlyRootFilesystem": False}},
        {**READ_ONLY, "volumeMounts": [{"name": "mine", "mountPath": "/tmp/"}]},
        {**READ_ONLY, "env": [{"name": "TMPDIR", "value": "/scratch"}]},
    ],
)
def test_no_folder_for_temporary_files_is_added_where_there_is_one(container: dict[str, Any]) -> None:
    pod = pod_of(a_job(simple(**container)), 0, 0, IMAGE)
    assert "volumes" not in pod["spec"]
    assert pod["spec"]["containers"][0].get("volumeMounts") == container.get("volumeMounts")
    assert "annotations" not in pod["metadata"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "elasticjob-handler"),
        ("a,b", "a,b,elasticjob-handler"),
        ("elasticjob-handler", "elasticjob-handler"),
    ],
)
def test_the_autoscaler_may_remove_a_node_with_what_is_injected(given: str, expected: str) -> None:
    template = simple()
    template["metadata"] = {"annotations": {SAFE_TO_EVICT_VOLUMES: given}} if given else {}
    job = Job("team-a", "mnist", "uid-1", 1, JobSpec(template=template, drain_seconds=0))
    assert pod_of(job, 0, 0, IMAGE)["metadata"]["annotations"] == {SAFE_TO_EVICT_VOLUMES: expected}


def test_first_container_trains_by_default() -> None:
    template = {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    first, second = pod_of(a_job(template), 0, 0, IMAGE)["spec"]["containers"]
    assert "PET_RDZV_ID" in env_of(first)
    assert second == {"name": "b"}


def test_service_account() -> None:
    assert pod_of(a_job(simple()), 0, 0, IMAGE)["spec"]["serviceAccountName"] == "mnist-elasticjob"
    assert service_account(a_job(simple())) is None
    assert pod_of(a_job(RICH), 0, 0, IMAGE)["spec"]["serviceAccountName"] == "mine"
    assert service_account(a_job(RICH)) == "mine"


def test_token_is_projected_where_automounting_is_off() -> None:
    template = simple(volumeMounts=[{"name": "d", "mountPath": "/d"}])
    template["spec"]["automountServiceAccountToken"] = False
    template["spec"]["volumes"] = [{"name": "d", "emptyDir": {}}]
    template["spec"]["containers"].append({"name": "sidecar"})
    spec = pod_of(a_job(template), 0, 0, IMAGE)["spec"]
    main, sidecar = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert env_of(main)["ELASTICJOB_SERVICE_ACCOUNT_DIR"] == TOKEN_DIR
    assert main["volumeMounts"][0] == {"name": "d", "mountPath": "/d"}
    assert main["volumeMounts"][1] == {"name": TOKEN_VOLUME, "mountPath": TOKEN_DIR, "readOnly": True}
    sources = spec["volumes"][1]["projected"]["sources"]
    paths = [
        sources[0]["serviceAccountToken"]["path"],
        sources[1]["configMap"]["items"][0]["path"],
        sources[2]["downwardAPI"]["items"][0]["path"],
    ]
    assert paths == ["token", "ca.crt", "namespace"]
    assert sidecar == {"name": "sidecar"}
    assert "ELASTICJOB_SERVICE_ACCOUNT_DIR" not in env_of(
        pod_of(a_job(simple()), 0, 0, IMAGE)["spec"]["containers"][0]
    )


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (["torchrun", "train.py"], []),
        (["torchrun", "--nproc-per-node=2", "train.py"], []),
        (["torchrun", "--standalone", "train.py"], ["--standalone"]),
        (["torchrun", "--rdzv-backend", "c10d", "train.py"], ["--rdzv-backend"]),
        (
            ["torchrun", "--rdzv_endpoint=h:1", "--nnodes=1:2", "t.py"],
            ["--rdzv_endpoint=h:1", "--nnodes=1:2"],
        ),
        (["torchrun", "--max-restarts=3", "--rdzv_id=a", "t.py"], ["--max-restarts=3", "--rdzv_id=a"]),
        (["sh", "-c", "exec torchrun --max_restarts 3 t.py"], ["--max_restarts"]),
        (["torchrun", "train.py", "--nnodes", "3"], []),
        (["accelerate", "launch", "--rdzv_backend", "k8s", "--max_restarts", "1000000", "t.py"], []),
        (["torchrun", "--rdzv-backend=k8s", "--max-restarts=1000000", "t.py"], []),
        (["torchrun", "--rdzv_backend=k8s", "--max_restarts=1000000", "t.py"], []),
        (["torchrun", "--rdzv-backend", "k8s", "--max-restarts", "1000000", "t.py"], []),
        (["sh", "-c", "exec torchrun --rdzv-backend k8s --max_restarts 3 t.py"], ["--max_restarts"]),
        (["torchrun", "--standalone"], ["--standalone"]),
    ],
)
def test_warnings_on_flags(command: list[str], flags: list[str]) -> None:
    found = warnings(a_job(simple(command=command[:1], args=command[1:])))
    assert len(found) == len(flags)
    for text, flag in zip(found, flags, strict=True):
        assert f"the flag {flag}," in text


def test_no_warnings_without_template() -> None:
    assert warnings(a_job(None)) == ()


SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"elasticjob.dev/job-name": "mnist"}},
}


@pytest.mark.parametrize(
    ("given", "spread"),
    [
        ({}, [SPREAD]),
        ({"topologySpreadConstraints": []}, []),
        ({"affinity": {"nodeAffinity": {"x": 1}}}, [SPREAD]),
        ({"topologySpreadConstraints": [{"maxSkew": 2}]}, [{"maxSkew": 2}]),
        ({"affinity": {"podAffinity": {"x": 1}}}, None),
        ({"affinity": {"podAntiAffinity": {"x": 1}}}, None),
        ({"nodeName": "a"}, None),
    ],
)
def test_pods_are_spread_over_nodes_where_the_template_says_nothing(
    given: dict[str, Any], spread: list[dict[str, Any]] | None
) -> None:
    template = simple()
    template["spec"].update(given)
    pod = pod_of(a_job(template), 0, 0, IMAGE)
    assert pod["spec"].get("topologySpreadConstraints") == spread


def test_nothing_is_avoided_unless_asked() -> None:
    pod = pod_of(a_job(simple()), 0, 0, IMAGE)
    assert "affinity" not in pod["spec"]
    assert "annotations" not in pod["metadata"]


def node_terms(pod: dict[str, Any]) -> Any:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]


def off(*nodes: str) -> list[dict[str, Any]]:
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]


def test_nodes_are_avoided() -> None:
    raw = pod_of(a_job(simple()), 0, 0, IMAGE, ("b", "c"))
    assert node_terms(raw) == [{"matchFields": off("b", "c")}]
    assert read_pod(raw).pod.avoids == ("b", "c"), "as the operator sees it"


def test_nodes_are_avoided_in_each_of_the_templates_alternatives() -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "xy"]
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    template = simple()
    template["spec"]["affinity"] = {
        "podAntiAffinity": {"x": 1},
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*zones, named, {}]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}],
        },
    }
    before = copy.deepcopy(template)
    pod = pod_of(a_job(template), 0, 0, IMAGE, ("b",))
    assert node_terms(pod) == [
        {**zones[0], "matchFields": off("b")},
        {**zones[1], "matchFields": off("b")},
        {"matchFields": [*named["matchFields"], *off("b")]},
        {},  # matches no node, and does not begin to
    ]
    affinity = pod["spec"]["affinity"]
    assert affinity["podAntiAffinity"] == {"x": 1}
    assert affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == [{"weight": 1}]
    assert template == before


def test_what_a_pod_avoids_is_the_operators_word_alone() -> None:
    """The template's own affinity, and an annotation that others set, is no exclusion that may be over."""
    template = simple()
    template["metadata"] = {"annotations": {"elasticjob.dev/avoid-nodes": "x", "mine": "1"}}
    template["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": off("y")}]
            }
        }
    }
    pod = pod_of(a_job(template), 0, 0, IMAGE)
    assert pod["metadata"]["annotations"] == {"mine": "1"}
    assert read_pod(pod).pod.avoids == ()


def test_pods_that_the_job_can_do_without_have_a_lower_priority() -> None:
    template = {
        "spec": {
            "containers": [{"name": "train", "image": "i"}],
            "priorityClassName": "high",
            "priority": 1000,
            "preemptionPolicy": "Never",
        }
    }

    def classes(job: Job) -> list[tuple[object, ...]]:
        specs = [pod_of(job, slot, 0, IMAGE)["spec"] for slot in range(3)]
        return [tuple(spec.get(key) for key in ("priorityClassName", "priority")) for spec in specs]

    spec = JobSpec(replicas=2, min_replicas=1, spares=1, template=template, extra_priority_class="low")
    assert classes(Job("ns", "mnist", "uid", 1, spec)) == [("high", 1000), ("low", None), ("low", None)]
    fixed = replace(spec, min_replicas=None)
    assert classes(Job("ns", "mnist", "uid", 1, fixed)) == [("high", 1000), ("high", 1000), ("low", None)]
    plain = replace(spec, extra_priority_class="")
    assert classes(Job("ns", "mnist", "uid", 1, plain)) == [("high", 1000)] * 3
