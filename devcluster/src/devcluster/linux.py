"""The few Linux system calls that Python 3.10 does not offer. Each raises OSError on failure."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Give the calling thread (for CLONE_NEWPID: its next child) new namespaces."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def enter_user_namespace(number: int = 0) -> None:
    """Let the calling process, which has one thread, be user and group ``number`` of a new user namespace.

    Until it executes a program (as 0: also then) it has all capabilities over what it makes from now on.
    """
    maps = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
    unshare(CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    for file, outside in maps.items():
        Path("/proc/self", file).write_text(f"{number} {outside} 1")


def setns(fd: int, flags: int) -> None:
    """Enter the namespace of ``fd`` (for CLONE_NEWPID: let the next child enter it)."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(flags)), "setns")


def new_network() -> int:
    """Make a network namespace and return a file of it; it lives while that, or a process in it, is there."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        unshare(CLONE_NEWNET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    finally:
        setns(own, CLONE_NEWNET)
        os.close(own)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(result, f"mount {source or kind} on {target}")


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument."""
    unsigned = ctypes.c_ulong
    _check(_libc.prctl(ctypes.c_int(option), unsigned(value), unsigned(0), unsigned(0), unsigned(0)), "prctl")


def sethostname(name: str) -> None:
    """Set the host name of the calling process's UTS namespace."""
    encoded = os.fsencode(name)
    _check(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))), "sethostname")
