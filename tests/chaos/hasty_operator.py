"""``python -m tests.chaos.hasty_operator``: the operator, for which a round is healthy after one second.

A slot whose pods are lost again and again within a minute waits longer each time until the next one joins
(``plan.charges.backoff``). A series of kills a few seconds apart would wait for that most of the time.
"""

from __future__ import annotations

from elasticjob_operator.__main__ import main
from elasticjob_operator.plan.charges import backoff

if __name__ == "__main__":
    backoff.HEALTHY_SECONDS = 1.0
    main()
