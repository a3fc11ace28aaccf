"""The phase `hostile` of `benchmarks.jobs`: a hostile tenant as a process, and who leads meanwhile."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.k8s import ControlPlane
from elasticjob.contract import names

NAMESPACE = "hostile"
_LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/elasticjob-operator"
_RIGHTS = [
    {"apiGroups": [names.GROUP], "resources": [names.PLURAL], "verbs": ["*"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
]
_LOOK_SECONDS = 0.25
_END_SECONDS = 120.0


class HostileTenant:
    """The process; it ends by itself after ``seconds``."""

    def __init__(self, plane: ControlPlane, urls: Sequence[str], seconds: float, log: Path) -> None:
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        who = {"kind": "ServiceAccount", "name": "tenant", "namespace": NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"}
        for path, body in (
            ("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}),
            (f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "tenant"}}),
            (f"{rbac}/roles", {"metadata": {"name": "tenant"}, "rules": _RIGHTS}),
            (f"{rbac}/rolebindings", {"metadata": {"name": "tenant"}, "subjects": [who], "roleRef": role}),
        ):
            answer = plane.api.request("POST", path, body)
            assert answer.ok, answer.text
        token = plane.cluster.kubectl("-n", NAMESPACE, "create", "token", "tenant").stdout.strip()
        cluster = plane.cluster
        command = [sys.executable, "-m", "benchmarks.hostile_tenant", cluster.server, str(cluster.ca_file)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, NAMESPACE, str(seconds), *urls],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(token.encode())
        self._process.stdin.close()

    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    async def done(self) -> dict[str, int]:
        """How often it made each request, by answer."""
        assert self._process.stdout is not None
        said = await asyncio.to_thread(self._process.stdout.read)
        await asyncio.to_thread(self._process.wait, _END_SECONDS)
        found: dict[str, int] = json.loads(said or b"{}")
        return found

    def kill(self) -> None:
        """End it, if it runs."""
        if not self.has_ended():
            self._process.kill()
        self._process.wait()


class Leadership:
    """Watches the Lease of the election while ``run`` runs: which operators lead, how often it is renewed."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.holders: list[str] = []
        """The leaders, one after the other."""
        self.longest_gap = 0.0
        """The most seconds between two renewals."""
        self._spec: dict[str, Any] = {}
        self._renewed_at = time.monotonic()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            answer = await asyncio.to_thread(self._plane.api.request, "GET", _LEASE)
            if answer.ok:
                self._saw(answer.json()["spec"], time.monotonic())
            await asyncio.sleep(_LOOK_SECONDS)

    def _saw(self, spec: dict[str, Any], now: float) -> None:
        holder = str(spec.get("holderIdentity") or "")
        if not self.holders or self.holders[-1] != holder:
            self.holders.append(holder)
        if spec.get("renewTime") != self._spec.get("renewTime"):
            if self._spec:
                self.longest_gap = max(self.longest_gap, now - self._renewed_at)
            self._renewed_at = now
        self._spec = spec
