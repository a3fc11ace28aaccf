"""``Checkpoints`` on storages that fail: at each call, at a full disk; and files that would run code."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import pickle
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import pytest
import torch

from elasticjob.checkpoint import CheckpointError, Checkpoints, NoSpaceError, StaleRoundError, UntrustedError
from elasticjob.checkpoint import checkpoints as module
from elasticjob.checkpoint.storage import Storage, open_storage

SIZE = 1000


class Writes:
    """A file that a call goes before each write to."""

    def __init__(self, file: IO[bytes], before: Callable[[], None]) -> None:
        self._file, self._before = file, before

    def write(self, content: bytes) -> int:
        self._before()
        return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Failing:
    """A storage of which a call fails."""

    def __init__(self, storage: Storage, fails: Callable[[int, str, str], int]) -> None:
        self.storage = storage
        self.fails = fails
        self.calls = 0

    def _call(self, what: str, path: str) -> None:
        self.calls += 1
        if number := self.fails(self.calls, what, path):
            raise OSError(number, os.strerror(number), path)

    def join(self, *parts: str) -> str:
        return self.storage.join(*parts)

    def names(self, path: str) -> list[str]:
        self._call("names", path)
        return self.storage.names(path)

    def sizes(self, path: str) -> dict[str, int]:
        self._call("sizes", path)
        return self.storage.sizes(path)

    @contextmanager
    def _stream(self, path: str, mode: str) -> Iterator[IO[bytes]]:
        writes = mode != "rb"
        self._call("open" if writes else "read", path)
        with self.storage.stream(path, mode) as file:
            yield cast(IO[bytes], Writes(file, partial(self._call, "write", path))) if writes else file
            self._call("close" if writes else "end of read", path)

    def stream(self, path: str, mode: str) -> AbstractContextManager[IO[bytes]]:
        return self._stream(path, mode)

    def put(self, path: str, content: bytes) -> None:
        self._call("put", path)
        self.storage.put(path, content)
        self._call("put's answer", path)

    def space(self, path: str) -> tuple[int, int] | None:
        return self.storage.space(path)

    def read(self, path: str) -> bytes:
        self._call("read", path)
        return self.storage.read(path)

    def make_folder(self, path: str) -> None:
        self._call("mkdir", path)
        self.storage.make_folder(path)

    def rename(self, old: str, new: str) -> None:
        self._call("rename", new)
        self.storage.rename(old, new)

    def remove(self, path: str) -> None:
        self._call("remove", path)
        self.storage.remove(path)


def weights(step: int) -> dict[str, Any]:
    return {"weights": torch.full((SIZE,), float(step)), "step": step}


def resumed(checkpoints: Checkpoints) -> int:
    """The step; the state is that step's."""
    state = weights(0)
    step = checkpoints.resume(state)
    assert state["step"] == step
    assert torch.equal(state["weights"], weights(step)["weights"])
    return step


