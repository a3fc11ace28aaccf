"""``make demo``: a real model trains through an ElasticJob and survives the loss of rank 0.

It starts a real control plane (devcluster), the operator, and the digits example; shows the rounds as
they happen; kills rank 0 in mid-training with `elasticjob drill`, which tells what that cost; and ends with
the accuracy reached. Exit status 0 only if all of that happened.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from devcluster import crd
from devcluster.access import ClusterAccess
from devcluster.cluster import Cluster
from devcluster.existing import ExistingCluster
from devcluster.wait import wait_for

ROOT = Path(__file__).resolve().parent.parent
CRD = ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml"
ELASTICJOB = Path(sys.executable).with_name("elasticjob")
JOB = "digits"
CAUSES = ("PodDeleted", "PodLost")
"""Causes of the round that follows: either may be noticed first."""
CHECKPOINTS = Path("/tmp/elasticjob-digits")
TRAIN_SECONDS = 240.0


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up at the end, until Ctrl-C")
    parser.add_argument("--kubeconfig", type=Path, help="a cluster of your own instead of devcluster's")
    parser.add_argument("--example", default="digits", help="with --kubeconfig: the folder below examples/")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if options.kubeconfig:
            show(YourCluster(options.kubeconfig, options.example))
            return 0
        shutil.rmtree(CHECKPOINTS, ignore_errors=True)
        say("starting a control plane and 3 nodes (the first time it builds them: 5 to 12 minutes)")
        with Cluster(nodes=3) as cluster:
            show(OurCluster(cluster))
            if options.keep:
                say(f"export KUBECONFIG={cluster.kubeconfig}   (Ctrl-C ends the cluster)")
                signal.pause()
        return 0
    except Failure as failure:
        print(f"\nThe demo failed: {failure}", file=sys.stderr)
        return 1


class Failure(Exception):
    """Something that the demo promises did not happen."""


def show(stage: Stage) -> None:
    """The demo itself."""
    began = time.monotonic()
    crd.install(stage.cluster, CRD)
    with operator(stage.cluster.kubeconfig):
        say(f"$ kubectl apply -k examples/{stage.example}")
        stage.cluster.kubectl("apply", "-k", str(ROOT / "examples" / stage.example))
        story = Story(stage)
        story.follow(lambda: stage.steps_done() >= 100, "100 steps of training")
        victim = story.rank_0()
        say(f"$ elasticjob drill {JOB} --kill rank:0   (which is {victim}, after step {stage.steps_done()})")
        print(story.drill(), end="")
        story.follow(lambda: story.finished, "the end of the job")
        say("$ kubectl get ej digits")
        print(stage.cluster.kubectl("get", "ej", JOB).stdout.rstrip())
        report(story, victim, time.monotonic() - began)


class Stage(Protocol):
    """A cluster, and what can be done and learnt there."""

    cluster: ClusterAccess
    example: str

    def steps_done(self) -> int:
        """The newest step of training."""

    def accuracy(self) -> float:
        """What the training has reached. Raises Failure."""


class OurCluster:
    """devcluster: checkpoints are in a folder of this machine."""

    example = "digits-devcluster"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster: ClusterAccess = cluster

    def steps_done(self) -> int:
        """See ``Stage``."""
        return max((int(one["step"]) for one in step_log()), default=0)

    def accuracy(self) -> float:
        """See ``Stage``."""
        return float(json.loads((CHECKPOINTS / "result.json").read_text())["accuracy"])


class YourCluster:
    """A cluster of the user's own: what is known of the training stands in its pods' logs."""

    def __init__(self, kubeconfig: Path, example: str) -> None:
        self.cluster: ClusterAccess = ExistingCluster(kubeconfig)
        self.example = example

    def steps_done(self) -> int:
        """See ``Stage``."""
        return max((int(step) for step in re.findall(r"step (\d+)/", self._logs())), default=0)

    def accuracy(self) -> float:
        """See ``Stage``."""
        found = re.findall(r"accuracy ([0-9.]+)", self._logs())
        if not found:
            raise Failure("no log of a pod tells the accuracy")
        return float(found[-1])

    def _logs(self) -> str:
        names = self.cluster.kubectl(
            "get", "pods", "-l", f"elasticjob.dev/job-name={JOB}", "-o", "name"
        ).stdout
        return "".join(self.cluster.kubectl("logs", name, check=False).stdout for name in names.split())


@contextmanager
def operator(kubeconfig: Path) -> Iterator[None]:
    """The operator as a process of its own; its log is shown if it ends too early."""
    say("$ python -m elasticjob_operator")
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "elasticjob_operator"],
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
            if process.poll() is not None:
                log.seek(0)
                raise Failure("the operator ended:\n" + log.read().decode()[-3000:])
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End it by SIGTERM; by SIGKILL if it does not obey in 20 seconds."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass
class Story:
    """Prints what happens to the job when it happens, in seconds since it was applied."""

    stage: Stage
    began: float = field(default_factory=time.monotonic)
    status: dict[str, Any] = field(default_factory=dict)
    last_said: str = ""

    @property
    def finished(self) -> bool:
        """Complete or Failed."""
        return any(self.condition(kind) == "True" for kind in ("Complete", "Failed"))

    def condition(self, kind: str) -> str:
        """The status of a condition of the job."""
        found = (c["status"] for c in self.status.get("conditions", ()) if c["type"] == kind)
        return next(found, "Unknown")

    def rank_0(self) -> str:
        """The pod that leads the present round."""
        return str(self.status["currentRound"]["leaderPodName"])

    def drill(self) -> str:
        """Kill rank 0; returns what the drill says, once the job trains again. Raises Failure."""
        drill = subprocess.Popen(
            [ELASTICJOB, "drill", JOB, "--kill", "rank:0", "--yes"],
            env={**os.environ, "KUBECONFIG": str(self.stage.cluster.kubeconfig)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            self.follow(lambda: drill.poll() is not None, "the end of the drill")
            printed = drill.communicate()[0]
        finally:
            drill.kill()
        if drill.returncode != 0:
            raise Failure(f"the drill failed: {printed}")
        return printed

    def follow(self, until: Any, what: str, seconds: float = TRAIN_SECONDS, interval: float = 0.1) -> None:
        """Tell what the status says until something is so."""

        def look() -> bool:
            answer = self.stage.cluster.kubectl("get", "ej", JOB, "-o", "json")
            self.status = json.loads(answer.stdout).get("status", {})
            self._tell()
            if self.condition("Failed") == "True":
                raise Failure(self.status["currentRound"].get("end", {}).get("message", "the job has failed"))
            return bool(until())

        wait_for(look, seconds, what, interval=interval)

    def _tell(self) -> None:
        training = next((c for c in self.status.get("conditions", ()) if c["type"] == "Training"), None)
        if training is None:
            return
        now = self.status.get("currentRound", {})
        line = f"{training['reason']:<15} round {now.get('number', 0)}  {training['message']}"
        if line == self.last_said:
            return
        self.last_said = line
        print(f"  {time.monotonic() - self.began:6.1f} s  {line}", flush=True)


def formed(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The rounds, oldest first, each with why it was formed: what ended the one before."""
    history = list(reversed(status["roundHistory"]))
    ends = [{}, *(entry.get("end", {}) for entry in history)]
    return [{**end, **entry} for end, entry in zip(ends, history, strict=False)]


