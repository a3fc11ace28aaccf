"""The failures, and the seeded plan of faults.

A plan is drawn before the run: which kind at which second, and a seed for the choices of each (target,
duration). Kinds come from a shuffled deck, each once before any comes again. So the same seed is the same
plan; the targets are the same as long as the same pods are alive.

A clock that jumps is not among them: all nodes share the machine's clock. Virtual time (``tests/simulation``)
is where clocks disagree.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from devcluster.api import Response
from devcluster.cluster import Cluster
from devcluster.nodeagent.client import NodeAgentError
from elasticjob.contract.names import JOB_LABEL, ROUND_ANNOTATION, round_lease
from elasticjob_operator.plan.state.status import JobStatus
from tests.chaos.checker import Checker
from tests.chaos.timeline import Timeline
from tests.chaos.training import PACE_SECONDS, STEPS_PER_EPOCH
from tests.e2e.job import SLOWED, JobRun, Operator

STALL_SECONDS = 6
"""``stall_timeout`` of the job: how long an agent may stand still."""
GAP_SECONDS = (10.0, 20.0)
_MERGE = "application/merge-patch+json"


class Impossible(Exception):
    """The fault can't be done at the moment; the text says why."""


@dataclass(frozen=True)
class Heal:
    """What ends a fault: ``seconds`` after its beginning."""

    seconds: float
    name: str
    run: Callable[[], None]


@dataclass(frozen=True)
class Begun:
    """A fault that has been done: to what, and how it ends if not by itself."""

    target: str
    heal: Heal | None = None


@dataclass
class Scene:
    """What faults are done to."""

    cluster: Cluster
    job: JobRun
    operator: Operator
    checker: Checker
    timeline: Timeline
    replicas: int
    minimum: int

    def __post_init__(self) -> None:
        self.hurt_nodes: set[str] = set()
        self.hurt_pods: set[str] = set()

    @property
    def status(self) -> JobStatus:
        """The newest that is known."""
        return self.checker.status

    label = JOB_LABEL

    @property
    def round_lease(self) -> str:
        """Its name."""
        return round_lease(self.job.name)

    @property
    def ranks(self) -> list[str]:
        """The pods of the round's members, in rank order."""
        return [m.pod_name for m in self.status.members()]

    @property
    def leader(self) -> str:
        """The pod of rank 0, "" if there is no round."""
        return next(iter(self.ranks), "")

    def alive(self) -> list[dict[str, Any]]:
        """Pods of the job that run, without a fault, by name."""
        pods = self.api("GET", f"pods?labelSelector={self.label}={self.job.name}").json()["items"]
        return sorted(
            (
                p
                for p in pods
                if p["status"].get("phase") == "Running"
                and "deletionTimestamp" not in p["metadata"]
                and p["spec"].get("nodeName") not in self.hurt_nodes
                and p["metadata"]["name"] not in self.hurt_pods
            ),
            key=lambda p: p["metadata"]["name"],
        )

    def members(self) -> list[str]:
        """Names of those pods that are in the round, in rank order."""
        names = {p["metadata"]["name"] for p in self.alive()}
        return [name for name in self.ranks if name in names]

    def member(self, random: Random) -> str:
        """One of them. Raises Impossible."""
        if not (names := self.members()):
            raise Impossible("no member is alive and well")
        return random.choice(names)

    def node(self, random: Random) -> str:
        """A node that has a member. Raises Impossible."""
        members = set(self.members())
        nodes = sorted({p["spec"]["nodeName"] for p in self.alive() if p["metadata"]["name"] in members})
        if not nodes or self.hurt_nodes:
            raise Impossible("a node is hurt already" if nodes else "no node has a member")
        node: str = random.choice(nodes)
        return node

    def api(self, method: str, path: str, body: object | None = None) -> Response:
        """A request about a core object of the namespace, or about any if the path begins with a slash.

        Raises Impossible if it is not answered well.
        """
        full = path if path.startswith("/") else f"/api/v1/namespaces/{self.job.namespace}/{path}"
        content_type = _MERGE if method == "PATCH" else "application/json"
        answer = self.cluster.api.request(method, full, body, content_type=content_type, timeout=20.0)
        if not answer.ok:
            raise Impossible(f"{method} {full}: {answer.status} {answer.text[:200]}")
        return answer

    def lease_path(self, name: str) -> str:
        """The path of a Lease of the namespace."""
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.job.namespace}/leases/{name}"


Begin = Callable[[Scene, Random], Begun]


