"""What can go wrong between an agent and a round's store."""

from __future__ import annotations


class StoreGone(Exception):
    """The leader's store can't be reached, or waiting for it is of no more use."""


class Unreachable(StoreGone):
    """No connection could be made: nothing has been said to the store yet."""


class CannotConnect(Exception):
    """This process can make no connection, whoever serves: nothing that a peer could be judged by.

    ``passing``: for want of descriptors or memory, which may be over in a moment.
    """

    def __init__(self, text: str, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing
