"""How a coordinator forms the next round: who can be in it, who is waited for, and whether it may begin at
all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from elasticjob.contract.participant_record import AnnouncedState
from elasticjob.contract.text import in_a_row, listed
from elasticjob.peers import kept_out
from elasticjob.peers.own import demands
from elasticjob.peers.pacing import pause_seconds
from elasticjob.peers.settled import FORMING_RENEW, RUNNING_RENEW, Settled, leave_out
from elasticjob.peers.sight import Peer, Sight
from elasticjob.peers.waiting import PeerWait
from elasticjob.rounds.candidates import Expected, FormRound
from elasticjob.rounds.causes import PLANNED
from elasticjob.rounds.formation import expect_members, form, last_call, published
from elasticjob.rounds.ranks import Candidate
from elasticjob.rounds.state import Member, MemberState, RoundState, RoundView

SILENT_RENEWALS = 4
"""How many renewals of its Lease a participant that waits may miss until it is not chosen."""
PROBE_SECONDS = 1.0
"""How long members of the last round have to rejoin before their ports are tried."""
DELETE_ENDED = "If a pod of these has ended, delete it, or its Lease where there is no such pod"
"""What to do if nothing else proves that they are in no round. A Lease that was copied is that of no pod."""


@dataclass(frozen=True)
class Formed:
    """``chosen`` is what to publish; otherwise the run has ``failed``, or ``waiting`` says what it waits
    for."""

    chosen: Settled | None = None
    failed: str = ""
    waiting: str = ""
    probes: Mapping[str, str] = field(default_factory=dict)


def joined(settled: Settled, view: RoundView, sight: Sight) -> dict[str, Peer]:
    """The participants that have announced themselves for the round after this one, and show signs of
    life."""
    r = view.state
    lost = {m.key for m in r.members if m.state == MemberState.LOST and m.key in sight.gone}
    spent = {m.id for m in r.members}
    patience = SILENT_RENEWALS * (RUNNING_RENEW if r.active else FORMING_RENEW)
    found = {}
    for name, peer in sight.peers.items():
        asks = peer.record.state == AnnouncedState.JOINING and peer.record.seen(settled.run) == r.number
        if (
            not asks
            or peer.record.id in spent
            or peer.key in sight.gone
            or peer.key in lost
            or name in sight.suspects
        ):
            continue
        if peer.silent < patience:
            found[name] = peer
            view.waits.wake(patience - peer.silent)
    return _with_ids_of_their_own(found)


def awaited(settled: Settled, sight: Sight) -> bool:
    """Whether a participant waits for the coordinator, which shows that it lives then; or it for the leader's
    report: it notices so that the API server is away, and the leader cannot write."""
    r = settled.state
    if not r.trains:
        return True
    ids, patience = {m.id for m in r.members}, SILENT_RENEWALS * RUNNING_RENEW
    return any(
        (p.record.state == AnnouncedState.JOINING and p.record.id not in ids and p.silent < patience)
        or (p.report is not None and p.report.nonce == r.nonce and demands(p.report))
        for p in sight.peers.values()
        if p.key not in sight.gone
    )


def _with_ids_of_their_own(found: Mapping[str, Peer]) -> dict[str, Peer]:
    """Without those that have the id of another: a Lease was copied, and no record may have an id twice. The
    one that was renewed last is that of the participant."""
    owner: dict[str, str] = {}
    for name, peer in sorted(found.items(), key=lambda one: (one[1].silent, one[0])):
        owner.setdefault(peer.record.id, name)
    return {name: peer for name, peer in found.items() if owner[peer.record.id] == name}


def form_round(settled: Settled, view: RoundView, sight: Sight) -> Formed:
    """The next round, or why there is none yet."""
    settled = kept_out.take_lost(settled, view, sight)
    pause = view.waits.left(PeerWait.PAUSE, view.state.number, pause_seconds(settled.early_ends))
    expected, _ = expect_members(view)
    if any(m.state == MemberState.SUCCEEDED for m in view.state.members):
        return Formed(failed="a member was lost after others had succeeded")
    if _misses_rounds(settled, sight):
        unread = sorted(sight.unreadable)
        if unread:  # which rounds these have seen is not known yet
            return Formed(waiting=_doubt(unread, sight))
        before = replace(settled, state=view.state, unsure=True, left_out=False)
        return Formed(leave_out(before, sight.highest_seen(settled.run)))
    doubt = _possible_members(settled, view, sight)
    if doubt:
        return Formed(waiting=_doubt(doubt, sight), probes=_probes(doubt, sight, view))
    there = joined(settled, view, sight)
    fresh = kept_out.without(settled, there)
    expected += _others(settled, view, sight, there)
    decision = form(view, _candidates(view.state, fresh), expected, settled.minimum, settled.maximum)
    probes = _probes([m.name for m in view.state.members if m.name not in there], sight, view)
    if not isinstance(decision, FormRound):
        return Formed(waiting=decision.sentence, probes=probes)
    held = _held(settled, view, sight, pause)
    if held:
        return Formed(waiting=held, probes=probes)
    chosen = [Member(c.id, c.name, fresh[c.name].key, rank) for rank, c in enumerate(decision.members)]
    state = published(view.state, chosen, sight.nonce, sight.wall)
    state = replace(state, unarrived=kept_out.suspects(settled, state))
    endpoint = fresh[chosen[0].name].record.endpoint
    return Formed(replace(settled, state=state, endpoint=endpoint, unsure=False, left_out=False))


def _possible_members(settled: Settled, view: RoundView, sight: Sight) -> list[str]:
    """If a round may have been published that this record does not know: those that may be in it. Each that
    lives and waits announces itself for the round after ``number``. One of another run has waited since it
    came if the round Lease was there before."""
    r = view.state
    if r.number and not settled.unsure:
        return []
    found = (
        name
        for name, peer in sight.peers.items()
        if peer.key not in sight.gone
        and peer.record.seen(settled.run) != r.number
        and peer.record.state != AnnouncedState.LEAVING
    )
    if not settled.unsure:
        return sorted(found)
    others = (
        name for name, key in sight.others.items() if name in sight.older and sight.may_go_on(name, key)
    )
    return sorted({*found, *others, *sight.unreadable})


def _doubt(names: list[str], sight: Sight) -> str:
    others, own = [n for n in names if n in sight.others], [n for n in names if n not in sight.others]
    found = ["there was no round Lease"]
    if own:
        found.append(
            f"{listed(own)} may be in a round that is not known any more; waiting for a sign of life. "
            + DELETE_ENDED
        )
    if others:
        found.append(
            f"{listed(others)} of another run of this name may train. Delete these pods, or the Leases "
            "where there are no such pods, or give one of the runs another name"
        )
    return ", and ".join(found)


def _misses_rounds(settled: Settled, sight: Sight) -> bool:
    """Whether there may be rounds that the record does not know, and their numbers are still to be left out:
    it was made again, or begins at 0 although there were rounds. Each that lives and waits announces itself
    again when it sees the number that is left out, and a member of such a round does not."""
    if settled.state.number:
        return settled.unsure and not settled.left_out
    return bool(sight.highest_seen(settled.run)) or any(name in sight.older for name in sight.peers)


def _candidates(r: RoundState, fresh: Mapping[str, Peer]) -> list[Candidate]:
    ranks = {m.key: m.group_rank for m in r.members}
    return [
        Candidate(p.record.id, name, p.slot, ranks.get(p.key), name not in r.ineligible_leaders)
        for name, p in sorted(fresh.items())
    ]


def _others(settled: Settled, view: RoundView, sight: Sight, fresh: Mapping[str, Peer]) -> list[Expected]:
    """Those beside the last members that may still come. Without sight of the pods nothing is known of them:
    then only the first round has a last call, and a later one grows when they come. So it does for a pod that
    has not started: it may take minutes."""
    r = view.state
    enough = len(fresh) >= settled.minimum
    if enough and r.cause in PLANNED:
        return []
    left = last_call(view, enough)
    if sight.live_pods is not None:
        known = {m.key for m in r.members}
        late = sight.pending if r.number and enough else frozenset()
        return [
            Expected(name, left, "its pod has not joined yet")
            for name, uid in sorted(sight.live_pods.items())
            if name not in fresh and uid not in known and name not in late and _may_join(sight, name, uid, r)
        ]
    if r.number or left <= 0 or len(fresh) >= settled.maximum:
        return []
    return [Expected("others", left, "may still come")]


def _may_join(sight: Sight, name: str, uid: str, r: RoundState) -> bool:
    """Whether this pod may still ask for a place: its agent has not ended, and is not one of another run.
    Before the first round one that has ended another run may be followed by one of this run in its pod."""
    peer = sight.has(name, uid)
    if peer is not None:
        return peer.record.state == AnnouncedState.JOINING
    return sight.others.get(name) != uid or (r.number == 0 and sight.has_ended(name, uid))


def _held(settled: Settled, view: RoundView, sight: Sight, pause: float) -> str:
    """Why a round that could begin does not: after early ends there is a pause, and no two rounds may train
    (P3)."""
    r = view.state
    if r.members and not any(has_left(m, sight) for m in r.members):
        silent = listed([m.name for m in r.members])
        text = f"no member of the last round is known to have left it ({silent})"
        return f"{text}. {DELETE_ENDED}"
    if pause > 0:
        ended = in_a_row(settled.early_ends, "round")
        return f"a pause, because {ended} ended early. The last: {settled.message}"
    return ""


def has_left(member: Member, sight: Sight) -> bool:
    """Whether it is known that this member is not in its round any more: it has said so, or its Lease, its
    pod or its agent is gone. Silence is no proof, nor is a wait that is over (P3)."""
    if member.state == MemberState.LEFT or member.key in sight.gone:
        return True
    peer = sight.has(member.name, member.key)
    if peer is None:
        return not sight.is_there(member.name, member.key)
    return peer.record.id != member.id


def _probes(names: list[str], sight: Sight, view: RoundView) -> dict[str, str]:
    """The endpoints of these, if they have been waited for long enough."""
    if not names or view.waits.left(PeerWait.PROBE, view.state.number, PROBE_SECONDS) > 0:
        return {}
    peers = [sight.peers[name] for name in names if name in sight.peers]
    if peers:
        view.waits.wake(PROBE_SECONDS)
    return sight.ports(peers)
