"""One job's life by a script: a failure of each kind, changes of its size, a suspension, and a good end.

Each act waits until the one before has come to rest, so what it does to the job does not depend on how
long the operator took; the seed draws everything else. What the status then says may not depend on the
seed, nor on when the operator was killed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import AnnouncedState
from elasticjob_operator.plan.state.evidence import APPLICATION, INFRASTRUCTURE, PREEMPTION
from elasticjob_operator.plan.state.model import JobSpec
from elasticjob_operator.plan.state.status import JobStatus
from tests.simulation.agent import Agent
from tests.simulation.ground import Behaviour
from tests.simulation.world import World

SPEC = JobSpec(replicas=3, min_replicas=2, spares=1, template={}, limits=Limits(hang_timeout=20))
REST_SECONDS = 300.0

Act = Callable[[World], None]


def _member(w: World, rank: int) -> Agent:
    return next(a for a in w.running() if a.in_round is not None and a.in_round.group_rank == rank)


def _standby(w: World) -> Agent:
    return next(a for a in w.running() if a.in_round is None)


def worker_fails(rank: int, code: int | None) -> Act:
    def act(w: World) -> None:
        agent = _member(w, rank)
        assert agent.in_round is not None
        w.disturb(f"a worker of {agent.name} fails")
        agent.fail_worker(agent.in_round, code)

    return act


def pod_is_lost(rank: int, reason: str = "") -> Act:
    def act(w: World) -> None:
        agent = _member(w, rank)
        accounts = (APPLICATION,) if reason == "OOMKilled" else (INFRASTRUCTURE,)
        w.disturb(f"{agent.name} is killed {reason}", agent.uid, accounts=accounts)
        agent.end(137, reason)

    return act


def spare_is_lost(w: World) -> None:
    agent = _standby(w)
    w.disturb(f"{agent.name} is killed", agent.uid)
    agent.end(137)


def is_preempted(rank: int) -> Act:
    def act(w: World) -> None:
        agent = _member(w, rank)
        w.disturb(f"{agent.name} is preempted", agent.uid, accounts=(PREEMPTION,))
        w.cluster.disrupt_pod(agent.name, "PreemptionByScheduler")

    return act


def _scale(to: int) -> Act:
    def act(w: World) -> None:
        w.disturb(f"scaled to {to}")
        w.change_spec(lambda s: replace(s, replicas=to))

    return act


def _suspend(w: World) -> None:
    w.disturb("the job is suspended")
    w.change_spec(lambda s: replace(s, suspend=True))


def _resume(w: World) -> None:
    w.disturb("the job is resumed")
    w.change_spec(lambda s: replace(s, suspend=False))


def hang(w: World) -> None:
    w.hang_workers()


def finish(w: World) -> None:
    w.disturb("the training is done")
    w.behaviour.needed = 0.0
    for agent in w.running():
        agent.wake()


ACTS: tuple[Act, ...] = (
    worker_fails(1, 1),
    pod_is_lost(2),
    worker_fails(0, -9),
    pod_is_lost(0),
    _scale(5),
    is_preempted(1),
    spare_is_lost,
    pod_is_lost(3, "OOMKilled"),
    _scale(3),
    _suspend,
    _resume,
    hang,
    worker_fails(2, None),
    is_preempted(0),
    _scale(4),
    finish,
)


class Unrest(AssertionError):
    """The job does not come to rest."""


def live(
    seed: int, between_acts: Callable[[World, int], None] = lambda *_: None, acts: tuple[Act, ...] = ACTS
) -> World:
    """Play the script; ``between_acts`` is called before each act with its position, and once after the last.
    Raises Unrest, or Violation."""
    w = World(seed, 0.0, SPEC, Behaviour(steps=True))
    for position, act in enumerate(acts):
        _rest(w)
        between_acts(w, position)
        _rest(w)
        act(w)
    _rest(w)
    between_acts(w, len(acts))
    value = w.job
    assert value is not None
    w.kernel.run(130.0)  # better evidence may move a charge
    w.oracle.charges.judge(value)
    return w


def told(status: JobStatus) -> dict[str, Any]:
    """What people read of the past: accounts, history, and rounds, without times and names of pods."""
    history = list(reversed(status.round_history))
    return {
        "rounds": [
            (r.number, r.cause, end.account if end is not None else "", r.members)
            for r, end in zip(history, [None, *(r.end for r in history)], strict=False)
        ],
        "accounts": {a.name: sorted((c.round or 0, c.cause) for c in a.charges) for a in status.accounts},
        "restarts": status.restarts,
        "phase": (status.current_round.number, status.current_round.phase, status.terminal_state),
    }


def _rest(w: World) -> None:
    """Let time pass until nothing is under way any more."""
    until = w.kernel.now + REST_SECONDS
    quiet = 0
    while quiet < 30:
        w.kernel.run(0.1)
        quiet = quiet + 1 if _at_rest(w) else 0
        if w.kernel.now > until:
            raise Unrest(f"the job does not come to rest\n{w.kernel.readable()}")


def _at_rest(w: World) -> bool:
    value = w.job
    if value is None or not w.operators[-1].alive or value.status.observed_generation != value.job.generation:
        return False
    status, spec = value.status, value.job.spec
    if status.finished:
        return not w.running()
    if spec.suspend:
        return status.is_true("Suspended") and not w.running() and status.current_round.phase != "Active"
    members = [a for a in w.running() if a.in_round is not None]
    whole = (
        len(members) == spec.replicas == status.current_round.members
        and status.current_round.established_time is not None
    )
    same = {a.in_round.number for a in members if a.in_round is not None} == {status.current_round.number}
    waiting = [a for a in w.running() if a.in_round is None and _has_joined(w, a)]
    if any(agent.failing for agent in members):
        return False
    held = members[0].in_round if members else None
    trains = held is not None and w.steps(held) is not None and not w.stands_still(held)
    return (
        status.current_round.phase == "Active" and whole and same and len(waiting) == spec.spares and trains
    )


def _has_joined(w: World, agent: Agent) -> bool:
    lease = w.api.items.get(("lease", agent.name))
    return lease is not None and lease.value.record.state == AnnouncedState.JOINING.value
