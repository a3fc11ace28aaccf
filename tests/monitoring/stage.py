"""A devcluster, the real operator and a real Prometheus that scrapes it, with faults to make alerts fire.

Participants are played, as in the tests of a job's lifecycle: an alert needs no torch. Nobody waits half an
hour for one either: times and limits of the rules are shortened (`HURRIED`), and nothing else of them.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from tests.chart.helm import Helm, objects
from tests.e2e.job import ROOT, Operator
from tests.integration.lifecycle_job import PlayedJob
from tests.integration.test_excluded_nodes import running
from tests.integration.test_failing_writes import STATUS, failing
from tests.monitoring.prometheus import POD, Prometheus

HURRIED = {
    # Longer than a minute: so often does the API server send something.
    "ElasticJobWatchBlind": ("> 180", "> 75"),
    "ElasticJobPassesLate": ("> 30", "> 3"),
    "ElasticJobNoProgress": ("> 1800", "> 5"),
    "ElasticJobGoodputLow": ("> 600", "> 5"),
}
"""What these alerts have in place of a limit, in seconds."""
FOR = "2s"
"""In place of the time for which any alert must hold."""
DEADLINE = 420.0
"""Seconds after which a wait has hung; on a busy machine all of this may take minutes."""
NAMESPACE = "team"
ZONE = "zone-1"
_SOON = {"lastCallTimeoutSeconds": 1, "rejoinTimeoutSeconds": 5, "initialLastCallTimeoutSeconds": 5}


def rendered(folder: Path, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of the chart with these values below ``metrics``."""
    return objects(Helm(folder).template({"metrics": asked}))


