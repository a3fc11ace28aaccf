"""The rules of memory checkpoints, each taken out of the code: what stands there then. A copy that was
cut is not here: that it has no name, its footer and its checksum each refuse it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pkgutil import resolve_name
from typing import Any
from unittest import mock

from elasticjob.memory.pieces import PieceName, Save

MEMORY = "elasticjob.memory"
LOAD, PIECE = "elasticjob.checkpoint.memory_load", "elasticjob.checkpoint.memory_piece"


def mixed(names: Iterable[PieceName]) -> dict[Save, list[PieceName]]:
    """Any pieces of a round make a save."""
    found: dict[tuple[int, int], dict[int, PieceName]] = {}
    for name in sorted(names):
        found.setdefault((name.save.round, name.save.world), {})[name.rank] = name
    whole = [list(pieces.values()) for (_, world), pieces in found.items() if len(pieces) == world]
    return {max(name.save for name in pieces): sorted(pieces, key=_rank) for pieces in whole}


def _rank(name: PieceName) -> int:
    return name.rank


def careless(saves: Any, *_: bool) -> bool:
    if saves.last is not None:
        saves.complete, saves.last = saves.last.save, None
    return True


NAMES = (f"{PIECE}._named", lambda _: b"a piece")
KEYS = (f"{MEMORY}.keeper.same", lambda *_: True)
OPENINGS = (f"{MEMORY}.keeper.Keeper.open", lambda *_: 1)

MUTATIONS: dict[str, list[tuple[str, Callable[..., Any]]]] = {
    "checksums are verified": [(f"{LOAD}.what_is_wrong", lambda *_: "")],
    "a piece has its own name": [NAMES],
    "keys and tokens are those of the present round": [KEYS],
    "a save has pieces of one step": [(f"{MEMORY}.decide._complete", mixed)],
    "the complete save stays": [
        (f"{MEMORY}.decide.superseded", lambda held, complete: [n for n in held if n.save <= complete])
    ],
    "the save that was resumed stays": [
        (
            f"{MEMORY}.decide.left_over",
            lambda held, _, number, *__: [n for n in held if n.save.round < number],
        )
    ],
    "copies stay until they were written over": [(f"{MEMORY}.decide.replaced", lambda held, *_: list(held))],
    "a copy that failed is not complete": [(f"{MEMORY}.saving.Saves.may_begin", careless)],
    "the script may open its checkpoints again": [OPENINGS],
}


@contextmanager
def without(name: str) -> Iterator[None]:
    """Take a rule out of the code, and put it back."""
    with ExitStack() as stack:
        for place, absence in MUTATIONS[name]:
            resolve_name(place)
            stack.enter_context(mock.patch(place, absence))
        yield
