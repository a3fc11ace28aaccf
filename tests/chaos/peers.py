"""A chaos run without an operator: ``python -m tests.chaos.run --rounds peers``.

Bare pods with torchruns that form their rounds themselves; what makes pods in place of those that have ended
is played here. Every version of the round Lease is judged by P2 and P4 of docs/internals/peers.md, by I3 and
I4; the training must be that of the undisturbed run, and the run must end Complete.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import yaml

from devcluster.cluster import Cluster
from devcluster.nodeagent.client import NodeAgentError
from elasticjob.contract import names
from elasticjob.contract.fields import RecordError
from elasticjob.contract.reports import RoundReport
from elasticjob.peers.run import RUN_LABEL, STATE_ANNOTATION, round_lease
from elasticjob.peers.settled import Settled
from tests.chaos import faults, leftovers
from tests.chaos.faults import Begun, Impossible, Kind, Planned, Scene, Settings
from tests.chaos.heals import CALM_SECONDS, Heals
from tests.chaos.kinds import KINDS, may_end_round
from tests.chaos.timeline import Entry, Timeline
from tests.chaos.training import Training, compare
from tests.chaos.watcher import Sight, Watcher
from tests.e2e.job import ENVIRONMENT, OWN_ADDRESS, ROOT, JobRun

RIGHTS = ROOT / "examples" / "without-an-operator" / "rights.yaml"
NAME = "chaos"
START_SECONDS, END_SECONDS = 240.0, 900.0
NETNS = {"devcluster/network": "netns"}


class PeerChaosError(AssertionError):
    """What was promised did not happen; the text says all of it."""


@dataclass
class RoundChecker:
    """Sees every version of the round Lease, in order. ``violations`` are sentences; there must be none."""

    timeline: Timeline
    trained: Callable[[], bool]
    maximum: int
    violations: list[str] = field(default_factory=list)
    settled: Settled | None = None
    coordinator: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._highest = (-1, 0)
        self._nonces: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self._established: str | None = None
        self._full_since: float | None = None
        self._set_back: set[str] = set()
        self._saved: list[dict[str, str]] = []

    def see(self, sight: Sight) -> None:
        """A version of the round Lease."""
        with self._lock:
            metadata = sight.body["metadata"]
            if sight.deleted or metadata["resourceVersion"] in self._set_back:
                return
            found = metadata.get("annotations") or {}
            both = {key: found.get(key, "") for key in (names.ROUND_ANNOTATION, STATE_ANNOTATION)}
            try:
                settled = Settled.parse(*both.values())
            except RecordError as error:
                self._violated("P7", str(error))
                return
            self.coordinator = (sight.body["spec"].get("holderIdentity") or "").partition("_")[0]
            before, self.settled = self.settled, settled
            self._judge(before, settled)
            if not self._saved or self._saved[-1] != both:
                self._saved.append(both)

    def set_back(self, patch: Callable[[dict[str, str]], str]) -> None:
        """Write an older record by hand; ``patch`` returns the version. Raises Impossible."""
        with self._lock:
            now = self.settled.state.number if self.settled is not None else 0
            older = [b for b in self._saved if Settled.parse(*b.values()).state.number < now]
            if not older:
                raise Impossible("there is no older record yet")
            self._set_back.add(patch(older[-1]))

    @property
    def awaited(self) -> Settled | None:
        """The round that runs, while it is not known to be established."""
        with self._lock:
            s = self.settled
            return s if s is not None and s.state.active and s.state.nonce != self._established else None

    def see_established(self, settled: Settled) -> None:
        """The leader says so of this round."""
        with self._lock:
            if self.settled is None or self.settled.state.nonce != settled.state.nonce:
                return
            self._established = settled.state.nonce
            self.timeline.established(settled.state.number)
            full = len(settled.state.members) == self.maximum
            self._full_since = self.timeline.now() if full else None

    def calm_seconds(self) -> float:
        """For how long an established round has had all that it can have."""
        with self._lock:
            return 0.0 if self._full_since is None else self.timeline.now() - self._full_since

    def _judge(self, before: Settled | None, now: Settled) -> None:
        r = now.state
        if now.order < self._highest:
            self._violated("P2", f"the record went back from {self._highest} to {now.order}")
        self._highest = max(self._highest, now.order)
        if before is not None and before.state.active and (now.order > before.order):
            self._ended(before, now)
        if r.active and self._nonces.get(r.number) != r.nonce:
            if r.number in self._nonces:
                self._violated("P2", f"round {r.number} was published twice")
            self._nonces[r.number] = r.nonce
            self._published(now, before.state.cause if before is not None else "")
        if now.closed and (now.outcome != "Complete" or not self.trained()):
            self._violated("end", f"the run is {now.outcome} ({now.message}), trained: {self.trained()}")
        if not r.active or r.nonce != self._established:
            self._full_since = None

    def _published(self, now: Settled, cause: str) -> None:
        r = now.state
        if not now.minimum <= len(r.members) <= now.maximum:
            self._violated("I3", f"round {r.number} has {len(r.members)} members")
        for m in r.members:
            if self._ids.setdefault(m.id, r.number) != r.number:
                self._violated("I4", f"the id {m.id} is in the rounds {self._ids[m.id]} and {r.number}")
        self.timeline.published(r.number, cause or "Started", len(r.members), now.message)

    def _ended(self, before: Settled, now: Settled) -> None:
        number, cause = before.state.number, now.state.cause
        entry: Entry | None = self.timeline.broken(number)
        if entry is not None and entry.calm and not may_end(entry.name) and not now.closed:
            self._violated("P4", f"round {number} ended ({cause}) after {entry.name}: {entry.target}")

    def _violated(self, rule: str, text: str) -> None:
        self.violations.append(f"{rule}: {text}")
        self.timeline.note(f"VIOLATION {rule}: {text}")


class PeerScene(Scene):
    """What faults are done to: there is no operator and no status."""

    def __init__(self, cluster: Cluster, job: JobRun, checker: RoundChecker) -> None:
        self.cluster, self.job, self.rounds = cluster, job, checker
        self.hurt_nodes, self.hurt_pods = set(), set()

    label = RUN_LABEL

    @property
    def round_lease(self) -> str:
        """Its name."""
        return round_lease(self.job.name)

    @property
    def ranks(self) -> list[str]:
        """The members' pods."""
        settled = self.rounds.settled
        return [m.name for m in settled.state.members] if settled is not None else []


