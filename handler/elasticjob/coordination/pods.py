"""The run's pods, if this participant may see them: their ends are news seconds before silence is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from elasticjob.api.listing import HttpListApi
from elasticjob.coordination.directory import Directory, Seen
from elasticjob.coordination.reading import (
    container_ends,
    controller_of,
    ended_well,
    is_over,
    pod_end,
    taken_away,
)
from elasticjob.peers.round_lease import Identity
from elasticjob.peers.run import RUN_LABEL

logger = logging.getLogger(__name__)

BACK_SECONDS = 15.0
"""How long pods may be out of sight until the coordinator does without, unless it may not watch them."""


class Pods:
    """``coordinate`` watches all pods of the run, ``deputize`` the coordinator's alone; ``rest`` neither."""

    def __init__(
        self, name: str, me: Identity, open_api: Callable[[], HttpListApi], notify: Callable[[], None]
    ) -> None:
        self._name, self._me, self._open_api, self._notify = name, me, open_api, notify
        self._all: Directory | None = None
        self._one: tuple[Identity, Directory] | None = None
        self._refused = self._seen = False
        self._ends: dict[str, tuple[list[Mapping[str, Any]], str]] = {}
        """By pod's UID, how its containers have ended, and the version of its Lease when that was seen."""

    def coordinate(self) -> None:
        """See all."""
        self._stop_one()
        if self._all is None and not self._refused:
            follow = lambda api: api.follow_pods(RUN_LABEL, self._name)  # noqa: E731
            self._all = Directory(self._open_api(), follow, "pods", self._notify)

    def deputize(self, coordinator: Identity | None) -> None:
        """See that pod alone, or no pod."""
        self._stop_all()
        if self._one is not None and self._one[0] != coordinator:
            self._stop_one()
        if coordinator is not None and self._one is None and not self._refused:
            follow = lambda api: api.follow_pod(coordinator.pod)  # noqa: E731
            self._one = (coordinator, Directory(self._open_api(), follow, "pod", self._notify))

    def rest(self) -> None:
        """End all threads."""
        self._stop_all()
        self._stop_one()

    @property
    def ready(self) -> bool:
        """Whether all pods are in sight, or will not be."""
        self._check()
        if self._all is None or self._all.objects() is not None:
            return True
        # An API server that comes back may list Leases sooner than pods; others may have seen them before.
        return bool(self._all.last_error) and self._all.unknown_seconds() > BACK_SECONDS

    def gone(self, leases: Mapping[str, Seen]) -> dict[str, str]:
        """Why agents have ended, by their pods' UIDs. ``leases``, by name, may say that another process has
        started since in a pod."""
        if self._all is None:
            return {}
        found = dict.fromkeys(self._all.deleted(), "its pod was deleted")
        objects = self._all.objects()
        if objects is None:
            return found
        before, self._ends = self._ends, {}
        for name, seen in objects.items():
            uid, why = str(seen.body["metadata"]["uid"]), pod_end(seen.body)
            if why and not self._restarted(uid, seen.body, leases.get(name), before):
                found[uid] = why
            else:
                found.pop(uid, None)
        return found

    def _restarted(
        self,
        uid: str,
        body: Mapping[str, Any],
        lease: Seen | None,
        before: Mapping[str, tuple[list[Mapping[str, Any]], str]],
    ) -> bool:
        """Whether this pod's Lease was seen to change since its containers have ended: the kubelet has
        started them again, and the pod's state is late."""
        if is_over(body):
            return False
        ends = container_ends(body)
        version = str(lease.body["metadata"].get("resourceVersion", "")) if lease is not None else ""
        known = before.get(uid)
        known = known if known is not None and known[0] == ends else (ends, version)
        self._ends[uid] = known
        return lease is not None and known[1] != version

    def finished(self) -> frozenset[str]:
        """The UIDs of pods that have ended with exit code 0 by themselves. Of those that are not ``gone``
        another process has started since."""
        objects = self._all.objects() if self._all is not None else None
        return frozenset(
            str(s.body["metadata"]["uid"]) for s in (objects or {}).values() if ended_well(s.body)
        )

    def live(self) -> Mapping[str, str] | None:
        """UIDs of the pods that have not ended, by name; None if they can't be seen, or do not have the
        label."""
        objects = self._in_sight()
        if objects is None:
            return None
        return {name: str(seen.body["metadata"]["uid"]) for name, seen in objects.items() if _stays(seen)}

    def staying(self) -> frozenset[str] | None:
        """The UIDs of the pods that are there and are not taken away, also of those that have ended; None as
        for ``live``."""
        objects = self._in_sight()
        if objects is None:
            return None
        return frozenset(str(s.body["metadata"]["uid"]) for s in objects.values() if not taken_away(s.body))

    def _in_sight(self) -> Mapping[str, Seen] | None:
        objects = self._all.objects() if self._all is not None else None
        return objects if objects is not None and self._me.pod in objects else None

    def pending(self) -> frozenset[str]:
        """The names of the pods that have not started."""
        objects = self._all.objects() if self._all is not None else None
        return frozenset(
            name
            for name, seen in (objects or {}).items()
            if (seen.body.get("status") or {}).get("phase") == "Pending"
        )

    def controller(self, run: str) -> dict[str, str] | None:
        """The Job of this pod, as an owner, if it is known and the run is that Job's."""
        own = (self._all.objects() or {}).get(self._me.pod) if self._all is not None else None
        return controller_of(own.body, run) if own is not None else None

    def ended_coordinator(self) -> Identity | None:
        """The coordinator, if its pod has ended."""
        self._check()
        if self._one is None:
            return None
        coordinator, directory = self._one
        objects = directory.objects()
        if objects is None:
            return None
        seen = objects.get(coordinator.pod)
        ended = seen is None or seen.body["metadata"]["uid"] != coordinator.uid or pod_end(seen.body)
        return coordinator if ended else None

    def _check(self) -> None:
        one = self._one[1] if self._one is not None else None
        self._seen = self._seen or any(d is not None and d.objects() is not None for d in (self._all, one))
        # One that has just started refuses what it allows a moment later.
        limit = BACK_SECONDS if self._seen else 0.0
        if any(d is not None and d.refused and d.refused_seconds() >= limit for d in (self._all, one)):
            self._refused = True
            self.rest()
            logger.info(
                "this pod may not watch pods: losses are noticed by heartbeats, some seconds later "
                "(docs/use/without-an-operator.md)"
            )

    def _stop_all(self) -> None:
        if self._all is not None:
            self._all.stop()
            self._all = None
            self._ends = {}

    def _stop_one(self) -> None:
        if self._one is not None:
            self._one[1].stop()
            self._one = None


def _stays(seen: Seen) -> bool:
    return not pod_end(seen.body) and "deletionTimestamp" not in seen.body["metadata"]
