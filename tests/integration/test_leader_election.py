"""Two operators as processes: the leader is killed, frozen, cut off, ended; the other takes over.

Each has a service account of its own, so that the audit log says who has written what.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.ports import PortClaims
from devcluster.wait import wait_for
from tests import operator_account

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

CRD = Path(__file__).parents[2] / "crds" / "elasticjobs.elasticjob.dev.yaml"
PLAIN = "elasticjob_operator"
FREEZING = "tests.integration.freezing_operator"
SHORT = ("3s", "2s", "400ms")
DEFAULT = ("15s", "10s", "2s")
LONG = ("10m", "9m", "400ms")
DEADLINE = 60.0
WRITES = ("create", "update", "patch", "delete", "deletecollection")
ELECTION = "elasticjob-operator"


class Operator:
    """One process, with an identity of its own towards the API server."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        timing: Sequence[str],
        module: str = PLAIN,
        server: str | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        cluster, namespace = scene.cluster, scene.namespace
        self.user = f"system:serviceaccount:{namespace}:{name}"
        config = operator_account.further(cluster, namespace, name, server)
        self.port = scene.ports.take()
        self.log = scene.folder / f"{name}.log"
        duration, deadline, period = timing
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", module, "--namespace", namespace),
                    *("--leader-elect", f"--leader-elect-resource-namespace={namespace}"),
                    f"--leader-elect-lease-duration={duration}",
                    f"--leader-elect-renew-deadline={deadline}",
                    f"--leader-elect-retry-period={period}",
                    f"--liveness=http://127.0.0.1:{self.port}/healthz",
                ],
                env={
                    **os.environ,
                    **(environment or {}),
                    "KUBECONFIG": str(config),
                    "POD_NAME": name,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def election(self) -> dict[str, Any]:
        """What the probe says of it; nothing while there is no answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=2) as answer:
                health = json.loads(answer.read())["health"]
        except (OSError, KeyError):
            return {}
        found: dict[str, Any] = health.get("election", {}) if isinstance(health, dict) else {}
        return found

    def leads(self) -> bool:
        """By what it says: kopf asks for the probe's answer anew only every 10 s."""
        said = [line for line in self.log.read_text().splitlines() if "leading" in line]
        return bool(said) and "leading, as" in said[-1]

    def stands_by(self, leader: str) -> bool:
        """Whether it knows that another leads."""
        known = [line for line in self.log.read_text().splitlines() if "the leader is" in line]
        return not self.leads() and bool(known) and f"the leader is {leader}_" in known[-1]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def frozen(self) -> bool:
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=10)


