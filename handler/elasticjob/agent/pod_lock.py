"""One agent per pod: a second agent learns that it is the second before it touches the pod's Lease.

The environment of a container makes every torchrun in it join (``PET_RDZV_BACKEND``). A torchrun that is
started with ``kubectl exec``, or by a training script, would take over the Lease and so end the round. To
prevent this, an agent holds a name in Linux's abstract socket namespace for as long as it
lives. All containers of a pod see the name, because they share the network namespace. It needs no file system
and no rights, and the kernel frees it with the process, however that ends. So a container that is restarted
in place, and a command that starts torchrun again, find it free. The name contains the pod's UID, because
pods with hostNetwork, and agents outside pods, share a namespace.

The process holds the name: all handlers of one process share it. Where there are no such sockets, nothing is
checked.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from elasticjob.contract import names

logger = logging.getLogger(__name__)

OWNER_EXIT_SECONDS = 3.0
"""How long a process that is being killed may take until it is gone."""
POLL_SECONDS = 0.1
ASIDE = "torchrun --standalone --nnodes=1 --max-restarts=0"


class SecondAgent(RuntimeError):
    """Another process of this pod takes part. The text names it, and what to do."""


class AgentLock:
    """This process's claim to be the pod's agent, until ``release``. Making one raises SecondAgent."""

    def __init__(self, pod: str, uid: str, job: str) -> None:
        self._uid = uid
        self._held = True
        with _lock:
            if uid not in _sockets:
                found = _bind(uid)
                if found is None:
                    raise SecondAgent(_message(pod, job, _owner(uid)))
                _sockets[uid] = found
            _holders[uid] = _holders.get(uid, 0) + 1

    def release(self) -> None:
        """Give it up; may be called again."""
        with _lock:
            if not self._held or self._uid not in _holders:  # a forked child has none
                return
            self._held = False
            _holders[self._uid] -= 1
            if not _holders[self._uid]:
                del _holders[self._uid]
                _sockets.pop(self._uid).close()


_lock = threading.Lock()
_sockets: dict[str, socket.socket] = {}
_holders: dict[str, int] = {}


def _address(uid: str) -> bytes:
    return f"\0{names.GROUP}/agent/{uid}".encode()[:107]


def _bind(uid: str) -> socket.socket | None:
    """The socket that holds the name; None if another process has the name. On other systems than Linux the
    socket has no name."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + OWNER_EXIT_SECONDS
    while sys.platform == "linux":
        try:
            one.bind(_address(uid))
            one.listen(1)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                logger.debug("cannot detect a second agent in this pod: %s", error)
            elif time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                continue
            else:
                one.close()
                return None
        break
    return one


def _owner(uid: str) -> str:
    """Which process holds the name, as far as this one may see it."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.setblocking(False)
            one.connect(_address(uid))
            size = struct.calcsize("3i")
            pid, _, _ = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    except OSError:
        pid = 0
    if pid <= 0:
        return "another process of this pod"
    try:
        words = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        )
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return f"process {pid} of this pod"
    return f"process {pid} of this pod ({words[:200]}){', which is stopped by a signal,' * (state in 'Tt')}"


def _message(pod: str, job: str, owner: str) -> str:
    variables = sorted(name for name in os.environ if name.startswith("PET_"))
    why = (
        f" torchrun takes flags that are not given from the environment, which has {', '.join(variables)}."
        if "PET_RDZV_BACKEND" in variables
        else ""
    )
    return (
        f"{owner} already takes part in ElasticJob {job} as pod {pod}, and only one torchrun per pod can. "
        f"This one exits; the round continues.{why} To run something beside the training, use: {ASIDE} ... "
        "(flags override PET_* variables), or unset PET_RDZV_BACKEND, PET_NNODES and PET_MAX_RESTARTS first"
    )


def _forked() -> None:
    """A child is not the agent: it must not keep the name when the agent is gone."""
    global _lock
    _lock = threading.Lock()
    for one in _sockets.values():
        one.close()
    _sockets.clear()
    _holders.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
