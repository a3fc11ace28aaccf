"""Leases as the operator keeps them: participants', the round's, and that of its members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from elasticjob.contract.fields import MAX_ID, RecordError
from elasticjob.contract.names import (
    DRAIN_ANNOTATION,
    FAILURE_ANNOTATION,
    FENCED_ANNOTATION,
    FINISHED_ANNOTATION,
    JOB_LABEL,
    MEMBERS_ANNOTATION,
    PARTICIPANT_ANNOTATION,
    PROGRESS_ANNOTATION,
    RELAY_ANNOTATION,
    REPORT_ANNOTATION,
    RESUMED_ANNOTATION,
    ROUND_ANNOTATION,
    STARTS_ANNOTATION,
    members_lease,
    round_lease,
)
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.relay import RelayReport
from elasticjob.contract.reports import (
    MAX_MESSAGE,
    MAX_REASON,
    DrainReport,
    FailureReport,
    ProgressReport,
    ResumedReport,
    RoundReport,
    StartsReport,
)
from elasticjob.contract.round_record import MAX_ROUND_BYTES, MemberList, RoundRecord
from elasticjob.contract.text import is_token, one_line
from elasticjob_operator.observe.fields import (
    MAX_KEPT,
    controller_of,
    first_owner_of,
    kept,
    mapping,
    text_of,
    version_of,
)
from elasticjob_operator.observe.objects import Seen
from elasticjob_operator.plan.state.model import Participant

_ROUND_SUFFIX = round_lease("")
_ROUNDS_READ = 64
R = TypeVar("R")


class Texts(NamedTuple):
    """The annotations of a Lease by which it is known again: those in ``_TEXTS``."""

    participant: str | None
    failure: str | None
    report: str | None
    round: str | None
    finished: str | None
    drain: str | None
    fenced: str | None
    relay: str | None
    resumed: str | None


_TEXTS = (
    *(PARTICIPANT_ANNOTATION, FAILURE_ANNOTATION, REPORT_ANNOTATION, ROUND_ANNOTATION, FINISHED_ANNOTATION),
    *(DRAIN_ANNOTATION, FENCED_ANNOTATION, RELAY_ANNOTATION, RESUMED_ANNOTATION),
)


@dataclass(frozen=True, slots=True)
class SeenLease(Seen):
    """A labelled Lease: a participant's, the round's, or that of its members (``listed`` says of which round:
    job UID, number, nonce). ``texts`` are its annotations, to know them again: long ones as digests, but for
    the round's of a round's Lease. ``news`` is what starts a pass, as is another ``round_digest``. One that
    can't be read and then says something else that can't be read is no news, however often. Of progress,
    only the first of a round is news; of how workers started, only whether more is prepared: both ride on
    other writes (``rider_texts``).

    A tenant may have thousands of Leases, and one whose name is free may say anything. What is kept of one
    takes no more memory than its text."""

    owner: str
    holder: str
    texts: Texts = field(compare=False)
    news: Participant
    progress_nonce: str
    rider_texts: tuple[str | None, str | None] = field(compare=False)
    participant: Participant = field(compare=False)
    round_digest: str
    """A digest of the round; empty if it can't be read."""
    problem: str = field(compare=False)
    listed: tuple[str, int, str] = ("", 0, "")

    @property
    def record(self) -> RoundRecord | None:
        """The round's record; None if it is absent or can't be read."""
        text = self.texts.round
        return _round(text)[0] if self.round_digest and text is not None else None


