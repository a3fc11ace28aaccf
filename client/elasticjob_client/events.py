"""Events of a job and of its pods, as they are shown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from lightkube.resources.core_v1 import Event as CoreEvent


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What the operator, or Kubernetes, has said of a job or one of its pods. ``count``: how often."""

    time: datetime | None = None
    type: str = "Normal"
    reason: str = ""
    message: str = ""
    object: str = ""
    count: int = 1


def is_of(event: CoreEvent, uids: Mapping[tuple[str, str], str]) -> bool:
    """Whether it is about one of these objects (kind and name), and not about an earlier one of the name."""
    about = event.involvedObject
    uid = uids.get((about.kind or "", about.name or ""))
    return uid is not None and (not uid or about.uid in (uid, None, ""))


def event_of(found: CoreEvent) -> Event:
    """The Event in the words of this package."""
    last = found.lastTimestamp or found.eventTime or found.firstTimestamp
    return Event(
        time=last,
        type=found.type or "Normal",
        reason=found.reason or "",
        message=found.message or "",
        object=f"{(found.involvedObject.kind or '').lower()}/{found.involvedObject.name}",
        count=found.count or 1,
    )
