"""What an agent says of itself in its pod's Lease."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from elasticjob.contract.endpoint import format_endpoint, parse_endpoint
from elasticjob.contract.fields import (
    MAX_ID,
    MAX_INT32,
    MAX_LOCAL_WORLD_SIZE,
    MAX_PARTICIPANT_BYTES,
    RECORD_VERSION,
    Fields,
    RecordError,
)
from elasticjob.contract.fields import dump as dump_fields

LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS = 10.0, 60.0
"""How often the members of a running round renew their Leases when they have nothing to say."""
MAX_ANNOUNCED_ID = 32


class AnnouncedState(str, enum.Enum):
    """What a participant says of itself."""

    JOINING = "Joining"
    SUCCEEDED = "Succeeded"
    LEAVING = "Leaving"


@dataclass(frozen=True)
class ParticipantRecord:
    """What an agent says of itself in the Lease with its pod's name.

    ``id`` is new for each announcement and fences the agent from all its former selves. It is for one round:
    for that after round ``seen_round`` of job ``seen_job_uid``, the newest whose record the agent had seen
    (0: none). So an id can be in one round at most, and used ids need not be remembered.
    ``from_job_uid`` and ``from_round`` say which round it comes from, or has succeeded in.
    ``endpoint`` is ``host:port`` of the store that it would serve as rank 0; the operator takes the
    host from the pod's status unless ``endpoint_fixed`` says that the user chose it (``--local-addr``).
    ``local_world_size`` is how many workers it starts (None: not known), ``open_files`` how many files the
    agent may open (0: not said), which limits what it can lead. ``oom_kills``: how many processes of its
    container had been killed for want of memory by then: a mark for which the container itself did not end.
    """

    id: str
    state: str
    endpoint: str = ""
    endpoint_fixed: bool = False
    from_job_uid: str = ""
    from_round: int = 0
    local_world_size: int | None = None
    seen_job_uid: str = ""
    seen_round: int = 0
    open_files: int = 0
    oom_kills: int = 0
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
        fields = Fields.read("participant record", text, MAX_PARTICIPANT_BYTES)
        record = ParticipantRecord(
            version=fields.integer("version", 1),
            id=fields.token("id", MAX_PARTICIPANT_BYTES),
            state=fields.token("state", 32),
            endpoint=fields.string("endpoint", ""),
            endpoint_fixed=fields.boolean("endpointFixed"),
            from_job_uid=fields.token("fromJobUID", MAX_ID, ""),
            from_round=fields.integer("fromRound", 0, 0),
            local_world_size=fields.information("localWorldSize", 1, MAX_LOCAL_WORLD_SIZE),
            seen_job_uid=fields.token("seenJobUID", MAX_ID, ""),
            seen_round=fields.integer("seenRound", 0, 0),
            open_files=fields.integer("openFiles", 0, 0, MAX_INT32),
            oom_kills=fields.integer("oomKills", 0, 0, MAX_INT32),
        )
        if not 4 <= len(record.id) <= MAX_ANNOUNCED_ID:
            raise RecordError(f"participant record: id has {len(record.id)} characters, expected 4 to 32")
        if '"' in record.id or "\\" in record.id:  # in the record of a round it would stand as two
            raise RecordError("participant record: id has a character that JSON escapes")
        if record.state == AnnouncedState.JOINING.value:
            parse_endpoint(record.endpoint)
        return record


def endpoint_at(record: ParticipantRecord, host: str) -> str:
    """The endpoint of a joining participant at the address that its pod's status gives, unless the user chose
    one.

    torch >= 2.14 compares addresses as strings: all members must spell the leader's address alike.
    """
    if record.endpoint_fixed or not host:
        return record.endpoint
    return format_endpoint(host, int(record.endpoint.rpartition(":")[2]))
