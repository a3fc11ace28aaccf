# Generated from _async/launching.py by `python client/unasync.py`: do not edit.
"""A job and the ConfigMap of its code: created one after the other, and what is done where that fails.

Where it is not known whether a request has been carried out, nothing is deleted, since a job that is created
late would have no code: a notice says what may be left.
"""

from __future__ import annotations

from typing import Any

import msgspec
from lightkube.resources.core_v1 import ConfigMap
from lightkube.types import PatchType

from elasticjob.contract.names import API_VERSION, KIND
from elasticjob_client._sync.requests import Requests
from elasticjob_client.decoding import ready
from elasticjob_client.errors import (
    AlreadyThere,
    ClientError,
    NoServer,
    Unfinished,
    Unreadable,
    translated_errors,
)
from elasticjob_client.manifest import CODE_LABEL
from elasticjob_client.resource import ElasticJob


def launch(requests: Requests, job: ElasticJob, code: dict[str, Any]) -> ElasticJob:
    """Create both. The ConfigMap goes when the job goes."""
    requests.submit(job, dry_run=True)
    of = _Code(requests, job.name, code)
    try:
        of.put()
    except BaseException as error:
        if _is_unknown(error):
            of.tell(f"ConfigMap {of.name} may have been created, and job {job.name} was not", error)
        raise
    try:
        made = requests.submit(job)
    except BaseException as error:
        if _is_unknown(error):
            of.tell(f"whether job {job.name} was created is not known; ConfigMap {of.name} stays", error)
        else:
            of.take_back()
        raise
    try:
        of.give_to(made)
    except BaseException as error:
        of.tell(f"job {made.name} was created, but ConfigMap {of.name} may outlast it", error)
        if not isinstance(error, ClientError):
            raise
    return made


def _is_unknown(error: BaseException) -> bool:
    """Whether what was asked may have been done, or may be done yet."""
    return not isinstance(error, ClientError) or isinstance(error, (NoServer, Unreadable))


class _Code:
    """The ConfigMap ``name``."""

    def __init__(self, requests: Requests, job: str, body: dict[str, Any]) -> None:
        self.name = str(body["metadata"]["name"])
        self._requests, self._job, self._body = requests, job, body

    def tell(self, what: str, error: BaseException) -> None:
        """Say in a notice what is left, unless the caller says so itself."""
        if isinstance(error, Unfinished):
            return
        why = f" ({error})" if isinstance(error, ClientError) else ""
        delete = f"kubectl delete configmap {self.name} -n {self._requests.namespace} --ignore-not-found"
        self._requests.notice(f"{what}; without the job, delete it with `{delete}`{why}")

    def put(self) -> None:
        """Create it, or replace the one that an earlier job of this name has left; no other is replaced."""
        namespace, server = self._requests.namespace, self._requests.server
        here = {**self._body, "metadata": {**self._body["metadata"], "namespace": namespace}}
        body = msgspec.convert(here, ready(ConfigMap))
        try:
            with translated_errors(f"create ConfigMap {namespace}/{self.name}", server):
                self._requests.client.create(body)
        except AlreadyThere:
            with translated_errors(f"replace ConfigMap {namespace}/{self.name}", server):
                found = self._requests.client.get(ready(ConfigMap), self.name, namespace=namespace)
                labels = found.metadata.labels if found.metadata else None
                if (labels or {}).get(CODE_LABEL) != self._job:
                    raise
                self._requests.client.replace(body)

    def give_to(self, made: ElasticJob) -> None:
        """Make the job its owner: it goes when the job goes."""
        namespace = self._requests.namespace
        owner = {"apiVersion": API_VERSION, "kind": KIND, "name": made.name, "uid": made.metadata.uid}
        body = {"metadata": {"ownerReferences": [owner]}}
        with translated_errors(f"change ConfigMap {namespace}/{self.name}", self._requests.server):
            self._requests.client.patch(
                ready(ConfigMap), self.name, body, namespace=namespace, patch_type=PatchType.MERGE
            )

    def take_back(self) -> None:
        """Delete it: the job was refused."""
        namespace = self._requests.namespace
        try:
            with translated_errors(f"delete ConfigMap {namespace}/{self.name}", self._requests.server):
                self._requests.client.delete(ConfigMap, self.name, namespace=namespace)
        except BaseException as error:
            self.tell(f"ConfigMap {self.name} of job {self._job} was not deleted", error)
            if not isinstance(error, ClientError):
                raise
