"""urllib3: the handler's own copy where the handler was injected into a pod, otherwise the installed one.

Injected packages come before the image's on the import path. Under its own name, our copy would hide the
image's urllib3 from the training script, which may need that version (docs/operate/pods.md).
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
