"""Which steps a round has trained, as far as its reports and the rounds after it tell. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elasticjob_client.explain.times import milliseconds
from elasticjob_client.resource import Resumed, Round


def with_steps(rounds: Sequence[Round]) -> list[Round]:
    """The rounds, newest first, each with the last step that it is known to have trained.

    Rank 0 reports the first step at once and others every few seconds. If it is killed, the last ones are
    not reported; but a round that resumes from a later step has them from a checkpoint of those before.
    """
    found: list[Round] = []
    resumed: int | None = None
    for one in rounds:
        last = one.last_step
        if last is not None and resumed is not None and resumed - 1 > last:
            one = msgspec.structs.replace(one, last_step=resumed - 1)
        found.append(one)
        resumed = one.first_step if one.first_step is not None else resumed
    return found


def redone(ended: Round, following: Round) -> int | None:
    """Steps of the ended round that the next one trained again; None if that is not known, because steps are
    not reported, or because the last ones were not. The next round's script knows best with which step it
    began."""
    if following.resumed is not None and following.resumed.redone_steps is not None:
        return following.resumed.redone_steps
    if ended.last_step is None or following.first_step is None:
        return None
    again = ended.last_step + 1 - following.first_step
    return again if again >= 0 else None


_SOURCES = {
    "Memory": "the memory of its own pods",
    "Peer": "memory, some of it that of other pods",
    "Storage": "storage",
}


def state_words(resumed: Resumed) -> str:
    """Where the state of a round came from."""
    if resumed.source == "Nothing":
        return "there was no checkpoint to resume from"
    where = _SOURCES.get(resumed.source, resumed.source)
    return f"its state, of step {resumed.step}, came from {where} in {milliseconds(resumed.milliseconds)}"
