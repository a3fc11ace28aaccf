"""Keeps one lost DNS packet from freezing the round's store.

torch's stores look up the *name* of every peer's address for their log, in the client and in the server's
only thread (pytorch#159007). With the C library's defaults a lost packet costs 5 s, in which no client gets
an answer, not even to a heartbeat; measured: 15 s for a join of 32. After the first look-up that fails, torch
skips look-ups for the rest of the process. We use IP addresses only.
"""

from __future__ import annotations

import ctypes
import logging
import os

logger = logging.getLogger(__name__)

OPTIONS = "timeout:1 attempts:1"
"""resolv.conf(5): at most one second is lost, once."""


def shorten_lookups(options: str = OPTIONS) -> bool:
    """Let this process's resolver give up soon; returns whether it accepted the options.

    ``RES_OPTIONS`` is only set while the resolver reads it, so that the workers, which inherit the
    environment, keep their defaults. A value that is set already stays. Only glibc reads the variable, other
    C libraries (musl) do not.
    """
    if "RES_OPTIONS" in os.environ:
        return False
    try:
        res_init = ctypes.CDLL(None).__res_init
    except (AttributeError, OSError):
        return False
    os.environ["RES_OPTIONS"] = options
    try:
        accepted = bool(res_init() == 0)
    finally:
        del os.environ["RES_OPTIONS"]
    logger.debug("resolver options %s: %s", options, "set" if accepted else "refused")
    return accepted
