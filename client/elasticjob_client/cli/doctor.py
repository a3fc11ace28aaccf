"""The command ``doctor``: looks at the installation and at the user's rights."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from elasticjob_client.cli.operators import operator_namespace
from elasticjob_client.cli.options import as_json, connected, output

if TYPE_CHECKING:
    from rich.text import Text

    from elasticjob_client.jobs import Jobs
    from elasticjob_client.tell.checks import Check

_MARKS = {"ok": ("ok", "green"), "failed": ("FAILED", "red"), "unknown": ("?", "yellow")}


@click.command("doctor")
@operator_namespace
@output
@connected
def doctor(jobs: Jobs, operator_namespace: str, output: str) -> None:
    """Check server, resource, operator, versions and your rights. Exit code 1 if one fails."""
    from elasticjob_client.cli import installation, screen

    found = [
        *installation.resource(jobs),
        *installation.operator(jobs, operator_namespace),
        *installation.rights(jobs),
    ]
    if output == "json":
        as_json({"items": found})
    else:
        terminal = screen.console()
        terminal.print(
            screen.table(["", "CHECK", "FOUND"], [_row(check) for check in found], last_wraps=True)
        )
    sys.exit(any(check.result == "failed" for check in found))


def _row(check: Check) -> list[str | Text]:
    from rich.text import Text

    advice = f"; {check.advice}" if check.advice else ""
    return [Text(*_MARKS[check.result]), check.subject, f"{check.found}{advice}"]