class Scene:
    """A namespace with a job whose pods wait for a node that does not come, so that only operators act."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.operators: list[Operator] = []
        self.ports = PortClaims()

    def start(self, name: str, timing: Sequence[str] = SHORT, **how: Any) -> Operator:
        operator = Operator(self, name, timing, **how)
        self.operators.append(operator)
        return operator

    def pair(self, timing: Sequence[str] = SHORT, **how: Any) -> tuple[Operator, Operator]:
        """Two of them, the first of which leads."""
        first = self.start("first", timing, **how)
        wait_for(first.leads, DEADLINE, "the first leads", interval=0.1)
        second = self.start("second", timing)
        wait_for(lambda: second.stands_by("first"), DEADLINE, "the second stands by", interval=0.1)
        return first, second

    def apply(self, replicas: int) -> None:
        container = {"name": "main", "image": "none", "command": ["torchrun", "--nnodes=7", "train.py"]}
        template = {"spec": {"containers": [container], "nodeSelector": {"no": "node"}}}
        job = {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": "job", "namespace": self.namespace},
            "spec": {"replicas": replicas, "template": template},
        }
        self.cluster.kubectl("apply", "-f", "-", input=json.dumps(job))

    def get(self, what: str) -> list[dict[str, Any]]:
        answer = self.cluster.kubectl("-n", self.namespace, "get", what, "-o", "json")
        items: list[dict[str, Any]] = json.loads(answer.stdout)["items"]
        return items

    def pods(self) -> set[str]:
        return {p["metadata"]["name"] for p in self.get("pods") if "deletionTimestamp" not in p["metadata"]}

    def has_pods(self, count: int) -> None:
        wait_for(
            lambda: len(self.pods()) == count,
            DEADLINE,
            lambda: f"{count} pods, there are {self.pods()}",
            interval=0.1,
        )

    def warned(self) -> bool:
        """Each change of the spec says again that a flag of the command does not count, by one Event."""
        return any(event["reason"] == "FlagOverrides" for event in self.get("events"))

    def everything(self) -> dict[str, str]:
        """The version of all that an operator writes, but for the Lease of the election."""
        found = {}
        for kind in ("pods", "elasticjobs", "leases", "roles", "rolebindings", "serviceaccounts", "events"):
            for item in self.get(kind):
                meta = item["metadata"]
                if meta["name"] != ELECTION and item.get("source", {}).get("component") in (None, ELECTION):
                    found[f"{kind}/{meta['name']}"] = meta["resourceVersion"]
        return found

    def changed(self, before: dict[str, str]) -> set[str]:
        """What is there, or not any more, or otherwise than before; named as in ``writes``."""
        return {name for name, _ in self.everything().items() ^ before.items()}

    def writes(self, operator: Operator, election: bool = False) -> list[tuple[str, str, int]]:
        """What it has asked the API server to write: verb, object, answer. Without the election's Lease."""
        found = []
        for line in self.cluster.audit_log.read_text().splitlines():
            event = json.loads(line)
            if event["user"].get("username") != operator.user or event["verb"] not in WRITES:
                continue
            about = event["objectRef"]
            name = "/".join(about[k] for k in ("resource", "name") if about.get(k))
            mine = about["resource"] == "leases" and about.get("name") in (ELECTION, None)
            if mine == election:
                found.append((event["verb"], name, int(event.get("responseStatus", {}).get("code", 0))))
        return found

    def lease(self) -> dict[str, Any]:
        answer = self.cluster.kubectl("-n", self.namespace, "get", "lease", ELECTION, "-o", "json")
        spec: dict[str, Any] = json.loads(answer.stdout)["spec"]
        return spec

    def renewals(self, count: int) -> None:
        """Let the leader, whoever it is, go on so long."""
        for _ in range(count):
            before = self.lease()["renewTime"]
            wait_for(lambda: self.lease()["renewTime"] != before, DEADLINE, "a renewal", interval=0.1)  # noqa: B023


