"""Reads how much memory this container has, from its cgroup (v2 or v1) and from the node."""

from __future__ import annotations

from pathlib import Path

from elasticjob.warm.interpreter_count import Memory

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
VERSIONS = (
    ("memory.max", "memory.current", "memory.stat", ""),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_"),
)
"""The files with limit, use, and the parts of the use, and the prefix of these parts' names: v2, v1."""


def read_memory(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> Memory | None:
    """The container's memory or the node's, whichever has less to give; None if neither can be read."""
    limited, own = _of_cgroup(cgroup)
    found = [memory for memory in (limited, _of_node(meminfo, own)) if memory is not None]
    return min(found, key=lambda memory: memory.available, default=None)


def private_bytes(pid: int) -> int | None:
    """The private memory of this process; None if that can't be read."""
    found = _numbers(Path(f"/proc/{pid}/status")).get("RssAnon")
    return None if found is None else found * 1024


def _of_cgroup(cgroup: Path) -> tuple[Memory | None, int | None]:
    """The memory within the container's limit, if it has one, and how much the container uses, without the
    files that Linux has cached for it; None if that can't be read."""
    own: int | None = None
    for limit_name, used_name, stat_name, prefix in VERSIONS:
        try:
            used = int((cgroup / used_name).read_text())
        except (OSError, ValueError):
            continue
        parts = _numbers(cgroup / stat_name)
        inactive, active = (parts.get(f"{prefix}{name}", 0) for name in ("inactive_file", "active_file"))
        own = max(0, used - inactive - active) if own is None else own
        try:
            limit = int((cgroup / limit_name).read_text())
        except (OSError, ValueError):  # "max": no limit
            continue
        return Memory(limit, max(0, limit - used + inactive)), own
    return None, own


def _of_node(meminfo: Path, own: int | None) -> Memory | None:
    numbers = _numbers(meminfo)
    if "MemTotal" not in numbers or "MemAvailable" not in numbers:
        return None
    return Memory(numbers["MemTotal"] * 1024, numbers["MemAvailable"] * 1024, own)


def _numbers(path: Path) -> dict[str, int]:
    """Lines such as ``name 5`` or ``Name:   5 kB``."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.replace(":", " ").split()[:2] for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
