"""torchrun for a torch that has no entry points for handlers: ``python -m elasticjob.run train.py``.

torch 2.4 has none (they came with 2.5, pytorch#132633), so that its own torchrun says "The rendezvous backend
'k8s' is not registered". Everything else is torchrun: its flags, ``PET_*``, its exit codes. On later
versions it works in the same way: torch lets the same function be registered twice.
"""

from __future__ import annotations

import sys

from elasticjob.contract import names
from elasticjob.entry import create_handler
from elasticjob.warm import early_start


def main(args: list[str] | None = None) -> None:
    """Register the backend, then run torchrun with these arguments (default: the command line's)."""
    early_start.begin(sys.orig_argv)
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.run import main as torchrun

    rendezvous_handler_registry.register(names.BACKEND, create_handler)
    torchrun(args)


if __name__ == "__main__":
    main()
