"""torchrun's rendezvous backend ``k8s``: the state of each round is in the Kubernetes API.

``contract`` has the records in Leases, ``rounds`` the round kernel, ``core`` a member's side of the protocol;
all three are pure. ``handler`` is torch's RendezvousHandler, and most other modules are its threads.

Importing this package costs milliseconds and brings in neither torch nor a client: anything that
imports torchrun imports it (torch loads the entry points of ``torchrun.handlers`` when
``torch.distributed.elastic.rendezvous`` is imported).
"""

from elasticjob.worker.progress import report_progress
from elasticjob.worker.stopping import should_stop, stop_here

__all__ = ["report_progress", "should_stop", "stop_here"]
__version__ = "0.1.0"
