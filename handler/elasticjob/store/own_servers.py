"""The TCPStore servers of one agent, and when each of them is closed.

A server holds the descriptors of two ports and two native threads, and only its destructor ends it. So it has
one owner, which closes it explicitly: other references to the object (torch's RendezvousInfo, the frames of
an exception, a cycle) do not keep it alive. A process that is forked while a server is left over would run
the destructor of threads that it does not have, and crash.
"""

from __future__ import annotations

from elasticjob.store.held_port import HeldPort
from elasticjob.store.server import Server, serve


class OwnServers:
    """Up to four servers: the offered one, that of a round that is being established, and those of the last
    established round, for its agents and for its workers.

    A server that has served no round is offered again: to make one takes two thirds of a millisecond, at the
    moment when all agents of a job do it.
    """

    def __init__(self) -> None:
        self._offered: Server | None = None
        self._entered: Server | None = None
        self._established: Server | None = None
        self._workers: Server | HeldPort | None = None
        self._unused: Server | None = None

    def offer(self) -> Server:
        """The server for an announcement: any joiner may turn out to lead."""
        if self._unused is None:
            self._unused = Server(serve())
        self._replace("_offered", self._unused)
        return self._unused

    def enter(self, leads: bool) -> Server:
        """The announcement has become a membership; with ``leads`` it serves this round.

        The server of a round that failed before is kept until here: members that hear of its end later than
        its leader would accuse a leader whose port is gone.
        """
        server = self._offered
        assert server is not None
        self._replace("_entered", server)
        self._offered = None
        if leads:
            self._unused = None
        return server

    def establish(self, workers: Server | HeldPort | None) -> None:
        """The round is established: close what served the one before."""
        if self._workers is not None:
            self._workers.close()
        self._workers = workers
        self._replace("_established", self._entered)
        self._entered = None

    def close(self) -> None:
        """End all of them."""
        self._unused = None
        for place in ("_offered", "_entered", "_established"):
            self._replace(place, None)
        if self._workers is not None:
            self._workers.close()
        self._workers = None

    def _replace(self, place: str, server: Server | None) -> None:
        """Put a server into this place, and close what was there unless it is in use."""
        before: Server | None = getattr(self, place)
        setattr(self, place, server)
        in_use = (self._offered, self._entered, self._established, self._unused)
        if before is not None and all(before is not one for one in in_use):
            before.close()
