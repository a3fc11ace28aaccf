"""Members near each other in the ring of ranks are near each other in the network. Pure.

Collectives join members in rank order, so each pair of neighbours in different racks is traffic between
racks. The *domains* of a participant are those of its node, from coarse to fine: a zone, a block, a rack. A
name may come twice in different coarser ones, so two share a domain only if they share all coarser ones. ""
is an unknown one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

Domains = tuple[str, ...]
T = TypeVar("T", bound=Hashable)


def crossings(ring: Sequence[Domains], level: int) -> int:
    """How many neighbours, the last and the first among them, do not share the domain of this level (0: the
    coarsest)."""
    shared = [domains[: level + 1] for domains in ring]
    return sum(one != other for one, other in zip(shared, shared[1:] + shared[:1], strict=True))


def arranged(items: Iterable[tuple[Domains, T]]) -> list[T]:
    """The items so that each domain is in one piece, in the order of the first item of each: as given, where
    domains say nothing. No order has fewer crossings."""
    placed = list(items)
    first: dict[Domains, int] = {}
    for index, (domains, _) in enumerate(placed):
        for level in range(len(domains)):
            first.setdefault(domains[: level + 1], index)

    def key(index: int) -> tuple[int, ...]:
        domains = placed[index][0]
        return (*(first[domains[: level + 1]] for level in range(len(domains))), index)

    return [placed[index][1] for index in sorted(range(len(placed)), key=key)]


def kept(items: Sequence[tuple[Domains, T]], size: int) -> list[T]:
    """At most ``size`` of the items, in their order: the smallest domain is given up first, of equal ones,
    and within one, what comes last."""
    depth = max((len(domains) for domains, _ in items), default=0)
    leaving = set(_given_up(items, max(0, len(items) - size), 0, depth))
    return [item for _, item in items if item not in leaving]


def _given_up(items: Sequence[tuple[Domains, T]], count: int, level: int, depth: int) -> list[T]:
    if count in (0, len(items)) or level == depth:
        return [item for _, item in items[len(items) - count :]]
    groups: dict[Domains, list[tuple[Domains, T]]] = {}
    for domains, item in items:
        groups.setdefault(domains[: level + 1], []).append((domains, item))
    found: list[T] = []
    for group in _smallest_first(groups.values()):
        found += _given_up(group, min(count - len(found), len(group)), level + 1, depth)
    return found


def _smallest_first(groups: Iterable[list[tuple[Domains, T]]]) -> list[list[tuple[Domains, T]]]:
    return [group for _, group in sorted(enumerate(groups), key=lambda found: (len(found[1]), -found[0]))]


class Newcomers(Generic[T]):
    """Items to be taken one by one, each the nearest to a place; of equally near ones the first given."""

    def __init__(self, items: Iterable[tuple[Domains, T]]) -> None:
        self._left: dict[T, int] = {}
        self._within: defaultdict[Domains, deque[T]] = defaultdict(deque)
        for index, (domains, item) in enumerate(items):
            self._left[item] = index
            for level in range(len(domains) + 1):
                self._within[domains[:level]].append(item)

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, *neighbours: Domains) -> T:
        """Take the nearest to one of the neighbours."""
        found = [self._nearest(domains) for domains in neighbours]
        _, item = max(found, key=lambda level_item: (level_item[0], -self._left[level_item[1]]))
        del self._left[item]
        return item

    def _nearest(self, domains: Domains) -> tuple[int, T]:
        for level in range(len(domains), -1, -1):
            within = self._within.get(domains[:level], deque())
            while within and within[0] not in self._left:
                within.popleft()
            if within:
                return level, within[0]
        raise AssertionError("all items are within ()")
