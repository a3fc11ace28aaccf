"""Commands of scenarios about writes that fail for ever."""

from __future__ import annotations

from collections.abc import Iterable

from elasticjob_operator.act.write_backoff import ROUND
from elasticjob_operator.plan.state.model import Action, CreatePod, DeletePod, FailingWrite, Job

WHY = 'failed calling webhook "pods.example.com" (500)'


class RefusalCommands:
    """The part of ``World`` that is about what the API server does not take. ``refused``: pods, deletions (of
    pods), status, round (its Lease)."""

    job: Job
    refused: set[str]
    failing_writes: tuple[FailingWrite, ...]

    def do_api(self, what: str, *kinds: str) -> None:
        """``api refuses pods``, ``deletions``, ``status`` or ``round``; ``api accepts`` any of them."""
        (self.refused.update if what == "refuses" else self.refused.difference_update)(kinds)
        self.failing_writes = ()

    def _taken(self, actions: Iterable[Action]) -> list[Action]:
        """The actions that the API server takes; the planner hears of the others at its next pass."""
        made = [a for a in actions if isinstance(a, CreatePod) and "pods" in self.refused]
        deleted = [a for a in actions if isinstance(a, DeletePod) and "deletions" in self.refused]
        names = sorted(action.name for action in made)
        told = [FailingWrite(ROUND.name, ROUND.verb, WHY)] if "round" in self.refused else []
        told += [FailingWrite(a.name, "deleted", WHY) for a in deleted]
        self.failing_writes = (*(FailingWrite(name, "created", WHY) for name in names), *told)
        return [a for a in actions if a not in (*made, *deleted)]
