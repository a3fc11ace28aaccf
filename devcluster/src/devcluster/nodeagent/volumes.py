"""The volumes of a pod: their contents as directories of this machine, and the mounts of a container.

The directories are bound into the container's own mount namespace.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from devcluster.nodeagent.api import UNREACHABLE, ApiError, Object
from devcluster.nodeagent.containers import Runtime
from devcluster.nodeagent.env import ConfigError, PodFacts, Sources, field_value, referenced
from devcluster.nodeagent.mounts import Mount

_TOKEN_SECONDS = 3607
"""What a token lives if the volume does not say."""

Request = Callable[[str, str, Object | None], Awaitable[Object]]
"""Method, path and body of a request to the API server, made in the name of the pod's node."""


class Waits(Exception):
    """Something that the pod needs is not there yet (kubelet: FailedMount; the pod stays Pending)."""


class PodVolumes:
    """Makes and keeps one pod's volumes below ``directory``."""

    def __init__(
        self,
        request: Request,
        runtime: Runtime,
        directory: Path,
        memory: Path,
        token_seconds: float | None = None,
    ) -> None:
        """``memory``: a directory on a tmpfs, for emptyDirs with medium Memory. ``token_seconds``: after so
        long a token is replaced by a new one, else when four fifths of its life are over."""
        self._request = request
        self._token_seconds = token_seconds
        self._runtime = runtime
        self._directory = directory
        self._memory = memory
        self._paths: dict[str, Path] = {}
        self._refreshing: list[asyncio.Task[None]] = []

    async def sources(self, containers: Iterable[Object], namespace: str) -> Sources:
        """The ConfigMaps and Secrets that the containers' environment refers to."""
        config_map_names, secret_names = referenced(containers)
        config_maps = {name: await self._config_map(namespace, name) for name in config_map_names}
        secrets = {name: await self._secret(namespace, name) for name in secret_names}
        return Sources(
            {name: data for name, data in config_maps.items() if data is not None},
            {
                name: {key: value.decode(errors="replace") for key, value in data.items()}
                for name, data in secrets.items()
                if data is not None
            },
            complete=None not in (*config_maps.values(), *secrets.values()),
        )

    async def prepare(self, facts: PodFacts) -> None:
        """Make every volume that is not there yet.

        :raises Waits: a ConfigMap or Secret is missing; try again
        """
        for volume in facts.pod["spec"].get("volumes") or []:
            if volume["name"] not in self._paths:
                self._paths[volume["name"]] = await self._make(volume, facts)

    async def _make(self, volume: Object, facts: PodFacts) -> Path:
        if "hostPath" in volume:
            return _host_path(volume["hostPath"])
        in_memory = (volume.get("emptyDir") or {}).get("medium") == "Memory"
        name: str = volume["name"]
        path = (self._memory if in_memory else self._directory) / name
        path.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume:
            path.chmod(0o777)
        elif "projected" in volume:
            for source in volume["projected"].get("sources") or []:
                await self._fill(path, source, facts)
        else:
            await self._fill(path, volume, facts)
        return path

    async def _fill(self, path: Path, source: Object, facts: PodFacts) -> None:
        """Write the files of one volume source, or of one source of a projected volume."""
        namespace = facts.pod["metadata"]["namespace"]
        if token := source.get("serviceAccountToken"):
            await self._token(path / token["path"], token, facts)
        elif projection := source.get("downwardAPI"):
            for item in projection.get("items") or []:
                _write(path / item["path"], _downward(item, facts).encode())
        elif projection := source.get("configMap"):
            texts = await self._config_map(namespace, projection["name"])
            data = None if texts is None else {key: text.encode() for key, text in texts.items()}
            _write_items(path, f"configmap {projection['name']!r}", projection, data)
        elif projection := source.get("secret"):
            name = projection.get("secretName") or projection["name"]
            _write_items(path, f"secret {name!r}", projection, await self._secret(namespace, name))
        else:
            kind = ", ".join(sorted(set(source) - {"name"}))
            raise Waits(f"volumes of kind {kind} are not supported by devcluster's node agent")

    async def _token(self, file: Path, projection: Object, facts: PodFacts) -> None:
        """Write a token bound to the pod, and new ones while the pod is there."""
        metadata, spec = facts.pod["metadata"], facts.pod["spec"]
        account = spec.get("serviceAccountName", "default")
        seconds = projection.get("expirationSeconds", _TOKEN_SECONDS)
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        audience = projection.get("audience")
        body: Object = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "expirationSeconds": seconds,
                "boundObjectRef": bound,
                "audiences": [audience] if audience else [],
            },
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"

        async def renew() -> None:
            try:
                answer = await self._request("POST", path, body)
            except ApiError as error:
                raise Waits(f"token of service account {account!r}: {error}") from error
            _write(file, answer["status"]["token"].encode())

        async def keep_fresh() -> None:
            delay = due = self._token_seconds or 0.8 * seconds
            while True:
                await asyncio.sleep(delay)
                try:
                    await renew()
                    delay = due
                except (Waits, *UNREACHABLE):
                    delay = min(due, 5.0)

        await renew()
        self._refreshing.append(asyncio.create_task(keep_fresh()))

    async def _config_map(self, namespace: str, name: str) -> dict[str, str] | None:
        found = await self._get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        return None if found is None else found.get("data") or {}

    async def _secret(self, namespace: str, name: str) -> dict[str, bytes] | None:
        found = await self._get(f"/api/v1/namespaces/{namespace}/secrets/{name}")
        return (
            None if found is None else {k: base64.b64decode(v) for k, v in (found.get("data") or {}).items()}
        )

    async def _get(self, path: str) -> Object | None:
        try:
            return await self._request("GET", path, None)
        except ApiError as error:
            if error.status == 404:
                return None
            raise Waits(str(error)) from error

    def place(self, container: Object) -> list[Mount]:
        """Where a container finds its volumes."""
        return [
            Mount(str(self._source(entry)), entry["mountPath"], bool(entry.get("readOnly")))
            for entry in container.get("volumeMounts") or []
        ]

    def _source(self, entry: Object) -> Path:
        path: Path = self._paths[entry["name"]] / entry.get("subPath", "")
        if not path.exists():
            path.mkdir(parents=True)
        return path

    def remove(self) -> None:
        """Delete what was made. hostPath volumes stay."""
        for task in self._refreshing:
            task.cancel()
        for directory in (self._directory, self._memory):
            shutil.rmtree(directory, ignore_errors=True)


def _host_path(source: Object) -> Path:
    path = Path(source["path"])
    if source.get("type") == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        raise Waits(f"hostPath {path} does not exist on this machine")
    return path


def _downward(item: Object, facts: PodFacts) -> str:
    try:
        if "fieldRef" not in item:
            raise ConfigError(f"the downward API of {item['path']!r} is not supported")
        return field_value(item["fieldRef"]["fieldPath"], facts)
    except ConfigError as error:
        raise Waits(str(error)) from error


def _write_items(path: Path, what: str, projection: Object, data: dict[str, bytes] | None) -> None:
    if data is None:
        if projection.get("optional"):
            return
        raise Waits(f"{what} not found")
    items = projection.get("items")
    names = {item["key"]: item["path"] for item in items} if items else {key: key for key in data}
    for key, name in names.items():
        if key in data:
            _write(path / name, data[key])
        elif not projection.get("optional"):
            raise Waits(f"{what} has no key {key!r}")


def _write(file: Path, content: bytes) -> None:
    """Replace ``file`` in one step: a reader sees the old or the new content."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"..{file.name}.new")
    fresh.write_bytes(content)
    fresh.chmod(0o644)
    os.replace(fresh, file)
