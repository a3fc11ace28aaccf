"""What has really happened to the job, and which account may bear it: no protocol message carries this."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

RoundKey = tuple[str, int]
"""(job UID, number)."""


@dataclass(frozen=True)
class Incident:
    """One thing that happened to a pod (by UID), or to any ("*").

    ``accounts`` are those that may bear it if a round ends for it; none: it is a consequence of something
    else. ``lightly``: not for long enough to end a round that is established; ``harmless``: no round may end
    for this alone. ``round``: only this one.
    """

    at: float
    who: str
    accounts: frozenset[str] = frozenset()
    lightly: bool = False
    harmless: bool = False
    round: RoundKey | None = None


class Truth:
    """Everything that has happened so far."""

    def __init__(self) -> None:
        self.incidents: list[Incident] = []

    def excuses(
        self, key: RoundKey, uids: Collection[str], since: float, established: bool, harmless: bool = False
    ) -> bool:
        """Whether anything has happened since then for which this round of these may end. ``harmless``: what
        ends no round counts as well."""
        return any(
            i.at >= since
            and (i.who in uids or i.who == "*")
            and i.round in (None, key)
            and not ((i.harmless and not harmless) or (established and i.lightly))
            for i in self.incidents
        )

    def accounts(self, key: RoundKey, uids: Collection[str], since: float, until: float) -> set[str]:
        """The accounts that may bear the end of this round, which had these members in this time."""
        found: set[str] = set()
        for i in self.incidents:
            if i.round is not None:
                ours = i.round == key
            else:
                ours = since <= i.at <= until and (i.who in uids or i.who == "*")
            if ours:
                found |= i.accounts
        return found

    def between(self, since: float, until: float) -> set[str]:
        """The accounts that may bear what has happened to anyone in this time."""
        return {account for i in self.incidents if since <= i.at <= until for account in i.accounts}

    def roots(self, uids: Collection[str], since: float, until: float) -> int:
        """How many things, at as many moments, have happened to these."""
        return len({i.at for i in self.incidents if i.accounts and i.who in uids and since <= i.at <= until})

    def of_pod(self, uid: str) -> set[str]:
        """The accounts that may bear the end of a pod that was never a member."""
        return {account for i in self.incidents if i.who in (uid, "*") for account in i.accounts}

    def failed_in(self, key: RoundKey) -> list[str]:
        """The UIDs of the pods of which a worker failed in this round by its own fault, in order."""
        return [i.who for i in self.incidents if i.round == key]
