"""What comes before most scenarios: a new job trains, or is about to."""

from __future__ import annotations

from itertools import zip_longest

from elasticjob_operator.plan.model import Job, Pod
from elasticjob_operator.plan.status import JobStatus


class PreludeCommands:
    """The part of ``World`` that begins a scenario in one line. Nothing is printed: what is decided until
    then is the subject of other files, and is only checked here."""

    job: Job
    status: JobStatus
    pods: dict[str, Pod]
    trace: list[str]

    def do(self, line: str) -> None:
        raise NotImplementedError

    def make_passes(self) -> None:
        raise NotImplementedError

    def do_train(self, **options: str) -> None:
        """``train replicas=2 min=1``: round 1 has been established, as after ``publish`` with these options
        and ``establish``."""
        self.do_publish(**options)
        self._play("establish")
        assert self.status.round.established is not None

    def do_publish(self, on: str = "a", pending: str = "0", pods: str = "", **spec: str) -> None:
        """``publish replicas=2 min=1``: round 1 has been published, as after ``job`` with these options and
        ``start`` of its pods. The first of them are its members, who have not met yet.

        ``on=a,b,c``: the nodes of the pods in their order, the last one also of those that follow.
        ``pods=w-0,w-1``: somebody else's pods, in place of a template. ``pending=1``: so many pods, the last,
        have not started (somebody else's: not joined).
        """
        assert not self.trace, "a scenario begins with it"
        if pods:
            given = pods.split(",")
            self._play("job template=none " + _words(spec), f"pod {' '.join(given)}")
        else:
            self._play("job " + _words(spec))
            given = list(self.pods)
        started = given[: len(given) - int(pending)]
        if pods:
            self._play(f"join {' '.join(started)} last=0")
        else:
            nodes = on.split(",")
            for node in dict.fromkeys(nodes):
                there = [pod for pod, at in zip_longest(started, nodes, fillvalue=nodes[-1]) if at == node]
                self._play(f"start {' '.join(there)} node={node}")
        members = [member.pod for member in self.status.members()]
        assert (self.status.round.number, self.status.round.phase) == (1, "Active")
        assert members == started[: self.job.spec.replicas], f"the members are {members}"

    def _play(self, *lines: str) -> None:
        for line in lines:
            self.do(line)
            self.make_passes()
        self.trace.clear()


def _words(options: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items())
