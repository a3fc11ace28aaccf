"""Claims of what only one of our processes may use: a lock that leaves no file behind.

It is an abstract Unix socket: the kernel drops it with the process that holds it, and it exists once per
network namespace, as ports and addresses do.
"""

from __future__ import annotations

import socket


def claim(name: str) -> socket.socket | None:
    """Hold this name until what is returned is closed; None if another holds it."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(f"\0devcluster-{name}")
    except OSError:
        held.close()
        return None
    return held
