"""What the operator owns of a job beside its pods and Leases: the pods' Role, the NetworkPolicy, Events.

Pods are made when their names are in the Role and, the first of them, when the policy is there, as in
``act.apply``. Each write is a process of its own, for a pass does not wait for one that is slow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from elasticjob_operator.act.owned_kinds import POLICY, RIGHTS
from elasticjob_operator.plan.state.model import Action, CreatePod, Event, Job, Plan, Target
from tests.simulation.api import Key, NotFound, Refused, Unavailable
from tests.simulation.kernel import Script

if TYPE_CHECKING:
    from tests.simulation.operator import Operator

ROLE_KEY: Key = ("role", "")
POLICY_KEY: Key = ("policy", "")


class Role(NamedTuple):
    """The pods that may write their Leases."""

    job_uid: str
    names: frozenset[str]


class Owned:
    """What one operator process knows of them."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._uid = ""
        self._granted: frozenset[str] = frozenset()
        self._protected = False
        self.under_way: set[Target] = set()
        self._events = 0

    def keep(self, job: Job, decided: Plan) -> None:
        """Begin the writes that are due."""
        if job.uid != self._uid:
            self._uid, self._granted, self._protected = job.uid, frozenset(), False
        names = decided.pod_names
        self._write(RIGHTS, not names <= self._granted, lambda: self._grant(job.uid, names))
        self._write(POLICY, not self._protected, lambda: self._restrict(job.uid))

    def possible(self, job: Job, actions: Sequence[Action]) -> list[Action]:
        """The actions without the making of pods that could not train, or would be open to others."""
        operator = self._operator
        own = any(k[0] == "pod" and i.uid.startswith(f"{job.uid}-") for k, i in operator.cache.items.items())
        return [
            action
            for action in actions
            if not isinstance(action, CreatePod)
            or ((self._protected or own) and action.name in self._granted)
        ]

    def tell(self, events: Sequence[Event]) -> None:
        """Send Events; one that can't be sent is dropped."""
        self._operator.spawn(self._send(events))

    def _send(self, events: Sequence[Event]) -> Script:
        api = self._operator.api
        for event in events:
            self._events += 1
            key: Key = ("event", f"{self._operator.name}-{self._events}")
            with contextlib.suppress(Unavailable, Refused):
                yield from self._operator.send(lambda key=key, event=event: api.put(key, event.message))  # type: ignore[misc]

    def _write(self, target: Target, wanted: bool, script: Callable[[], Script]) -> None:
        backoff = self._operator.write_backoff
        if not wanted:
            backoff.done(target)
        elif target not in self.under_way and backoff.due(target, self._operator.kernel.now):
            self.under_way.add(target)
            self._operator.spawn(self._try(target, script))

    def _try(self, target: Target, script: Callable[[], Script]) -> Script:
        try:
            yield from script()
            self._operator.write_backoff.done(target)
        except (Unavailable, Refused) as error:
            self._operator.failed(target, error)
        self.under_way.discard(target)
        self._operator.again()

    def _grant(self, uid: str, names: frozenset[str]) -> Script:
        """What is there already is not written."""
        api, there = self._operator.api, frozenset[str]()
        with contextlib.suppress(NotFound):
            item = yield from self._operator.send(lambda: api.get(ROLE_KEY), reads=True)
            there = item.value.names if item.value.job_uid == uid else there
        if not names <= there:
            yield from self._operator.send(lambda: api.put(ROLE_KEY, Role(uid, names)))
            there = names
        if uid == self._uid:
            self._granted = there

    def _restrict(self, uid: str) -> Script:
        api = self._operator.api
        yield from self._operator.send(lambda: api.put(POLICY_KEY, uid))
        self._protected = uid == self._uid
