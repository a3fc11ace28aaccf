"""Where the operator's credentials come from, and that a token does not grow old."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import kopf
import pytest
import yaml

from elasticjob_operator import app
from elasticjob_operator.observe.credentials import Credentials, NoCredentials, load


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config"
    write(path, "one")
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


def log_in() -> Any:
    """What kopf gets from our handler; it would pass it more."""
    return cast(Any, app.login)()


def write(path: Path, token: str) -> None:
    cluster = {"server": "https://10.0.0.1:6443/", "insecure-skip-tls-verify": True}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))


@pytest.mark.usefixtures("kubeconfig")
def test_a_kubeconfig_wins_over_the_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = load()
    assert found.server == "https://10.0.0.1:6443"
    assert found.authorization == "Bearer one"
    assert not found.verify


# shows: a token has expired, and another is on disk
# shows: a token is replaced on disk
def test_reload_reads_the_new_token(kubeconfig: Path) -> None:
    credentials = Credentials()
    assert not credentials.stale()
    write(kubeconfig, "two")
    credentials.reload()
    assert credentials.connection.authorization == "Bearer two"


def test_nothing_to_log_in_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(NoCredentials, match="neither a kubeconfig nor a service account"):
        load()


@pytest.mark.usefixtures("kubeconfig")
def test_kopf_may_try_again_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never tries equal credentials twice, and would end: the next token may be some seconds away."""
    monkeypatch.setattr(app, "_RETRY_SECONDS", 0.0)
    first, second = (asyncio.run(log_in()) for _ in range(2))
    assert first.as_http_headers() == second.as_http_headers() == {"Authorization": "Bearer one"}
    assert first != second


def test_kopf_waits_for_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(app, "_RETRY_SECONDS", 0.0)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(kopf.TemporaryError, match="neither a kubeconfig nor a service account"):
        asyncio.run(log_in())
