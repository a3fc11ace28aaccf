"""A re-join, step by step: what is made of the stamps, its table and its picture."""

from __future__ import annotations

from pathlib import Path

from benchmarks.participant import Returned
from benchmarks.trace import LEASE, STATUS, Trace, Traces, table, trace_of
from benchmarks.trace_plot import plot

STATUS_PATH = "/apis/elasticjob.dev/v1alpha1/namespaces/bench/elasticjobs/bench-1/status"
LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/bench/leases/bench-1-round"


def returned(called: float, **more: float) -> Returned:
    stamps = {
        "announcing": called + 0.002,
        "announced": called + 0.005,
        "woken": called + 0.030,
        "barrier passed": called + 0.034,
        **more,
    }
    return Returned(called, called + 0.036, 0, 2, 0.004, stamps)


def one() -> Trace:
    lines = [
        (f"PATCH {STATUS_PATH}", 99.0, 99.1),  # of the round before
        ("plan", 100.006, 100.007),
        (f"PATCH {STATUS_PATH}", 100.007, 100.015),
        (f"PATCH {STATUS_PATH}", 100.016, 100.022),
        (f"PATCH {LEASE_PATH}", 100.023, 100.026),
        ("WATCH /apis/coordination.k8s.io/v1/leases 1", 100.025, 100.026),
        (f"PATCH {STATUS_PATH}", 100.035, 100.060),  # reports it; no participant waits for it
    ]
    return trace_of(
        [returned(99.998), returned(100.0, connected=100.031)],
        lines,
        100.0,
        {"operator": 0.009, "participants": 0.008},
    )


def test_moments_count_from_the_last_call_and_older_ones_are_left_out() -> None:
    trace = one()
    assert round(trace.total, 3) == 0.036
    assert [round(moment, 3) for moment in trace.reached["announced"]] == [0.003, 0.005]
    assert [round(moment, 3) for moment in trace.reached["connected"]] == [0.031], "the leader has the store"
    assert [span.what for span in trace.spans] == ["plan", STATUS, STATUS, LEASE, STATUS]


def test_the_table_has_the_writes_that_are_waited_for(tmp_path: Path) -> None:
    traces = Traces({"cpus": 2}, [one(), one()])
    text = table(traces)
    assert "| the last participant has returned | 36 |" in text
    assert "| the operator has written the status for the last time | 22 |" in text
    assert "| the operator has written the round Lease for the last time | 26 |" in text
    assert "| status writes | 3 |" in text
    assert "| CPU: operator | 9 |" in text
    plot(traces, tmp_path / "trace.png")
    assert (tmp_path / "trace.png").read_bytes()[:4] == b"\x89PNG"
