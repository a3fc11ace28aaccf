"""Commands of scenarios about training steps, and about how the time of a job was used."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from elasticjob.contract.ranks import parse_ranks
from elasticjob.contract.reports import DrainReport, ProgressReport, ResumedReport, StartsReport
from elasticjob_operator.plan.state.model import Participant
from elasticjob_operator.plan.state.status import JobStatus, Resumed, WorkerStarts


class StepCommands:
    """The part of ``World`` that is about steps."""

    status: JobStatus
    leases: dict[str, Participant]
    trace: list[str]
    unnoticed: bool

    def do_progress(
        self, steps: str, first: str = "2", training: str = "0", renewal: str = "", by: str = ""
    ) -> None:
        """The leader says ``progress 100-250 first=2 training=60``: the steps of this round, when the first
        of them was reported, and the seconds from there to the last. ``renewal=yes``: with a renewal of its
        Lease, which makes no event. ``by=POD``: another member says it."""
        self.unnoticed = bool(renewal)
        low, _, high = steps.partition("-")
        report = ProgressReport(
            self.status.current_round.nonce,
            int(low),
            int(high or low),
            round(float(first) * 1000),
            round(float(training) * 1000),
        )
        pod = by or self.status.current_round.leader_pod_name
        self.leases[pod] = replace(self.leases[pod], progress=report)

    def do_drain(self, stopped: str = "", step: str = "0", waits: str = "") -> None:
        """The leader says that all workers have called ``should_stop``; ``stopped=120``: and have stopped at
        this step; ``step=120 waits=1-2``: and that it waits for these group ranks to stop there."""
        nonce, ranks = self.status.current_round.nonce, parse_ranks(waits)
        report = DrainReport(nonce, bool(stopped), int(stopped or step), ranks)
        leader = self.status.current_round.leader_pod_name
        self.leases[leader] = replace(self.leases[leader], drain=report)

    def do_fenced(self) -> None:
        """The leader says that all workers of its round have opened ``elasticjob.checkpoint``."""
        leader = self.status.current_round.leader_pod_name
        self.leases[leader] = replace(self.leases[leader], fenced=self.status.current_round.nonce)

    def do_starts(self, pod: str, warm: str, cold: str = "0", why: str = "", preparing: str = "") -> None:
        """The pod says how many of its workers started warm in this round, and how many cold. It rides on a
        renewal, which makes no event. ``preparing=yes`` from the leader: not all members' interpreters for
        the next round are ready; that they are is news."""
        before = self.leases[pod].starts
        report = StartsReport(self.status.current_round.nonce, int(warm), int(cold), why, bool(preparing))
        self.unnoticed = (before is not None and before.preparing) == report.preparing
        self.leases[pod] = replace(self.leases[pod], starts=report)

    def do_resumed(self, step: str, source: str, took: str = "640", by: str = "") -> None:
        """The leader says where the state came from: ``resumed 200 Memory took=640``. ``by=POD``: another
        member says it."""
        report = ResumedReport(self.status.current_round.nonce, int(step), source, int(took))
        pod = by or self.status.current_round.leader_pod_name
        self.leases[pod] = replace(self.leases[pod], resumed=report)

    def do_goodput(self) -> None:
        """Say how the time was used."""
        progress = self.status.progress
        if progress is None:
            self.trace.append("no steps are reported")
            return
        lost = ", ".join(
            f"{entry.cause} {entry.milliseconds / 1000:.1f} s" for entry in progress.lost_by_cause
        )
        trained = (progress.trained_milliseconds + progress.training_milliseconds) / 1000
        self.trace.append(
            f"step {progress.step}, trained {trained:.1f} s, lost {progress.lost_seconds} s ({lost}): "
            f"goodput {progress.goodput_percent} %"
        )

    def do_history(self) -> None:
        """Say what the history has of each round, newest first."""
        history = self.status.round_history
        for h, before in zip_longest(history, history[1:]):
            detect = before.end.detect_milliseconds if before is not None and before.end is not None else None
            times = (detect, h.rendezvous_milliseconds, h.first_step_milliseconds)
            steps = f"; steps {h.first_step} to {h.last_step}" if h.first_step is not None else ""
            self.trace.append(
                f"round {h.number} {h.cause}, {h.members} members; detect, rendezvous, first step: "
                + ", ".join("-" if t is None else str(t) for t in times)
                + steps
                + _starts(h.worker_starts)
                + _resumed(h.resumed)
            )


def _starts(starts: WorkerStarts | None) -> str:
    if starts is None:
        return ""
    why = f" ({starts.cold_reason})" if starts.cold_reason else ""
    return f"; workers started warm {starts.warm}, cold {starts.cold}{why}"


def _resumed(resumed: Resumed | None) -> str:
    if resumed is None:
        return ""
    again = "unknown" if resumed.redone_steps is None else resumed.redone_steps
    return f"; step {resumed.step} from {resumed.source} in {resumed.milliseconds} ms, redone: {again}"
