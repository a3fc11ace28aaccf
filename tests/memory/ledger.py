"""What is true of the saves of a history: what each rank has saved, and which agents hold it unharmed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from elasticjob.memory.pieces import PieceName, Save
from tests.memory.content import State


class Violation(Exception):
    """A rule is broken."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


@dataclass
class Ledger:
    """Follows what agents are given, not what they say. ``pods`` are named by numbers."""

    states: dict[PieceName, State] = field(default_factory=dict)
    """What ranks have handed over."""
    holders: dict[PieceName, set[int]] = field(default_factory=dict)
    """The pods that have an unharmed piece, if they still live."""
    have_copies: set[PieceName] = field(default_factory=set)
    """What was copied as a whole."""
    replaceable: set[Save] = field(default_factory=set)
    """Saves that may be gone by the rules: a newer one is complete, or was written over them."""

    def taken(self, name: PieceName, state: State, pod: int) -> None:
        """A worker of this pod has handed it over. M1: a name stands for one state."""
        if self.states.setdefault(name, state) != state:
            raise Violation("M1", f"{name} has two states")
        self.holders.setdefault(name, set()).add(pod)

    def copied(self, name: PieceName, pod: int) -> None:
        """This pod has a copy."""
        self.holders.setdefault(name, set()).add(pod)
        self.have_copies.add(name)

    def harmed(self, name: PieceName, pod: int) -> None:
        """This pod's piece is damaged, or another one is in its place."""
        self.holders.get(name, set()).discard(pod)

    def complete(self, save: Save) -> None:
        """The ranks know that it is complete: older ones may go."""
        self.replaceable |= {name.save for name in self.states if name.save < save}

    def written_over(self, names: Iterable[PieceName]) -> None:
        """A rank writes over these, whose copies have failed."""
        self.replaceable |= {name.save for name in names}

    def resumed(self, save: Save | None) -> None:
        """All members have resumed from this one: all others that there are may go."""
        self.replaceable |= {name.save for name in self.states if name.save != save}

    def newest(self, members: set[int]) -> Save | None:
        """The newest save that members must be able to load."""
        saves = {name.save for name in self.states} - self.replaceable
        return max((save for save in saves if self._is_held(save, members)), default=None)

    def _is_held(self, save: Save, members: set[int]) -> bool:
        held = [name for name in self.states if name.save == save and self.holders[name] & members]
        return len(held) == save.world

    def check(self, save: Save | None, state: State, members: set[int]) -> None:
        """M2: what is loaded is bit-equal to what all ranks have saved at that step. M3: and no older than
        the newest that is left."""
        if save is not None:
            pieces = {name: saved for name, saved in self.states.items() if name.save == save}
            if len(pieces) != save.world:
                raise Violation("M2", f"{save} was loaded, but only {len(pieces)} ranks have saved it")
            whole = {key: value for saved in pieces.values() for key, value in saved.items()}
            if state != whole:
                wrong = sorted(key for key in whole if state.get(key) != whole[key])
                raise Violation("M2", f"{save} was loaded with another content of {wrong}")
        newest = self.newest(members)
        if newest is not None and (save is None or save < newest):
            raise Violation("M3", f"{save} was loaded, but {newest} is held by the members")
