"""Entry point of the group ``torchrun.handlers``: found by torchrun as ``--rdzv-backend=k8s``.

torch loads this when ``torch.distributed.elastic.rendezvous`` is imported, so it imports nothing. An
exception here would only be logged, and the user would read "backend is not registered". torch 2.4 knows no
entry points: there ``elasticjob.run`` registers the same function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def get_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The function that makes the handler; torch calls this without arguments."""
    return create_handler


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the handler from torchrun's parameters.

    Raises ValueError for wrong settings and RuntimeError for a torch that is too old.
    """
    import torch
    from torch.distributed.elastic import rendezvous

    from elasticjob.agent.torch_version import shortfall

    problem = shortfall(str(torch.__version__), hasattr(rendezvous, "RendezvousInfo"))
    if problem:
        raise RuntimeError(problem)

    from elasticjob.agent.create import make_handler

    return make_handler(params)
