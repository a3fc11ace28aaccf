"""What a kubelet writes of a pod, from its creation to its end, for pods with each kind of end.

RECORD=1 pytest -m nodes devcluster/tests/test_kubelet_statuses.py   # writes `recorded/` anew
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devcluster.access import ClusterAccess
from devcluster.wait import wait_for

RECORDED = Path(__file__).parent / "recorded"
IMAGE = "busybox:1.37"
_DEADLINE = 120.0
_INTERESTING_CONDITIONS = ("Initialized", "Ready", "ContainersReady", "DisruptionTarget")


def sh(script: str) -> list[str]:
    """A container's command."""
    return ["sh", "-c", script]


IGNORES_TERM = sh("trap '' TERM; while :; do sleep 0.2; done")
LIMITED = {"resources": {"limits": {"memory": "64Mi"}}}
ENDS_AT_TERM = sh("trap 'exit 0' TERM; while :; do sleep 0.2; done")


@dataclass(frozen=True)
class Case:
    """A pod, and what is done to it when it runs."""

    command: list[str]
    pod: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[Mapping[str, Any], ...] = ()
    """Further containers."""
    do: str = ""
    """What is done: `kill`, `delete`, `evict`, `power`; `oom main` and `oom other`, in which the kernel takes
    the container's first process, or the next one; `fill disk`, of the container, and `short of disk`, which
    the node is. `no power`: the node is off when the pod is made, and on again when the pod is deleted."""
    container: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the container."""
    at: str = ""
    """The init container that runs when it is done; empty: the pod is Running."""
    until: str = "ended"
    """What is waited for: `ended`, `gone`, or the name of a container that has ended."""


CASES: dict[str, Case] = {
    "succeeds": Case(sh("sleep 1")),
    "fails": Case(sh("sleep 1; exit 3")),
    "fails_and_has_said_why": Case(
        sh("echo the data is; sleep 1; echo not there; exit 3"),
        container={"terminationMessagePolicy": "FallbackToLogsOnError"},
    ),
    "is_killed": Case(IGNORES_TERM, do="kill"),
    "is_deleted": Case(ENDS_AT_TERM, do="delete", until="gone"),
    "is_deleted_and_ignores_it": Case(IGNORES_TERM, do="delete", until="gone"),
    "is_evicted_by_the_api": Case(ENDS_AT_TERM, do="evict", until="gone"),
    "init_container_fails": Case(
        sh("sleep 1"),
        {"initContainers": [{"name": "fetch", "image": IMAGE, "command": sh("sleep 1; exit 4")}]},
    ),
    "init_container_succeeds": Case(
        sh("sleep 1"),
        {"initContainers": [{"name": "fetch", "image": IMAGE, "command": sh("sleep 1")}]},
    ),
    "sidecar_is_ended_by_the_kubelet": Case(
        sh("sleep 2; exit 3"),
        {
            "initContainers": [
                {"name": "logs", "image": IMAGE, "command": ENDS_AT_TERM, "restartPolicy": "Always"}
            ]
        },
    ),
    "container_ends_beside_another": Case(
        sh("sleep 2; exit 3"),
        others=({"name": "logs", "image": IMAGE, "command": ENDS_AT_TERM},),
        until="main",
    ),
    "deadline_is_exceeded": Case(ENDS_AT_TERM, {"activeDeadlineSeconds": 3}),
    "is_out_of_memory": Case(IGNORES_TERM, do="oom main", container=LIMITED),
    "another_process_is_out_of_memory": Case(sh("sleep 1000; exit 3"), do="oom other", container=LIMITED),
    "uses_more_disk_than_its_limit": Case(
        IGNORES_TERM,
        do="fill disk",
        container={"resources": {"limits": {"ephemeral-storage": "20Mi"}}},
    ),
    "is_evicted_by_a_node_short_of_disk": Case(IGNORES_TERM, do="short of disk"),
    "node_loses_its_power": Case(IGNORES_TERM, do="power"),
    "node_loses_its_power_after_the_init_container": Case(
        IGNORES_TERM,
        {"initContainers": [{"name": "fetch", "image": IMAGE, "command": sh("sleep 1")}]},
        do="power",
    ),
    "node_loses_its_power_before_the_containers_start": Case(
        IGNORES_TERM,
        {"initContainers": [{"name": "fetch", "image": IMAGE, "command": IGNORES_TERM}]},
        do="power",
        at="fetch",
    ),
    "is_deleted_while_its_node_has_no_power": Case(IGNORES_TERM, do="no power", until="gone"),
    "is_deleted_with_an_init_container_while_its_node_has_no_power": Case(
        IGNORES_TERM,
        {"initContainers": [{"name": "fetch", "image": IMAGE, "command": IGNORES_TERM}]},
        do="no power",
        until="gone",
    ),
}
"""By name; each has a recording."""


def recorded(name: str) -> list[dict[str, Any]]:
    """What a kubelet has written of the pod of a case."""
    found: list[dict[str, Any]] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def recordings(name: str) -> list[list[dict[str, Any]]]:
    """All that kubelets have been seen to write of the pod of a case. ``NAME.also.json``: of an evicted pod
    a kubelet may not know the container any more."""
    return [recorded(path.name.removesuffix(".json")) for path in sorted(RECORDED.glob(f"{name}.*json"))]


def words(name: str) -> str:
    """Those in which a kubelet has told why it ended the pod of a case."""
    return str(next(seen["message"] for seen in reversed(recorded(name)) if "message" in seen))


def without_figures(written: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same without how much there was of something, which differs each time."""
    return [
        {**seen, "message": re.sub(r"\d+([KMG]i)?", "#", seen["message"])} if "message" in seen else seen
        for seen in written
    ]


