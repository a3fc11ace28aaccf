"""The end of a history: everything is mended, and the world must come to rest."""

from __future__ import annotations

from dataclasses import replace

from elasticjob.rounds.causes import Cause
from elasticjob_operator.plan.charges.backoff import MAX_BACKOFF_SECONDS
from elasticjob_operator.plan.state.evidence import INFRASTRUCTURE, PREEMPTION
from elasticjob_operator.plan.state.model import JobSpec
from elasticjob_operator.plan.state.status import JobStatus, ParticipantStatus
from tests.simulation.agent import Agent
from tests.simulation.api import JOB_KEY
from tests.simulation.violation import Violation
from tests.simulation.world import World

SETTLE_SECONDS = 600.0
REST_SECONDS = 120.0
JOIN_SECONDS = 10.0
"""For torchruns that follow others in their containers to begin a round."""
SUSPEND_SECONDS = 120.0
"""The bound for the pods of a suspended job to end: their grace, and a node that has to be NotReady first."""
UNSAVED_SECONDS = 2 * 30.0
"""So much more if only memory has the last steps: twice ``drainSeconds``."""


def heal(w: World) -> None:
    """Everything that can be mended is mended; what has died is dead."""
    w.kernel.say("** everything is mended")
    w.mended = True
    for agent in w.running():
        agent.mute_until = 0.0
    weather = w.api.weather
    weather.down = weather.slow = weather.loses_answers = False
    weather.lag = 0.0
    w.cluster.no_room, w.room = False, None
    if w.kueue is not None:
        w.kueue.mend()
    w.cluster.severed.clear()
    for node in w.cluster.nodes.values():
        if not node.exists or not node.power:
            w.cluster.add_node_again(node)
        node.api = node.peers = True
        node.frozen = False
        node.kubelet = True
        w.cluster.give_notice(node, "")
        w.cluster.changed(node)
    for agent in w.running():
        if not agent.hangs:
            agent.thaw()
    for operator in w.operators:
        operator.thaw()
    for operator in w.operators:
        operator.api_path = True
    for operator in w.operators[:-1]:
        if operator.alive:
            operator.die()
    if not w.operators[-1].alive:
        w.start_operator()
    if w.api.items.get(JOB_KEY) is None:
        w.make_job()
    for agent in w.running():
        w.oracle.happens(agent.uid, INFRASTRUCTURE, PREEMPTION)
    w.look()


def settle(w: World) -> None:
    """After the faults end: everyone who can be in a round is in one, or the status says what it waits
    for; and then nothing happens any more. Raises Violation."""
    heal(w)
    if w.job is not None and w.job.job.spec.suspend:
        _settle_suspended(w)
    _come_to_rest(w)
    if _failing_for_ever(w):
        w.kernel.say("** all writes work again")
        w.traits = replace(w.traits, failing=None)
        w.api.admission = lambda *_: None
        _come_to_rest(w)


def _come_to_rest(w: World) -> None:
    _pass_time(w, SETTLE_SECONDS)
    if w.status.slot_backoffs:
        _pass_time(w, 2 * MAX_BACKOFF_SECONDS)  # a pod that came so late may be on probation still
    _check_rest(w)
    number, phase = w.status.current_round.number, w.status.current_round.phase
    passes, began = w.operators[-1].passes, w.kernel.now
    _pass_time(w, REST_SECONDS)
    if w.traits.broken is not None and not w.traits.broken.mended:
        return
    now = w.status.current_round
    again = w.traits.commands is not None and (now.number, now.cause) == (number + 1, Cause.STARTED_AGAIN)
    if not again and (now.number, now.phase) not in ((number, phase), (number, "Closed")):
        raise Violation("Liveness", f"round {number} {phase} became {now} without a cause")
    often = 1.2 if _failing_for_ever(w) and not _writes_status(w) else 0.5
    if w.operators[-1].passes - passes > often * (w.kernel.now - began):
        raise Violation("Liveness", f"{w.operators[-1].passes - passes} passes for nothing")
    _check_rest(w)


def _pass_time(w: World, seconds: float) -> None:
    """So much of it in which no command goes on after its torchrun has ended well, nor just did: what it does
    then takes the time that it takes, and it may run torchrun again."""
    commands = w.traits.commands
    if commands is None:
        w.kernel.run(seconds)
        return
    until = w.kernel.now + seconds + commands.torchruns * (commands.seconds + JOIN_SECONDS)
    last = float("-inf")
    while seconds > 0 and w.kernel.now < until:
        w.kernel.run(1.0)
        if any(agent.goes_on and not agent.hangs for agent in w.running()):
            last = w.kernel.now
        seconds -= w.kernel.now > last + JOIN_SECONDS


