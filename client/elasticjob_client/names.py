"""What can be the name of an object of Kubernetes. Pure; the command line checks its words with it."""

from __future__ import annotations

import re
from typing import Any

from elasticjob.contract.names import MAX_JOB_NAME_LENGTH

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_WITHOUT_DOTS = {"a namespace": 63, "a new job": MAX_JOB_NAME_LENGTH}
"""What has a single label as its name, and how long that may be."""
_LONGEST = 253


def is_name(of: str, name: Any) -> bool:
    """Whether ``name`` can be that of ``of``: "a namespace", "a new job", "a job" that is there, "a pod"."""
    return (
        isinstance(name, str)
        and len(name) <= _WITHOUT_DOTS.get(of, _LONGEST)
        and _NAME.fullmatch(name) is not None
        and ("." not in name or of not in _WITHOUT_DOTS)
    )


def check_name(of: str, name: Any) -> None:
    """Raises ValueError with what is expected if it cannot."""
    if not is_name(of, name):
        letters = "letters, digits or '-'" if of in _WITHOUT_DOTS else "letters, digits, '-' or '.'"
        raise ValueError(
            f"{name!r} cannot be the name of {of}: expected 1 to {_WITHOUT_DOTS.get(of, _LONGEST)} "
            f"lower-case {letters}, beginning and ending with a letter or digit"
        )
