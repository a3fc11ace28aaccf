"""An S3 server that fails in the middle of an upload: nothing of it is left, and the next save counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import pytest
import torch
from moto.s3.exceptions import AccessForbidden
from moto.s3.models import S3Backend

from elasticjob.checkpoint import CheckpointError, Checkpoints
from tests import s3_server

PART_BYTES = 5 << 20
"""The least that S3 takes for a part that is not the last."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a server that plays S3, and small parts."""
    with s3_server.playing() as address:
        s3_server.use(monkeypatch, address, default_block_size=PART_BYTES)
        client = fsspec.filesystem("s3", use_listings_cache=False)
        client.mkdir("training")
        yield client


def state(step: int) -> dict[str, Any]:
    """Three tensors, each more than a part."""
    return {name: torch.full((PART_BYTES // 4 + 1000,), float(step)) for name in "abc"}


def fail(monkeypatch: pytest.MonkeyPatch, what: str, nth: int) -> Callable[[], int]:
    """Let the server refuse the ``nth`` of these calls; how many there were is returned."""
    original, calls = getattr(S3Backend, what), []

    def call(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == nth:
            raise AccessForbidden("refused by the test")
        return original(*args, **options)

    monkeypatch.setattr(S3Backend, what, call)
    return lambda: len(calls)


@pytest.mark.parametrize(
    ("what", "nth"),
    [
        ("upload_part", 2),
        ("upload_part", 4),  # the last, when the file is closed
        pytest.param("create_multipart_upload", 1, marks=pytest.mark.slow),
        pytest.param("upload_part", 1, marks=pytest.mark.slow),
        pytest.param("complete_multipart_upload", 1, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_of_an_upload_that_fails(
    store: Any, monkeypatch: pytest.MonkeyPatch, what: str, nth: int
) -> None:
    with Checkpoints("s3://training/run") as checkpoints:
        checkpoints.save(2, state(2))
        checkpoints.wait()
        with monkeypatch.context() as patch:
            calls = fail(patch, what, nth)
            checkpoints.save(4, state(4))
            with pytest.raises(CheckpointError, match="refused by the test"):
                checkpoints.wait()
            assert calls() == nth
        assert store.call_s3("list_multipart_uploads", Bucket="training").get("Uploads", []) == []
        (left,) = store.glob("training/run/checkpoint-*")
        assert left.endswith("-s00000002")
        checkpoints.save(6, state(6))
        checkpoints.wait()
    with Checkpoints("s3://training/run") as checkpoints:
        found = state(0)
        assert checkpoints.resume(found) == 6
        assert torch.equal(found["b"], state(6)["b"])
