"""Lets torch.distributed.checkpoint (DCP) write and read through a ``Storage``.

The writer takes a checksum of each file while it is written, and its last step on rank 0, when all ranks have
written, completes the checkpoint.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystemBase
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from elasticjob.checkpoint.records import File
from elasticjob.checkpoint.storage import Folder, Storage
from elasticjob.checkpoint.trust import UntrustedError, check_index

_METADATA = ".metadata"
"""The name of DCP's index of all shards."""


class Writer(FileSystemWriter):
    """Writes one checkpoint into ``folder``. ``make_room`` is called on all ranks before anything is written;
    ``complete`` is called on rank 0 and gets size and checksum of each file."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        make_room: Callable[[], None],
        complete: Callable[[Mapping[str, File]], None],
    ) -> None:
        super().__init__(folder, sync_files=isinstance(storage, Folder))
        self._files = _Files(storage)
        self.fs = self._files  # type: ignore[assignment]  # torch's own FsspecWriter does the same
        self.path = folder
        self._make_room = make_room
        self._complete = complete

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self._make_room()
        results = super().write_data(plan, planner).value()
        written: Future[list[WriteResult]] = Future()
        written.set_result(
            [
                _Written(item.index, item.size_in_bytes, item.storage_data, self._files.written[path])
                for item in results
                for path in [self._files.join(str(self.path), item.storage_data.relative_path)]
            ]
        )
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        files = {_METADATA: self._files.written[self._files.join(str(self.path), _METADATA)]}
        for items in results:
            for item in items:
                files[item.storage_data.relative_path] = cast(_Written, item).file
        self._complete(files)


class Reader(FileSystemReader):
    """Reads the checkpoint in ``folder``."""

    def __init__(self, storage: Storage, folder: str) -> None:
        super().__init__(folder)
        self._files = _Files(storage)
        self.fs = self._files  # type: ignore[assignment]
        self.path = folder

    @property
    def untrusted(self) -> UntrustedError | None:
        """The error if the index was not loaded because it would run code."""
        return self._files.untrusted


@dataclass(frozen=True)
class _Written(WriteResult):
    """DCP's result for an item, which is sent to rank 0, with the file that it is in."""

    file: File


class _Files(FileSystemBase):
    """A file system for DCP."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.written: dict[str, File] = {}
        self.untrusted: UntrustedError | None = None
        """Kept, because torch 2.15 replaces what is raised while it reads the index."""

    def join(self, folder: str, name: str) -> str:
        return self._storage.join(folder, name)

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with self._storage.stream(str(path), mode) as file:
            if mode == "rb" and str(path).endswith(_METADATA):
                content = file.read()
                try:
                    check_index(str(path), content)
                except UntrustedError as error:
                    self.untrusted = error
                    raise
                yield io.BytesIO(content)
                return
            if mode == "rb":
                yield file
                return
            summed = _Summed(file)
            try:
                yield summed
            except Exception:
                if summed.failure is not None:  # torch.save says "unexpected pos" instead
                    raise summed.failure from None
                raise
            self.written[str(path)] = File(summed.size, summed.crc32)

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return self._storage.join(str(path), suffix)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self._storage.rename(str(path), str(new_path))
        self.written[str(new_path)] = self.written.pop(str(path))

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return str(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        self._storage.make_folder(str(path))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return bool(checkpoint_id)

    def exists(self, path: str | os.PathLike[str]) -> bool:
        folder, _, name = str(path).rpartition("/")
        return name in self._storage.names(folder)

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._storage.remove(str(path))


class _Summed(io.RawIOBase):
    """Counts the bytes that are written, and takes their checksum."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0
        self.crc32 = 0
        self.failure: Exception | None = None

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        try:
            self._file.write(content)
        except Exception as error:
            self.failure = self.failure or error
            raise
        length = memoryview(content).nbytes
        self.size += length
        self.crc32 = zlib.crc32(content, self.crc32)
        return length

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()


def checksum(storage: Storage, path: str) -> int:
    """The CRC-32 of a file."""
    crc = 0
    with storage.stream(path, "rb") as file:
        while block := file.read(8 << 20):
            crc = zlib.crc32(block, crc)
    return crc