def _failing_for_ever(w: World) -> bool:
    return w.traits.failing is not None and w.traits.failing.seconds == float("inf")


def _writes_status(w: World) -> bool:
    """If not, what waits for it is looked at once a second."""
    return w.traits.failing is None or w.traits.failing.what != "status"


def _settle_suspended(w: World) -> None:
    """A suspended job has no pods and no round; then it is resumed."""
    w.kernel.run(SUSPEND_SECONDS + UNSAVED_SECONDS * w.traits.memory)
    alive, status = w.running(), w.status
    if not status.finished and not w.traits.holds_pods:
        if any(not a.hangs for a in alive) or status.current_round.phase == "Active":
            text = f"suspended, round {status.current_round.number} is {status.current_round.phase}"
            raise Violation("Suspension", f"{text}, {[a.name for a in alive]} still run")
        if not status.is_true("Suspended"):
            raise Violation("Suspension", f"suspended, and the status says {status.conditions}")
    w.kernel.say("** the job is resumed")
    w.change_spec(lambda s: replace(s, suspend=False))


def _check_rest(w: World) -> None:
    value = w.job
    assert value is not None
    broken = w.traits.broken
    if broken is not None and not broken.mended:
        return  # it fails for ever, and the pace of that is judged round by round
    if any(a.hangs and _nobody_may_tell(w, a, value.status) for a in w.running()):
        return
    w.oracle.charges.judge(value)
    status, spec = value.status, value.job.spec
    alive = w.running()
    if status.finished:
        left = [a.name for a in alive if not (a.hangs and _stays(w, a.name))]
        if left:
            raise Violation("Liveness", f"finished, and {left} still run")
        _check_remains(w)
        return
    if _failing_for_ever(w):
        _check_what_is_possible(w)
        return
    training = status.condition("Training")
    said = f"{training.reason}: {training.message}" if training is not None else "nothing"
    if w.others and not alive:
        return  # all have ended, and their controller makes no more
    if w.stands is not None and w.stands[0] == (value.job.uid, status.current_round.number):
        raise Violation("Liveness", f"round {status.current_round.number} hangs; the status says {said}")
    if status.current_round.phase != "Active" or status.current_round.established_time is None:
        raise Violation("Liveness", f"no round after everything was mended; the status says {said}")
    if status.current_round.drain is not None:
        raise Violation("Liveness", f"round {status.current_round.number} drains without end: {said}")
    weighed = spec.payback is not None and f"does not grow to {spec.replicas} members yet" in said
    if status.current_round.members != spec.replicas and not weighed:
        raise Violation(
            "Liveness", f"{status.current_round.members} of {spec.replicas} members; the status says {said}"
        )
    ours = [a for a in alive if a.in_round is not None and a.in_round.number == status.current_round.number]
    # Pods of others that a smaller job does not need stand by.
    there = spec.pods if not w.others else len(alive)
    if len(ours) != status.current_round.members or len(alive) != there:
        raise Violation(
            "Liveness",
            f"in round {status.current_round.number}: {[a.name for a in ours]}, "
            f"alive: {[a.name for a in alive]}",
        )
    pods = [k[1] for k, i in w.api.items.items() if k[0] == "pod"]
    leases = [k[1] for k in w.api.items if k[0] == "lease"]
    if set(leases) - set(pods):
        raise Violation("Liveness", f"Leases without pods: {set(leases) - set(pods)}")
    _check_remains(w)
    if w.kueue is not None:
        w.kueue.check_rest()
    if w.cluster.gang is not None:
        w.cluster.gang.check_rest()


