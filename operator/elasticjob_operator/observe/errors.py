"""What can go wrong with a request to the API server, as types that callers act upon.

Each error says what was asked and what the server answered, so that its text makes sense in a log by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from elasticjob.contract.text import one_line

_MAX_MESSAGE = 1_000
_LONGEST_RETRY_AFTER = 30.0
"""Seconds; a server that asks for more is asked again anyway."""

_REFUSED_BY_POLICY = "does not lead; the leader is "
"""Words of charts/elasticjob/templates/leader-policy.yaml."""
_TOO_LARGE = "etcdserver: request is too large"
"""Said with a status of 500."""


class ApiError(Exception):
    """A request failed. ``status`` is the HTTP status, 0 where there was no answer."""

    def __init__(self, request: str, status: int, reason: str, message: str) -> None:
        message = one_line(message, _MAX_MESSAGE)
        super().__init__(f"{request}: {status or 'no answer'} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """404: the object or the resource is not there."""


class Conflict(ApiError):
    """409, or the 422 of a JSON patch whose ``test`` failed: another writer was quicker; read again."""


class AlreadyExists(Conflict):
    """409 of a create: the name is taken."""


class Gone(ApiError):
    """410: the resource version is too old; list again."""


class Unauthorized(ApiError):
    """401, also with fresh credentials."""


class Forbidden(ApiError):
    """403: RBAC, quota or admission."""


class Invalid(ApiError):
    """400 or 422: the object will not be accepted as it is."""


class TooLarge(Invalid):
    """413, or etcd's own limit of a request's size: the object will not be accepted at this size."""


class PageTooLarge(ApiError):
    """A page of a list was not read to its end, because it has more bytes than are held at a time."""

    def __init__(self, request: str, most: int) -> None:
        super().__init__(request, 0, "PageTooLarge", f"the page has more than {most} bytes")


class Unavailable(ApiError):
    """No answer, a time-out, or a 5xx: try later. ``retry_after`` (seconds) if the server said so."""

    def __init__(
        self, request: str, status: int, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(request, status, reason, message)
        self.retry_after = retry_after


class TookTooLong(Unavailable):
    """The API server took the request, and has not answered within the time limit."""


class NotLeading(ApiError):
    """This process does not lead, or its leadership's deadline has passed: nothing was sent. Or the API
    server says so (the chart's policy); its view is some milliseconds old, so an operator that has just
    taken over tries again."""

    def __init__(
        self,
        request: str,
        status: int = 0,
        message: str = "this operator does not lead (any more); nothing was sent",
    ) -> None:
        super().__init__(request, status, "NotLeading", message)


class TooManyRequests(Unavailable):
    """429: priority and fairness, or an eviction that must wait."""


def error_of(
    request: str, status: int, headers: Mapping[str, str], body: bytes, json_patch: bool = False
) -> ApiError:
    """The error for an answer that is no success."""
    answer: dict[str, Any] = {}
    text = body[:_MAX_MESSAGE].decode("utf-8", "replace")
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        answer = parsed
    reason = str(answer.get("reason") or "")
    message = str(answer.get("message") or text)
    if status == 401:
        return Unauthorized(request, status, reason, message)
    if status == 403 and "ValidatingAdmissionPolicy" in message and _REFUSED_BY_POLICY in message:
        return NotLeading(request, status, message)
    if status == 403:
        return Forbidden(request, status, reason, message)
    if status == 404:
        return NotFound(request, status, reason, message)
    if status == 409:
        kind = AlreadyExists if reason == "AlreadyExists" else Conflict
        return kind(request, status, reason, message)
    if status == 410:
        return Gone(request, status, reason, message)
    if status == 422 and json_patch and not _names_a_field(answer):
        return Conflict(request, status, reason, message)
    if status == 413 or _TOO_LARGE in message:
        return TooLarge(request, status, reason, message)
    if status in (400, 415, 422):
        return Invalid(request, status, reason, message)
    retry_after = _seconds(headers.get("Retry-After"))
    if status == 429:
        return TooManyRequests(request, status, reason, message, retry_after)
    if status >= 500:
        return Unavailable(request, status, reason, message, retry_after)
    return ApiError(request, status, reason, message)


def _names_a_field(answer: Mapping[str, Any]) -> bool:
    """A failed validation names the fields that it dislikes; a failed ``test`` of a patch names none."""
    details = answer.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return isinstance(causes, list) and any(isinstance(c, dict) and c.get("field") for c in causes)


def _seconds(text: str | None) -> float | None:
    try:
        return min(max(float(text or ""), 0.0), _LONGEST_RETRY_AFTER)
    except ValueError:
        return None
