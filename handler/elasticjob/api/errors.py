"""What can go wrong with a request, by what the caller can do about it."""

from __future__ import annotations


class ApiError(Exception):
    """A request that the API server refused or that did not reach it. ``status`` is 0 without an answer."""

    def __init__(self, message: str, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Unavailable(ApiError):
    """No answer, 429 or 5xx: try again later."""


class Unauthorized(ApiError):
    """401: the token is not valid, or no longer. It passes when the kubelet has written a new one.

    ``lasting``: the token is too young for the kubelet to replace it soon.
    """

    lasting = False


class Forbidden(ApiError):
    """403: this identity may not. RBAC caches lag, so it may pass within seconds."""


class NotFound(ApiError):
    """The object (or its namespace) is not there."""


class Conflict(ApiError):
    """The object has changed since it was read."""


def from_status(status: int, message: str, retry_after: float = 0.0) -> ApiError:
    """The error for an HTTP status of 400 or more."""
    if status == 401:
        return Unauthorized(message, status)
    if status == 403:
        return Forbidden(message, status)
    if status == 404:
        return NotFound(message, status)
    if status == 409:
        return Conflict(message, status)
    if status == 429 or status >= 500:
        return Unavailable(message, status, retry_after)
    return ApiError(message, status)
