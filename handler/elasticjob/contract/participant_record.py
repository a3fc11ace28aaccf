"""What an agent says of itself in its pod's Lease: which round it asks for, and what it offers."""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob.contract.endpoint import format_endpoint, parse_endpoint
from elasticjob.contract.fields import (
    MAX_ID,
    MAX_INT32,
    MAX_LOCAL_WORLD_SIZE,
    MAX_SMALL_RECORD_BYTES,
    RECORD_VERSION,
    Fields,
    RecordError,
    dump_fields,
)
from elasticjob.contract.str_enum import StrEnum

LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS = 10.0, 60.0
"""How often the members of a running round renew their Leases when they have nothing to write."""
MIN_ANNOUNCED_ID, MAX_ANNOUNCED_ID = 4, 32
"""Characters of an id."""


class AnnouncedState(StrEnum):
    """What a participant says of itself."""

    JOINING = "Joining"
    SUCCEEDED = "Succeeded"
    LEAVING = "Leaving"


@dataclass(frozen=True)
class ParticipantRecord:
    """The record in the Lease with the pod's name. The agent is its only writer."""

    id: str
    """New for each announcement, 4 to 32 characters: it fences the agent from all its former selves. It can
    only be in the round after ``seen_round``, so used ids need not be remembered."""
    state: str
    """An ``AnnouncedState``, or one of a newer handler."""
    endpoint: str = ""
    """``host:port`` of the store that it would serve as rank 0; "" unless it is Joining."""
    endpoint_fixed: bool = False
    """The user chose the host (``--local-addr``). Otherwise the operator takes that of the pod's status."""
    from_job_uid: str = ""
    from_round: int = 0
    """The round that it comes from, or has finished well; 0: none. Of one job ``from_round <= seen_round``
    while it is Joining, and ``from_round == seen_round + 1`` when it has Succeeded."""
    local_world_size: int | None = None
    """How many workers it starts, from 1; None: not known."""
    seen_job_uid: str = ""
    seen_round: int = 0
    """The newest round whose record it had seen when it announced itself; 0: none."""
    open_files: int = 0
    """How many files it may open, which limits what it can lead; 0: not said."""
    oom_kills: int = 0
    """OOM kills that this container had survived at the announcement."""
    version: int = RECORD_VERSION

    def seen(self, job_uid: str) -> int:
        """The newest round of this job that the agent had seen when it announced itself."""
        return self.seen_round if self.seen_job_uid == job_uid else 0

    def dump(self) -> str:
        """The record as one line of JSON."""
        return dump_fields(
            {
                "version": self.version,
                "id": self.id,
                "state": self.state,
                "endpoint": self.endpoint,
                "endpointFixed": self.endpoint_fixed,
                "fromJobUID": self.from_job_uid,
                "fromRound": self.from_round,
                "localWorldSize": self.local_world_size,
                "seenJobUID": self.seen_job_uid,
                "seenRound": self.seen_round,
                "openFiles": self.open_files,
                "oomKills": self.oom_kills,
            }
        )

    @staticmethod
    def parse(text: str) -> ParticipantRecord:
        """Read a record. Raises RecordError."""
        fields = Fields.read("participant record", text, MAX_SMALL_RECORD_BYTES)
        record = ParticipantRecord(
            version=fields.integer("version", 1),
            id=fields.token("id", MAX_SMALL_RECORD_BYTES),
            state=fields.token("state", 32),
            endpoint=fields.string("endpoint", ""),
            endpoint_fixed=fields.boolean("endpointFixed"),
            from_job_uid=fields.token("fromJobUID", MAX_ID, ""),
            from_round=fields.integer("fromRound", 0, 0),
            local_world_size=fields.lenient_integer("localWorldSize", 1, MAX_LOCAL_WORLD_SIZE),
            seen_job_uid=fields.token("seenJobUID", MAX_ID, ""),
            seen_round=fields.integer("seenRound", 0, 0),
            open_files=fields.integer("openFiles", 0, 0, MAX_INT32),
            oom_kills=fields.integer("oomKills", 0, 0, MAX_INT32),
        )
        if not MIN_ANNOUNCED_ID <= len(record.id) <= MAX_ANNOUNCED_ID:
            raise RecordError(
                f"participant record: id has {len(record.id)} characters, "
                f"expected {MIN_ANNOUNCED_ID} to {MAX_ANNOUNCED_ID}"
            )
        if '"' in record.id or "\\" in record.id:  # escaped, it would be longer in the round's record
            raise RecordError("participant record: id has a character that JSON escapes")
        if record.state == AnnouncedState.JOINING.value:
            parse_endpoint(record.endpoint)
        return record


def endpoint_at(record: ParticipantRecord, host: str) -> str:
    """The endpoint of a joining participant: at ``host``, from its pod's status, unless the user chose one.

    torch >= 2.14 compares addresses as strings: all members must spell the leader's address alike.
    """
    if record.endpoint_fixed or not host:
        return record.endpoint
    return format_endpoint(host, int(record.endpoint.rpartition(":")[2]))
