"""A process of the cluster that ends before it is ready."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.component import Component, ComponentFailedError, SupervisorClient

SCRIPT = """\
n=$(($(cat "$0.runs" 2>/dev/null || echo 0) + 1))
echo $n >"$0.runs"
{first}
touch "$0.ready"
exec sleep 1000
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[SupervisorClient]:
    client = SupervisorClient(tmp_path / "state")
    yield client
    client.end()


def component(supervisor: SupervisorClient, folder: Path, first: str, again_if: str) -> Component:
    """A program that does `first` before it is ready; `$n` counts its runs."""
    script = folder / "program"
    script.write_text(SCRIPT.format(first=first))
    ready = folder / "program.ready"
    log = folder / "program.log"
    command = ["sh", str(script)]
    return Component("program", supervisor, command, log, lambda _: ready.exists(), again_if=again_if)


def test_it_is_started_again_while_it_says_that_another_is_not_ready(
    supervisor: SupervisorClient, tmp_path: Path
) -> None:
    found = component(supervisor, tmp_path, '[ $n -gt 2 ] || { echo "not yet"; exit 1; }', "not yet")
    found.start()
    assert found.running
    assert (tmp_path / "program.runs").read_text() == "3\n"


def test_it_is_not_started_again_if_it_says_something_else(
    supervisor: SupervisorClient, tmp_path: Path
) -> None:
    found = component(supervisor, tmp_path, 'echo "no such file"; exit 3', "not yet")
    with pytest.raises(ComponentFailedError, match="program ended with 3:\nno such file"):
        found.start()
    assert (tmp_path / "program.runs").read_text() == "1\n"


def test_only_the_run_that_has_ended_counts(supervisor: SupervisorClient, tmp_path: Path) -> None:
    first = '[ $n -gt 1 ] && { echo "no such file"; exit 3; } || { echo "not yet"; exit 1; }'
    found = component(supervisor, tmp_path, first, "not yet")
    with pytest.raises(ComponentFailedError, match="program ended with 3:\nnot yet\nno such file"):
        found.start()
    assert (tmp_path / "program.runs").read_text() == "2\n"
