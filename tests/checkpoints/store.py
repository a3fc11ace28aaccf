"""A shared folder and an object store in memory, of which every call may fail or be the last."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import IO, Protocol

from tests.checkpoints.scheduler import Killed, Process, Scheduler


@dataclass
class Disk:
    """What is stored, for all processes. ``capacity`` is in bytes."""

    objects: bool
    """An object store: one PUT is one step, and there are no folders."""
    capacity: int | None = None
    foreign: int = 0
    """What others have written there, in bytes."""
    files: dict[str, bytes] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def used(self) -> int:
        return self.foreign + sum(map(len, self.files.values()))

    def write(self, path: str, content: bytes) -> None:
        if not self.objects and path.rpartition("/")[0] not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        more = len(content) - len(self.files.get(path, b""))
        if self.capacity is not None and more > 0 and self.used() + more > self.capacity:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        self.files[path] = content


class Watcher(Protocol):
    """What a history does at each call, and what it wants to know."""

    def trouble(self, what: str, changes: bool) -> str:
        """Before a call: what goes wrong, or nothing."""

    def removal_seconds(self) -> float:
        """How long it takes to remove one file."""

    def written(self, path: str, content: bytes) -> None:
        """A small file is there."""

    def removed(self, path: str) -> None:
        """A file was there."""


class Mount:
    """The ``Storage`` of one process."""

    def __init__(self, disk: Disk, process: Process, scheduler: Scheduler, watcher: Watcher) -> None:
        self._disk = disk
        self._process = process
        self._scheduler = scheduler
        self._watcher = watcher

    def _call(self, what: str, effect: Callable[[], None] | None = None) -> None:
        """One call, in which others may come in between before and after."""
        self._scheduler.step()
        trouble = self._watcher.trouble(what, effect is not None)
        if trouble == "killed before":
            self._process.dead = True
            raise Killed
        if trouble == "fails":
            self._process.failed += 1
            raise OSError(errno.EIO, f"{what} has failed")
        if effect:
            try:
                effect()
            except OSError as error:
                self._process.failed += error.errno == errno.ENOSPC
                raise
        if trouble == "killed after":
            self._process.dead = True
            raise Killed
        if trouble == "answer lost":
            self._process.failed += 1
            raise OSError(errno.EIO, f"no answer to {what}")

    def join(self, *parts: str) -> str:
        return "/".join(parts)

    def names(self, path: str) -> list[str]:
        self._call("list")
        inside = path + "/"
        found = {
            name[len(inside) :].partition("/")[0] for name in self._disk.files if name.startswith(inside)
        }
        found |= {
            name[len(inside) :].partition("/")[0] for name in self._disk.folders if name.startswith(inside)
        }
        return sorted(found)

    def sizes(self, path: str) -> dict[str, int]:
        self._call("sizes")
        inside = path + "/"
        return {
            name[len(inside) :]: len(content)
            for name, content in self._disk.files.items()
            if name.startswith(inside) and "/" not in name[len(inside) :]
        }

    @contextmanager
    def _stream(self, path: str, mode: str) -> Iterator[IO[bytes]]:
        if mode == "rb":
            yield BytesIO(self.read(path))
            return
        file = BytesIO()
        if not self._disk.objects:
            self._call("open", lambda: self._disk.write(path, b""))
        yield file
        content = file.getvalue()
        if not self._disk.objects:
            self._call("write", lambda: self._disk.write(path, content[: len(content) // 2]))
        self._call("close", lambda: self._disk.write(path, content))

    def stream(self, path: str, mode: str) -> AbstractContextManager[IO[bytes]]:
        return self._stream(path, mode)

    def put(self, path: str, content: bytes) -> None:
        if self._disk.objects:

            def whole() -> None:
                self._disk.write(path, content)
                self._watcher.written(path, content)

            self._call("put", whole)
            return
        unfinished = f"{path}.{self._scheduler.random.getrandbits(32):08x}.tmp"

        def into_place() -> None:
            self._rename(unfinished, path)
            self._watcher.written(path, content)

        try:
            self._call("create", lambda: self._disk.write(unfinished, content))
            self._call("rename", into_place)
        except OSError:
            self._disk.files.pop(unfinished, None)
            raise

    def _rename(self, old: str, new: str) -> None:
        if old not in self._disk.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self._disk.files[new] = self._disk.files.pop(old)

    def space(self, path: str) -> tuple[int, int] | None:
        del path
        if self._disk.objects or self._disk.capacity is None:
            return None
        return self._disk.capacity - self._disk.used(), self._disk.capacity

    def read(self, path: str) -> bytes:
        self._call("read")
        if path not in self._disk.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._disk.files[path]

    def make_folder(self, path: str) -> None:
        self._call("mkdir", lambda: self._disk.folders.add(path))

    def rename(self, old: str, new: str) -> None:
        self._call("rename", lambda: self._rename(old, new))

    def remove(self, path: str) -> None:
        for name in [name for name in self._disk.files if name == path or name.startswith(path + "/")]:
            if seconds := self._watcher.removal_seconds():
                self._scheduler.sleep(seconds)
            self._call("remove", partial(self._forget, name))
        self._call("rmdir", lambda: self._disk.folders.discard(path))

    def _forget(self, name: str) -> None:
        if self._disk.files.pop(name, None) is not None:
            self._watcher.removed(name)
