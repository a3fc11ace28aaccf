"""``python -m tests.chaos.hasty_operator``: the operator, for which a round is healthy after one second.

A slot whose pods are lost again and again within a minute waits longer each time until the next one joins
(``plan.charges.backoff``), and a node on which two pods have failed within an hour gets no more
(``plan.losses.excluded_nodes``). A series of kills a few seconds apart would wait for the one most of the
time, and the other would leave no nodes.
"""

from __future__ import annotations

from elasticjob_operator.__main__ import main
from elasticjob_operator.plan.charges import backoff
from elasticjob_operator.plan.losses import excluded_nodes

if __name__ == "__main__":
    backoff.HEALTHY_SECONDS = 1.0
    excluded_nodes.FAILURES = 10**9
    main()
