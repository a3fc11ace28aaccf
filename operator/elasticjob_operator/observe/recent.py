"""What was removed a while ago: remembered for as long as something late may speak of it, and no longer.

A UID that is kept for ever would keep a megabyte of Python's memory, in which all else has been freed, from
being given back; a thousand of them keep most of what a thousand jobs took. So what is kept here are hashes,
and they go when two minutes have passed (``age``).
"""

from __future__ import annotations

MOST = 10_000
"""How many are remembered at the least, however many more there are."""


class Recent:
    """UIDs of what was removed, and the version as of which it was not there."""

    def __init__(self) -> None:
        self._new: dict[int, float] = {}
        self._old: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def __contains__(self, uid: str) -> bool:
        return hash(uid) in self._new or hash(uid) in self._old

    def add(self, uid: str, version: float = float("inf")) -> None:
        """It was removed."""
        if len(self._new) >= MOST:
            self.age()
        self._new[hash(uid)] = version

    def version(self, uid: str) -> float:
        """The version as of which it was not there; below all versions if that is unknown."""
        key = hash(uid)
        return self._new.get(key, self._old.get(key, float("-inf")))

    def forget(self, uid: str) -> None:
        """It is there again."""
        self._new.pop(hash(uid), None)
        self._old.pop(hash(uid), None)

    def age(self) -> None:
        """Call it once in a while: what was added before the last call is forgotten."""
        self._old, self._new = self._new, {}
