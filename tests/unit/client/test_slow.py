"""A server that takes long for a change, and a way to it that is closed."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from elasticjob_client import NoServer, connection
from elasticjob_client.proxy import place
from tests.unit.client.clients import Ask, Begun, until
from tests.unit.client.conftest import body
from tests.unit.client.server import JOBS, Server
from tests.unit.client.test_away import Begin
from tests.unit.client.test_login import changed, written

CHANGES: list[tuple[Ask, str]] = [
    (lambda jobs: jobs.submit(body()), "`elasticjob list -n research` shows it"),
    (lambda jobs: jobs.scale("mnist", 3), "`elasticjob status mnist -n research` shows it"),
    (lambda jobs: jobs.delete("mnist"), "`elasticjob status mnist -n research` shows it"),
]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is not waited for long; a change is, for as long as it takes."""
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.3)


def changes(server: Server) -> list[str]:
    return [verb for verb, _, _ in server.asked if verb != "GET"]


@pytest.mark.usefixtures("hasty")
def test_a_change_may_take_longer_than_an_answer(server: Server, begun: Begin) -> None:
    server.answers[f"POST {JOBS}"] = body()
    server.late = ("POST",)
    call: Begun = begun(lambda jobs: jobs.submit(body()))
    until(lambda: changes(server))
    server.go.wait(0.6)
    server.go.set()
    assert call.result().name == "mnist"


@pytest.mark.parametrize(("ask", "look"), CHANGES)
def test_what_a_change_without_an_answer_has_done_is_not_known(
    server: Server, begun: Begin, monkeypatch: pytest.MonkeyPatch, ask: Ask, look: str
) -> None:
    monkeypatch.setattr(connection, "CHANGE_SECONDS", 0.3)
    server.answers[f"POST {JOBS}"] = server.answers[f"PATCH {JOBS}/mnist"] = body()
    server.late = ("POST", "PATCH", "DELETE")
    with pytest.raises(NoServer, match="Whether it took effect is not known") as refused:
        begun(ask).result()
    assert look in str(refused.value)


@pytest.mark.usefixtures("hasty")
def test_what_is_only_asked_has_no_effect(server: Server, begun: Begin) -> None:
    server.late = (JOBS,)
    with pytest.raises(NoServer, match="Is the cluster up") as refused:
        begun(lambda jobs: jobs.get("mnist")).result()
    assert "took effect" not in str(refused.value)


@pytest.fixture
def closed() -> int:
    """A port of nobody."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("where", ["kubeconfig", "environment"])
def test_a_proxy_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: Begin, closed: int, where: str
) -> None:
    url = f"http://jane:SECRET@127.0.0.1:{closed}"
    fields: dict[str, Any] = {"proxy-url": url} if where == "kubeconfig" else {}
    if not fields:
        monkeypatch.setenv("HTTPS_PROXY", url)
    server = "https://10.0.0.1:6443"
    monkeypatch.setenv("KUBECONFIG", written(tmp_path, changed(server, "cluster", **fields)))
    said = f"the API server at {server} through the proxy 127.0.0.1:{closed} does not answer"
    with pytest.raises(NoServer, match=f"{said}.*Is the proxy up") as refused:
        begun(lambda jobs: jobs.get("mnist")).result()
    assert "SECRET" not in str(refused.value)
    assert "jane" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "environment", "found"),
    [
        ("http://jane:SECRET@proxy:3128", {}, "proxy:3128"),
        ("socks5://[::1]:1080", {}, "[::1]:1080"),
        ("https://proxy", {"https_proxy": "http://other:1"}, "proxy"),
        (None, {"https_proxy": "jane:SECRET@proxy:3128"}, "proxy:3128"),
        (None, {"all_proxy": "http://proxy:3128"}, "proxy:3128"),
        (None, {"https_proxy": "http://proxy:3128", "no_proxy": "10.0.0.1"}, ""),
        (None, {"http_proxy": "http://proxy:3128"}, ""),
        (None, {"https_proxy": "http://jane:SECR/ET@proxy:3128"}, ""),
    ],
)
def test_the_place_of_a_proxy(
    monkeypatch: pytest.MonkeyPatch, url: str | None, environment: dict[str, str], found: str
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert place(url, "https://10.0.0.1:6443") == found
