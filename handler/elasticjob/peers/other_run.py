"""What a participant makes of a round Lease that is of another run of its name. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from elasticjob.contract.participant_record import AnnouncedState
from elasticjob.contract.round_record import Outcome, Phase
from elasticjob.contract.text import listed
from elasticjob.peers.round_lease import Identity
from elasticjob.peers.settled import Settled
from elasticjob.peers.sight import Sight


@dataclass(frozen=True)
class OtherRun:
    """Another run, as the round Lease has it, or had it last. ``holder`` is its coordinator."""

    settled: Settled
    holder: Identity

    @property
    def never_began(self) -> bool:
        """Whether it has made the round Lease without having seen one, and no round since."""
        return self.settled.unsure and not self.settled.state.members

    def may_go_on(self, sight: Sight | None) -> bool:
        """Whether one of its members, its coordinator, or a pod that waits for its next round may be there.
        All may be, without a sight. A participant of this run is none of the other's: a user has put an old
        record into the Lease that this one coordinates."""
        if sight is None:
            return True
        there = [(m.name, m.key) for m in self.settled.state.members]
        there.append((self.holder.pod, self.holder.uid))
        waiting = [name for name, run in sight.other_runs.items() if run == self.settled.run]
        there += [(name, sight.others[name]) for name in waiting]
        return any(sight.may_go_on(name, key) for name, key in there if sight.has(name, key) is None)

    def at_its_end(self, sight: Sight | None) -> Settled:
        """This run as another one follows it: it is complete if all members of its last round say that they
        have succeeded, although its coordinator has not closed it yet."""
        members = self.settled.state.members
        said = [sight.said_by(m.name, m.key) for m in members] if sight is not None else []
        well = [r for r in said if r is not None and r.state == AnnouncedState.SUCCEEDED]
        if self.settled.closed or not members or [r.id for r in well] != [m.id for m in members]:
            return self.settled
        state = replace(self.settled.state, phase=Phase.CLOSED.value)
        return replace(self.settled, state=state, outcome=Outcome.COMPLETE.value)

    def gives_way(self, mine: Settled | None) -> bool:
        """Whether a run that has had rounds takes its Lease back: it was deleted, and this one has made it.
        If neither knows of a round that it had, one order decides, so that they do not take turns."""
        if mine is None or not mine.state.number or not self.never_began:
            return False
        known = not (mine.unsure and not mine.state.members)
        other = self.settled
        return known or (mine.state.number, mine.run) > (other.state.number, other.run)

    def sentence(self, run: str, name: str) -> str:
        """Why run ``run`` of this name waits, and what to do."""
        members = [m.name for m in self.settled.state.members]
        who = f"its pods: {listed(members)}" if members else f"its coordinator: {self.holder.pod or 'none'}"
        return (
            f"run {self.settled.run} has the name {name} ({who}), and run {run} begins when that one is "
            "over. If both are to train at once, give one of them another name, in --rdzv-endpoint and in "
            "the label elasticjob.dev/run-name of its pods; if that run is to end, delete its pods"
        )
