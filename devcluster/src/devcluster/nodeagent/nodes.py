"""One node: its object, its Lease, and whether its agent can reach the API server at the moment."""

from __future__ import annotations

import asyncio
import logging
import platform
import uuid
from collections.abc import Mapping
from datetime import datetime, timezone

from devcluster.nodeagent.api import MERGE, UNREACHABLE, Api, ApiError, Object
from devcluster.proxy import TcpProxy

_logger = logging.getLogger(__name__)

_RENEW_SECONDS = 3.0
_LEASE_SECONDS = 12
_RETRY_SECONDS = 0.5
_CONFLICT_SECONDS = 0.02


def timestamp() -> str:
    """The present time as Kubernetes writes it in most places."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Node:
    """A node that is switched on. ``run`` keeps it registered."""

    def __init__(
        self, name: str, address: str, log_port: int, capacity: Mapping[str, str], api: Api, proxy: TcpProxy
    ) -> None:
        self.name = name
        self.address = address
        self.capacity = capacity
        self.proxy = proxy
        """The way of this node's pods to the API server."""
        self.reachable = asyncio.Event()
        """Clear while the node is cut off or frozen: its part of the agent must not use the API."""
        self.awake = asyncio.Event()
        """Clear while the node is frozen: its part of the agent must not do anything."""
        self.reachable.set()
        self.awake.set()
        self.shutting_down = False
        """No pod is admitted any more."""
        self._cut = False
        self._api = api
        self._log_port = log_port
        self._boot_id = str(uuid.uuid4())

    def cut(self) -> None:
        """Neither the node nor its pods reach the API server until :meth:`restore`."""
        self._cut = True
        self.reachable.clear()
        self.proxy.cut()

    def restore(self) -> None:
        """Undo :meth:`cut`."""
        self._cut = False
        self.proxy.restore()
        if self.awake.is_set():
            self.reachable.set()

    def freeze(self) -> None:
        """The node's part of the agent stands still until :meth:`thaw`."""
        self.awake.clear()
        self.reachable.clear()

    def thaw(self) -> None:
        """Undo :meth:`freeze`."""
        self.awake.set()
        if not self._cut:
            self.reachable.set()

    async def shut_down(self) -> None:
        """Say that it is not ready, because it will soon be off."""
        self.shutting_down = True
        await self._patch_status()

    async def request(
        self, method: str, path: str, body: Object | None = None, content_type: str = "application/json"
    ) -> Object:
        """A request in the name of this node. Waits as long as it is cut off; raises as :class:`Api` does."""
        await self.reachable.wait()
        return await self._api.request(method, path, body, content_type)

    async def run(self) -> None:
        """Register, then renew the Lease and keep the Ready condition as it should be, for ever."""
        while True:
            try:
                await self._register()
                while True:
                    await self._renew()
                    await self._ensure_ready()
                    await asyncio.sleep(_RENEW_SECONDS)
            except (ApiError, *UNREACHABLE) as error:
                # 404: the node was deleted; it registers again, as a kubelet would after a restart.
                _logger.info("node %s: %r", self.name, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _register(self) -> None:
        node: Object = {
            "metadata": {"name": self.name, "labels": self._labels()},
            "spec": {},
            "status": self._status(),
        }
        try:
            await self.request("POST", "/api/v1/nodes", node)
        except ApiError as error:
            if error.status != 409:
                raise
            await self._patch_status()
        while not await self._admit():
            await asyncio.sleep(_CONFLICT_SECONDS)

    async def _admit(self) -> bool:
        """Remove the taint that admission gives to every new node: it is ready from the start.

        False if the node controller changed it in the same moment: look again.
        """
        node = await self.request("GET", f"/api/v1/nodes/{self.name}")
        taints = node["spec"].get("taints") or []
        kept = [
            t for t in taints if t["key"] != "node.kubernetes.io/not-ready" or t["effect"] != "NoSchedule"
        ]
        if len(kept) == len(taints):
            return True
        version = node["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "spec": {"taints": kept or None}}
        try:
            await self.request("PATCH", f"/api/v1/nodes/{self.name}", body, MERGE)
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        return True

    async def _renew(self) -> None:
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {
            "holderIdentity": self.name,
            "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            await self.request("PATCH", f"{path}/{self.name}", {"spec": spec}, MERGE)
        except ApiError as error:
            if error.status != 404:
                raise
            lease: Object = {"metadata": {"name": self.name, "namespace": "kube-node-lease"}, "spec": spec}
            await self.request("POST", path, lease)

    async def _ensure_ready(self) -> None:
        """The node controller makes the condition Unknown when the Lease is late; only kubelet undoes it."""
        node = await self.request("GET", f"/api/v1/nodes/{self.name}?resourceVersion=0")
        conditions = node["status"].get("conditions") or []
        said = next((c["status"] for c in conditions if c["type"] == "Ready"), None)
        if said != ("False" if self.shutting_down else "True"):
            await self._patch_status()

    async def _patch_status(self) -> None:
        await self.request("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": self._status()}, MERGE)

    def _labels(self) -> dict[str, str]:
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        return {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": machine,
            "devcluster/node": "true",
        }

    def _status(self) -> Object:
        now = timestamp()
        well = "devcluster's node agent"
        conditions = {
            "MemoryPressure": ("False", "KubeletHasSufficientMemory", well),
            "DiskPressure": ("False", "KubeletHasNoDiskPressure", well),
            "PIDPressure": ("False", "KubeletHasSufficientPID", well),
            "Ready": ("True", "KubeletReady", well),
        }
        if self.shutting_down:
            conditions["Ready"] = ("False", "KubeletNotReady", "node is shutting down")
        return {
            "capacity": dict(self.capacity),
            "allocatable": dict(self.capacity),
            "conditions": [
                {
                    "type": kind,
                    "status": verdict,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
                for kind, (verdict, reason, message) in conditions.items()
            ],
            # No Hostname: the API server would prefer it, and it cannot be resolved.
            "addresses": [{"type": "InternalIP", "address": self.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._log_port}},
            "nodeInfo": {
                "machineID": self.name,
                "systemUUID": self.name,
                "bootID": self._boot_id,
                "kernelVersion": platform.release(),
                "osImage": "devcluster",
                "containerRuntimeVersion": "devcluster://1",
                "kubeletVersion": "v0.0.0-devcluster",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": self._labels()["kubernetes.io/arch"],
            },
        }
