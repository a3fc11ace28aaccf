"""``ElasticJob.status`` as frozen data, to and from JSON.

The status is the write-ahead log: all that the round Lease says, and the time of every charge
inside a window, stand here first, so that an operator that dies between any two writes resumes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

MAX_ROUNDS = 20
"""Rounds kept in the history."""


@dataclass(frozen=True)
class Condition:
    """One of ``status.conditions``; ``status`` is True, False or Unknown."""

    type: str
    status: str
    reason: str
    message: str = ""
    transition: datetime | None = None
    observed_generation: int = 0


@dataclass(frozen=True)
class Named:
    """A pod that somebody who must know has named unreachable, and when."""

    pod: str
    time: datetime


@dataclass(frozen=True)
class RoundStatus:
    """``status.round``. ``number`` 0 with phase Broken is the time before the first round.

    ``cause``, ``account`` and ``message`` say why the round was formed; once it is Broken or Closed,
    why it ended. ``establish_failures`` counts rounds in a row that were not established;
    ``missing`` are the pods that were absent in the last of them, ``not_leading`` those that could
    not be reached as leader. ``named`` are those that were named unreachable of late, in whatever round.
    """

    number: int = 0
    phase: str = "Broken"
    nonce: str = ""
    leader: str = ""
    leader_endpoint: str = ""
    members: int = 0
    processes: int | None = None
    start: datetime | None = None
    established: datetime | None = None
    broken: datetime | None = None
    cause: str = ""
    account: str = ""
    message: str = ""
    outcome: str = ""
    refused: tuple[str, ...] = ()
    establish_failures: int = 0
    missing: tuple[str, ...] = ()
    not_leading: tuple[str, ...] = ()
    named: tuple[Named, ...] = ()


@dataclass(frozen=True)
class ParticipantStatus:
    """One of ``status.participants``. ``rank`` is None unless it is or was a member of the round.

    States: Member, Succeeded (member), Lost (member whose loss is established), Left (member that has
    left the round and lives), Standby, Joining.
    """

    id: str
    pod: str
    uid: str
    state: str
    slot: int | None = None
    rank: int | None = None
    address: str = ""
    node: str = ""
    nproc: str = ""
    message: str = ""


@dataclass(frozen=True)
class RoundHistory:
    """One of ``status.rounds``: why this round was formed, and when."""

    number: int
    cause: str
    account: str
    members: int
    start: datetime
    end: datetime | None = None
    rendezvous_milliseconds: int | None = None
    message: str = ""


@dataclass(frozen=True)
class Charge:
    """A restart charged to an account: for the end of ``round``, or for ``pod``, which ended before it
    was ever a member. Either is a key: charging again changes nothing."""

    time: datetime
    round: int | None = None
    pod: str = ""


@dataclass(frozen=True)
class Account:
    """One of ``status.accounts``. ``used`` are the charges inside the window."""

    name: str
    limit: int | None = None
    window_seconds: int | None = None
    charges: tuple[Charge, ...] = ()


@dataclass(frozen=True)
class Failure:
    """``status.lastFailure``. ``exit_code`` is None where it could not be learnt."""

    pod: str
    time: datetime
    message: str
    rank: int | None = None
    exit_code: int | None = None
    round: int | None = None


@dataclass(frozen=True)
class JobStatus:
    """``status``. ``attempts[slot]`` is the newest attempt number of that slot's pod, -1 for none yet."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    start: datetime | None = None
    completion: datetime | None = None
    replicas: int = 0
    selector: str = ""
    min_replicas: int = 0
    restarts: int = 0
    attempts: tuple[int, ...] = ()
    round: RoundStatus = RoundStatus()
    participants: tuple[ParticipantStatus, ...] = ()
    rounds: tuple[RoundHistory, ...] = ()
    accounts: tuple[Account, ...] = ()
    last_failure: Failure | None = None

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, or None before the first write."""
        return next((c for c in self.conditions if c.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether that condition is there and True."""
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"

    @property
    def finished(self) -> bool:
        """Complete or Failed: both are final."""
        return self.is_true("Complete") or self.is_true("Failed")

    def members(self) -> tuple[ParticipantStatus, ...]:
        """The members of ``round`` (also of one that is over), in rank order."""
        return self._members

    # Asked for each pod in each pass: without a memory a pass is quadratic in the size of the job.

    @cached_property
    def _members(self) -> tuple[ParticipantStatus, ...]:
        return tuple(sorted((p for p in self.participants if p.rank is not None), key=lambda p: p.rank or 0))

    @cached_property
    def member_ids(self) -> frozenset[str]:
        """The ids of the members."""
        return frozenset(m.id for m in self._members)

    @cached_property
    def lost(self) -> frozenset[str]:
        """The UIDs of the pods of the members whose loss is established."""
        return frozenset(m.uid for m in self._members if m.state == "Lost")

    def dump(self) -> dict[str, Any]:
        """The status as JSON, without what is absent."""
        return _compact(
            {
                "observedGeneration": self.observed_generation,
                "conditions": [_dump_condition(c) for c in self.conditions],
                "startTime": _time(self.start),
                "completionTime": _time(self.completion),
                "replicas": self.replicas,
                "selector": self.selector,
                "minReplicas": self.min_replicas,
                "restarts": self.restarts,
                "attempts": list(self.attempts),
                "round": _dump_round(self.round),
                "participants": [_dump_participant(p) for p in self.participants],
                "rounds": [_dump_history(r) for r in self.rounds],
                "accounts": [_dump_account(a) for a in self.accounts],
                "lastFailure": None if self.last_failure is None else _dump_failure(self.last_failure),
            }
        )

    @staticmethod
    def parse(fields: Mapping[str, Any] | None) -> JobStatus:
        """Read what an operator wrote (the schema has checked the types)."""
        fields = fields or {}
        return JobStatus(
            observed_generation=fields.get("observedGeneration", 0),
            conditions=tuple(_parse_condition(c) for c in fields.get("conditions", ())),
            start=_parse_time(fields.get("startTime")),
            completion=_parse_time(fields.get("completionTime")),
            replicas=fields.get("replicas", 0),
            selector=fields.get("selector", ""),
            min_replicas=fields.get("minReplicas", 0),
            restarts=fields.get("restarts", 0),
            attempts=tuple(fields.get("attempts", ())),
            round=_parse_round(fields.get("round", {})),
            participants=tuple(_parse_participant(p) for p in fields.get("participants", ())),
            rounds=tuple(_parse_history(r) for r in fields.get("rounds", ())),
            accounts=tuple(_parse_account(a) for a in fields.get("accounts", ())),
            last_failure=_parse_failure(fields.get("lastFailure")),
        )


