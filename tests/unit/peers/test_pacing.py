"""Which ends of rounds count as early, and what follows from it (I14)."""

from __future__ import annotations

from dataclasses import replace

from elasticjob.peers.pacing import MOST_EARLY_ENDS
from tests.unit.peers.table import Table


def restart(table: Table, name: str, seen: bool) -> None:
    """This pod is deleted and made again, as a rollout does; ``seen``: pods are in sight. The others join
    the next round, and it trains."""
    table.gone[table.peers.pop(name).key] = "its pod was deleted"
    table.staying = frozenset(peer.key for peer in table.peers.values()) if seen else None
    table.look(after=12)
    if table.settled.closed:
        return
    table.join(*table.peers, name)
    while not table.look(after=1).settled.state.active:
        pass
    table.report(table.members[0], established=True)
    table.look()


def test_a_rolling_restart_fails_no_run_where_pods_are_in_sight() -> None:
    """``kubectl rollout restart`` of a StatefulSet deletes one pod after the other."""
    for seen in (True, False):
        table = Table()
        table.train("pod-0", "pod-1", "pod-2")
        for number in range(2 * MOST_EARLY_ENDS):
            if not table.settled.closed:
                restart(table, f"pod-{number % 3}", seen)
        assert (table.settled.closed, table.settled.early_ends) == ((False, 0) if seen else (True, 10))


def test_a_pod_that_is_deleted_explains_an_end_that_others_report_first() -> None:
    """Their workers lose its connection before its agent has stopped. The series before it goes on."""
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    table.settled = replace(table.settled, early_ends=4)
    table.staying = frozenset(table.peers[name].key for name in ("pod-0", "pod-1"))
    table.fail("pod-1", "connection reset by peer")
    table.look(after=12)
    assert (table.told, table.settled.early_ends) == ((1, "Broken", "WorkerFailed"), 4)


def test_a_pod_that_has_failed_and_stays_counts() -> None:
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    table.staying = frozenset(peer.key for peer in table.peers.values())
    table.gone[table.peers["pod-1"].key] = "its pod has failed"
    table.look(after=12)
    assert (table.told, table.settled.early_ends) == ((1, "Broken", "PodLost"), 1)
