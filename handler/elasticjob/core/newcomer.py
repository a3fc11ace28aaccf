"""When a torchrun announces itself for the first time: at once where others wait for it. Where others train,
their round ends for it, and the next trains sooner if its workers can start at once. Pure.
"""

from __future__ import annotations

from elasticjob.contract.records import Phase, RoundRecord

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
