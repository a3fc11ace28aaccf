"""The operator's log: one line for each record, as text or as a JSON object.

Messages carry the words of others: a worker's error text, the API server's answer, the text of an exception.
So the formatters, and not those who log, see to it that none of them forges a line, moves a terminal's cursor
or shows a secret. An exception keeps its type, its place and a quoted part of its text. All that is
logged goes through here, also by libraries, and so do uncaught exceptions.
"""

from __future__ import annotations

import copy
import logging
import re
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, TextIO

from pythonjsonlogger.json import JsonFormatter

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
FIELDS = ("job", "round", "pod", "cause", "reason")
"""What a record may say in fields of its own: namespace/name of the job, the number of the round, the pod,
the cause, and the reason of the Event that says the same."""

_TEXT = "[%(asctime)s] %(name)-20.20s [%(levelname)-8.8s] %(message)s"
_OWN = ("elasticjob", "elasticjob_operator", "kopf")
_TALKATIVE = ("kopf", "aiohttp.access")
"""Their info is of each object and request."""
_LONGEST_MESSAGE, _LONGEST_ERROR = 4_000, 500
_MOST_FRAMES, _MOST_ERRORS = 40, 8

_SHORTEST_SECRET = 8
_secrets: deque[str] = deque(maxlen=8)
_PATTERNS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(
        r"(?i)(?<![\w-])(?:proxy-)?authorization['\"]?\s*[:=]\s*['\"]?(?:(?:bearer|basic)\s+)?[^\s'\",>]+"
    ),
    re.compile(r"(?i)\b(?:bearer|basic)\s+[\w.~+/=-]{16,}"),
    re.compile(r"\beyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?"),
    re.compile(
        r"(?i)\b(?:access_token|refresh_token|id_token|client_secret|password)['\"]?\s*[:=]\s*['\"]?[^\s'\",&}]+"
    ),
    re.compile(r"(?<=://)[^\s/@:]+:[^\s/@]+(?=@)"),
)
_HIDDEN = "[redacted]"


@dataclass(frozen=True)
class LogSettings:
    """How much is logged (one of ``LEVELS``), and as what (one of ``FORMATS``)."""

    level: str = "info"
    format: str = "text"


def about(job: str, *, round: int = 0, pod: str = "", cause: str = "", reason: str = "") -> dict[str, object]:
    """What a record is about, for ``extra``. ``job``: namespace/name. What is empty is left out."""
    found = {"job": job, "round": round, "pod": pod, "cause": str(cause), "reason": reason}
    return {name: value for name, value in found.items() if value}


def hide(secret: str | None) -> None:
    """Never log this: a token or password, or a header's value with one at its end."""
    for part in (secret or "").split():
        if len(part) >= _SHORTEST_SECRET and part not in _secrets:
            _secrets.append(part)


def redacted(text: str) -> str:
    """The text without what was hidden, and without what has the form of a token, password or private key."""
    for secret in tuple(_secrets):
        text = text.replace(secret, _HIDDEN)
    for pattern in _PATTERNS:
        text = pattern.sub(_HIDDEN, text)
    return text


def one_record(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """The text without secrets, on one line, of bounded length; what cannot be printed is escaped."""
    text = redacted(text)
    if len(text) > longest:
        text = f"{text[:longest]} ... ({len(text) - longest} more characters)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Log to standard error, or to ``stream``; also uncaught exceptions, and warnings of Python. Libraries
    other than kopf log no debug: some of them log what they send, tokens included."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if settings.format == "json" else _Text(_TEXT))
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    logging.basicConfig(level=max(level, logging.INFO), handlers=[handler], force=True)
    for name in _OWN:
        logging.getLogger(name).setLevel(level)
    if level > logging.DEBUG:
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(max(level, logging.WARNING))
    asyncio = logging.getLogger("asyncio")  # as kopf does: it is about what is handled elsewhere
    asyncio.propagate = False
    asyncio.handlers[:] = [logging.NullHandler()]
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda end: _uncaught(end.exc_type, end.exc_value, end.exc_traceback)


def _uncaught(kind: type[BaseException], error: BaseException | None, place: TracebackType | None) -> None:
    if issubclass(kind, (KeyboardInterrupt, SystemExit)) or error is None:
        return
    logging.getLogger("elasticjob.operator").critical(
        "ended by an error that nothing expected", exc_info=(kind, error, place)
    )


class _Safe(logging.Formatter):
    """What both formats have in common."""

    def formatException(self, ei: Any) -> str:
        """Type, place and a part of the text of an exception and of those that led to it."""
        return "\n".join(filter(None, _told(ei[1]))) if ei[1] is not None else ""


class _Text(_Safe):
    def format(self, record: logging.LogRecord) -> str:
        record = _prepared(record)
        head = [str(value) for name in ("job", "reason") if (value := getattr(record, name, ""))]
        record.msg = one_record(": ".join([*head, record.msg]))
        return super().format(record)


class _Json(_Safe, JsonFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return str(super().format(_prepared(record)))

    def add_fields(
        self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
    ) -> None:
        time = datetime.fromtimestamp(record.created, timezone.utc)
        log_data["time"] = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        log_data["level"] = record.levelname.lower()
        log_data["logger"] = record.name
        log_data["message"] = one_record(record.msg)
        for name in FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                log_data[name] = one_record(value) if isinstance(value, str) else value
        if exception := message_dict.get("exc_info"):
            log_data["exception"] = exception


def _prepared(record: logging.LogRecord) -> logging.LogRecord:
    """A copy whose ``msg`` is the message. No other formatter's traceback is taken over."""
    said = copy.copy(record)
    try:
        said.msg = record.getMessage()
    except Exception:  # noqa: BLE001
        said.msg = f"{record.msg} (its arguments do not fit)"
    said.args, said.exc_text = (), None
    of_kopf = getattr(record, "k8s_ref", None)
    if isinstance(of_kopf, dict) and not hasattr(said, "job"):
        said.job = f"{of_kopf.get('namespace')}/{of_kopf.get('name')}"
    return said


def _told(error: BaseException) -> Iterator[str]:
    for between, one in _chain(error):
        yield between
        yield "Traceback (most recent call last):"
        frames = traceback.extract_tb(one.__traceback__)
        if len(frames) > _MOST_FRAMES:
            yield f"  ({len(frames) - _MOST_FRAMES} frames)"
        for text in traceback.StackSummary.from_list(frames[-_MOST_FRAMES:]).format():
            yield text.rstrip("\n")
        yield f"{type(one).__module__}.{type(one).__qualname__}: {_quoted(one)}"


def _chain(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """An exception behind what led to it, each with the words between it and the one before."""
    found = [error]
    words: list[str] = []
    while True:
        last = found[-1]
        before = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if before is None or before in found:
            words.append("")
            break
        if len(found) == _MOST_ERRORS:
            words.append("(more exceptions)")
            break
        words.append("It was the direct cause of:" if last.__cause__ else "While it was handled, there was:")
        found.append(before)
    yield from zip(reversed(words), reversed(found), strict=True)
    if isinstance(error, BaseExceptionGroup):  # noqa: F821 (Python 3.11 has it)
        yield from (("It contains:", each) for each in error.exceptions[:_MOST_ERRORS])


def _quoted(error: BaseException) -> str:
    """What an exception says, within quotes: it may be a pod's text, or an answer with its headers."""
    try:
        text = redacted(str(error))
    except Exception:  # noqa: BLE001
        return "(no text)"
    more = len(text) - _LONGEST_ERROR
    return repr(text[:_LONGEST_ERROR]) + (f" ... ({more} more characters)" if more > 0 else "")
