"""How much memory this container has, from its cgroup (v2 or v1) and from the node."""

from __future__ import annotations

from pathlib import Path

from elasticjob.core.warm_count import Memory

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
VERSIONS = (
    ("memory.max", "memory.current", "memory.stat", ""),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_"),
)
"""Limit, use, and its parts, whose names begin so: v2, v1."""


def read_memory(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> Memory | None:
    """The container's memory or the node's, whichever has less to give; None if neither can be read."""
    found = [memory for memory in (_of_cgroup(cgroup), _of_node(meminfo, cgroup)) if memory is not None]
    return min(found, key=lambda memory: memory.available, default=None)


def private_bytes(pid: int) -> int | None:
    """What this process alone has in memory; None if that can't be read."""
    found = _numbers(Path(f"/proc/{pid}/status")).get("RssAnon")
    return None if found is None else found * 1024


def _of_cgroup(cgroup: Path) -> Memory | None:
    for limit_name, used_name, stat_name, prefix in VERSIONS:
        try:
            limit = int((cgroup / limit_name).read_text())
            used = int((cgroup / used_name).read_text())
        except (OSError, ValueError):  # "max" is no number: no limit
            continue
        cached = _numbers(cgroup / stat_name).get(f"{prefix}inactive_file", 0)
        return Memory(limit, max(0, limit - used + cached))
    return None


def _of_node(meminfo: Path, cgroup: Path) -> Memory | None:
    numbers = _numbers(meminfo)
    if "MemTotal" not in numbers or "MemAvailable" not in numbers:
        return None
    return Memory(numbers["MemTotal"] * 1024, numbers["MemAvailable"] * 1024, _use(cgroup))


def _use(cgroup: Path) -> int | None:
    """What the container uses of the node's memory. Files that the kernel has cached for it are available to
    all."""
    for _, used_name, stat_name, prefix in VERSIONS:
        try:
            used = int((cgroup / used_name).read_text())
        except (OSError, ValueError):
            continue
        parts = _numbers(cgroup / stat_name)
        cached = sum(parts.get(f"{prefix}{name}", 0) for name in ("inactive_file", "active_file"))
        return max(0, used - cached)
    return None


def _numbers(path: Path) -> dict[str, int]:
    """Lines such as ``name 5`` or ``Name:   5 kB``."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.replace(":", " ").split()[:2] for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
