"""A pod's status from the states of its containers. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from devcluster.nodeagent.api import Object


@dataclass(frozen=True)
class Waiting:
    """Not running: not yet, or not again yet."""

    reason: str = "ContainerCreating"
    message: str = ""


@dataclass(frozen=True)
class Running:
    """Its main process lives."""

    started_at: str


@dataclass(frozen=True)
class Terminated:
    """Its main process has ended."""

    exit_code: int
    reason: str
    finished_at: str = ""
    started_at: str | None = None
    message: str = ""
    container_id: str = ""


State = Waiting | Running | Terminated
Kind = Literal["main", "init", "sidecar"]


@dataclass(frozen=True)
class Container:
    """What is known of one container; replaced as a whole with every change."""

    name: str
    image: str
    state: State = Waiting()
    last: Terminated | None = None
    restarts: int = 0
    ready: bool = False
    """What its readiness probe says; without one, whether it has started."""
    started: bool = False
    """Its startup probe has passed."""
    container_id: str = ""
    kind: Kind = "main"
    """A sidecar is an init container with restartPolicy Always: it starts in order and then keeps running."""

    def become(self, state: State) -> Container:
        """The same container in another state; one that does not run is neither started nor ready."""
        last = self.state if isinstance(self.state, Terminated) else self.last
        running = isinstance(state, Running)
        return replace(
            self, state=state, last=last, ready=running and self.ready, started=running and self.started
        )


@dataclass(frozen=True)
class Termination:
    """Why kubelet itself ends a pod, in kubelet's own words."""

    reason: str
    message: str
    admitted: bool = True
    """False for a pod that kubelet never let in: it has no containers and no conditions."""
    disrupts: bool = True
    """Whether the condition DisruptionTarget says so."""
    announced: bool = True
    """Whether the pod is said not to be ready while its containers are still ending."""


TOO_OLD = Termination(
    "DeadlineExceeded", "Pod was active on the node longer than the specified deadline", disrupts=False
)
SHUT_DOWN = Termination("Terminated", "Pod was terminated in response to imminent node shutdown.")
NOT_ADMITTED = Termination(
    "NodeShutdown", "Pod was rejected: Pod was rejected as the node is shutting down.", admitted=False
)
MISPLACED = Termination(
    "NodeAffinity",
    "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
    admitted=False,
)


UNLOCATED = "ContainerStatusUnknown"
"""The reason of a container's end of which nothing is known."""


def evicted(message: str) -> Termination:
    """The node is short of something, or the pod uses more than it may: that is no disruption."""
    return Termination("Evicted", message, disrupts=message.startswith("The node "), announced=False)


@dataclass(frozen=True)
class Addresses:
    """Where a pod is; None before it has a sandbox."""

    pod_ip: str | None
    host_ip: str


def terminated(state: Object) -> Terminated:
    """What a state in the API means."""
    return Terminated(
        state["exitCode"],
        state.get("reason", ""),
        state.get("finishedAt", ""),
        state.get("startedAt"),
        state.get("message", ""),
        state.get("containerID", ""),
    )


def succeeded(container: Container) -> bool:
    """It has ended with exit code 0."""
    return isinstance(container.state, Terminated) and container.state.exit_code == 0


def failed(container: Container) -> bool:
    """It has ended with another exit code."""
    return isinstance(container.state, Terminated) and container.state.exit_code != 0


def initialized(init: Sequence[Container]) -> bool:
    """Every init container has ended well or, a sidecar, has started."""
    return all(
        container.started or isinstance(container.state, Terminated)
        if container.kind == "sidecar"
        else succeeded(container)
        for container in init
    )


def unlocated(init: Sequence[Container], main: Sequence[Container]) -> list[str]:
    """Those containers of a pod that is over of which kubelet must know an end: of a pod that is initialized
    all main ones, and the init containers up to the last that has started, the first one always."""
    started = [index for index, one in enumerate(init) if not isinstance(one.state, Waiting) or one.last]
    known = [one.name for one in init[: max(started, default=0) + 1]]
    return known + ([one.name for one in main] if initialized(init) else [])


def phase(init: Sequence[Container], main: Sequence[Container], ended: bool) -> str:
    """The pod's phase. ``ended``: no container runs and none will be started again."""
    if ended:
        judged = [container for container in [*init, *main] if container.kind != "sidecar"]
        return "Succeeded" if all(succeeded(container) for container in judged) else "Failed"
    never_ran = any(isinstance(c.state, Waiting) and c.last is None for c in main)
    return "Pending" if never_ran or not initialized(init) else "Running"


