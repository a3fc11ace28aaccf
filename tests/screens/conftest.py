"""A job that trains, for what is shown of it."""

from __future__ import annotations

from tests.e2e.conftest import job

__all__ = ["job"]
