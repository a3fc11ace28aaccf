"""Faults of the control plane: the operator, the API server and its watches."""

from __future__ import annotations

from tests.simulation.faults.machines import looks_lost
from tests.simulation.world import World


def crash_operator(w: World) -> None:
    """kill -9 of the operator; another comes soon."""
    operator = w.operators[-1]
    if operator.alive:
        w.disturb("the operator is killed")
        operator.die()
        w.later(w.kernel.between(0.1, 20.0), _new_operator, w)


def _new_operator(w: World) -> None:
    if not w.operators[-1].alive:
        w.disturb("a new operator starts")
        w.start_operator()


def freeze_operator(w: World) -> None:
    """SIGSTOP of the operator."""
    operator = w.operators[-1]
    if operator.alive and not operator.frozen:
        w.disturb("the operator is frozen")
        operator.freeze()
        w.later(w.kernel.rng.choice((0.5, 5.0, 60.0)), operator.thaw)


def depose_operator(w: World) -> None:
    """Another operator takes over while the old one believes that it leads, perhaps within a pass."""
    old = w.operators[-1]
    if not old.alive:
        return
    w.disturb("another operator takes over, the old one goes on for a while")
    if w.kernel.rng.random() < 0.5:
        old.freeze()
        w.later(w.kernel.between(0.5, 20.0), old.thaw)
    w.start_operator()
    w.later(w.kernel.between(0.5, 30.0), _end_old, w, old)


def _end_old(w: World, old: object) -> None:
    for operator in w.operators[:-1]:
        if operator is old and operator.alive:
            w.kernel.say(f"{operator.name} learns that it leads no more")
            operator.thaw()
            operator.die()


def cut_operator(w: World) -> None:
    """The operator can't reach the API server."""
    operator = w.operators[-1]
    if operator.alive:
        w.disturb("the operator is cut off")
        operator.api_path = False
        w.later(w.kernel.rng.choice((1.0, 10.0, 60.0)), _mend_operator, w)


def _mend_operator(w: World) -> None:
    for operator in w.operators:
        operator.api_path = True


def api_down(w: World) -> None:
    """The API server is away."""
    w.disturb("the API server is away")
    w.api.weather.down = True
    w.api.drop_watches()
    w.later(w.kernel.rng.choice((0.5, 5.0, 30.0, 90.0)), _api_up, w)


def _api_up(w: World) -> None:
    if w.api.weather.down:
        w.disturb("the API server is back")
        w.api.weather.down = False


def api_slow(w: World) -> None:
    """Every request takes seconds."""
    w.disturb("the API server is slow")
    w.api.weather.slow = True
    w.later(w.kernel.between(5.0, 40.0), setattr, w.api.weather, "slow", False)


def lose_answers(w: World) -> None:
    """Requests are carried out and their answers are lost."""
    w.disturb("answers are lost")
    for node in w.cluster.nodes.values():
        if not node.kubelet:
            looks_lost(w, node)
    w.api.weather.loses_answers = True
    w.later(w.kernel.between(1.0, 15.0), setattr, w.api.weather, "loses_answers", False)


def watches_lag(w: World) -> None:
    """Watches run late."""
    w.disturb("watches lag")
    w.api.weather.lag = w.kernel.rng.choice((0.5, 2.0, 8.0))
    w.later(w.kernel.between(5.0, 40.0), setattr, w.api.weather, "lag", 0.0)


def watches_drop(w: World) -> None:
    """All watches break."""
    w.disturb("all watches break")
    w.api.drop_watches()


def one_watch_drops(w: World) -> None:
    """One watch breaks."""
    if w.api.watches:
        w.disturb("one watch breaks")
        w.kernel.rng.choice(w.api.watches).break_off()
