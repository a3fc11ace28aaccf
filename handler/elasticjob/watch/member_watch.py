"""What a member notices about its round and reports in its Lease: lost members, hangs, progress.

The leader watches all members, each member watches the leader: by heartbeats while the round runs, and by
probes after it has ended for this agent, until the next round (``post_round_probe``). Nothing is reported
once the round has ended for another reason or has succeeded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from elasticjob.contract.reports import DrainReport, ProgressReport, RoundReport
from elasticjob.core.heartbeats import Loss, ProbeResult
from elasticjob.core.participant import Membership, Participant
from elasticjob.core.progress import Hang
from elasticjob.drain.board import StopBoard
from elasticjob.leases.writer import LeaseWriter
from elasticjob.warm.workers import WarmWorkers
from elasticjob.watch.heartbeats import FENCED_KEY, PREPARED_KEY, TAKES_PART_KEY, Heartbeats, Word
from elasticjob.watch.post_round_probe import PostRoundProbe
from elasticjob.watch.step_files import StepReader

logger = logging.getLogger(__name__)


class MemberWatch:
    """One agent's watch, round after round. ``verify_source`` is called while something is wrong with the
    round."""

    def __init__(self, core: Participant, lease: LeaseWriter, verify_source: Callable[[float], None]) -> None:
        self._core = core
        self._lease = lease
        self._verify_source = verify_source
        self._heartbeats: Heartbeats | None = None
        self._post_round_probe: PostRoundProbe | None = None
        self._left: Heartbeats | None = None
        self._silent: tuple[int, ...] = ()

    def begin(
        self,
        m: Membership,
        steps: StepReader,
        passed: Callable[[], bool],
        board: StopBoard,
        fenced: Callable[[], bool],
        warm: WarmWorkers | None = None,
    ) -> None:
        """The round is established. ``passed`` tells whether this agent is through with it, ``board`` what
        its workers say of drains, ``fenced`` whether their checkpoints are fenced, ``warm`` whether the next
        ones can start at once."""

        def done() -> bool:
            # What a thread of a round that was left is still about to report is of that round: after the next
            # announcement the core would not call it over.
            return self._heartbeats is not heartbeats or bool(self._core.end_reason()) or passed()

        def lost(found: Mapping[int, Loss]) -> None:
            if not done():
                self._report_lost(m, found)

        def hung(hang: Hang) -> None:
            if not done():
                self._report_hung(m, hang)

        def progressed(report: ProgressReport, first: bool) -> None:
            if self._heartbeats is heartbeats:
                self._progressed(report, first)

        def verify_source(since: float) -> None:
            if not self._core.end_reason():
                self._verify_source(since)

        def drainable() -> None:
            if not done():
                self._lease.write(drain=DrainReport(m.nonce).dump())

        def all_fenced() -> None:
            if not done():
                self._lease.write(fenced=m.nonce)

        def prepared() -> None:
            if warm is not None and not done():
                warm.all_prepared()

        words = [Word(TAKES_PART_KEY, board.take_part, drainable), Word(FENCED_KEY, fenced, all_fenced)]
        if warm is not None:
            words.append(Word(PREPARED_KEY, warm.prepared, prepared))
        heartbeats = self._heartbeats = Heartbeats(m, steps, lost, progressed, hung, verify_source, words)
        heartbeats.start()

    def leave(self, m: Membership) -> None:
        """The round is over for this agent."""
        if self._heartbeats is None:
            return
        self._heartbeats.leave()

        def lost(found: Mapping[int, Loss]) -> None:
            if self._post_round_probe is post_round_probe:
                self._report_lost(m, found, self._core.ended_for_who_leaves())

        post_round_probe = PostRoundProbe(self._heartbeats.watched(), m.limits, lost)
        self._post_round_probe, self._left = post_round_probe, self._heartbeats

    def keep_watching(self) -> None:
        """The next round does not come at once: watch the members that were watched in the last, and let
        those that do not know of its end be told."""
        if self._post_round_probe is not None:
            self._post_round_probe.start()
        left, self._left = self._left, None
        if left is not None:
            left.tell_left()

    def attach_progress(self) -> None:
        """How far training has come goes with the next write."""
        report = self._heartbeats.progress() if self._heartbeats is not None else None
        if report is not None:
            self._lease.attach(progress=report.dump())

    def stop_heartbeats(self) -> None:
        """This agent has left the round."""
        if self._heartbeats is not None:
            self._heartbeats.stop()
        self._heartbeats = None

    def stop_post_round_probe(self) -> None:
        """There is a next round, or there will be none."""
        if self._post_round_probe is not None:
            self._post_round_probe.stop()
        self._post_round_probe = self._left = None
        self._silent = ()

    def _report_lost(self, m: Membership, lost: Mapping[int, Loss], expected: bool = False) -> None:
        """``expected``: the round has ended because members leave, and perhaps these are they."""
        for rank, loss in lost.items():
            if expected:
                logger.info("round %d is over: group rank %d has gone: %s", m.number, rank, loss.text)
            else:
                logger.warning("round %d: group rank %d is lost: %s", m.number, rank, loss.text)
        why, probe, silent = next(iter(lost.values()))
        report = RoundReport(m.nonce, silent_milliseconds=round(silent * 1000), message=why)
        if m.group_rank != 0:
            report = replace(report, leader_lost=True, connection_refused=probe is ProbeResult.REFUSED)
        else:
            self._silent = tuple(sorted({*self._silent, *lost}))
            report = replace(report, established=True, silent_ranks=self._silent)
        self._lease.write(report=report.dump())

    def _report_hung(self, m: Membership, hang: Hang) -> None:
        """On the leader: training has not got on for too long."""
        logger.warning("round %d hangs: %s", m.number, hang.text)
        self.attach_progress()
        report = RoundReport(
            m.nonce,
            established=True,
            silent_ranks=self._silent,
            hung=True,
            silent_milliseconds=round(hang.silent_seconds * 1000),
            message=hang.text,
        )
        self._lease.write(report=report.dump())

    def _progressed(self, report: ProgressReport, first: bool) -> None:
        """The round's first step is written at once, others with the next renewal."""
        if first:
            self._lease.write(progress=report.dump())
        else:
            self._lease.attach(progress=report.dump())
