"""Histories of memory checkpoints; ``python -m tests.memory`` plays any number."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from elasticjob.checkpoint.memory_load import what_is_wrong
from elasticjob.memory import wire
from elasticjob.memory.pieces import Held, PieceName, Save
from elasticjob.memory.shelf import make_buffer
from tests.memory.__main__ import check
from tests.memory.content import content_of, state_of
from tests.memory.history import flip
from tests.memory.mutations import MUTATIONS, without
from tests.memory.pods import FOLDER, JOB, mapped

EACH = 1000


@pytest.mark.parametrize("begin", range(0, 50, 10))
def test_no_rule_is_broken(begin: int) -> None:
    assert [text for rule, text, _ in map(check, range(begin, begin + 10)) if rule] == []


@pytest.mark.slow
@pytest.mark.parametrize("begin", range(50, 1050, 50))
def test_no_rule_is_broken_in_a_thousand(begin: int) -> None:
    assert [text for rule, text, _ in map(check, range(begin, begin + 50)) if rule] == []


def test_everything_happens() -> None:
    """What histories are about comes to pass in a few of them."""
    happened = sum((check(seed)[2] for seed in range(20, 50)), start=check(0)[2])
    expected = {"saved", "resumed", "cut", "flipped", "put in the place of another", "passed over", "haunted"}
    expected |= {"lost: pod", "lost: worker", "lost: cut off", "came back", "skipped", "opened again"}
    assert expected <= set(happened), happened


@pytest.mark.parametrize("name", MUTATIONS)
def test_without_a_rule_some_history_fails(name: str) -> None:
    with without(name):
        found = (check(seed) for seed in itertools.count())
        broken = next((rule for rule, _, _ in itertools.islice(found, 100) if rule), "")
    assert broken, f"100 histories do not notice that this rule is gone: {name}"


# -- 1,000 of 1,000 ----------------------------------------------------------------------------------------


@dataclass
class Real:
    """A piece in its memory, and what an agent says of it."""

    descriptor: int
    held: Held

    def problem(self, held: Held) -> str:
        with mmap.mmap(self.descriptor, self.held.size, access=mmap.ACCESS_COPY) as memory:
            return what_is_wrong(memory, held)


@pytest.fixture
def piece() -> Iterator[Real]:
    name = PieceName(JOB, FOLDER, Save(1, 7, 1, 12, 3), 0)
    content = content_of(state_of(1, name), name)
    descriptor = make_buffer(content.size)
    content.write(mapped(descriptor, content.size))
    held = Held(name, content.size, wire.checksum(descriptor, content.size), own=True)
    yield Real(descriptor, held)
    os.close(descriptor)


def test_a_flipped_bit_is_refused_wherever_it_is(piece: Real) -> None:
    assert piece.problem(piece.held) == ""
    draw = random.Random(1)
    for _ in range(EACH):
        bit = draw.randrange(8 * piece.held.size)
        flip(piece.descriptor, bit)
        assert "checksum" in piece.problem(piece.held), bit
        flip(piece.descriptor, bit)
    assert piece.problem(piece.held) == ""


def test_a_copy_that_is_cut_anywhere_is_refused(piece: Real) -> None:
    """Also where the buffer has held the same piece before: what counts is that the end has come."""
    draw, size = random.Random(2), piece.held.size
    whole = os.pread(piece.descriptor, size, 0) + wire.CRC32.pack(piece.held.crc32)
    for _ in range(EACH):
        near, far = socket.socketpair()
        with near, far:
            far.sendall(whole[: draw.randrange(len(whole))])
            far.shutdown(socket.SHUT_WR)
            with pytest.raises(ConnectionError):
                wire.receive_piece(near, piece.descriptor, size)


def test_a_stale_piece_is_refused_though_its_checksum_is_right(piece: Real) -> None:
    """It is of another step, opening, round, generation, world size, rank, folder or job."""
    draw, name = random.Random(3), piece.held.name
    refused = 0
    while refused < EACH:
        field = draw.choice([*Save._fields, "rank", "folder", "job"])
        other: Any = f"{draw.random()}" if field in ("folder", "job") else draw.randrange(3, 2000)
        if field in Save._fields:
            stale = name._replace(save=name.save._replace(**{field: other}))
        else:
            stale = name._replace(**{field: other})
        if stale != name:
            held = Held(stale, piece.held.size, piece.held.crc32, own=False)
            assert "is in the place of" in piece.problem(held), stale
            refused += 1
