"""The other way for a member that cannot write its own Lease: it reports through the round's store, and a
member that can write passes that on in its own Lease.

Untrusted input like all records (``elasticjob.contract.fields``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from elasticjob.contract.fields import (
    MAX_ID,
    RECORD_VERSION,
    Fields,
    RecordError,
    dump_fields,
)
from elasticjob.contract.ranks import MAX_MEMBERS
from elasticjob.contract.reports import MAX_REPORT_BYTES, FailureReport
from elasticjob.contract.text import one_line

RELAYING_RANKS = 4
"""Members of ranks below this pass on what others report: the leader, and its stand-ins."""
MAX_RELAYED = 16
"""Members in one record, which has to fit into an annotation; more of them have one cause."""
MAX_WHY = 200
"""Characters of the reason why a member cannot write."""
MAX_RELAYED_MESSAGE = 500
"""Characters of a worker's failure that is passed on."""
MAX_WORD_BYTES = 8_192
"""The limit for a ``CutOff`` in the round's store."""


@dataclass(frozen=True)
class CutOff:
    """A member that cannot write its Lease."""

    group_rank: int
    why: str
    """The API server's answer, or the error of the request; "": it can write again."""
    left: bool = False
    """Its agent has left the round and cannot announce itself."""
    failure: FailureReport | None = None
    """What it would report of its workers then."""

    def dump(self) -> str:
        """One line of JSON, for the round's store."""
        return dump_fields(self._fields())

    def _fields(self) -> dict[str, object]:
        failure = self.failure
        if failure is not None:
            failure = replace(failure, message=one_line(failure.message, MAX_RELAYED_MESSAGE))
        return {
            "groupRank": self.group_rank,
            "why": one_line(self.why, MAX_WHY),
            "left": self.left,
            **({"failure": failure.dump()} if failure is not None else {}),
        }

    @staticmethod
    def parse(text: str) -> CutOff:
        """Read one. Raises RecordError."""
        return CutOff.read(Fields.read("word of a member that is cut off", text, MAX_WORD_BYTES))

    @staticmethod
    def read(fields: Fields) -> CutOff:
        """Read it from its fields. Raises RecordError."""
        failure = fields.string("failure", "")
        report = FailureReport.parse(failure) if failure else None
        if report is not None:
            report = replace(report, message=one_line(report.message, MAX_RELAYED_MESSAGE))
        return CutOff(
            group_rank=fields.integer("groupRank", 0, None, MAX_MEMBERS),
            why=one_line(fields.string("why", ""), MAX_WHY),
            left=fields.boolean("left"),
            failure=report,
        )


@dataclass(frozen=True)
class RelayReport:
    """What a member of the round with this ``nonce`` passes on."""

    nonce: str
    cut_off: tuple[CutOff, ...] = ()
    """MAX_RELAYED members or fewer; those that have left the round come first."""
    version: int = RECORD_VERSION

    @staticmethod
    def of(nonce: str, found: Iterable[CutOff]) -> RelayReport:
        """The report on these members."""
        order = sorted(found, key=lambda one: (not one.left, one.group_rank))
        return RelayReport(nonce, tuple(order[:MAX_RELAYED]))

    def dump(self) -> str:
        """The report as one line of JSON."""
        return dump_fields(
            {
                "version": self.version,
                "nonce": self.nonce,
                "cutOff": [one._fields() for one in self.cut_off],
            }
        )

    @staticmethod
    def parse(text: str) -> RelayReport:
        """Read a report. Raises RecordError."""
        fields = Fields.read("relay report", text, MAX_REPORT_BYTES)
        given = fields.fields.get("cutOff", [])
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise RecordError(f"relay report: cutOff is {json.dumps(given)[:80]}, expected a list of objects")
        return RelayReport(
            version=fields.integer("version", 1),
            nonce=fields.token("nonce", MAX_ID),
            cut_off=tuple(CutOff.read(Fields("relay report: cutOff", one)) for one in given[:MAX_RELAYED]),
        )
