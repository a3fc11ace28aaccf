"""A member notices lost members, hangs and progress of its round, and reports them in its Lease.

The leader watches all members, each member watches the leader: by heartbeats while the round runs, and by
probes after it has ended for this agent, until the next round (``post_round_probe``). Nothing is reported
once the round has ended for another reason or has succeeded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from elasticjob.contract.reports import (
    MAX_MILLISECONDS,
    DrainReport,
    ProgressReport,
    ResumedReport,
    RoundReport,
)
from elasticjob.contract.text import counted
from elasticjob.core.heartbeats import Loss, ProbeResult
from elasticjob.core.participant import Membership, Participant
from elasticjob.drain.board import StopBoard
from elasticjob.leases.writer import LeaseWriter
from elasticjob.store.round_store import RoundStore
from elasticjob.warm.workers import WarmWorkers
from elasticjob.watch.heartbeats import FENCED_KEY, PREPARED_KEY, TAKES_PART_KEY, Heartbeats
from elasticjob.watch.member_flags import MAX_MISSING, MemberFlag
from elasticjob.watch.post_round_probe import PostRoundProbe
from elasticjob.watch.step_files import StepReader
from elasticjob.worker.resumed import read_resumed
from elasticjob.workers.speakers import Speakers, all_say

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerFiles:
    """Readers of what the agent's workers write into the round's folder."""

    steps: StepReader
    board: StopBoard
    """Whether they take part in drains."""
    fences: Speakers
    """Which of them have fenced their checkpoints."""
    count: int | None
    """How many workers there are; None if that is unknown."""

    def all_fenced(self) -> bool:
        """Whether all have fenced their checkpoints."""
        return all_say(self.fences, self.count)


class MemberWatch:
    """One agent's watch, round after round. ``verify_source`` is called while something is wrong with the
    round. ``warm`` hears when the warm interpreters of all members are prepared."""

    def __init__(
        self,
        core: Participant,
        lease: LeaseWriter,
        verify_source: Callable[[float], None],
        warm: WarmWorkers | None = None,
    ) -> None:
        self.core = core
        self.lease = lease
        self.verify_source = verify_source
        self.warm = warm
        self._round: RoundWatch | None = None
        self._last: RoundWatch | None = None

    def begin(self, m: Membership, store: RoundStore, files: WorkerFiles) -> None:
        """The round is established."""
        self._round = RoundWatch(self, m, store, files)
        self._round.heartbeats.start()

    def leave(self) -> None:
        """The round is over for this agent: no more heartbeats. The watched members can be probed."""
        if self._round is not None:
            self._round.leave()
            self._last = self._round

    def keep_watching(self) -> None:
        """The next round does not come at once: watch the members that were watched in the last, and let
        those that do not know of its end hear it from the leader."""
        if self._last is not None:
            self._last.keep_watching()

    def attach_progress(self) -> None:
        """How far training has come goes with the next write."""
        if self._round is not None:
            self._round.attach_progress()

    def stop_heartbeats(self) -> None:
        """This agent has left the round."""
        if self._round is not None:
            self._round.stop_heartbeats()
        self._round = None

    def stop_post_round_probe(self) -> None:
        """There is a next round, or there will be none."""
        if self._last is not None:
            self._last.stop_post_round_probe()
        self._last = None


class RoundWatch:
    """One round: its heartbeats, the probes after it, and the reports on what they find (``Listener``)."""

    def __init__(self, watch: MemberWatch, m: Membership, store: RoundStore, files: WorkerFiles) -> None:
        self._watch = watch
        self._core = watch.core
        self._lease = watch.lease
        self._m = m
        self._store = store
        self._left = False
        """A thread may still be about to report of this round, when the next announcement has been made and
        the core no longer calls this one over."""
        self._silent: tuple[int, ...] = ()
        self._resumed_folder = files.steps.folder if m.group_rank == 0 else ""
        """Where rank 0's worker says where the state came from; "" once that is known."""
        flags = [
            MemberFlag(TAKES_PART_KEY, files.board.take_part, self._all_take_part, self._few_take_part),
            MemberFlag(FENCED_KEY, files.all_fenced, self._all_fenced),
        ]
        if watch.warm is not None:
            flags.append(MemberFlag(PREPARED_KEY, watch.warm.prepared, self._all_prepared))
        self.heartbeats = Heartbeats(m, files.steps, self, flags)
        self._probe: PostRoundProbe | None = None
        self._leader_tells = True

    def leave(self) -> None:
        """See ``MemberWatch``."""
        self.heartbeats.leave()
        self._probe = PostRoundProbe(self.heartbeats.watched(), self._m.limits, self._lost_after_round)

    def keep_watching(self) -> None:
        """See ``MemberWatch``."""
        if self._probe is not None:
            self._probe.start()
        if self._leader_tells:
            self._leader_tells = False
            self.heartbeats.tell_left()

    def attach_progress(self) -> None:
        """See ``MemberWatch``."""
        report = self.heartbeats.progress()
        self._attach_resumed()
        if report is not None:
            self._lease.attach(progress=report.dump())

    def stop_heartbeats(self) -> None:
        """See ``MemberWatch``."""
        self._left = True
        self.heartbeats.stop()

    def stop_post_round_probe(self) -> None:
        """See ``MemberWatch``."""
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.stop()

    # -- from the threads ----------------------------------------------------------------------------------

    def lost(self, found: Mapping[int, Loss]) -> None:
        """See ``Listener``."""
        if not self._over():
            self._report_lost(found)

    def looked(self) -> None:
        """Where the state came from goes with the first step, or with a renewal where steps are not reported:
        the worker says it before its first step."""
        if not self._left:
            self._attach_resumed()

    def progressed(self, report: ProgressReport, first: bool) -> None:
        """The round's first step is written at once, others with the next renewal."""
        if self._left:
            return
        if first:
            self._lease.write(progress=report.dump())
        else:
            self._lease.attach(progress=report.dump())

    def judged(self, report: RoundReport) -> None:
        """Report a hang, with how far training has come."""
        if self._over():
            return
        logger.warning("round %d hangs: %s", self._m.number, report.message)
        self.attach_progress()
        self._lease.write(report=replace(report, established=True, silent_ranks=self._silent).dump())

    def verify_source(self, since: float) -> None:
        """See ``Listener``."""
        if not self._core.end_reason():
            self._watch.verify_source(since)

    def _attach_resumed(self) -> None:
        found = read_resumed(self._resumed_folder) if self._resumed_folder else None
        if found is None:
            return
        self._resumed_folder = ""
        pieces = found.pieces_from_peers
        peers = f", {counted(pieces, 'piece')} from other pods" if pieces else ""
        logger.info(
            "round %d: the state is that of step %d, from %s%s, after %d ms",
            self._m.number,
            found.step,
            found.source,
            peers,
            found.milliseconds,
        )
        took = min(found.milliseconds, MAX_MILLISECONDS)
        report = ResumedReport(self._m.nonce, found.step, str(found.source), took)
        self._lease.attach(resumed=report.dump())

    def _over(self) -> bool:
        return self._left or bool(self._core.end_reason()) or self._store.passed

    def _all_take_part(self) -> None:
        if not self._over():
            self._lease.write(drain=DrainReport(self._m.nonce).dump())

    def _few_take_part(self, missing: list[int]) -> None:
        if not self._over():
            more = " and more" if len(missing) == MAX_MISSING else ""
            logger.warning(
                "round %d: not all workers of group rank%s %s%s call should_stop, as others do, so no "
                "planned change waits for a checkpoint: call it on every rank",
                self._m.number,
                "s" * (len(missing) > 1),
                ", ".join(map(str, missing)),
                more,
            )

    def _all_fenced(self) -> None:
        if not self._over():
            self._lease.write(fenced=self._m.nonce)

    def _all_prepared(self) -> None:
        if self._watch.warm is not None and not self._over():
            self._watch.warm.all_prepared()

    def _lost_after_round(self, found: Mapping[int, Loss]) -> None:
        if self._probe is not None:
            self._report_lost(found, self._core.ended_for_who_leaves())

    def _report_lost(self, lost: Mapping[int, Loss], expected: bool = False) -> None:
        """``expected``: the round has ended because members leave, and perhaps these are they."""
        m = self._m
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
