"""The rendezvous in the simulated world: seeded histories, a state machine of faults, and mutations.

``python -m tests.simulation --histories 100000`` plays more of them (``make histories``); ``--trace SEED``
prints one.
"""

from __future__ import annotations

import multiprocessing
import os
import warnings

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from elasticjob_operator.plan.state.model import JobSpec
from tests.rules import without
from tests.simulation import traits
from tests.simulation.faults import HARMFUL, HARMLESS
from tests.simulation.ground import Behaviour
from tests.simulation.history import check, play
from tests.simulation.kernel import Kernel
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.rest import settle
from tests.simulation.traits import Commands, Traits
from tests.simulation.world import World

pytestmark = pytest.mark.timeout(3600)
"""Nothing here can hang; beside other work on the machine it takes several times as long."""

HISTORIES = 500
"""``make histories`` plays two hundred times as many."""
MUTATED = 3000
"""Of these, some must tell that a rule is gone; most rules need a few dozen."""
FAULTS = {fault.__name__: fault for fault in HARMFUL + HARMLESS}


def test_no_history_breaks_a_rule() -> None:
    """The invariants at every step, and liveness once all is mended; the trace tells how it came to it."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for failed in pool.imap_unordered(check, range(HISTORIES), chunksize=50):
            assert failed is None, str(failed)


def test_what_is_due_at_one_moment_happens_in_order() -> None:
    """Else a watch brings an object's end before its beginning, whenever a test lets odd times pass."""
    kernel = Kernel(0)
    happened: list[int] = []
    for number in range(100):
        kernel.after(0.5 - kernel.now, happened.append, number)
        kernel.run(kernel.between(0.0, 0.004))
    kernel.run(1.0)
    assert happened == list(range(100))


@pytest.mark.parametrize("torchruns", [1, 2])
@pytest.mark.parametrize("needed", [480.0, 570.0, 650.0])
def test_rest_is_not_looked_for_while_a_command_goes_on(needed: float, torchruns: int) -> None:
    """Training is over shortly before the world is looked at, and what follows torchrun takes its time."""
    for seed in range(5):
        world = World(seed, spec=JobSpec(replicas=2, template={}), behaviour=Behaviour(needed))
        world.traits = Traits(commands=Commands(60.0, 0, torchruns, 0.0))
        settle(world)


@pytest.mark.parametrize("seed", range(0, 200, 10))
def test_clocks_tell_nothing(seed: int) -> None:
    """I9: operators whose clocks are hours apart decide the same as those that agree."""
    traces = []
    for apart in (0.0, 8192.0):
        world = World(seed, clocks=apart, wall=apart)
        play(world)
        traces.append([text for _, text in world.kernel.trace])
    assert traces[0] == traces[1]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.rule)
def test_the_simulation_tells_when_a_rule_is_gone(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mutation.trait:
        monkeypatch.setattr(traits, "ON", {mutation.trait})
        monkeypatch.setattr(traits, "SHARE", 1.0)
    found = set()
    with without(mutation.rule):
        for seed in (*range(mutation.seed, MUTATED), *range(mutation.seed)):
            failed = check(seed)
            if failed is not None:
                found.add(failed.rule)
                if failed.rule in mutation.breaks:
                    if seed != mutation.seed:
                        warnings.warn(f"begin at seed {seed} in MUTATIONS: {mutation.rule}", stacklevel=1)
                    return
    pytest.fail(f"{MUTATED} histories do not tell that the rule is gone: {mutation.rule}; found {found}")


class Machine(RuleBasedStateMachine):
    """Faults in any order and at any distance, as hypothesis likes; every step is judged as it happens."""

    world: World

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        """A new world."""
        self.world = World(seed)
        self.world.kernel.run(5.0)

    @rule(name=st.sampled_from(sorted(FAULTS)))
    def break_something(self, name: str) -> None:
        """One fault."""
        FAULTS[name](self.world)

    @rule(seconds=st.sampled_from((0.01, 0.2, 1.0, 5.0, 20.0, 60.0)))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.world.kernel.run(seconds)

    def teardown(self) -> None:
        """Rest."""
        if hasattr(self, "world"):
            try:
                settle(self.world)
            except AssertionError:
                print(self.world.kernel.readable())
                raise


def test_no_order_of_faults_breaks_a_rule() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=150,
            stateful_step_count=15,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.generate, Phase.shrink),
            derandomize=True,
            database=None,
        ),
    )
