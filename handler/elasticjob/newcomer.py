"""A torchrun waits with its first announcement until its warm interpreters are ready (``core.newcomer``)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from elasticjob.api.errors import ApiError, NotFound
from elasticjob.api.leases import LeaseApi
from elasticjob.core.newcomer import announces_later
from elasticjob.core.participant import Participant

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05


def wait_until_warm(
    core: Participant,
    changed: threading.Condition,
    warming: Callable[[], bool],
    is_new: Callable[[], bool],
    limit: float,
) -> None:
    """Return when it is time for the first announcement, after ``limit`` seconds at the latest.

    ``changed`` is notified of each record. ``is_new`` is asked once, if others train: a torchrun that was
    started again in a member's pod announces itself at once, because this tells them that the member is gone.
    """
    began = time.monotonic()
    holds = False
    while True:
        coming = warming()
        with changed:
            record = core.latest
            waited = time.monotonic() - began
            if not announces_later(record, waited, coming, limit):
                break
            if holds or record is None:
                changed.wait(LOOK_SECONDS)
                continue
        if not is_new():
            return
        holds = True
        logger.info("others train: this pod announces itself when its warm interpreters are ready")
    if holds:
        logger.info("announced after %.1f s%s", waited, ": they are not ready yet" if coming else "")


def has_no_lease(api: LeaseApi, pod: str) -> bool:
    """Whether no torchrun has announced itself for this pod before; False if that cannot be learnt."""
    try:
        api.read(pod)
    except NotFound:
        return True
    except ApiError:
        return False
    return False
