"""The preStop hook that keeps a training container alive while its round drains. Pure.

The handler says in a file whether its workers take part in drains, and whether they do so now
(``elasticjob.pod_hook``). Without the file the hook ends at once, so that pods of other scripts end as fast
as ever. It needs ``sh`` and ``sleep``, or the Python that the container's command names; where the image has
neither, the kubelet reports FailedPreStopHook and ends the container at once.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from typing import Any

from elasticjob.contract.names import (
    DRAIN_HOOK_ANNOTATION,
    HOOK_DRAINING,
    HOOK_FOLDERS,
    HOOK_PREFIX,
    HOOK_READY,
    POD_UID_ENV,
)

MIN_GRACE_SECONDS = 35
"""torch gives its workers up to 30 s to stop."""
ASK_SECONDS = 10
"""How long the hook waits for the round to drain: the operator may not be there."""

_SHELL = """n=0
there() { for d in %(folders)s; do [ -e "$d/%(prefix)s$%(uid)s.$1" ] && return; done; return 1; }
while [ $n -lt %(limit)d ]; do
  there %(draining)s || { [ $n -lt %(ask)d ] && there %(ready)s; } || exit 0
  sleep 1
  n=$((n+1))
done"""

_PYTHON = """import os, time
def there(what):
    return any(os.path.exists(f"{d}/%(prefix)s{os.environ['%(uid)s']}.{what}") for d in "%(folders)s".split())
for n in range(%(limit)d):
    if not there("%(draining)s") and not (n < %(ask)d and there("%(ready)s")):
        break
    time.sleep(1)"""


def grace_seconds(given: int | None, drain: int, hook: bool) -> int:
    """The pod's grace period. What the template says is only raised to what torch needs; where it says
    nothing, there is time for a drain before that."""
    if given is not None:
        return max(given, MIN_GRACE_SECONDS)
    return MIN_GRACE_SECONDS + (drain if hook else 0)


def add(container: dict[str, Any], annotations: dict[str, str], drain: int) -> bool:
    """Add the hook, and say so in the pod's annotations. A hook of the template's own stays as it is."""
    lifecycle = container.get("lifecycle") or {}
    if not drain or not container or lifecycle.get("preStop"):
        return annotations.get(DRAIN_HOOK_ANNOTATION) == "true"
    container["lifecycle"] = {**lifecycle, "preStop": {"exec": {"command": command(container, drain)}}}
    annotations[DRAIN_HOOK_ANNOTATION] = "true"
    return True


def command(container: Mapping[str, Any], drain: int) -> list[str]:
    """What the hook runs, in the training container and with its environment."""
    words = {
        "folders": " ".join(HOOK_FOLDERS),
        "prefix": HOOK_PREFIX,
        "uid": POD_UID_ENV,
        "ready": HOOK_READY,
        "draining": HOOK_DRAINING,
        "ask": ASK_SECONDS,
        "limit": ASK_SECONDS + drain + ASK_SECONDS,
    }
    first = str((container.get("command") or [""])[0])
    if os.path.basename(first).startswith("python"):
        return [first, "-c", _PYTHON % words]
    return ["sh", "-c", _SHELL % words]
