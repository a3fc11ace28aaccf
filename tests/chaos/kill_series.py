"""`python -m tests.chaos.kill_series`: kills one after another, in jobs that save each step to memory.

Real torchruns, operator, API server and nodes. A kill comes when a round is well: of a worker, an agent, the
agent of rank 0, or a node with one pod. In between the job gets another size, or keeps its own. What must
come out: a kill costs one step at most, nothing is read from the storage, and samples and losses are those of
a run of one process that nothing has disturbed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import arguments
from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from tests.chaos.kills import (
    AGENT,
    LEADER,
    SIZE,
    WORKER,
    Kill,
    Line,
    Planned,
    copying,
    difference,
    goes_on,
    plan,
    reached,
    read,
    redone,
    skipped,
    told,
    violations,
)
from tests.e2e.job import ROOT, TORCHRUN, JobRun, Operator, apart

SCRIPT = Path(__file__).parent / "memory_train.py"
NAMESPACE = "kills"
STEP_SECONDS = 0.1
DRAINING_STEPS = 40
"""After so many the operator has heard that all ranks call ``should_stop``."""
NO_END = 10**9
KILL_SECONDS = 300.0
"""How long a wait may take; with a pod on a lost node its replacement starts from nothing."""


class StepLog:
    """A step log that grows, read on from where it was read before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[Line] = []
        self._rest = b""
        self._read = 0

    def read(self) -> list[Line]:
        """Its whole lines; none while there is no file."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                added = file.read()
            self._read += len(added)
            whole, _, self._rest = (self._rest + added).rpartition(b"\n")
            self._lines += read(whole.decode() + "\n")
        return self._lines


class Series:
    """One job and the kills that it goes through."""

    def __init__(self, job: JobRun, planned: Sequence[Planned]) -> None:
        self._job = job
        self._planned = planned
        self._lines = StepLog(job.folder / "steps.jsonl").read
        self.kills: list[Kill] = []

    def play(self) -> None:
        """Train, kill, and stop. Raises AssertionError if a wait is in vain."""
        (self._job.folder / "saves").mkdir(parents=True)
        self._job.apply(
            [
                *TORCHRUN,
                "--max-restarts=1000000",
                str(SCRIPT),
                str(self._job.folder),
                str(NO_END),
                str(STEP_SECONDS),
            ],
            pod=apart(self._job),
            replicas=self._planned[0].pods,
            minReplicas=1,
            memoryCheckpoints={"perPod": "256Mi"},
            warmWorkers={"enabled": True},
            failurePolicy={"application": {}},
        )
        for one in self._planned:
            before = int(self._job.get()["spec"]["replicas"])
            if before != one.pods:
                self._note(self._resize(before, one.pods))
            self._note(self._kill(one))
        self._job.stop()
        self._job.complete(KILL_SECONDS)

    def _note(self, kill: Kill) -> None:
        self.kills.append(kill)
        print(kill, flush=True)

    def _resize(self, before: int, pods: int) -> Kill:
        number = self._well(before, DRAINING_STEPS)
        self._job.scale(pods)
        return self._gone_on(SIZE, pods, number)

    def _kill(self, one: Planned) -> Kill:
        number = self._well(one.pods, one.steps)
        node = self._strike(one)
        kill = self._gone_on(one.kind, one.pods, number)
        if node:
            self._job.cluster.nodes.start_node(node)
        return kill

    def _gone_on(self, kind: str, pods: int, number: int) -> Kill:
        """What it has cost, once all train again."""
        began = time.monotonic()
        self._job.wait_for(
            lambda: goes_on(self._lines(), number, pods),
            f"{pods} ranks go on after round {number}",
            KILL_SECONDS,
        )
        took, lines = time.monotonic() - began, self._lines()
        return Kill(
            kind,
            pods,
            number,
            redone(lines, number),
            self._sources(number),
            skipped(lines, number),
            copying(lines, number),
            took,
        )

    def _well(self, pods: int, made: int) -> int:
        """Wait until a round of this size has made so many steps; returns its number."""

        def well() -> int | None:
            now = self._job.round()
            if now.get("phase") != "Active" or now.get("members") != pods or "establishedTime" not in now:
                return None
            number = int(now["number"])
            steps = [line for line in self._lines() if line["round"] == number and "step" in line]
            return number if len(steps) >= made * pods else None

        return int(self._job.wait_for(well, f"a round of {pods} pods is well", KILL_SECONDS))

    def _strike(self, one: Planned) -> str:
        """Kill; returns the node, if one was killed."""
        pod = str(self._job.member(one.rank)["podName"])
        if one.kind == WORKER:
            self._job.kill_worker(pod)
        elif one.kind in (AGENT, LEADER):
            self._job.kill_pod(pod)
        else:
            node = str(self._job.pods()[pod]["spec"]["nodeName"])
            self._job.cluster.nodes.kill_node(node)
            return node
        return ""

    def _sources(self, number: int) -> tuple[str, ...]:
        """What the rounds after this one have resumed from, once the status says it of the newest."""

        def found() -> tuple[str, ...]:
            later = [entry for entry in self._job.rounds() if entry["number"] > number]
            if not later or "resumed" not in later[-1]:
                return ()
            return tuple(entry["resumed"]["from"] for entry in later if "resumed" in entry)

        said: tuple[str, ...] = self._job.wait_for(found, f"the status says what {number} was resumed from")
        return said


def run_undisturbed(folder: Path, steps: int) -> None:
    """Train with one process, without a cluster and without saves. Raises CalledProcessError."""
    folder.mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    with (folder / "output.txt").open("wb") as output:
        subprocess.run(
            [*command, str(SCRIPT), str(folder), str(steps), "0"],
            env={**environment, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=output,
            check=True,
        )


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000, help="of single pods, default %(default)s")
    parser.add_argument("--jobs", type=int, default=4, help="that share them, default %(default)s")
    parser.add_argument(
        "--sizes",
        type=arguments.sizes,
        default=(4, 3, 5),
        help="pods of a job, in turns; of one size it stays, default 4,3,5",
    )
    parser.add_argument(
        "--change-every", type=int, default=4, help="kills between sizes, default %(default)s"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the kinds, default %(default)s")
    parser.add_argument("--folder", type=Path, help="for logs; default: a new one below the temporary folder")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="elasticjob-kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    kills, wrong, largest = list[Kill](), list[str](), 0.0
    began = time.monotonic()
    with Cluster(nodes=max(options.sizes) + 1) as cluster:
        crd.install(cluster, ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
        cluster.kubectl("create", "namespace", NAMESPACE)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        wait_for(lambda: cluster.api.is_ok(account), 60, "account")
        operator = Operator(cluster, NAMESPACE, folder / "operator.log", module="tests.chaos.hasty_operator")
        try:
            for number, planned in enumerate(_shared(options)):
                job = JobRun(cluster, NAMESPACE, folder / f"job-{number}", f"job-{number}")
                series = Series(job, planned)
                try:
                    series.play()
                except AssertionError as error:
                    wrong.append(f"job-{number}, after {len(series.kills)} of {len(planned)} kills: {error}")
                finally:
                    kills += series.kills
                    job.delete("--wait=true")
                lines = read((job.folder / "steps.jsonl").read_text())
                run_undisturbed(folder / f"undisturbed-{number}", reached(lines))
                theirs = read((folder / f"undisturbed-{number}" / "steps.jsonl").read_text())
                found, problems = difference(lines, theirs)
                largest, wrong = max(largest, found), [*wrong, *problems]
        finally:
            operator.stop()
            print(f"\n{told(kills, largest)}\n{(time.monotonic() - began) / 60:.0f} minutes, {folder}")
    wrong += violations(kills)
    print(*wrong, sep="\n")
    if not wrong and options.folder is None:
        shutil.rmtree(folder)
    return 1 if wrong else 0


def _shared(options: argparse.Namespace) -> list[list[Planned]]:
    """The kills of each job."""
    planned = plan(options.seed, options.kills, options.sizes, options.change_every)
    each = -(-len(planned) // options.jobs)
    return [planned[begin : begin + each] for begin in range(0, len(planned), each)]


if __name__ == "__main__":
    sys.exit(main())
