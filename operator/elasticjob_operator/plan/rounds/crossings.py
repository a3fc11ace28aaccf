"""How often the ring of a round's ranks goes from one part of the network to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticjob.rounds import topology
from elasticjob.rounds.topology import Domains
from elasticjob_operator.plan.state.status import Crossings, ParticipantStatus


def crossings(members: Sequence[ParticipantStatus], domains: Mapping[str, Domains]) -> tuple[Crossings, ...]:
    """For each label of nodes by which there are several domains, of which one has several members: the
    coarsest first. Of labels that make the same domains only the coarsest. ``members`` are in rank order."""
    by_slot = sorted(members, key=lambda m: (m.slot is None, m.slot or 0, m.pod_name))
    ring, before = ([domains.get(m.node_name, ()) for m in order] for order in (members, by_slot))
    found, known = [], 1
    for level in range(max(map(len, ring), default=0)):
        count = len({place[: level + 1] for place in ring})
        if known < count < len(ring):
            named = next(place[level] for place in ring if place[level:] and place[level])
            crossed, by_slot_crossed = (topology.crossings(order, level) for order in (ring, before))
            found.append(Crossings(named.partition("=")[0], count, crossed, by_slot_crossed))
        known = max(known, count)
    return tuple(found)
