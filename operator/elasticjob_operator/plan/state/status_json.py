"""``JobStatus`` to and from the JSON of the custom resource.

A field's JSON name is its own in camel case, unless it is ``named``; a field that has its default is left
out, unless it is marked ``always``. Unknown fields are ignored: an older operator meets a newer status.

What is marked ``internal`` is kept apart, below ``status.internal``: the resource definition says nothing
about its content, so that neither an older nor a newer one drops it. It has the version of its format, and
the oldest version whose readers may act on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from elasticjob.contract.round_record import Phase
from elasticjob_operator.plan.state.restart_accounts import Account
from elasticjob_operator.plan.state.status import Condition, JobStatus, Progress, RoundStatus

VERSION = 2
"""The newest format of ``status.internal`` that this operator reads. It writes the oldest that says all, and
names it as the oldest whose readers may act on it: 2 for a round that drains, which a reader of 1 would take
for one that is behind its Lease; else 1."""


Fields = dict[str, Any]


class StatusTooNewError(ValueError):
    """Only a newer operator may act on this status."""


def dump(status: JobStatus) -> Fields:
    """The status as JSON, without fields that have their default."""
    public: Fields = _converter.unstructure(status)
    version = 1 if status.current_round.drain is None else 2
    internal: Fields = {"version": version, "minReaderVersion": version}
    if status.current_round.drain is not None:
        public["currentRound"]["phase"] = status.current_round.published_phase
    for part, cls, place in _PARTS:
        fields = public if part is None else public.get(part)
        if fields is not None:
            moved = {name: fields.pop(name) for name in _internal_names(cls) if name in fields}
            internal.update({place: moved} if place else moved)
    older = [
        {"account": account["name"], **one}
        for account in public.get("accounts", ())
        for one in account.pop("olderCharges", ())
    ]
    return {**public, "internal": {**internal, **({"olderCharges": older} if older else {})}}


def parse(fields: Mapping[str, Any] | None) -> JobStatus:
    """Read what an operator wrote. Raises ValueError for anything else, and StatusTooNewError."""
    try:
        return _converter.structure(_joined(fields or {}), JobStatus)
    except StatusTooNewError:
        raise
    except cattrs.BaseValidationError as error:
        raise ValueError("; ".join(cattrs.transform_error(error))) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(str(error)) from None


_PARTS: tuple[tuple[str | None, type, str], ...] = (
    (None, JobStatus, ""),
    ("currentRound", RoundStatus, "round"),
    ("progress", Progress, "progress"),
)
"""What has internal fields, and where below ``internal`` they stand."""


def _internal_names(cls: Any) -> list[str]:
    return [_json_name(f) for f in dataclasses.fields(cls) if f.metadata.get("internal")]


def _joined(fields: Mapping[str, Any]) -> Fields:
    """The status with its internal fields where the dataclasses have them."""
    status = dict(fields)
    if "currentRound" not in status and "internal" not in status:
        return status  # no operator has seen the job
    internal = status.pop("internal", None)
    if not isinstance(internal, dict):
        raise ValueError("internal is missing")
    oldest = _exactly(int)(internal.get("minReaderVersion"), int)
    if oldest > VERSION:
        raise StatusTooNewError(f"only operators that read version {oldest} may act on it")
    for part, cls, place in _PARTS:
        source = dict(internal.get(place, {})) if place else internal
        found = {name: source[name] for name in _internal_names(cls) if name in source}
        if part is None:
            status.update(found)
        elif found:
            status[part] = {**status[part], **found}
    if "drain" in status.get("currentRound", {}):
        status["currentRound"] = {**status["currentRound"], "phase": Phase.ACTIVE.value}
    older: dict[str, list[Any]] = {}
    for one in internal.get("olderCharges", ()):
        older.setdefault(one["account"], []).append(one)
    if older:
        status["accounts"] = [{**a, "olderCharges": older.get(a["name"], [])} for a in status["accounts"]]
    return status


def _json_name(field: dataclasses.Field[Any]) -> str:
    if "name" in field.metadata:
        return str(field.metadata["name"])
    first, *rest = field.name.split("_")
    return first + "".join("UID" if word == "uid" else word.title() for word in rest)


def _write(cls: Any, converter: cattrs.Converter) -> Callable[[Any], dict[str, Any]]:
    overrides: dict[str, Any] = {
        f.name: override(rename=_json_name(f), omit_if_default=not f.metadata.get("always"))
        for f in dataclasses.fields(cls)
    }
    return make_dict_unstructure_fn(cls, converter, **overrides)


def _read(cls: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    overrides: dict[str, Any] = {f.name: override(rename=_json_name(f)) for f in dataclasses.fields(cls)}
    return make_dict_structure_fn(cls, converter, **overrides)


def _time(value: datetime) -> str:
    return value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _parse_time(text: Any, _: Any) -> datetime:
    time = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    try:
        return time.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{text!r} is not a time that can be written") from None


def _make() -> cattrs.Converter:
    converter = cattrs.Converter()
    converter.register_unstructure_hook(datetime, _time)
    converter.register_structure_hook(datetime, _parse_time)
    for kind in (int, str, bool):
        converter.register_structure_hook(kind, _exactly(kind))
    converter.register_unstructure_hook_factory(dataclasses.is_dataclass, lambda cls: _write(cls, converter))
    converter.register_structure_hook_factory(dataclasses.is_dataclass, lambda cls: _read(cls, converter))
    plain_account = _write(Account, converter)
    converter.register_unstructure_hook(Account, lambda a: {**plain_account(a), "used": a.used})
    plain_condition = _write(Condition, converter)

    def condition(c: Condition) -> dict[str, Any]:
        fields = plain_condition(c)
        if c.last_transition_time is not None:  # metav1.Time has whole seconds
            fields["lastTransitionTime"] = _time(c.last_transition_time.replace(microsecond=0)).replace(
                ".000000", ""
            )
        return fields

    converter.register_unstructure_hook(Condition, condition)
    return converter


def _exactly(kind: type) -> Callable[[Any, Any], Any]:
    def hook(value: Any, _: Any) -> Any:
        if isinstance(value, bool) is not (kind is bool) or not isinstance(value, kind):
            raise ValueError(f"{value!r}: expected {kind.__name__}")
        return value

    return hook


_converter = _make()
