"""Logs what happens in the training script itself, such as saves and resumes of checkpoints.

Python shows nothing below a warning unless the script configures logging, and few scripts do: a job whose
training is finished already would end without a message. So an INFO message that no handler would get goes to
stderr. If a script configures logging, that alone decides what is shown.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class ScriptLog(_Adapter):
    """The logger of this name; its INFO messages are shown even if logging is not configured."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **more: Any) -> None:
        """Log as ``Logger.log`` does."""
        if level < logging.INFO or self.isEnabledFor(level) or self.hasHandlers():
            super().log(level, msg, *args, **more)
        else:
            print(f"{self.logger.name}: {str(msg) % args if args else msg}", file=sys.stderr, flush=True)
