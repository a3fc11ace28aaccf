"""How a request says who asks: by the token of the kubeconfig, of a file, or of a login program.

Errors never have a token in them. A login program that asks something of the user, such as to open a page, is
heard: what it writes to stderr is passed on as a notice.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx2
from lightkube.config.client_adapter import user_auth
from lightkube.config.models import User, UserExec
from lightkube.core.exceptions import ConfigError

from elasticjob_client.patience import Notice

QUIET_SECONDS = 3.0
"""A login program that takes no longer is not mentioned."""
_JOIN_SECONDS = 3.0
"""How long what a program has said is awaited when it has ended: a child of it may hold its stderr open."""
_VERSIONS = ("client.authentication.k8s.io/v1alpha1", "client.authentication.k8s.io/v1beta1")


def authentication(user: User, notice: Notice) -> httpx2.Auth | None:
    """How requests of this user are signed. Raises ConfigError for what cannot be done."""
    if user.token_file is not None:
        return _File(user.token_file)
    if user.token is not None:
        return _Fixed(bearer(user.token))
    if user.exec:
        return _Program(user.exec, notice)
    return user_auth(user)


def bearer(token: str, of: str = "the kubeconfig") -> str:
    """The header. Raises ConfigError, without the token, if a header cannot hold it."""
    found = token.strip()
    if not found or not found.isascii() or not found.isprintable():
        what = "has characters that a header cannot hold" if found else "is empty"
        raise ConfigError(f"the token of {of} {what}")
    return f"Bearer {found}"


class _Fixed(httpx2.Auth):
    def __init__(self, header: str) -> None:
        self._header = header

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = self._header
        yield request


class _File(httpx2.Auth):
    """The token is read again when it is refused: a kubelet changes that of a pod now and then."""

    def __init__(self, path: str) -> None:
        self._path, self._header = path, ""

    def _read(self) -> str:
        try:
            return bearer(Path(self._path).read_text("utf-8"), f"the file {self._path}")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the token's file {self._path} cannot be read: {error}") from None

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        self._header = self._header or self._read()
        request.headers["Authorization"] = self._header
        response = yield request
        if response.status_code == 401:
            request.headers["Authorization"] = self._header = self._read()
            yield request


class _Program(httpx2.Auth):
    """The program is run when there is no token yet, and when the token is refused."""

    def __init__(self, program: UserExec, notice: Notice) -> None:
        self._program, self._notice, self._header = program, notice, ""
        self._lock = threading.Lock()

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        old = self._header
        if old:
            request.headers["Authorization"] = old
            response = yield request
            if response.status_code != 401:
                return
        request.headers["Authorization"] = self._renewed(old, _Running(self._program, self._notice))
        yield request

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        old = self._header
        if old:
            request.headers["Authorization"] = old
            response = yield request
            if response.status_code != 401:
                return
        running = _Running(self._program, self._notice)
        try:
            request.headers["Authorization"] = await asyncio.to_thread(self._renewed, old, running)
        except asyncio.CancelledError:
            running.stop()
            raise
        yield request

    def _renewed(self, old: str, running: _Running) -> str:
        """Another header than the old one; of several that need one, the first logs in."""
        with self._lock:
            if self._header == old:
                self._header = running.header()
            return self._header


class _Running:
    """A login program while it runs."""

    def __init__(self, program: UserExec, notice: Notice) -> None:
        self._program, self._notice = program, notice
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def stop(self) -> None:
        """End it."""
        self._stopped = True
        if self._process:
            self._process.kill()

    def header(self) -> str:
        """Run it to its end. Raises ConfigError with what it says if it gives no token."""
        of = self._program
        if of.apiVersion not in _VERSIONS:
            raise ConfigError(
                f"the login program {of.command} has the apiVersion {of.apiVersion!r}, which is not known"
            )
        if self._stopped:
            raise ConfigError(f"the login program {of.command} was stopped")
        environment = {**os.environ, **{one.name: one.value for one in of.env or []}}
        self._process = process = subprocess.Popen(
            [of.command, *(of.args or [])], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        said: list[str] = []
        said_late = _Late([f"waiting for the kubeconfig's login program {of.command}"], self._notice)
        listener = threading.Thread(target=_listen, args=(process, said, said_late), daemon=True)
        listener.start()
        try:
            assert process.stdout
            written = process.stdout.read()
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            said_late.cancel()
        listener.join(_JOIN_SECONDS)
        if code != 0:
            raise ConfigError(f"the login program {of.command} ended with code {code}: {' '.join(said)}")
        try:
            token = json.loads(written)["status"]["token"]
        except (ValueError, KeyError, TypeError):
            token = None
        if not isinstance(token, str):
            raise ConfigError(
                f"the kubeconfig's login program gives no credential: expected {of.command} to print an "
                "ExecCredential with status.token"
            )
        return bearer(token, f"the login program {of.command}")


def _listen(process: subprocess.Popen[bytes], said: list[str], late: _Late) -> None:
    """Collect what it says."""
    assert process.stderr
    for line in process.stderr:
        text = line.decode(errors="replace").rstrip()
        said.append(text)
        late.add(text)


class _Late:
    """Passes on what is said once it has been waited for a while, unless that is cancelled before."""

    def __init__(self, said: list[str], notice: Notice) -> None:
        self._said, self._notice, self._begun = said, notice, False
        self._lock = threading.Lock()
        self._timer = threading.Timer(QUIET_SECONDS, self._begin)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()

    def add(self, text: str) -> None:
        with self._lock:
            self._said.append(text)
            self._pass_on()

    def _begin(self) -> None:
        with self._lock:
            self._begun = True
            self._pass_on()

    def _pass_on(self) -> None:
        while self._begun and self._said:
            self._notice(self._said.pop(0))
