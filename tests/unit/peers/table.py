"""Participants around a table, as a coordinator sees them, and its looks at them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import AnnouncedState, ParticipantRecord
from elasticjob.contract.reports import FailureReport, ProgressReport, RoundReport
from elasticjob.peers.plan import Decision, look
from elasticjob.peers.run import Run
from elasticjob.peers.settled import Settled
from elasticjob.peers.sight import Peer, Sight
from elasticjob.rounds.waits import WaitKey, Waits

BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
RUN = Run("mnist", "run-1", 2, 3)


class Table:
    """One run. ``look`` is one look of its coordinator; what it decides is written at once."""

    def __init__(self, minimum: int = 2, maximum: int = 3, last_call: int = 30) -> None:
        run = replace(RUN, minimum=minimum, maximum=maximum)
        self.settled = Settled.first(run, Limits(initial_last_call_timeout=last_call))
        self.now = 0.0
        self.round_began = 0.0
        self.peers: dict[str, Peer] = {}
        self.gone: dict[str, str] = {}
        self.live_pods: dict[str, str] | None = None
        self.pending: frozenset[str] = frozenset()
        self.unreadable: frozenset[str] = frozenset()
        self.reports: dict[str, RoundReport] = {}
        self.suspects: frozenset[str] = frozenset()
        self.finished: frozenset[str] = frozenset()
        self.staying: frozenset[str] | None = None
        self.older: frozenset[str] = frozenset()
        self.others: dict[str, str] = {}
        self.said: dict[str, ParticipantRecord] = {}
        self.last = Decision(self.settled)
        self._began: dict[WaitKey, float] = {}
        self._made = 0

    def join(self, *names: str) -> None:
        """These announce themselves, again if they have before. What they have reported of a round stays."""
        for name in names:
            self._made += 1
            before = self.peers.get(name)
            record = ParticipantRecord(
                f"id-{self._made}",
                AnnouncedState.JOINING.value,
                f"10.0.0.{self._made}:1234",
                from_round=self.number if before is not None else 0,
                seen_job_uid=RUN.id,
                seen_round=self.number,
            )
            key = before.key if before is not None else f"uid-{name}-{self._made}"
            report = before.report if before is not None else None
            self.peers[name] = Peer(name, key, record, int(name[-1]), report)

    def succeed(self, *names: str) -> None:
        """The workers of these have finished well."""
        for name in names:
            self._announce(name, state=AnnouncedState.SUCCEEDED.value, from_round=self.number)

    def leave(self, name: str) -> None:
        """It ends on a signal."""
        self._announce(name, state=AnnouncedState.LEAVING.value)

    def report(self, name: str, **report: Any) -> None:
        """What it says of the present round."""
        self.peers[name] = replace(self.peers[name], report=RoundReport(self.nonce, **report))

    def fail(self, name: str, message: str = "", offset: int | None = None) -> None:
        """A worker of it has failed in the present round."""
        rank = next(m.group_rank for m in self.settled.state.members if m.name == name)
        failure = FailureReport(self.number, rank, message, offset_milliseconds=offset, nonce=self.nonce)
        self.peers[name] = replace(self.peers[name], failure=failure)

    def progress(self, name: str, step: int) -> None:
        """Its workers have come to this step."""
        report = ProgressReport(self.nonce, 0, step, 0, 0)
        self.peers[name] = replace(self.peers[name], progress=report)

    def silence(self, name: str, seconds: float) -> None:
        """Nothing was heard of it for so long."""
        self.peers[name] = replace(self.peers[name], silent=seconds)

    def look(self, after: float = 0.0) -> Decision:
        """A look, some seconds later."""
        self.now += after
        waits = Waits(self._began, self.now)
        number, nonce = self.number, f"nonce-{self.number + 1}"
        sight = Sight(
            self.peers,
            BEGAN + timedelta(seconds=self.now),
            nonce,
            self.unreadable,
            self.gone,
            self.live_pods,
            suspects=self.suspects,
            older=self.older,
            others=self.others,
            said=self.said,
            round_age=self.now - self.round_began,
            finished=self.finished,
            staying=self.staying,
            pending=self.pending,
            reports=self.reports,
        )
        self.last = look(self.settled, sight, waits)
        self.settled, self._began = self.last.settled, waits.began
        self.round_began = self.now if self.number != number else self.round_began
        return self.last

    def train(self, *names: str) -> None:
        """A round with these, established."""
        self.join(*names)
        self.look()
        self.look(self.settled.limits.initial_last_call_timeout)
        assert self.settled.state.active, self.last.waiting
        self.report(self.members[0], established=True)
        self.look()

    @property
    def number(self) -> int:
        """Of the present round."""
        return self.settled.state.number

    @property
    def nonce(self) -> str:
        """Of the present round."""
        return self.settled.state.nonce

    @property
    def members(self) -> list[str]:
        """Of the present round, in rank order."""
        return [m.name for m in self.settled.state.members]

    @property
    def told(self) -> tuple[int, str, str]:
        """Number, phase and cause."""
        r = self.settled.state
        return r.number, r.phase, r.cause

    def _announce(self, name: str, **changes: Any) -> None:
        peer = self.peers[name]
        self.peers[name] = replace(peer, record=replace(peer.record, **changes))
