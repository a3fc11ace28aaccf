"""What speaks against a round, according to its members' reports. Pure."""

from __future__ import annotations

from elasticjob.rounds.establishment import find_not_established
from elasticjob.rounds.reports import find_unreachable
from elasticjob.rounds.state import Finding, RoundView


def judge(view: RoundView, known: bool) -> list[Finding]:
    """Take the members' reports in, and bring their states up to date.

    ``known``: the caller knows of something else that speaks against the round. Then it is not asked whether
    a running round is established in time.
    """
    found = find_unreachable(view)
    if view.state.active and not found and not known:
        found = find_not_established(view)
    return found
