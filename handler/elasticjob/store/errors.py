"""Errors between an agent and a round's store."""

from __future__ import annotations


class StoreGone(Exception):
    """The leader's store can't be reached, or the caller no longer waits for it."""


class Unreachable(StoreGone):
    """No connection could be made, so nothing was sent to the store."""


class CannotConnect(Exception):
    """This process can make no connection to any server, so no peer is to blame.

    ``passing``: it lacks descriptors or memory, perhaps only for a moment.
    """

    def __init__(self, text: str, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing
