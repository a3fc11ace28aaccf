"""One seeded history: a job, faults at random moments, then rest."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.faults import HARMFUL, HARMLESS, machines
from tests.simulation.rest import settle
from tests.simulation.strains import fail_writes, mute, neighbour_fails, oscillate, strand
from tests.simulation.violation import Violation
from tests.simulation.world import World


@dataclass(frozen=True)
class Failed:
    """A history that broke a rule."""

    seed: int
    rule: str
    text: str
    trace: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.text}\n{self.trace}"


def run(seed: int, clocks: float = 3600.0) -> World:
    """Play the history of this seed. Raises Violation; the world's trace tells how it came to it."""
    world = World(seed, clocks)
    play(world)
    return world


def play(world: World) -> None:
    """Faults, then rest."""
    rng = world.kernel.rng
    scaler = world.traits.scaler
    if scaler is not None:
        world.kernel.run(rng.uniform(0.0, 60.0))
        oscillate(world, scaler)
        if scaler.alone:
            world.kernel.run(scaler.seconds * scaler.times)
            if world.traits.broken is None:
                world.oracle.pace.judge_training()
            settle(world)
            return
    if world.traits.failing is not None:
        world.kernel.run(rng.choice((0.0, 20.0)))
        fail_writes(world, world.traits.failing)
    if world.traits.stranded is not None:
        strand(world, world.traits.stranded)
    if world.traits.mute is not None:
        mute(world, world.traits.mute)
    if world.traits.neighbour is not None:
        neighbour_fails(world, world.traits.neighbour)
    kinds = rng.choice((HARMLESS, HARMFUL, HARMLESS + HARMFUL, HARMLESS + HARMFUL))
    few = rng.sample(kinds, min(len(kinds), rng.choice((2, 4, 30))))
    if world.traits.neighbour is not None:
        few.append(machines.hang_agent)  # it shows by its silence alone
    if world.traits.fencing is not None or world.traits.fenced:
        few += [machines.cut_round_off] * len(few)
    world.kernel.run(world.kernel.between(0.0, 15.0))
    for _ in range(rng.randint(1, 10)):
        rng.choice(few)(world)
        world.kernel.run(rng.choice((0.05, 0.5, 3.0, 15.0, 60.0)) * rng.random())
    settle(world)


def check(seed: int, clocks: float = 3600.0) -> Failed | None:
    """Play a history; what went wrong with it, if anything did."""
    world = World(seed, clocks)
    try:
        play(world)
    except Violation as violation:
        return Failed(seed, violation.rule, str(violation), world.kernel.readable())
    except Exception as error:
        world.kernel.say(f"{type(error).__name__}: {error}")
        raise AssertionError(f"seed {seed}: {error!r}\n{world.kernel.readable()}") from error
    return None
