"""Whether the process that wrote a claim lives, where that can be known without waiting: on the same machine.

Process ids mean something only within one boot and one PID namespace, so a name has all of it.
"""

from __future__ import annotations

import os


def this_process() -> str:
    """A name for this process that no other one has, ever; empty where there is no /proc."""
    try:
        return "/".join((*_where(), str(os.getpid()), _started(os.getpid())))
    except OSError:
        return ""


def lives(process: str) -> bool | None:
    """Whether the process of this name lives; None if it cannot be known here."""
    try:
        boot, namespace, pid, started = process.split("/")
        if (boot, namespace) != _where():
            return None
        return _started(int(pid)) == started
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError):
        return None


def _where() -> tuple[str, str]:
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        boot = file.read().decode("ascii", "replace").strip()
    return boot, os.readlink("/proc/self/ns/pid")


def _started(pid: int) -> str:
    """When, in ticks since boot; a zombie has ended."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return "ended" if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")
