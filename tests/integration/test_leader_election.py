"""Two operators as processes: the leader is killed, frozen, cut off, ended; the other takes over."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from tests.chart.helm import Helm
from tests.integration.competing_operators import DEADLINE, NAME, Operator, Scene

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

CRD = Path(__file__).parents[2] / "crds" / "elasticjobs.elasticjob.dev.yaml"
LONG = ("10m", "9m", "400ms")


@pytest.fixture
def scene(devcluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    crd.install(devcluster, CRD)
    made = Scene(devcluster, namespace, tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def policies(
    devcluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Scene], None]]:
    """Put the chart's policy in force for a scene, instead of the one before.

    It stays until the last test is over: an API server that has seen the last such policy go enforces no
    later one (kubernetes/kubernetes#130887).
    """
    chart = Helm(tmp_path_factory.mktemp("helm"))
    applied = ""

    def apply(scene: Scene) -> None:
        nonlocal applied
        shown = (
            "--namespace",
            scene.namespace,
            "--kube-version=1.30.0",
            "--show-only",
            "templates/leader-policy.yaml",
            "--values",
            chart.values_file({}),
        )
        applied = chart.run("template", NAME, str(chart.chart), *shown).stdout
        scene.cluster.kubectl("apply", "-f", "-", input=applied)

    yield apply
    devcluster.kubectl("delete", "-f", "-", input=applied)


@pytest.fixture
def enforced(scene: Scene, policies: Callable[[Scene], None]) -> Scene:
    """With the chart's policy."""
    policies(scene)
    return scene


@contextmanager
def took(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.2f} s")


# shows: the leading operator is killed, frozen, cut off or ended
def test_the_leader_is_killed_and_comes_back_as_somebody_else(scene: Scene) -> None:
    first, second = scene.pair()
    scene.apply(2)
    scene.has_pods(2)
    assert scene.writes(second) == []
    first.signal(signal.SIGKILL)
    first.process.wait(timeout=60)
    first.restart()
    with took("from kill -9 until the other leads, 3 s"):
        wait_for(second.leads, DEADLINE, "the second leads", interval=0.02)
    scene.apply(3)
    scene.has_pods(3)
    assert ("create", "pods/job-2-0", 201) in scene.writes(second)
    assert scene.lease()["leaseTransitions"] == 1
    assert scene.pods() == {"job-0-0", "job-1-0", "job-2-0"}
    wait_for(lambda: first.stands_by(second), DEADLINE, "the first waits for its turn", interval=0.1)
    second.end()
    wait_for(first.leads, DEADLINE, "the first leads", interval=0.1)


CHANGES = {
    "PATCH roles": 3,  # the first time only: the names of a slot's pods stay in it
    "POST pods": 3,
    "PATCH events": 3,
    "PATCH elasticjobs/status": 3,
    "PATCH leases": 3,
    "DELETE pods": 1,
}
"""The number of replicas, changed from 2, that makes the leader write so."""
UNGUARDED = {"PATCH roles", "POST pods", "PATCH events"}
"""What only the policy stops; the others are for one version or UID as well."""
FEW = [
    ("PATCH roles", "gate"),
    ("PATCH elasticjobs/status", "connection"),
    ("POST pods", "gate"),
    ("PATCH events", "gate"),
]
ALL = [(w, moment) for moment in ("gate", "connection", "request") for w in list(CHANGES)[moment != "gate" :]]


@pytest.mark.parametrize(
    "cases", [FEW, pytest.param(ALL, marks=[pytest.mark.slow, pytest.mark.timeout(600)])], ids=["few", "all"]
)
# shows: the leading operator is killed, frozen, cut off or ended
# shows: a deposed operator writes
def test_the_leader_is_frozen_before_a_write_and_thawed(
    enforced: Scene, cases: list[tuple[str, str]]
) -> None:
    """Deposed, it changes nothing. Before its last look it asks for nothing; after that it is refused."""
    leader, other = enforced.pair()
    enforced.apply(2)
    enforced.has_pods(2)
    for write, moment in cases:
        late = freeze_and_thaw(enforced, leader, other, write, moment)
        if moment != "gate":
            assert late == [], (write, moment)
        elif write in UNGUARDED:
            assert late == [403], write
        else:
            assert len(late) == 1, write
            assert late[0] in (403, 404, 409, 422), write
        leader, other = other, leader


def freeze_and_thaw(scene: Scene, leader: Operator, other: Operator, write: str, moment: str) -> list[int]:
    """Freeze the leader before that write, let the other take over, thaw it. It must change nothing.

    Returns how the API server answered what it wrote then. The job has two replicas before and after, and
    the other leads in the end.
    """
    scene.has_told()
    leader.freeze_when.write_text(f"{write} {moment}")
    scene.apply(CHANGES[write])
    wait_for(leader.frozen, DEADLINE, f"{leader.name} stands before {write}", interval=0.02)
    wait_for(other.leads, DEADLINE, f"{other.name} leads", interval=0.1)
    scene.has_pods(CHANGES[write])
    by_leader, by_other, before = scene.writes(leader), len(scene.writes(other)), scene.everything()
    transitions = scene.lease()["leaseTransitions"]
    elections = len(scene.writes(leader, election=True))

    leader.signal(signal.SIGCONT)
    wait_for(lambda: leader.stands_by(other), DEADLINE, f"{leader.name} stands by", interval=0.1)
    scene.renewals(2)
    late = scene.writes(leader)[len(by_leader) :]
    print(f"{write} {moment}: {late}")
    # It may have been about to renew; what it asks is refused.
    assert {code for _, _, code in scene.writes(leader, election=True)[elections:]} <= {409}
    assert scene.lease()["leaseTransitions"] == transitions
    assert scene.changed(before) <= {name for _, name, _ in scene.writes(other)[by_other:]}
    scene.apply(2)
    scene.has_pods(2)
    scene.has_published(2)
    return [code for _, _, code in late]


# shows: the leading operator is killed, frozen, cut off or ended
def test_the_leader_is_cut_off(enforced: Scene) -> None:
    """Its link loses nothing: what was under way arrives late, and is refused."""
    proxy = enforced.cluster.proxy()
    first, second = enforced.pair(server=proxy.server)
    enforced.apply(2)
    enforced.has_pods(2)
    enforced.has_told()
    # Of all that it writes, nothing but the policy stops an Event.
    first.freeze_when.write_text("PATCH events gate")
    enforced.apply(3)
    wait_for(first.frozen, DEADLINE, "the first stands before an Event", interval=0.02)
    proxy.cut()
    first.signal(signal.SIGCONT)
    wait_for(lambda: not first.leads(), DEADLINE, "the first has stepped down", interval=0.05)
    wait_for(second.leads, DEADLINE, "the second leads", interval=0.1)
    enforced.has_pods(3)
    enforced.renewals(1)
    by_first, by_second, before = (
        len(enforced.writes(first)),
        len(enforced.writes(second)),
        enforced.everything(),
    )
    proxy.restore()
    wait_for(lambda: first.stands_by(second), DEADLINE, "the first stands by", interval=0.1)
    enforced.renewals(3)
    late = enforced.writes(first)[by_first:]
    print(f"late: {late}")
    assert {(verb, code) for verb, name, code in late if name.startswith("events/")} == {("patch", 403)}
    assert all(code >= 400 for _, _, code in late)
    assert enforced.changed(before) <= {name for _, name, _ in enforced.writes(second)[by_second:]}
    second.end()
    enforced.apply(1)
    enforced.has_pods(1)
    assert first.leads()


# shows: the leading operator is killed, frozen, cut off or ended
def test_a_leader_that_ends_hands_over_at_once(scene: Scene) -> None:
    """With a Lease that would last ten minutes."""
    first, second = scene.pair(LONG)
    scene.apply(2)
    scene.has_pods(2)
    first.signal(signal.SIGTERM)
    with took("from SIGTERM until the other leads"):
        wait_for(second.leads, DEADLINE, "the second leads", interval=0.02)
    assert first.process.wait(timeout=60) == 0
    scene.apply(3)
    scene.has_pods(3)


def test_a_takeover_with_the_default_durations(scene: Scene) -> None:
    """12 s after a renewal: the worst case is a death right after one. See what is printed."""
    first, second = scene.pair(())
    scene.apply(2)
    scene.has_pods(2)
    scene.renewals(1)
    first.end()
    with took("from kill -9 until the other leads"):
        wait_for(second.leads, DEADLINE, "the second leads", interval=0.02)
    spec = scene.lease()
    assert spec["leaseDurationSeconds"] == 12
    assert spec["holderIdentity"].startswith("second_")


FLOOD = """
import collections, sys, threading, urllib.error, urllib.request

statuses = collections.Counter()
over = threading.Event()

def ask():
    while not over.is_set():
        try:
            with urllib.request.urlopen(sys.argv[1], timeout=60) as answer:
                answer.read()
                statuses[answer.status] += 1
        except urllib.error.HTTPError as error:
            statuses[error.code] += 1
        except OSError:
            statuses["refused"] += 1

threads = [threading.Thread(target=ask) for _ in range(40)]
for thread in threads:
    thread.start()
print("asking", flush=True)
sys.stdin.read()
over.set()
for thread in threads:
    thread.join()
print(statuses[200], statuses[503], flush=True)
"""
JOBS = 100


def test_who_asks_for_metrics_takes_no_leadership(scene: Scene) -> None:
    """Another process, as any pod of the cluster may be one: forty requests at once, again and again."""
    first, second = scene.pair()
    container = {"name": "main", "image": "none"}
    jobs = [
        {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": f"job-{number}", "namespace": scene.namespace},
            "spec": {"replicas": 1, "suspend": True, "template": {"spec": {"containers": [container]}}},
        }
        for number in range(JOBS)
    ]
    listed = {"apiVersion": "v1", "kind": "List", "items": jobs}
    scene.cluster.kubectl("apply", "-f", "-", input=json.dumps(listed))
    wait_for(
        lambda: all("status" in job for job in scene.get("elasticjobs")), DEADLINE, "all jobs have a status"
    )
    transitions = scene.lease()["leaseTransitions"]
    stranger = subprocess.Popen(
        [sys.executable, "-c", FLOOD, first.address("/metrics")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "asking\n"
        scene.renewals(10)
        answers, refusals = map(int, stranger.communicate("", timeout=DEADLINE)[0].split())
    finally:
        stranger.kill()
        stranger.wait(timeout=60)
    print(f"{answers} answers, {refusals} refusals")
    assert answers
    assert refusals
    assert scene.lease()["leaseTransitions"] == transitions
    assert first.leads()
    assert second.stands_by(first)
