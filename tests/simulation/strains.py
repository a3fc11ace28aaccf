"""What goes on for long, unlike a fault that comes and goes: see ``traits``."""

from __future__ import annotations

from dataclasses import replace

from elasticjob_operator.plan.state.evidence import INFRASTRUCTURE
from tests.simulation.agent import Agent
from tests.simulation.api import JOB_KEY, Client, Item, Key, Refused, Unavailable
from tests.simulation.operator import Operator
from tests.simulation.owned import ROLE_KEY
from tests.simulation.traits import OWNED, Failing, Scaler
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


def neighbour_fails(w: World, seconds: float) -> None:
    """Another tenant's webhook is down, for ever: that is no sign that participants can't write."""
    w.operators[-1].neighbour_fails()
    w.kernel.after(seconds * w.kernel.between(0.8, 1.2), neighbour_fails, w, seconds)


def strand(w: World, seconds: float) -> None:
    """Now and then the API server that some of an operator's watches are with is lost: they are dead, and
    nothing shows it. So also in the moment when a round is broken, and its members have to come back."""

    def broken(key: Key, old: Item | None, item: Item | None) -> None:
        if key == JOB_KEY and old is not None and item is not None and not w.mended:
            before, now = (i.value.status.current_round for i in (old, item))
            if (before.phase, now.phase) == ("Active", "Broken") and w.kernel.rng.random() < 0.5:
                w.kernel.after(w.kernel.rng.choice((0.0, 0.3, 2.0)), _strand, w)

    def again() -> None:
        if not w.mended:
            _strand(w)
            w.kernel.after(seconds * w.kernel.between(0.5, 1.5), again)

    w.api.committed.append(broken)
    w.kernel.after(seconds * w.kernel.between(0.0, 1.0), again)


def _strand(w: World) -> None:
    operator = w.operators[-1]
    if w.mended or not operator.alive:
        return
    names = sorted(operator.watches)
    lost = names if w.kernel.rng.random() < 0.5 else w.kernel.rng.sample(names, 1)
    w.oracle.pace.fault()
    w.kernel.say(f"** dead without a sign: {operator.name}'s watch of {', '.join(lost)}")
    for name in lost:
        operator.watches[name].strand()


def mute(w: World, seconds: float) -> None:
    """Now and then an agent's token is refused for its writes: it trains on, and its worker may fail."""

    def again() -> None:
        if w.mended:
            return
        running = w.running()
        if running:
            _mute(w, w.kernel.rng.choice(running))
        w.kernel.after(seconds * w.kernel.between(0.5, 1.5), again)

    w.kernel.after(seconds * w.kernel.between(0.5, 1.5), again)


def _mute(w: World, agent: Agent) -> None:
    lasts = w.kernel.rng.choice((5.0, 20.0, 60.0, 200.0))
    w.oracle.pace.fault()
    w.kernel.say(f"** {agent.name} cannot write for {lasts:.0f} s")
    agent.mute_until = max(agent.mute_until, w.kernel.now + lasts)
    # It ends no round; but who waits for one may be given up, and its node may look lost.
    alone = w.cluster.node_of(agent).healthy
    w.oracle.happens(agent.uid, INFRASTRUCTURE, harmless=alone)
    if w.kernel.rng.random() < 0.5 and agent.in_round is not None:
        w.kernel.after(w.kernel.between(0.0, lasts), agent.fail_worker, agent.in_round)


def fail_writes(w: World, failing: Failing) -> None:
    """A webhook that is down, a quota, a Role that lacks a name: some writes fail, for long or for ever."""
    until = w.kernel.now + failing.seconds

    def admit(client: Client, key: Key, old: Item | None, item: Item | None) -> Exception | None:
        if failing.what == "role" and isinstance(client, Agent) and not _may_write(w, client):
            return Unavailable(f"{client.name} may not write its Lease yet")
        if w.kernel.now > until or _what(client, key, old, item) != failing.what:
            return None
        if failing.slot is not None:
            pod = w.cluster.agents[client.uid].pod if isinstance(client, Agent) else (item or old).value  # type: ignore[union-attr]
            if pod.slot != failing.slot:
                return None
        if isinstance(client, Agent):
            w.oracle.happens(client.uid, INFRASTRUCTURE)  # what it has to say is not heard
        if failing.how == "403" and isinstance(client, Operator):
            return Refused(f"{key[1]} is forbidden")
        return Unavailable(f"{failing.what}: {failing.how}", 10.0 * (failing.how == "time limit"))

    w.kernel.say(f"** from now on these fail: {failing}")
    if failing.what == "lease":
        w.oracle.pace.fault()  # a round may end for a change of size before it shows that a member is late
    w.api.admission = admit


def _may_write(w: World, agent: Agent) -> bool:
    """Whether the job's Role has this pod's name."""
    role = w.api.items.get(ROLE_KEY)
    return role is not None and agent.name in role.value.names


def _what(client: Client, key: Key, old: Item | None, item: Item | None) -> str:
    if isinstance(client, Operator) and key[0] in OWNED:
        return key[0]
    if isinstance(client, Operator) and key == JOB_KEY and item is not None:
        return "status"
    if key[0] == "lease" and isinstance(client, Agent):
        return "lease"
    if key[0] != "pod" or not isinstance(client, Operator):
        return ""
    if old is None:
        return "make"
    return "delete" if item is None or (item.value.deleting and not old.value.deleting) else ""
