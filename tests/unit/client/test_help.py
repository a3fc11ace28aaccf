"""The help of the program and its commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import click
import pytest
from click.testing import Result

from elasticjob_client.cli.main import program

Run = Callable[..., Result]

COMMANDS = program.list_commands(click.Context(program))


def test_no_summary_is_cut(run: Run) -> None:
    text = run("--help").stdout
    summaries = text.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in summaries] == COMMANDS, "each is in one line"
    assert [line for line in summaries if line.endswith("...")] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    command = program.get_command(click.Context(program), name)
    assert command
    options = [one for one in command.params if isinstance(one, click.Option)]
    assert [one.name for one in options if not one.help] == []


@pytest.mark.parametrize("name", ["run", "logs", "exec", "drill", "convert", "report", "completion"])
def test_examples_are_of_the_command_and_its_options(run: Run, name: str) -> None:
    command = program.get_command(click.Context(program), name)
    assert command
    known = {word for one in command.params for word in one.opts}
    shown = run(name, "--help").stdout.partition("  Examples:\n")[2].replace("\\\n", " ")
    assert shown
    for line in shown.splitlines():
        words = shlex.split(line.partition(f"elasticjob {name}")[2].partition(" -- ")[0], comments=True)
        assert f"elasticjob {name}" in line
        assert {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"} <= known
