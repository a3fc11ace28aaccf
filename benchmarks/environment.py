"""What the figures depend on besides the code: the machine and the versions."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import version


def environment(kubernetes: str | None) -> dict[str, object]:
    """Facts for the head of the table; `kubernetes` is the API server's version, if there is one."""
    facts: dict[str, object] = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpus": len(os.sched_getaffinity(0)),
        "load average at the start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": version("torch"),
    }
    if kubernetes is not None:
        facts["kubernetes"] = kubernetes
    return facts
