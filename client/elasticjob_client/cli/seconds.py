"""Durations on the command line."""

from __future__ import annotations

from typing import Any

import click

_MOST = 1e9
"""More than any clock has to count, and less than what it cannot."""


class Seconds(click.FloatRange):
    """A number of seconds, which "nan" and "inf" are not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if not found <= _MOST:
            self.fail(f"{value!r} is no number of seconds: expected at most {_MOST:,.0f}", param, ctx)
        return found
