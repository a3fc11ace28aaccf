"""One training of one system under the schedule."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.rivals.environments import UnavailableError
from benchmarks.rivals.judging import FINISHED, Result, Stamp, Struck, judge, newest_ranks
from benchmarks.rivals.pods import RESTART_SECONDS, Pods, StampReader
from benchmarks.rivals.schedule import (
    ADDED,
    HOST,
    REMOVED,
    WORKER,
    Fault,
    put_off,
    saved_every,
    schedule,
    victim,
)
from benchmarks.rivals.systems import Session, System
from benchmarks.rivals.training import Training

PODS = 3
MINIMUM = 2
PATIENCE_SECONDS = 120.0
"""Without a new step for so long, a system has come to nothing."""
LIMIT_SECONDS = 600.0
END_SECONDS = 60.0
"""How long agents may take to end after the last step."""
_POLL_SECONDS = 0.03


@dataclass(frozen=True)
class Plan:
    """The same for all systems."""

    steps: int
    seconds: float
    faults: bool = True
    patience: float = PATIENCE_SECONDS
    limit: float = LIMIT_SECONDS
    keep: Path | None = None
    """Where logs and stamps are kept."""


@dataclass
class _Play:
    session: Session
    pods: Pods
    steps: int
    pending: list[Fault]
    struck: list[Struck] = field(default_factory=list)
    coordinator_due: float | None = None

    def strike(self, stamps: Sequence[Stamp], reached: int) -> None:
        """The next fault, if it is due."""
        if not self.pending or reached < self.pending[0].step:
            return
        fault = self.pending.pop(0)
        added_trains = any(stamp.pod == PODS for stamp in stamps)
        if fault.kind == REMOVED and not added_trains and (later := put_off(fault, self.steps)):
            self.pending.insert(0, later)
            return
        ranks = newest_ranks(stamps)
        note, pod = "", PODS
        at = time.monotonic()
        if fault.kind == ADDED:
            self.session.resize(PODS + 1)
            self.pods.start(PODS)
        elif fault.kind == REMOVED:
            note = "" if added_trains else "it had not trained yet"
            self.session.resize(PODS)
            self.session.removing(PODS)
            self.pods.remove(PODS)
        else:
            host = self.session.host
            pod = victim(fault.kind, {rank: stamp.pod for rank, stamp in ranks.items()}, host)
            if fault.kind == WORKER:
                self.pods.kill_worker(next(one.pid for one in ranks.values() if one.pod == pod))
            else:
                note = "that was the coordinator's node" if pod == host and fault.kind != HOST else ""
                if fault.kind == HOST:
                    self.session.kill_coordinator()
                    self.coordinator_due = at + RESTART_SECONDS
                self.pods.kill(pod)
        self.struck.append(Struck(fault.kind, at, reached, note))
        print(f"    step {reached}: {fault.kind}, pod {pod}{note and ', '}{note}", flush=True)

    def tick(self) -> None:
        """What is due."""
        if self.coordinator_due is not None and time.monotonic() >= self.coordinator_due:
            self.session.start_coordinator()
            self.coordinator_due = None
        self.pods.tick()


def play(system: System, plan: Plan) -> Result:
    """Train, with all faults, and say what came of it; a system that cannot be run says why."""
    result = Result(system.name, system.version, system.flags, "")
    try:
        system.prepare()
    except UnavailableError as error:
        result.ended = f"cannot be run here: {error}"
        return result
    with tempfile.TemporaryDirectory(prefix="rivals-") as name:
        folder = plan.keep / system.name.replace(" ", "-") if plan.keep else Path(name)
        (folder / "saves").mkdir(parents=True)
        training = Training(str(folder), plan.steps, plan.seconds, saved_every(plan.steps))
        reader = StampReader(folder)
        with (
            system.session(training, PODS, MINIMUM) as session,
            Pods(session, training) as pods,
        ):
            played = _Play(session, pods, plan.steps, schedule(plan.steps) if plan.faults else [])
            began = time.monotonic()
            for pod in range(PODS):
                pods.start(pod)
            result.ended = _until_end(played, reader, plan, began)
            result.starts = pods.starts
            judge(result, reader.stamps(), played.struck, began=began, steps=plan.steps)
            if not result.ended.startswith(FINISHED):
                print(f"    {result.ended}; the log says: {pods.said()}", file=sys.stderr, flush=True)
                result.ended += f": {pods.said()}" if pods.said() else ""
    return result


def _until_end(played: _Play, reader: StampReader, plan: Plan, began: float) -> str:
    """Returns what has ended it."""
    reached, newest = 0, began
    while True:
        played.tick()
        now, stamps = time.monotonic(), reader.stamps()
        if (found := max((stamp.step for stamp in stamps), default=0)) > reached:
            reached, newest = found, now
        played.strike(stamps, reached)
        last = played.struck[-1].kind if played.struck else "the start"
        if played.pods.all_succeeded():
            if reached >= plan.steps:
                return FINISHED
            return f"all agents ended with 0 at step {reached}, after: {last}"
        if reached >= plan.steps and now - newest > END_SECONDS:
            return f"{FINISHED}, but agents still ran {END_SECONDS:g} s after the last step"
        if reached < plan.steps and now - newest > plan.patience:
            return f"no new step in {plan.patience:g} s after step {reached}, after: {last}"
        if now - began > plan.limit:
            return f"not within {plan.limit:g} s"
        time.sleep(_POLL_SECONDS)
