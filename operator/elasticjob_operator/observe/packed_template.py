"""A job's pod template as it is kept: compressed, and opened when it is read.

As Python objects a template takes up to 25 times its bytes, for as long as the job exists, also while it is
suspended and after it has ended. A thousand jobs of one tenant would be the operator's end.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

MAX_TEMPLATE_BYTES = 128 * 1024
"""Longest template as JSON. Linux takes no longer argument or variable of a process, either."""
_OPEN = 16
"""Templates that are open at a time. A pass reads one several times."""
_FASTEST = 1


class TemplateTooLarge(ValueError):
    """It is not kept. The text says how large it is, and what is expected."""


class PackedTemplate(Mapping[str, Any]):
    """See the module. What is read of it must not be changed. Raises TemplateTooLarge."""

    __slots__ = ("_packed",)

    def __init__(self, template: Mapping[str, Any]) -> None:
        text = msgspec.json.encode(template)
        if len(text) > MAX_TEMPLATE_BYTES:
            raise TemplateTooLarge(
                f"the pod template has {len(text):,} bytes as JSON, and at most {MAX_TEMPLATE_BYTES:,} are "
                "accepted"
            )
        self._packed = zlib.compress(text, _FASTEST)

    def __getitem__(self, key: str) -> Any:
        return _opened(self._packed)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(_opened(self._packed))

    def __len__(self) -> int:
        return len(_opened(self._packed))

    def __repr__(self) -> str:
        return f"PackedTemplate({_opened(self._packed)!r})"


@functools.lru_cache(maxsize=_OPEN)
def _opened(packed: bytes) -> dict[str, Any]:
    opened: dict[str, Any] = msgspec.json.decode(zlib.decompress(packed))
    return opened
