"""Access to files in a shared folder, or in an object store through fsspec, as far as checkpoints need it."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from glob import has_magic
from pathlib import Path
from typing import IO, Any, Protocol, cast


class Storage(Protocol):
    """Paths are strings that ``join`` makes. Reading a file that does not exist raises FileNotFoundError."""

    def join(self, *parts: str) -> str: ...
    def names(self, path: str) -> list[str]:
        """The names in a folder; [] if there is no such folder."""
        ...

    def sizes(self, path: str) -> dict[str, int]:
        """The files in a folder, with their sizes in bytes; {} if there is no such folder."""
        ...

    def stream(self, path: str, mode: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file for reading or writing; what was written is durable when the context has ended."""
        ...

    def put(self, path: str, content: bytes) -> None:
        """Write a small file, or replace it. In a folder and in an object store, readers find all of it or
        nothing."""
        ...

    def space(self, path: str) -> tuple[int, int] | None:
        """The free bytes and all bytes of the folder's file system; None without such a limit."""
        ...

    def read(self, path: str) -> bytes: ...
    def make_folder(self, path: str) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content, if it exists."""
        ...


def open_storage(path: str | os.PathLike[str]) -> tuple[Storage, str]:
    """The storage for ``path``, a folder or a URL that fsspec knows, and the path in it."""
    text = os.fspath(path)
    if "://" not in text:
        return Folder(), str(Path(text).absolute())
    return _open_url(text)


class Folder:
    """A folder that all ranks share: NFS, Lustre, CephFS, or a plain one on a single machine."""

    def join(self, *parts: str) -> str:
        return os.path.join(*parts)

    def names(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def sizes(self, path: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for name in self.names(path):
            try:
                found[name] = os.stat(os.path.join(path, name)).st_size
            except FileNotFoundError:
                continue
        return found

    @contextmanager
    def stream(self, path: str, mode: str) -> Iterator[IO[bytes]]:
        with open(path, mode) as file:
            yield file
            if mode != "rb" and not file.closed:
                file.flush()
                os.fsync(file.fileno())

    def put(self, path: str, content: bytes) -> None:
        unfinished = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            with self.stream(unfinished, "wb") as file:
                file.write(content)
            self.rename(unfinished, path)
        except OSError:
            with suppress(OSError):
                os.unlink(unfinished)
            raise

    def space(self, path: str) -> tuple[int, int] | None:
        usage = shutil.disk_usage(path)
        return usage.free, usage.total

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def make_folder(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)
        folder = os.open(os.path.dirname(new), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, path: str) -> None:
        if os.path.islink(path) or not os.path.isdir(path):
            Path(path).unlink(missing_ok=True)
            return
        for name in self.names(path):
            self.remove(os.path.join(path, name))
        with suppress(FileNotFoundError):
            os.rmdir(path)


class Remote:
    """A file system of fsspec, mostly an object store, where one PUT makes a whole object. In others a file
    may be read while it is written.

    It raises OSErrors in place of what the package behind fsspec raises. It takes each path as it is:
    to fsspec's ``rm`` and ``mv``, ``layers=[64,64]`` is a pattern, and they would remove ``layers=6``.
    """

    def __init__(self, filesystem: Any) -> None:
        self._files = filesystem

    def join(self, *parts: str) -> str:
        return "/".join(part.rstrip("/") for part in parts)

    def _list(self, path: str) -> list[dict[str, Any]]:
        try:
            with _os_errors(path):
                self._files.invalidate_cache()
                found: list[dict[str, Any]] = self._files.ls(path, detail=True)
        except FileNotFoundError:
            return []
        return [entry for entry in found if entry["name"].rstrip("/") != path.rstrip("/")]

    def names(self, path: str) -> list[str]:
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in self._list(path)]

    def sizes(self, path: str) -> dict[str, int]:
        return {
            entry["name"].rpartition("/")[2]: int(entry["size"])
            for entry in self._list(path)
            if entry["type"] == "file"
        }

    @contextmanager
    def stream(self, path: str, mode: str) -> Iterator[IO[bytes]]:
        with _os_errors(path):
            file = self._files.open(path, mode)
        try:
            yield cast(IO[bytes], _File(file, path))
            with _os_errors(path):
                file.close()
        except BaseException:
            # Leaving its context, or its end as a Python object, would upload what is there.
            if mode != "rb":
                with suppress(Exception):
                    file.discard()
                with suppress(Exception):
                    file.closed = True
            raise

    def put(self, path: str, content: bytes) -> None:
        with _os_errors(path):
            self._files.pipe_file(path, content)

    def space(self, path: str) -> tuple[int, int] | None:
        del path
        return None

    def read(self, path: str) -> bytes:
        with _os_errors(path):
            content: bytes = self._files.cat_file(path)
        return content

    def make_folder(self, path: str) -> None:
        with _os_errors(path):
            self._files.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        with _os_errors(new):
            if not has_magic(old):
                self._files.mv(old, new)
                return
            try:
                self._files.cp_file(old, new)
            except NotImplementedError:
                self._files.mv(old, new)  # sftp and smb cannot copy, and rename a path as it is
            else:
                self._files.rm_file(old)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError), _os_errors(path):
            self._files.invalidate_cache()
            if not has_magic(path):
                self._files.rm(path, recursive=True)
                return
            folders = []
            for name, entry in self._files.find(path, withdirs=True, detail=True).items():
                if entry.get("type") == "directory":
                    folders.append(name)
                else:
                    self._files.rm_file(name)
            for folder in sorted(folders, reverse=True):
                with suppress(FileNotFoundError):  # object stores have none
                    self._files.rmdir(folder)


@contextmanager
def _os_errors(path: str) -> Iterator[None]:
    """Raises OSError for other exceptions, such as botocore's for a broken network."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", path) from error


class _File:
    """A file of fsspec, whose methods raise OSErrors."""

    def __init__(self, file: Any, path: str) -> None:
        self._file = file
        self._path = path

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        return _os_errors(self._path)(found) if callable(found) else found


def _open_url(url: str) -> tuple[Storage, str]:
    scheme = url.partition("://")[0]
    try:
        import fsspec
    except ImportError:
        raise ModuleNotFoundError(
            f"{url}: addresses with {scheme}:// need fsspec: pip install 'elasticjob[fsspec]'"
        ) from None
    try:
        # An instance of our own: two threads list, and one must not get what the other has listed before.
        filesystem, path = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    except (ImportError, ValueError) as error:
        raise ModuleNotFoundError(f"{url}: fsspec cannot open addresses with {scheme}://: {error}") from error
    if scheme == "file":
        return Folder(), path
    if hasattr(filesystem, "dircache"):
        filesystem.dircache.use_listings_cache = False  # as an argument, sftp would give it to its server
    return Remote(filesystem), path
