"""What was done and what came of it, in one order of time; and the table of both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Entry:
    """A fault, or the end of one. Times are seconds since the timeline began."""

    at: float
    name: str
    target: str
    calm: bool
    """Before it all replicas were in an established round, and nothing was hurt any more."""
    cause: str = ""
    """Of a planned change, the cause with which it is to end the round."""
    drains: int = 0
    """The round that a planned change must drain, because it takes part and all is well; else 0."""
    broke: list[int] = field(default_factory=list)
    """Rounds that ended between this entry and the next one."""
    causes: list[str] = field(default_factory=list)
    established: float | None = None
    """When, after the first such end, a round was established."""


class Timeline:
    """Lines are printed as they come. May be used from any thread."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self.entries: list[Entry] = []

    def now(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def fault(self, name: str, target: str, calm: bool, cause: str = "", drains: int = 0) -> Entry:
        """Something is being done now."""
        with self._lock:
            entry = Entry(self.now(), name, target, calm, cause, drains)
            self.entries.append(entry)
        self._line(f"{name}: {target}" if target else name)
        return entry

    def skip(self, entry: Entry, why: str) -> None:
        """The fault could not be done: it is not in the table."""
        with self._lock:
            self.entries.remove(entry)
            if self.entries:
                self.entries[-1].broke += entry.broke
        self._line(f"      left out: {why}")

    def broken(self, number: int) -> Entry | None:
        """Round ``number`` has ended; returns the entry that it is put down to."""
        with self._lock:
            entry = self.entries[-1] if self.entries else None
            if entry is not None:
                entry.broke.append(number)
        self._line(f"  round {number} is over")
        return entry

    def published(self, number: int, cause: str, members: int, message: str) -> None:
        """Round ``number`` stands in the status."""
        with self._lock:
            for entry in self.entries:
                if number - 1 in entry.broke:
                    entry.causes.append(cause)
        self._line(f"  round {number}: {members} members, {cause}: {message[:150]}")

    def established(self, number: int) -> None:
        """All members of round ``number`` have met."""
        with self._lock:
            for entry in self.entries:
                if entry.broke and entry.established is None and max(entry.broke) < number:
                    entry.established = self.now()
        self._line(f"  round {number} is established")

    def note(self, text: str) -> None:
        """Anything else that a reader should see in its place."""
        self._line(text)

    def _line(self, text: str) -> None:
        self._say(f"{self.now():7.1f}  {text}")

    def table(self) -> str:
        """For each kind of fault: how often, how many rounds it ended, seconds until one was established."""
        rows = []
        for name in sorted({e.name for e in self.entries}):
            entries = [e for e in self.entries if e.name == name]
            seconds = [e.established - e.at for e in entries if e.broke and e.established is not None]
            causes = sorted({c for e in entries for c in e.causes})
            rows.append(
                (
                    *(name, str(len(entries)), str(sum(len(e.broke) for e in entries))),
                    f"{median(seconds):.1f}" if seconds else "-",
                    f"{max(seconds):.1f}" if seconds else "-",
                    ", ".join(causes),
                )
            )
        head = ("what was done", "times", "rounds ended", "seconds to established: median", "most", "causes")
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        lines = [head, tuple("-" * w for w in widths), *rows]
        return "\n".join(
            "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
            for row in lines
        )
