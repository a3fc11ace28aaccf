"""ElasticJob: torchrun's rendezvous backend ``k8s``, whose store of truth is the Kubernetes API.

Importing this package costs milliseconds and brings in neither torch nor a client: anything that
imports torchrun imports it (torch loads the entry points of ``torchrun.handlers`` when
``torch.distributed.elastic.rendezvous`` is imported).
"""

from elasticjob.progress import report_progress

__all__ = ["report_progress"]
__version__ = "0.1.0"
