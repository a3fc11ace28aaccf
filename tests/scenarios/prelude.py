"""What comes before most scenarios: a new job trains, or is about to."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest

from elasticjob_operator.plan.state.model import Event, Job, Participant, Pod
from elasticjob_operator.plan.state.status import JobStatus
from tests.rules import gone


class PreludeCommands:
    """The part of ``World`` that begins a scenario in one line. Nothing is printed: what is decided until
    then is the subject of other files, and is only checked here."""

    job: Job
    status: JobStatus
    version: int
    pods: dict[str, Pod]
    leases: dict[str, Participant]
    events: list[Event]

    def do_train(self, **options: str) -> None:
        """``train replicas=2 min=1``: round 1 has been established, as after ``publish`` with these options
        and ``establish``."""
        self._begin_with(*_published(**options), "establish")
        assert self.status.current_round.established_time is not None

    def do_publish(self, **options: str) -> None:
        """``publish replicas=2 min=1``: round 1 has been published, as after ``job`` with these options and
        ``start`` of its pods. The first of them are its members, which have not met yet.

        ``on=a,b,c``: the nodes of the pods in their order, the last one also of those that follow.
        ``pods=w-0,w-1``: somebody else's pods, in place of a template. ``pending=1``: so many pods, the last,
        have not started (somebody else's: not joined).
        """
        self._begin_with(*_published(**options))

    def _begin_with(self, *lines: str) -> None:
        assert self.version == 0, "a scenario begins with train or publish"
        vars(self).update(pickle.loads(_played(lines, frozenset(gone))))
        assert (self.status.current_round.number, self.status.current_round.phase) == (1, "Active")
        joined = [name for name in self.pods if name in self.leases]
        members = [member.pod_name for member in self.status.members()]
        assert members == joined[: self.job.spec.replicas], f"the members are {members}"
        assert not any(event.warning for event in self.events)


def _published(pods: str = "", on: str = "a", pending: str = "0", **spec: str) -> Iterator[str]:
    """The commands until round 1 is published."""
    job = " ".join(f"{name}={value}" for name, value in spec.items())
    slots = int(spec["replicas"]) + int(spec.get("spares", 0))
    names = pods.split(",") if pods else [f"mnist-{slot}-0" for slot in range(slots)]
    started = names[: len(names) - int(pending)]
    if pods:
        yield f"job template=none {job}"
        yield f"pod {' '.join(names)}"
        yield f"join {' '.join(started)} last=0"
    else:
        yield f"job {job}"
        nodes = on.split(",")
        for node in dict.fromkeys(nodes):
            there = [pod for pod, at in zip_longest(started, nodes, fillvalue=nodes[-1]) if at == node]
            yield f"start {' '.join(there)} node={node}"


@cache
def _played(lines: tuple[str, ...], _gone: frozenset[str]) -> bytes:
    """A world in which these commands were given while these rules were out of the code, pickled."""
    from tests.scenarios.world import World

    played = World().play(*lines)
    played.trace.clear()
    return pickle.dumps(vars(played))
