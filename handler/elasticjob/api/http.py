"""urllib3: a copy of the handler's own where it was injected into a pod, else the one that is installed.

What is injected comes before the image's packages on the import path: under its own name it would hide the
image's urllib3 from the training script and its libraries, whose version may matter (docs/operate/pods.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import urllib3
else:
    try:
        from elasticjob._vendor import urllib3
    except ModuleNotFoundError:
        import urllib3

__all__ = ["urllib3"]
