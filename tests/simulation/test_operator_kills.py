"""Status stays truthful under 100 kills of the operator in one job's life.

The same script (``life``) is played undisturbed and with an operator that dies at random moments: at any
time, and at its own requests, each of which it may take with it or leave carried out and unanswered. Its
successor is there within a second, as a Deployment's is not, but as the second replica's is: what happens
to a pod that is gone for good while no operator looks cannot be told.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.api import Client
from tests.simulation.kernel import Reply, Request
from tests.simulation.life import ACTS, live, told
from tests.simulation.operator import Operator
from tests.simulation.world import World

KILLS = 100
AT_A_REQUEST = 0.15
"""How probable it is that the operator dies at a request, before it is sent or after it was carried out."""


class Killer:
    """Kills the operator ``KILLS`` times, spread over the acts of the script, during each and after it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.killed = 0
        self.at_requests = 0
        self._due = 0
        """How many may be dead by the end of this act."""
        self._world: World | None = None

    def between_acts(self, world: World, position: int) -> None:
        """Use up what was meant for the act before; then hunt during the next one."""
        if self._world is None:
            self._begin(world)
        while self.killed < self._due:
            world.kernel.run(self.rng.uniform(0.01, 2.0))
            if self.killed < self._due and world.operators[-1].alive:
                self._kill(world.operators[-1])
        self._due = KILLS * (position + 1) // len(ACTS) if position < len(ACTS) else self._due

    def _begin(self, world: World) -> None:
        self._world = world
        request = world.api.request

        def hunted(client: Client, work: Callable[[], Any]) -> Request:
            if not isinstance(client, Operator) or self.killed >= self._due:
                return request(client, work)
            draw = self.rng.random()
            if draw < AT_A_REQUEST:
                self.at_requests += 1
                self._kill(client)
                return _never
            if draw < 2 * AT_A_REQUEST:
                return request(client, lambda: self._last(client, work))
            return request(client, work)

        world.api.request = hunted  # type: ignore[method-assign]

    def _last(self, operator: Operator, work: Callable[[], Any]) -> Any:
        try:
            return work()
        finally:
            if operator.alive and self.killed < self._due:
                self.at_requests += 1
                self._kill(operator)

    def _kill(self, operator: Operator) -> None:
        assert self._world is not None
        self.killed += 1
        self._world.kernel.say(f"** {operator.name} is killed")
        operator.die()
        self._world.kernel.after(self.rng.uniform(0.01, 0.6), self._succeed)

    def _succeed(self) -> None:
        assert self._world is not None
        self._world.start_operator()


def _never(reply: Reply) -> None:
    """The request of an operator that has died before it was sent."""


@pytest.mark.parametrize("seed", range(10))
def test_status_stays_truthful_under_100_kills_of_the_operator(seed: int) -> None:
    undisturbed = live(seed)
    killer = Killer(seed)
    disturbed = live(seed, killer.between_acts)
    assert killer.killed == KILLS
    assert killer.at_requests >= KILLS // 4
    assert told(undisturbed.status)["phase"][1:] == ("Closed", "Complete")
    assert told(disturbed.status) == told(undisturbed.status), disturbed.kernel.readable()


def test_nothing_that_is_drawn_changes_what_the_status_says() -> None:
    """The comparison is of the script, not of a seed's luck."""
    first = told(live(0).status)
    assert all(told(live(seed).status) == first for seed in range(1, 10))