def report(story: Story, victim: str, seconds: float) -> None:
    """The figures of the run; raises Failure if one of the promises was not kept."""
    rounds = formed(story.status)
    print(f"\n  {'round':<6}{'members':<9}{'cause':<12}{'account':<16}{'rendezvous':<12}why")
    for one in rounds:
        rendezvous = f"{one['rendezvousMilliseconds']} ms" if "rendezvousMilliseconds" in one else "-"
        account = one.get("account", "-")
        print(
            f"  {one['number']:<6}{one['members']:<9}{one['cause']:<12}{account:<16}{rendezvous:<12}"
            f"{one.get('message', 'the first round')}"
        )
    if len(rounds) < 2 or rounds[1]["cause"] not in CAUSES or victim not in rounds[1]["message"]:
        raise Failure("round 2 was not formed for the loss of rank 0")
    if story.condition("Complete") != "True":
        raise Failure("the job is not complete")
    accuracy = story.stage.accuracy()
    print(f"\n  accuracy on images never seen in training: {accuracy:.1%} ({story.stage.steps_done()} steps)")
    print(f"  the whole demo took {seconds:.0f} s\n")
    if accuracy < 0.9:
        raise Failure(f"the accuracy is only {accuracy:.1%}")


def step_log() -> list[dict[str, Any]]:
    """The step log so far; a line that is being written is left out."""
    path = CHECKPOINTS / "steps.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def say(text: str) -> None:
    """A line about what the demo does."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
