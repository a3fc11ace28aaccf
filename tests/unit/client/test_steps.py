"""Steps of a round whose last ones were not reported, because rank 0 was killed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from click.testing import Result

from elasticjob_client.explain.drill import cost
from elasticjob_client.explain.report import report
from elasticjob_client.explain.steps import redone, with_steps
from elasticjob_client.resource import Round
from tests.unit.client.conftest import body
from tests.unit.client.made import NOW, after_a_loss, pod
from tests.unit.client.server import Server


def unreported() -> list[dict[str, object]]:
    """Round 1 has reported step 4, and round 2 resumed from the checkpoint of step 100."""
    second, first = msgspec.to_builtins(after_a_loss().status)["roundHistory"]
    return [{**second, "firstStep": 101}, {**first, "lastStep": 4}]


@pytest.mark.parametrize(
    ("rounds", "known"),
    [
        ([(101, 200), (1, 4)], [200, 100]),
        ([(101, 200), (1, 150)], [200, 150]),
        ([(101, 200), (1, 100)], [200, 100]),
        ([(101, 200), (None, None), (1, 4)], [200, None, 100]),
        ([(None, None), (1, 4)], [None, 4]),
        ([(1, 9), (None, None)], [9, None]),
    ],
)
def test_a_later_round_tells_what_was_trained(
    rounds: list[tuple[int | None, int | None]], known: list[int | None]
) -> None:
    given = [Round(number=9 - n, first_step=a, last_step=b) for n, (a, b) in enumerate(rounds)]
    assert [one.last_step for one in with_steps(given)] == known


def test_status_and_report_have_them(server: Server, run: Callable[..., Result]) -> None:
    found = body()
    found["status"]["roundHistory"] = unreported()
    server.put(found)
    shown = run("status", "mnist").stdout
    assert " 101-2000\n" in shown
    assert " 1-100 " in shown
    drawn = report(after_a_loss(roundHistory=unreported()), [], NOW)
    assert [step for _, step in drawn.progress] == [1, 100, 101, 2000]
    assert "steps 1 to 100" in drawn.bars[0].text


def test_what_was_trained_again_is_then_not_known() -> None:
    seen = after_a_loss(roundHistory=unreported())
    assert seen.status
    second, first = seen.status.round_history
    assert redone(first, second) is None
    assert (
        "How many steps were trained again is not known: step 4 was the last to be reported, and training "
        "resumed from 101."
    ) in cost(seen, 1, [pod("mnist-1-0")]).sentences
