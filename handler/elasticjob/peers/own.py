"""What a participant itself has said in its Lease, and what it waits for because of that. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elasticjob.contract.participant_record import AnnouncedState, ParticipantRecord
from elasticjob.contract.reports import RoundReport
from elasticjob.peers.settled import Settled


@dataclass
class OwnWords:
    """The newest announcement and report of this participant, and when (its monotonic seconds) it made
    them."""

    announced: ParticipantRecord | None = None
    announced_at: float = 0.0
    report: RoundReport | None = None
    reported_at: float = 0.0
    finished: str = ""
    """The nonce of the last round that it has finished well."""

    def take(self, annotations: Mapping[str, str | None], now: float) -> None:
        """What its agent writes. Raises RecordError for a record that no agent writes."""
        if participant := annotations.get("participant"):
            self.announced, self.announced_at = ParticipantRecord.parse(participant), now
        if report := annotations.get("report"):
            before, self.report = self.report, RoundReport.parse(report)
            again = before is not None and before.nonce == self.report.nonce and demands(before)
            self.reported_at = self.reported_at if again else now
        self.finished = annotations.get("finished") or self.finished

    @property
    def leaving(self) -> bool:
        """Whether it ends on a signal."""
        return self.announced is not None and self.announced.state == AnnouncedState.LEAVING

    def waits_since(self, settled: Settled) -> float | None:
        """Since when it waits for what only a coordinator does: for a round, or for the end of one that it
        has spoken against."""
        r, mine, report = settled.state, self.announced, self.report
        if (
            mine is not None
            and mine.state == AnnouncedState.JOINING
            and not (r.active and any(m.id == mine.id for m in r.members))
        ):
            return self.announced_at
        if r.active and report is not None and report.nonce == r.nonce and demands(report):
            return self.reported_at
        return None

    def accuses_since(self, settled: Settled, pod: str) -> float | None:
        """Since when its own monitor says that the agent of this pod is lost; None: it does not say so."""
        report = self.report
        if report is None or report.nonce != settled.state.nonce:
            return None
        rank = next((m.group_rank for m in settled.state.members if m.name == pod), None)
        accused = (report.leader_lost and rank == 0) or (
            rank is not None and (rank in report.silent_ranks or rank in report.unarrived_ranks)
        )
        return self.reported_at if accused else None


def demands(report: RoundReport) -> bool:
    """Whether this report speaks against its round."""
    return bool(report.leader_lost or report.silent_ranks or report.unarrived_ranks or report.hung)
