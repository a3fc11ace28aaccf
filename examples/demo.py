"""``make demo``: a real model trains through an ElasticJob and survives the loss of rank 0.

It starts a real control plane (devcluster), the operator, and the digits example; shows the rounds as
they happen; kills the training container of rank 0 with SIGKILL in mid-training; and ends with the
accuracy reached. Exit status 0 only if all of that happened.
"""

from __future__ import annotations

import argparse
import json
import os
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
from typing import Any

from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.wait import wait_for

ROOT = Path(__file__).resolve().parent.parent
CRD = ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml"
JOB = "digits"
CHECKPOINTS = Path("/tmp/elasticjob-digits")
TRAIN_SECONDS = 240.0


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up at the end, until Ctrl-C")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return show(options.keep)
    except Failure as failure:
        print(f"\nThe demo failed: {failure}", file=sys.stderr)
        return 1


class Failure(Exception):
    """Something that the demo promises did not happen."""


def show(keep: bool) -> int:
    """The demo itself."""
    began = time.monotonic()
    shutil.rmtree(CHECKPOINTS, ignore_errors=True)
    say("starting a control plane and 3 nodes (its first start on a machine builds it: about 5 minutes)")
    with Cluster(nodes=3, images={"elasticjob-digits": str(Path(sys.executable).parent)}) as cluster:
        crd.install(cluster, CRD)
        with operator(cluster.kubeconfig):
            say("$ kubectl apply -k examples/digits-devcluster")
            cluster.kubectl("apply", "-k", str(ROOT / "examples" / "digits-devcluster"))
            story = Story(cluster)
            story.follow(lambda: steps_done() >= 100, "100 steps of training")
            victim = story.rank_0()
            say(f"$ kill -9 the training container of {victim}, which is rank 0, after step {steps_done()}")
            story.kill(victim)
            story.follow(lambda: story.finished, "the end of the job")
            say("$ kubectl get elasticjob digits")
            print(cluster.kubectl("get", "elasticjob", JOB).stdout.rstrip())
            report(story, victim, time.monotonic() - began)
            if keep:
                say(f"export KUBECONFIG={cluster.kubeconfig}   (Ctrl-C ends the cluster)")
                signal.pause()
    return 0


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
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass
class Story:
    """What happens to the job, told as it happens. Times are seconds since the job was applied."""

    cluster: Cluster
    began: float = field(default_factory=time.monotonic)
    status: dict[str, Any] = field(default_factory=dict)
    killed_at: float = 0.0
    training_again_at: float = 0.0
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
        return str(self.status["round"]["leader"])

    def kill(self, pod: str) -> None:
        """SIGKILL to the container's main process, torchrun; the runtime ends the rest of the container."""
        self.killed_at = time.monotonic()
        self.cluster.nodes.kill_container("default", pod, signal=9)

    def follow(self, until: Any, what: str) -> None:
        """Tell what the status says until something is so."""

        def look() -> bool:
            answer = self.cluster.kubectl("get", "elasticjob", JOB, "-o", "json")
            self.status = json.loads(answer.stdout).get("status", {})
            self._tell()
            if self.condition("Failed") == "True":
                raise Failure(self.status["round"].get("message", "the job has failed"))
            return bool(until())

        wait_for(look, TRAIN_SECONDS, what, interval=0.1)

    def _tell(self) -> None:
        training = next((c for c in self.status.get("conditions", ()) if c["type"] == "Training"), None)
        if training is None:
            return
        now = self.status.get("round", {})
        line = f"{training['reason']:<15} round {now.get('number', 0)}  {training['message']}"
        if line == self.last_said:
            return
        self.last_said = line
        print(f"  {time.monotonic() - self.began:6.1f} s  {line}", flush=True)
        if (
            self.killed_at
            and training["status"] == "True"
            and not self.training_again_at
            and now["number"] > 1
        ):
            self.training_again_at = time.monotonic()


def report(story: Story, victim: str, seconds: float) -> None:
    """The figures of the run; raises Failure if one of the promises was not kept."""
    rounds = list(reversed(story.status["rounds"]))
    print(f"\n  {'round':<6}{'members':<9}{'cause':<12}{'account':<16}{'rendezvous':<12}why")
    for one in rounds:
        rendezvous = f"{one['rendezvousMilliseconds']} ms" if "rendezvousMilliseconds" in one else "-"
        account = one.get("account", "-")
        print(
            f"  {one['number']:<6}{one['members']:<9}{one['cause']:<12}{account:<16}{rendezvous:<12}"
            f"{one['message']}"
        )
    if len(rounds) < 2 or rounds[1]["cause"] != "PodLost" or victim not in rounds[1]["message"]:
        raise Failure("round 2 was not formed for the loss of rank 0")
    if story.condition("Complete") != "True":
        raise Failure("the job is not complete")
    result = json.loads((CHECKPOINTS / "result.json").read_text())
    first = first_step_after(rounds[1]["number"])
    print(
        f"\n  accuracy on images never seen in training: {result['accuracy']:.1%} "
        f"({result['steps']} steps, final loss {result['final_loss']:.4f})"
        f"\n  kill -9 of rank 0 to the next step of training: {first - wall(story.killed_at):.1f} s; most of"
        f"\n  it is a new torchrun starting (within the rendezvous time above) and workers that import torch"
        f"\n  resumed from step {result['resumed_from_step']}; the whole demo took {seconds:.0f} s\n"
    )
    if result["accuracy"] < 0.9:
        raise Failure(f"the accuracy is only {result['accuracy']:.1%}")


def wall(mono: float) -> float:
    """The wall-clock time of a monotonic time of this process."""
    return time.time() - (time.monotonic() - mono)


def steps() -> list[dict[str, Any]]:
    """The step log so far; a line that is being written is left out."""
    path = CHECKPOINTS / "steps.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def steps_done() -> int:
    """The newest step in the log."""
    return max((int(one["step"]) for one in steps()), default=0)


def first_step_after(round_number: int) -> float:
    """When the first step of a round was done. Raises Failure if there is none."""
    times = [float(one["time"]) for one in steps() if one["round"] >= round_number]
    if not times:
        raise Failure(f"round {round_number} made no step")
    return min(times)


def say(text: str) -> None:
    """A line about what the demo does."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
