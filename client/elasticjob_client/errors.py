"""What can go wrong between a user and a cluster. Each error's text says what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from lightkube.core.exceptions import ApiError, ConfigError


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
    "read ElasticJob default/mnist"."""
    try:
        yield
    except httpx2.HTTPStatusError as error:
        raise _refusal(error, what) from error
    except httpx2.TransportError as error:
        where = f" at {server}" if server else ""
        raise NoServer(
            f"cannot {what}: the API server{where} does not answer: {str(error) or type(error).__name__}. "
            "Is the cluster up, and is this the right one? --context and --kubeconfig choose another."
        ) from error
    except ConfigError as error:
        raise NoAccess(
            f"cannot {what}: {error}. See docs of kubeconfig, --kubeconfig and --context."
        ) from error
    except OSError as error:
        raise NoAccess(f"cannot {what}: {error}") from error


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
    if isinstance(error, ApiError):
        said: dict[str, object] = error.status.to_dict()
        return error.status.code or 500, said
    try:
        found = json.loads(error.response.read())
    except (ValueError, httpx2.HTTPError, RuntimeError):
        found = {}
    return error.response.status_code, found if isinstance(found, dict) else {}
