"""``status.accounts``: restarts by who pays for them. Frozen data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from elasticjob_operator.plan.state.json_fields import always, internal

MAX_CHARGES = 20
"""Charges of an account that are listed; all inside its window count."""
MAX_OLDER = 102
"""Counts of those that are not listed: a hundred to a window."""


@dataclass(frozen=True)
class Charge:
    """A restart charged to an account: for the end of ``round``, or for ``pod_name``, which ended while it
    was no member. Either is a key, and one charge may have both: charging again changes nothing.
    ``node_name`` is where the root failure was, ``message`` the sentence on it, cut short. ``during_round``
    is the round that went on meanwhile: nothing was restarted, and no limit counts it. ``counted_with`` is a
    pod whose charge counts for this one, too: both are ends of one attempt, and a limit is for attempts."""

    time: datetime
    round: int | None = None
    pod_name: str = ""
    cause: str = ""
    node_name: str = ""
    message: str = ""
    during_round: int | None = None
    counted_with: str = ""

    @property
    def counts(self) -> bool:
        """Whether limits count it."""
        return self.during_round is None and not self.counted_with


@dataclass(frozen=True)
class OlderCharges:
    """How many charges are listed no more; ``until_time`` is when the newest of them was made."""

    until_time: datetime
    count: int = always(0)


@dataclass(frozen=True)
class Account:
    """One of ``status.accounts``. ``used`` are the charges inside the window that count: the newest are
    listed, the others counted by the time that they leave it."""

    name: str
    max_restarts: int | None = None
    window_seconds: int | None = None
    charges: tuple[Charge, ...] = ()
    older_charges: tuple[OlderCharges, ...] = internal(())

    @property
    def used(self) -> int:
        """How many charges are inside the window."""
        listed = sum(charge.counts for charge in self.charges)
        return listed + sum(entry.count for entry in self.older_charges)

    def charged(self, charge: Charge) -> Account:
        """The account with one more charge."""
        return replace(self, charges=tuple(sorted((*self.charges, charge), key=lambda c: c.time))).counted()

    def counted(self, listed: int = MAX_CHARGES) -> Account:
        """The account with no more than this many of the newest charges listed, the others counted.

        Counted charges leave the window up to a hundredth of it late; without a window by the hour.
        """
        spare = self.charges[:-listed]
        if not spare:
            return self
        width = max(1.0, (self.window_seconds or 360_000) / 100)
        older = list(self.older_charges)
        for charge in spare:
            if not charge.counts:
                continue
            last = older[-1] if older else None
            if last is not None and last.until_time.timestamp() // width >= charge.time.timestamp() // width:
                older[-1] = OlderCharges(max(last.until_time, charge.time), last.count + 1)
            else:
                older.append(OlderCharges(charge.time, 1))
        while len(older) > MAX_OLDER:
            first, second, *others = older
            older = [OlderCharges(second.until_time, first.count + second.count), *others]
        return replace(self, charges=self.charges[-listed:], older_charges=tuple(older))

    def since(self, time: datetime) -> Account:
        """The account with the charges that are younger than ``time``."""
        return replace(
            self,
            charges=tuple(c for c in self.charges if c.time > time),
            older_charges=tuple(entry for entry in self.older_charges if entry.until_time > time),
        )
