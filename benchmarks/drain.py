"""`python -m benchmarks.drain`: what a planned change costs a script that calls `should_stop`, kind by kind.

An ElasticJob with a template trains `examples/digits` on devcluster's nodes: real torchruns, real gloo. It
makes checkpoints only where it is asked to stop, so a step that a drain missed would be trained, and logged,
again. Each run goes through all kinds with one job. Times are from polls every 20 ms.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import markdown
from benchmarks.environment import environment
from benchmarks.k8s import ControlPlane, K8sSession
from benchmarks.results import Summary
from devcluster.wait import wait_for
from elasticjob.contract import names

RESULTS = Path(__file__).parent / "results"
DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "train.py"
RUNS = 3
NODES = 3
SECONDS = 600.0
POLL_SECONDS = 0.02
NAMESPACE = "bench"
TAIL_BYTES = 2000
TAINT = "karpenter.sh/disrupted"
JOBS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
MERGE_PATCH = "application/merge-patch+json"
STEP = re.compile(r"all workers stopped at step (\d+)")


@dataclass(frozen=True)
class Change:
    """One planned change. Seconds from the change until the round is Draining, from there until it has ended
    because all workers had stopped, and from there to the next round's first step (None: there is none, or
    only when the job is resumed). ``redone``: steps that were trained again, or lost."""

    kind: str
    draining: float
    stopped: float
    trains: float | None
    redone: int
    how: str


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drain", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="default %(default)s")
    parser.add_argument("--warm", action="store_true", help="with warm workers")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder, default %(default)s")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.out.mkdir(parents=True, exist_ok=True)
    changes: list[Change] = []
    with ControlPlane(NODES) as plane:
        facts = {**environment(plane.version), "warm workers": "on" if options.warm else "off"}
        for _ in range(options.runs):
            for change in run(plane, warm=options.warm):
                changes.append(change)
                print(change, flush=True)
                content = {"changes": [asdict(one) for one in changes], "environment": facts}
                (options.out / "drain.json").write_text(json.dumps(content, indent=1) + "\n")
                (options.out / "drain.md").write_text(table(changes, facts))
    print(f"\n{table(changes, facts)}\nwritten to {options.out}")


def table(changes: Sequence[Change], facts: Mapping[str, object]) -> str:
    """Medians and spread, kind by kind."""
    rows = []
    for kind in dict.fromkeys(one.kind for one in changes):
        found = [one for one in changes if one.kind == kind]
        stopped = sum(one.how == "Stopped" for one in found)
        rows.append(
            [
                kind,
                _spread([one.draining for one in found]),
                _spread([one.stopped for one in found]),
                _spread([one.trains for one in found if one.trains is not None]) or "-",
                str(sum(one.redone for one in found)),
                f"{stopped} of {len(found)}",
            ]
        )
    header = ["change", "to Draining", "to all stopped", "to the next step", "steps redone", "drained"]
    return markdown.document(
        "Planned changes of a job whose script calls should_stop",
        "Seconds, median (minimum to maximum), each from the event before: the change, as it is written or "
        "asked for; the round is Draining; it has ended, because all workers have stopped at a common step "
        "with a checkpoint; the next round has logged its first step. *scaled up*, *deleted*, *evicted* and "
        "*node about to go* have a new pod start: before the round drains, or meanwhile. *steps redone* is "
        "the sum of all runs.",
        markdown.facts(facts),
        markdown.table(header, rows),
    )


def _spread(values: Sequence[float]) -> str:
    return markdown.spread(Summary.of(values, []))


def run(plane: ControlPlane, *, warm: bool) -> Iterator[Change]:
    """All kinds, one after the other, with one job."""
    with tempfile.TemporaryDirectory() as name, _job(plane, Path(name), warm=warm) as job:
        yield job.change("scaled up", 2, lambda: job.patch(replicas=2))
        job.patch(minReplicas=2)
        yield job.change("deleted", 2, lambda: job.take(delete=True))
        yield job.change("evicted", 2, lambda: job.take(delete=False))
        node = job.leaders_node()
        yield job.change("node about to go", 2, lambda: job.taint(node, TAINT))
        job.taint(node)
        job.patch(minReplicas=1)
        yield job.change("scaled down", 1, lambda: job.patch(replicas=1))
        yield job.change("suspended", 0, lambda: job.patch(suspend=True))
        job.until(lambda: not job.pods(), "the pods are gone")
        job.patch(suspend=False)
        yield job.change("deadline", 0, lambda: job.patch(activeDeadlineSeconds=1))


@contextmanager
def _job(plane: ControlPlane, folder: Path, *, warm: bool) -> Iterator[Digits]:
    name = f"drain-{time.monotonic_ns() % 1_000_000}"
    job = Digits(plane, name, folder / "steps.jsonl")
    command = [
        *(sys.executable, "-m", "torch.distributed.run", str(DIGITS)),
        *(f"--checkpoint-dir={folder}", f"--step-log={job.log}", "--checkpoint-every=100000000"),
        *("--epochs=1000000", "--width=64"),
    ]
    at_once = {"scaleUpDelaySeconds": 0}
    session = K8sSession(plane, name, 1, 1, 0)
    with session.trains(command, (), {}, warmWorkers={"enabled": warm}, scaling=at_once):
        yield job


class Digits:
    """The job that trains."""

    def __init__(self, plane: ControlPlane, name: str, log: Path) -> None:
        self._plane = plane
        self._api = plane.api
        self.name = name
        self.log = log

    def change(self, kind: str, members: int, begin: Callable[[], None]) -> Change:
        """Make a planned change, and follow the round to its end and the next to its first step. ``members``
        of the next round; 0: none follows."""
        self.until(self._can_drain, "the round can be drained")
        number = self._round()["number"]
        began = time.monotonic()
        begin()
        self.until(lambda: self._draining(number), f"{kind}: round {number} drains")
        drains = time.monotonic()
        self.until(lambda: self._ended(number), f"{kind}: round {number} has ended")
        ended = time.monotonic()
        if not members:
            self.until(lambda: self._how(number), "the history says how it ended")
            return Change(kind, drains - began, ended - drains, None, self._lost(number), self._how(number))
        self.until(lambda: self._steps_of(number + 1, members), f"{kind}: round {number + 1} trains")
        trains = time.monotonic()
        how, redone = self._how(number), self._redone()
        return Change(kind, drains - began, ended - drains, trains - ended, redone, how)

    def until(self, predicate: Callable[[], object], what: str) -> None:
        """Wait until the predicate holds. Raises TimeoutError with ``what``."""
        wait_for(predicate, SECONDS, lambda: f"{what}\n{json.dumps(self._status())}", interval=POLL_SECONDS)

    def patch(self, **spec: object) -> None:
        """Patch the job's spec."""
        self._asked("PATCH", f"{JOBS}/{self.name}", {"spec": spec}, content_type=MERGE_PATCH)

    def take(self, *, delete: bool) -> None:
        """Delete or evict the leader's pod."""
        pod = self._round()["leaderPodName"]
        if delete:
            self._asked("DELETE", f"{PODS}/{pod}")
        else:
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
            self._asked("POST", f"{PODS}/{pod}/eviction", body)

    def taint(self, node: str, *keys: str) -> None:
        """Set a node's taints."""
        taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
        path = f"/api/v1/nodes/{node}"
        self._asked("PATCH", path, {"spec": {"taints": taints}}, content_type=MERGE_PATCH)

    def leaders_node(self) -> str:
        """The node of the leader's pod."""
        self.until(self._can_drain, "the round can be drained")
        pod = self._asked("GET", f"{PODS}/{self._round()['leaderPodName']}")
        return str(pod["spec"]["nodeName"])

    def pods(self) -> list[Any]:
        """The job's pods."""
        path = f"{PODS}?labelSelector={names.JOB_LABEL}%3D{self.name}"
        found: list[Any] = self._asked("GET", path)["items"]
        return found

    def _asked(self, method: str, path: str, *body: object, **options: str) -> Any:
        answer = self._api.request(method, path, *body, **options)  # type: ignore[arg-type]
        if not answer.ok:
            raise RuntimeError(f"{method} {path}: {answer.text}")
        return answer.json()

    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._asked("GET", f"{JOBS}/{self.name}").get("status", {})
        return found

    def _round(self) -> dict[str, Any]:
        found: dict[str, Any] = self._status().get("currentRound", {})
        return found

    def _can_drain(self) -> bool:
        status = self._status()
        r = status.get("currentRound", {})
        if r.get("phase") != "Active" or "establishedTime" not in r or not self._steps_of(r["number"], 0):
            return False
        lease = self._asked("GET", f"{LEASES}/{r['leaderPodName']}")
        said = json.loads(lease["metadata"].get("annotations", {}).get(names.DRAIN_ANNOTATION, "{}"))
        return bool(said.get("nonce") == status["internal"]["round"]["nonce"])

    def _draining(self, number: int) -> bool:
        r = self._round()
        return "drain" in r or r["number"] > number or "end" in r

    def _ended(self, number: int) -> bool:
        r = self._round()
        return bool(r["number"] > number or "end" in r)

    def _history(self, number: int) -> dict[str, Any]:
        history = self._status().get("roundHistory", [])
        return next((entry for entry in history if entry["number"] == number), {})

    def _how(self, number: int) -> str:
        return str(self._history(number).get("end", {}).get("drain", ""))

    def _lost(self, number: int) -> int:
        """Steps beyond the one at which all have stopped."""
        found = STEP.search(self._history(number).get("end", {}).get("message", ""))
        return max(line["step"] for line in self._lines()) - int(found[1]) if found else -1

    def _redone(self) -> int:
        steps = [line["step"] for line in self._lines()]
        return len(steps) - len(set(steps))

    def _steps_of(self, number: int, members: int) -> bool:
        return any(
            line["round"] == number and members in (0, line["world_size"])
            for line in self._lines(newest=True)
        )

    def _lines(self, *, newest: bool = False) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        with self.log.open("rb") as file:
            if newest:
                file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
        lines = text.split("\n")[newest and len(text) >= TAIL_BYTES :]
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


if __name__ == "__main__":
    main()
