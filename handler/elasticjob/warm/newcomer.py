"""Delays the first announcement of a torchrun until its workers can start warm, if others train.

Their round ends for it, and the next one trains sooner if its workers can start at once. If others wait for
it, it announces itself at once.
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
"""How long to wait for the first record, which says whether others train."""
WARM_SECONDS = 45.0
"""How long to wait for warm interpreters: imports have taken 13 s where training kept all cores busy. After a
minute the operator asks people to look at a pod that has not joined."""


def announces_later(
    record: RoundRecord | None, waited: float, warming: bool, limit: float = WARM_SECONDS
) -> bool:
    """Whether it still waits, ``waited`` seconds after it began. ``warming``: interpreters are being made for
    its workers, and are not ready yet. ``limit``: seconds for which it may wait.

    It does not wait if the round drains: that is about to end, perhaps for this very pod.
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

    ``changed`` is notified of each record. ``is_new`` is called once, if others train: a torchrun that was
    started again in a member's pod announces itself at once, because the others learn from it that the
    member is gone.
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
    """Whether no torchrun has announced itself for this pod before; False if that is not known."""
    try:
        api.read(pod)
    except NotFound:
        return True
    except ApiError:
        return False
    return False