def with_condition(
    conditions: Iterable[Condition], condition: Condition, wall: datetime
) -> tuple[Condition, ...]:
    """Replace the condition of the same type; the transition time moves only with ``status``."""
    result = []
    found = False
    second = wall.replace(microsecond=0)  # all that a condition has
    for old in conditions:
        if old.type == condition.type:
            found = True
            same = old.status == condition.status
            result.append(replace(condition, transition=old.transition if same else second))
        else:
            result.append(old)
    if not found:
        result.append(replace(condition, transition=second))
    return tuple(result)


def _compact(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None and value != ""}


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _seconds(value: datetime | None) -> str | None:
    return None if value is None else value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse_time(text: str | None) -> datetime | None:
    return None if not text else datetime.fromisoformat(text.replace("Z", "+00:00"))


def _required_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _dump_condition(c: Condition) -> dict[str, Any]:
    return {
        "type": c.type,
        "status": c.status,
        "reason": c.reason,
        "message": c.message,
        "lastTransitionTime": _seconds(c.transition),
        "observedGeneration": c.observed_generation,
    }


def _parse_condition(fields: Mapping[str, Any]) -> Condition:
    return Condition(
        type=fields["type"],
        status=fields["status"],
        reason=fields.get("reason", ""),
        message=fields.get("message", ""),
        transition=_parse_time(fields.get("lastTransitionTime")),
        observed_generation=fields.get("observedGeneration", 0),
    )


def _dump_round(r: RoundStatus) -> dict[str, Any]:
    return _compact(
        {
            "number": r.number,
            "phase": r.phase,
            "nonce": r.nonce,
            "leader": r.leader,
            "leaderEndpoint": r.leader_endpoint,
            "members": r.members,
            "processes": r.processes,
            "startTime": _time(r.start),
            "establishedTime": _time(r.established),
            "brokenTime": _time(r.broken),
            "cause": r.cause,
            "account": r.account,
            "message": r.message,
            "outcome": r.outcome,
            "refused": list(r.refused) or None,
            "establishFailures": r.establish_failures or None,
            "missing": list(r.missing) or None,
            "notLeading": list(r.not_leading) or None,
            "named": [{"pod": n.pod, "time": _time(n.time)} for n in r.named] or None,
        }
    )


