"""What a member notices about its round and reports in its Lease: lost members, hangs, progress.

The leader watches all members, each member watches the leader: by heartbeats while the round runs, and by
probes after it has ended for this agent, until the next round (``looking_back``). Nothing is reported once
the round has ended for another reason or has succeeded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from elasticjob.beats import Beats
from elasticjob.contract.records import ProgressReport, RoundReport
from elasticjob.core.beats import Loss, Probe
from elasticjob.core.participant import Membership, Participant
from elasticjob.core.progress import Hang
from elasticjob.lease_writer import LeaseWriter
from elasticjob.looking_back import LookingBack
from elasticjob.step_files import StepReader

logger = logging.getLogger(__name__)


class MemberWatch:
    """One agent's watch, round after round. ``doubt`` is told while the round is not as it should be."""

    def __init__(self, core: Participant, lease: LeaseWriter, doubt: Callable[[float], None]) -> None:
        self._core = core
        self._lease = lease
        self._doubt = doubt
        self._beats: Beats | None = None
        self._looking_back: LookingBack | None = None
        self._silent: tuple[int, ...] = ()

    def begin(self, m: Membership, steps: StepReader, passed: Callable[[], bool]) -> None:
        """The round is established. ``passed`` tells whether this agent is through with it."""

        def done() -> bool:
            # What a thread of a round that was left is still about to say is of that round: after the next
            # announcement the core would not call it over.
            return self._beats is not beats or bool(self._core.over()) or passed()

        def lost(found: Mapping[int, Loss]) -> None:
            if not done():
                self._say_lost(m, found)

        def hung(hang: Hang) -> None:
            if not done():
                self._say_hung(m, hang)

        def progressed(report: ProgressReport, first: bool) -> None:
            if self._beats is beats:
                self._progressed(report, first)

        def doubt(since: float) -> None:
            if not self._core.over():
                self._doubt(since)

        beats = self._beats = Beats(m, steps, lost, progressed, hung, doubt)
        beats.start()

    def look_back(self, m: Membership) -> None:
        """The round is over for this agent: keep watching the members that it has watched."""
        if self._beats is None:
            return

        def lost(found: Mapping[int, Loss]) -> None:
            if self._looking_back is looking_back:
                self._say_lost(m, found)

        looking_back = LookingBack(self._beats.watched(), m.limits, lost)
        self._looking_back = looking_back
        looking_back.start()

    def carry_progress(self) -> None:
        """How far training has come goes with what is said next."""
        report = self._beats.progress() if self._beats is not None else None
        if report is not None:
            self._lease.carry(progress=report.dump())

    def leave(self) -> None:
        """This agent leaves the round for the next one: members that do not know of its end are told."""
        if self._beats is not None:
            self._beats.leave()

    def stop_beats(self) -> None:
        """This agent has left the round."""
        if self._beats is not None:
            self._beats.stop()
        self._beats = None

    def stop_looking_back(self) -> None:
        """There is a next round, or there will be none."""
        if self._looking_back is not None:
            self._looking_back.stop()
        self._looking_back = None
        self._silent = ()

    def _say_lost(self, m: Membership, lost: Mapping[int, Loss]) -> None:
        for rank, loss in lost.items():
            logger.warning("round %d: group rank %d is lost: %s", m.number, rank, loss.text)
        why, probe, silent = next(iter(lost.values()))
        report = RoundReport(m.nonce, silent_milliseconds=round(silent * 1000), message=why)
        if m.rank != 0:
            report = replace(report, leader_lost=True, refused=probe is Probe.REFUSED)
        else:
            self._silent = tuple(sorted({*self._silent, *lost}))
            report = replace(report, established=True, silent=self._silent)
        self._lease.say(report=report.dump())

    def _say_hung(self, m: Membership, hang: Hang) -> None:
        """On the leader: training has not got on for too long."""
        logger.warning("round %d hangs: %s", m.number, hang.text)
        self.carry_progress()
        report = RoundReport(
            m.nonce,
            established=True,
            silent=self._silent,
            hung=True,
            silent_milliseconds=round(hang.silent * 1000),
            message=hang.text,
        )
        self._lease.say(report=report.dump())

    def _progressed(self, report: ProgressReport, first: bool) -> None:
        """The round's first step is said at once, others with the next renewal."""
        if first:
            self._lease.say(progress=report.dump())
        else:
            self._lease.carry(progress=report.dump())
