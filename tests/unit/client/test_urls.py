"""A kubeconfig's server may have a password in its URL: nothing that is printed has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml
from click.testing import Result

from elasticjob_client import AsyncJobs, Jobs
from elasticjob_client.urls import without_user
from tests.unit.client.server import Server, kubeconfig


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:PASSW0RD@host:1/a", "https://host:1/a"),
        ("https://host:1/a", "https://host:1/a"),
        ("https://user:PASS/W@RD@host", "https://host"),
        ("http://https://user:PASSW0RD@host", "http://https://host"),
        ("user:PASSW0RD@host", "host"),
    ],
)
def test_a_url_is_shown_without_its_user(url: str, shown: str) -> None:
    assert without_user(url) == shown


def lead_to(server: Server, url: str) -> None:
    server.kubeconfig.write_text(yaml.safe_dump(kubeconfig(url)))


@pytest.mark.parametrize("words", [("doctor",), ("doctor", "-o", "json"), ("status", "mnist"), ("list",)])
def test_no_command_prints_a_password(server: Server, run: Callable[..., Result], words: list[str]) -> None:
    lead_to(server, "http://user:PASSW0RD@127.0.0.1:1")
    found = run(*words)
    text = f"{found.output} {found.stderr} {found.exception}"
    assert "PASSW0RD" not in text
    assert "http://127.0.0.1:1" in text


def test_an_error_of_the_kubeconfig_has_none(server: Server, run: Callable[..., Result]) -> None:
    lead_to(server, "user:PASSW0RD@host")
    assert "'host': expected https://HOST:PORT" in str(run("list").exception)


async def test_neither_has_the_servers_name_in_python(server: Server) -> None:
    lead_to(server, server.url.replace("//", "//user:PASSW0RD@"))
    with Jobs() as jobs:
        assert jobs.server == server.url
        assert jobs.get("mnist").name == "mnist"
    async with AsyncJobs() as jobs_too:
        assert jobs_too.server == server.url
