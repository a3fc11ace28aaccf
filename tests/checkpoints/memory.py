"""A ``Storage`` in memory for one thread, in which a test can look and act between two calls."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from typing import IO

from elasticjob.checkpoint import records
from elasticjob.checkpoint.directory import Directory
from elasticjob.checkpoint.records import MARKER, File, Marker, Name

PATH = "run"
SHARD = b"x" * 1000


class Memory:
    """Files by their paths. ``before`` is called before each call with its name and path."""

    def __init__(self, capacity: int | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.capacity = capacity
        self.now = 0.0
        self.before: Callable[[str, str], None] = lambda *_: None
        self._numbers = iter(range(1_000_000))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.before("sleep", "")

    def free(self) -> int:
        assert self.capacity is not None
        return self.capacity - sum(map(len, self.files.values()))

    def write(self, path: str, content: bytes) -> None:
        if self.capacity is not None and self.free() < len(content) - len(self.files.get(path, b"")):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        self.files[path] = content

    def join(self, *parts: str) -> str:
        return "/".join(parts)

    def names(self, path: str) -> list[str]:
        self.before("names", path)
        inside = path + "/"
        return sorted({name[len(inside) :].split("/")[0] for name in self.files if name.startswith(inside)})

    def sizes(self, path: str) -> dict[str, int]:
        self.before("sizes", path)
        return {
            name.rpartition("/")[2]: len(content)
            for name, content in self.files.items()
            if name.rpartition("/")[0] == path
        }

    @contextmanager
    def _stream(self, path: str, mode: str) -> Iterator[IO[bytes]]:
        if mode == "rb":
            yield BytesIO(self.read(path))
            return
        file = BytesIO()
        yield file
        self.write(path, file.getvalue())

    def stream(self, path: str, mode: str) -> AbstractContextManager[IO[bytes]]:
        return self._stream(path, mode)

    def put(self, path: str, content: bytes) -> None:
        self.before("put", path)
        unfinished = f"{path}.{next(self._numbers):x}.tmp"
        self.write(unfinished, content)
        self.before("rename", path)
        self.rename(unfinished, path)
        self.before("answer", path)

    def space(self, path: str) -> tuple[int, int] | None:
        del path
        return None if self.capacity is None else (self.free(), self.capacity)

    def read(self, path: str) -> bytes:
        self.before("read", path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self.files[path]

    def make_folder(self, path: str) -> None:
        self.before("make_folder", path)

    def rename(self, old: str, new: str) -> None:
        if old not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self.files[new] = self.files.pop(old)

    def remove(self, path: str) -> None:
        for name in [name for name in self.files if name == path or name.startswith(path + "/")]:
            self.before("remove", name)
            self.files.pop(name, None)


def directory(memory: Memory, job: str = "A", *, keep: int = 1) -> Directory:
    """Of a process of this job."""
    me = records.holder_of(job, "", f"{job.lower()}-0", "")
    return Directory(memory, PATH, me, keep=keep, pause=memory.sleep, clock=lambda: memory.now)


def write(memory: Memory, into: Directory, name: Name, good: Name | None = None) -> Marker:
    """What all ranks do in a save, before it is completed."""
    into.make_room(name, good)
    memory.write(f"{into.folder(name)}/__0_0.distcp", SHARD)
    return Marker({"__0_0.distcp": File(len(SHARD), 0)}, 1)


def save(memory: Memory, into: Directory, step: int, good: Name | None = None) -> Name:
    name = Name(into.claim.token, step)
    into.complete(name, write(memory, into, name, good))
    return name


def is_whole(memory: Memory, name: Name) -> bool:
    return {f"{PATH}/{name}/{file}" for file in ("__0_0.distcp", MARKER)} <= memory.files.keys()
