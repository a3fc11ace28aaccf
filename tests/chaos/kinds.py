"""All kinds of faults: the failures, and the planned changes."""

from __future__ import annotations

from tests.chaos.faults import (
    STALL_SECONDS,
    Kind,
    cut_node,
    cut_pod,
    delete_participant_lease,
    delete_round_lease,
    freeze_api_server,
    freeze_node,
    kill_agent,
    kill_api_server,
    kill_leader,
    kill_node,
    kill_operator,
    kill_worker,
    restart_etcd,
    set_round_lease_back,
    slow_writes,
    stop_agent,
    stop_operator,
)
from tests.chaos.planned import PLANNED, RESUMED

KINDS = (
    Kind("kill a worker", kill_worker, ends_rounds=True),
    Kind("kill an agent", kill_agent, ends_rounds=True),
    Kind("kill rank 0's agent", kill_leader, ends_rounds=True),
    Kind("stop an agent briefly", stop_agent((1.0, STALL_SECONDS / 2)), ends_rounds=False),
    Kind("stop an agent for long", stop_agent((STALL_SECONDS * 1.5, STALL_SECONDS * 3)), ends_rounds=True),
    Kind("freeze a node", freeze_node, ends_rounds=True),
    Kind("kill a node", kill_node, ends_rounds=True),
    Kind("cut a node", cut_node, ends_rounds=True, root=True),
    Kind("cut a pod both ways", cut_pod("both"), ends_rounds=True, root=True),
    Kind("cut packets to a pod", cut_pod("in"), ends_rounds=True, root=True),
    Kind("cut packets from a pod", cut_pod("out"), ends_rounds=True, root=True),
    Kind("kill the operator", kill_operator, ends_rounds=False),
    Kind("stop the operator", stop_operator, ends_rounds=False),
    Kind("kill the API server", kill_api_server, ends_rounds=False),
    Kind("freeze the API server", freeze_api_server, ends_rounds=False),
    Kind("restart etcd", restart_etcd, ends_rounds=False),
    Kind("slow writes", slow_writes, ends_rounds=False),
    Kind("delete the round Lease", delete_round_lease, ends_rounds=False),
    Kind("set the round Lease back", set_round_lease_back, ends_rounds=False),
    Kind("delete a participant's Lease", delete_participant_lease, ends_rounds=False),
    *PLANNED,
)

HEALS_END_NO_ROUND = frozenset({"operator back", "operator goes on", "writes quick again", RESUMED})
"""The others may: what they heal may not have been noticed before."""


def may_end_round(name: str) -> bool:
    """Whether the fault, or the end of one, of this name may end a round."""
    if name in BY_NAME:
        return BY_NAME[name].ends_rounds
    return name not in HEALS_END_NO_ROUND


BY_NAME = {kind.name: kind for kind in KINDS}