@dataclass(frozen=True)
class Kind:
    """A kind of fault. ``ends_rounds``: whether it may. ``cause``: of a planned change, why the round ends
    where nothing else is wrong."""

    name: str
    begin: Begin
    ends_rounds: bool
    root: bool = False
    cause: str = ""


# -- processes and pods ------------------------------------------------------------------------------------


def kill_worker(scene: Scene, random: Random) -> Begun:
    """SIGKILL to one training process."""
    pod = scene.member(random)
    pids = scene.job.worker_pids(pod)
    if not pids:
        raise Impossible(f"{pod} has no worker process at the moment")
    os.kill(pids[0], signal.SIGKILL)
    return Begun(f"process {pids[0]} of {pod}")


def kill_agent(scene: Scene, random: Random) -> Begun:
    """SIGKILL to torchrun, and so to its container."""
    pod = scene.member(random)
    scene.job.kill_pod(pod)
    return Begun(pod)


def kill_leader(scene: Scene, random: Random) -> Begun:
    """SIGKILL to torchrun of rank 0."""
    del random
    leader = scene.leader
    if leader not in scene.members():
        raise Impossible(f"the leader {leader} is not alive")
    scene.job.kill_pod(leader)
    return Begun(leader)


def stop_agent(seconds: tuple[float, float]) -> Begin:
    """SIGSTOP to torchrun alone: its workers and the kernel's connections go on."""

    def begin(scene: Scene, random: Random) -> Begun:
        pod = scene.member(random)
        pid = scene.cluster.nodes.pids(scene.job.namespace, pod)[0]
        began = _start_time(pid)
        os.kill(pid, signal.SIGSTOP)
        scene.hurt_pods.add(pod)

        def thaw() -> None:
            scene.hurt_pods.discard(pod)
            if began is not None and _start_time(pid) == began:
                os.kill(pid, signal.SIGCONT)

        for_seconds = random.uniform(*seconds)
        role = ", which leads" if pod == scene.leader else ""
        return Begun(f"{pod}{role}, for {for_seconds:.1f} s", Heal(for_seconds, "agent goes on", thaw))

    return begin