def kill_coordinator(scene: Scene, random: Random) -> Begun:
    """SIGKILL to torchrun of the coordinator."""
    del random
    assert isinstance(scene, PeerScene)
    pod = scene.rounds.coordinator
    if pod not in scene.members():
        raise Impossible(f"the coordinator {pod} is not a member that is alive")
    scene.job.kill_pod(pod)
    return Begun(f"{pod}{', which leads' if pod == scene.leader else ''}")


def kill_both(scene: Scene, random: Random) -> Begun:
    """SIGKILL to the coordinator and to rank 0, or to another if that is the same."""
    assert isinstance(scene, PeerScene)
    first = kill_coordinator(scene, random).target.partition(",")[0]
    others = [name for name in scene.ranks if name != first and name in scene.members()]
    if not others:
        raise Impossible("no other member is alive")
    scene.job.kill_pod(others[0])
    return Begun(f"{first} and {others[0]}")


def set_back(scene: Scene, random: Random) -> Begun:
    """By hand: an older record, as from a backup."""
    del random
    assert isinstance(scene, PeerScene)
    path = scene.lease_path(scene.round_lease)

    def patch(annotations: dict[str, str]) -> str:
        answer = scene.api("PATCH", path, {"metadata": {"annotations": annotations}})
        return str(answer.json()["metadata"]["resourceVersion"])

    scene.rounds.set_back(patch)
    return Begun("")


_NOT_HERE = ("kill the operator", "stop the operator", "set the round Lease back")
PEER_KINDS = (
    *(kind for kind in KINDS if not kind.cause and kind.name not in _NOT_HERE),
    Kind("kill the coordinator", kill_coordinator, ends_rounds=True),
    Kind("kill the coordinator and rank 0", kill_both, ends_rounds=True),
    Kind("set a run's Lease back", set_back, ends_rounds=False),
)
BY_NAME = {kind.name: kind for kind in PEER_KINDS}


def may_end(name: str) -> bool:
    """Whether the fault, or the end of one, of this name may end a round."""
    return BY_NAME[name].ends_rounds if name in BY_NAME else may_end_round(name)


