"""The control groups of a node, one in each hierarchy that this machine has: version 1, 2, or both.

A node's processes see its group as the root (a namespace), so everything in it is limited and counted as on
a machine. Version 2 forbids processes beside groups, so they are in a group of their own, `init`.

The name says who made it (process and the time of its start), so that what a killed one has left can be told
from what is in use.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from devcluster.supervisor import remove_cgroups

_PREFIX = "devcluster-"
_NEEDED = {"cpu", "cpuset", "memory", "pids"}
_CONTAINER = "in a container they have to be mounted so that they can be written (docker run --privileged)"
_numbers = itertools.count()


@dataclass(frozen=True)
class Hierarchy:
    """A mounted hierarchy of control groups."""

    kind: str
    """cgroup or cgroup2."""
    folder: Path
    """Where it is mounted."""
    options: str
    """Those of the mount: the controllers, or the name, of version 1; nothing for version 2."""

    @property
    def controllers(self) -> set[str]:
        """What it controls."""
        if self.kind == "cgroup2":
            return set((self.folder / "cgroup.controllers").read_text().split())
        return set(self.options.split(","))


def hierarchies(mountinfo: str | None = None) -> list[Hierarchy]:
    """Those of this machine."""
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    found = {}
    for line in text.splitlines():
        mount, _, kind = line.partition(" - ")
        folder = Path(mount.split()[4])
        name, _, options = kind.split()[:3]
        if name in ("cgroup", "cgroup2"):
            wanted = [option for option in options.split(",") if option not in ("rw", "ro", "xattr")]
            found[folder] = Hierarchy(name, folder, "" if name == "cgroup2" else ",".join(wanted))
    return list(found.values())


def unusable() -> str:
    """Why nodes can't have groups here, as a half sentence; empty: they can."""
    try:
        here = hierarchies()
        lacking = _NEEDED - {name for one in here for name in one.controllers}
    except OSError as error:
        return f"they can't be read ({error}); {_CONTAINER}"
    if lacking:
        return f"no hierarchy controls {', '.join(sorted(lacking))}; {_CONTAINER}"
    for one in here:
        if not os.access(one.folder, os.W_OK) or os.statvfs(one.folder).f_flag & os.ST_RDONLY:
            return f"{one.folder} can't be written; {_CONTAINER}"
    return ""


class NodeGroups:
    """The groups of one node."""

    def __init__(self, name: str) -> None:
        """`name` is `new_name`'s."""
        self._name = name
        self._hierarchies = hierarchies()

    @property
    def folders(self) -> list[Path]:
        """The group in each hierarchy."""
        return [one.folder / self._name for one in self._hierarchies]

    def make(self) -> None:
        """Make them. Raises OSError if the kernel refuses it."""
        for one in self._hierarchies:
            group = one.folder / self._name
            if one.kind == "cgroup2" and one.controllers:
                _delegate(one.folder, one.controllers)
                (group / "init").mkdir(parents=True)
                _delegate(group, one.controllers)
                continue
            group.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (group / name).exists() and one.kind == "cgroup":  # empty: no process may run there
                    (group / name).write_text((one.folder / name).read_text())

    def join(self) -> None:
        """Put the calling process, and what it starts from now on, into them."""
        for group in self.folders:
            leaf = group / "init"
            ((leaf if leaf.exists() else group) / "cgroup.procs").write_text(str(os.getpid()))

    def pids(self, container: str = "") -> list[int]:
        """The processes of the node, or of the container with this id, as this machine numbers them."""
        found: set[int] = set()
        for group in self.folders:
            for folder, _, files in os.walk(group):
                if "cgroup.procs" in files and container in folder:
                    with contextlib.suppress(OSError), open(f"{folder}/cgroup.procs") as file:
                        found.update(int(line) for line in file)
        return sorted(found)

    def memory_of(self, container: str) -> Path:
        """The group in which the memory of the container with this id is counted."""
        (one,) = (
            folder
            for here, group in zip(self._hierarchies, self.folders, strict=True)
            if "memory" in here.controllers
            for folder in group.rglob(container)
        )
        return one


def new_name(node: str) -> str:
    """A name for the groups of a node of this process."""
    return f"{_PREFIX}{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}-{node}"


def remove_remains() -> None:
    """Remove the groups that were made by processes which are no more."""
    for group in ours():
        maker, started = group.name.removeprefix(_PREFIX).split("-")[:2]
        if _started(int(maker)) != started and not _in_use(group):
            remove_cgroups([str(group)], seconds=0)


def mount_script() -> str:
    """Shell commands that give a namespace of control groups a view of its own, where hierarchies are now."""
    lines = []
    here = hierarchies()
    if len(here) > 1:
        lines.append("mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup")
    for one in here:
        options = f"-o {one.options} " if one.options else ""
        lines.append(f"mkdir -p {one.folder}; mount -t {one.kind} {options}cgroup {one.folder}")
    return "\n".join(lines)


def ours() -> Iterator[Path]:
    """All groups of nodes that there are on this machine."""
    for one in hierarchies():
        yield from one.folder.glob(f"{_PREFIX}*-*-*-*")


def _in_use(group: Path) -> bool:
    return any(file.read_text() for file in group.rglob("cgroup.procs"))


def _started(pid: int) -> str:
    """When the process was started, in ticks since the machine was; empty if there is none."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[19]


def _delegate(group: Path, controllers: set[str]) -> None:
    switch = group / "cgroup.subtree_control"
    for name in controllers - set(switch.read_text().split()):
        switch.write_text(f"+{name}")
