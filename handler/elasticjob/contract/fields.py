"""Records as JSON: written compactly, and read with the type and the range of each field checked.

Everything in a Lease is untrusted input: each ``parse`` of a record checks size, types and ranges, and
raises :class:`RecordError` with a sentence, never anything else. Unknown fields are ignored and an
unknown phase is kept as it is, so that old handlers meet new operators.

Records are written as compact JSON with keys in a fixed order, so that equal records are equal texts
and a repeated write is no change.
"""

from __future__ import annotations

import json

from elasticjob.contract.ranks import Ranks, parse_ranks
from elasticjob.contract.text import are_tokens, is_token

RECORD_VERSION = 1
MAX_SMALL_RECORD_BYTES = 4_096
"""The limit for a record without lists and without text from a worker."""
MAX_LOCAL_WORLD_SIZE = 99_999
"""The most workers of one agent."""
MAX_INT32 = 2**31 - 1
"""The largest rank, exit code or number of seconds: an int32 in the resource's schema."""
MAX_ID = 64
"""Characters of an id, a nonce or a UID."""
MAX_NUMBER = 2**53 - 1
"""The largest whole number that every reader of JSON keeps exactly."""
MAX_ROUND = 2**52
"""The highest number of a round that is read: none that a job can have, and others can follow it."""


class RecordError(ValueError):
    """A record that can't be used. The message names what was found and what was expected."""


def dump_fields(fields: dict[str, object]) -> str:
    """The fields as one line of JSON."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


class Fields:
    """Typed access to the fields of one JSON object."""

    def __init__(self, what: str, fields: dict[str, object]) -> None:
        self.what = what
        self.fields = fields

    @staticmethod
    def read(what: str, text: str, limit: int) -> Fields:
        """The fields of an object of at most ``limit`` bytes. Raises RecordError."""
        if len(text.encode("utf-8", "surrogatepass")) > limit:
            raise RecordError(f"{what}: longer than {limit} bytes")
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{what}: not JSON ({error})") from None
        if not isinstance(fields, dict):
            raise RecordError(f"{what}: expected a JSON object, found {type(fields).__name__}")
        return Fields(what, fields)

    def _wrong(self, key: str, expected: str) -> RecordError:
        found = json.dumps(self.fields.get(key))[:80]
        return RecordError(f"{self.what}: {key} is {found}, expected {expected}")

    # Each returns the field's value, or raises RecordError with what was found and what was expected.

    def string(self, key: str, default: str | None = None) -> str:
        value = self.fields.get(key, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self._wrong(key, "a string")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise self._wrong(key, "valid UTF-8 text") from None
        return value

    def token(self, key: str, longest: int, default: str | None = None) -> str:
        value = self.string(key, default)
        if value and not is_token(value, longest):
            raise self._wrong(key, f"at most {longest} printable ASCII characters")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        value = self.fields.get(key, [])
        if not isinstance(value, list) or not are_tokens(value, MAX_ID):
            raise self._wrong(key, f"a list of ids of at most {MAX_ID} printable ASCII characters")
        return tuple(value)

    def ranks(self, key: str) -> Ranks:
        try:
            return parse_ranks(self.string(key, ""))
        except ValueError as error:
            if isinstance(error, RecordError):
                raise
            raise self._wrong(key, f"ranges of ranks ({error})") from None

    def boolean(self, key: str) -> bool:
        value = self.fields.get(key, False)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def integer(self, key: str, minimum: int, default: int | None = None, maximum: int = MAX_NUMBER) -> int:
        value = self.fields.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self._wrong(key, f"a whole number from {minimum} to {maximum}")
        return value

    def lenient_integer(self, key: str, minimum: int, maximum: int) -> int | None:
        """An optional number; an invalid one reads as None."""
        try:
            return self.optional_integer(key, minimum, maximum)
        except RecordError:
            return None

    def inner(self, key: str) -> Fields:
        value = self.fields.get(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return Fields(f"{self.what}: {key}", value)

    def optional_integer(self, key: str, minimum: int, maximum: int = MAX_NUMBER) -> int | None:
        if self.fields.get(key) is None:
            return None
        return self.integer(key, minimum, None, maximum)
