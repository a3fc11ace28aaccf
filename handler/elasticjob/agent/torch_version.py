"""Differences between versions of torch, each as a function of the version, with its reason.

Pure. It does not import torch, so that its message appears even on a torch that is too old for the handler.
"""

from __future__ import annotations

import re

NEEDED = "2.4"


def release(version: str) -> tuple[int, int]:
    """Major and minor of a version such as ``2.4.1+cu121`` or ``2.10.0a0+git1234``; (0, 0) for other text."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def shortfall(version: str, has_rendezvous_info: bool) -> str:
    """Why the backend can't run on this torch, in one sentence; "" if it can.

    ``RendezvousInfo`` came with 2.4 (pytorch#125743); before that ``next_rendezvous`` returned a tuple. Its
    presence counts, not the number: there are builds of one's own that are numbered by other rules.
    """
    if has_rendezvous_info:
        return ""
    return (
        f"the rendezvous backend k8s needs torch {NEEDED} or later, but found torch {version}, "
        "which has no torch.distributed.elastic.rendezvous.RendezvousInfo: install a later torch in the "
        "training image"
    )


def workers_may_share_agent_store(version: str) -> bool:
    """Whether workers can use a store that an agent serves (``use_agent_store``).

    Those of 2.4 and 2.5 put ``TORCHELASTIC_RESTART_COUNT`` before every key in it, which differs between
    agents as soon as one of them has restarted on its own, so that they would wait for each other for ever
    (pytorch#135712; 2.6 has no such prefix any more, #135957).
    """
    return release(version) >= (2, 6)
