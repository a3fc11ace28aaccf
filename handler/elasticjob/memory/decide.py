"""Which saves can be resumed from memory, which pieces may go, and where copies are sent. Pure.

Nothing is written down about what is complete: it is decided when training resumes, from what the members of
the new round hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elasticjob.memory.pieces import Held, Inventory, PieceName, Save


@dataclass(frozen=True)
class Holder:
    """An agent that holds a piece, and the ranks that are its workers."""

    inventory: Inventory
    held: Held
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """A save of which every piece is held by a member. ``pieces[rank]`` has its holders, at least one; those
    whose workers have saved it come first."""

    save: Save
    pieces: tuple[tuple[Holder, ...], ...]

    def readers(self) -> tuple[int, ...]:
        """For each piece the rank that reads its index for all: a worker of an agent that holds it. The
        pieces are spread over the ranks."""
        load: dict[int, int] = {}
        chosen = []
        for holders in self.pieces:
            near = {rank for holder in holders for rank in holder.ranks}
            reader = min(near, key=lambda rank: (load.get(rank, 0), rank))
            load[reader] = load.get(reader, 0) + 1
            chosen.append(reader)
        return tuple(chosen)


def candidates(inventories: Sequence[Inventory], folder: str) -> list[Candidate]:
    """The saves for ``folder`` that can be resumed, the newest first. ``inventories[rank]`` is what the agent
    of each rank of the new round has said."""
    ranks: dict[str, tuple[int, ...]] = {}
    for rank, inventory in enumerate(inventories):
        ranks[inventory.agent] = (*ranks.get(inventory.agent, ()), rank)
    holders: dict[PieceName, list[Holder]] = {}
    for inventory in {one.agent: one for one in inventories}.values():
        for held in inventory.held:
            if held.name.folder == folder:
                one = Holder(inventory, held, ranks[inventory.agent])
                holders.setdefault(held.name, []).append(one)
    return [
        Candidate(save, tuple(_own_first(holders[name]) for name in names))
        for save, names in sorted(_complete(holders).items(), reverse=True)
    ]


def _complete(names: Iterable[PieceName]) -> dict[Save, list[PieceName]]:
    """The saves of which all pieces are among ``names``, each with its pieces by rank. Two jobs never share a
    save, even if their agents' pods have: an agent lets go of another job's pieces."""
    found: dict[tuple[str, Save], dict[int, PieceName]] = {}
    for name in names:
        found.setdefault((name.job, name.save), {})[name.rank] = name
    return {
        save: [pieces[rank] for rank in range(save.world)]
        for (_, save), pieces in found.items()
        if len(pieces) == save.world
    }


def _own_first(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    return tuple(sorted(holders, key=lambda holder: (not holder.held.own, holder.ranks)))


def superseded(held: Iterable[PieceName], complete: Save) -> list[PieceName]:
    """The pieces that may go when a save of the present round is complete everywhere: all older ones, of
    former rounds too."""
    return [name for name in held if name.save < complete]


def left_over(
    held: Iterable[PieceName], resumed: Save | None, round_number: int, opening: int
) -> list[PieceName]:
    """The pieces that may go when all ranks of this round have resumed: those of former rounds and openings,
    but not of the save that they have loaded. ``resumed`` None: that was no save in memory.

    A round that is disturbed before its first own save is complete resumes from that one again. Newer pieces
    are of a save that is incomplete, and older ones are not needed: without this rule, what several crashes
    have left would take the room of the next save.
    """
    present = (round_number, opening)
    return [name for name in held if name.save != resumed and (name.save.round, name.save.opening) < present]


def replaced(held: Iterable[PieceName], kept: Sequence[PieceName], piece: PieceName) -> list[PieceName]:
    """The copies of one rank's pieces that may go when its agent sends ``piece`` and says which ones of the
    same rank and round it has ``kept`` itself: the rest was written over."""
    return [
        name
        for name in held
        if name not in kept
        and name != piece
        and (name.job, name.folder, name.rank) == (piece.job, piece.folder, piece.rank)
        and name.save._replace(step=0) == piece.save._replace(step=0)
    ]


@dataclass(frozen=True)
class Place:
    """Where a member runs, as far as it knows. Names; "" if unknown."""

    node: str = ""
    zone: str = ""


def in_order(places: Mapping[int, Place]) -> list[int]:
    """The group ranks by zone and node: in this order there is a shift by which no member has its copy on its
    own node, unless more than half of them are on one."""
    return sorted(places, key=lambda rank: (places[rank].zone, places[rank].node, rank))


@dataclass(frozen=True)
class Shift:
    """Each member sends its copies to the one ``shift`` places after it, in a ring; 0: to no other."""

    shift: int
    together: int = 0
    """How many members send their copies to one on the same node, as far as nodes are known."""


def choose_shift(places: Sequence[Place]) -> Shift:
    """The smallest shift by which the fewest members have their copy on their own node, and of these the one
    with the fewest in their own zone. Unknown names are different from all others."""
    size = len(places)
    if size < 2:
        return Shift(0)

    best: tuple[int, int, int] | None = None
    for shift in range(1, size):
        pairs = [(places[rank], places[(rank + shift) % size]) for rank in range(size)]
        found = (_same(pairs, "node"), _same(pairs, "zone"), shift)
        best = found if best is None else min(best, found)
        if best[:2] == (0, 0):
            break
    assert best is not None
    return Shift(best[2], together=best[0])


def _same(pairs: Iterable[tuple[Place, Place]], what: str) -> int:
    found = ((getattr(one, what), getattr(other, what)) for one, other in pairs)
    return sum(one != "" and one == other for one, other in found)


def room(limit: int, held: Mapping[str, int], size: int) -> str:
    """Why a buffer of ``size`` bytes cannot be made beside what is ``held`` (bytes by kind); "" if it can."""
    total = sum(held.values())
    if total + size <= limit:
        return ""
    listed = ", ".join(f"{mebibytes(number)} {kind}" for kind, number in held.items() if number)
    return (
        f"a piece of {mebibytes(size)} has no room beside {listed or 'no pieces'}: a pod may hold "
        f"{mebibytes(limit)}, and needs 2 times the pieces of its workers, and with copies 2 times those of "
        "another pod as well"
    )


def mebibytes(size: int) -> str:
    """A size, for a message."""
    return f"{size / (1 << 20):,.0f} MiB"
