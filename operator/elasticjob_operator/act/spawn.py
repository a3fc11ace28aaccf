"""How writers begin what may outlive a pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]
"""Begins a task of this name."""