def _start_time(pid: int) -> str | None:
    """Tells a process from a later one with the same id."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None


# -- nodes and networks ------------------------------------------------------------------------------------


def freeze_node(scene: Scene, random: Random) -> Begun:
    """All that runs on it stands still; its connections stay open."""
    node = scene.node(random)
    scene.cluster.nodes.freeze_node(node)
    return _node_comes_back(scene, random, node, "node thawed", scene.cluster.nodes.thaw_node)


def kill_node(scene: Scene, random: Random) -> Begun:
    """Its power is gone."""
    node = scene.node(random)
    scene.cluster.nodes.kill_node(node)
    return _node_comes_back(scene, random, node, "node back", scene.cluster.nodes.start_node)


def cut_node(scene: Scene, random: Random) -> Begun:
    """Neither it nor its pods reach others or the API server."""
    node = scene.node(random)
    scene.cluster.nodes.cut_node(node)
    return _node_comes_back(scene, random, node, "node's network back", scene.cluster.nodes.restore_node)


def _node_comes_back(
    scene: Scene, random: Random, node: str, name: str, restore: Callable[[str], None]
) -> Begun:
    scene.hurt_nodes.add(node)

    def heal() -> None:
        restore(node)
        scene.hurt_nodes.discard(node)

    seconds = random.uniform(8.0, 16.0)
    return Begun(f"{node}, for {seconds:.1f} s", Heal(seconds, name, heal))


def cut_pod(direction: Any) -> Begin:
    """Packets are lost: to the pod ("in"), from it ("out"), or both."""

    def begin(scene: Scene, random: Random) -> Begun:
        pod = scene.member(random)
        scene.cluster.nodes.cut_pod(scene.job.namespace, pod, direction)
        scene.hurt_pods.add(pod)

        def heal() -> None:
            scene.hurt_pods.discard(pod)
            with contextlib.suppress(NodeAgentError):  # the pod may be gone
                scene.cluster.nodes.restore_pod(scene.job.namespace, pod)

        seconds = random.uniform(8.0, 14.0)
        role = ", which leads" if pod == scene.leader else ""
        return Begun(f"{pod}{role}, for {seconds:.1f} s", Heal(seconds, "pod's network back", heal))

    return begin


# -- the operator and the control plane --------------------------------------------------------------------


def kill_operator(scene: Scene, random: Random) -> Begun:
    """SIGKILL; a new one starts after a moment."""
    scene.operator.kill()
    seconds = random.uniform(0.1, 6.0)
    return Begun(f"for {seconds:.1f} s", Heal(seconds, "operator back", scene.operator.restart))


def stop_operator(scene: Scene, random: Random) -> Begun:
    """SIGSTOP for some seconds."""
    process = scene.operator.process
    process.send_signal(signal.SIGSTOP)
    seconds = random.uniform(3.0, 8.0)
    return Begun(
        f"for {seconds:.1f} s",
        Heal(seconds, "operator goes on", lambda: process.send_signal(signal.SIGCONT)),
    )


def kill_api_server(scene: Scene, random: Random) -> Begun:
    """SIGKILL; a new one, with an empty watch cache, starts after a moment."""
    server = scene.cluster.component("apiserver")
    server.kill()
    seconds = random.uniform(0.5, 5.0)
    time.sleep(seconds)
    server.start()
    for name in ("scheduler", "controller-manager"):  # their own pauses of up to a minute are none of ours
        component = scene.cluster.component(name)
        component.kill()
        component.launch()
    return Begun(f"for {seconds:.1f} s")


def freeze_api_server(scene: Scene, random: Random) -> Begun:
    """SIGSTOP for 5 s."""
    del random
    server = scene.cluster.component("apiserver")
    server.freeze()
    try:
        time.sleep(5.0)
    finally:
        server.thaw()
    return Begun("for 5 s")


def restart_etcd(scene: Scene, random: Random) -> Begun:
    """SIGKILL, and at once a new one on the same data."""
    del random
    etcd = scene.cluster.component("etcd")
    etcd.kill()
    etcd.start()
    return Begun("")


def slow_writes(scene: Scene, random: Random) -> Begun:
    """Every write in the namespace takes seconds longer, for 10 s."""
    seconds = random.uniform(1.0, 4.0)
    stack = contextlib.ExitStack()
    try:
        stack.enter_context(scene.cluster.slow_writes(seconds, [scene.job.namespace], SLOWED))
    except (RuntimeError, TimeoutError) as error:
        raise Impossible(str(error)) from error
    return Begun(f"{seconds:.1f} s each, for 10 s", Heal(10.0, "writes quick again", stack.close))


# -- people ------------------------------------------------------------------------------------------------


def delete_round_lease(scene: Scene, random: Random) -> Begun:
    """By hand."""
    del random
    scene.api("DELETE", scene.lease_path(scene.round_lease))
    return Begun("")


def set_round_lease_back(scene: Scene, random: Random) -> Begun:
    """By hand: an older record, as from a backup."""
    del random
    if (text := scene.checker.older_record()) is None:
        raise Impossible("there is no older record yet")
    body = {"metadata": {"annotations": {ROUND_ANNOTATION: text}}}
    with scene.checker.tampering() as announce:
        answer = scene.api("PATCH", scene.lease_path(scene.round_lease), body)
        announce(answer.json()["metadata"]["resourceVersion"])
    return Begun(text[:110])


def delete_participant_lease(scene: Scene, random: Random) -> Begun:
    """By hand."""
    pod = scene.member(random)
    scene.api("DELETE", scene.lease_path(pod))
    role = ", which leads" if pod == scene.leader else ""
    return Begun(f"{pod}{role}")


@dataclass(frozen=True)
class Planned:
    """A fault to come: ``at`` seconds after the first round trains."""

    at: float
    kind: Kind
    seed: str

    def __str__(self) -> str:
        return f"{self.at:6.1f}  {self.kind.name}"


@dataclass(frozen=True)
class Settings:
    """What a run is made of."""

    seed: int
    seconds: float
    replicas: int
    minimum: int
    kinds: Sequence[Kind]
    folder: Path
    gap: tuple[float, float] = GAP_SECONDS
    warm: bool = False
    limit: float = 0.0
    """Where each planned change waits for the one before: for how many seconds at most all of them may
    take."""

    @property
    def gentle(self) -> bool:
        """Only planned changes, each after the one before: no step may be redone."""
        return all(kind.cause for kind in self.kinds)

    @property
    def epochs(self) -> int:
        """So many that they can't be over before the faults are."""
        return math.ceil((max(self.seconds, self.limit) + 60.0) / PACE_SECONDS / STEPS_PER_EPOCH)


def plan(
    seed: int, seconds: float, kinds: Sequence[Kind], gap: tuple[float, float] = GAP_SECONDS
) -> list[Planned]:
    """The faults of so many seconds."""
    random = Random(seed)
    found: list[Planned] = []
    deck: list[Kind] = []
    at = random.uniform(*gap) / 2
    while at < seconds:
        if not deck:
            deck = list(kinds)
            random.shuffle(deck)
        found.append(Planned(at, deck.pop(), f"{seed}:{len(found)}"))
        at += random.uniform(*gap)
    return found
