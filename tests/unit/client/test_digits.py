"""What looks like a number and is none is taken as text, and is no traceback."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result

from elasticjob_client.convert.command import rewritten
from elasticjob_client.digits import whole
from elasticjob_client.explain.drill import victims
from elasticjob_client.packing import prepared
from tests.unit.client.made import after_a_loss

ODD = ["²", "٣", "9" * 5000]


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("12", 12), ("", None), ("-1", None), (" 1", None)])
def test_a_number_is_digits(text: str, number: int | None) -> None:
    assert whole(text) == number


@pytest.mark.parametrize("text", ODD)
def test_other_digits_are_text(text: str, run: Callable[..., Result]) -> None:
    assert whole(text) is None
    asked = ("--image", "i", "--in-image", "--dry-run=client", "--nproc-per-node", text)
    assert run("run", "t.py", *asked).exit_code == 0
    flags = [f"--nnodes={text}:{text}", f"--nproc-per-node={text}", f"--max-restarts={text}"]
    found = rewritten(["torchrun", *flags, "t.py"], [])
    assert (found.minimum, found.nproc_per_node, found.max_restarts) == (None, None, None)

    def train() -> None:
        """Nothing."""

    job, _ = prepared(train, "i", None, {}, None, {"nproc_per_node": text})
    assert job.spec.nproc_per_node == text
    with pytest.raises(ValueError, match="cannot be killed: expected rank:R"):
        victims(after_a_loss(), [], f"rank:{text}")
