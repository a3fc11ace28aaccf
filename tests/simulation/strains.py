"""What goes on for long, unlike a fault that comes and goes: see ``traits``."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.traits import Scaler
from tests.simulation.world import World


def oscillate(w: World, scaler: Scaler) -> None:
    """An autoscaler that can't make up its mind, in a cluster that has not room for all it wants."""
    w.room = scaler.room
    for turn in range(scaler.times):
        w.later(scaler.seconds * turn * w.kernel.between(0.9, 1.0), _scale, w)
    w.later(scaler.seconds * scaler.times, setattr, w, "room", None)


def _scale(w: World) -> None:
    value = w.job
    if value is None:
        return
    rng = w.kernel.rng
    to, spec = rng.randint(1, 6), value.job.spec
    minimum = None if spec.min_replicas is None else min(spec.min_replicas, to)
    if rng.random() < 0.2:
        minimum = rng.choice((None, rng.randint(1, to)))
    raised = minimum is not None and minimum > value.status.min_replicas
    w.plan(f"scaled to {to}, minReplicas {minimum}", raised)
    w.change_spec(lambda s: replace(s, replicas=to, min_replicas=minimum))
