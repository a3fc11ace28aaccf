"""Every second of a job that reports steps is counted once: as training, or as lost to one cause."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scenarios.world import World

ROUNDS = st.lists(
    st.tuples(
        st.integers(0, 30),  # seconds until the first step
        st.integers(0, 200),  # seconds of training
        st.integers(0, 50),  # how many steps back the next round resumes
        st.booleans(),  # whether this round reports any step
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(ROUNDS)
def test_every_second_is_counted_once(rounds: list[tuple[int, int, int, bool]]) -> None:
    world = World().play("job replicas=1", "start mnist-0-0")
    step = 0
    for first, training, back, reports in rounds:
        world.play("establish", f"wait {first}")
        if reports:
            low = max(0, step - back)
            step = low + training
            world.play(f"wait {training}", f"progress {low}-{step} first={first} training={training}")
        world.play("wait 65", "fail mnist-0-0")
    progress = world.status.progress
    if not any(reports for *_, reports in rounds):
        assert progress is None
        return
    assert progress is not None
    assert progress.counted_time is not None
    assert world.status.start_time is not None
    counted = progress.trained_milliseconds + progress.training_milliseconds
    counted += sum(entry.milliseconds for entry in progress.lost_by_cause)
    assert timedelta(milliseconds=counted - progress.training_milliseconds) == (
        progress.counted_time - world.status.start_time
    )
    assert (progress.goodput_percent is None) == (counted == 0)
    assert 0 <= (progress.goodput_percent or 0) <= 100
    assert progress.trained_milliseconds >= 0
