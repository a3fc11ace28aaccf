"""Addresses that fsspec would take as patterns, as Hydra makes them: a run touches nothing of another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import fsspec
import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from moto.s3.exceptions import AccessForbidden
from moto.s3.models import S3Backend

from elasticjob.checkpoint import Checkpoints
from elasticjob.checkpoint.storage import Remote, Storage, open_storage
from tests import s3_server

PATTERNS = ["layers=[64,64]", "layers=*", "layers=?", "layers=**"]
MATCHED = "layers=6"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a bucket."""
    with s3_server.playing() as address:
        s3_server.use(monkeypatch, address)
        fsspec.filesystem("s3").mkdir("training")
        yield "s3://training"


stores = pytest.mark.parametrize(
    ("parent", "pattern"),
    [
        *[("memory", pattern) for pattern in PATTERNS],
        ("s3", PATTERNS[0]),
        *[pytest.param("s3", pattern, marks=pytest.mark.slow) for pattern in PATTERNS[1:]],
    ],
    indirect=["parent"],
)


@pytest.fixture
def parent(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the runs are."""
    return f"memory://{tmp_path.name}" if request.param == "memory" else request.getfixturevalue("s3")


def files(address: str) -> dict[str, bytes]:
    """What is there, by name in the address; claims are left out, which their holders renew."""
    storage, path = open_storage(address)
    assert isinstance(storage, Remote)
    return {
        name[len(path) :]: storage._files.cat_file(name)
        for name in storage._files.find(path)
        if "/round-" not in name
    }


def save(address: str, *steps: int) -> None:
    with Checkpoints(address, keep=1) as checkpoints:
        for step in steps:
            checkpoints.save(step, {"weights": torch.full((10,), float(step))})
            checkpoints.wait()


def resumed(address: str) -> int:
    state = {"weights": torch.zeros(10)}
    with Checkpoints(address, keep=1) as checkpoints:
        step = checkpoints.resume(state)
    assert torch.equal(state["weights"], torch.full((10,), float(step)))
    return step


@stores
def test_a_run_removes_its_own_old_checkpoints_and_nothing_of_another(parent: str, pattern: str) -> None:
    mine, other = f"{parent}/{pattern}", f"{parent}/{MATCHED}"
    save(other, 1)
    before = files(other)
    save(mine, 1, 2, 3)  # of the same names as the other's
    assert files(other) == before
    assert {name.split("/")[1][-10:] for name in files(mine)} == {"-s00000003"}
    before = files(mine)
    save(other, 2, 3)
    assert files(mine) == before
    assert {name.split("/")[1][-10:] for name in files(other)} == {"-s00000003"}
    assert (resumed(mine), resumed(other)) == (3, 3)


@stores
def test_paths_are_taken_as_they_are(parent: str, pattern: str) -> None:
    storage, path = open_storage(f"{parent}/{pattern}")
    _, other = open_storage(f"{parent}/{MATCHED}")
    for name in ("a", "folder/b", "folder/sub/[c]"):
        storage.put(f"{other}/{name}", b"other")
    storage.remove(f"{path}/a")
    storage.remove(f"{path}/folder")
    assert storage.names(path) == [], "of what does not exist, nothing is removed"
    with pytest.raises(FileNotFoundError):
        storage.rename(f"{path}/a", f"{path}/new")
    for name in ("a", "folder/b", "folder/sub/[c]"):
        storage.put(f"{path}/{name}", b"mine")
    storage.rename(f"{path}/a", f"{path}/new")
    assert sorted(storage.names(path)) == ["folder", "new"]
    assert storage.read(f"{path}/new") == b"mine"
    storage.remove(f"{path}/new")
    storage.remove(f"{path}/folder")
    assert storage.names(path) == []
    assert set(files(f"{parent}/{MATCHED}").values()) == {b"other"}
    assert len(files(f"{parent}/{MATCHED}")) == 3


def test_what_s3_does_not_remove_is_an_error(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, path = open_storage(f"{s3}/layers=[64,64]")
    storage.put(f"{path}/checkpoint/a", b"")

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AccessForbidden("refused by the test")

    monkeypatch.setattr(S3Backend, "delete_object", refuse)
    with pytest.raises(OSError, match="refused by the test"):
        storage.remove(f"{path}/checkpoint")


class Renames(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Cannot copy, but renames, as sftp and smb."""

    cachable = False

    def cp_file(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError

    def mv(self, old: str, new: str) -> None:
        self.store[new] = self.store.pop(old)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_store_with_folders(tmp_path: Path, pattern: str) -> None:
    storage: Storage = Remote(LocalFileSystem())
    path, other = tmp_path / pattern, tmp_path / MATCHED
    for folder in (path, other):
        storage.make_folder(f"{folder}/checkpoint/sub")
        storage.put(f"{folder}/checkpoint/sub/a", b"")
        storage.put(f"{folder}/checkpoint/b", b"")
    storage.rename(f"{path}/checkpoint/b", f"{path}/checkpoint/c")
    storage.remove(f"{path}/checkpoint")
    assert list(path.iterdir()) == [], "its folders are gone, too"
    assert len(list(other.rglob("*"))) == 4


def test_a_store_that_renames_without_copies(tmp_path: Path) -> None:
    storage: Storage = Remote(Renames())
    path = f"/{tmp_path.name}/layers=[64,64]"
    storage.put(f"{path}/a", b"mine")
    storage.rename(f"{path}/a", f"{path}/b")
    assert storage.names(path) == ["b"]