class PodMaker:
    """Makes the pods of a run, and another for each that has ended, as a controller would."""

    def __init__(self, scene: PeerScene, template: dict[str, Any], count: int) -> None:
        self._scene, self._template = scene, template
        self._numbers = itertools.count()
        self._pods: dict[str, int] = {}
        self._left: set[int] = set(range(count))
        self.done: set[str] = set()

    def look(self) -> None:
        """Make what is missing, and delete what has failed. Without an answer the next look does it."""
        try:
            pods = self._scene.api("GET", f"pods?labelSelector={RUN_LABEL}={NAME}").json()["items"]
            there = {p["metadata"]["name"]: p["status"].get("phase") for p in pods}
            for name, slot in list(self._pods.items()):
                if there.get(name) == "Succeeded":
                    self.done.add(name)
                elif there.get(name, "Failed") == "Failed":
                    if name in there:
                        self._scene.api("DELETE", f"pods/{name}")
                    self._left.add(slot)
                    del self._pods[name]
            while self._left and not self.done:
                self._make(min(self._left))
        except Impossible:
            return

    def _make(self, slot: int) -> None:
        name = f"{NAME}-{next(self._numbers)}-{slot}"
        body = {**self._template, "metadata": {**self._template["metadata"], "name": name}}
        self._scene.api("POST", "pods", body)
        self._left.discard(slot)
        self._pods[name] = slot