def _check_what_is_possible(w: World) -> None:
    """A write that fails for ever: those that have joined train, if they are enough, and the condition names
    it (I11). Without the status nothing can be decided: who trains goes on, also after the loss of another,
    until its own workers fail."""
    status, spec = w.status, w.job.job.spec if w.job is not None else JobSpec()
    training = status.condition("Training")
    said = f"{training.reason}: {training.message}" if training is not None else "nothing"
    if not _writes_status(w):
        members = {m.pod_uid for m in status.members()}
        there = {
            a.uid
            for a in w.running()
            if a.in_round is not None and a.in_round.number == status.current_round.number
        }
        lost = any(w.oracle.dead(uid) or w.cluster.agents[uid].hangs for uid in members)
        lost = lost or any(_was_restarted(w, member) for member in status.members())
        lost = lost or bool(w.oracle.truth.failed_in((w.job_uid, status.current_round.number)))
        running = status.current_round.phase == "Active" and status.current_round.established_time is not None
        if running and not lost and 0 < len(there) < len(members):
            raise Violation("I11", f"{len(there)} of {len(members)} members train on; it says {said}")
        return
    if training is not None and training.reason == "WaitingForFencing" and _nobody_can_say_so(w):
        return
    joined = [a for a in w.running() if not a.hangs and _may_announce(w, a)]
    possible = spec.sizes.floor(min(spec.replicas, sum(not _was_replaced(w, a.name) for a in joined)))
    if possible >= status.min_replicas and (
        status.current_round.phase != "Active" or status.current_round.established_time is None
    ):
        raise Violation("I11", f"{possible} could train, {status.min_replicas} are needed; it says {said}")
    failing_writes = {f"cannot be {write.verb}" for write in w.operators[-1].write_backoff.failing_writes()}
    unsaid = [text for text in failing_writes if text not in said]
    if unsaid and not status.is_true("Suspended"):
        raise Violation("I11", f"what fails {unsaid} is not named; it says {said}")


def _check_remains(w: World) -> None:
    """No pod whose training container has ended is kept by its sidecars, unless it can't be deleted."""
    ended = [k[1] for k, i in w.api.items.items() if k[0] == "pod" and i.value.exit and not i.value.ended]
    kept = [name for name in ended if not _stays(w, name)]
    if kept:
        raise Violation("Remains", f"{kept} have ended and hold their places by their sidecars")


def _fails_for_ever(w: World, what: str, slot: int | None) -> bool:
    """Whether this write always fails for the pod of this slot."""
    failing = w.traits.failing
    return (
        failing is not None and failing.what == what and _failing_for_ever(w) and failing.slot in (None, slot)
    )


def _stays(w: World, pod: str) -> bool:
    """Whether this pod can never be deleted."""
    item = w.api.items.get(("pod", pod))
    return item is not None and _fails_for_ever(w, "delete", item.value.slot)


def _may_announce(w: World, agent: Agent) -> bool:
    """Whether its Lease is there and can be renewed. An agent without rights runs for as long as it waits."""
    return ("lease", agent.name) in w.api.items and not _fails_for_ever(w, "lease", agent.pod.slot)


def _nobody_can_say_so(w: World) -> bool:
    """Whether all members of the last round run in pods of others, which nobody ends for them, and cannot
    write that they have stopped."""
    members = {m.pod_uid for m in w.status.members()}
    there = [agent for agent in w.running() if agent.uid in members]
    return w.others and len(there) == len(members) and not any(_may_announce(w, agent) for agent in there)


def _was_replaced(w: World, pod: str) -> bool:
    """Whether another pod was made in place of this one, which is still there."""
    item, attempts = w.api.items.get(("pod", pod)), w.status.attempts
    if (
        item is None
        or not item.value.of_this_job
        or item.value.slot is None
        or item.value.slot >= len(attempts)
    ):
        return False
    return bool(item.value.attempt < attempts[item.value.slot])


def _was_restarted(w: World, member: ParticipantStatus) -> bool:
    """Whether the container of this member has been restarted in place since it joined."""
    item = w.api.items.get(("pod", member.pod_name))
    return item is not None and bool(item.value.restarts > member.container_restarts)


def _nobody_may_tell(w: World, agent: Agent, status: JobStatus) -> bool:
    """Whether this agent, which hangs for ever, is beyond what the rendezvous can mend: its pod is not
    ours, it has never announced itself, or all others have finished or hang, too. It may have finished
    itself: what its command does after torchrun may take for ever (``activeDeadlineSeconds`` ends that)."""
    if w.others or ("lease", agent.name) not in w.api.items:
        return True
    mates = [m for m in status.members() if m.pod_uid != agent.uid]
    hanging = {a.uid for a in w.running() if a.hangs}
    # A member between the failure of its worker and its report is one still.
    member = status.current_round.phase == "Active" and agent.uid in status.member_uids
    return (agent.in_round is not None or agent.goes_on or member) and all(
        m.succeeded or m.pod_uid in hanging for m in mates
    )