def _parse_round(fields: Mapping[str, Any]) -> RoundStatus:
    return RoundStatus(
        number=fields.get("number", 0),
        phase=fields.get("phase", "Broken"),
        nonce=fields.get("nonce", ""),
        leader=fields.get("leader", ""),
        leader_endpoint=fields.get("leaderEndpoint", ""),
        members=fields.get("members", 0),
        processes=fields.get("processes"),
        start=_parse_time(fields.get("startTime")),
        established=_parse_time(fields.get("establishedTime")),
        broken=_parse_time(fields.get("brokenTime")),
        cause=fields.get("cause", ""),
        account=fields.get("account", ""),
        message=fields.get("message", ""),
        outcome=fields.get("outcome", ""),
        refused=tuple(fields.get("refused", ())),
        establish_failures=fields.get("establishFailures", 0),
        missing=tuple(fields.get("missing", ())),
        not_leading=tuple(fields.get("notLeading", ())),
        named=tuple(Named(n["pod"], _required_time(n["time"])) for n in fields.get("named", ())),
    )


def _dump_participant(p: ParticipantStatus) -> dict[str, Any]:
    return _compact(
        {
            "id": p.id,
            "pod": p.pod,
            "uid": p.uid,
            "slot": p.slot,
            "rank": p.rank,
            "address": p.address,
            "node": p.node,
            "nproc": p.nproc,
            "state": p.state,
            "message": p.message,
        }
    )


def _parse_participant(fields: Mapping[str, Any]) -> ParticipantStatus:
    return ParticipantStatus(
        id=fields["id"],
        pod=fields["pod"],
        uid=fields["uid"],
        state=fields["state"],
        slot=fields.get("slot"),
        rank=fields.get("rank"),
        address=fields.get("address", ""),
        node=fields.get("node", ""),
        nproc=fields.get("nproc", ""),
        message=fields.get("message", ""),
    )


def _dump_history(r: RoundHistory) -> dict[str, Any]:
    return _compact(
        {
            "number": r.number,
            "cause": r.cause,
            "account": r.account,
            "members": r.members,
            "startTime": _time(r.start),
            "endTime": _time(r.end),
            "rendezvousMilliseconds": r.rendezvous_milliseconds,
            "message": r.message,
        }
    )


def _parse_history(fields: Mapping[str, Any]) -> RoundHistory:
    return RoundHistory(
        number=fields["number"],
        cause=fields.get("cause", ""),
        account=fields.get("account", ""),
        members=fields.get("members", 0),
        start=_required_time(fields["startTime"]),
        end=_parse_time(fields.get("endTime")),
        rendezvous_milliseconds=fields.get("rendezvousMilliseconds"),
        message=fields.get("message", ""),
    )


def _dump_account(a: Account) -> dict[str, Any]:
    return _compact(
        {
            "name": a.name,
            "used": len(a.charges),
            "limit": a.limit,
            "windowSeconds": a.window_seconds,
            "charges": [_compact({"round": c.round, "pod": c.pod, "time": _time(c.time)}) for c in a.charges],
        }
    )


def _parse_account(fields: Mapping[str, Any]) -> Account:
    return Account(
        name=fields["name"],
        limit=fields.get("limit"),
        window_seconds=fields.get("windowSeconds"),
        charges=tuple(
            Charge(time=_required_time(c["time"]), round=c.get("round"), pod=c.get("pod", ""))
            for c in fields.get("charges", ())
        ),
    )


def _dump_failure(f: Failure) -> dict[str, Any]:
    return _compact(
        {
            "pod": f.pod,
            "rank": f.rank,
            "exitCode": f.exit_code,
            "message": f.message,
            "time": _time(f.time),
            "round": f.round,
        }
    )


def _parse_failure(fields: Mapping[str, Any] | None) -> Failure | None:
    if not fields:
        return None
    return Failure(
        pod=fields.get("pod", ""),
        time=_required_time(fields["time"]),
        message=fields.get("message", ""),
        rank=fields.get("rank"),
        exit_code=fields.get("exitCode"),
        round=fields.get("round"),
    )
