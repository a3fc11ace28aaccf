"""The rounds that there have been, and what operators could not hear meanwhile.

The oracle records both as they happen, and judges by them in hindsight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from elasticjob.contract.participant_record import AnnouncedState, ParticipantRecord
from tests.simulation.api import DEAD_SECONDS
from tests.simulation.truth import RoundKey

SLACK_SECONDS = 60.0
"""How long before a round's first moment its end may have begun, if operators hear of it."""


class Word(NamedTuple):
    """The pod of this UID comes from a round, or has finished it, which its next torchrun does not know."""

    uid: str
    round: RoundKey
    finished: bool

    @classmethod
    def of(cls, uid: str, record: ParticipantRecord) -> Word:
        """What this record says."""
        finished = record.state == AnnouncedState.SUCCEEDED.value
        return cls(uid, (record.from_job_uid, record.from_round), finished)


@dataclass
class Published:
    """A round: when it was published, its members' pods, and when the next one was published, and as what.

    ``echoes``: a worker of it has failed for the loss of its peer. ``suspended``: the job was, before the
    next round; that is not charged. ``rescaled``: it ended for a planned change.
    ``succeeded``: all had finished, and their commands ran torchrun again; that is not charged either.
    """

    at: float
    uids: frozenset[str]
    until: float = float("inf")
    next: int = 0
    established: bool = False
    echoes: bool = False
    suspended: bool = False
    rescaled: bool = False
    succeeded: bool = False


class Past:
    """See the module."""

    def __init__(self) -> None:
        self.deafness: Callable[[], Iterable[tuple[str, float, float]]] = lambda: ()
        """Which watches of operators were dead without a sign, from when until when; the world sets it."""
        self.silence: Callable[[], Iterable[tuple[float, float]]] = lambda: ()
        """From when until when a watch of an operator brought nothing, dead or not connected; likewise."""
        self.restarts_in_place = False
        """Whether containers are restarted, after which nothing tells of their end."""
        self.published: dict[RoundKey, Published] = {}
        self.current: dict[str, Published] = {}
        """By job UID, the round that was published last."""
        self.closed: dict[str, float] = {}
        """By job UID, when it ended."""
        self.died_in_round: dict[str, Published] = {}
        """By UID, the agents that ended while their workers ran, before there was another round."""
        self.unheard: set[Word] = set()
        """What pods have tried in vain to say: that they come from a round, or have finished it,"""
        self.heard: set[Word] = set()
        """and those that have said so."""
        self.missed: set[RoundKey] = set()
        """Rounds that a member had left by itself, whose leader missed it before its word was written."""
        self.pods: dict[tuple[str, str], set[str]] = {}
        """(job UID, pod) -> the UIDs of all that ever bore this name."""

    def since(self, at: float) -> float:
        """From when on what happens may end a round that was published then: operators hear of it within a
        minute in which all their watches are connected and alive."""
        since, heard_from = at - SLACK_SECONDS, at
        for start, end in sorted(self.silence(), key=lambda times: times[1], reverse=True):
            if end > since and start < heard_from:
                since -= min(end, heard_from) - start
                heard_from = start
        return max(since, at - SLACK_SECONDS - DEAD_SECONDS[1])

    def deaf(self, since: float, until: float, *watches: str) -> bool:
        """Whether one of these watches was dead meanwhile: what pods said may be missed, if they are gone
        after that."""
        return any(name in watches and start < until and end > since for name, start, end in self.deafness())
