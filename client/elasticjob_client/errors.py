"""What can go wrong between a user and a cluster. Each error's text says what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2


class ClientError(Exception):
    """What all errors of this package are."""


class NoAccess(ClientError):
    """There is no kubeconfig, or it does not lead to a server that accepts its credentials."""


class NoServer(ClientError):
    """The API server does not answer."""


class NotInstalled(ClientError):
    """The cluster has no resource ElasticJob."""


class Forbidden(ClientError):
    """The user has no right to do this."""


class NotFound(ClientError):
    """There is no such job, or other object."""


class Rejected(ClientError):
    """The API server refuses what was sent, and says why."""


class JobFailed(ClientError):
    """The job that was waited for has failed, or is gone."""


_INSTALL = "Install ElasticJob (docs/operate/install.md), or choose another cluster with --context."


@contextmanager
def told(what: str, server: str = "") -> Iterator[None]:
    """Turn errors of the client library into those of this module; ``what`` was being done, such as
    "read ElasticJob default/mnist". The library is imported by those who use it, and by errors."""
    try:
        yield
    except ClientError:
        raise
    except Exception as error:
        ours = _ours(error, what, server)
        if ours is None:
            raise
        raise ours from error


def _ours(error: Exception, what: str, server: str) -> ClientError | None:
    import httpx2
    from lightkube.core.exceptions import ConfigError

    if isinstance(error, httpx2.HTTPStatusError):
        return _refusal(error, what)
    if isinstance(error, httpx2.TransportError):
        where = f" at {server}" if server else ""
        return NoServer(
            f"cannot {what}: the API server{where} does not answer: {str(error) or type(error).__name__}. "
            "Is the cluster up, and is this the right one? --context and --kubeconfig choose another."
        )
    if isinstance(error, ConfigError):
        return NoAccess(f"cannot {what}: {error}. See docs of kubeconfig, --kubeconfig and --context.")
    if isinstance(error, OSError):
        return NoAccess(f"cannot {what}: {error}")
    return None


def _refusal(error: httpx2.HTTPStatusError, what: str) -> ClientError:
    code, status = _answer(error)
    message = str(status.get("message") or "")
    if code == 401:
        return NoAccess(
            f"cannot {what}: the API server does not accept the credentials: {message}. "
            "Log in again, or choose another context with --context."
        )
    if code == 403:
        return Forbidden(
            f"cannot {what}: {message}. "
            "Ask the administrators of the cluster for this right: docs/operate/permissions.md."
        )
    if code == 404:
        details = status.get("details")
        if isinstance(details, dict) and details.get("name"):
            return NotFound(f"cannot {what}: {message}. `elasticjob list` shows the jobs of the namespace.")
        return NotInstalled(f"cannot {what}: the cluster has no resource ElasticJob. {_INSTALL}")
    if code in (400, 409, 422):
        return Rejected(f"cannot {what}: {message}")
    return NoServer(f"cannot {what}: the API server answers {code}: {message}. Try again.")


def _answer(error: httpx2.HTTPStatusError) -> tuple[int, dict[str, object]]:
    """Code and Status object; of a watch that was refused in its course, the error has them itself."""
    import httpx2
    from lightkube.core.exceptions import ApiError

    if isinstance(error, ApiError):
        said: dict[str, object] = error.status.to_dict()
        return error.status.code or 500, said
    try:
        found = json.loads(error.response.read())
    except (ValueError, httpx2.HTTPError, RuntimeError):
        found = {}
    return error.response.status_code, found if isinstance(found, dict) else {}
