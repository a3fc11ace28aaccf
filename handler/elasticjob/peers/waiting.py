"""What a coordinator waits for beside what the kernel waits for."""

from __future__ import annotations

import enum


class PeerWait(enum.Enum):
    """The value is the reason in words."""

    GROWTH = "for more participants to join, before a running round ends for them"
    PAUSE = "for a pause after rounds that ended early"
    KEPT_OUT = "for a while before one that could not reach its round is let into another"
    PROBE = "for the members of the previous round to rejoin, before their ports are tried"
