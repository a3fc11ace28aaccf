"""What a test may use of any cluster, ours or the one of the user's kubeconfig."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


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
