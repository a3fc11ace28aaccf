"""The preStop hook that keeps a training container alive while its round drains. Pure.

The handler says in files whether its workers take part in drains, whether they do so now, and whether the
round goes on until the next pod has joined (``elasticjob.drain.pre_stop``). Without a file the hook ends at
once, so that pods of other scripts end as fast as ever; with the first alone it ends after ``ASK_SECONDS``.
It needs ``sh`` and ``sleep``, or the Python that the container's command names; where the image has neither,
the kubelet reports FailedPreStopHook and ends the container at once.
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
    HOOK_REPLACING,
    POD_UID_ENV,
    REPLACE_SECONDS_ANNOTATION,
)
from elasticjob_operator.observe.seen_pod import SECONDS_TO_END

MIN_GRACE_SECONDS = 35
"""torch gives its workers up to 30 s to stop."""
ASK_SECONDS = 10
"""How long the hook waits for the operator to say that the round drains or goes on until the next pod has
joined. It may say nothing: the job was deleted, the kubelet ends the pod on its own, or it is not there."""
REPLACE_SECONDS = 60
"""How long the next pod may take to join while all train on, where the grace period allows it."""

_SHELL = """n=0
there() { for d in %(folders)s; do [ -e "$d/%(prefix)s$%(uid)s.$1" ] && return; done; return 1; }
while [ $n -lt %(limit)d ]; do
  there %(draining)s || { [ $n -lt %(replace)d ] && there %(replacing)s; } ||
    { [ $n -lt %(ask)d ] && there %(ready)s; } || exit 0
  sleep 1
  n=$((n+1))
done"""

_PYTHON = """import os, time
def there(what):
    return any(os.path.exists(f"{d}/%(prefix)s{os.environ['%(uid)s']}.{what}") for d in "%(folders)s".split())
for n in range(%(limit)d):
    if not (
        there("%(draining)s")
        or n < %(replace)d and there("%(replacing)s")
        or n < %(ask)d and there("%(ready)s")
    ):
        break
    time.sleep(1)"""


def add(container: dict[str, Any], annotations: dict[str, str], drain_seconds: int, given: int | None) -> int:
    """Add the hook, and say so in the pod's annotations; returns the pod's grace period.

    What the template says of it (``given``) is only raised to what torch needs; where it says nothing, there
    is time for the next pod to start and for a drain before that. A hook of the template's own stays as it
    is."""
    lifecycle = container.get("lifecycle") or {}
    own = not drain_seconds or not container or lifecycle.get("preStop")
    if given is not None:
        grace = max(given, MIN_GRACE_SECONDS)
    elif own:
        grace = MIN_GRACE_SECONDS + (drain_seconds if annotations.get(DRAIN_HOOK_ANNOTATION) == "true" else 0)
    else:
        grace = MIN_GRACE_SECONDS + drain_seconds + REPLACE_SECONDS
    if not own:
        replaces = min(REPLACE_SECONDS, max(0, grace - SECONDS_TO_END - drain_seconds - ASK_SECONDS))
        hook = {"exec": {"command": command(container, drain_seconds, replaces)}}
        container["lifecycle"] = {**lifecycle, "preStop": hook}
        annotations[DRAIN_HOOK_ANNOTATION] = "true"
        annotations[REPLACE_SECONDS_ANNOTATION] = str(replaces)
    return grace


def command(container: Mapping[str, Any], drain_seconds: int, replaces: int) -> list[str]:
    """What the hook runs, in the training container and with its environment."""
    words = {
        "folders": " ".join(HOOK_FOLDERS),
        "prefix": HOOK_PREFIX,
        "uid": POD_UID_ENV,
        "ready": HOOK_READY,
        "replacing": HOOK_REPLACING,
        "draining": HOOK_DRAINING,
        "ask": ASK_SECONDS,
        "replace": replaces + ASK_SECONDS,
        "limit": replaces + ASK_SECONDS + drain_seconds + ASK_SECONDS,
    }
    first = str((container.get("command") or [""])[0])
    if os.path.basename(first).startswith("python"):
        return [first, "-c", _PYTHON % words]
    return ["sh", "-c", _SHELL % words]
