"""One chaos run from start to end; ``python -m tests.chaos.run --seed 7 --minutes 10 --pods 8``.

It succeeds only if the job completes, no invariant was violated, the training is that of the undisturbed run,
and nothing is left over. Everything that explains a failure is in the run's folder.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.nodeagent.client import NodeAgentError
from devcluster.wait import wait_for
from elasticjob.contract.names import round_lease
from elasticjob_operator.plan.changes.draining import HowStopped
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.evidence import APPLICATION, INFRASTRUCTURE
from tests.chaos import faults, kinds, leftovers, peers, planned
from tests.chaos.checker import Checker
from tests.chaos.faults import Heal, Impossible, Kind, Planned, Scene, Settings
from tests.chaos.heals import CALM_SECONDS, Heals
from tests.chaos.timeline import Timeline
from tests.chaos.training import Training, compare, redone_after
from tests.chaos.watcher import Sight, Watcher
from tests.e2e.job import ROOT, JobRun, Operator

START_SECONDS = 180.0
END_SECONDS = 900.0
LEASE_SECONDS = 60.0
"""For how long the round Lease may differ from the status; no fault keeps the operator away so long."""
CHANGE_SECONDS = 90.0
"""After a planned change all is not well until its round has ended, for at most so long: a notice may be
taken back before it was acted on."""
DRAIN_SECONDS = 30
NETNS = {"devcluster/network": "netns"}


class ChaosError(AssertionError):
    """What was promised did not happen; the text says all of it."""


@dataclass
class Chaos:
    """A run in one namespace of one cluster. ``play`` does all of it."""

    settings: Settings
    cluster: Cluster
    namespace: str
    say: Callable[[str], None] = print
    wrong: list[str] = field(default_factory=list)

    def play(self) -> None:
        """Run it. Raises ChaosError."""
        folder = self.settings.folder
        self._planned = faults.plan(
            self.settings.seed, self.settings.seconds, self.settings.kinds, self.settings.gap
        )
        self.say(f"seed {self.settings.seed}: {len(self._planned)} faults, folder {folder}")
        for one in self._planned:
            self.say(str(one))
        undisturbed = Training(folder / "undisturbed", self.settings.epochs)
        undisturbed.run_undisturbed()
        self._training = Training(folder / "disturbed", self.settings.epochs)
        self._training.pace(on=True)
        self._timeline = Timeline(self.say)
        self._checker = Checker(
            self._timeline, lambda: self._training.finished, lambda name: kinds.may_end_round(name)
        )
        self._heals = Heals(self._timeline, self.say)
        self._change: tuple[int, float] = (0, -math.inf)
        job = JobRun(self.cluster, self.namespace, self._training.folder)
        operator = Operator(self.cluster, self.namespace, folder / "operator.log")
        self._scene = Scene(
            *(self.cluster, job, operator, self._checker, self._timeline),
            *(self.settings.replicas, self.settings.minimum),
        )
        self._watchers = self._watch(job)
        try:
            self._train(job)
            self.wrong += compare(self._training, undisturbed)
            self.wrong += self._check_changes()
            self._leave_nothing(job)
        finally:
            for watcher in self._watchers:
                watcher.close()
            self._heals.run_all()
            operator.stop()
            leftovers.keep_logs(self.cluster, self.namespace, folder)
            self.say(self._timeline.table())
        self.wrong += self._checker.violations
        if self.wrong:
            raise ChaosError("\n".join([f"seed {self.settings.seed}, see {folder}:", *self.wrong]))
        log = self._training.log()
        self.say(self._changes())
        self.say(
            f"{self._training.steps} steps, and {self._redone} redone from a checkpoint; "
            f"final losses {self._training.result()['final_loss']:.6f} and "
            f"{undisturbed.result()['final_loss']:.6f}; {self._checker.status.current_round.number} rounds, "
            f"{len({line['round'] for line in log})} of them came to their first step"
        )

    @property
    def faults_done(self) -> Counter[str]:
        """How many of each kind were not left out."""
        return Counter(entry.name for entry in self._timeline.entries if entry.name in kinds.BY_NAME)

    @property
    def warm_starts(self) -> int:
        """How many workers have started warm, as the status says."""
        return sum(starts.warm for starts in self._checker.starts.values())

    @property
    def _redone(self) -> int:
        return len(self._training.log()) - self._training.steps

    def _check_changes(self) -> list[str]:
        """What planned changes and warm workers must not do, in sentences."""
        ends = self._checker.ends
        wrong = redone_after(
            self._training.log(), [n for n, end in ends.items() if end.drain == HowStopped.STOPPED]
        )
        if self.settings.gentle:
            if self._redone:
                wrong.append(f"{self._redone} steps were redone, with nothing but planned changes")
            for account in self._checker.status.accounts:
                if account.name in (APPLICATION, INFRASTRUCTURE) and account.charges:
                    wrong.append(f"nothing has failed, and {account.name} has {account.charges}")
        if self.settings.warm and not any(s.warm for s in self._checker.starts.values()):
            wrong.append("warm workers are on, and no worker was started warm")
        return wrong

    def _changes(self) -> str:
        """How the rounds were stopped that ended for planned changes, and how workers were started."""
        stopped = Counter(end.drain for end in self._checker.ends.values() if end.drain)
        text = "planned ends: " + (", ".join(f"{n} {how}" for how, n in stopped.most_common()) or "none")
        if self.settings.warm:
            starts = self._checker.starts.values()
            reasons = Counter(s.cold_reason for s in starts if s.cold)
            text += f"; workers: {sum(s.warm for s in starts)} warm, {sum(s.cold for s in starts)} cold"
            text += "".join(f"; {reason} ({n} rounds)" for reason, n in reasons.most_common(5))
        return text

    # -- the job -------------------------------------------------------------------------------------------

    def _train(self, job: JobRun) -> None:
        """From apply to Complete. Raises ChaosError."""
        options = f"--rdzv-conf=stall_timeout={faults.STALL_SECONDS},worker_stop=5"
        job.apply(
            ["torchrun", options, *self._training.arguments()],
            annotations=NETNS if os.geteuid() == 0 else {},
            replicas=self.settings.replicas,
            minReplicas=self.settings.minimum,
            drainSeconds=DRAIN_SECONDS,
            warmWorkers={"enabled": self.settings.warm},
            failurePolicy={"application": {}},
            rendezvous={
                "lastCallTimeoutSeconds": 5,
                "rejoinTimeoutSeconds": 20,
                "establishTimeoutSeconds": 8,
                "heartbeatTimeoutSeconds": 3,
            },
        )
        self._wait(lambda: self._training.done() > 5, START_SECONDS, "the first steps")
        began = self._timeline.now()
        end = began + max(self.settings.seconds, self.settings.limit)
        for one in self._planned:
            self._wait_until(began + one.at)
            self._settle(end)
            if self._timeline.now() < end:
                self._do(one)
        self._settle(end)
        self._wait_until(began + self.settings.seconds)
        while self._heals:
            self._wait_until(self._timeline.now() + 0.2)
        self._timeline.note(f"the faults are over; step {self._training.done()} of {self._training.steps}")
        self._training.pace(on=False)
        self._wait(lambda: self._checker.status.is_true("Complete"), END_SECONDS, "Complete")
        self._timeline.note(f"the job is Complete in round {self._checker.status.current_round.number}")

    def _settle(self, end: float) -> None:
        """Among planned changes alone: until the one before is over."""
        while self.settings.gentle and not self._settled() and self._timeline.now() < end:
            self._wait_until(self._timeline.now() + 0.5)

    def _do(self, one: Planned) -> None:
        calm = self._calm()
        drains = self._takes_part() if calm and one.kind.cause else 0
        entry = self._timeline.fault(one.kind.name, "", calm, one.kind.cause, drains)
        number = self._checker.status.current_round.number
        try:
            begun = one.kind.begin(self._scene, Random(one.seed))
        except (Impossible, NodeAgentError) as error:
            # Such a fault is left out; the deck has others.
            self._timeline.skip(entry, str(error))
            return
        entry.target = begun.target
        if one.kind.cause:
            self._change = (number, self._timeline.now())
        well = ", all was well" if calm else ""
        self._timeline.note(f"      done{well}, step {self._training.done()}: {begun.target}")
        if begun.heal is not None:
            self._heals.add(begun.heal)

    def _calm(self) -> bool:
        return self._heals.over and self._changed() and self._checker.calm_seconds() > CALM_SECONDS

    def _changed(self) -> bool:
        """Whether the last planned change has ended its round."""
        number, at = self._change
        over = self._checker.status.current_round.number > number
        return over or self._timeline.now() - at > CHANGE_SECONDS

    def _settled(self) -> bool:
        """Whether all is well, and the round can be drained."""
        return self._calm() and self._takes_part() > 0

    def _takes_part(self) -> int:
        """The round that takes part in drains, and did a second ago, so that the operator has heard of it."""
        if number := planned.takes_part(self._scene):
            time.sleep(1.0)
            return number if planned.takes_part(self._scene) == number else 0
        return 0

    def _wait_until(self, at: float) -> None:
        """Let time pass, heal what is due, stop at the first violation."""
        while (left := at - self._timeline.now()) > 0:
            if (heal := self._heals.due) is not None and self._may_heal(heal):
                self._heal()
            self._stop_if_wrong()
            time.sleep(min(0.1, left))

    def _may_heal(self, heal: Heal) -> bool:
        """Among planned changes alone, a job that is to grow again must be able to drain for it."""
        grows = heal.name == planned.SCALED_UP
        return not (self.settings.gentle and grows) or (self._changed() and self._takes_part() > 0)

    def _heal(self) -> None:
        heal = self._heals.take()
        if heal.name == planned.SCALED_UP:
            self._change = (self._checker.status.current_round.number, self._timeline.now())
        self._heals.run(heal, self._calm())

    def _wait(self, predicate: Callable[[], bool], seconds: float, what: str) -> None:
        def done() -> bool:
            self._stop_if_wrong()
            return predicate()

        try:
            wait_for(done, seconds, what, interval=0.2)
        except TimeoutError as error:
            status = json.dumps(status_json.dump(self._checker.status), indent=1)
            raise ChaosError(f"{error}\n{status[:6000]}") from None

    def _stop_if_wrong(self) -> None:
        for watcher in self._watchers:
            watcher.check()
        if (seconds := self._checker.lease_differs_seconds()) > LEASE_SECONDS:
            raise ChaosError(f"for {seconds:.0f} s the round Lease has not said what the status says")
        if self._checker.violations:
            raise ChaosError("\n".join([f"seed {self.settings.seed}:", *self._checker.violations]))
        if self._scene.operator.process.poll() not in (None, -signal.SIGKILL):
            raise ChaosError(f"the operator has ended with {self._scene.operator.process.returncode}")

    # -- its end -------------------------------------------------------------------------------------------

    def _leave_nothing(self, job: JobRun) -> None:
        """No process and no Lease without an owner after the job; nothing at all after its deletion."""
        api, namespace = self.cluster.api, self.namespace
        self._empty(lambda: leftovers.processes(namespace, self._training.folder), "processes of the job")
        self._empty(lambda: leftovers.leases_of_nobody(api, namespace, job.name), "Leases of nobody")
        self._wait(lambda: self._checker.lease_differs_seconds() == 0, LEASE_SECONDS, "the Lease is Closed")
        job.delete("--wait=true")
        self._empty(lambda: leftovers.objects(api, namespace), "objects of the deleted job")
        self._empty(
            lambda: leftovers.processes(namespace, self._training.folder), "processes of the deleted job"
        )

    def _empty(self, find: Callable[[], list[str]], what: str) -> None:
        self.wrong += leftovers.stay(find, what)

    def _watch(self, job: JobRun) -> list[Watcher]:
        """Follow the ElasticJob and the round Lease; every version is kept in the folder."""
        record = (self.settings.folder / "versions.jsonl").open("a", buffering=1)

        def keeping(see: Callable[[Sight], None]) -> Callable[[Sight], None]:
            def seen(sight: Sight) -> None:
                body: dict[str, Any] = {**sight.body}
                body["metadata"] = {k: v for k, v in body["metadata"].items() if k != "managedFields"}
                body["spec"] = {k: v for k, v in body.get("spec", {}).items() if k != "template"}
                line = {"at": round(self._timeline.now(), 3), "deleted": sight.deleted, "gap": sight.gap}
                record.write(json.dumps({**line, "object": body}) + "\n")
                see(sight)

            return seen

        jobs = f"/apis/elasticjob.dev/v1alpha1/namespaces/{self.namespace}/elasticjobs"
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        return [
            Watcher(self.cluster, jobs, job.name, keeping(self._checker.see_job)),
            Watcher(self.cluster, leases, round_lease(job.name), keeping(self._checker.see_lease)),
        ]


def usable(wanted: Sequence[Kind] = kinds.KINDS) -> list[Kind]:
    """The kinds that can be done here: networks need root."""
    return [kind for kind in wanted if not kind.root or os.geteuid() == 0]


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000, help="default: a new one")
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults; the run takes longer")
    parser.add_argument("--pods", type=int, default=8)
    parser.add_argument("--only", default="", help="kinds of faults, comma-separated; default: all")
    parser.add_argument("--rounds", choices=("operator", "peers"), default="operator", help="whose they are")
    parser.add_argument("--planned", action="store_true", help="only planned changes, one after the other")
    parser.add_argument("--warm", action="store_true", help="with warm workers")
    parser.add_argument("--plan", action="store_true", help="print the plan and end")
    parser.add_argument("--folder", type=Path, help="for logs; default: a new one below the temporary folder")
    options = parser.parse_args()
    chosen = [name.strip() for name in options.only.split(",") if name.strip()]
    alone = options.rounds == "peers"
    if alone and (options.planned or options.warm):
        parser.error("--planned and --warm are for --rounds operator")
    known = peers.BY_NAME if alone else kinds.BY_NAME
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"unknown kinds {unknown}; there are: {', '.join(known)}")
    if options.planned:
        chosen = chosen or [kind.name for kind in planned.PLANNED]
        if failures := [name for name in chosen if not kinds.BY_NAME[name].cause]:
            parser.error(f"{failures} are no planned changes: leave out --planned, or name others")
    drawn = usable([known[name] for name in chosen] or list(known.values()))
    if options.plan:
        print(*faults.plan(options.seed, options.minutes * 60, drawn), sep="\n")
        return 0
    folder = options.folder or Path(tempfile.mkdtemp(prefix=f"elasticjob-chaos-{options.seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    minimum = max(1, options.pods // 2)
    settings = Settings(
        options.seed, options.minutes * 60, options.pods, minimum, drawn, folder, warm=options.warm
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Cluster(nodes=4) as cluster:
        if not alone:
            crd.install(cluster, ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
        cluster.kubectl("create", "namespace", "chaos")
        wait_for(lambda: cluster.api.is_ok("/api/v1/namespaces/chaos/serviceaccounts/default"), 60, "account")
        try:
            kind = peers.PeerChaos if alone else Chaos
            kind(settings, cluster, "chaos", lambda line: print(line, flush=True)).play()
        except (ChaosError, peers.PeerChaosError) as error:
            print(f"\nFAILED: {error}")
            return 1
    if options.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
