"""A record: a frozen dataclass whose fields say, once, how they stand in JSON.

A field's type has its ``Codec`` (``Annotated[int, number(1)]``); a plain ``str`` or ``bool`` needs none. Its
name in JSON is its own in camel case, unless the codec has another. A field without a default is required.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from elasticjob.contract.fields import (
    MAX_ID,
    MAX_NUMBER,
    MAX_SMALL_RECORD_BYTES,
    RECORD_VERSION,
    Fields,
    dump_fields,
)
from elasticjob.contract.ranks import dump_ranks

_CAPITALS = {"uid": "UID", "id": "ID", "ids": "IDs"}
_R = TypeVar("_R", bound="Record")


def json_name(name: str) -> str:
    """The name of a field in camel case."""
    first, *rest = name.split("_")
    return first + "".join(_CAPITALS.get(word, word.title()) for word in rest)


@dataclass(frozen=True)
class Codec:
    """How a field is read, from its name and its default (None: it is required), and how it is written."""

    read: Callable[[Fields, str, Any], Any]
    write: Callable[[Any], object] = lambda value: value
    key: str = ""
    """Its name in JSON; "": its own in camel case."""
    last: bool = False
    """It is written after the others."""
    omitted: bool = False
    """It is written after the others, and not at all while it is False or empty."""


def text(longest: int | None = None, last: bool = False) -> Codec:
    """Any text; what is longer is cut off."""
    return Codec(
        lambda found, key, default: found.string(key, default)[:longest],
        lambda text: text[:longest],
        last=last,
    )


def token(longest: int, key: str = "") -> Codec:
    """Printable ASCII characters."""
    return Codec(lambda found, key, default: found.token(key, longest, default), key=key)


def number(least: int, most: int = MAX_NUMBER, key: str = "") -> Codec:
    """A whole number."""
    return Codec(lambda found, key, default: found.integer(key, least, default, most), key=key)


def optional_number(least: int, most: int = MAX_NUMBER) -> Codec:
    """A whole number, or null."""
    return Codec(lambda found, key, _: found.optional_integer(key, least, most))


FLAG = Codec(lambda found, key, _: found.boolean(key))
RANKS = Codec(lambda found, key, _: found.ranks(key), dump_ranks)
IDS = Codec(lambda found, key, _: found.strings(key), list)
Nonce = Annotated[str, token(MAX_ID)]
_PLAIN = {str: text(), bool: FLAG}


def omitted(codec: Codec) -> Codec:
    """The codec of a field that is left out while it is False or empty."""
    return replace(codec, omitted=True)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What stands in an annotation of a Lease, as one line of JSON."""

    _what: ClassVar[str]
    _most_bytes: ClassVar[int]
    _hints: ClassVar[dict[str, Any]]
    version: Annotated[int, Codec(lambda found, key, _: found.integer(key, 1))] = RECORD_VERSION

    def __init_subclass__(cls, *, what: str, most_bytes: int = MAX_SMALL_RECORD_BYTES) -> None:
        """``what``: what errors call it."""
        cls._what, cls._most_bytes = what, most_bytes
        cls._hints = get_type_hints(cls, include_extras=True)  # half a millisecond, which no round waits for

    def dump(self) -> str:
        """The record as one line of JSON."""
        return dump_fields(
            {
                key: codec.write(value)
                for name, key, codec, _ in _layout(type(self))
                if (value := getattr(self, name)) or not codec.omitted
            }
        )

    @classmethod
    def parse(cls: type[_R], text: str) -> _R:
        """Read a record. Raises RecordError."""
        found = Fields.read(cls._what, text, cls._most_bytes)
        record = cls(**{name: codec.read(found, key, default) for name, key, codec, default in _layout(cls)})
        record.check()
        return record

    def check(self) -> None:
        """Raise RecordError if the fields do not go together."""


_LAYOUTS: dict[type[Record], list[tuple[str, str, Codec, Any]]] = {}


def _layout(record: type[Record]) -> list[tuple[str, str, Codec, Any]]:
    """Name, name in JSON, codec and default of each field, in the order in which they are written."""
    if record in _LAYOUTS:
        return _LAYOUTS[record]
    found = []
    for one in fields(record):
        hint = record._hints[one.name]
        codec: Codec = hint.__metadata__[0] if hasattr(hint, "__metadata__") else _PLAIN[hint]
        default = None if one.default is MISSING else one.default
        found.append((one.name, codec.key or json_name(one.name), codec, default))
    return _LAYOUTS.setdefault(record, sorted(found, key=lambda row: row[2].last or row[2].omitted))
