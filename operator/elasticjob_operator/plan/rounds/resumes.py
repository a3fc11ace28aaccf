"""Where the state of a round came from (memory, a peer, storage), and how many steps are done again for it:
what the leader says once rank 0's script has resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elasticjob.contract.reports import ResumedReport
from elasticjob.contract.state_source import Source
from elasticjob.contract.text import counted
from elasticjob.rounds.causes import Cause
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import Resumed, RoundHistory


def note(p: Pass) -> None:
    """Take in what the leader says of the current round, once."""
    history = p.status.round_history
    said = _said(p)
    if said is None or not history or history[0].number != p.round.number or history[0].resumed is not None:
        return
    reached = _reached(history[1:])
    redone = None if reached is None or reached < said.step else reached - said.step
    resumed = Resumed(said.step, said.milliseconds, said.source, 0 if p.round.number == 1 else redone)
    p.set(round_history=(replace(history[0], resumed=resumed), *history[1:]))
    if _memory_did_not_help(p, resumed, reached):
        p.event("ResumedFromStorage", _sentence(p.round.number, resumed))


def _said(p: Pass) -> ResumedReport | None:
    leader = next(iter(p.status.members()), None)
    lease = p.lease_of(leader.pod_uid) if leader is not None else None
    said = lease.resumed if lease is not None else None
    return said if said is not None and said.nonce == p.round.nonce else None


def _reached(before: Sequence[RoundHistory]) -> int | None:
    """The last step that the rounds before have reported. One that has ended before its first step had the
    one with which it began: what others had done beyond that was counted with it."""
    for one in before:
        if one.last_step is not None:
            return one.last_step
        if one.resumed is not None:
            return one.resumed.step
    return None


def _memory_did_not_help(p: Pass, resumed: Resumed, reached: int | None) -> bool:
    """Whether steps are done again although memory checkpoints are on. Not after a suspension, which no
    memory survives."""
    return (
        p.job.spec.memory_checkpoints is not None
        and resumed.source == Source.STORAGE
        and p.round.number > 1
        and (reached is None or reached > resumed.step)
        and p.round.cause != Cause.RESUMED
    )


def _sentence(number: int, resumed: Resumed) -> str:
    again = resumed.redone_steps
    cost = (
        "" if again is None else f"; {counted(again, 'step')} {'is' if again == 1 else 'are'} trained again"
    )
    return (
        f"round {number} resumed from storage (step {resumed.step}) although memory checkpoints are on: no "
        f"newer state could be loaded from memory; rank 0's log says why{cost}"
    )