def pod_status(
    pod: Object,
    addresses: Addresses,
    init: Sequence[Container],
    main: Sequence[Container],
    *,
    start_time: str,
    ended: bool,
    now: str,
    previous: Sequence[Object],
    termination: Termination | None = None,
) -> Object:
    """The status to publish.

    :param previous: the conditions published last: an unchanged one keeps its transition time
    :param termination: why kubelet ends the pod; it is told when all has ended, as kubelet does
    """
    told = {}
    state = phase(init, main, ended)
    if termination is not None and (ended or not termination.admitted):
        state = "Failed"
        told = {"reason": termination.reason, "message": termination.message}
        if not termination.admitted:
            return {"phase": state, **told}
    announced = termination is not None and termination.announced
    status: Object = {
        "observedGeneration": pod["metadata"].get("generation", 0),
        "phase": state,
        **told,
        "hostIP": addresses.host_ip,
        "hostIPs": [{"ip": addresses.host_ip}],
        "startTime": start_time,
        "conditions": _conditions(pod, addresses, init, main, state, now, previous, announced),
        "containerStatuses": [_container_status(container) for container in main],
    }
    if addresses.pod_ip is not None:
        status["podIP"] = addresses.pod_ip
        status["podIPs"] = [{"ip": addresses.pod_ip}]
    if told and termination is not None and termination.disrupts:
        status["conditions"].append(_disruption(told["message"], now, previous))
    if init:
        status["initContainerStatuses"] = [_container_status(container) for container in init]
    return status


def _closed_gates(pod: Object) -> tuple[str, str] | None:
    """The readiness gates that keep the pod from being ready, in kubelet's words."""
    given = {c["type"]: c["status"] for c in (pod.get("status") or {}).get("conditions") or ()}
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    closed = [gate for gate in gates if given.get(gate) != "True"]
    if not closed:
        return None
    missing = "; ".join(
        f'corresponding condition of pod readiness gate "{gate}" '
        + ("does not exist." if gate not in given else "is not True.")
        for gate in closed
    )
    return "ReadinessGatesNotReady", missing


def _conditions(
    pod: Object,
    addresses: Addresses,
    init: Sequence[Container],
    main: Sequence[Container],
    state: str,
    now: str,
    previous: Sequence[Object],
    terminated: bool,
) -> list[Object]:
    over = state in ("Succeeded", "Failed") and any(_has_run(one) for one in [*init, *main])
    sidecars = [container for container in init if container.kind == "sidecar"]
    unready = [container.name for container in [*sidecars, *main] if not container.ready]
    uninitialized = [] if initialized(init) else [c.name for c in init if not succeeded(c)]
    not_ready: tuple[str, str] | None = None
    if over or terminated:
        not_ready = ("PodCompleted" if state == "Succeeded" else "PodFailed", "")
    elif unready:
        not_ready = ("ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    not_initialized: tuple[str, str] | None = None
    if uninitialized:
        text = f"containers with incomplete status: [{' '.join(uninitialized)}]"
        not_initialized = ("ContainersNotInitialized", text)
    no_sandbox = None if addresses.pod_ip is not None and not over else ("", "")
    causes: Mapping[str, tuple[str, str] | None] = {
        "PodReadyToStartContainers": no_sandbox,
        "Initialized": not_initialized,
        "ContainersReady": not_ready,
        "Ready": not_ready or _closed_gates(pod),
    }
    conditions = [_condition(kind, cause, now, previous) for kind, cause in causes.items()]
    if state == "Succeeded":
        (own,) = (condition for condition in conditions if condition["type"] == "Initialized")
        own["reason"] = "PodCompleted"
    return conditions


def _has_run(container: Container) -> bool:
    if isinstance(container.state, Terminated):
        return container.state.reason != UNLOCATED
    return isinstance(container.state, Running) or container.last is not None


def _condition(kind: str, cause: tuple[str, str] | None, now: str, previous: Sequence[Object]) -> Object:
    """``cause``: reason and message why it is False; None if it is True."""
    verdict = "True" if cause is None else "False"
    before = next((c for c in previous if c["type"] == kind), None)
    unchanged = before is not None and before["status"] == verdict
    since = before["lastTransitionTime"] if unchanged and before is not None else now
    # Null removes what an earlier patch left there: conditions are merged by type.
    reason, message = cause if cause is not None else ("", "")
    return {
        "type": kind,
        "status": verdict,
        "lastTransitionTime": since,
        "reason": reason or None,
        "message": message or None,
    }


def _disruption(message: str, now: str, previous: Sequence[Object]) -> Object:
    before = next((c for c in previous if c["type"] == "DisruptionTarget"), None)
    return {
        "type": "DisruptionTarget",
        "status": "True",
        "lastTransitionTime": before["lastTransitionTime"] if before is not None else now,
        "reason": "TerminationByKubelet",
        "message": message,
    }


def _container_status(container: Container) -> Object:
    status: Object = {
        "name": container.name,
        "image": container.image,
        "imageID": f"devcluster://{container.image}",
        "restartCount": container.restarts,
        "ready": succeeded(container) if container.kind == "init" else container.ready,
        "started": container.started,
        "state": _state(container.state),
    }
    if container.container_id:
        status["containerID"] = container.container_id
    if container.last is not None:
        status["lastState"] = _state(container.last)
    return status


def _state(state: State) -> Object:
    if isinstance(state, Waiting):
        return {"waiting": _without_empty({"reason": state.reason, "message": state.message})}
    if isinstance(state, Running):
        return {"running": {"startedAt": state.started_at}}
    details = {
        "reason": state.reason,
        "message": state.message,
        "startedAt": state.started_at,
        "finishedAt": state.finished_at,
        "containerID": state.container_id,
    }
    return {"terminated": {"exitCode": state.exit_code, **_without_empty(details)}}


def _without_empty(fields: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in fields.items() if value}
