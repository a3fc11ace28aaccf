"""The file system of a container in its private mount namespace: the host's, with the volumes bound into it.

Runs in the forked child, before exec. Nothing may be created on the host, so a mount point that does not
exist is made like this: the nearest directory that exists is replaced by a tmpfs that holds the same entries,
each bound to the original, and in it there is room for a new one. (An overlay would do the same with less,
but can't be had in every container or on every file system, and would hide what pods write from the host.)
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from devcluster import linux


@dataclass(frozen=True)
class Mount:
    """A file or directory of the host that shall appear at ``target``."""

    source: str
    target: str
    read_only: bool = False


class Root:
    """Assembles the private root. One instance per container, used in the child only."""

    def __init__(self, staging: str) -> None:
        """``staging``: an existing empty directory, used if "/" itself must get a new entry."""
        self._staging = staging
        self._private: set[str] = set()
        """Directories that exist in this container only: an entry made in one of them is not the host's."""
        self._volumes: set[str] = set()
        """Volumes bound so far: a mount point inside of one is made in the volume, as a runtime does."""

    def assemble(self, mounts: list[Mount], directories: list[str]) -> None:
        """Make /proc fit the new PID namespace, bind ``mounts``, and see to it that ``directories`` exist."""
        linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("proc", "/proc", "proc", 0)
        ordered = sorted(mounts, key=lambda mount: mount.target.count("/"))
        # Opened first: a mount may cover the place where the source of another one lies.
        sources = [os.open(mount.source, os.O_PATH) for mount in ordered]
        for mount, source in zip(ordered, sources, strict=True):
            is_directory = stat.S_ISDIR(os.fstat(source).st_mode)
            target = self._ensure(mount.target, is_directory)
            linux.mount(f"/proc/self/fd/{source}", target, None, linux.MS_BIND | linux.MS_REC)
            if mount.read_only:
                # In a user namespace the kernel insists on these three.
                kept = os.statvfs(target).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
                flags = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY
                linux.mount(None, target, None, flags | kept)
            elif is_directory:
                self._volumes.add(target)
            os.close(source)
        for directory in directories:
            self._ensure(directory, True)

    def _ensure(self, path: str, is_directory: bool) -> str:
        """The real path of ``path``, made as an empty directory or file if it is not there."""
        path = os.path.realpath(path)
        if os.path.exists(path):
            return path
        parent = self._ensure(os.path.dirname(path), True)
        if not self._may_write(parent):
            self._mirror(parent)
        if is_directory:
            os.mkdir(path, 0o755)
            self._private.add(path)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        return path

    def _may_write(self, directory: str) -> bool:
        inside = any(directory == volume or directory.startswith(volume + "/") for volume in self._volumes)
        return inside or directory in self._private

    def _mirror(self, directory: str) -> None:
        """Replace ``directory`` by a tmpfs with the same entries, each bound to the original."""
        place = self._staging if directory == "/" else directory
        original = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        names = os.listdir(directory)
        mode = stat.S_IMODE(os.fstat(original).st_mode)
        linux.mount("tmpfs", place, "tmpfs", 0, f"mode={mode:o}")
        for name in names:
            source, copy = f"/proc/self/fd/{original}/{name}", os.path.join(place, name)
            kind = os.lstat(source).st_mode
            if stat.S_ISLNK(kind):
                os.symlink(os.readlink(source), copy)
                continue
            if stat.S_ISDIR(kind):
                os.mkdir(copy)
            else:
                os.close(os.open(copy, os.O_CREAT | os.O_WRONLY))
            linux.mount(source, copy, None, linux.MS_BIND | linux.MS_REC)
        os.close(original)
        if directory == "/":
            os.chdir(place)
            linux.mount(".", "/", None, linux.MS_MOVE)
            os.chroot(".")
        self._private.add(directory)
