"""The TCPStore servers of one agent, and when each of them is closed.

A server holds the descriptors of two ports and two native threads, and only its destructor ends it. So it has
one owner, which closes it explicitly: other references to the object (torch's RendezvousInfo, the frames of
an exception, a cycle) do not keep it alive. A process that is forked while a server is left over would run
the destructor of threads that it does not have, and crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticjob.stores import HeldPort, Server, serve

if TYPE_CHECKING:
    from collections.abc import Iterable


class OwnServers:
    """At most four: what is offered, what serves a round that is being established, and what serves the last
    established one, to its agents and to its workers."""

    def __init__(self) -> None:
        self._offered: Server | None = None
        self._entered: Server | None = None
        self._established: Server | None = None
        self._workers: Server | HeldPort | None = None

    def offer(self) -> Server:
        """A new one for an announcement: any joiner may turn out to lead."""
        _close([self._offered])
        self._offered = Server(serve())
        return self._offered

    def enter(self) -> Server:
        """The announcement has become a membership.

        The server of a round that failed before is kept until here: members that hear of its end later than
        its leader would accuse a leader whose port is gone.
        """
        assert self._offered is not None
        _close([self._entered])
        self._entered, self._offered = self._offered, None
        return self._entered

    def establish(self, workers: Server | HeldPort | None) -> None:
        """The round is established: what served the one before is of no more use."""
        _close([self._established, self._workers])
        self._established, self._entered, self._workers = self._entered, None, workers

    def close(self) -> None:
        """End all of them."""
        _close([self._offered, self._entered, self._established, self._workers])
        self._offered = self._entered = self._established = self._workers = None


def _close(servers: Iterable[Server | HeldPort | None]) -> None:
    for server in servers:
        if server is not None:
            server.close()
