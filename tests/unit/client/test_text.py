"""Bytes that are not UTF-8 are refused before anything is asked, with the option or file that has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from elasticjob_client.packing import prepared
from tests.unit.client.server import Server

ODD = "a\udcff"
RUN = ("--image", "i", "--dry-run=client")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--env", f"A={ODD}"), "'--env'"),
        (("--env", f"{ODD}=A"), "'--env'"),
        (("--volume", f"c:/{ODD}"), "'--volume'"),
        (("--nproc-per-node", ODD), "'--nproc-per-node'"),
        (("--image", ODD), "'--image'"),
        (("--", "--data", ODD), "'[ARGUMENTS]...'"),
    ],
)
@pytest.mark.parametrize("output", ["yaml", "json"])
def test_the_option_is_named(
    run: Callable[..., Result], words: tuple[str, ...], named: str, output: str
) -> None:
    found = run("run", "t.py", "--in-image", *RUN, "-o", output, *words)
    assert found.exit_code == 2
    assert f"Invalid value for {named}: it has bytes that are not UTF-8" in found.stderr


def test_the_file_is_named(run: Callable[..., Result], tmp_path: Path, server: Server) -> None:
    code = tmp_path / f"code{ODD}"
    code.mkdir()
    for name in ("t.py", f"{ODD}.py"):
        (code / name).write_text("pass")
    assert run("run", str(code / "t.py"), *RUN).exit_code == 0, "the folder's name goes nowhere"
    for words in ((str(code / "t.py"), "--code", str(code)), (str(code / f"{ODD}.py"),)):
        found = run("run", *words, "--image", "i")
        assert found.exit_code == 2
        assert r"the name of the file 'a\udcff.py' has bytes that are not UTF-8: rename it" in found.stderr
    found = run("run", f"{ODD}.py", "--in-image", *RUN)
    assert found.exit_code == 2
    assert r"Invalid value for 'SCRIPT': 'a\udcff.py' has bytes that are not UTF-8" in found.stderr
    assert not server.asked


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        (r"environment\['A'\]", {"environment": {"A": ODD}}),
        ("environment", {"environment": {ODD: "A"}}),
        ("volumes", {"volumes": {f"/{ODD}": "claim"}}),
        ("nproc_per_node", {"nproc_per_node": ODD}),
        ("memory", {"memory": ODD}),
        ("image", {"image": ODD}),
        ("an argument", {"arguments": [ODD]}),
    ],
)
def test_the_keyword_is_named(tmp_path: Path, what: str, asked: dict[str, Any]) -> None:
    (tmp_path / "t.py").write_text("pass")
    rest = {"image": "i", "arguments": (), **asked}
    with pytest.raises(ValueError, match=rf"^{what} has bytes that are not UTF-8$"):
        prepared(tmp_path / "t.py", rest.pop("image"), None, rest.pop("arguments"), None, rest)