def manifest(name: str, case: Case, node: str) -> dict[str, Any]:
    """The pod."""
    main = {"name": "main", "image": IMAGE, "command": case.command, **case.container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "containers": [main, *case.others],
            **case.pod,
        },
    }


def play(
    cluster: ClusterAccess, namespace: str, case: Case, node: str, act: Mapping[str, Callable[[str], None]]
) -> list[dict[str, Any]]:
    """Make the pod, do to it what the case says, and return all that was written of it, once each.

    ``act`` has what only this kind of cluster can do to the pod of a name.
    """
    name = "pod"
    path = f"/api/v1/namespaces/{namespace}/pods"
    version = cluster.read(path)["metadata"]["resourceVersion"]
    with _watched(cluster, f"{path}?watch=1&resourceVersion={version}") as written:
        if case.do == "no power":
            act["off"](name)
        cluster.apply(json.dumps(manifest(name, case, node)), namespace=namespace)
        if case.do == "no power":
            _delete(cluster, namespace, name)
            act["on"](name)
        elif case.do:
            wait_for(lambda: _is_running(cluster, path, name, case.at), _DEADLINE, "it runs")
            actions = {
                "delete": lambda name: _delete(cluster, namespace, name),
                "evict": lambda name: _evict(cluster, namespace, name),
                **act,
            }
            actions[case.do](name)
        wait_for(lambda: _is_over(cluster, path, name, case.until), _DEADLINE, f"the pod's end: {case.until}")
        # What is written of it until here is all of it, once its deletion is seen.
        cluster.kubectl(
            "-n", namespace, "delete", "pod", name, "--grace-period=0", "--force", "--ignore-not-found"
        )
        wait_for(lambda: {"gone": True} in written, _DEADLINE, "its deletion is seen")
    written = [seen for seen in written if not _is_being_made(seen)]
    cut = written.index({"gone": True}) + (1 if case.until == "gone" else 0)
    return [seen for seen in written[:cut] if case.until == "gone" or "deleting" not in seen]


def summary(status: Mapping[str, Any], deleting: bool) -> dict[str, Any]:
    """What is alike wherever it runs: neither times nor addresses, nor ids."""
    conditions = {
        one["type"]: " ".join(filter(None, (one["status"], one.get("reason"))))
        for one in status.get("conditions", ())
        if one["type"] in _INTERESTING_CONDITIONS
    }
    containers = {
        one["name"]: _state(one)
        for kind in ("initContainerStatuses", "containerStatuses")
        for one in status.get(kind, ())
    }
    found = {"phase": status.get("phase"), "reason": status.get("reason"), "message": status.get("message")}
    known = {name: value for name, value in found.items() if value}
    return {
        **known,
        **({"deleting": True} if deleting else {}),
        "conditions": conditions,
        "containers": containers,
    }


def _state(container: Mapping[str, Any]) -> str:
    ((kind, state),) = container["state"].items() or {("none", ())}
    if kind == "terminated":
        said = f": {state['message']}" if state.get("message") else ""
        return f"terminated {state['exitCode']} {state.get('reason', '')}".strip() + said
    if kind == "waiting":
        return f"waiting {state.get('reason', '')}".strip()
    return f"{kind}, ready" if container.get("ready") else str(kind)


def _is_being_made(seen: Mapping[str, Any]) -> bool:
    """Whether some of the containers run, and others are being made: that is too short to be seen always."""
    states = list(seen.get("containers", {}).values())
    return "waiting ContainerCreating" in states and any(state.startswith("running") for state in states)


@contextlib.contextmanager
def _watched(cluster: ClusterAccess, path: str) -> Iterator[list[dict[str, Any]]]:
    """A list that grows with all that is written of pods, as `summary` has it, once each."""
    written: list[dict[str, Any]] = []
    command = [str(cluster.kubectl_binary), f"--kubeconfig={cluster.kubeconfig}", "get", "--raw", path]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def follow() -> None:
        assert watch.stdout is not None
        for line in watch.stdout:
            event = json.loads(line)
            pod = event["object"]
            seen = summary(pod.get("status", {}), "deletionTimestamp" in pod["metadata"])
            if event["type"] == "DELETED":
                written.append({"gone": True})
            elif not written or written[-1] != seen:
                written.append(seen)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield written
    finally:
        watch.terminate()
        watch.communicate()
        thread.join()


def _delete(cluster: ClusterAccess, namespace: str, name: str) -> None:
    cluster.kubectl("-n", namespace, "delete", "pod", name, "--wait=false")


def _evict(cluster: ClusterAccess, namespace: str, name: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(body))


def _is_running(cluster: ClusterAccess, path: str, name: str, init: str) -> bool:
    status = cluster.read(f"{path}/{name}").get("status", {})
    if not init:
        return bool(status.get("phase") == "Running")
    states = {one["name"]: one["state"] for one in status.get("initContainerStatuses", ())}
    return "running" in states.get(init, {})


def _is_over(cluster: ClusterAccess, path: str, name: str, until: str) -> bool:
    pod = cluster.read(f"{path}/{name}")
    if not pod or until == "gone":
        return not pod
    if until == "ended":
        return pod["status"]["phase"] in ("Succeeded", "Failed")
    states = {one["name"]: one["state"] for one in pod["status"].get("containerStatuses", ())}
    return "terminated" in states.get(until, {})