@dataclass
class PeerChaos:
    """A run in one namespace of one cluster. ``play`` does all of it."""

    settings: Settings
    cluster: Cluster
    namespace: str
    say: Callable[[str], None] = print

    def play(self) -> None:
        """Run it. Raises PeerChaosError."""
        s, folder = self.settings, self.settings.folder
        planned = faults.plan(s.seed, s.seconds, s.kinds, s.gap)
        self.say(f"seed {s.seed}: {len(planned)} faults, folder {folder}")
        undisturbed = Training(folder / "undisturbed", s.epochs)
        undisturbed.run_undisturbed()
        self._training = Training(folder / "disturbed", s.epochs)
        self._training.pace(on=True)
        self._timeline = Timeline(self.say)
        self._checker = RoundChecker(self._timeline, lambda: self._training.finished, s.replicas)
        self._scene = PeerScene(
            self.cluster, JobRun(self.cluster, self.namespace, folder, NAME), self._checker
        )
        self._heals = Heals(self._timeline, self.say)
        self._grant()
        self._maker = PodMaker(self._scene, self._pod(), s.replicas)
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        self._watcher = Watcher(self.cluster, leases, round_lease(NAME), self._checker.see)
        wrong: list[str] = []
        try:
            self._train(planned)
            wrong = compare(self._training, undisturbed)
            self._leave_nothing(wrong)
        finally:
            self._watcher.close()
            self._heals.run_all()
            leftovers.keep_logs(self.cluster, self.namespace, folder)
            self.say(self._timeline.table())
        if wrong := wrong + self._checker.violations:
            raise PeerChaosError("\n".join([f"seed {s.seed}, see {folder}:", *wrong]))
        redone = len(self._training.log()) - self._training.steps
        finals = [run.result()["final_loss"] for run in (self._training, undisturbed)]
        self.say(
            f"{self._training.steps} steps, and {redone} redone from a checkpoint; final losses "
            f"{finals[0]:.6f} and {finals[1]:.6f}; last round {self._number()}"
        )

    @property
    def faults_done(self) -> Counter[str]:
        """How many of each kind were not left out."""
        return Counter(entry.name for entry in self._timeline.entries if entry.name in BY_NAME)

    # -- its objects ---------------------------------------------------------------------------------------

    def _grant(self) -> None:
        for manifest in yaml.safe_load_all(RIGHTS.read_text()):
            for subject in manifest.get("subjects", ()):
                subject["namespace"] = self.namespace
            self.cluster.kubectl("-n", self.namespace, "apply", "-f", "-", input=yaml.safe_dump(manifest))

    def _pod(self) -> dict[str, Any]:
        s = self.settings
        options = "rounds=peers,last_call_timeout=5,heartbeat_timeout=3,establish_timeout=8,worker_stop=5"
        own_network = os.geteuid() == 0
        command = [
            *("torchrun", f"--nnodes={s.minimum}:{s.replicas}", "--rdzv-backend=k8s"),
            *(f"--rdzv-endpoint={NAME}", f"--rdzv-id={uuid.uuid4()}", "--max-restarts=1000000"),
            f"--rdzv-conf={options},stall_timeout={faults.STALL_SECONDS}",
        ]
        container = {
            "name": "train",
            "image": "torchrun",
            "command": [*command, *self._training.arguments()],
            "env": ENVIRONMENT if own_network else [*ENVIRONMENT, OWN_ADDRESS],
        }
        return {
            "metadata": {"labels": {RUN_LABEL: NAME}, "annotations": NETNS if own_network else {}},
            "spec": {
                "serviceAccountName": "torchrun-peers",
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 5,
                "containers": [container],
            },
        }

    # -- its course ----------------------------------------------------------------------------------------

    def _train(self, planned: list[Planned]) -> None:
        self._until(lambda: self._training.done() > 5, START_SECONDS, "the first steps")
        began = self._timeline.now()
        for one in planned:
            self._pass_time(began + one.at)
            self._do(one)
        self._pass_time(began + self.settings.seconds)
        while self._heals:
            self._pass_time(self._timeline.now() + 0.2)
        self._timeline.note(f"the faults are over; step {self._training.done()} of {self._training.steps}")
        self._training.pace(on=False)
        self._until(lambda: self._closed(), END_SECONDS, "the run is over")
        self._timeline.note(f"the run is over in round {self._number()}")

    def _number(self) -> int:
        settled = self._checker.settled
        return settled.state.number if settled is not None else 0

    def _closed(self) -> bool:
        return self._checker.settled is not None and self._checker.settled.closed

    def _do(self, one: Planned) -> None:
        calm = self._heals.over and self._checker.calm_seconds() > CALM_SECONDS
        entry = self._timeline.fault(one.kind.name, "", calm)
        try:
            begun = one.kind.begin(self._scene, Random(one.seed))
        except (Impossible, NodeAgentError) as error:
            self._timeline.skip(entry, str(error))
            return
        entry.target = begun.target
        well = ", all was well" if calm else ""
        self._timeline.note(f"      done{well}, step {self._training.done()}: {begun.target}")
        if begun.heal is not None:
            self._heals.add(begun.heal)

    def _pass_time(self, at: float) -> None:
        """Heal what is due, make pods, stop at the first violation."""
        looked = -math.inf
        while (left := at - self._timeline.now()) > 0:
            if self._heals.due is not None:
                self._heals.run(self._heals.take(), calm=False)
            self._stop_if_wrong()
            if self._timeline.now() - looked > 1.0:
                looked = self._timeline.now()
                self._maker.look()
                self._ask_leader()
            time.sleep(min(0.1, left))

    def _ask_leader(self) -> None:
        """Its Lease says whether the round is established; asked once a second."""
        settled = self._checker.awaited
        if settled is None or settled.state.leader is None:
            return
        try:
            answer = self._scene.api("GET", self._scene.lease_path(settled.state.leader.name))
            annotations = answer.json()["metadata"].get("annotations") or {}
            report = RoundReport.parse(annotations.get(names.REPORT_ANNOTATION, ""))
        except (Impossible, RecordError):
            return
        if report.established and report.nonce == settled.state.nonce:
            self._checker.see_established(settled)

    def _until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = self._timeline.now() + seconds
        while not done():
            if self._timeline.now() > deadline:
                raise PeerChaosError(f"not within {seconds:.0f} s: {what}\n{self._checker.settled}")
            self._pass_time(self._timeline.now() + 0.3)

    def _stop_if_wrong(self) -> None:
        self._watcher.check()
        if self._checker.violations:
            raise PeerChaosError("\n".join([f"seed {self.settings.seed}:", *self._checker.violations]))

    def _leave_nothing(self, wrong: list[str]) -> None:
        """No process is left when the run is over, and no Lease but the run's own without its pods."""
        api, namespace, folder = self.cluster.api, self.namespace, self._training.folder
        wrong += leftovers.stay(lambda: leftovers.processes(namespace, folder), "processes")
        self.cluster.kubectl("-n", namespace, "delete", "pods", "-l", f"{RUN_LABEL}={NAME}", "--force")

        def leases() -> list[str]:
            found = leftovers.leases_of_nobody(api, namespace, "")
            return [name for name in found if name != round_lease(NAME)]

        wrong += leftovers.stay(leases, "Leases of nobody")
