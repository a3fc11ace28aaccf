"""How many pods a job has, however often they fail."""

from __future__ import annotations

from tests.scenarios.world import World


def test_dead_containers_beside_sidecars_do_not_accumulate() -> None:
    """Thirty attempts of one slot, each killed as a member, beside a sidecar that takes its grace period."""
    w = World()
    w.do("job replicas=2")
    w.make_passes()
    w.do("start mnist-0-0")
    name, most = "mnist-1-0", 0
    for attempt in range(30):
        w.do(f"start {name}")
        w.make_passes()
        assert [m.pod_name for m in w.status.members()] == ["mnist-0-0", name]
        w.do("establish")
        w.make_passes()
        w.do(f"exit {name} 137 pod=sidecar")
        w.make_passes()
        w.do("join mnist-0-0")
        for _ in range(10):
            w.make_passes()
            most = max(most, len(w.pods))
            w.do("wait 10")
        for gone in [pod.name for pod in w.pods.values() if pod.deleting]:
            w.do(f"gone {gone}")
        name = f"mnist-1-{attempt + 1}"
        assert set(w.pods) == {"mnist-0-0", name}
    assert most <= 3
