"""Whether the process that wrote a claim lives, if that can be known without waiting: on the same machine.

A process id is unique within one boot and one PID namespace only, so a process's name has these, too.
"""

from __future__ import annotations

import os

from elasticjob.workers.processes import parse


def this_process() -> str:
    """A name for this process that no other one ever has; "" if there is no /proc."""
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
    """When, in ticks since boot; a zombie has ended. Raises OSError: unlike ``processes.find``, which takes a
    process that can't be read for one that has ended."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        process = parse(pid, file.read())
    return str(process.born) if process is not None and process.alive else "ended"
