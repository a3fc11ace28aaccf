"""When a torchrun announces itself for the first time: at once where others wait for it. Where others train,
their round ends for it, and the next trains sooner if its workers can start at once: it waits until its warm
interpreters are ready.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from elasticjob.api.errors import ApiError, NotFound
from elasticjob.api.leases import LeaseApi
from elasticjob.contract.round_record import Phase, RoundRecord
from elasticjob.core.participant import Participant

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
RECORD_SECONDS = 2.0
"""How long to wait for the first record: without one it cannot be known whether others train."""
WARM_SECONDS = 45.0
"""How long to wait for warm interpreters: imports have taken 13 s where training kept all cores busy. After a
minute the operator asks people to look at a pod that has not joined."""


def announces_later(
    record: RoundRecord | None, waited: float, warming: bool, limit: float = WARM_SECONDS
) -> bool:
    """Whether it goes on waiting, ``waited`` seconds after it began. ``warming``: interpreters are being made
    for its workers, and are not ready yet. ``limit``: seconds for which it may wait.

    A round that drains is about to end, perhaps because this very pod is to take a place in the next.
    """
    if not warming:
        return False
    if record is None:
        return waited < min(RECORD_SECONDS, limit)
    return record.phase == Phase.ACTIVE.value and waited < limit


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
