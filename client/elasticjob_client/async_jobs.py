"""The jobs of a namespace for programs on asyncio: the same as ``jobs``, as far as such programs need it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from lightkube.core.async_client import AsyncClient
from lightkube.resources.core_v1 import Pod as CorePod
from lightkube.types import PatchType

from elasticjob_client import pods as pods_of
from elasticjob_client.access import configuration
from elasticjob_client.errors import NotFound, told
from elasticjob_client.jobs import FIELD_MANAGER, RESOURCE, reached, retry, waited
from elasticjob_client.pods import JOB_LABEL, Pod
from elasticjob_client.resource import ElasticJob


class AsyncJobs:
    """The ElasticJobs of one namespace; methods and errors as in ``Jobs``. Make it in a running loop."""

    def __init__(
        self, namespace: str | None = None, *, kubeconfig: str | None = None, context: str | None = None
    ) -> None:
        with told("find a cluster"):
            config = configuration(kubeconfig, context)
            self.server = config.cluster.server
            self._client = AsyncClient(config, namespace=namespace, field_manager=FIELD_MANAGER)
        self.namespace: str = self._client.namespace

    async def __aenter__(self) -> AsyncJobs:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def all(self) -> list[ElasticJob]:
        """All jobs of the namespace, by name."""
        with told(f"list ElasticJobs of namespace {self.namespace}", self.server):
            found = [ElasticJob.from_dict(one) async for one in self._client.list(RESOURCE)]
        return sorted(found, key=lambda job: job.name)

    async def get(self, name: str) -> ElasticJob:
        """The job. Raises NotFound if there is none of this name."""
        with told(f"read ElasticJob {self.namespace}/{name}", self.server):
            return ElasticJob.from_dict(dict(await self._client.get(RESOURCE, name)))

    async def pods(self, name: str) -> list[Pod]:
        """The job's pods, by slot, the older first."""
        with told(f"list the pods of ElasticJob {self.namespace}/{name}", self.server):
            found = self._client.list(CorePod, labels={JOB_LABEL: name})
            return pods_of.in_order([pods_of.of(one) async for one in found])

    async def submit(self, job: ElasticJob | dict[str, Any], *, dry_run: bool = False) -> ElasticJob:
        """Create a job."""
        body = job.to_dict() if isinstance(job, ElasticJob) else job
        name = body.get("metadata", {}).get("name", "")
        here = {**body, "metadata": {**body.get("metadata", {}), "namespace": self.namespace}}
        with told(f"create ElasticJob {self.namespace}/{name}", self.server):
            made = await self._client.create(RESOURCE(**here), dry_run=dry_run)
        return ElasticJob.from_dict(dict(made))

    async def patch(self, name: str, **spec: Any) -> ElasticJob:
        """Change fields of the spec, by the names of the definition: ``patch("mnist", replicas=4)``."""
        with told(f"change ElasticJob {self.namespace}/{name}", self.server):
            body = {"spec": spec}
            changed = await self._client.patch(RESOURCE, name, body, patch_type=PatchType.MERGE)
        return ElasticJob.from_dict(dict(changed))

    async def delete(self, name: str) -> None:
        """Delete the job, and with it its pods."""
        with told(f"delete ElasticJob {self.namespace}/{name}", self.server):
            await self._client.delete(RESOURCE, name)

    async def watch(self, name: str) -> AsyncIterator[ElasticJob]:
        """The job now, and after each change, until it has ended. Raises NotFound when it is deleted."""
        first = await self.get(name)
        yield first
        if first.ended:
            return
        with told(f"watch ElasticJob {self.namespace}/{name}", self.server):
            changes = self._client.watch(
                RESOURCE,
                fields={"metadata.name": name},
                resource_version=first.metadata.resource_version,
                on_error=retry,
            )
            async for kind, found in changes:
                if kind == "DELETED":
                    raise NotFound(f"ElasticJob {self.namespace}/{name} has been deleted")
                job = ElasticJob.from_dict(dict(found))
                yield job
                if job.ended:
                    return

    async def wait(
        self,
        name: str,
        until: str | Callable[[ElasticJob], bool] = "Complete",
        timeout_seconds: float | None = None,
    ) -> ElasticJob:
        """Wait for a condition of this type, or until a function says so.

        Raises JobFailed if the job ends without it, TimeoutError with its state when the time is over.
        """
        try:
            return await asyncio.wait_for(self._reached(name, until), timeout_seconds)
        except asyncio.TimeoutError:
            raise TimeoutError(waited(await self.get(name), until)) from None

    async def _reached(self, name: str, until: str | Callable[[ElasticJob], bool]) -> ElasticJob:
        async for job in self.watch(name):
            if reached(job, until):
                return job
        raise NotFound(f"ElasticJob {self.namespace}/{name} is gone")
