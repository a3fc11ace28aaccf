"""What a test may use of any cluster, ours or the one of the user's kubeconfig."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from devcluster.api import ApiClient

_READ_SECONDS = 60.0


class KubectlError(RuntimeError):
    """kubectl failed; the message has its command line and what it wrote to stderr."""


class ClusterAccess:
    """A cluster as its administrator reaches it."""

    kubeconfig: Path
    """The administrator's; its authority is embedded."""
    server: str
    """`https://HOST:PORT`."""
    ca_file: Path
    """The certificate of the authority that signed the server's."""
    kubernetes: str
    """The server's version, such as 1.36."""
    _reader: ApiClient | None = None

    @property
    def admin_token(self) -> str:
        """A bearer token with all rights. Raises RuntimeError if the administrator has no token."""
        raise NotImplementedError

    @property
    def kubectl_binary(self) -> Path:
        """The path of a kubectl that fits the server."""
        raise NotImplementedError

    def kubectl(
        self, *args: str, input: str | None = None, check: bool = True, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator, with `input` on its stdin.

        Raises KubectlError if it fails and `check` is true, and subprocess.TimeoutExpired after `timeout`
        seconds in any case.
        """
        finished = subprocess.run(
            [str(self.kubectl_binary), *args],
            env={**os.environ, **self._kubectl_environment()},
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and finished.returncode != 0:
            raise KubectlError(
                f"kubectl {' '.join(args)} exited with {finished.returncode}: {finished.stderr.strip()}"
            )
        return finished

    def read(self, path: str) -> dict[str, Any]:
        """GET as the administrator, {} if it is not there: for those who poll (kubectl costs a fifth of a
        second of CPU each time).

        Tries again while there is no answer or the server is busy, as kubectl does. Raises RuntimeError for
        any other answer, or after 60 s.
        """
        if self._reader is None:
            self._reader = ApiClient(self.server, self.ca_file, self.admin_token)
        deadline = time.monotonic() + _READ_SECONDS
        while True:
            answer = self._reader.request("GET", path)
            if answer.ok:
                found: dict[str, Any] = answer.json()
                return found
            if answer.status == 404:
                return {}
            if (answer.status and answer.status != 429) or time.monotonic() > deadline:
                raise RuntimeError(f"GET {path}: {answer.status or 'no answer'}: {answer.text[:1000]}")
            time.sleep(0.1)

    def apply(self, manifests: str | Path, *, namespace: str | None = None) -> None:
        """Apply manifests: a file or folder if given as a Path, else the YAML itself.

        Raises KubectlError if the server refuses any of them.
        """
        scope = [] if namespace is None else ["--namespace", namespace]
        if isinstance(manifests, Path):
            self.kubectl("apply", *scope, "-f", str(manifests))
        else:
            self.kubectl("apply", *scope, "-f", "-", input=manifests)

    def _kubectl_environment(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.kubeconfig)}
