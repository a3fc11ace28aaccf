"""What the operator's log says, and what never, through the set-up that the process has."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob_operator import logs
from elasticjob_operator.act.events import log_event
from elasticjob_operator.act.job_state import WriteState
from elasticjob_operator.act.write_failures import record_write_failure
from elasticjob_operator.logs import LogSettings
from elasticjob_operator.observe.errors import error_of
from elasticjob_operator.plan.state.model import Event, Job, JobSpec, Target

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJlLW9mLWl0"
JOB = Job("ml", "bert", "uid", 1, JobSpec())
log = logging.getLogger("elasticjob.operator")

Configured = Callable[..., io.StringIO]


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configured]:
    """Configure logging as the process does; returns what is written to. Undone afterwards."""
    names = ("elasticjob", "elasticjob_operator", "kopf", "aiohttp.access", "asyncio")
    root, loggers = logging.getLogger(), [logging.getLogger(name) for name in names]
    before = [(one, one.level, list(one.handlers), one.propagate) for one in (root, *loggers)]
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(logs, "_secrets", type(logs._secrets)(maxlen=8))

    def configure(level: str = "info", format: str = "json") -> io.StringIO:
        root.handlers = []  # pytest's own are not closed
        written = io.StringIO()
        logs.configure(LogSettings(level, format), written)
        return written

    yield configure
    logging.captureWarnings(False)
    for one, level, handlers, propagate in before:
        one.setLevel(level)
        one.handlers, one.propagate = handlers, propagate


def objects(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


def test_a_decision_is_one_object_in_the_words_of_its_event(configured: Configured) -> None:
    written = configured()
    event = Event("RoundBroken", "round 3 ended: out of memory", True, pod="bert-2-0", cause="WorkerFailed")
    log_event(JOB, event, 3)
    (line,) = objects(written)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "elasticjob.operator",
        "message": event.message,
        "job": "ml/bert",
        "round": 3,
        "pod": "bert-2-0",
        "cause": "WorkerFailed",
        "reason": "RoundBroken",
    }


def test_text_begins_with_job_and_reason(configured: Configured) -> None:
    written = configured(format="text")
    log_event(JOB, Event("FirstStep", "round 3 trains from step 100 %s"), 3)
    assert written.getvalue().endswith(
        "elasticjob.operator  [INFO    ] ml/bert: FirstStep: round 3 trains from step 100 %s\n"
    )


@pytest.mark.parametrize("format", logs.FORMATS)
def test_a_pod_forges_no_line_and_controls_no_terminal(configured: Configured, format: str) -> None:
    written = configured(format=format)
    forged = (
        "x\n[2026-01-01] elasticjob.operator [INFO] ml/other: JobComplete\r\x1b[2J\u202e\u2028\x85\x00\ud800"
    )
    log_event(JOB, Event("PodIgnored", forged, pod="bert\n0"))
    try:
        raise ValueError(forged)
    except ValueError:
        log.exception("a record of %s cannot be read", "bert\n0")
    text = written.getvalue()
    assert text.isascii()
    assert not set(map(chr, range(32))) & set(text.replace("\n", ""))
    begins = "{" if format == "json" else "["
    told = [line for line in text.splitlines() if line.startswith(begins)]
    assert len(told) == 2
    assert "\\n[2026-01-01]" in text
    if format == "json":
        assert len(text.splitlines()) == 2
        assert objects(written)[0]["pod"] == "bert\\n0"
    else:
        assert all("elasticjob.operator" in line for line in told)
        rest = [line for line in text.splitlines() if line not in told]
        assert rest[0] == "Traceback (most recent call last):"
        assert rest[-1].startswith("builtins.ValueError: 'x\\n[2026-01-01]")
        assert all(line.startswith("  ") for line in rest[1:-1])


@pytest.mark.parametrize("format", logs.FORMATS)
@pytest.mark.parametrize(
    "leak",
    [
        "Bearer {0}",
        "Authorization: Basic {0}",
        "{{'Authorization': 'Bearer {0}', 'Accept': '*'}}",
        "<CIMultiDict('authorization': '{0}')>",
        '{{"refresh_token": "{0}"}}',
        "password={0}",
        "cannot reach http://me:{0}@proxy.example:3128",
        "-----BEGIN RSA PRIVATE KEY-----\n{0}\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\n{0}",
    ],
)
def test_a_token_in_an_exception_is_left_out(configured: Configured, format: str, leak: str) -> None:
    written = configured(format=format)
    token = "c2VjcmV0LXNlY3JldA.1234567890"
    text = leak.format(token)
    error = raised(RuntimeError("later"))
    error.__cause__ = raised(ValueError(text))
    log.error("%s", text, exc_info=error, extra={"pod": text})
    log.error("%s", "x" * 3_995 + text)
    assert token not in written.getvalue()
    assert token[:6] not in written.getvalue()
    assert "[redacted]" in written.getvalue()


@pytest.mark.parametrize("text", [JWT, f"token {JWT} is not valid yet", f"[{JWT[:-20]}"])
def test_a_json_web_token_is_known_by_its_form(configured: Configured, text: str) -> None:
    written = configured()
    log.warning("%s", text)
    assert "eyJ" not in written.getvalue()


def test_the_operators_own_token_is_left_out_whatever_its_form_is(configured: Configured) -> None:
    written = configured()
    logs.hide("Bearer sha256~opaque")
    logs.hide(None)
    log.info("the server said: unknown token sha256~opaque; Bearer of news")
    assert objects(written)[0]["message"] == "the server said: unknown token [redacted]; Bearer of news"


def test_words_are_not_taken_for_secrets(configured: Configured) -> None:
    written = configured()
    said = "basic authentication is off; the authorization mode RBAC; nonce 0f1e2d3c4b5a6978; eyJ"
    log.info(said)
    assert objects(written)[0]["message"] == said


def test_an_exception_keeps_type_place_and_a_part_of_its_text(configured: Configured) -> None:
    written = configured()
    error = raised(KeyError("k" * 10_000))
    error.__cause__ = raised(OSError("it's gone"))
    log.error("a pass failed", exc_info=error)
    told = objects(written)[0]["exception"]
    assert 'builtins.OSError: "it\'s gone"' in told
    assert "It was the direct cause of:" in told
    assert told.count(f'File "{__file__}", line ') == 2
    assert told.count("in raised") == 2
    assert told.splitlines()[-1].endswith("... (9502 more characters)")
    assert len(told) < 2_000


def test_long_chains_and_deep_stacks_have_an_end(configured: Configured) -> None:
    def deep(left: int) -> None:
        if left:
            return deeper(left - 1)
        raise ExceptionGroup("several", [ValueError("one"), ValueError("two")])  # noqa: F821

    def deeper(left: int) -> None:
        return deep(left)

    written = configured()
    error: BaseException | None = None
    for _ in range(50):
        error, before = raised(ValueError("again")), error
        error.__context__ = before
    log.error("a pass failed", exc_info=error)
    try:
        deep(300)
    except Exception:
        log.exception("a pass failed")
    first, second = (line["exception"] for line in objects(written))
    assert first.count("builtins.ValueError") == 8
    assert first.startswith("(more exceptions)")
    assert second.count("\n") < 150
    assert second.count("It contains:") == 2


def test_what_cannot_be_said_is_said_otherwise(configured: Configured) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    written = configured()
    log.info("%d members", "no number")
    log.error("a pass failed", exc_info=Unspeakable())
    first, second = objects(written)
    assert first["message"] == "%d members (its arguments do not fit)"
    assert second["exception"].endswith("Unspeakable: (no text)")


def test_what_nothing_has_caught_is_logged_too(
    configured: Configured, capsys: pytest.CaptureFixture[str]
) -> None:
    written = configured()
    error = raised(ValueError(f"Bearer {JWT}"))
    sys.excepthook(type(error), error, error.__traceback__)
    thread = threading.Thread(target=lambda: int(f"Bearer {JWT}"))
    thread.start()
    thread.join()
    for line in objects(written):
        assert line["level"] == "critical"
        assert "builtins.ValueError: " in line["exception"]
    assert len(objects(written)) == 2
    assert "eyJ" not in written.getvalue() + capsys.readouterr().err


def test_libraries_say_nothing_at_debug(configured: Configured) -> None:
    """requests_oauthlib logs then what it sends for a new token."""
    written = configured("debug")
    logging.getLogger("requests_oauthlib").debug("refresh_token")
    logging.getLogger("kopf.activities").debug("of kopf")
    logging.getLogger("elasticjob_operator.observe.client").debug("our own")
    assert [line["message"] for line in objects(written)] == ["of kopf", "our own"]


def test_each_level_leaves_out_those_below(configured: Configured) -> None:
    for number, level in enumerate(logs.LEVELS):
        written = configured(level)
        for name in logs.LEVELS:
            log.log(logging.getLevelNamesMapping()[name.upper()], name)
        assert [line["message"] for line in objects(written)] == list(logs.LEVELS[number:])


def test_a_record_of_kopf_names_its_object(configured: Configured) -> None:
    written = configured()
    ref = {"kind": "ElasticJob", "namespace": "ml", "name": "bert", "uid": "u"}
    extra = {"k8s_ref": ref, "k8s_skip": True}
    logging.getLogger("kopf.objects").warning("odd", extra=extra)
    (line,) = objects(written)
    assert line["job"] == "ml/bert"
    assert line.keys() <= {"time", "level", "logger", "message", *logs.FIELDS}


def test_an_answer_of_the_api_server_is_shown_without_the_token_that_it_repeats(
    configured: Configured,
) -> None:
    written = configured()
    error = error_of("POST /pods", 403, {}, f"<html>\nBearer {JWT}\n</html>".encode())
    (event,) = record_write_failure(JOB, WriteState(), Target("bert-0-0", "created"), error, 0.0)
    log_event(JOB, event)
    for line in objects(written):
        assert (line["job"], line["pod"], line["reason"]) == ("ml/bert", "bert-0-0", "PodRejected")
        assert "[redacted]" in line["message"]
    assert "eyJ" not in written.getvalue()


def test_the_process_logs_so(tmp_path: Path) -> None:
    """Without a cluster: the first line that it writes says that it cannot log in, in one object."""
    with subprocess.Popen(
        [sys.executable, "-m", "elasticjob_operator", "--log-format=json"],
        env={**os.environ, "KUBECONFIG": str(tmp_path / "none")},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        line = json.loads(process.stderr.readline())
        process.kill()
    assert line["level"] == "error"
    assert "neither a kubeconfig nor a service account to log in with" in line["message"]
