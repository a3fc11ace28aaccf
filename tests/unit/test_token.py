"""What the handler knows of its own token: when the kubelet replaces it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticjob.api.auth_errors import AuthErrors
from elasticjob.api.connection import _TokenFile, renewed_at
from elasticjob.api.errors import Forbidden, Unauthorized


def token(**claims: Any) -> str:
    """One with these claims."""
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{body}.signature"


@pytest.mark.parametrize(
    ("claims", "at"),
    [
        ({"iat": 1000, "exp": 4600}, 1000 + 0.8 * 3600),
        ({"iat": 1000, "exp": 1000 + 365 * 86400, "kubernetes.io": {"warnafter": 4607}}, 1000 + 0.8 * 3607),
        ({"iat": 1000, "exp": 1000 + 365 * 86400}, 1000 + 86400),
        ({"iat": 1000}, 0),
        ({"iat": "x", "exp": 1}, 0),
        ({"iat": 1, "exp": 2, "kubernetes.io": None}, 0),
    ],
)
def test_when_the_kubelet_replaces_a_token(claims: dict[str, Any], at: float) -> None:
    """After four fifths of the life that was asked for, or a day."""
    assert renewed_at(token(**claims)) == at


@pytest.mark.parametrize("text", ["", "opaque", "a.b.c", "a.e30.c"])
def test_what_tells_nothing_may_be_replaced_at_any_time(text: str) -> None:
    assert renewed_at(text) == 0


def test_a_refused_token_lasts_while_it_is_young_and_no_other_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(token(iat=1000, exp=4600))
    file = _TokenFile(path)
    file.headers()
    file.forget()
    monkeypatch.setattr("time.time", lambda: 2000.0)
    assert file.lasts()
    path.write_text(token(iat=1900, exp=5500))
    assert not file.lasts(), "the next one has not been tried"
    file.headers()
    assert file.lasts()
    monkeypatch.setattr("time.time", lambda: 1900 + 2881.0)
    assert not file.lasts(), "the kubelet is about to replace it"
    path.unlink()
    assert not file.lasts()


def test_the_latest_refusal_tells() -> None:
    errors, refused = AuthErrors(), Unauthorized("Unauthorized", 401)
    refused.lasting = True
    told = []
    for error in (refused, Unauthorized("Unauthorized", 401), refused, Forbidden("no", 403), refused, None):
        errors.record(error)
        told.append(errors.lasting)
    assert told == [True, False, True, False, True, False]


def test_a_refusal_that_is_never_repeated_does_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first to the last: 0 for one, also long after it."""
    errors, no, now = AuthErrors(), Forbidden("no", 403), 100.0
    monkeypatch.setattr("elasticjob.api.auth_errors.time", SimpleNamespace(monotonic=lambda: now))
    errors.record(no, "write")
    errors.record(None, "read")
    now += 60.0
    assert errors.seconds(Forbidden) == 0
    assert errors.refused(Forbidden)
    assert not errors.refused(Forbidden, "read")
    errors.record(no, "write")
    now += 5.0
    assert errors.seconds(Forbidden) == errors.seconds(Forbidden, "write") == 60
    errors.forget("read")
    assert errors.refused(Forbidden)
    errors.forget("write")
    assert not errors.refused(Forbidden)
    assert errors.seconds(Forbidden) == 0