@pytest.fixture
def scene(devcluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    crd.install(devcluster, CRD)
    made = Scene(devcluster, namespace, tmp_path)
    try:
        yield made
    finally:
        for operator in made.operators:
            operator.end()
            print(f"--- {operator.name}\n{operator.log.read_text()[-4000:]}")
        made.ports.release()


@contextmanager
def took(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.2f} s")


def test_the_leader_is_killed(scene: Scene) -> None:
    first, second = scene.pair()
    scene.apply(2)
    scene.has_pods(2)
    assert scene.writes(second) == []
    first.signal(signal.SIGKILL)
    first.process.wait(timeout=10)
    scene.apply(3)
    scene.has_pods(3)
    assert second.leads()
    assert ("create", "pods/job-2-0", 201) in scene.writes(second)
    wait_for(lambda: second.election().get("leading") is True, DEADLINE, "so says its probe", interval=0.2)
    assert second.election()["leader"].startswith("second_")
    assert scene.lease()["leaseTransitions"] == 1
    assert scene.pods() == {"job-0-0", "job-1-0", "job-2-0"}


def test_a_third_waits_for_its_turn_and_a_restarted_one_is_somebody_else(scene: Scene) -> None:
    first, second = scene.pair()
    first.end()
    third = scene.start("third")
    wait_for(second.leads, DEADLINE, "the second leads", interval=0.1)
    wait_for(lambda: third.stands_by("second"), DEADLINE, "the third stands by", interval=0.1)
    second.end()
    wait_for(third.leads, DEADLINE, "the third leads", interval=0.1)
    scene.apply(1)
    scene.has_pods(1)


CHANGES = {
    "PATCH elasticjobs/status": 3,
    "PATCH leases": 3,
    "PATCH roles": 3,
    "POST pods": 3,
    "PATCH events": 3,
    "DELETE pods": 1,
}
"""The number of replicas, changed from 2, that makes the leader write so."""


@pytest.mark.parametrize(
    ("write", "moment"),
    [
        *((write, "connection") for write in CHANGES),
        ("POST pods", "request"),
        ("PATCH elasticjobs/status", "request"),
    ],
)
def test_the_leader_is_frozen_before_a_write_and_thawed(scene: Scene, write: str, moment: str) -> None:
    """Deposed, it changes nothing."""
    gate = scene.folder / "freeze"
    environment = {"FREEZE_BEFORE": write, "FREEZE_WHEN": str(gate), "FREEZE_AT": moment}
    first, second = scene.pair(module=FREEZING, environment=environment)
    scene.apply(2)
    scene.has_pods(2)
    wait_for(lambda: scene.warned(), DEADLINE, "the Event about the flag", interval=0.1)
    scene.renewals(1)
    gate.touch()
    scene.apply(CHANGES[write])
    wait_for(first.frozen, DEADLINE, f"the first stands before {write}", interval=0.02)
    wait_for(second.leads, DEADLINE, "the second leads", interval=0.1)
    scene.has_pods(CHANGES[write])
    scene.renewals(3)
    before, by_first, by_second = scene.everything(), scene.writes(first), len(scene.writes(second))
    transitions = scene.lease()["leaseTransitions"]
    elections = len(scene.writes(first, election=True))

    first.signal(signal.SIGCONT)
    wait_for(lambda: first.stands_by("second"), DEADLINE, "the first stands by", interval=0.1)
    scene.renewals(5)
    assert scene.writes(first) == by_first
    assert scene.changed(before) <= {name for _, name, _ in scene.writes(second)[by_second:]}
    # It may have been about to renew; what it asks is refused.
    assert {code for _, _, code in scene.writes(first, election=True)[elections:]} <= {409}
    assert scene.lease()["leaseTransitions"] == transitions

    second.end()
    scene.apply(2)
    scene.has_pods(2)
    assert first.leads()


def test_the_leader_is_cut_off(scene: Scene) -> None:
    """Its link loses nothing: what was under way arrives late, and is refused."""
    proxy = scene.cluster.proxy()
    first, second = scene.pair(server=proxy.server)
    scene.apply(2)
    scene.has_pods(2)
    scene.renewals(1)
    proxy.cut()
    wait_for(lambda: not first.leads(), DEADLINE, "the first has stepped down", interval=0.05)
    wait_for(second.leads, DEADLINE, "the second leads", interval=0.1)
    scene.apply(3)
    scene.has_pods(3)
    scene.renewals(3)
    before, by_first, by_second = scene.everything(), scene.writes(first), len(scene.writes(second))
    proxy.restore()
    wait_for(lambda: first.stands_by("second"), DEADLINE, "the first stands by", interval=0.1)
    scene.renewals(5)
    assert scene.writes(first) == by_first
    assert scene.changed(before) <= {name for _, name, _ in scene.writes(second)[by_second:]}
    second.end()
    scene.apply(1)
    scene.has_pods(1)
    assert first.leads()


def test_a_leader_that_ends_hands_over_at_once(scene: Scene) -> None:
    """With a Lease that would last ten minutes."""
    first, second = scene.pair(LONG)
    scene.apply(2)
    scene.has_pods(2)
    first.signal(signal.SIGTERM)
    with took("from SIGTERM until the other leads"):
        wait_for(second.leads, DEADLINE, "the second leads", interval=0.02)
    assert first.process.wait(timeout=20) == 0
    scene.apply(3)
    scene.has_pods(3)


def test_a_takeover_with_the_default_durations(scene: Scene) -> None:
    """Within 15 s, since the last renewal is older than the death; see what is printed."""
    first, second = scene.pair(DEFAULT)
    scene.apply(2)
    scene.has_pods(2)
    scene.renewals(1)
    first.end()
    with took("from kill -9 until the other leads"):
        wait_for(second.leads, DEADLINE, "the second leads", interval=0.02)
    spec = scene.lease()
    assert spec["leaseDurationSeconds"] == 15
    assert spec["holderIdentity"].startswith("second_")
