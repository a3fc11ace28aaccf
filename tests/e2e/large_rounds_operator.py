"""``python -m tests.e2e.large_rounds_operator``: the operator, for which a round of two is large already."""

from __future__ import annotations

from elasticjob_operator import __main__
from elasticjob_operator.plan.rounds import rounds

if __name__ == "__main__":
    rounds.INLINE_MEMBERS = 1
    __main__.main()