@pytest.fixture(params=["folder", "object store"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder, or what fsspec keeps in memory."""
    return str(tmp_path / "run") if request.param == "folder" else f"memory://{tmp_path.name}/run"


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Checkpoints]:
    """Begin a round, with a storage that fails where a function says."""

    def begin(
        address: str, number: int, fails: Callable[[int, str, str], int] | None = None, job: str = "job"
    ) -> Checkpoints:
        monkeypatch.setenv("ELASTICJOB_ROUND", str(number))
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)

        def opened(path: str) -> tuple[Storage, str]:
            storage, inside = open_storage(path)
            if fails:
                begin.failing = Failing(storage, fails)  # type: ignore[attr-defined]
                return begin.failing, inside  # type: ignore[attr-defined]
            return storage, inside

        monkeypatch.setattr(module, "open_storage", opened)
        return Checkpoints(address, keep=1)

    return begin


def once(nth: int) -> Callable[[int, str, str], int]:
    return lambda call, *_: errno.EIO if call == nth else 0


def from_then_on(nth: int) -> Callable[[int, str, str], int]:
    return lambda call, *_: errno.EIO if call >= nth else 0


def full(nth: int) -> Callable[[int, str, str], int]:
    writes = {"put", "open", "write", "close", "mkdir"}
    return lambda call, what, *_: errno.ENOSPC if call >= nth and what in writes else 0


@pytest.mark.parametrize("how", [once, from_then_on, full], ids=lambda how: how.__name__)
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_whatever_call_fails_nothing_saved_is_lost_and_the_next_round_saves(
    address: str,
    rounds: Any,
    how: Callable[[int], Callable[[int, str, str], int]],
    stride: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    number = saved = 0
    number += 1
    with rounds(address, number) as checkpoints:
        checkpoints.save(10, weights(10))
    saved = 10
    for nth in range(1, 1000, stride):
        number += 1
        going = None
        try:
            with rounds(address, number, how(nth)) as going:
                step = resumed(going)
                assert step >= saved
                for _ in range(2):
                    step += 1
                    going.save(step, weights(step))
                    going.wait()
                    saved = step
        except (OSError, CheckpointError):
            pass
        calls = rounds.failing.calls
        number += 1
        with rounds(address, number) as checkpoints:
            step = resumed(checkpoints)
            assert step >= saved, f"call {nth}"
            saved = step + 1
            checkpoints.save(saved, weights(saved))
        left = [
            name for name in checkpoints._storage.names(checkpoints._path) if name.startswith("checkpoint-")
        ]
        assert len(left) == 1, f"call {nth}: {left}"
        if calls < nth:
            break
    assert nth > 20


class Code:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __deepcopy__(self, memo: object) -> Code:
        return self

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_an_index_that_would_run_code_is_not_loaded(rounds: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with rounds(str(run), 1) as checkpoints:
        checkpoints.save(1, weights(1))
    (index,) = run.glob("*/.metadata")
    content = pickle.dumps(Code(tmp_path / "owned"))
    index.write_bytes(content)
    marker = index.with_name("complete.json")
    text = marker.read_text()
    start = text.index('".metadata": [')
    end = text.index("]", start)
    entry = f'".metadata": [{len(content)}, {zlib.crc32(content)}'
    marker.write_text(text[:start] + entry + text[end:])
    with pytest.raises(UntrustedError, match=r"\.metadata was not loaded: it names posix\.mkdir"):
        resumed(rounds(str(run), 2))
    assert not (tmp_path / "owned").exists()


def test_with_weights_only_an_entry_that_would_run_code_is_not_loaded(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(
            1, {"weights": torch.ones(2), "entry": Code(tmp_path / "owned"), "plain": [1, "x", (2.0,)]}
        )
    state = {"weights": torch.zeros(2), "entry": "", "plain": []}
    careful = Checkpoints(tmp_path / "run", weights_only=True)
    with pytest.raises(UntrustedError, match=r"state\['entry'\] was not loaded, as weights_only is True"):
        careful.resume(dict(state))
    assert not (tmp_path / "owned").exists()
    del state["entry"]
    assert careful.resume(state) == 1
    assert state["plain"] == [1, "x", (2.0,)]


def test_a_claim_that_is_removed_stops_its_holder(rounds: Any, tmp_path: Path) -> None:
    """What the error of a newcomer tells people to do."""
    run = tmp_path / "run"
    holder = rounds(str(run), 1, job="A")
    with pytest.raises(
        StaleRoundError, match=r"in use by round 1 of job A .* remove that file and begin at once"
    ):
        rounds(str(run), 1, job="B")
    (claim,) = run.glob("round-*.json")
    claim.unlink()
    holder.save(1, weights(1))
    with pytest.raises(StaleRoundError, match=r"round-g0001-r000001-.* has been removed from"):
        holder.wait()
    with rounds(str(run), 1, job="B") as newcomer:
        assert resumed(newcomer) == 0
        newcomer.save(5, weights(5))


@pytest.mark.parametrize(("when", "nth"), [("write", 1), ("write", 4), ("close", 1)])
def test_a_full_disk_is_named_with_what_it_holds(rounds: Any, tmp_path: Path, when: str, nth: int) -> None:
    run, calls = tmp_path / "run", itertools.count(1)
    with rounds(str(run), 1, job="A") as checkpoints:
        checkpoints.save(1, weights(1))

    def full_at_shards(_: int, what: str, path: str) -> int:
        return errno.ENOSPC if what == when and "distcp" in path and next(calls) >= nth else 0

    going = rounds(str(run), 1, full_at_shards, job="B")
    going.save(2, weights(2))
    with pytest.raises(
        NoSpaceError,
        match=r"No space left on device: .* are free\. Checkpoints in .*: 1 complete, of other jobs "
        r"\(0\.0 MB\); 1 half-written .* This job needs room for 2 \(keep=1, .* keep_other_jobs=False",
    ):
        going.wait()
    assert len(list(run.glob("checkpoint-*"))) == 1, "the half is gone"
