"""What fsspec opens: its errors, and its cache of listings."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import register_implementation

from elasticjob.checkpoint import Checkpoints, errors, records
from elasticjob.checkpoint.directory import Directory
from elasticjob.checkpoint.records import MARKER, File, Marker, Name
from elasticjob.checkpoint.storage import Remote, Storage, open_storage


class UnreachableError(Exception):
    """As botocore has them: no OSError."""


class Failing(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Fails once where a test says."""

    protocol = "failing"
    cachable = False
    fails: dict[tuple[str, str], str] = {}  # noqa: RUF012

    def _fail(self, what: str, path: str) -> None:
        for (call, within), how in list(self.fails.items()):
            if call == what and within in path:
                del self.fails[call, within]
                raise UnreachableError(how)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._fail("ls", path)
        return super().ls(path, detail, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> Any:
        self._fail("pipe_file", path)
        found = super().pipe_file(path, value, mode, **options)
        self._fail("answer", path)
        return found

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self._fail("rm", path)
        super().rm(path, recursive, maxdepth)

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        self._fail("cat_file", path)
        return super().cat_file(path, *arguments, **options)


@pytest.fixture
def failing(tmp_path: Path) -> tuple[Failing, Storage, str]:
    files = Failing()
    files.fails.clear()
    return files, Remote(files), f"/{tmp_path.name}/run"


def directory(storage: Storage, path: str, job: str = "A") -> Directory:
    return Directory(storage, path, records.holder_of(job, "", "", ""), keep=1)


def write(storage: Storage, into: Directory, step: int) -> tuple[Name, Marker]:
    name = Name(into.claim.token, step)
    into.make_room(name, None)
    with storage.stream(storage.join(into.folder(name), "s"), "wb") as file:
        file.write(b"x")
    return name, Marker({"s": File(1, 0)}, 1)


def test_a_marker_of_which_the_answer_is_lost_is_seen(failing: tuple[Failing, Storage, str]) -> None:
    files, storage, path = failing
    held = directory(storage, path)
    held.begin(1)
    name, marker = write(storage, held, 10)
    files.fails["answer", MARKER] = "read timeout"
    held.complete(name, marker)
    assert [found for found, _ in held.candidates()] == [name]


@pytest.mark.parametrize("call", ["ls", "pipe_file", "rm", "cat_file"])
def test_errors_of_the_network_are_errors_of_the_system(
    call: str, failing: tuple[Failing, Storage, str]
) -> None:
    files, storage, path = failing
    held = directory(storage, path)
    held.begin(1)
    calls: dict[str, Callable[[], Any]] = {
        "ls": partial(storage.names, path),
        "pipe_file": partial(storage.put, f"{path}/new", b""),
        "rm": partial(storage.remove, f"{path}/new"),
        "cat_file": partial(storage.read, f"{path}/new"),
    }
    files.fails[call, ""] = "could not connect"
    with pytest.raises(OSError, match="UnreachableError: could not connect") as raised:
        calls[call]()
    assert raised.value.errno == errno.EIO
    with pytest.raises(FileNotFoundError):
        storage.read(f"{path}/nothing")


def test_what_cannot_be_removed_is_a_warning(
    failing: tuple[Failing, Storage, str], caplog: pytest.LogCaptureFixture
) -> None:
    files, storage, path = failing
    first = directory(storage, path)
    first.begin(1)
    write(storage, first, 10)
    second = directory(storage, path)
    second.begin(2)
    files.fails["rm", ""] = "could not connect"
    second.tidy()
    assert "what does not count could not be removed" in caplog.text


class Torn:
    """A file of which each call fails."""

    closed = False

    def __getattr__(self, name: str) -> Any:
        def fails(*_: Any) -> None:
            raise UnreachableError(f"no {name}")

        return fails


@pytest.mark.parametrize("mode", ["rb", "wb"])
def test_so_are_those_of_a_file(
    mode: str, failing: tuple[Failing, Storage, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, storage, path = failing
    monkeypatch.setattr(files, "open", lambda *_: Torn(), raising=False)
    with pytest.raises(OSError, match="UnreachableError: no read"), storage.stream(path, mode) as file:
        file.read()
    with pytest.raises(OSError, match="UnreachableError: no close"), storage.stream(path, mode):
        pass
    with pytest.raises(ZeroDivisionError), storage.stream(path, mode):
        raise ZeroDivisionError


def test_checkpoints_raise_on_all_ranks_what_the_network_raises(
    failing: tuple[Failing, Storage, str],
) -> None:
    register_implementation("failing", Failing, clobber=True)
    files, _, path = failing
    checkpoints = Checkpoints(f"failing://{path}")
    checkpoints.save(1, {"step": 1})
    files.fails["pipe_file", MARKER] = "could not connect"
    with pytest.raises(errors.CheckpointError, match=r"(?s)was not completed: .*could not connect"):
        checkpoints.wait()
    checkpoints.save(2, {"step": 2})
    checkpoints.close()


class Cached(MemoryFileSystem):  # type: ignore[misc]
    """Keeps listings as s3fs does, and says what a test wants to know."""

    protocol = "cached"
    asked = 0

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        if path not in self.dircache:
            Cached.asked += 1
            self.dircache[path] = found = super().ls(path, detail, **options)
            return found
        return self.dircache[path]


def test_no_listing_comes_from_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share it: what one has put there is old when another looks."""
    register_implementation("cached", Cached, clobber=True)
    of_the_script = Cached()
    storage, path = open_storage(f"cached:///{tmp_path.name}/run")
    assert isinstance(storage, Remote)
    storage.put(f"{path}/one", b"")
    # Between the line that forgets listings and the next one, another thread may have listed.
    monkeypatch.setattr(storage._files, "invalidate_cache", lambda *_: None)
    assert storage.names(path) == ["one"]
    storage.put(f"{path}/two", b"")
    assert sorted(storage.names(path)) == ["one", "two"]
    assert of_the_script.dircache.use_listings_cache, "the script's own file system keeps its cache"
