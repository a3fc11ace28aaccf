"""Data of elastic training: the same global batches in the same order at every world size, and a position
that is one entry of the state.

``GlobalBatches`` is for data sets with an index, ``Blocks`` for those that are read in blocks, and
``per_rank`` for loaders whose state differs from rank to rank. docs/use/data.md says what holds where.

Importing this imports torch; ``elasticjob`` itself does not import it.
"""

from elasticjob.data.batches import GlobalBatch, GlobalBatches
from elasticjob.data.blocks import Blocks
from elasticjob.data.per_rank import per_rank
from elasticjob.data.seeds import sample_seed

__all__ = ["Blocks", "GlobalBatch", "GlobalBatches", "per_rank", "sample_seed"]
