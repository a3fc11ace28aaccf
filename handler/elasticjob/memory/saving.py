"""Which save of a round is complete and which is written over, as each rank knows it. Pure.

All ranks are in the same state, because each change follows from what all of them have said.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob.memory.pieces import PieceName, Save


@dataclass
class Saves:
    """The saves of one rank since its checkpoints were opened."""

    last: PieceName | None = None
    """The piece of the save before, while it is not known to be complete."""
    complete: Save | None = None
    """The newest save that is complete: all ranks have it, with its copies."""
    step: int = -1
    """The last step that was saved: no step is saved twice."""

    def may_begin(self, ended: bool, well: bool) -> bool:
        """Whether all ranks save now, when the copies of the save before have ``ended`` on all of them, and
        ``well``. If not, all skip this save."""
        if ended and well and self.last is not None:
            self.complete, self.last = self.last.save, None
        return ended

    def begin(self, name: PieceName) -> tuple[PieceName, ...]:
        """This piece is written now, over those that are returned: their copies have failed, so the complete
        save before them stays."""
        stale = () if self.last is None else (self.last,)
        self.last, self.step = name, name.save.step
        return stale
