"""What an operator says before it can begin."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import kopf
import pytest

from elasticjob_operator import app
from elasticjob_operator.observe.client import Client
from elasticjob_operator.observe.errors import ApiError, Forbidden, NotFound
from elasticjob_operator.settings import Settings


class Answers:
    """A client whose requests have these answers, one after the other."""

    def __init__(self, *answers: ApiError | None) -> None:
        self.left = list(answers)
        self.asked: set[str] = set()

    async def get(self, path: str, _query: dict[str, str]) -> None:
        self.asked.add(path)
        if answer := self.left.pop(0):
            raise answer


# shows: the operator lacks a right, or the resource definition is not there
def test_it_waits_for_the_definition_and_for_its_rights_and_says_for_which_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "_RETRY_SECONDS", 0)
    gone = NotFound("GET", 404, "NotFound", "no such page")
    refused = Forbidden("GET", 403, "Forbidden", 'User "jo" cannot list elasticjobs')
    client = Answers(gone, gone, refused, refused, None)
    with caplog.at_level(logging.WARNING, "elasticjob.operator"):
        asyncio.run(app._resource(cast("Client", client), Settings(namespaces=("team-a",))))
    assert caplog.messages == [
        "elasticjobs.elasticjob.dev is not installed; apply the resource definition in crds/",
        'not allowed to list elasticjobs.elasticjob.dev (RBAC): User "jo" cannot list elasticjobs',
    ]
    assert client.left == []
    assert client.asked == {"/apis/elasticjob.dev/v1alpha1/namespaces/team-a/elasticjobs"}


def test_kopf_copies_nothing_of_the_jobs_that_it_hears_of() -> None:
    """To tell what is new in them it would copy each whole, at every write of a status of a megabyte."""
    settings = kopf.OperatorSettings()
    app.configure(settings)
    job = kopf.Body(
        {"metadata": {"name": "mnist"}, "spec": {"replicas": 4_000}, "status": {"participants": []}}
    )
    storage = settings.persistence.diffbase_storage
    assert storage.build(body=job) == {}
    assert storage.fetch(body=job) is None


@pytest.mark.parametrize(
    ("kind", "called"), [("ADDED", "watched"), (None, "watched"), ("DELETED", "deleted")]
)
def test_kopf_keeps_only_the_metadata_of_what_it_has_handed_over(
    kind: str | None, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cycle of its own, which is frozen: a third of the objects that a tenant made stayed for hours, of
    12 MB each."""
    taken: list[str] = []
    source = SimpleNamespace(
        watched=lambda raw: taken.append(f"watched {sorted(raw)}"),
        deleted=lambda raw: taken.append(f"deleted {sorted(raw)}"),
    )
    monkeypatch.setattr(app.running, "controller", SimpleNamespace(source=source))
    body = {"apiVersion": "v1", "kind": "K", "metadata": {"name": "mnist"}, "spec": {}, "status": {}}
    raw = dict(body)
    asyncio.run(cast("Any", app.job_event)(event={"type": kind, "object": raw}))
    assert taken == [f"{called} {sorted(body)}"]
    assert raw == {"apiVersion": "v1", "kind": "K", "metadata": {"name": "mnist"}}