def hurried(rules: dict[str, Any]) -> dict[str, Any]:
    """The rules with the shorter times."""
    made = copy.deepcopy(rules)
    every = [rule for group in made["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in every} >= set(HURRIED)
    for rule in every:
        if "for" in rule:
            rule["for"] = FOR
        was, becomes = HURRIED.get(rule["alert"], ("", ""))
        assert was in rule["expr"], rule["alert"]
        rule["expr"] = rule["expr"].replace(was, becomes) if was else rule["expr"]
    return made


class Job(PlayedJob):
    """One of a pod or more, with the patience of this place."""

    deadline = DEADLINE

    def train(self, node: str, pods: int = 1, **spec: Any) -> None:
        """Begin round 1, on a node if one is named."""
        selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
        self.apply(pod=selector, replicas=pods, **{"minReplicas": 1, "rendezvous": _SOON, **spec})
        names = [f"{self.name}-{slot}-0" for slot in range(pods)]
        self.runs(*names)
        self.join(*names)
        self.round(1)

    def lose(self, pod: str) -> None:
        """Its container is killed."""
        assert isinstance(self.cluster, Cluster)
        self.cluster.nodes.kill_container(self.namespace, pod)

    def goes_on(self, pod: str, number: int) -> None:
        """The next pod of a job of one joins, and this round begins."""
        running(self, pod)
        self.join(pod)
        self.round(number)


class Stage:
    """See the module. ``alerts`` are the names of the rules; without ``hurry`` these are the chart's as they
    are."""

    def __init__(self, cluster: Cluster, folder: Path, hurry: bool = True) -> None:
        self.cluster, self.folder = cluster, folder
        self.began = time.time()
        self.nodes = cluster.node_names
        self.jobs: dict[str, Job] = {}
        crd.install(cluster, ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
        cluster.kubectl("create", "namespace", NAMESPACE)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        wait_for(lambda: cluster.api.is_ok(account), DEADLINE, "the namespace's account")
        for node in self.nodes:
            cluster.kubectl("label", "node", node, f"topology.kubernetes.io/zone={ZONE}")
        port = cluster.claim_port()
        flags = [f"--health-probe-bind-address=127.0.0.1:{port}"]
        self.operator = Operator(cluster, NAMESPACE, folder / "operator.log", flags=flags)
        made = rendered(folder / "helm", {"prometheusRule": {"enabled": True}})
        (rule,) = (one for one in made if one["kind"] == "PrometheusRule")
        self.alerts: list[str] = [r["alert"] for group in rule["spec"]["groups"] for r in group["rules"]]
        rules = hurried(rule["spec"]) if hurry else rule["spec"]
        self.prometheus = Prometheus(folder / "prometheus", cluster.claim_port(), {POD: port}, rules)
        self.leads()

    def stop(self) -> None:
        """End what was started, but for the cluster."""
        self.prometheus.stop()
        self.operator.stop()

    def job(self, name: str) -> Job:
        """A job of that name."""
        return self.jobs.setdefault(name, Job(self.cluster, NAMESPACE, name))

    def leads(self) -> None:
        """Wait until Prometheus has it from the operator that it leads."""
        query = "max(elasticjob_leading) == 1"
        wait_for(lambda: self.prometheus.query(query), DEADLINE, "the operator leads", interval=0.5)

    def fires(self, alert: str, **labels: str) -> dict[str, Any]:
        """Wait until an alert with these labels fires; returns it."""

        def found() -> dict[str, Any] | None:
            every = self.prometheus.firing(alert)
            return next((a for a in every if labels.items() <= a["labels"].items()), None)

        return wait_for(found, DEADLINE, f"{alert} {labels} fires", interval=0.5)

    def ends(self, alert: str) -> None:
        """Wait until none of that name fires."""
        wait_for(lambda: not self.prometheus.firing(alert), DEADLINE, f"{alert} ends", interval=0.5)

    # -- faults --------------------------------------------------------------------------------------------

    def break_jobs(self) -> None:
        """Five jobs lose a pod: three on the first node, one on each of the others."""
        places = [self.nodes[0]] * 3 + self.nodes[1:3]
        limit = {"infrastructure": {"maxRestarts": 2, "windowSeconds": 3600}}
        for number, node in enumerate(places):
            self.job(f"loses-{number}").train(node, failurePolicy=limit)
        for number in range(len(places)):
            self.job(f"loses-{number}").lose(f"loses-{number}-0-0")

    def hang(self) -> None:
        """A job reports a step, and then no more."""
        job = self.job("hangs")
        job.train(self.nodes[0])
        job.steps(1, 100, 3.0)

    def repeat(self) -> None:
        """The job that hangs loses its pod, and begins again from its first step."""
        job = self.job("hangs")
        job.lose("hangs-0-0")
        job.goes_on("hangs-0-1", 2)
        job.steps(1, 5, 0.1)

    def end(self) -> None:
        """A job takes longer than it may."""
        job = self.job("ends")
        job.apply(replicas=1, activeDeadlineSeconds=1)
        job.is_true("Failed")

    @contextlib.contextmanager
    def refused(self, place: int = 0) -> Iterator[None]:
        """A webhook that is down has a say on the status of one job, which loses a pod on this node."""
        job = self.job("refused")
        job.train(self.nodes[place])
        job.kubectl("label", "ej", job.name, "bad=yes")
        probing = Job(self.cluster, NAMESPACE, job.name)
        with failing(probing, STATUS_OF_REFUSED):
            job.lose("refused-0-0")
            yield

    @contextlib.contextmanager
    def slow(self) -> Iterator[None]:
        """Each write of a status takes 10 s more, and a job loses a pod."""
        job = self.job("slow")
        job.train(self.nodes[0])
        with self.cluster.slow_writes(10.0, [NAMESPACE], ["elasticjobs/*"]):
            job.lose("slow-0-0")
            yield

    @contextlib.contextmanager
    def deaf(self) -> Iterator[None]:
        """The API server is frozen."""
        server = self.cluster.component("apiserver")
        server.freeze()
        try:
            yield
        finally:
            server.thaw()

    @contextlib.contextmanager
    def only(self, node: str) -> Iterator[None]:
        """New pods are placed on this node."""
        others = [other for other in self.nodes if other != node]
        self.cluster.kubectl("cordon", *others)
        yield
        self.cluster.kubectl("uncordon", *others)

    @contextlib.contextmanager
    def dark(self) -> Iterator[None]:
        """The node of a whole round has no power. New pods join on others."""
        node = self.nodes[2]
        job = self.job("dark")
        with self.only(node):
            job.train("", pods=2)
        self.cluster.nodes.kill_node(node)
        try:
            for pod in ("dark-0-1", "dark-1-1"):
                running(job, pod)
                job.join(pod)
            yield
        finally:
            self.cluster.nodes.start_node(node)

    @contextlib.contextmanager
    def leaderless(self) -> Iterator[None]:
        """The operator is killed."""
        self.operator.kill()
        try:
            yield
        finally:
            self.operator.restart()


def _of(name: str) -> Any:
    words = tuple(name if word == "job" else word for word in STATUS.probe)
    return type(STATUS)(STATUS.group, STATUS.resource, STATUS.operation, words, STATUS.body, STATUS.labels)


STATUS_OF_REFUSED = _of("refused")
