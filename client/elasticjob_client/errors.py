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
    """The API server does not answer, or, if ``answers``, cannot do it now: it may not reach a node, for
    example. ``reason``: the same in short, without what was being done."""

    def __init__(
        self, text: str, reason: str = "the API server does not answer", answers: bool = False
    ) -> None:
        super().__init__(text)
        self.reason, self.answers = reason, answers


class TooOld(NoServer):
    """A watch is to begin at a version that the API server does not have any more."""


class NotInstalled(ClientError):
    """The cluster has no resource ElasticJob."""


class Forbidden(ClientError):
    """The user has no right to do this. ``reason``: the same without what to do."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason}. {advice}" if advice else reason)
        self.reason = reason


class NotFound(ClientError):
    """There is no such job, or other object."""


class Rejected(ClientError):
    """The API server refuses what was sent, and says why."""


class AlreadyThere(Rejected):
    """What is to be created has a name that another object has."""


class Unreadable(ClientError):
    """An answer is not what this version of the client understands."""


class JobFailed(ClientError):
    """The job that was waited for has failed, or is gone."""


class Unfinished(KeyboardInterrupt):
    """The user has stopped waiting: nothing else is sent, and the raiser says what may be left."""


_OTHER = "--kubeconfig and --context choose another cluster."
_INSTALL = "Install ElasticJob (docs/operate/install.md), or choose another cluster with --context."


_LOOK = {
    "": "`elasticjob list` shows the jobs of the namespace, `elasticjob list -A` those of all.",
    "namespaces": "`kubectl get namespaces` shows those that there are; --namespace chooses one.",
    "pods": "It may have been replaced: `elasticjob status JOB` shows the pods of a job.",
}
"""What shows what there is instead, by the kind of what is not there."""


def no_namespace(what: str, namespace: str) -> NotFound:
    """The error if a whole namespace is missing."""
    return NotFound(f"cannot {what}: there is no namespace {namespace!r}. {_LOOK['namespaces']}")


@contextmanager
def translated_errors(what: str, server: str = "") -> Iterator[None]:
    """Turn errors of the client library into those of this module; ``what`` was being done, such as
    "read ElasticJob default/mnist"."""
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
    import ssl

    import httpx2
    from lightkube.core.exceptions import ConfigError
    from msgspec import MsgspecError

    if isinstance(error, httpx2.HTTPStatusError):
        return _refusal(error, what)
    if isinstance(error, httpx2.ProxyError):
        text = (
            f"the proxy does not lead to it: {error}. The proxy is the kubeconfig's proxy-url, or HTTPS_PROXY"
        )
        return NoServer(f"cannot {what}: {text}.", f"the proxy does not lead to the API server: {error}")
    if isinstance(error, httpx2.TransportError):
        if (wrong := _tls(error)) is not None:
            return NoAccess(f"cannot {what}: {wrong}. Get a new kubeconfig. {_OTHER}")
        return _no_answer(error, what, server)
    if isinstance(error, ConfigError):
        return NoAccess(f"cannot {what}: {str(error).rstrip('.: ')}. {_OTHER}")
    if isinstance(error, ssl.SSLError):
        text = "a certificate or key in the kubeconfig is not usable"
        return NoAccess(f"cannot {what}: {text}: {error}. Get a new kubeconfig. {_OTHER}")
    if isinstance(error, FileNotFoundError) and error.filename:
        text = f"the kubeconfig needs {str(error.filename)!r}, which is not there, or not in PATH"
        return NoAccess(f"cannot {what}: {text}. Install it, such as your provider's login program. {_OTHER}")
    if isinstance(error, OSError):
        return NoAccess(f"cannot {what}: {error}. {_OTHER}")
    if isinstance(error, KeyError) and str(error.args[0]).lower() == "content-type":
        where = f" at {server}" if server else ""
        return Unreadable(
            f"cannot {what}: what answers{where} is no Kubernetes API server, or it expects https and the "
            f"kubeconfig says http. {_OTHER}"
        )
    if isinstance(error, (json.JSONDecodeError, MsgspecError)):
        return Unreadable(
            f"cannot {what}: what answers is no Kubernetes API server, or the kubeconfig's login program "
            f"gives no credential: {error}. Is there a proxy or a login page in between? {_OTHER}"
        )
    if isinstance(error, ValueError):
        return Unreadable(
            f"cannot {what}: {error}. Is the client older than the operator? `elasticjob doctor` tells."
        )
    return None


_AFTER_SENDING = ("ReadTimeout", "ReadError", "RemoteProtocolError")
"""Errors of httpx2 of a request that the server may have got."""


def _no_answer(error: httpx2.TransportError, what: str, server: str) -> NoServer:
    from elasticjob_client import proxy

    try:
        request = error.request
    except RuntimeError:  # it has none
        request = None
    place = request.extensions.get(proxy.EXTENSION, "") if request else ""
    where = (f" at {server}" if server else "") + (f" through the proxy {place}" if place else "")
    reason = f"the API server{where} does not answer: {str(error) or type(error).__name__}"
    look = _how_to_look(request) if request and type(error).__name__ in _AFTER_SENDING else ""
    if look:
        return NoServer(f"cannot {what}: {reason}. Whether it took effect is not known: {look}.", reason)
    proxy_too = "Is the proxy up, which is the kubeconfig's proxy-url, or HTTPS_PROXY? " if place else ""
    return NoServer(
        f"cannot {what}: {reason}. {proxy_too}"
        "Is the cluster up, and is this the right one? --context and --kubeconfig choose another.",
        reason,
    )


def _how_to_look(request: httpx2.Request) -> str:
    """What shows whether a change took effect; "" of a request that changes nothing."""
    _, _, below = request.url.path.partition("/namespaces/")
    if request.method == "GET" or "dryRun" in request.url.params or not below:
        return ""
    namespace, kind, *name = below.split("/")
    if kind == "elasticjobs":
        program = f"elasticjob status {name[0]}" if name else "elasticjob list"
    else:
        program = " ".join(["kubectl get", kind, *name])
    return f"`{program} -n {namespace}` shows it"


_NAME_MISMATCH, _EXPIRED = (62, 64), 10
"""Codes of OpenSSL for what is wrong with a certificate."""


def _tls(error: BaseException) -> str | None:
    """What is wrong with the certificate of the server, or that it speaks no TLS; None if it is neither."""
    import ssl

    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__cause__ or found.__context__
    if isinstance(found, ssl.SSLCertVerificationError):
        if found.verify_code in _NAME_MISMATCH:
            return f"the API server's certificate is for another name: {found.verify_message}"
        if found.verify_code == _EXPIRED:
            return "the API server's certificate has expired"
        return (
            f"the API server's certificate is not signed by the CA of the kubeconfig: {found.verify_message}"
        )
    if isinstance(found, ssl.SSLError) and found.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "the API server does not speak TLS: the kubeconfig says https, perhaps it should say http"
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
            f"cannot {what}: {message}",
            "Ask the administrators of the cluster for this right (docs/operate/permissions.md); "
            "`elasticjob doctor` lists those that you have not.",
        )
    if code == 404:
        details = status.get("details")
        found = details if isinstance(details, dict) else {}
        if found.get("name"):
            return NotFound(f"cannot {what}: {message}. {_LOOK.get(str(found.get('kind')), _LOOK[''])}")
        if "/elasticjob.dev/" in error.request.url.path:
            return NotInstalled(f"cannot {what}: the cluster has no resource ElasticJob. {_INSTALL}")
        return NotFound(f"cannot {what}: the API server does not have it: {message or 'code 404'}. {_OTHER}")
    if code in (400, 409, 422):
        exists = code == 409 and status.get("reason") == "AlreadyExists"
        return (AlreadyThere if exists else Rejected)(f"cannot {what}: {message}")
    answer = f"{code}: {message}" if message else str(code)
    kind = TooOld if code == 410 else NoServer
    return kind(
        f"cannot {what}: the API server answers {answer}. Try again.",
        f"the API server answers {answer}",
        answers=True,
    )


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
