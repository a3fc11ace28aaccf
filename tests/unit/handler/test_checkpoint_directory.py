"""A directory of checkpoints in which something happens between two calls of rank 0."""

from __future__ import annotations

import errno

import pytest

from elasticjob.checkpoint.directory import Directory
from elasticjob.checkpoint.errors import CheckpointError
from elasticjob.checkpoint.records import MARKER, Name
from tests.checkpoints.memory import PATH, Memory, directory, is_whole, save, write


def fails_after_the_marker(memory: Memory) -> None:
    """One listing fails when the marker has been written."""
    written = False

    def before(what: str, path: str) -> None:
        nonlocal written
        if what == "answer" and path.endswith(MARKER):
            written = True
        elif what == "names" and written:
            memory.before = lambda *_: None
            raise OSError(errno.EIO, "the listing has failed", path)

    memory.before = before


def failed_after_its_marker(memory: Memory) -> tuple[Directory, Name]:
    """A round, and its save of step 10, which has failed although its marker is there."""
    first = directory(memory)
    first.begin(1)
    name = Name(first.claim.token, 10)
    marker = write(memory, first, name)
    fails_after_the_marker(memory)
    with pytest.raises(OSError, match="the listing has failed"):
        first.complete(name, marker)
    return first, name


def test_a_save_that_fails_after_its_marker_removes_nothing() -> None:
    memory = Memory()
    first, name = failed_after_its_marker(memory)
    second = directory(memory)
    assert name in (second.begin(2).complete or ())
    first.failed(name)
    assert is_whole(memory, name)
    assert [found for found, _ in second.candidates()] == [name]


def test_a_save_that_may_count_is_not_written_over() -> None:
    memory = Memory()
    first, name = failed_after_its_marker(memory)
    with pytest.raises(CheckpointError, match="s00000010 may be complete, although its save has failed"):
        first.make_room(name, None)
    later = save(memory, first, 20)
    assert is_whole(memory, later)
    assert not memory.sizes(f"{PATH}/{name}"), "it is known to be complete now, and beyond keep"


def test_a_save_that_has_failed_leaves_what_has_a_marker() -> None:
    memory = Memory()
    first = directory(memory)
    first.begin(1)
    name = save(memory, first, 10)
    first.failed(name)
    assert is_whole(memory, name)
