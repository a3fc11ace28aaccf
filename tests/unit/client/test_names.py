"""What cannot be a name is refused before anything is asked: an empty name would ask for all objects."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from elasticjob_client import AsyncJobs, Jobs, Pod
from tests.unit.client.server import Server

WRONG: list[Any] = ["", None, "A", "a/b", "../x", "-a", "a-", "a..b", "a b", "a\n", 5, "a" * 254]
CALLS: list[Callable[[Any, Any], Any]] = [
    lambda jobs, name: jobs.raw(name),
    lambda jobs, name: jobs.get(name),
    lambda jobs, name: jobs.pods(name),
    lambda jobs, name: jobs.events(name),
    lambda jobs, name: jobs.tail(Pod(name=name), 5),
    lambda jobs, name: jobs.scale(name, 2),
    lambda jobs, name: jobs.suspend(name),
    lambda jobs, name: jobs.resume(name),
    lambda jobs, name: jobs.delete(name),
    lambda jobs, name: jobs.kill(Pod(name=name)),
    lambda jobs, name: jobs.wait(name),
    lambda jobs, name: jobs.submit({"metadata": {"name": name}}),
]


async def test_what_cannot_be_a_name_is_asked_of_no_server(server: Server) -> None:
    said = r"cannot be the name of a (job|pod): expected 1 to 253"
    with Jobs() as jobs:
        for call, name in product(CALLS, WRONG):
            with pytest.raises(ValueError, match=said):
                call(jobs, name)
    async with AsyncJobs() as jobs_too:
        for call, name in product(CALLS, WRONG):
            with pytest.raises(ValueError, match=said):
                await call(jobs_too, name)
    assert not server.asked


@pytest.mark.parametrize("call", [lambda jobs, name: jobs.logs(name), lambda jobs, name: jobs.watch(name)])
async def test_nor_of_what_is_read_bit_by_bit(server: Server, call: Callable[[Any, Any], Any]) -> None:
    with Jobs() as jobs, pytest.raises(ValueError, match="'' cannot be the name of a job"):
        list(call(jobs, ""))
    async with AsyncJobs() as jobs_too:
        with pytest.raises(ValueError, match="'' cannot be the name of a job"):
            _ = [one async for one in call(jobs_too, "")]
    assert not server.asked


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("namespace", ["", "A_B", "..", "a/b", "a.b", "a" * 64])
async def test_a_namespace_is_a_label(namespace: str) -> None:
    for kind in (Jobs, AsyncJobs):
        with pytest.raises(ValueError, match="cannot be the name of a namespace: expected 1 to 63"):
            kind(namespace)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("body", [{}, {"metadata": None}, {"metadata": {}}, {"spec": {}}, [], None])
def test_a_manifest_without_a_name(body: Any) -> None:
    with (
        Jobs() as jobs,
        pytest.raises(ValueError, match=r"expected an ElasticJob with metadata\.name, found"),
    ):
        jobs.submit(body)


@pytest.mark.usefixtures("server")
def test_a_manifest_without_a_name_is_not_shown() -> None:
    bodies: list[Any] = [{"spec": {"env": "SECRET"}}, ["SECRET"]]
    for body in bodies:
        with Jobs() as jobs, pytest.raises(ValueError, match=r"metadata\.name") as refused:
            jobs.submit(body)
        assert "SECRET" not in str(refused.value)


def test_names_with_dots_and_names_that_the_server_makes_up(server: Server) -> None:
    server.answers["POST /apis/elasticjob.dev/v1alpha1/namespaces/research/elasticjobs"] = {
        "metadata": {"name": "mnist-x7"}
    }
    with Jobs() as jobs:
        assert jobs.pods("mnist.v2")
        assert jobs.submit({"metadata": {"generateName": "mnist-"}}).name == "mnist-x7"