def read_lease(raw: Mapping[str, Any], old: SeenLease | None = None) -> SeenLease:
    """Slim a Lease. Texts that ``old`` had are not parsed again. Never raises, for any content."""
    meta, spec = mapping(raw, "metadata"), mapping(raw, "spec")
    annotations = mapping(meta, "annotations")
    name, uid = str(meta.get("name", "")), str(meta.get("uid", ""))
    holder = kept(str(spec.get("holderIdentity") or "")) or ""
    job = str(mapping(meta, "labels").get(JOB_LABEL, ""))
    is_round = name.endswith(_ROUND_SUFFIX)
    given = Texts(*(_optional(annotations.get(key)) for key in _TEXTS))
    limits = (MAX_ROUND_BYTES if is_round and key == ROUND_ANNOTATION else MAX_KEPT for key in _TEXTS)
    texts = Texts(*map(kept, given, limits))
    riders = _optional(annotations.get(PROGRESS_ANNOTATION)), _optional(annotations.get(STARTS_ANNOTATION))
    rider_texts = kept(riders[0]), kept(riders[1])
    if old is not None and old.uid == uid and old.texts == texts and old.holder == holder:
        participant, digest, problem = old.participant, old.round_digest, old.problem
        if rider_texts != old.rider_texts:
            participant = _with_riders(_participant(name, holder, given), *riders)
    else:
        participant = _with_riders(_participant(name, holder, given), *riders)
        record, problem = _round(given.round) if is_round and given.round is not None else (None, "")
        digest = "" if record is None else blake2b(record.dump().encode(), digest_size=16).hexdigest()
    return SeenLease(
        namespace=str(meta.get("namespace", "")),
        name=name,
        uid=uid,
        job=job,
        version=version_of(meta),
        owner=controller_of(meta) or first_owner_of(meta),
        holder=holder,
        texts=texts,
        news=_news(participant),
        progress_nonce=participant.progress.nonce if participant.progress is not None else "",
        rider_texts=rider_texts,
        participant=participant,
        round_digest=digest,
        problem=problem,
        listed=_listed(meta, annotations.get(MEMBERS_ANNOTATION)),
    )


def _listed(meta: Mapping[str, Any], text: object) -> tuple[str, int, str]:
    """Which round's member list this is. Of other Leases the annotation is not read: its size is theirs."""
    name = str(meta.get("name", ""))
    if not isinstance(text, str) or name != members_lease(str(mapping(meta, "labels").get(JOB_LABEL, ""))):
        return ("", 0, "")
    try:
        return MemberList.parse(text).head
    except RecordError:
        return ("", 0, "")


def _participant(name: str, holder: str, texts: Texts) -> Participant:
    problems: list[str] = []

    def parsed(text: str | None, parse: Callable[[str], R]) -> R | None:
        try:
            return None if text is None else parse(text)
        except RecordError as error:
            problems.append(str(error))
            return None

    record = parsed(texts.participant, ParticipantRecord.parse)
    failure = parsed(texts.failure, FailureReport.parse)
    report = parsed(texts.report, RoundReport.parse)
    if report is not None and report.message:
        report = replace(report, message=one_line(report.message, MAX_MESSAGE))
    drain = parsed(texts.drain, DrainReport.parse)
    relay = parsed(texts.relay, RelayReport.parse)
    resumed = parsed(texts.resumed, ResumedReport.parse)
    return Participant(
        pod=name,
        holder=holder,
        record=record,
        failure=failure,
        report=report,
        problem=text_of("; ".join(problems)),
        report_unreadable=report is None and texts.report is not None,
        finished=_nonce(texts.finished),
        drain=drain,
        fenced=_nonce(texts.fenced),
        relay=relay,
        resumed=resumed,
    )


def _nonce(text: str | None) -> str:
    return text if text is not None and is_token(text, MAX_ID) else ""


def _with_riders(participant: Participant, progress: str | None, starts: str | None) -> Participant:
    problems = [participant.problem] if participant.problem else []
    try:
        participant = replace(
            participant, progress=None if progress is None else ProgressReport.parse(progress)
        )
    except RecordError as error:
        problems.append(str(error))
    try:
        report = None if starts is None else StartsReport.parse(starts)
        if report is not None and report.cold_reason:
            report = replace(report, cold_reason=one_line(report.cold_reason, MAX_REASON))
        participant = replace(participant, starts=report)
    except RecordError as error:
        problems.append(str(error))
    return replace(participant, problem=text_of("; ".join(problems)))


def _news(participant: Participant) -> Participant:
    if participant.progress is None and participant.starts is None and not participant.problem:
        return participant
    starts = participant.starts
    if starts is not None:
        starts = StartsReport(starts.nonce, preparing=True) if starts.preparing else None
    return replace(
        participant, problem="ignored" if participant.problem else "", progress=None, starts=starts
    )


@lru_cache(maxsize=_ROUNDS_READ)
def _round(text: str) -> tuple[RoundRecord | None, str]:
    try:
        return RoundRecord.parse(text), ""
    except RecordError as error:
        return None, text_of(str(error))


def _optional(value: object) -> str | None:
    return value if isinstance(value, str) else None
