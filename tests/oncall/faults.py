"""The faults: each is made, and followed until whoever is called would look."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devcluster.cluster import Cluster
from tests.e2e.job import ENVIRONMENT, TORCHRUN, JobRun, Operator, apart

JOB = "resnet"
SOON = {"lastCallTimeoutSeconds": 2, "heartbeatTimeoutSeconds": 3, "initialLastCallTimeoutSeconds": 5}
"""Nobody reads the outputs to see how long the defaults are."""
NETNS = {"devcluster/network": "netns"}
WATCH_SECONDS = 8.0
"""How long a repeated event has been going on when it is looked at."""


@dataclass
class Case:
    """One job in a namespace of its own."""

    cluster: Cluster
    namespace: str
    folder: Path
    operator: Operator | None = None
    undo: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.job = JobRun(self.cluster, self.namespace, self.folder, JOB)
        self.folder.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("training.py"), self.folder / "train.py")

    def train(
        self, mode: str = "", command: list[str] | None = None, *, start: bool = True, **spec: Any
    ) -> None:
        """Apply the job and, with ``start``, wait for its first 20 steps."""
        (self.folder / "mode").write_text(mode)
        container = {
            "command": command or self.script(),
            "env": ENVIRONMENT,
            "resources": {"limits": {"memory": "8Gi"}},
        }
        self.job.create_job(container, **{"rendezvous": SOON, **spec})
        if start:
            self.steps(20)

    def script(self) -> list[str]:
        """The command that trains."""
        return [*TORCHRUN, str(self.folder / "train.py"), str(self.folder)]

    def steps(self, number: int) -> None:
        """Wait until it has been trained so far."""
        saved = self.folder / "checkpoint"
        self.job.wait_for(lambda: saved.exists() and int(saved.read_text()) >= number, f"step {number}")

    def round(self, number: int) -> None:
        """Wait until this round, or a later one, has made steps."""
        self.job.wait_for(
            lambda: self.job.round()["number"] >= number and "establishedTime" in self.job.round(),
            f"round {number} is established",
        )
        self.steps(int((self.folder / "checkpoint").read_text()) + 20)

    def says(self, words: str) -> None:
        """Wait until the condition Training says so."""
        self.job.wait_for(lambda: words in self.job.condition("Training").get("message", ""), words)

    def ended(self, reason: str) -> None:
        """Wait until the job has failed for this reason."""
        assert self.job.failed()["reason"] == reason

    def node_of(self, rank: int) -> str:
        """Where a member runs."""
        pod = self.job.member(rank)["podName"]
        found: str = self.job.pods()[pod]["spec"]["nodeName"]
        return found

    def make(self, kind: str, api: str, name: str, clusterwide: bool = False, **rest: Any) -> None:
        """Apply an object; what is not of the namespace is deleted at the end."""
        meta = {"name": name} | ({} if clusterwide else {"namespace": self.namespace})
        body = {"apiVersion": api, "kind": kind, "metadata": meta, **rest}
        self.cluster.apply(json.dumps(body))
        if clusterwide:
            self.undo.append(lambda: self.cluster.kubectl("delete", kind, name, check=False))


@dataclass(frozen=True)
class Fault:
    """``cause`` is the answer: what a reader must come to."""

    name: str
    cause: str
    make: Callable[[Case], None]
    operator: bool = True


def bug(case: Case) -> None:
    case.train("bug", failurePolicy={"application": {"maxRestarts": 2}})
    case.ended("ApplicationRestartsExhausted")


def missing_module(case: Case) -> None:
    words = " ".join(case.script())
    case.train(command=["sh", "-c", f"python -c 'import flash_attn' && {words}"], start=False)
    case.says("ended before it joined")


def plain_python(case: Case) -> None:
    case.train(command=["python", "-c", "print('trained alone')"], start=False)
    case.ended("NeverJoined")


def standalone(case: Case) -> None:
    case.train(command=["torchrun", "--standalone", *case.script()[1:]], start=False)
    case.says("has not joined")


def quota(case: Case) -> None:
    case.make("ResourceQuota", "v1", "team", spec={"hard": {"pods": "1"}})
    # The controller that counts does not run in devcluster.
    counted = json.dumps({"status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}})
    words = ["patch", "quota", "team", "--subresource=status", "--type=merge", "-p", counted]
    case.cluster.kubectl("-n", case.namespace, *words)
    case.train(start=False)
    case.says("exceeded quota")


def no_such_node(case: Case) -> None:
    case.train(start=False, pod={"nodeSelector": {"gpu": "h100"}})
    case.says("nodes are available")


def webhook_down(case: Case) -> None:
    webhook = {
        "name": "pods.policy.example.com",
        "clientConfig": {"service": {"name": "policy", "namespace": case.namespace, "path": "/check"}},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": case.namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    api = "admissionregistration.k8s.io/v1"
    case.make("ValidatingWebhookConfiguration", api, "policy", clusterwide=True, webhooks=[webhook])
    time.sleep(3)  # the API server reads it a moment later
    case.train(start=False)
    case.says("webhook")


def node_off(case: Case) -> None:
    case.train(pod=apart(case.job))
    _off(case, case.node_of(1))
    case.round(2)


def all_nodes_off(case: Case) -> None:
    case.train(pod=apart(case.job))
    for node in {case.node_of(0), case.node_of(1)}:
        _off(case, node)
    case.job.wait_for(
        lambda: case.job.condition("Training").get("reason") == "WaitingForFencing", "WaitingForFencing"
    )


def out_of_memory(case: Case) -> None:
    case.train()
    pod = case.job.member(1)["podName"]
    main = case.cluster.nodes.pids(case.namespace, pod)[0]
    case.cluster.nodes.run_out_of_memory(case.namespace, pod, "train", main)
    case.round(2)


def hang(case: Case) -> None:
    case.train("hang", failurePolicy={"hangTimeoutSeconds": 5})
    case.round(2)


def no_operator(case: Case) -> None:
    case.train(start=False)
    time.sleep(WATCH_SECONDS)


def operator_died(case: Case) -> None:
    case.train()
    assert case.operator is not None
    case.operator.kill()
    case.job.kill_pod(case.job.member(1)["podName"])
    time.sleep(2 * WATCH_SECONDS)


def preempted(case: Case) -> None:
    here = {
        "nodeSelector": {"kubernetes.io/hostname": case.cluster.node_names[0]},
        "resources": _half_a_node(case.cluster),
    }
    case.train(pod=here, minReplicas=1)
    case.make("PriorityClass", "scheduling.k8s.io/v1", "production", clusterwide=True, value=1000)
    server = {
        "priorityClassName": "production",
        "containers": [{"name": "main", "image": "any", "command": ["sleep", "600"]}],
        "terminationGracePeriodSeconds": 1,
        **here,
    }
    case.make("Pod", "v1", "inference-server", spec=server)
    case.round(2)


def scaled_to_and_fro(case: Case) -> None:
    case.train(minReplicas=1, maxReplicas=4, drainSeconds=0, scaling={"scaleUpDelaySeconds": 0})
    for number, replicas in enumerate([3, 1, 3, 1], start=2):
        case.job.scale(replicas)
        case.round(number)


def saves_nothing(case: Case) -> None:
    (case.folder / "checkpoint").write_text("0")
    case.train("saves nothing", start=False, failurePolicy={"maxRoundsWithoutProgress": 3, "application": {}})
    case.ended("NoProgress")


def path_cut(case: Case) -> None:
    case.train(annotations=NETNS, replicas=3)
    leader, member = (case.job.member(rank)["podName"] for rank in (0, 2))
    case.cluster.nodes.cut_path(case.namespace, leader, member)
    case.job.wait_for(lambda: case.job.round()["number"] > 1, "a round without it")
    case.round(2)


def suspended(case: Case) -> None:
    case.train()
    case.job.patch(suspend=True)
    case.job.wait_for(lambda: case.job.condition("Suspended").get("status") == "True", "Suspended")


def deadline(case: Case) -> None:
    case.train(activeDeadlineSeconds=30, drainSeconds=0)
    case.ended("DeadlineExceeded")


def foreign_role(case: Case) -> None:
    case.make("Role", "rbac.authorization.k8s.io/v1", f"{JOB}-elasticjob", rules=[])
    case.train(start=False)
    case.says("not owned by this job")


def deleted_again_and_again(case: Case) -> None:
    case.train(drainSeconds=0)
    for number in (2, 3, 4):
        case.cluster.kubectl("-n", case.namespace, "delete", "pod", case.job.member(1)["podName"])
        case.round(number)


def other_controller(case: Case) -> None:
    case.train(start=False, managedBy="kueue.x-k8s.io/multikueue")
    time.sleep(WATCH_SECONDS)


def other_scheduler(case: Case) -> None:
    case.train(start=False, pod={"schedulerName": "volcano"})
    case.says("not considered by any scheduler")


def upload_fails(case: Case) -> None:
    done = (
        f"python -c 'import time; time.sleep(5)'; echo 'upload: no such bucket' >&2; exit 7 # {case.folder}"
    )
    trains = f"{TORCHRUN[0]} --no-python sh -c 'sleep 5'"
    case.train(command=["sh", "-c", f"{trains} && {done}"], start=False, failurePolicy=_few(1))
    case.ended("ApplicationRestartsExhausted")


def no_room_to_grow(case: Case) -> None:
    case.train(pod={"resources": _half_a_node(case.cluster)}, minReplicas=2)
    case.job.scale(2 * len(case.cluster.node_names) + 2)
    case.says("nodes are available")


def a_bad_node(case: Case) -> None:
    """Whatever runs on one node dies there."""
    case.train(pod=apart(case.job))
    bad = case.node_of(1)
    for number in (2, 3, 4):
        on_it = [n for n, p in case.job.pods().items() if p["spec"].get("nodeName") == bad and _runs(p)]
        if on_it:
            case.job.kill_pod(on_it[0])
            case.round(number)


FAULTS = [
    Fault("bug", "The script: rank 1 raises ValueError, loss is nan at step 120, in every round", bug),
    Fault("missing-module", "The image (or command) lacks the Python module flash_attn", missing_module),
    Fault("plain-python", "The command is plain python, not torchrun: pods never join", plain_python),
    Fault("standalone", "torchrun has --standalone: it does not use the backend", standalone),
    Fault("quota", "The namespace's ResourceQuota allows one pod", quota),
    Fault("no-such-node", "The template's nodeSelector gpu=h100 matches no node", no_such_node),
    Fault("webhook-down", "An admission webhook cannot be reached; pods are refused", webhook_down),
    Fault("node-off", "One node has gone down; its pod was replaced on another, training goes on", node_off),
    Fault(
        "all-nodes-off", "All nodes of the round are down; fencing: the job waits for proof", all_nodes_off
    ),
    Fault("out-of-memory", "A training container ran out of its memory limit (OOMKilled)", out_of_memory),
    Fault("hang", "A worker hung at step 60; the round was restarted, stacks are in the logs", hang),
    Fault("no-operator", "No operator runs (or serves the namespace)", no_operator, operator=False),
    Fault("operator-died", "The operator is gone; a lost pod is therefore not replaced", operator_died),
    Fault("preempted", "A pod was preempted by inference-server, of higher priority", preempted),
    Fault("scaled", "A person or an autoscaler changes replicas again and again", scaled_to_and_fro),
    Fault("saves-nothing", "The script never resumes: every round begins at step 0 and dies", saves_nothing),
    Fault("path-cut", "The network path between one pod and the leader is cut", path_cut),
    Fault("suspended", "The job was suspended", suspended),
    Fault("deadline", "activeDeadlineSeconds is 30 and has passed", deadline),
    Fault("foreign-role", "A Role of another owner has the name that the job needs", foreign_role),
    Fault("deleted", "A person or program deletes the job's pods again and again", deleted_again_and_again),
    Fault("managed-by", "spec.managedBy gives the job to another controller", other_controller),
    Fault("scheduler", "schedulerName names a scheduler that does not run", other_scheduler),
    Fault("upload", "Training succeeded; the command after torchrun (upload) ends with 7", upload_fails),
    Fault("no-room", "The job was scaled beyond what the cluster holds; it trains with two", no_room_to_grow),
    Fault("bad-node", "Containers are killed again and again on the same node", a_bad_node),
]
BY_NAME = {fault.name: fault for fault in FAULTS}


def _runs(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _few(restarts: int) -> dict[str, Any]:
    return {"application": {"maxRestarts": restarts}}


def _off(case: Case, node: str) -> None:
    case.cluster.nodes.kill_node(node)
    case.undo.append(lambda: case.cluster.nodes.start_node(node))


def _half_a_node(cluster: Cluster) -> dict[str, Any]:
    node = cluster.read(f"/api/v1/nodes/{cluster.node_names[0]}")
    cpus = int(float(node["status"]["allocatable"]["cpu"]) * 0.45)
    return {"requests": {"cpu": str(cpus)}}
