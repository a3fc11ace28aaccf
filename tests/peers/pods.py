"""A simulated pod, and how the API server shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.peers.process import Process

PODS_SECONDS = 1.0
"""After how long a pod's end is seen."""
KILLED = 137


@dataclass
class Pod:
    """A pod and the process in it, which has ``ended`` with this exit code; None: it runs. ``taken``: the
    pod is being deleted."""

    process: Process
    ended: float | None = None
    code: int = KILLED
    taken: bool = False
    deleted: bool = False

    def body(self, now: float) -> dict[str, Any]:
        """What a watch shows of it."""
        seen = self.ended is not None and self.ended + PODS_SECONDS < now
        state = {"terminated": {"exitCode": self.code}} if seen else {"running": {}}
        return {
            "metadata": {
                "name": self.process.name,
                "uid": self.process.uid,
                **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if self.taken and seen else {}),
            },
            "spec": {"containers": [{"name": "train"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "train", "state": state}]},
        }


def uid_of(body: Mapping[str, Any]) -> str:
    """Of a pod."""
    return str(body["metadata"]["uid"])
