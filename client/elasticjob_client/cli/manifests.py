"""Manifests as YAML that people read and edit: text of several lines, such as a script, is a block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from elasticjob_client.explain.terminal_text import escaped, plain

_ENDS_A_LINE = "\r\x85\u2028\u2029"
"""Besides the line feed, in YAML: a block would not keep them."""


class _Dumper(yaml.SafeDumper):
    def analyze_scalar(self, scalar: str) -> Any:
        """PyYAML makes no block of text with a tab, or with a blank at the end of a line: YAML has them."""
        found = super().analyze_scalar(scalar)
        if _is_block(scalar):
            found.allow_block = True
        return found


def _is_block(text: str) -> bool:
    """Whether a block says exactly this text."""
    return (
        "\n" in text.rstrip("\n")
        and text[0] != "\t"  # it would stand where the indentation is looked for
        and not any(letter in text for letter in _ENDS_A_LINE)
        and plain(text) == text
        and all(letter.isprintable() or letter in "\t\n" for letter in text)
    )


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if _is_block(text) else '"' if plain(text) != text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(bodies: Iterable[dict[str, Any]]) -> str:
    """Several documents, with nothing in them that a terminal acts on."""
    text: str = yaml.dump_all(bodies, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return escaped(text)
