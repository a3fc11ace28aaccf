"""Whether the script ends with exit code 0, known to what runs at its exit.

Python calls what is registered with ``atexit`` before it ends with the code of a SystemExit, and does not
give it the code. So the main thread's outermost frame is traced, from the moment when the workers are asked
to stop: a SystemExit that leaves it has the code. Before that nothing is traced, and after that only the save
is slower, by a fraction of a microsecond for each call of a function."""

from __future__ import annotations

import opcode
import sys
import threading
from types import FrameType
from typing import Any


class ScriptEnd:
    """Watches from now on how the script ends, beside a debugger that is written in Python. If another one
    traces (coverage's in C), or outside of the main thread, it knows only exceptions that Python reports."""

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self._code: object = None
        self._debugger: Any = None
        if threading.current_thread() is not threading.main_thread():
            return
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
        self._debugger = frame.f_trace
        frame.f_trace = self._trace
        if sys.gettrace() is None:
            frame.f_trace_lines = False
            sys.settrace(lambda *_: None)

    def is_good(self) -> bool:
        """Whether the script ends with 0; call it at its exit."""
        if getattr(sys, "last_value", None) is not None:
            return False
        return self._code is None or (isinstance(self._code, int) and self._code == 0)

    def _trace(self, frame: FrameType, event: str, found: Any) -> Any:
        if event == "exception":
            self._raised = found[1]
        elif event == "return" and isinstance(self._raised, SystemExit) and not _returns(frame):
            self._code = self._raised.code
        if self._debugger is not None:
            self._debugger = self._debugger(frame, event, found) or self._debugger
        return self._trace


def _returns(frame: FrameType) -> bool:
    """Whether this frame ends by a return, and not by an exception."""
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")
