"""What an agent says of itself in its pod's Lease: which round it asks for, and what it offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from elasticjob.contract.endpoint import format_endpoint, parse_endpoint
from elasticjob.contract.fields import (
    MAX_ID,
    MAX_INT32,
    MAX_LOCAL_WORLD_SIZE,
    MAX_SMALL_RECORD_BYTES,
    RecordError,
)
from elasticjob.contract.record import Codec, Record, number, token
from elasticjob.contract.str_enum import StrEnum

LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS = 10.0, 60.0
"""How often the members of a running round renew their Leases when they have nothing to write."""
MIN_ANNOUNCED_ID, MAX_ANNOUNCED_ID = 4, 32
"""Characters of an id."""
_WORLD_SIZE = Codec(lambda found, key, _: found.lenient_integer(key, 1, MAX_LOCAL_WORLD_SIZE))


class AnnouncedState(StrEnum):
    """What a participant says of itself."""

    JOINING = "Joining"
    SUCCEEDED = "Succeeded"
    LEAVING = "Leaving"


@dataclass(frozen=True)
class ParticipantRecord(Record, what="participant record"):
    """The record in the Lease with the pod's name. The agent is its only writer."""

    id: Annotated[str, token(MAX_SMALL_RECORD_BYTES)]
    """New for each announcement, 4 to 32 characters: it fences the agent from all its former selves. It can
    only be in the round after ``seen_round``, so used ids need not be remembered."""
    state: Annotated[str, token(32)]
    """An ``AnnouncedState``, or one of a newer handler."""
    endpoint: str = ""
    """``host:port`` of the store that it would serve as rank 0; "" unless it is Joining."""
    endpoint_fixed: bool = False
    """The user chose the host (``--local-addr``). Otherwise the operator takes that of the pod's status."""
    from_job_uid: Annotated[str, token(MAX_ID)] = ""
    from_round: Annotated[int, number(0)] = 0
    """The round that it comes from, or has finished well; 0: none. Of one job ``from_round <= seen_round``
    while it is Joining, and ``from_round == seen_round + 1`` when it has Succeeded."""
    local_world_size: Annotated[int | None, _WORLD_SIZE] = None
    """How many workers it starts, from 1; None: not known."""
    seen_job_uid: Annotated[str, token(MAX_ID)] = ""
    seen_round: Annotated[int, number(0)] = 0
    """The newest round whose record it had seen when it announced itself; 0: none."""
    open_files: Annotated[int, number(0, MAX_INT32)] = 0
    """How many files it may open, which limits what it can lead; 0: not said."""
    oom_kills: Annotated[int, number(0, MAX_INT32)] = 0
    """OOM kills that this container had survived at the announcement."""

    def seen(self, job_uid: str) -> int:
        """The newest round of this job that the agent had seen when it announced itself."""
        return self.seen_round if self.seen_job_uid == job_uid else 0

    def check(self) -> None:
        """The id fits into the round's record, and who joins has an endpoint. Raises RecordError."""
        if not MIN_ANNOUNCED_ID <= len(self.id) <= MAX_ANNOUNCED_ID:
            raise RecordError(
                f"participant record: id has {len(self.id)} characters, "
                f"expected {MIN_ANNOUNCED_ID} to {MAX_ANNOUNCED_ID}"
            )
        if '"' in self.id or "\\" in self.id:  # escaped, it would be longer in the round's record
            raise RecordError("participant record: id has a character that JSON escapes")
        if self.state == AnnouncedState.JOINING.value:
            parse_endpoint(self.endpoint)


def endpoint_at(record: ParticipantRecord, host: str) -> str:
    """The endpoint of a joining participant: at ``host``, from its pod's status, unless the user chose one.

    torch >= 2.14 compares addresses as strings: all members must spell the leader's address alike.
    """
    if record.endpoint_fixed or not host:
        return record.endpoint
    return format_endpoint(host, int(record.endpoint.rpartition(":")[2]))
