"""What can go wrong. Each fault takes the world, does its harm, and arranges for its end."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.faults import control_plane, machines, people
from tests.simulation.world import World

Fault = Callable[[World], None]

HARMLESS: tuple[Fault, ...] = (
    control_plane.crash_operator,
    control_plane.freeze_operator,
    control_plane.depose_operator,
    control_plane.cut_operator,
    control_plane.api_down,
    control_plane.api_slow,
    control_plane.lose_answers,
    control_plane.watches_lag,
    control_plane.watches_drop,
    control_plane.one_watch_drops,
    people.delete_lease,
    machines.stop_kubelet,
    people.change_minimum,
    machines.no_room,
)
"""Faults that may break no established round (I5)."""

HARMFUL: tuple[Fault, ...] = (
    machines.kill_agent,
    machines.kill_agent,
    machines.kill_worker,
    machines.kill_leader,
    machines.freeze_agent,
    machines.hang_agent,
    machines.freeze_node,
    machines.cut_node,
    machines.sever_pair,
    machines.node_dies,
    machines.remove_node,
    people.delete_pod,
    people.preempt_pod,
    people.give_notice,
    machines.run_out_of_memory,
    machines.hang_workers,
    people.scale,
    people.change_spares,
    people.suspend,
    people.delete_record,
    people.set_record_back,
    people.set_record_forward,
    people.recreate_job,
)
